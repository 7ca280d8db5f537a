"""What the rules do to one table: a TableModifier. Runs on executors; all rows of a column at once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.cells import ABSENT, Cells, gather
from penstock.changes.compact import fill_from_before
from penstock.errors import ColumnUncovered, RuleUnfit, TransformFailed, ValueNotSent
from penstock.lsn import Lsn
from penstock.modifiers.effects import Effect
from penstock.modifiers.hidden import NotKnown, without_defaults, without_values
from penstock.modifiers.operations import Operation, letters_of
from penstock.modifiers.places import located
from penstock.modifiers.transform.arrays import of_width
from penstock.modifiers.transform.pgtypes import ColumnType, type_by_oid, type_of
from penstock.modifiers.transform.plain import BadResult
from penstock.modifiers.transform.rules import OnError, ordered
from penstock.modifiers.transform.transformer import Batch
from penstock.sql.column_types import without_padding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.changes.cells import Index, Mask
    from penstock.changes.decode import TableChanges
    from penstock.changes.pgoutput import Relation
    from penstock.modifiers.transform.options import TransformOptions
    from penstock.modifiers.transform.rules import ColumnRule
    from penstock.schema.shape import ColumnShape, TableShape
    from penstock.table import TableName


class Typed(NamedTuple):
    """A column by name and type."""

    name: str
    type: ColumnType


@dataclass(frozen=True)
class TableTransform:
    """The rules of one table. Picklable, while Spark runs: a salt is sealed in its vault."""

    table: TableName
    rules: tuple[ColumnRule, ...]
    is_strict: bool = False
    is_own: bool = False  # a group of the rules names the table
    runs_all: bool = (
        False  # of a column all its rules run, in their order; else the first that is for it
    )
    where: str = field(default="", compare=False)  # of the group that decides on coverage
    known: Mapping[int, ColumnType] = field(default_factory=dict)  # types by oid, of the catalog

    @property
    def revision(self) -> str:
        """ "" while the text of every rule means what it always has."""
        revised = sorted({rule.revision for rule in self.rules if rule.revision > 1})
        return ",".join(map(str, revised))

    def with_shape(self, shape: TableShape) -> TableTransform:
        """The same, with what the catalog says of types that are not Postgres's own."""
        known = {
            column.type_id: found
            for column in shape.columns
            if (found := type_of(column, shape)).family
            != type_by_oid(column.type_id, column.type_modifier).family
        }
        return replace(self, known=known)

    def effects(self, shape: TableShape) -> Iterator[Effect]:
        """What is done to each column, and whether each must have a rule."""
        yield Effect("coverage", 0, "strict", self.is_own, hides=self.is_strict)
        for column in shape.columns:
            for rule in () if column.generated else self.rules_by_name(column, shape):
                type_ = rule.transformer.depends_on(type_of(column, shape))
                options = (rule.options.operations, rule.options.on_error)
                what = (rule.transformer, rule.salt, type_, *options)
                # To pass a value, somebody has to name its column.
                is_own = not (rule.is_general or (rule.keeps and rule.is_pattern))
                yield Effect("transform", column.id, what, is_own, hides=not rule.keeps)

    def rules_by_name(self, column: ColumnShape, shape: TableShape) -> tuple[ColumnRule, ...]:
        """The column's rules, in their order, also those that do not take its type."""
        type_ = type_of(column, shape)
        return self._run(
            rule
            for rule in self.rules
            if rule.fits(column.name) and (not rule.leaves_other_types or takes(rule, type_))
        )

    def _run(self, fitting: Iterator[ColumnRule]) -> tuple[ColumnRule, ...]:
        return tuple(fitting if self.runs_all else islice(fitting, 1))

    def modified_shape(self, shape: TableShape) -> TableShape:
        """The shape without values of ruled columns; a migration that the rules do not cover ends here."""
        typed = [
            Typed(column.name, type_of(column, shape))
            for column in shape.columns
            if not column.generated
        ]
        ruled = {typed[number]: rules for number, rules in self.ruled(typed)}
        columns: list[ColumnShape] = []
        hidden: list[int] = []
        for column in shape.columns:
            each = Typed(column.name, type_of(column, shape))
            rules = tuple(filter(_hides, ruled.get(each, ())))
            if not rules:
                columns.append(column)
            else:
                columns.append(without_values(column, partial(_result, rules, each.type)))
                hidden.append(column.type_id)
        shape = without_defaults(shape, hidden)
        if tuple(columns) == shape.columns:
            return shape
        return shape.model_copy(update={"columns": tuple(columns)})

    def modified_relation(self, relation: Relation) -> Relation:
        """The description is what it was; one that the rules do not cover ends here."""
        list(self.ruled(self._columns_of(relation)))
        return relation

    def apply(self, changes: TableChanges) -> TableChanges:
        """The changes with the values that rules are for transformed, in new and old rows alike."""
        after, before = list(changes.after), list(changes.before)
        columns = self._columns_of(changes.relation)
        for number, rules in self.ruled(columns):
            left = changes  # other columns are read as they were before the rules
            for rule in rules:
                if rule.keeps:
                    continue
                column = _Column(self.table, left, number, rule, columns)
                after[number] = column.transformed_after()
                before[number] = column.transformed_before()
                left = _with_column(changes, number, after[number], before[number])
        return replace(changes, after=tuple(after), before=tuple(before))

    def _columns_of(self, relation: Relation) -> list[Typed]:
        return [
            Typed(
                column.name,
                self.known.get(column.type_oid)
                or type_by_oid(column.type_oid, column.type_modifier),
            )
            for column in relation.columns
        ]

    def ruled(self, columns: Sequence[Typed]) -> Iterator[tuple[int, tuple[ColumnRule, ...]]]:
        """The columns that have rules, by number, and the rules in the order in which they run.

        Raises:
            RuleUnfit: a rule's column is not there, or is of a type that its transformer does not take.
            ColumnUncovered: a column has no rule, where each must have one.
        """
        self._require_present([column.name for column in columns])
        for number, column in enumerate(columns):
            rules = self._run(self._fitting(column))
            if rules:
                yield number, rules
            elif self.is_strict:
                raise uncovered(self.table, [column.name], self.where)

    def _fitting(self, column: Typed) -> Iterator[ColumnRule]:
        """The rules that are for the column. A pattern is not for columns whose type does not suit it.

        Raises:
            RuleUnfit: it names the column, and does not take its type.
        """
        for rule in self.rules:
            if not rule.fits(column.name):
                continue
            if takes(rule, column.type):
                yield rule
            elif not rule.leaves_other_types:
                raise unfit_type(self.table, column, rule)

    def _require_present(self, names: Sequence[str]) -> None:
        for rule in self.rules:
            if rule.is_pattern or rule.options.when_missing == "skip":
                continue
            for wanted in (rule.column, *rule.transformer.columns):
                if wanted not in names:
                    raise missing(self.table, wanted, rule)


