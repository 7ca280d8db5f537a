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
    """The state directory belongs to another pipeline."""

    code = "PEN-305"


class LogShortened(LogError):
    """The end of the log was taken back, since the disk did not keep it; it is read again."""

    code = "PEN-306"
    remedy = Remedy.TIME
