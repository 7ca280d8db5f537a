"""Work in a forked process that may die at a fault point."""

from __future__ import annotations

import gc
import os
import signal
import time
import traceback
from typing import TYPE_CHECKING

from penstock import failpoints
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Callable

_FORKS = 3


def was_killed_at(point: str, passing: int, work: Callable[[], None]) -> bool:
    """Do some work in a process that dies at a fault point; whether it came so far.

    Where a thread of this process holds a lock of some library at the fork, nobody ever releases it in the child. That is no
    fault of the work's: to it, a child that hangs and is killed is one more kill, and it is done again.
    """
    for _ in range(_FORKS):
        status = _status_of(point, passing, work)
        if status is None:
            continue
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            return True
        assert os.WEXITSTATUS(status) == 0, (
            f"the sink raised an exception in the process that was to be killed at {point};"
            " its traceback is in the captured stderr"
        )
        return False
    raise AssertionError(
        f"{_FORKS} processes that were to be killed at {point} took longer than"
        f" {timing().forked_work_seconds:g} s each"
    )


def _status_of(point: str, passing: int, work: Callable[[], None]) -> int | None:
    """How the child ended; None if it took too long."""
    child = os.fork()
    if child == 0:
        # What the parent has made is the parent's to end: a client's threads are not here.
        gc.freeze()
        try:
            failpoints.arm(point, passing)
            work()
        except BaseException:  # noqa: BLE001 - the parent sees that it did not die by the signal
            traceback.print_exc()
            os._exit(3)
        os._exit(0)
    status: int | None = None
    deadline = time.monotonic() + timing().forked_work_seconds
    try:
        while status is None and time.monotonic() < deadline:
            ended, found = os.waitpid(child, os.WNOHANG)
            if ended:
                status = found
            else:
                time.sleep(timing().forked_poll_seconds)
    finally:
        # Never left behind: it has the parent's files, and who waits for their end waits for ever.
        if status is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return status