def _hides(rule: ColumnRule) -> bool:
    # Rows that were there before are as if they were copied: inserted.
    return not rule.keeps and Operation.INSERT in rule.options.operations


def _with_column(changes: TableChanges, number: int, after: Cells, before: Cells) -> TableChanges:
    return replace(
        changes,
        after=(*changes.after[:number], after, *changes.after[number + 1 :]),
        before=(*changes.before[:number], before, *changes.before[number + 1 :]),
    )


def _result(rules: Iterable[ColumnRule], type_: ColumnType, value: str) -> str | None:
    """What becomes of a value whatever the row.

    Raises:
        NotKnown: it depends on the row, or the value cannot be transformed; a row that has it says so.
    """
    done: str | None = value
    for rule in rules:
        if done is not None:
            done = _result_of(rule, type_, done)
    return done


def _result_of(rule: ColumnRule, type_: ColumnType, value: str) -> str | None:
    if rule.transformer.columns or not rule.transformer.is_repeatable:
        raise NotKnown
    batch = Batch(pa.array([value.encode()], pa.binary()), type_, salt=rule.salt)
    try:
        done = _one_array(rule.transformer.apply(batch))[0].as_py()
    except (BadResult, pa.ArrowInvalid):
        raise NotKnown from None
    text = None if done is None else done.decode()
    is_too_long = text is not None and type_.longest is not None and len(text) > type_.longest
    if batch.failed is not None or is_too_long:
        raise NotKnown
    return text


def table_transform(options: TransformOptions, table: TableName) -> TableTransform | None:
    """What the rules of an entry do to a table; None where nothing."""
    found = rules_of(options, table)
    if found is None or (not found.is_strict and all(rule.keeps for rule in found.rules)):
        return None
    return found


def rules_of(options: TransformOptions, table: TableName) -> TableTransform | None:
    """The rules of an entry for a table, also those that keep all; None if it has none."""
    concerned = [one for one in options.tables if one.concerns(table)]
    if not concerned:
        return None
    # The most exact group decides whether all columns must have a rule.
    is_strict = concerned[0].coverage == "strict"
    return TableTransform(
        table,
        ordered(concerned),
        is_strict,
        concerned[0].table.is_outright,
        runs_all=any(one.runs_all for one in concerned),
        where=concerned[0].where,
    )


