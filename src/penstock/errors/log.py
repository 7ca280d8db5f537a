"""PEN-3xx: the durable log and the state directory."""

from __future__ import annotations

from penstock.errors.base import PenstockError, Remedy


class LogError(PenstockError):
    """A segment of the log is damaged, or one is missing."""

    code = "PEN-301"
    remedy = Remedy.OPERATOR


class DiskFull(LogError):
    """No space to write the next slice; capture waits for some."""

    code = "PEN-302"
    remedy = Remedy.TIME


class LogFull(LogError):
    """The log has reached retain_bytes; capture waits for the sinks."""

    code = "PEN-303"
    remedy = Remedy.TIME


class StateUnusable(LogError):
    """The state directory cannot be made or written."""

    code = "PEN-304"


class StateOfAnother(LogError):
    """The state directory, or a place on a broker, belongs to another pipeline."""

    code = "PEN-305"


class LogShortened(LogError):
    """The end of the log was taken back, since the disk did not keep it; it is read again."""

    code = "PEN-306"
    remedy = Remedy.TIME


class LogUnreachable(LogError):
    """The broker that keeps the log does not answer; capture waits, and the slot holds."""

    code = "PEN-307"
    remedy = Remedy.TIME


class LogRefused(LogError):
    """The broker that keeps the log refuses the login, an operation or a setting."""

    code = "PEN-308"
    remedy = Remedy.OPERATOR


class LogGone(LogError):
    """What a sink needs is in the log no more: its topic or stream was deleted, made anew or cut by retention."""

    code = "PEN-309"
    remedy = Remedy.OPERATOR


class LogAtRisk(LogError):
    """Settings of the broker may delete or lose what a sink still needs; a warning."""

    code = "PEN-310"
    remedy = Remedy.OPERATOR


class LogKeyMissing(LogError):
    """What the log, or a file beside it, holds is encrypted with a key that was not given."""

    code = "PEN-311"


class LogKeyUnusable(LogError):
    """The key for `log.encrypt` cannot be read, or others could read it."""

    code = "PEN-312"
