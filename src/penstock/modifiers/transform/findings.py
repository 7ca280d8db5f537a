"""What `check`, and the start, say of rules against the catalog: before a value is touched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ModifierError, RuleUnfit
from penstock.findings import Finding
from penstock.modifiers.lost import lost_table
from penstock.modifiers.operations import Operation
from penstock.modifiers.places import located
from penstock.modifiers.transform.fixed_values import require_value
from penstock.modifiers.transform.modifier import (
    TableTransform,
    Typed,
    key_complaints,
    missing,
    table_transform,
    takes,
    uncovered,
    unfit_type,
)
from penstock.modifiers.transform.pgtypes import may_hold_text, type_of
from penstock.modifiers.transform.plain import Null
from penstock.modifiers.transform.rules import OnError
from penstock.modifiers.transform.transformer import Collisions, spelled
from penstock.modifiers.transform.words import Email
from penstock.options import nearest
from penstock.sql.column_types import column_type, require_stored

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from penstock.modifiers.transform.options import TransformOptions
    from penstock.modifiers.transform.rules import ColumnRule
    from penstock.schema.shape import ColumnShape, ConstraintShape, IndexShape, TableShape
    from penstock.table import TableName
# As Postgres spells it in definitions of constraints and indexes.
_ONE_NULL = "NULLS NOT DISTINCT"


def findings(
    options: TransformOptions, shapes: Mapping[TableName, TableShape]
) -> Iterator[Finding]:
    """Every fault of an entry's rules, against the tables that are followed."""
    if options.set:
        yield from _of_sql(options, shapes)
    for table, shape in shapes.items():
        transform = table_transform(options, table)
        if transform is not None:
            yield from _of_table(transform, shape)
        yield from _unreported(options, table, shape, transform)


def _of_sql(options: TransformOptions, shapes: Mapping[TableName, TableShape]) -> Iterator[Finding]:
    from penstock.modifiers.sql import set_columns

    for table, shape in shapes.items():
        if options.table.matches(table):
            try:
                set_columns(options.set, table).with_shape(shape)
            except ModifierError as error:
                yield Finding(error)
                continue
            yield from _of_computed(options, shape)


def _of_computed(options: TransformOptions, shape: TableShape) -> Iterator[Finding]:
    """Columns that are there already: nobody knows what SQL makes of two values."""
    for column in shape.columns:
        if column.name not in options.set:
            continue
        where = f"{shape.table}.{column.name}"
        unique = _unique_with(shape, column)
        if unique and not options.allow_collisions:
            what = f"SQL can make two values equal, and {unique[0].name} is unique"
            do = "set a column of another name; or see that it keeps values distinct, and write allow_collisions: true"
            yield Finding(RuleUnfit(what, where, do))
        for what, do in _checks_of(shape, column):
            yield Finding(RuleUnfit(what, where, do), "warning")


def lost(options: TransformOptions, shapes: Collection[TableShape]) -> Iterator[Finding]:
    """Tables that are not followed; rules for any table, or any column, that are for none."""
    if options.set:
        yield from lost_table(options.table, shapes)
    for group in options.tables:
        yield from lost_table(group.table, shapes, group.where)
        concerned = [shape for shape in shapes if group.concerns(shape.table)]
        names = {column.name for shape in concerned for column in shape.columns}
        for rule in group.rules if concerned else ():
            loose = rule.is_pattern or not group.table.is_outright
            if loose and not any(map(rule.fits, names)):
                what = f"no column fits {rule.column}"
                do = nearest(rule.column, sorted(names)) if names else "take it out"
                where = located(rule.where, str(group.table))
                yield Finding(RuleUnfit(what, where, do), "warning")


@dataclass(frozen=True)
class _Ruled:
    """A column, its rule, and the table they are of."""

    shape: TableShape
    column: ColumnShape
    rule: ColumnRule

    @property
    def typed(self) -> Typed:
        return Typed(self.column.name, type_of(self.column, self.shape))

    def fault(self, what: str, do: str) -> Finding:
        return Finding(RuleUnfit(what, self._where, do))

    def warning(self, what: str, do: str) -> Finding:
        return Finding(RuleUnfit(what, self._where, do), "warning")

    @property
    def _where(self) -> str:
        return located(self.rule.where, f"{self.shape.table}.{self.column.name}")


