"""A chain for the rows of a batch: with the shapes that its tables have there. Runs on the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from penstock.lsn import Lsn
    from penstock.modifiers.chain import Chain, TableChain
    from penstock.schema.shape import TableShape
    from penstock.table import TableName

    ShapeOf = Callable[[TableName, Lsn], TableShape | None]


class Binding:
    """Makes the chains of tables for their shapes, each once for a shape.

    `shape_of` says how the source has a table at a position, None where nobody knows.
    """

    def __init__(self, chain: Chain, shape_of: ShapeOf) -> None:
        self.chain = chain
        self._shape_of = shape_of
        self._known: dict[TableName, tuple[TableShape, TableChain]] = {}

    def at(
        self,
        tables: Collection[TableName],
        lsn: Lsn,
        shapes: Mapping[TableName, TableShape] | None = None,
    ) -> Chain:
        """For rows of tables after a position, or of the shapes that are given."""
        given = shapes or {}
        made: dict[TableName, TableChain] = {}
        for table in tables:
            if self.chain.excludes(table) or not self.chain.concerns(table):
                continue
            shape = given.get(table) or self._shape_of(table, lsn)
            if shape is not None:
                made[table] = self._made(table, shape)
        return self.chain.with_known(made)

    def _made(self, table: TableName, shape: TableShape) -> TableChain:
        known = self._known.get(table)
        if known is None or (known[0] is not shape and known[0] != shape):
            known = (shape, self.chain.bound({table: shape}).of(table))
            self._known[table] = known
        return known[1]