def takes(rule: ColumnRule, type_: ColumnType) -> bool:
    """Whether a rule is for columns of a type.

    An executor does not know what is behind a type that is not Postgres's own. There a value is
    transformed rather than passed: what the type cannot hold the destination refuses.
    """
    return type_.family == "unknown" or type_.family in rule.transformer.takes


def missing(table: TableName, column: str, rule: ColumnRule) -> RuleUnfit:
    """A rule's column is not there."""
    what = f"the rule for {rule.column} wants a column {column}, which the table does not have"
    return RuleUnfit(
        what,
        located(rule.where, str(table)),
        f"write the column's new name, and keep the old one with when_missing: skip until all changes"
        f" before the renaming are delivered; if {column} was dropped, take its rule out",
    )


def unfit_type(table: TableName, column: Typed, rule: ColumnRule) -> RuleUnfit:
    """A rule's column is of a type that cannot be."""
    can = ", ".join(sorted(rule.transformer.takes - {"unknown"}))
    what = f"{rule.name} does not take a column of this type ({column.type.family}), it takes {can}"
    where = located(rule.where, f"{table}.{column.name}")
    return RuleUnfit(what, where, "choose another transformer for the column")


def uncovered(table: TableName, columns: Iterable[str], place: str = "") -> ColumnUncovered:
    """Columns have no rule, where each must have one."""
    named = ", ".join(columns)
    first = named.partition(", ")[0]
    return ColumnUncovered(
        f"no rule covers {named}, and coverage is strict; no value of the table passes",
        located(place, str(table)),
        f"add a rule to the table's columns, such as {first}: {{with: masking}}, or {first}: keep",
    )