def _of_table(transform: TableTransform, shape: TableShape) -> Iterator[Finding]:
    for rule in transform.rules:
        if not rule.is_pattern and rule.options.when_missing != "skip":
            yield from _of_named(transform, shape, rule)
    bare: list[str] = []
    for column in shape.columns:
        found = transform.rules_by_name(column, shape)
        for rule in found:
            yield from _of_column(_Ruled(shape, column, rule))
        if not found and not column.generated:
            bare.append(column.name)
            yield from _left_alone(transform, shape, column)
    if bare and transform.is_strict:
        yield Finding(uncovered(transform.table, bare, transform.where))


def _of_named(transform: TableTransform, shape: TableShape, rule: ColumnRule) -> Iterator[Finding]:
    """Columns that a rule names, and that are not there, or have no values of their own to read."""
    names = [column.name for column in shape.columns]
    for wanted in (rule.column, *rule.transformer.columns):
        if wanted not in names:
            error = missing(transform.table, wanted, rule)
            advice = f"{nearest(wanted, names)}; {error.do}"
            yield Finding(RuleUnfit(error.what, error.where, advice))
    for read in rule.transformer.columns:
        try:
            require_stored(shape, read)
        except RuleUnfit as error:
            yield Finding(error)


def _left_alone(
    transform: TableTransform, shape: TableShape, column: ColumnShape
) -> Iterator[Finding]:
    """A rule is for columns of that name, and not of that type: who wrote it may count on it."""
    typed = Typed(column.name, type_of(column, shape))
    for rule in transform.rules:
        if rule.fits(column.name) and (rule.is_lenient or may_hold_text(column, shape)):
            error = unfit_type(shape.table, typed, rule)
            what = f"{error.what}: its values pass as they are"
            yield Finding(RuleUnfit(what, error.where, error.do), "warning")
            return


def _of_column(ruled: _Ruled) -> Iterator[Finding]:
    rule, column, typed = ruled.rule, ruled.column, ruled.typed
    if column.generated:
        if not rule.is_pattern and not rule.keeps:
            what = "the column is generated: it is computed at the destination, from other columns"
            yield ruled.fault(
                what, "take the rule out, and have rules for the columns it is made of"
            )
        return
    if rule.keeps:
        return
    if not takes(rule, typed.type):
        yield Finding(unfit_type(ruled.shape.table, typed, rule))
        return
    if rule.is_pattern and typed.type.family == "unknown":
        what = f"{rule.name}: it cannot be known whether the type {column.type} takes its results"
        yield ruled.fault(what, f"add a rule for {column.name} itself, keep or another")
    for what, do in rule.transformer.complaints(typed.type):
        yield ruled.fault(f"{rule.name}: {what}", do)
    if rule.ignored:
        what = f"{rule.name}: {', '.join(rule.ignored)} of pgstream's has no effect here"
        yield ruled.warning(what, "take it out; results are drawn by value and salt")
    yield from _not_of_type(ruled)
    yield from _too_long(ruled)
    yield from _not_null(ruled)
    yield from _unique(ruled)
    yield from _in_key(ruled)
    yield from _checked(ruled)


def _not_of_type(ruled: _Ruled) -> Iterator[Finding]:
    """Results that the file says, and the column's type does not have."""
    kind = column_type(ruled.shape, ruled.column)
    is_known = True
    for text in ruled.rule.transformer.fixed_results:
        try:
            is_known &= require_value(spelled(text, ruled.typed.type), kind)
        except RuleUnfit as error:
            yield ruled.fault(f"{ruled.rule.name}: {error.what}", error.do)
            return
    if not is_known and ruled.typed.type.family != "text":
        what = f"{ruled.rule.name}: it is not checked whether the column's type, {ruled.column.type}, has such a value"
        yield ruled.warning(
            what, "try it in psql: the destination stops the table where it has not"
        )


def _too_long(ruled: _Ruled) -> Iterator[Finding]:
    longest = ruled.typed.type.longest
    if longest is None:
        return
    most = ruled.rule.transformer.longest(longest)
    if most is not None and most > longest and ruled.rule.options.on_error is OnError.STOP:
        what = f"{ruled.rule.name} gives up to {most} characters, the column holds {longest}"
        do = "set a shorter max_length, literal or domain, or take another transformer"
        yield ruled.fault(what, f"{do}; on_error: null makes NULL of what does not fit")


def _not_null(ruled: _Ruled) -> Iterator[Finding]:
    if not ruled.column.not_null:
        return
    if isinstance(ruled.rule.transformer, Null):
        what = "the rule makes the value NULL, and the column is NOT NULL"
        yield ruled.fault(what, "take literal instead")
    elif ruled.rule.options.on_error is OnError.NULL:
        what = (
            "a value that fails becomes NULL, and the column is NOT NULL: the sink would refuse it"
        )
        yield ruled.warning(what, "write on_error: stop")


