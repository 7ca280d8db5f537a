"""Every error as one tree. Knows nothing of where errors are raised or printed.

    PenstockError
    ├── PipelineFileError   PEN-1xx  the command line or the file is wrong; exit code 2
    ├── SourceError         PEN-2xx  the Postgres that is followed
    ├── LogError            PEN-3xx  the durable log and the state directory
    ├── DecodeError         PEN-4xx  bytes that are not what the protocol says
    ├── SinkError           PEN-5xx  what changes are delivered to
    └── RunError            PEN-6xx  processes, Spark, locks

An exception raised in a Spark task reaches the driver as text only, so the code in the text is how
the driver recognises it (`recognise`). No message holds a password or a row value; keys are allowed.
"""

from __future__ import annotations

import enum
import re
from typing import ClassVar


class Remedy(enum.Enum):
    """What mends an error: waiting, a person, or nobody (a defect)."""

    TIME = "time"
    OPERATOR = "operator"
    NOBODY = "nobody"


class PenstockError(Exception):
    """Found beside wanted, where it happened, and what to do.

    Args are positional and all are strings, so that the error can be pickled.
    """

    code: ClassVar[str] = "PEN-900"
    remedy: ClassVar[Remedy] = Remedy.NOBODY
    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, where: str = "", do: str = "") -> None:
        super().__init__(what, where, do)
        self.what = what
        self.where = where
        self.do = do

    def __str__(self) -> str:
        place = f" {self.where}:" if self.where else ""
        advice = f"\n  Do: {self.do}" if self.do else ""
        return f"{self.code}{place} {self.what}{advice}"


class PipelineFileError(PenstockError):
    """The file does not read or does not parse."""

    code = "PEN-101"
    remedy = Remedy.OPERATOR
    exit_code = 2


class UnknownKey(PipelineFileError):
    """A key that no part of penstock knows."""

    code = "PEN-102"


class BadValue(PipelineFileError):
    """A known key, or an option of a command, with a value it cannot take."""

    code = "PEN-103"


class MissingVariable(PipelineFileError):
    """The file names an environment variable that is not set."""

    code = "PEN-104"


class NotThereYet(PipelineFileError):
    """A key of the pipeline file that this version does not carry out."""

    code = "PEN-105"


class BadUrl(PipelineFileError):
    """A connection URL that libpq cannot read."""

    code = "PEN-106"


class BadTableRule(PipelineFileError):
    """A rule of an include or exclude list that cannot name tables."""

    code = "PEN-107"


class SourceError(PenstockError):
    """The source does not answer, or ended the connection."""

    code = "PEN-201"
    remedy = Remedy.TIME


class SourceLoginRefused(SourceError):
    """Wrong user or password, or no line in pg_hba.conf."""

    code = "PEN-202"
    remedy = Remedy.OPERATOR


class SourceDatabaseMissing(SourceError):
    """The server has no database of that name."""

    code = "PEN-203"
    remedy = Remedy.OPERATOR


class WalLevelTooLow(SourceError):
    """wal_level is not logical."""

    code = "PEN-204"
    remedy = Remedy.OPERATOR


class SourcePrivilegeMissing(SourceError):
    """The role may not replicate, read a table, or own a publication."""

    code = "PEN-205"
    remedy = Remedy.OPERATOR


class NoSlotLeft(SourceError):
    """max_replication_slots or max_wal_senders is used up."""

    code = "PEN-206"
    remedy = Remedy.OPERATOR


class SlotMissing(SourceError):
    """The slot that our position belongs to is not there."""

    code = "PEN-207"
    remedy = Remedy.OPERATOR


class SlotMoved(SourceError):
    """The slot was advanced or re-created past what was delivered."""

    code = "PEN-208"
    remedy = Remedy.OPERATOR


class OtherCluster(SourceError):
    """Another cluster, timeline or database answers at the same address."""

    code = "PEN-209"
    remedy = Remedy.OPERATOR


class PublicationChanged(SourceError):
    """The publication is missing, or is not the one our slot was made with."""

    code = "PEN-210"
    remedy = Remedy.OPERATOR


class TableWithoutKey(SourceError):
    """Publishing the table would make UPDATE and DELETE fail on the source."""

    code = "PEN-211"
    remedy = Remedy.OPERATOR


class TableMissing(SourceError):
    """A table named outright does not exist, or cannot be published."""

    code = "PEN-212"
    remedy = Remedy.OPERATOR


class PoolerInTheWay(SourceError):
    """The address belongs to a connection pooler, which cannot replicate."""

    code = "PEN-213"
    remedy = Remedy.OPERATOR


class SlotInUse(SourceError):
    """Another connection holds the slot."""

    code = "PEN-214"


