"""The driver half: documents to standard output, then the position to a file.

Standard output cannot hold a position, and what was written cannot be taken back: after a crash
between the two, the documents of one batch, or some of a copy, come a second time. Each has
(commit_lsn, ordinal) to know it by, within its table.
"""

from __future__ import annotations

import os
import select
import sys
from typing import TYPE_CHECKING, Any

from penstock.errors import ReaderGone
from penstock.sinks.copies import Copies
from penstock.sinks.durable import make_directory
from penstock.sinks.eventsink import EventSink
from penstock.sinks.partfile import read_part, remove_parts
from penstock.sinks.positionfile import PositionFile
from penstock.sinks.stdout.worker import PART_PREFIX, StdoutWorker
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from penstock.lsn import Lsn
    from penstock.sinks.positionfile import KeptPosition
    from penstock.sinks.sink import Batch, StoredPosition
    from penstock.sinks.stdout.options import StdoutOptions
    from penstock.table import TableName

# A pipe that can be written at all takes this much without blocking (PIPE_BUF), so that a reader who
# has stopped reading cannot keep penstock from stopping.
_WRITE_BYTES = 4096


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
        del options  # nothing to say but the kind
        directory = position_path.parent
        position = PositionFile(position_path, pipeline, source)
        super().__init__(name, directory, position, copies_of(position_path), source)
        self._descriptor = descriptor

    def open(self) -> StoredPosition | None:
        """Read the position."""
        self._forget()
        self._called_off.clear()
        with self._or_forget():
            make_directory(self._directory)
            remove_parts(self._directory, f"{PART_PREFIX}{self.name}-")
            kept = self._position.read()
            if kept is None:
                return None
            self._take_up(kept)
        return kept.stored

    def worker(self, batch: Batch, only: Collection[TableName] | None = None) -> StdoutWorker:
        """The executor half."""
        wanted = self._wanted(batch, only)
        return StdoutWorker(str(self._directory), self.name, self._source, wanted)

    def idle(self) -> None:
        """Nothing to do: what is printed is printed."""

    def close(self) -> None:
        """Nothing to let go of."""
        self._forget()

    @property
    def _step_bytes(self) -> int:
        return self.batch_bytes

    def _deliver(self, documents: Iterable[bytes], kept: KeptPosition) -> None:
        """Print, then record.

        Raises:
            ReaderGone: nobody reads any more.
        """
        for block in documents:
            self._print(block, kept.delivered_lsn)
        self._record(kept)

    def _blocks(self, content: Any) -> Iterable[bytes]:
        return read_part(content.part) if content.part is not None else (content.inline,)

    def _print(self, block: bytes, end_lsn: Lsn) -> None:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        view = memoryview(block)
        try:
            if sys.stdout is not None and self._descriptor == 1:
                sys.stdout.flush()  # what others have printed comes first
            while view:
                if poll.poll(1000 * timing().stdout_poll_seconds):
                    view = view[os.write(self._descriptor, view[:_WRITE_BYTES]) :]
                elif self._called_off.is_set():
                    self._raise_if_called_off(end_lsn)
        except OSError as error:
            raise ReaderGone(
                "the reader of standard output went away"
                if isinstance(error, BrokenPipeError)
                else f"standard output takes no more: {(error.strerror or 'closed').lower()}",
                f"sink {self.name}",
                "start penstock again with a reader; it goes on from the last batch that was printed",
            ) from None

    def _record(self, kept: KeptPosition) -> None:
        self._position.write(kept)
        self._kept = kept
        self.change_count = kept.change_count


def copies_of(position_path: Path) -> Copies:
    """Where copies wait to be printed: beside the position, under the sink's name."""
    name = position_path.name.removesuffix(".position.json")
    return Copies(position_path.with_name(f".{name}.copies"))
