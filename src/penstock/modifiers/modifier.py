"""What a modifier is: it takes the changes of a table and gives them back changed, values or shape.

    decode ──► modify ──► the sink's executor half

One seam, on the executors, for changes and for copied rows alike (`copies`). On the driver the same
modifier reports to sinks which shape the table has by then. A table keeps its name and its oid: positions, copies
and errors are recorded under them, and where a table lands is the sink's to say.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from penstock.changes.decode import TableTruncated
from penstock.errors import ModifierError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.changes.decode import Piece, TableChanges
    from penstock.changes.pgoutput import Relation
    from penstock.schema.shape import TableShape
    from penstock.table import TableName


class TableModifier(Protocol):
    """What is done to one table. Picklable; the same for the same input, since batches are repeated.

    Three methods say one thing, and must agree: the columns of `modified_relation` are those of
    `modified_shape` without the generated ones, by name, type and order, and are what `apply` gives.
    A column that is added, renamed or removed is that in all three. Ids of columns that stay, stay; one that
    is added has an id that no column of the source can have, a negative one, and always the same.
    """

    def modified_shape(self, shape: TableShape) -> TableShape:
        """How sinks see a table of this shape: to create it, and to follow its changes.

        Runs on the driver. Of a change of the table, both shapes, before and after, are modified, and sinks
        follow the difference of those. A constraint or an index on a column that is not delivered goes too.
        """

    def modified_relation(self, relation: Relation) -> Relation:
        """How changed rows of this description are described."""

    def apply(self, changes: TableChanges) -> TableChanges:
        """Change some changes. Runs in a Spark task; all of them have the same description.

        May drop rows (`changes.take`), replace columns (`Cells.from_arrow`), and turn an operation into
        another. May neither add rows nor change their order or positions. What it gives must be sound:

        - A column has the same rows in `after` and `before` as all others: a DELETE has no `after`
          (ABSENT in every column); `before` is there for a row in all columns or in none.
        - An INSERT carries every value. Only an UPDATE may leave values UNCHANGED.
        - An old key must lead to the row that was delivered under it: what is done to a value of the key
          in `after` is done to it in `before`, and depends on that value alone.
        - `before` without `has_full_before` holds the key, and says NULL for all other columns. It says
          nothing of those.
        - UNCHANGED means that the destination has the value, as this modifier made it. What depends on
          such a value alone stays UNCHANGED. What depends on others too needs it: `fill_from_before`
          gives it where the source sends the old row (REPLICA IDENTITY FULL), and where it does not, only
          an error is right.
        - An UPDATE whose row is not wanted any more becomes a DELETE; its `before` is then the old key, or
          the new one where the source sent none, since it is the same. One whose row is wanted from now
          on becomes an INSERT, which needs every value.

        Raises:
            PenstockError: one that says what to do; the batch waits.
        """


@runtime_checkable
class KeepsRows(Protocol):
    """A modifier that may let rows stay at the sink which the source has no more."""

    @property
    def keeps_rows(self) -> bool:
        """Whether it does: then a TRUNCATE does not pass."""


@runtime_checkable
class Revised(Protocol):
    """A modifier that a new version of penstock may give another meaning, though its rule reads as before."""

    @property
    def revision(self) -> str:
        """What stands for that meaning: "" for the first one."""


class Modifiers(Protocol):
    """Which tables are modified, and how. Picklable: it travels to the executors."""

    def concerns(self, table: TableName) -> bool:
        """Whether something is done to a table. Where not, nothing reads its values."""

    def of(self, table: TableName) -> TableModifier:
        """What is done to a table that is concerned."""

    def excludes(self, table: TableName) -> bool:
        """Whether the sink is not to have a table at all."""

    def modified_shape(self, shape: TableShape) -> TableShape:
        """How the sink sees a table, concerned or not."""

    def lacks_rows(self, table: TableName) -> bool:
        """Whether the sink may not have every row of a table."""

    def require_fit(self, shape: TableShape, before: TableShape | None = None) -> None:
        """See that rows of a table of this shape can be modified; and that no rule was lost by how the
        table was altered, with a name or a type.

        Raises:
            ModifierError: a rule and the table do not fit.
        """


def modify(
    modifiers: Modifiers,
    pieces: Sequence[Piece],
    refused: dict[TableName, ModifierError] | None = None,
) -> list[Piece]:
    """The changes as sinks are to see them, in the same order.

    A TRUNCATE stays one, whatever is done to rows: the table is empty either way. It does not pass where deletes
    do not: it takes rows away as they do.

    Args:
        refused: takes the tables that a rule cannot be carried out on, and why; nothing more of them is
            given. Those that are in it already are left out.

    Raises:
        ModifierError: the same, where nobody takes it.
    """
    modified: list[Piece] = []
    for piece in pieces:
        table = piece.relation.table
        if modifiers.excludes(table) or (refused is not None and table in refused):
            continue
        if not modifiers.concerns(table):
            modified.append(piece)
            continue
        try:
            changed = _modified(modifiers.of(table), piece)
        except ModifierError as error:
            if refused is None:
                raise
            refused[table] = error
            continue
        if changed is not None and (isinstance(changed, TableTruncated) or len(changed)):
            modified.append(changed)
    return modified


def _modified(modifier: TableModifier, piece: Piece) -> Piece | None:
    if isinstance(piece, TableTruncated):
        if isinstance(modifier, KeepsRows) and modifier.keeps_rows:
            return None
        return replace(piece, relation=modifier.modified_relation(piece.relation))
    return modifier.apply(piece)
