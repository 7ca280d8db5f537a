"""Append to the log in a thread of its own, so that a slow disk does not keep the socket waiting.

While slices are large, the next one is received as the last one is written: one waits for the network,
the other for the disk. Small ones are written at once, by the caller: handing them over costs more.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from penstock.log.slice import SliceHead
    from penstock.log.writer import LogWriter
    from penstock.lsn import Lsn

_SMALL_BYTES = 128 * 1024
# Memory is bounded by this many slices.
_MOST_WAITING = 2


class BackgroundLog:
    """A LogWriter that need not be waited for. `durable_lsn` is still what is on disk."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="log")
        self._waiting: deque[Future[None]] = deque()
        self._failure: BaseException | None = None

    @property
    def directory(self) -> Path:
        """Where the log lies."""
        return self._writer.directory

    @property
    def durable_lsn(self) -> Lsn:
        """Where everything that is on disk ends."""
        return self._writer.durable_lsn

    def append(self, head: SliceHead, data: bytes, lengths: npt.NDArray[np.uint32]) -> None:
        """Write a slice now or soon, after all earlier ones.

        Raises:
            DiskFull: this slice or an earlier one could not be written; nor will any later one.
        """
        while self._waiting and (self._waiting[0].done() or len(self._waiting) >= _MOST_WAITING):
            self._waiting.popleft().result()
        if not self._waiting and len(data) < _SMALL_BYTES:
            self._write(head, data, lengths)
        else:
            self._waiting.append(self._pool.submit(self._write, head, data, lengths))

    def _write(self, head: SliceHead, data: bytes, lengths: npt.NDArray[np.uint32]) -> None:
        # A slice after one that failed would leave a hole.
        if self._failure is not None:
            raise self._failure
        try:
            self._writer.append(head, data, lengths)
        except BaseException as error:
            self._failure = error
            raise

    def flush(self) -> None:
        """Wait until everything appended is on disk.

        Raises:
            DiskFull: something is not.
        """
        while self._waiting:
            self._waiting.popleft().result()

    def restart(self) -> None:
        """Forget what failed: who writes goes on from `durable_lsn`, where the disk takes more again."""
        while self._waiting:
            self._waiting.popleft().exception()  # it was raised, or would have been
        self._failure = None

    def close(self) -> None:
        """End the thread; what waits is still written."""
        self._pool.shutdown(wait=True)
