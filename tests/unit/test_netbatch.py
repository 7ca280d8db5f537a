"""Net changes as typed Arrow batches."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pyarrow as pa

from penstock.changes.netbatch import arrow_schema, net_batches
from penstock.testing import (
    UNCHANGED,
    changes,
    delete,
    insert,
    relation,
    table,
    transaction,
    update,
)

ITEMS = table(
    16400, "items", {"id": "int8", "price": "numeric", "note": "text", "on": "date"}, key=["id"]
)
ITEMS = replace(
    ITEMS,
    columns=tuple(
        replace(column, type_modifier=(5 << 16) + 2 + 4) if column.name == "price" else column
        for column in ITEMS.columns
    ),
)


def batches(*rows, described=ITEMS, key=(0,)):
    [piece] = changes([relation(described), *transaction(0x1000, *rows)])
    return net_batches(piece, key, arrow_schema(described))


def test_rows_are_typed_and_operations_are_named():
    [batch] = batches(
        insert(ITEMS, ["1", "1.50", "a", "2026-11-15"]),
        update(ITEMS, ["2", None, UNCHANGED, None]),
        delete(ITEMS, key=["3"]),
        insert(ITEMS, ["4", "1.00", "x", None]),
        delete(ITEMS, key=["4"]),
    )

    assert batch.op.to_pylist() == ["insert", "update", "delete", "gone"]
    assert batch.rows.schema == pa.schema(
        {"id": pa.int64(), "price": pa.decimal128(5, 2), "note": pa.string(), "on": pa.date32()}
    )
    assert batch.rows.column("id").to_pylist() == [1, 2, 3, 4]
    assert batch.rows.column("price").to_pylist() == [Decimal("1.50"), None, None, None]
    assert batch.unchanged.to_pylist() == [[], ["note"], [], []]
    assert batch.old_keys is None
    assert batch.unfit == {}
    assert len(batch) == 4


def test_row_that_moves_without_all_its_values_has_its_old_key():
    [batch] = batches(update(ITEMS, ["2", "1.00", UNCHANGED, None], key=["1"]))

    assert batch.op.to_pylist() == ["move"]
    assert batch.old_keys.to_pylist() == [{"id": 1}]
    assert batch.rows.column("id").to_pylist() == [2]


def test_value_that_does_not_fit_is_named_by_its_column_and_row():
    [batch] = batches(
        insert(ITEMS, ["1", "1.00", "a", None]), insert(ITEMS, ["2", "NaN", "a", "infinity"])
    )

    assert {name: rows.tolist() for name, rows in batch.unfit.items()} == {"price": [1], "on": [1]}


def test_rows_without_a_key_are_counted():
    free = table(16500, "free", {"n": "int4"}, identity="f")

    [batch] = batches(
        delete(free, before=["1"]),
        delete(free, before=["1"]),
        insert(free, ["2"]),
        described=free,
        key=(),
    )

    assert list(zip(batch.op.to_pylist(), batch.copies.to_pylist(), strict=True)) == [
        ("delete", 2),
        ("insert", 1),
    ]
