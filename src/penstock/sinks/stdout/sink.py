"""The driver half: documents to standard output, then the position to a file.

Standard output cannot hold a position, and what was written cannot be taken back: after a crash
between the two, the documents of one batch come a second time. Each has (commit_lsn, ordinal) to know
it by.
"""

from __future__ import annotations

import os
import select
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.errors import ReaderGone
from penstock.failpoints import fault_point
from penstock.sinks.durable import cannot_use, make_directory
from penstock.sinks.eventsink import EventSink
from penstock.sinks.partfile import read_part, remove_parts
from penstock.sinks.positionfile import KeptPosition, PositionFile
from penstock.sinks.stdout.worker import PART_PREFIX, StdoutWorker

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from penstock.lsn import Lsn
    from penstock.sinks.sink import Batch, Receipt, StoredPosition
    from penstock.sinks.stdout.options import StdoutOptions
    from penstock.sinks.stdout.worker import Printed
    from penstock.table import TableName

# A pipe that can be written at all takes this much without blocking (PIPE_BUF), so that a reader who
# has stopped reading cannot keep penstock from stopping.
_WRITE_BYTES = 4096
_POLL_MILLISECONDS = 100


class StdoutSink(EventSink):
    """Prints documents."""

    batch_bytes = 2 * 1024 * 1024

    def __init__(
        self,
        name: str,
        options: StdoutOptions,
        pipeline: str,
        source: str,
        position_path: Path,
        *,
        descriptor: int = 1,
    ) -> None:
        super().__init__(name)
        del options  # nothing to say but the kind
        self._position = PositionFile(position_path, pipeline, source)
        self._directory = position_path.parent
        self._source = source
        self._descriptor = descriptor

    def open(self) -> StoredPosition | None:
        """Read the position."""
        self._kept = None
        self._called_off.clear()
        try:
            make_directory(self._directory)
            remove_parts(self._directory, f"{PART_PREFIX}{self.name}-")
            self._kept = self._position.read()
        except OSError as error:
            raise cannot_use(error, self._directory) from None
        if self._kept is None:
            return None
        self.change_count = self._kept.change_count
        return self._kept.stored

    def begin(self, identity: Mapping[str, str], lsn: Lsn) -> None:
        """Store the first position."""
        self._record(KeptPosition(lsn, dict(identity)))

    def worker(self, batch: Batch, only: Collection[TableName] | None = None) -> StdoutWorker:
        """The executor half."""
        del batch
        self._require_all(only)
        return StdoutWorker(str(self._directory), self.name, self._source)

    def commit(self, batch: Batch, receipts: Sequence[Receipt]) -> None:
        """Print the documents in the order of their tasks, then record the position.

        Raises:
            ReaderGone: nobody reads any more.
        """
        kept = self._require_position(batch)
        fault_point("deliver.after_job")
        self._kept = None  # until all is well: only `open` knows better
        try:
            for receipt in sorted(receipts, key=lambda receipt: receipt.task):
                for block in _blocks(receipt.content):
                    self._print(block, batch)
        except OSError as error:
            raise cannot_use(error, self._directory) from None
        moved = replace(
            kept,
            delivered_lsn=batch.end_lsn,
            change_count=kept.change_count + sum(receipt.change_count for receipt in receipts),
        )
        self._record(moved)
        self.change_count = moved.change_count
        fault_point("deliver.after_commit")

    def idle(self) -> None:
        """Nothing to do: what is printed is printed."""

    def close(self) -> None:
        """Nothing to let go of."""
        self._kept = None

    def _print(self, block: bytes, batch: Batch) -> None:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        view = memoryview(block)
        try:
            if sys.stdout is not None and self._descriptor == 1:
                sys.stdout.flush()  # what others have printed comes first
            while view:
                if poll.poll(_POLL_MILLISECONDS):
                    view = view[os.write(self._descriptor, view[:_WRITE_BYTES]) :]
                elif self._called_off.is_set():
                    self._raise_if_called_off(batch.end_lsn)
        except OSError as error:
            raise ReaderGone(
                "the reader of standard output went away"
                if isinstance(error, BrokenPipeError)
                else f"standard output takes no more: {(error.strerror or 'closed').lower()}",
                f"sink {self.name}",
                "start penstock again with a reader; it goes on from the last batch that was printed",
            ) from None

    def _record(self, kept: KeptPosition) -> None:
        self._kept = None
        try:
            self._position.write(kept)
        except OSError as error:
            raise cannot_use(error, self._directory) from None
        self._kept = kept


def _blocks(printed: Printed) -> Iterable[bytes]:
    return read_part(printed.part) if printed.part is not None else (printed.inline,)
