"""Cut what was read from the log where tables change their shape, and say what changed there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.errors import ModifierError
from penstock.log.slice import SliceKind
from penstock.schema.difference import compare_tables
from penstock.schema.mark import CHANGE, VERSION, Mark
from penstock.schema.shape import read_change, read_version
from penstock.sinks.ddl_transaction import Rows, ShapeChange, TableDifference
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from penstock.log.contract import Slice
    from penstock.lsn import Lsn
    from penstock.modifiers.modifier import Modifiers
    from penstock.schema.past_shapes import PastShapes
    from penstock.schema.shape import ColumnShape, SchemaChange, TableShape
    from penstock.sinks.ddl_transaction import DdlTransaction, Part


@dataclass(frozen=True)
class Stretch:
    """Slices that are delivered together: many transactions, or one that changes shapes."""

    slices: tuple[Slice, ...]
    marks: tuple[Mark, ...] = ()


@dataclass
class _Altered:
    """What one change of shapes does, as it is put together table by table."""

    followed: list[TableDifference] = field(default_factory=list)
    refused: dict[TableName, ModifierError] = field(default_factory=dict)
    renamed: dict[TableName, TableName] = field(default_factory=dict)
    created: set[TableName] = field(default_factory=set)
    dropped: set[TableName] = field(default_factory=set)
    given: list[TableShape] = field(default_factory=list)  # all shapes, as the sink sees them


def cut_at_marks(slices: Sequence[Slice]) -> list[Stretch]:
    """The slices in stretches, in order. A transaction with marks has its slices to itself."""
    stretches: list[Stretch] = []
    plain: list[Slice] = []
    for group in _transactions(slices):
        marks = tuple(Mark.from_json(one) for one in group[-1].head.meta.get("schema", ()))
        if not marks:
            plain += group
            continue
        if plain:
            stretches.append(Stretch(tuple(plain)))
            plain = []
        stretches.append(Stretch(tuple(group), marks))
    if plain:
        stretches.append(Stretch(tuple(plain)))
    return stretches


def _transactions(slices: Iterable[Slice]) -> Iterable[list[Slice]]:
    """Parts of one transaction together, every other slice alone."""
    parts: list[Slice] = []
    for ref in slices:
        parts.append(ref)
        if ref.head.kind is not SliceKind.PART:
            yield parts
            parts = []
    if parts:
        yield parts


def oids_of(slices: Iterable[Slice]) -> dict[TableName, int]:
    """The tables that the slices hold rows of, with their oids."""
    return {
        TableName(schema, name): oid
        for ref in slices
        for oid, schema, name in ref.head.meta.get("relations", ())
    }


def tables_of(slices: Iterable[Slice]) -> frozenset[TableName]:
    """The tables that the slices hold rows of."""
    return frozenset(oids_of(slices))


class DdlTransactionReader:
    """Reads marks with the past shapes at hand. `follows`: whether a table is the pipeline's.

    `publications` are the pipeline's own: a table that one of them has had from the first row on
    need not be copied. `modifiers`: shapes are given as these leave them.
    """

    def __init__(
        self,
        past_shapes: PastShapes,
        follows: Callable[[TableName], bool],
        publications: Collection[str],
        modifiers: Modifiers | None = None,
    ) -> None:
        self._past_shapes = past_shapes
        self._modifiers = modifiers
        self._follows = follows
        self._publications = frozenset(publications)

    def read(self, stretch: Stretch) -> tuple[list[Part], list[tuple[Slice, ...]]]:
        """The parts of a transaction that changes shapes, and the slices of those that are rows.

        Raises:
            SchemaUnreadable: a document does not parse.
        """
        versions: dict[str, int] = {}
        changes: list[tuple[Mark, SchemaChange]] = []
        for mark in stretch.marks:
            if mark.kind == CHANGE:
                changes.append((mark, read_change(mark.content, mark.where)))
            elif mark.kind == VERSION:
                version = read_version(mark.content, mark.where)
                versions[version.schema_name] = version.version
        parts: list[Part] = []
        slices: list[tuple[Slice, ...]] = []
        rows: list[Slice] = []

        def end_rows() -> None:
            if rows:
                oids = {
                    name: oid for name, oid in oids_of(rows).items() if not self._excludes(name)
                }
                parts.append(Rows(len(slices), frozenset(oids), oids))
                slices.append(tuple(rows))
                rows.clear()

        for ref in stretch.slices:
            while changes and changes[0][0].ordinal <= ref.head.first_ordinal:
                end_rows()
                parts.append(self._shape_change(*changes.pop(0), versions))
            if ref.head.meta.get("rows", 0):
                rows.append(ref)
        end_rows()
        parts += [self._shape_change(*each, versions) for each in changes]
        return parts, slices

    def shapes_of(
        self, rows: Rows, ddl_transaction: DdlTransaction, end_lsn: Lsn
    ) -> dict[TableName, TableShape]:
        """How the source has the tables of a part, between the changes before and after it."""
        after = ddl_transaction[ddl_transaction.index(rows) :]
        mark = next((part.mark for part in after if isinstance(part, ShapeChange)), None)
        found = {
            table: self._past_shapes.by_id_at(oid, end_lsn)
            if mark is None
            else self._past_shapes.shape_before(oid, mark)
            for table, oid in rows.oids.items()
        }
        return {table: shape for table, shape in found.items() if shape is not None}

    def _excludes(self, table: TableName) -> bool:
        return self._modifiers is not None and self._modifiers.excludes(table)

    def name_at(self, table: TableName, own_lsn: Lsn, lsn: Lsn) -> TableName:
        """What a table that is called so at its own position is called at a later one."""
        known = self._past_shapes.shape_at(table, own_lsn)
        if known is None:
            return table
        then = self._past_shapes.by_id_at(known.id, lsn)
        return then.table if then is not None else table

    def name_of(self, oid: int, lsn: Lsn) -> TableName | None:
        """What the table of an oid is called at a position; None when it is not known."""
        return self._past_shapes.name_of(oid, lsn)

    def was_reported_after(self, oid: int, since_lsn: Lsn, lsn: Lsn) -> bool:
        """Whether the stream reports something of a table after one position and before another."""
        return self._past_shapes.was_reported_after(oid, since_lsn, lsn)

    def oid_at(self, table: TableName, lsn: Lsn) -> int:
        """The oid of the table that had a name at a position; 0 when it is not known."""
        known = self._past_shapes.shape_at(table, lsn)
        return known.id if known is not None else 0

    @property
    def last_lsn(self) -> Lsn:
        """After this position no shape has changed."""
        return self._past_shapes.last_lsn

    def left_partitions(self) -> dict[int, dict[int, TableName]]:
        """Partitions that the stream reports as detached or dropped, by the table they were part of."""
        return self._past_shapes.left_partitions()

    def filled_partitions(self) -> dict[int, dict[int, TableName]]:
        """Partitions that the stream reports as attached with rows, by the table that they are part of."""
        return self._past_shapes.filled_partitions()

    def came_after(self, oid: int, lsn: Lsn) -> bool:
        """Whether the stream first reports a table after a position."""
        first = self._past_shapes.first_of(oid)
        return first is not None and first[0] >= lsn

    def is_gone(self, oid: int) -> bool:
        """Whether it is known that a table was dropped."""
        return self._past_shapes.is_dropped(oid)

    def will_be_created(self, oid: int, lsn: Lsn) -> bool:
        """Whether the stream brings a table from its first row on, after a position."""
        first = self._past_shapes.first_of(oid)
        if first is None or first[0] < lsn:
            return False
        return bool(self._publications & set(first[1].born_in))

    def first_entries(self, oid: int) -> tuple[int, ...]:
        """The entries in publications that a table created in the stream had then; else none."""
        first = self._past_shapes.first_of(oid)
        if first is None or not self._publications & set(first[1].born_in):
            return ()
        return first[1].first_entries

    def _shape_change(
        self, mark: Mark, change: SchemaChange, versions: dict[str, int]
    ) -> ShapeChange:
        altered = _Altered()
        for shape in change.tables:
            self._add_shape(altered, shape, self._past_shapes.shape_before(shape.id, mark))
        for gone in change.dropped_tables:
            before = self._past_shapes.shape_before(gone.id, mark)
            name = before.table if before else TableName(gone.schema_name, gone.name)
            if self._follows(name):
                altered.dropped.add(name)
                altered.followed.append(TableDifference(name, compare_tables(before, None)))
        if self._modifiers is not None:
            change = change.model_copy(update={"tables": tuple(altered.given)})
        return ShapeChange(
            mark,
            change,
            versions,
            tuple(altered.followed),
            altered.renamed,
            frozenset(altered.dropped),
            frozenset(altered.created),
            altered.refused,
        )

    def _add_shape(self, altered: _Altered, shape: TableShape, before: TableShape | None) -> None:
        """Add a table that was created or altered, where the pipeline follows it."""
        name_before = shape.table if before is None else before.table
        if not (self._follows(shape.table) or self._follows(name_before)):
            altered.given.append(shape)
            return
        try:
            if self._modifiers is not None:
                self._modifiers.require_fit(shape, before)
            seen = self._modified(shape)
        except ModifierError as error:
            altered.refused[name_before] = error
            return
        altered.given.append(seen)
        differences = compare_tables(self._seen_before(before, shape, seen), seen)
        if differences:
            altered.followed.append(TableDifference(shape.table, differences))
        if name_before != shape.table:
            altered.renamed[name_before] = shape.table
        if self._publications & set(shape.born_in) and self._follows(shape.table):
            altered.created.add(shape.table)

    def _seen_before(
        self, before: TableShape | None, shape: TableShape, seen: TableShape
    ) -> TableShape | None:
        """What the sink saw of a table before it was altered, as far as the rules of now can tell.

        They were edited because of this very change: they fit the table only as it is after it.
        """
        if before is None:
            return None
        try:
            return self._modified(before)
        except ModifierError:
            return seen.model_copy(update={"columns": tuple(_undone(seen, shape, before))})

    def _modified(self, shape: TableShape) -> TableShape:
        """A shape as the sink sees it."""
        return shape if self._modifiers is None else self._modifiers.modified_shape(shape)


def _undone(seen: TableShape, shape: TableShape, before: TableShape) -> Iterator[ColumnShape]:
    """Columns as a sink sees them after a change, with what the change did to them undone."""
    old = {column.id: column for column in before.columns}
    new = {column.id: column for column in shape.columns}
    for column in seen.columns:
        if column.id not in new:
            yield column  # of a rule's own making
        elif column.id in old:
            was, now = dict(old[column.id]), dict(new[column.id])
            changed = {name: was[name] for name, value in column if value == now[name]}
            yield column.model_copy(update=changed)
    yield from (column for column in before.columns if column.id not in new)
