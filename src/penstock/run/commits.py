"""Commits of batches, one at a time, in a thread of their own: meanwhile the next job runs."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# One commit, and what becomes of it; None ends the thread.
_Work = tuple["Callable[[], None]", "Future[None]"]


class Commits:
    """One commit at a time, in a thread of its own, whichever source it is of.

    A commit keeps what went wrong for its source to find: the one that waits may be another's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._under_way: Future[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether none is under way."""
        return self._under_way is None or self._under_way.done()

    def begin(self, commit: Callable[..., None], *arguments: object) -> None:
        """Begin one, after the one before has ended."""
        self.wait()
        if self._thread is None:
            # A daemon, which no thread of a pool is: of a sink that hangs nobody would wait for the end, but the interpreter.
            self._thread = threading.Thread(
                target=_carry_out, args=(self._work,), name=f"commit {self._name}", daemon=True
            )
            self._thread.start()
        self._under_way = Future()
        # In this context, so that its lines name the same source.
        self._work.put((partial(copy_context().run, commit, *arguments), self._under_way))

    def wait(self) -> None:
        """Wait for the one that is under way."""
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            under_way.result()

    def close(self) -> None:
        """Wait, whatever comes of it."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None


def _carry_out(work: SimpleQueue[_Work | None]) -> None:
    """Runs in the thread: one commit after another."""
    while (one := work.get()) is not None:
        commit, future = one
        try:
            future.set_result(commit())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            future.set_exception(error)
        del one, commit, future  # what they hold is not kept until the next one
