"""Which columns a copy brings, into which of the target, and what penstock adds of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import TargetTableUnfit
from penstock.sinks.postgres.binarytypes import BINARY_TYPES
from penstock.sinks.postgres.landed import FIRST_INSTANT, LAST_INSTANT
from penstock.sinks.postgres.target import find_table

if TYPE_CHECKING:
    import psycopg

    from penstock.sinks.copying import CopyOrder
    from penstock.sinks.postgres.plan import TablePlan

_TYPES = """
SELECT a.attname, a.atttypid::int FROM pg_attribute a
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
"""


def copied_columns(order: CopyOrder, plan: TablePlan) -> dict[str, str]:
    """What is copied, and into which column: what the stream would bring, where there is a place.

    Raises:
        TargetTableUnfit: there is none.
    """
    columns = {
        column.name: there.name
        for column in order.description.columns
        if not column.generated and (there := plan.column(column.name)) is not None
    }
    if not columns:
        raise TargetTableUnfit(
            f"{plan.target} has none of the columns that are copied",
            str(order.table),
            f"add columns to {plan.target}, or mend `columns:` of the sink",
        )
    return columns


def structured_columns(order: CopyOrder, plan: TablePlan) -> set[str]:
    """Columns of the target that indexes and constraints may be made of: the generated ones, too."""
    columns = {column.name for column in plan.columns} | set(own_values(plan))
    if plan.wanted is None:  # else they are not delivered
        columns |= {column.name for column in order.description.columns if column.generated}
    return columns


def own_values(plan: TablePlan) -> dict[str, tuple[str, str]]:
    """Columns that penstock fills itself: type and value, which is the same in every copied row."""
    values = {each.name: (each.type, each.value) for each in plan.fixed}
    if plan.history is not None:
        values[plan.history.start] = (plan.history.start_type, FIRST_INSTANT)
        values[plan.history.end] = (plan.history.end_type, LAST_INSTANT)
        values[plan.history.deleted] = ("boolean", "false")
    return values


def may_be_binary(connection: psycopg.Connection[Any], order: CopyOrder, plan: TablePlan) -> bool:
    """Whether values may come in their binary form, which says nothing about their type."""
    found = find_table(connection, plan.target)
    there: dict[str, int] = dict(connection.execute(_TYPES, (found.oid,)).fetchall())
    here = {column.name: column.type_oid for column in order.description.columns}
    columns = copied_columns(order, plan)
    return all(
        here[name] == there[called] in BINARY_TYPES for name, called in columns.items()
    ) and all(there[name] in BINARY_TYPES for name in own_values(plan))
