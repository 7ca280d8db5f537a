"""The net changes of a table as typed Arrow batches: what row sinks are given on request. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.changes.compact import GONE, MOVE, REPLACE, Step, compact
from penstock.changes.documents import key_texts
from penstock.changes.pgoutput import DELETE, INSERT, UPDATE
from penstock.changes.typed import Unfit, arrow_type, to_arrow

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from penstock.changes.cells import Cells, Index
    from penstock.changes.decode import TableChanges
    from penstock.changes.pgoutput import Column, Relation

_NAMES = {
    INSERT: "insert",
    UPDATE: "update",
    DELETE: "delete",
    REPLACE: "replace",
    GONE: "gone",
    MOVE: "move",
}
_OPERATIONS = pa.array(list(_NAMES.values()))
_PLACES = np.zeros(256, np.int8)
_PLACES[list(_NAMES)] = np.arange(len(_NAMES))


@dataclass(frozen=True)
class NetBatch:
    """Rows to be applied as one set: of a key there is one. See `compact` for what operations mean.

    `rows` has a field for each column of the table; of a delete only those of the key are given. `op` and
    `copies` (how many equal rows a delete takes away, where there is no key) go with it row by row, and
    `unchanged`: names of columns that an update does not carry, and that keep their value. `old_keys` is
    there where all operations are moves. `keys` are the keys as JSON, as documents have them; None
    where the table has no key. `unfit`: by column, rows whose value its type cannot hold.
    """

    op: pa.DictionaryArray
    rows: pa.RecordBatch
    unchanged: pa.ListArray
    copies: pa.Array
    old_keys: pa.RecordBatch | None
    keys: pa.Array | None
    unfit: dict[str, Index]

    def __len__(self) -> int:
        return len(self.op)


def arrow_schema(
    relation: Relation, *, enums: Collection[int] = frozenset(), unfit: Unfit = Unfit.REPORT
) -> pa.Schema:
    """The types of a table's columns, by what it declares."""
    return pa.schema([_field(column, enums, unfit) for column in relation.columns])


def _field(column: Column, enums: Collection[int], unfit: Unfit) -> pa.Field:
    kind = arrow_type(column.type_oid, column.type_modifier, enums=enums, unfit=unfit)
    return pa.field(column.name, kind)


def net_batches(changes: TableChanges, key: Sequence[int], schema: pa.Schema) -> list[NetBatch]:
    """The net effect of changes, to be applied in this order.

    Args:
        changes: all changes of one table in a slice.
        key: which columns identify a row; empty when the table has no key.
        schema: what `arrow_schema` gives for the table.

    Raises:
        DecodeError: an UPDATE or DELETE does not say which row it means.
    """
    return [_batch(step, key, schema, changes.relation) for step in compact(changes, key)]


def _batch(step: Step, key: Sequence[int], schema: pa.Schema, relation: Relation) -> NetBatch:
    unfit: dict[str, Index] = {}
    old_keys = None
    if step.old_key:
        old_keys = _record_batch(step.old_key, pa.schema([schema.field(k) for k in key]), unfit)
    rows = _record_batch(step.columns, schema, unfit)
    return NetBatch(
        op=pa.DictionaryArray.from_arrays(pa.array(_PLACES[step.operation]), _OPERATIONS),
        rows=rows,
        unchanged=_unchanged(step, schema),
        copies=pa.array(step.copies),
        old_keys=old_keys,
        keys=key_texts(relation, step.columns, key) if key else None,
        unfit=unfit,
    )


def _record_batch(
    columns: Sequence[Cells], schema: pa.Schema, unfit: dict[str, Index]
) -> pa.RecordBatch:
    arrays = []
    for cells, field in zip(columns, schema, strict=True):
        typed = to_arrow(cells, field.type)
        arrays.append(typed.values)
        if len(typed.unfit):
            unfit[field.name] = np.union1d(unfit.get(field.name, typed.unfit), typed.unfit)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _unchanged(step: Step, schema: pa.Schema) -> pa.ListArray:
    names = pa.array(
        [[schema.field(place).name for place in group] for group in step.unchanged_columns],
        pa.list_(pa.string()),
    )
    return names.take(pa.array(step.unchanged_group))
