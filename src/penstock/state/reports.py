"""What the parts of a pipeline report: typed messages, and their JSON.

    CaptureReport, MembershipReport     capture -> deliver, status
    DeliveryReport                      deliver -> capture, status
    CopyRequest                         a person on another machine -> deliver
    SourceErrors, Failure               a run -> status
    Pause                               a person -> deliver, status
    SeenMembers, SeenPartitions         deliver -> itself, after a restart

Every field has a default, so that a report of an earlier version is one, too; keys that are not known are
not read. How messages travel is for `penstock.state.wire` to say.
"""

import json
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from pydantic import PlainSerializer, PlainValidator, TypeAdapter, ValidationError

from penstock.lsn import ZERO, Lsn
from penstock.source.partitions import Partition


def _read_lsn(given: Any) -> Lsn:
    return given if isinstance(given, Lsn) else Lsn.parse(given)


LsnText = Annotated[Lsn, PlainValidator(_read_lsn), PlainSerializer(str)]

# By the oid of a partitioned table: its leaves, by theirs.
Partitions = dict[int, dict[int, Partition]]


class Report:
    """Anything that is reported. Each kind is a frozen dataclass."""


@dataclass(frozen=True)
class CaptureReport(Report):
    """How far capture of a source is."""

    slot: str | None = None
    connected: bool = False
    received_lsn: LsnText | None = None
    durable_lsn: LsnText | None = None
    acknowledged_lsn: LsnText | None = None
    # The last commit before durable_lsn, which the log may no longer hold: where it stands, and its time.
    last_commit_lsn: LsnText | None = None
    last_committed_at: int | None = None
    last_commit_may_be_skipped: bool = False
    server_started_at: str | None = None
    transactions: int = 0
    log_bytes: int = 0
    error: str | None = None
    warning: str | None = None
    at: float = 0.0


@dataclass(frozen=True)
class MembershipReport(Report):
    """What was published when the source's catalog was read, between two positions of the stream."""

    published: dict[str, int] = field(default_factory=dict)  # oids by the tables' names
    entries: dict[int, tuple[int, ...]] = field(default_factory=dict)  # in publications, by oid
    left_out: dict[str, str] = field(default_factory=dict)  # why, by name
    # Chosen by the rules, and not published yet because somebody locks them.
    delayed: tuple[str, ...] = ()
    partitions: Partitions = field(default_factory=dict)
    since_lsn: LsnText | None = None
    lsn: LsnText = ZERO
    at: float | None = None


@dataclass(frozen=True)
class TableReport:
    """One table at a sink."""

    state: str
    error: str | None = None


@dataclass(frozen=True)
class DeliveryReport(Report):
    """How far delivery of a source to a sink is.

    `safe_lsn` decides what is acknowledged to the slot and what the log lets go: neither the sink nor any of its tables
    needs what is before it. Capture believes it only of the `run` that delivers now, which has opened
    the sink; what is reported too early would be lost.
    """

    run: str | None = None
    delivered_lsn: LsnText | None = None
    safe_lsn: LsnText | None = None
    committed_at: int = 0
    changes_delivered: int = 0
    tables: dict[str, TableReport] = field(default_factory=dict)
    error: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    # What the sink's working files say, for machines that do not see them: as `status` shows it.
    parked: int = 0
    subscriptions: dict[str, dict[str, Any]] = field(default_factory=dict)  # by id
    copies: dict[str, dict[str, Any]] = field(default_factory=dict)  # by table
    requests_taken: int = 0  # the number of the last CopyRequest
    at: float = 0.0


@dataclass(frozen=True)
class CopyRequest(Report):
    """Tables that people on another machine want copied again at a sink.

    Counted. Those of a request that has not been taken are in the next one, too.
    """

    number: int = 0
    tables: tuple[str, ...] = ()


@dataclass(frozen=True)
class SourceErrors(Report):
    """Why sources of a pipeline could not be started, by their ids."""

    errors: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure(Report):
    """What ended a half of the pipeline."""

    error: str = ""
    at: float = 0.0


@dataclass(frozen=True)
class Pause(Report):
    """A person holds delivery to a sink."""

    since: float = 0.0


@dataclass(frozen=True)
class SeenMembers(Report):
    """What a sink has seen of the source's publications: oids by names, entries by oids."""

    oids: dict[str, int] = field(default_factory=dict)
    entries: dict[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class SeenRules(Report):
    """What the rules of `modifiers:` said of tables, in short, when their rows were delivered to a sink."""

    digests: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SeenPartitions(Report):
    """The partitions that a sink has seen; those that it knows have left, or came with rows, in order."""

    partitions: Partitions = field(default_factory=dict)
    left: tuple[int, ...] = ()
    came: tuple[int, ...] = ()


R = TypeVar("R", bound=Report)
_adapters: dict[type[Report], TypeAdapter[Any]] = {}


def to_json(report: Report) -> str:
    """A report as text."""
    return json.dumps(_adapter(type(report)).dump_python(report, mode="json"))


def from_json(kind: type[R], text: str | bytes) -> R | None:
    """The report that a text holds; None where it holds none of that kind, or only a part of one."""
    try:
        given = json.loads(text)
        return _adapter(kind).validate_python(given) if isinstance(given, dict) else None
    except (ValueError, TypeError, ValidationError):
        return None


def _adapter(kind: type[R]) -> TypeAdapter[R]:
    """What reads and writes reports of a kind; made once, when it is first needed."""
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]
