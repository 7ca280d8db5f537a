"""In which form documents are written: penstock's JSON, or another that a kind of sink chooses (`DocumentKind.format`).

A format runs in tasks, on all rows of a table at once. It is pickled on its way there; one that holds a secret seals it
(`penstock.vault`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from penstock.changes.documents import DOCUMENTS, documents, read_documents

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from penstock.changes.copyrows import CopiedRows
    from penstock.changes.decode import Piece
    from penstock.changes.envelope import Origin
    from penstock.changes.pgoutput import Relation
    from penstock.changes.shares import Share


@dataclass(frozen=True)
class CopiedAt:
    """Where copied rows stand: the position of their snapshot, and their own numbers."""

    commit_lsn: int
    first_ordinal: int
    copy_id: str


class DocumentFormat(ABC):
    """How changes become documents. Holds no connection."""

    content_type: ClassVar[str]

    schema: ClassVar[pa.Schema]
    """The columns of its batches: `DOCUMENTS`, or `RECORDS` where values are no JSON of penstock's."""

    @abstractmethod
    def documents(self, pieces: Sequence[Piece], origin: Origin) -> pa.RecordBatch:
        """Changes as documents, by commit and place in it.

        An update that changes a key is a delete and an insert, unless its value is penstock's JSON: else
        nobody could tell what must wait behind it.
        """

    def documents_of_share(
        self, pieces: Sequence[Piece], origin: Origin, share: Share
    ) -> pa.RecordBatch:
        """Those that belong to a share. A row that moves to another key is in the new one's, with all its documents."""
        own = (share.of(piece) for piece in pieces)
        return self.documents([piece for piece in own if piece is not None], origin)

    @abstractmethod
    def copied(
        self, relation: Relation, rows: CopiedRows, origin: Origin, at: CopiedAt
    ) -> pa.RecordBatch:
        """Copied rows as documents, in their own order.

        Raises:
            PenstockError: the table cannot be written in this form; its copy fails.
        """

    def shape_changes(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Documents of changes of tables, given in penstock's JSON; none where the format has none."""
        del batches
        return []


@dataclass(frozen=True)
class JsonFormat(DocumentFormat):
    """penstock's own documents."""

    content_type = "application/json"
    schema = DOCUMENTS

    def documents(self, pieces: Sequence[Piece], origin: Origin) -> pa.RecordBatch:
        """As `penstock.changes.documents` says."""
        return documents(pieces, origin.name)

    def copied(
        self, relation: Relation, rows: CopiedRows, origin: Origin, at: CopiedAt
    ) -> pa.RecordBatch:
        """Documents with the op `read`."""
        return read_documents(
            relation, rows, at.commit_lsn, at.first_ordinal, origin.name, at.copy_id
        )

    def shape_changes(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """As they are."""
        return batches


JSON_FORMAT = JsonFormat()
