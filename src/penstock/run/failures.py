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
from penstock.state.wire import FileWire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.state.directory import StateDirectory

CAPTURE, DELIVER = "capture", "deliver"


@contextmanager
def kept_failure(top: StateDirectory, half: str | None = None) -> Iterator[None]:
    """Keep the error that ends what runs inside; `half` None: both run, and the error says whose it is."""
    try:
        yield
    except PenstockError as error:
        _keep(top, half, error)
        raise
    except Exception as error:
        what = f"ended with an unexpected {type(error).__name__}"
        _keep(top, half, PenstockError(what, "", "see what the command printed, and report it"))
        raise


def _keep(top: StateDirectory, half: str | None, error: PenstockError) -> None:
    if isinstance(error, SecondInstance | PipelineFileError) or not top.is_ours():
        return
    if any(top.is_held(each) for each in ([half] if half else [CAPTURE, DELIVER])):
        return  # by another process, which reports itself how that goes
    if half is None:
        half = CAPTURE if isinstance(error, SourceError | LogError) else DELIVER
    with suppress(LogError):  # the disk may be what failed
        FileWire(top).publish(Failure(str(error), time.time()), half)


def forget_failure(top: StateDirectory, half: str) -> None:
    """A half has started well."""
    FileWire(top).withdraw(Failure, half)


def last_failure(top: StateDirectory, half: str) -> str | None:
    """What ended a half the last time, None when nothing did or it has started well since."""
    found = FileWire(top).latest(Failure, half)
    return found.error or None if found else None
