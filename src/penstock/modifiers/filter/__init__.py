"""`filter:`: which tables a sink has, and which of their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import ModifierError, RuleUnfit
from penstock.findings import Finding
from penstock.modifiers.effects import Effect
from penstock.modifiers.filter.options import FilterOptions
from penstock.modifiers.filter.rows import NoRows, RowFilter, StructuredMatcher
from penstock.modifiers.lost import lost_table
from penstock.sql.text import SqlText

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from penstock.modifiers.filter.rows import Matcher
    from penstock.modifiers.modifier import TableModifier
    from penstock.schema.shape import TableShape
    from penstock.table import TableName

OPTIONS = FilterOptions


def modifier_for(options: FilterOptions, table: TableName) -> TableModifier | None:
    """What a filter does to the rows of a table."""
    if options.tables is not None:
        return NoRows() if options.tables.has_no_rows_of(table) else None
    if options.table is None or not options.table.matches(table):
        return None
    if options.where is None:
        return NoRows()
    return RowFilter(_matcher(options), options.operations)


def effects(options: FilterOptions, shape: TableShape) -> Iterator[Effect]:
    """Which rows are left out."""
    modifier = modifier_for(options, shape.table)
    if modifier is not None:
        is_own = options.table is None or options.table.is_outright
        yield Effect("filter", 0, modifier, is_own)


def _matcher(options: FilterOptions) -> Matcher:
    if isinstance(options.where, SqlText):
        from penstock.sql.expression import SqlMatcher

        return SqlMatcher(options.where)
    return StructuredMatcher(options.where)


def findings(options: FilterOptions, shapes: Mapping[TableName, TableShape]) -> Iterator[Finding]:
    """What has no effect, columns that are not there, values that cannot be of their type."""
    if options.has_idle_operations:
        what = "operations has no effect: tables, and rows: none, are for all changes"
        do = "take it out, or write table: and where:"
        yield Finding(RuleUnfit(what, "", do), "warning")
    for table, shape in shapes.items():
        modifier = modifier_for(options, table)
        if not isinstance(modifier, RowFilter):
            continue
        try:
            modifier.with_shape(shape)
        except ModifierError as error:
            where = error.where if str(table) in error.where else f"{table} {error.where}".strip()
            yield Finding(type(error)(error.what, where, error.do))


def lost(options: FilterOptions, shapes: Collection[TableShape]) -> Iterator[Finding]:
    """Tables that are not followed."""
    choice = options.tables
    named = (*choice.include, *choice.exclude, *choice.schema_only) if choice else ()
    for rule in (*named, options.table):
        if rule is not None:
            yield from lost_table(rule, shapes)
