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


class SparkGone(RunError):
    """The JVM that Spark runs in has ended, or takes no jobs any more."""

    code = "PEN-607"
    remedy = Remedy.TIME


class SparkDies(RunError):
    """Spark has died too often to be started again."""

    code = "PEN-608"
    remedy = Remedy.OPERATOR


class Exposed(RunError):
    """Others could read, or change, what is on its way, or guess the token. A warning of `check`."""

    code = "PEN-610"
    remedy = Remedy.OPERATOR


class OutputRefused(RunError):
    """What a command prints cannot be written where stdout goes."""

    code = "PEN-612"
    remedy = Remedy.OPERATOR


class VaultUnreadable(RunError):
    """A Spark task cannot read what it is to connect with."""

    code = "PEN-609"
    remedy = Remedy.OPERATOR


class DeliveredElsewhere(RunError):
    """What is asked of a sink lies on the machine that delivers to it, which is not this one."""

    code = "PEN-611"
    remedy = Remedy.OPERATOR


class ServerFailed(RunError):
    """The HTTP server cannot be started."""

    code = "PEN-620"
    remedy = Remedy.OPERATOR


class RequestRefused(RunError):
    """An HTTP request that may not do what it asks for."""

    code = "PEN-621"
    remedy = Remedy.OPERATOR
