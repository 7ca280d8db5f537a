"""What ended the last run, kept beside the log until a later one has started well: for `status`.

A half has started well once capture streams, or once a sink is open. Until then what ended it the last
time is still the news.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from penstock.errors import LogError, PenstockError, PipelineFileError, SecondInstance, SourceError
from penstock.state.reports import Failure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.state.directory import StateDirectory
    from penstock.state.wire import Wire

CAPTURE, DELIVER = "capture", "deliver"


@contextmanager
def kept_failure(top: StateDirectory, wire: Wire, half: str | None = None) -> Iterator[None]:
    """Keep the error that ends what runs inside; `half` None: both run, and the error says whose it is."""
    try:
        yield
    except PenstockError as error:
        _keep(top, wire, half, error)
        raise
    except Exception as error:
        what = f"ended with an unexpected {type(error).__name__}"
        _keep(
            top, wire, half, PenstockError(what, "", "see what the command printed, and report it")
        )
        raise


def _keep(top: StateDirectory, wire: Wire, half: str | None, error: PenstockError) -> None:
    if isinstance(error, SecondInstance | PipelineFileError) or not top.is_ours():
        return
    if half != DELIVER and wire.capturing_run() is not None:
        return  # another process does, and reports itself how that goes
    if half != CAPTURE and wire.delivering_run() is not None:
        return
    if half is None:
        half = CAPTURE if isinstance(error, SourceError | LogError) else DELIVER
    with suppress(LogError):  # the disk may be what failed
        wire.publish(Failure(str(error), time.time()), half)


def forget_failure(wire: Wire, half: str) -> None:
    """A half has started well."""
    wire.withdraw(Failure, half)


def last_failure(wire: Wire, half: str) -> str | None:
    """What ended a half the last time, None when nothing did or it has started well since."""
    found = wire.latest(Failure, half)
    return found.error or None if found else None
