"""Which columns a copy brings, into which of the target, and what penstock adds of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import TargetTableUnfit
from penstock.sinks.postgres.copy.binary_types import BINARY_TYPES
from penstock.sinks.postgres.mapping.target_shape import FIRST_INSTANT, LAST_INSTANT

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import psycopg

    from penstock.sinks.copying import CopyOrder
    from penstock.sinks.postgres.mapping.plan import TablePlan

_TYPES = """
SELECT a.attrelid::int8, a.attname, a.atttypid::int8 FROM pg_attribute a
WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
"""


def copied_columns(order: CopyOrder, plan: TablePlan) -> dict[str, str]:
    """What is copied, and into which column: what the stream would bring, where there is a place.

    Raises:
        TargetTableUnfit: there is none.
    """
    columns = {
        column.name: there.name
        for column in order.shape.columns
        if not column.generated and (there := plan.column(column.name)) is not None
    }
    if not columns:
        raise TargetTableUnfit(
            f"{plan.target} has none of the columns that are copied",
            str(order.table),
            f"add columns to {plan.target}, or fix `columns:` of the sink",
        )
    return columns


def structured_columns(order: CopyOrder, plan: TablePlan) -> set[str]:
    """Columns of the target that indexes and constraints may be made of: the generated ones, too."""
    columns = {column.name for column in plan.columns} | set(own_values(plan))
    if plan.wanted is None:  # else they are not delivered
        columns |= {column.name for column in order.shape.columns if column.generated}
    return columns


def own_values(plan: TablePlan) -> dict[str, tuple[str, str]]:
    """Columns that penstock fills itself: type and value, which is the same in every copied row."""
    values = {each.name: (each.type, each.value) for each in plan.fixed}
    if plan.history is not None:
        values[plan.history.start] = (plan.history.start_type, FIRST_INSTANT)
        values[plan.history.end] = (plan.history.end_type, LAST_INSTANT)
        values[plan.history.deleted] = ("boolean", "false")
    return values


def column_types(
    connection: psycopg.Connection[Any], oids: Collection[int]
) -> dict[int, dict[str, int]]:
    """For each table at the target the types of its columns, by their names."""
    types: dict[int, dict[str, int]] = {oid: {} for oid in oids}
    for oid, name, type_oid in connection.execute(_TYPES, (list(oids),)):
        types[oid][name] = type_oid
    return types


def may_be_binary(there: Mapping[str, int], order: CopyOrder, plan: TablePlan) -> bool:
    """Whether values may come in their binary form, which says nothing about their type.

    `there`: the types of the target's columns.
    """
    if order.as_text:
        return False
    here = {column.name: column.type_id for column in order.shape.columns}
    columns = copied_columns(order, plan)
    return all(
        here[name] == there[called] in BINARY_TYPES for name, called in columns.items()
    ) and all(there[name] in BINARY_TYPES for name in own_values(plan))
