"""PEN-6xx: processes, Spark, locks."""

from __future__ import annotations

from penstock.errors.base import PenstockError, Remedy


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