class SlotLost(SourceError):
    """The server removed WAL that the slot still needed."""

    code = "PEN-215"
    remedy = Remedy.OPERATOR


class SourceTooOld(SourceError):
    """The server is older than any version penstock follows."""

    code = "PEN-216"
    remedy = Remedy.OPERATOR


class DecodingFailed(SourceError):
    """The server failed to decode its own WAL (an internal error of the walsender)."""

    code = "PEN-217"


class SnapshotGone(SourceError):
    """The snapshot that tables are copied under has ended with its connection."""

    code = "PEN-218"


class TableUnreadable(SourceError):
    """A table of the source cannot be copied: gone, no table any more, or not readable by the role."""

    code = "PEN-219"
    remedy = Remedy.OPERATOR


class TableRewritten(SourceError):
    """A table was written anew while it was copied, so that its snapshot no longer shows its rows."""

    code = "PEN-220"


class LogError(PenstockError):
    """A segment of the log is damaged, or one is missing."""

    code = "PEN-301"
    remedy = Remedy.OPERATOR


class DiskFull(LogError):
    """No space to write the next slice."""

    code = "PEN-302"


class LogFull(LogError):
    """The log has reached retain_bytes; capture waits for the sinks."""

    code = "PEN-303"
    remedy = Remedy.TIME


class StateUnusable(LogError):
    """The state directory cannot be made or written."""

    code = "PEN-304"


class StateOfAnother(LogError):
    """The state directory belongs to another pipeline."""

    code = "PEN-305"


class DecodeError(PenstockError):
    """Bytes that are not a pgoutput message where one must be."""

    code = "PEN-401"


class SinkError(PenstockError):
    """The target does not answer, or ended the connection."""

    code = "PEN-501"
    remedy = Remedy.TIME


class SinkLoginRefused(SinkError):
    """Wrong user, password or database at the target."""

    code = "PEN-502"
    remedy = Remedy.OPERATOR


class SinkPrivilegeMissing(SinkError):
    """The role may not create or write what penstock needs at the target."""

    code = "PEN-503"
    remedy = Remedy.OPERATOR


class SinkTooOld(SinkError):
    """The target is older than penstock can write to."""

    code = "PEN-504"
    remedy = Remedy.OPERATOR


class TargetTableMissing(SinkError):
    """The target table is not there and may not be created."""

    code = "PEN-505"
    remedy = Remedy.OPERATOR


class RowRefused(SinkError):
    """The target refuses a row; its table waits, the others go on."""

    code = "PEN-506"
    remedy = Remedy.OPERATOR


class TargetTableUnfit(SinkError):
    """The target table lacks what the changes need, such as a key column."""

    code = "PEN-507"
    remedy = Remedy.OPERATOR


class PositionMissing(SinkError):
    """The slot has moved, but the sink holds no position for it."""

    code = "PEN-508"
    remedy = Remedy.OPERATOR


class ReaderGone(SinkError):
    """Standard output takes no more: its reader has ended."""

    code = "PEN-509"
    remedy = Remedy.OPERATOR


class RunError(PenstockError):
    """A process of the pipeline ended without a reason of its own."""

    code = "PEN-600"


class SecondInstance(RunError):
    """The same pipeline already runs."""

    code = "PEN-601"
    remedy = Remedy.OPERATOR


class PositionTaken(RunError):
    """The sink's position moved while this process was delivering."""

    code = "PEN-602"
    remedy = Remedy.OPERATOR


class SparkFailed(RunError):
    """A Spark job failed in a way that no part of penstock explains."""

    code = "PEN-603"
    remedy = Remedy.TIME


class JavaMissing(RunError):
    """No Java 17 or later to run Spark on."""

    code = "PEN-604"
    remedy = Remedy.OPERATOR


class EmbeddedServerFailed(RunError):
    """An embedded Postgres could not be found or started."""

    code = "PEN-605"
    remedy = Remedy.OPERATOR


class SidesDiffer(RunError):
    """Source and target were compared and are not equal."""

    code = "PEN-606"


def _descendants(root: type[PenstockError]) -> list[type[PenstockError]]:
    return [root, *(each for child in root.__subclasses__() for each in _descendants(child))]


def error_classes() -> dict[str, type[PenstockError]]:
    """Every error class by its code."""
    return {cls.code: cls for cls in _descendants(PenstockError)}


_FLATTENED = re.compile(r"(PEN-\d{3}) (?:(.*?): )?(.*?)(?:\n\s*Do: ([^\n]*))?(?:\n|$)")


def recognise(text: str) -> PenstockError | None:
    """The PenstockError inside a text that Spark has flattened, or None."""
    match = _FLATTENED.search(text)
    if match is None:
        return None
    code, where, what, do = match.groups()
    cls = error_classes().get(code, PenstockError)
    return cls(what, where or "", do or "")