@dataclass
class _Column:
    """One column of some changes, and its rule."""

    table: TableName
    changes: TableChanges
    number: int
    rule: ColumnRule
    columns: Sequence[Typed]

    @property
    def type(self) -> ColumnType:
        return self.columns[self.number].type

    def __post_init__(self) -> None:
        relation = self.changes.relation
        column = relation.columns[self.number]
        if column.in_identity and relation.replica_identity != "f":
            for what, do in key_complaints(self.rule):
                raise RuleUnfit(what, self._place, do)

    @property
    def _place(self) -> str:
        name = self.changes.relation.columns[self.number].name
        return located(self.rule.where, f"{self.table}.{name}")

    def transformed_after(self) -> Cells:
        """The new values; those of operations that the rule is not for stay."""
        cells = self.changes.after[self.number]
        letters = letters_of(self.rule.options.operations)
        rows = np.isin(self.changes.operation, np.array(letters, np.uint8))
        others = self.changes.after
        if self.rule.transformer.columns:
            others = fill_from_before(self.changes)
            cells = self._with_known(cells, others, rows)
        return self._transformed(cells, others, rows)

    def transformed_before(self) -> Cells:
        """The old values, whatever operations the rule is for: an old value is never shown as it was."""
        cells = self.changes.before[self.number]
        return self._transformed(cells, self.changes.before, np.ones(len(cells), np.bool_))

    def _with_known(self, cells: Cells, filled: tuple[Cells, ...], rows: Mask) -> Cells:
        """Values that were left alone, from the old row, where another column decides what they become."""
        inputs = [filled[self._number_of(name)] for name in self.rule.transformer.columns]
        own = filled[self.number]
        unknown = np.array([own.is_unchanged, *(one.is_unchanged for one in inputs)])
        needed = rows & unknown.any(axis=0) & ~unknown.all(axis=0) & ~own.is_null
        if bool(needed.any()):
            named = ", ".join((self.rule.column, *self.rule.transformer.columns))
            what = (
                f"the rule needs {named} together, and an UPDATE left one of them out because it is"
                " large and did not change"
            )
            do = f"ALTER TABLE {self.table} REPLICA IDENTITY FULL at the source"
            raise ValueNotSent(what, self._at(int(np.flatnonzero(needed)[0])), do)
        return own.where(rows, cells)

    def _number_of(self, name: str) -> int:
        names = [column.name for column in self.changes.relation.columns]
        if name not in names:
            raise missing(self.table, name, self.rule)
        return names.index(name)

    def _transformed(self, cells: Cells, row: tuple[Cells, ...], rows: Mask) -> Cells:
        chosen = cells.is_value & rows
        places = np.flatnonzero(chosen)
        if len(places) == 0:
            return cells
        everywhere = len(places) == len(cells)
        values = gather(cells if everywhere else cells.take(places))
        others = {
            name: self._values_beside(row, self._number_of(name), places)
            for name in self.rule.transformer.columns
        }
        batch = Batch(values, self.type, others, self.rule.salt, self._stamps(row, places))
        done = self._checked(batch, places)
        if everywhere:
            return Cells.from_arrow(done)
        spread = np.cumsum(chosen) - 1
        whole = done.take(pa.array(spread, mask=~chosen))
        made = Cells.from_arrow(
            whole, unchanged=cells.is_unchanged, absent=np.equal(cells.kind, ABSENT)
        )
        untouched = cells.is_value & ~rows
        return cells.where(untouched, made) if bool(untouched.any()) else made

    def _values_beside(self, row: tuple[Cells, ...], number: int, places: Index) -> pa.Array:
        values = gather(row[number].take(places))
        return without_padding(values) if self.columns[number].type.is_padded else values

    def _checked(self, batch: Batch, places: Index) -> pa.Array:
        try:
            done = self.rule.transformer.apply(batch)
            done = _one_array(done)
        except BadResult as error:
            raise TransformFailed(str(error), self._place, "correct the function") from None
        except pa.ArrowInvalid:
            what = f"{self.rule.name} gives more than 2 GiB for the rows of one batch"
            raise TransformFailed(what, self._place, "have it give shorter values") from None
        longest = self.type.longest
        if longest is not None:
            # No text has more characters than bytes.
            too_long = np.asarray(pc.fill_null(pc.greater(pc.binary_length(done), longest), False))
            if bool(too_long.any()):
                counts = pc.fill_null(pc.utf8_length(done.cast(pa.string())), 0)
                batch.fail(
                    np.asarray(pc.greater(counts, longest)),
                    f"the result is longer than the column's {longest} characters",
                )
        if batch.failed is None:
            return done
        if self.rule.options.on_error is OnError.STOP:
            what = f"{self.rule.name} cannot be applied to a value: {batch.reason}"
            do = "correct the rule, or write on_error: null"
            raise TransformFailed(what, self._at(int(places[batch.failed][0])), do)
        instead = pa.nulls(len(batch), pa.binary())
        if self.rule.options.on_error is OnError.KEEP:
            instead = batch.values
        return pc.if_else(pa.array(batch.failed), instead, done)

    def _at(self, row: int) -> str:
        """The place of a row, by its position: its key may be what is to be hidden."""
        positions = self.changes.positions
        lsn, ordinal = Lsn(int(positions.commit_lsn[row])), int(positions.ordinal[row])
        return f"{self._place} at {lsn}, row {ordinal} of its transaction"

    def _stamps(self, row: tuple[Cells, ...], places: Index) -> pa.Array | None:
        """What differs between rows and is the same again when a batch is repeated."""
        if self.rule.transformer.is_repeatable or not self.rule.transformer.draws:
            return None
        positions = self.changes.positions
        numbers = np.stack(
            [positions.commit_lsn[places], positions.ordinal[places].astype(np.uint64)], axis=1
        )
        parts = [of_width(np.ascontiguousarray(numbers).view(np.uint8))]
        # Copies count their rows from the beginning of each range.
        for number, column in enumerate(self.changes.relation.columns):
            if column.in_identity:
                parts.append(pc.fill_null(gather(row[number].take(places)), b""))
        return pc.binary_join_element_wise(*parts, f"\0{self.rule.column}".encode())


def _one_array(done: pa.Array | pa.ChunkedArray) -> pa.Array:
    whole = done.combine_chunks() if isinstance(done, pa.ChunkedArray) else done
    return whole.cast(pa.binary())


def key_complaints(rule: ColumnRule) -> Iterator[tuple[str, str]]:
    """Why a rule cannot be for a column that rows are recognised by: what, and what to do."""
    name = rule.name
    if not rule.transformer.is_repeatable:
        yield (
            f"{name} with generator: random on a key column: an update or a delete would not find its row",
            "write generator: deterministic",
        )
    if rule.transformer.columns:
        yield (
            f"{name} on a key column reads other columns: an old key comes without them",
            "take a transformer that needs the value alone",
        )
    if not {Operation.INSERT, Operation.UPDATE} <= rule.options.operations:
        yield (
            f"{name} on a key column is for some operations only: others would not find their row",
            "write operations: [insert, update, delete], or leave it out",
        )
