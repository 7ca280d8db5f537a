"""A row filter: rows that do not match are not delivered, rows that move in or out come or go.

What an UPDATE means depends on the row before it. The source sends that with REPLICA IDENTITY FULL, and a rule
that looks at nothing but the key knows it always. Elsewhere nobody does: then a row that matches stays an
UPDATE, which a sink inserts where it has no such row, and one that does not is a DELETE, which does nothing there.

A value that an UPDATE left alone is not sent (TOAST). Where the rule needs it the table stops.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow.compute as pc

from penstock.changes.cells import ABSENT, Cells, gather
from penstock.changes.compact import fill_from_before
from penstock.changes.pgoutput import DELETE, INSERT, NULL, UPDATE
from penstock.errors import RuleUnfit, ValueNotSent
from penstock.modifiers.filter.comparison import check_condition, compare
from penstock.modifiers.operations import ALL_OPERATIONS, letters_of
from penstock.sql.column_types import ColumnType, column_type, require_stored, shape_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from penstock.changes.cells import Mask
    from penstock.changes.decode import TableChanges
    from penstock.changes.pgoutput import Relation
    from penstock.modifiers.filter.where import Condition, Where
    from penstock.modifiers.operations import Operation
    from penstock.schema.shape import TableShape
    from penstock.table import TableName


class Matcher(Protocol):
    """A condition on rows. Picklable."""

    def with_shape(self, shape: TableShape) -> Matcher:
        """The same, knowing the types of the columns.

        Raises:
            RuleUnfit: the table has no such column, or of another type.
        """

    def columns(self) -> tuple[str, ...]:
        """The columns that it looks at; only once it knows the shape."""

    def matches(self, values: Mapping[str, pa.Array], count: int) -> pa.Array:
        """True for each row that matches; Postgres's text in."""


@dataclass(frozen=True)
class StructuredMatcher:
    """Conditions as the file states them."""

    where: Where
    types: Mapping[str, ColumnType] = field(default_factory=dict)

    def with_shape(self, shape: TableShape) -> StructuredMatcher:
        """Know the types of the columns."""
        columns = {column.name: column for column in shape.columns if not column.generated}
        types: dict[str, ColumnType] = {}
        for condition in self.where.conditions():
            if condition.column not in columns:
                require_stored(shape, condition.column)
                raise missing_column(condition.column, sorted(columns), shape.table)
            types[condition.column] = column_type(shape, columns[condition.column])
            check_condition(condition, types[condition.column])
        return StructuredMatcher(self.where, types)

    def columns(self) -> tuple[str, ...]:
        """Those that are named."""
        return tuple(dict.fromkeys(each.column for each in self.where.conditions()))

    def matches(self, values: Mapping[str, pa.Array], count: int) -> pa.Array:
        """Compare as the types say."""
        del count

        def asked(condition: Condition) -> pa.Array:
            return compare(condition, values[condition.column], self.types[condition.column])

        return self.where.evaluate(asked)


def missing_column(name: str, known: Sequence[str], table: TableName) -> RuleUnfit:
    """A rule names a column that is not there."""
    return RuleUnfit(
        f"column {name} is not there, wanted one of {', '.join(known)}",
        str(table),
        "fix the rule; if the column was renamed, name it as it is called now,"
        " then penstock tables resync makes both sides agree",
    )


@dataclass(frozen=True)
class NoRows:
    """The table arrives, its rows do not."""

    lacks_rows: bool = True

    def modified_shape(self, shape: TableShape) -> TableShape:
        """As it is."""
        return shape

    def modified_relation(self, relation: Relation) -> Relation:
        """As it is."""
        return relation

    def apply(self, changes: TableChanges) -> TableChanges:
        """Nothing."""
        return changes.take(np.zeros(0, np.int64))


