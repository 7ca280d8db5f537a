"""What ended the last run, kept beside the log until a later one has started well: for `status`.

A half has started well once capture streams, or once a sink is open. Until then what ended it the last
time is still the news.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from penstock.errors import LogError, PenstockError, PipelineFileError, SecondInstance, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.run.state import StateDirectory

CAPTURE, DELIVER = "capture", "deliver"


@contextmanager
def kept_failure(top: StateDirectory, half: str | None = None) -> Iterator[None]:
    """Keep the error that ends what runs inside; `half` None: both run, and the error tells whose it is."""
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
        return  # by another process, which says itself how that goes
    if half is None:
        half = CAPTURE if isinstance(error, SourceError | LogError) else DELIVER
    with suppress(LogError):  # the disk may be what failed
        top.write_report(_name(half), {"error": str(error), "at": time.time()})


def forget_failure(top: StateDirectory, half: str) -> None:
    """A half has started well."""
    top.remove_report(_name(half))


def last_failure(top: StateDirectory, half: str) -> str | None:
    """What ended a half the last time, None when nothing did or it has started well since."""
    told = top.read_report(_name(half)).get("error")
    return str(told) if told else None


def _name(half: str) -> str:
    return f"{half}.failed"