def _unique(ruled: _Ruled) -> Iterator[Finding]:
    rule, shape = ruled.rule, ruled.shape
    if rule.options.allow_collisions:
        return
    unique = _unique_with(shape, ruled.column)
    is_null = isinstance(rule.transformer, Null)
    if unique and not is_null and rule.transformer.meetings is Collisions.LIKELY:
        what = f"{rule.name} can make two values equal, and {unique[0].name} is unique"
        do = "take hash, email, uuid or aes_siv, which keep values distinct; or write allow_collisions: true"
        yield ruled.fault(what, do)
        return
    # Elsewhere one NULL is not another.
    single = [each for each in _unique_with(shape, ruled.column) if _ONE_NULL in each.definition]
    if single and (made := _made_null(rule)):
        which, do = made
        alone = [each for each in single if not _other_columns(each, ruled.column)]
        what = f"{which} becomes NULL, and {(alone or single)[0].name} is UNIQUE NULLS NOT DISTINCT"
        do = f"{do}; or write allow_collisions: true"
        if alone:
            yield ruled.fault(what, do)
        else:
            # Other columns may keep the rows distinct, as those of a key do.
            yield ruled.warning(f"{what} with other columns: rows that differ in it alone meet", do)


def _made_null(rule: ColumnRule) -> tuple[str, str] | None:
    """Which values a rule makes NULL, and what to do against it."""
    if isinstance(rule.transformer, Null):
        return "every value", "take hash, which keeps values distinct"
    if isinstance(rule.transformer, Email) and rule.transformer.invalid_email_action == "null":
        return "a value that is no address", "write invalid_email_action: reject"
    if rule.options.on_error is OnError.NULL:
        return "a value that fails", "write on_error: stop"
    return None


def _other_columns(unique: ConstraintShape | IndexShape, column: ColumnShape) -> frozenset[int]:
    # Columns of INCLUDE are not among `columns`, and neither are those of expressions.
    return frozenset(unique.columns) - {column.id}


def _unique_with(shape: TableShape, column: ColumnShape) -> list[ConstraintShape | IndexShape]:
    """Constraints and indexes by which the column's values are unique, alone or with others."""
    unique: list[ConstraintShape | IndexShape] = [
        *(each for each in shape.constraints if each.kind in ("p", "u")),
        *(each for each in shape.indexes if each.is_unique),
    ]
    return [each for each in unique if column.id in (*each.columns, *each.used)]


def _in_key(ruled: _Ruled) -> Iterator[Finding]:
    key = ruled.shape.row_key
    if key is not None and ruled.column.id in key.columns:
        for what, do in key_complaints(ruled.rule):
            yield ruled.fault(what, do)
    elif key is None and not ruled.rule.transformer.is_repeatable:
        what = f"{ruled.rule.name} with generator: random on a table without a key: old rows are found by all values"
        yield ruled.fault(what, "write generator: deterministic, or give the table a key")
    elif key is None and not {Operation.INSERT, Operation.UPDATE} <= ruled.rule.options.operations:
        what = f"{ruled.rule.name} is for some operations only on a table without a key: old rows are found by all values"
        yield ruled.fault(what, "leave operations out, or give the table a key")


def _checked(ruled: _Ruled) -> Iterator[Finding]:
    for what, do in _checks_of(ruled.shape, ruled.column):
        yield ruled.warning(what, do)


def _checks_of(shape: TableShape, column: ColumnShape) -> Iterator[tuple[str, str]]:
    for each in shape.constraints:
        if each.kind == "c" and column.id in each.used:
            what = f"{each.name} checks the column: at the destination it checks the results"
            yield what, "see that they pass it, or drop it at the destination"


def _unreported(
    options: TransformOptions,
    table: TableName,
    shape: TableShape,
    transform: TableTransform | None,
) -> Iterator[Finding]:
    """Columns that may hold personal data and have no rule, where a file is meant to cover tables."""
    groups = [one for one in options.tables if one.concerns(table)]
    if not groups or groups[0].coverage != "report":
        return
    rules = TableTransform(table, tuple(rule for one in groups for rule in one.rules))
    bare = [
        column.name
        for column in shape.columns
        if not column.generated
        and may_hold_text(column, shape)
        and not (transform or rules).rules_by_name(column, shape)
    ]
    if bare:
        what = f"no rule covers {', '.join(bare)}: their values pass as they are"
        do = f"add rules, such as {bare[0]}: {{with: masking}}, or {bare[0]}: keep; coverage: strict makes sure"
        yield Finding(RuleUnfit(what, located(groups[0].where, str(table)), do), "warning")