@dataclass(frozen=True)
class RowFilter:
    """Rows that match, of one table."""

    matcher: Matcher
    operations: frozenset[Operation] = ALL_OPERATIONS
    is_bound: bool = False
    lacks_rows: bool = True

    def with_shape(self, shape: TableShape) -> RowFilter:
        """Know the types of the columns."""
        return replace(self, matcher=self.matcher.with_shape(shape), is_bound=True)

    def modified_shape(self, shape: TableShape) -> TableShape:
        """As it is: whether the rule fits is seen where rows come."""
        return shape

    def modified_relation(self, relation: Relation) -> Relation:
        """As it is."""
        return relation

    def apply(self, changes: TableChanges) -> TableChanges:
        """Leave out what does not match; UPDATEs become what they are at the sink."""
        if not self.is_bound:  # nobody knows the table's shape: what the stream says must do
            return self.with_shape(shape_of(changes.relation)).apply(changes)
        places = self._places(changes.relation)
        is_looked_at = np.isin(changes.operation, letters_of(self.operations))
        if bool((changes.operation == INSERT).all()):
            matches = self._matches(changes.after, places, len(changes))
            return changes.take(np.flatnonzero(matches | ~is_looked_at))
        return self._settle(changes, places, is_looked_at)

    def _places(self, relation: Relation) -> dict[str, int]:
        names = [column.name for column in relation.columns]
        for name in self.matcher.columns():
            if name not in names:
                raise missing_column(name, names, relation.table)
        return {name: names.index(name) for name in self.matcher.columns()}

    def _matches(self, cells: Sequence[Cells], places: Mapping[str, int], count: int) -> Mask:
        values = {name: gather(cells[place]) for name, place in places.items()}
        answer = pc.fill_null(self.matcher.matches(values, count), False)
        matched: Mask = np.asarray(answer)
        return matched

    def _settle(
        self, changes: TableChanges, places: Mapping[str, int], is_looked_at: Mask
    ) -> TableChanges:
        operation = changes.operation
        is_insert, is_update, is_delete = (operation == each for each in (INSERT, UPDATE, DELETE))
        after = fill_from_before(changes)
        asked = (is_insert | is_update) & is_looked_at
        for place in places.values():
            self._require_sent(changes, after[place].is_unchanged & asked, place)
        is_wanted = self._matches(after, places, len(changes))
        was_wanted, is_known = self._before(changes, places, is_wanted)

        keeps = is_wanted.copy()
        keeps[is_delete] = (was_wanted | ~is_known)[is_delete]
        leaves = is_update & ~is_wanted & (was_wanted | ~is_known)
        comes = is_update & is_wanted & is_known & ~was_wanted
        keeps |= leaves
        keeps |= ~is_looked_at
        leaves &= is_looked_at
        comes &= is_looked_at
        if bool(comes.any()):
            changes = self._inserted(changes, after, comes)
        if bool(leaves.any()):
            changes = deleted(changes, leaves)
        return changes if bool(keeps.all()) else changes.take(np.flatnonzero(keeps))

    def _before(
        self, changes: TableChanges, places: Mapping[str, int], is_wanted: Mask
    ) -> tuple[Mask, Mask]:
        """Whether the old row matched, and where that is known."""
        columns = changes.relation.columns
        only_key = all(columns[place].in_identity for place in places.values())
        if not only_key and not bool(changes.has_full_before.any()):
            nothing = np.zeros(len(changes), np.bool_)
            return nothing, nothing
        was_wanted = self._matches(changes.before, places, len(changes))
        if not only_key:
            return was_wanted, changes.has_full_before
        # No old key was sent: it is the new one.
        is_sent = changes.before[next(iter(places.values()))].kind != ABSENT if places else None
        if is_sent is None:
            return is_wanted, np.ones(len(changes), np.bool_)
        return np.where(is_sent, was_wanted, is_wanted), np.ones(len(changes), np.bool_)

    def _inserted(self, changes: TableChanges, after: Sequence[Cells], mask: Mask) -> TableChanges:
        for place, cells in enumerate(after):
            self._require_sent(changes, cells.is_unchanged & mask, place)
        return replace(
            changes,
            operation=np.where(mask, INSERT, changes.operation).astype(np.uint8),
            after=tuple(after),
            before=tuple(_marked(cells, mask, ABSENT) for cells in changes.before),
            has_full_before=changes.has_full_before & ~mask,
        )

    def _require_sent(self, changes: TableChanges, missing: Mask, place: int) -> None:
        if not bool(missing.any()):
            return
        table, column = changes.relation.table, changes.relation.columns[place].name
        raise ValueNotSent(
            f"the rule needs column {column}, and an UPDATE left its value alone, so that the source"
            " has not sent it",
            str(table),
            f"ALTER TABLE {table} REPLICA IDENTITY FULL, then penstock tables resync {table}",
        )


def deleted(changes: TableChanges, mask: Mask) -> TableChanges:
    """Those UPDATEs as DELETEs of the old row or key, which is the new key where none was sent."""
    lacks_old = mask & (changes.before[0].kind == ABSENT) if changes.before else mask
    before = []
    for column, old, new in zip(
        changes.relation.columns, changes.before, changes.after, strict=True
    ):
        if column.in_identity and bool(lacks_old.any()):
            before.append(new.where(lacks_old, old))
        else:
            before.append(_marked(old, lacks_old, NULL))
    return replace(
        changes,
        operation=np.where(mask, DELETE, changes.operation).astype(np.uint8),
        after=tuple(_marked(cells, mask, ABSENT) for cells in changes.after),
        before=tuple(before),
    )


def _marked(cells: Cells, mask: Mask, mark: int) -> Cells:
    if not bool(mask.any()):
        return cells
    return Cells(
        cells.data,
        cells.start,
        np.where(mask, 0, cells.length),
        np.where(mask, mark, cells.kind).astype(np.uint8),
    )
