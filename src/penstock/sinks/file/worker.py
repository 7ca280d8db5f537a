"""The executor half: changes -> documents -> a part file in the sink's own directory."""

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

PART_PREFIX = ".part-"


@dataclass(frozen=True)
class FileWorker:
    """What the executors are sent."""

    directory: str
    source: str
    tables: WantedTables = ALL_TABLES

    def begin(self, task: int) -> FileTask:
        """Start the work of one task."""
        return FileTask(self, task)


class FileTask:
    """The work of one task. Its receipt's content is a Part, or None when it had no changes."""

    def __init__(self, worker: FileWorker, task: int) -> None:
        self._source = worker.source
        self._tables = worker.tables
        self._part = PartWriter(worker.directory, f"{PART_PREFIX}{task}-")
        self._receipt = Receipt(task)

    def take(self, pieces: Sequence[Piece]) -> None:
        """Write the documents of a few slices.

        Raises:
            SinkError: the directory takes no more bytes.
        """
        wanted = [piece for piece in pieces if piece.relation.table in self._tables]
        self._part.write(documents(wanted, self._source))
        self._receipt.change_count += change_count(wanted)

    def finish(self) -> Receipt:
        """Everything taken is in the part file."""
        self._receipt.content = self._part.finish()
        return self._receipt
