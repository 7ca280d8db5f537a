"""PEN-5xx: what changes are delivered to."""

from __future__ import annotations

from penstock.errors.base import PenstockError, Remedy


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


class SchemaChangeRefused(SinkError):
    """The target cannot follow a change of the table's shape."""

    code = "PEN-510"
    remedy = Remedy.OPERATOR


class SchemaChangeStops(SinkError):
    """The table's shape changed, and the sink is set to stop then."""

    code = "PEN-511"
    remedy = Remedy.OPERATOR


class ExpressionLeftOut(SinkError):
    """An expression of the source's would run more at the target than it may; it is left out."""

    code = "PEN-512"
    remedy = Remedy.OPERATOR


class TargetTableOccupied(SinkError):
    """The target has a table of that name, with rows, that this pipeline has not made."""

    code = "PEN-513"
    remedy = Remedy.OPERATOR


class TargetObjectsForeign(SinkError):
    """Something at the target is another role's, which could then act as the sink's role."""

    code = "PEN-514"
    remedy = Remedy.OPERATOR


class ExtensionMissing(SinkError):
    """The target lacks an extension that tables of the source are made with."""

    code = "PEN-515"
    remedy = Remedy.OPERATOR


class StructureDiffers(SinkError):
    """The target's table is not what penstock makes of the source's."""

    code = "PEN-516"
    remedy = Remedy.OPERATOR


class DestinationRefuses(SinkError):
    """The destination refuses what a sink wants of it, and waiting does not help."""

    code = "PEN-517"
    remedy = Remedy.OPERATOR


class SinkDefect(SinkError):
    """The sink does what its contract forbids, or raises what it does not declare."""

    code = "PEN-518"
    remedy = Remedy.NOBODY


class PackageMissing(SinkError):
    """A package that a kind of sink needs is not installed."""

    code = "PEN-519"
    remedy = Remedy.OPERATOR


class RecordSchemaRefused(SinkError):
    """A table has no schema that its records could be written by, or the registry refuses it; the table waits."""

    code = "PEN-520"
    remedy = Remedy.OPERATOR


class ClusterUnavailable(SinkError):
    """Shards of a search cluster are not there: it is red."""

    code = "PEN-523"
    remedy = Remedy.TIME


class IndexReadOnly(SinkError):
    """An index takes no writes: its disk is nearly full, or somebody has set it so."""

    code = "PEN-524"
    remedy = Remedy.TIME


class IndexMissing(SinkError):
    """The index of a table was there, and is not any more: who searches would miss its older rows."""

    code = "PEN-525"
    remedy = Remedy.OPERATOR


class SubscriptionEnded(SinkError):
    """A subscription of webhooks gets nothing more until a person resumes it; the others go on."""

    code = "PEN-526"
    remedy = Remedy.OPERATOR
