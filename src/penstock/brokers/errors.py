"""Which errors of ours a broker's stand for: those of a sink, or those of the log."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import (
    DestinationRefuses,
    LogRefused,
    LogUnreachable,
    PenstockError,
    SinkError,
    SinkLoginRefused,
    SinkPrivilegeMissing,
)


@dataclass(frozen=True)
class ErrorFamily:
    """The errors of one user of a broker, and what the pipeline file calls that user."""

    away: type[PenstockError]
    login: type[PenstockError]
    privilege: type[PenstockError]
    refused: type[PenstockError]
    user: str


# Also said by commands that end with it, which try nothing again.
WAIT = "check that the servers are up and can be reached; a running pipeline tries again by itself"

OF_SINK = ErrorFamily(
    SinkError, SinkLoginRefused, SinkPrivilegeMissing, DestinationRefuses, "the sink"
)
OF_LOG = ErrorFamily(LogUnreachable, LogRefused, LogRefused, LogRefused, "log:")
