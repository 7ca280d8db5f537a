"""Rows on their way to a sink that is given them typed. Runs in tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.changes.envelope import RECORDS, as_records
from penstock.changes.rowrecords import copied_row_records, row_records
from penstock.sinks.documents.format import DocumentFormat

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from penstock.changes.copyrows import CopiedRows
    from penstock.changes.decode import Piece
    from penstock.changes.envelope import Origin
    from penstock.changes.pgoutput import Relation
    from penstock.sinks.documents.format import CopiedAt


@dataclass(frozen=True)
class RowFormat(DocumentFormat):
    """Rows as pgoutput has them; nothing is typed before the driver, which knows what is delivered together."""

    content_type = "application/octet-stream"
    schema = RECORDS

    def documents(self, pieces: Sequence[Piece], origin: Origin) -> pa.RecordBatch:
        """As `penstock.changes.rowrecords` says. An update that changes a key is one record, a `move`."""
        return row_records(pieces, origin.name)

    def copied(
        self, relation: Relation, rows: CopiedRows, origin: Origin, at: CopiedAt
    ) -> pa.RecordBatch:
        """The same, with the op `read`."""
        return copied_row_records(
            relation, rows, origin.name, at.commit_lsn, at.first_ordinal, at.copy_id
        )

    def shape_changes(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """As they are."""
        return [as_records(each) for each in batches]
