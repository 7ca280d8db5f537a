"""What the receipts of a batch say, taken together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import PenstockError, error_classes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.sinks.sink import Receipt
    from penstock.table import TableName


def change_counts(receipts: Sequence[Receipt]) -> dict[TableName, int]:
    """How many changes came, by table."""
    counts: dict[TableName, int] = {}
    for receipt in receipts:
        for table, count in receipt.content.change_counts.items():
            counts[table] = counts.get(table, 0) + count
    return counts


def refused_tables(receipts: Sequence[Receipt]) -> dict[TableName, PenstockError]:
    """Tables whose rows the target would not even stage, and why."""
    return {
        entry.table: error_classes()[entry.code](entry.what, entry.where, entry.do)
        for receipt in receipts
        for entry in receipt.content.refused
    }
