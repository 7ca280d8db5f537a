"""The executor half of a sink that the driver delivers to: changes -> documents, in the receipt, or in a
part file where there are many.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.changes.documents import DOCUMENTS
from penstock.changes.envelope import Origin
from penstock.encryption import NO_KEYS, Keyring
from penstock.sinks.documents.format import JSON_FORMAT, DocumentFormat
from penstock.sinks.documents.parts import (
    Part,
    PartWriter,
    message_of,
    read_messages,
    read_part,
)
from penstock.sinks.sink import Receipt
from penstock.sinks.tables import ALL_TABLES, WantedTables

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from penstock.changes.decode import Piece

# A batch is small most of the time, but a transaction is never cut: the driver's memory must not
# grow with it.
INLINE_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Prepared:
    """What a receipt holds: documents, or where they lie; never both."""

    inline: bytes = b""
    part: Part | None = None

    def read(
        self, keyring: Keyring = NO_KEYS, schema: pa.Schema = DOCUMENTS
    ) -> Iterator[pa.RecordBatch]:
        """The documents; may be read again until they are discarded."""
        yield from read_messages(self.inline, schema)
        if self.part is not None:
            yield from read_part(self.part, keyring, schema)

    def discard(self) -> None:
        """They are delivered: the part file goes."""
        if self.part is not None:
            Path(self.part.path).unlink(missing_ok=True)


@dataclass(frozen=True)
class DocumentWorker:
    """What the executors are sent."""

    directory: str  # for parts; the driver and all executors see it
    part_prefix: str
    source: str
    tables: WantedTables = ALL_TABLES
    keyring: Keyring = NO_KEYS
    format: DocumentFormat = JSON_FORMAT
    database: str = ""

    def begin(self, task: int) -> DocumentTask:
        """Start the work of one task."""
        return DocumentTask(self, task)


class DocumentTask:
    """The work of one task. Its receipt's content is a Prepared."""

    def __init__(self, worker: DocumentWorker, task: int) -> None:
        self._origin = Origin(worker.source, worker.database)
        self._format = worker.format
        self._tables = worker.tables
        self._inline = bytearray()
        self._is_inline = True
        self._part = PartWriter(worker.directory, f"{worker.part_prefix}{task}-", worker.keyring)
        self._receipt = Receipt(task)

    def prepare(self, pieces: Sequence[Piece]) -> pa.RecordBatch:
        """Turn the changes of a few slices into documents."""
        wanted = [piece for piece in pieces if piece.relation.table in self._tables]
        return self._format.documents(wanted, self._origin)

    def take(self, batch: pa.RecordBatch) -> None:
        """Keep documents for the driver.

        Raises:
            SinkError: a part file was needed and cannot be written.
        """
        if not len(batch):
            return
        self._receipt.change_count += len(batch)
        message = message_of(batch)
        if self._is_inline and len(self._inline) + len(message) <= INLINE_BYTES:
            self._inline += memoryview(message)
            return
        if self._is_inline:
            self._is_inline = False
            self._part.write(self._inline)
            self._inline = bytearray()
        self._part.write(message)

    def finish(self) -> Receipt:
        """Everything taken is in the receipt, or where it says."""
        self._receipt.content = Prepared(bytes(self._inline), self._part.finish())
        return self._receipt
