"""A modifier of the tests' own: it does a little of everything that a modifier may do.

Of a table `orders (id, note)`: rows whose id begins with 9 are dropped, an UPDATE to the note `gone` takes
the row away, `note` becomes `shout` in capitals, and a column `region` is added.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.cells import ABSENT, Cells, gather
from penstock.changes.pgoutput import DELETE, UPDATE, Column
from penstock.schema.shape import ColumnShape
from penstock.table import TableName

if TYPE_CHECKING:
    from penstock.changes.cells import Mask
    from penstock.changes.decode import TableChanges
    from penstock.changes.pgoutput import Relation
    from penstock.schema.shape import TableShape

ORDERS_NAME = TableName("public", "orders")
_REGION = ColumnShape(id=-1, name="region", type="text", type_id=25, type_kind="b", not_null=False)


@dataclass(frozen=True)
class Shouting:
    """What is done to one table."""

    region: str

    def modified_shape(self, shape: TableShape) -> TableShape:
        columns = [
            column.model_copy(update={"name": "shout"}) if column.name == "note" else column
            for column in shape.columns
        ]
        return shape.model_copy(update={"columns": (*columns, _REGION)})

    def modified_relation(self, relation: Relation) -> Relation:
        columns = [
            replace(column, name="shout") if column.name == "note" else column
            for column in relation.columns
        ]
        return replace(relation, columns=(*columns, Column("region", 25, -1, False)))

    def apply(self, changes: TableChanges) -> TableChanges:
        keys = changes.before[0].where(changes.operation == DELETE, changes.after[0])
        is_wanted = ~np.asarray(pc.starts_with(gather(keys), pattern=b"9"))
        changes = changes.take(np.flatnonzero(is_wanted))
        is_gone = (changes.operation == UPDATE) & np.asarray(
            pc.fill_null(pc.equal(gather(changes.after[1]), b"gone"), False)
        )
        changes = _deleted(changes, is_gone)
        return replace(
            changes,
            relation=self.modified_relation(changes.relation),
            after=(changes.after[0], _shout(changes.after[1]), self._regions(changes.after[0])),
            before=(changes.before[0], _shout(changes.before[1]), self._regions(changes.before[0])),
        )

    def _regions(self, like: Cells) -> Cells:
        values = pa.repeat(pa.scalar(self.region), len(like))
        return Cells.from_arrow(values, absent=like.kind == ABSENT)


@dataclass(frozen=True)
class ShoutingOrders:
    """Only the table `orders` is concerned."""

    region: str = "eu"

    def concerns(self, table: TableName) -> bool:
        return table == ORDERS_NAME

    def excludes(self, table: TableName) -> bool:
        return False

    def require_fit(self, shape: TableShape, before: TableShape | None = None) -> None:
        pass

    def modified_shape(self, shape: TableShape) -> TableShape:
        concerned = self.concerns(shape.table)
        return self.of(shape.table).modified_shape(shape) if concerned else shape

    def of(self, table: TableName) -> Shouting:
        assert self.concerns(table), "nobody asks for a table that is not concerned"
        return Shouting(self.region)


def _shout(cells: Cells) -> Cells:
    values = pc.utf8_upper(gather(cells).cast(pa.string()))
    return Cells.from_arrow(values, unchanged=cells.is_unchanged, absent=cells.kind == ABSENT)


def _deleted(changes: TableChanges, mask: Mask) -> TableChanges:
    """Those UPDATEs as DELETEs of the old key, which is the new one where none was sent."""
    if not mask.any():
        return changes
    key_before = changes.before[0].where(changes.before[0].kind != ABSENT, changes.after[0])
    nothing = pa.nulls(len(changes), pa.binary())
    return replace(
        changes,
        operation=np.where(mask, DELETE, changes.operation).astype(np.uint8),
        before=(
            key_before.where(mask, changes.before[0]),
            Cells.from_arrow(nothing).where(mask, changes.before[1]),
        ),
        after=tuple(
            Cells.from_arrow(nothing, absent=np.ones(len(changes), bool)).where(mask, cells)
            for cells in changes.after
        ),
        has_full_before=changes.has_full_before & ~mask,
    )
