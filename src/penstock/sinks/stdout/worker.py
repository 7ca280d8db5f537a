"""The executor half: changes -> documents, in the receipt; many of them in a part file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.changes.documents import change_count, documents
from penstock.sinks.partfile import PartWriter
from penstock.sinks.sink import Receipt
from penstock.sinks.tables import ALL_TABLES, WantedTables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.changes.decode import Piece
    from penstock.sinks.partfile import Part

# A batch is small, but a transaction is never cut: the driver's memory must not grow with it.
INLINE_BYTES = 8 * 1024 * 1024
PART_PREFIX = ".stdout-part-"


@dataclass(frozen=True)
class Printed:
    """What a receipt holds: documents, or where they lie; never both."""

    inline: bytes = b""
    part: Part | None = None


@dataclass(frozen=True)
class StdoutWorker:
    """What the executors are sent."""

    directory: str  # for parts
    sink: str
    source: str
    tables: WantedTables = ALL_TABLES

    def begin(self, task: int) -> StdoutTask:
        """Start the work of one task."""
        return StdoutTask(self, task)


class StdoutTask:
    """The work of one task. Its receipt's content is a Printed."""

    def __init__(self, worker: StdoutWorker, task: int) -> None:
        self._source = worker.source
        self._tables = worker.tables
        self._inline = bytearray()
        self._is_inline = True
        self._part = PartWriter(worker.directory, f"{PART_PREFIX}{worker.sink}-{task}-")
        self._receipt = Receipt(task)

    def take(self, pieces: Sequence[Piece]) -> None:
        """Turn the changes of a few slices into documents.

        Raises:
            SinkError: a part file was needed and cannot be written.
        """
        wanted = [piece for piece in pieces if piece.relation.table in self._tables]
        text = documents(wanted, self._source)
        self._receipt.change_count += change_count(wanted)
        if self._is_inline and len(self._inline) + len(text) <= INLINE_BYTES:
            self._inline += text
            return
        if self._is_inline:
            self._is_inline = False
            self._part.write(self._inline)
            self._inline = bytearray()
        self._part.write(text)

    def finish(self) -> Receipt:
        """Everything taken is in the receipt, or where it says."""
        self._receipt.content = Printed(bytes(self._inline), self._part.finish())
        return self._receipt
