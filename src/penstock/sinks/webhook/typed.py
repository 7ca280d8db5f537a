"""Documents with the types of their columns beside them: a filter compares values as what they are in Postgres.

Tasks give each document the types of its table's columns. In the outbox an entry has each list of types once, and
documents have its number.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from penstock.changes.documents import DOCUMENTS, documents, in_order
from penstock.changes.pgoutput import Column, Relation
from penstock.sinks.documents.format import CopiedAt, JsonFormat
from penstock.sql.column_types import shape_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.changes.copyrows import CopiedRows
    from penstock.changes.decode import Piece
    from penstock.changes.envelope import Origin
    from penstock.schema.shape import TableShape
    from penstock.table import TableName

# As tasks hand them over, and as an entry of the outbox has them.
TYPED = DOCUMENTS.append(pa.field("types", pa.string()))
STORED = DOCUMENTS.append(pa.field("types_number", pa.int32()))


@dataclass(frozen=True)
class TypedFormat(JsonFormat):
    """penstock's own documents, and their types."""

    schema: ClassVar[pa.Schema] = TYPED

    def documents(self, pieces: Sequence[Piece], origin: Origin) -> pa.RecordBatch:
        """See DocumentFormat."""
        batches = [_typed(documents([each], origin.name), each.relation) for each in pieces]
        return in_order([_typed(documents([], origin.name), None), *batches])

    def copied(
        self, relation: Relation, rows: CopiedRows, origin: Origin, at: CopiedAt
    ) -> pa.RecordBatch:
        """See DocumentFormat."""
        return _typed(super().copied(relation, rows, origin, at), relation)

    def shape_changes(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """See DocumentFormat."""
        return [_typed(each, None) for each in batches]


def _typed(batch: pa.RecordBatch, relation: Relation | None) -> pa.RecordBatch:
    types = None
    if relation is not None:
        columns = [
            (
                each.name,
                each.type_oid,
                each.type_modifier,
                *([each.type_name] * bool(each.type_name)),
            )
            for each in relation.columns
        ]
        types = json.dumps(columns, ensure_ascii=False, separators=(",", ":"))
    column = pa.repeat(pa.scalar(types, pa.string()), len(batch))
    return pa.RecordBatch.from_arrays([*batch.columns, column], schema=TYPED)


def shape_by(types: str, table: TableName) -> TableShape:
    """The table as far as its types are known."""
    columns = tuple(
        Column(name, oid, modifier, in_identity=False)
        for name, oid, modifier, *_ in json.loads(types)
    )
    return shape_of(Relation(0, table, "d", columns))


def stored(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, str]:
    """Documents as an entry has them, and its lists of types as JSON."""
    if "types" not in batch.schema.names:
        numbers, lists = pa.nulls(len(batch), pa.int32()), []
    else:
        encoded = batch.column("types").dictionary_encode()
        numbers, lists = encoded.indices, encoded.dictionary.to_pylist()
    columns = [batch.column(name) for name in DOCUMENTS.names]
    return pa.RecordBatch.from_arrays([*columns, numbers], schema=STORED), json.dumps(lists)
