"""Commits of batches, one at a time, in a thread of their own: meanwhile the next job runs."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Commits:
    """One commit at a time, in a thread of its own, whichever source it is of.

    A commit keeps what went wrong for its source to find: the one that waits may be another's.
    """

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"commit {name}")
        self._under_way: Future[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether none is under way."""
        return self._under_way is None or self._under_way.done()

    def begin(self, commit: Callable[..., None], *arguments: object) -> None:
        """Begin one, after the one before has ended."""
        self.wait()
        # In this context, so that its lines name the same source.
        self._under_way = self._pool.submit(copy_context().run, commit, *arguments)

    def wait(self) -> None:
        """Wait for the one that is under way."""
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            under_way.result()

    def close(self) -> None:
        """Wait, whatever comes of it."""
        self._pool.shutdown(wait=True)
