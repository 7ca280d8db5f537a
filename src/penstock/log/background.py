"""Append to a log in a thread of its own, so that a slow disk or broker does not keep the socket waiting.

While slices are large, the next one is received as the last one is written: one waits for the source,
the other for the log. Small ones are written at once, by the caller: handing them over costs more.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from penstock.errors import PenstockError
    from penstock.log.contract import LastCommit, LogWriter, Spool
    from penstock.log.slice import SliceHead
    from penstock.lsn import Lsn

_SMALL_BYTES = 128 * 1024
# Memory is bounded by this many slices.
_MOST_WAITING = 2


class BackgroundWriter:
    """A writer that need not be waited for. `durable_lsn` is still what the log keeps."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="log")
        self._waiting: deque[Future[None]] = deque()
        self._failure: BaseException | None = None

    @property
    def durable_lsn(self) -> Lsn:
        """Where everything that is durable ends."""
        return self._writer.durable_lsn

    @property
    def torn_bytes(self) -> int:
        """How much `open` has cut off that a crash had left half-written."""
        return self._writer.torn_bytes

    @property
    def last_commit(self) -> LastCommit | None:
        """The last commit that is on disk; None: not known."""
        return self._writer.last_commit

    def open(self, start_lsn: Lsn) -> None:
        """Open the log where it ends, or begin anew at `start_lsn` when it does not reach that far.

        Raises:
            LogError: a segment is damaged elsewhere than at its end.
            StateUnusable: the directory cannot be written.
        """
        self._writer.open(start_lsn)

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
        """Forget what failed: the caller goes on from `durable_lsn`, where the disk takes more again."""
        while self._waiting:
            self._waiting.popleft().exception()  # it was raised, or would have been
        self._writer.restart()
        self._failure = None

    def begin_spool(self, xid: int, begin_lsn: Lsn) -> Spool:
        """A file for a transaction that arrives before its commit.

        Raises:
            DiskFull: no space left.
        """
        return self._writer.begin_spool(xid, begin_lsn)

    def end_segment(self) -> None:
        """Make all that was appended deletable, between two transactions.

        Raises:
            DiskFull: something is not on disk.
        """
        self.flush()
        self._writer.end_segment()

    def cut(self) -> None:
        """Have all that is on disk deletable, after a disk was full and `restart`.

        Raises:
            DiskFull: there is not even room for another name.
        """
        self._writer.cut()

    def discard_before(self, lsn: Lsn) -> int:
        """Delete segments whose every slice ends at or before `lsn`; the number deleted."""
        return self._writer.discard_before(lsn)

    def size_bytes(self) -> int:
        """Bytes on disk, spools included."""
        return self._writer.size_bytes()

    def free_bytes(self) -> int:
        """How much more the disk takes."""
        return self._writer.free_bytes()

    def risk(self, needed_lsn: Lsn) -> PenstockError | None:
        """What may delete what a sink at a position needs."""
        return self._writer.risk(needed_lsn)

    def close(self) -> None:
        """End the thread; what waits is still written."""
        self._pool.shutdown(wait=True)
        self._writer.close()
