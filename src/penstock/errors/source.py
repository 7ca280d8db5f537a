"""PEN-2xx: the Postgres that is followed."""

from __future__ import annotations

from penstock.errors.base import PenstockError, Remedy


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


class TrackingBroken(SourceError):
    """Changes of tables are to be tracked, and what tracks them is altered, switched off or gone."""

    code = "PEN-221"
    remedy = Remedy.OPERATOR


class SourceTwice(SourceError):
    """Two sources of a pipeline are the same database."""

    code = "PEN-222"
    remedy = Remedy.OPERATOR


class SourceRestored(SourceError):
    """The source was put back to an earlier state: it does not have what was received from it."""

    code = "PEN-223"
    remedy = Remedy.OPERATOR
