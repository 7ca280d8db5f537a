"""Make room for tables that the target has not: many in one transaction, as the first copy finds them.

What is not as plain as that (a table that is there, was begun before, is locked by somebody, or is
refused) is left to be begun on its own.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from penstock.errors import SinkError
from penstock.failpoints import fault_point
from penstock.sinks.postgres.copy.columns import column_types, copied_columns, may_be_binary
from penstock.sinks.postgres.ddl.create import create_table
from penstock.sinks.postgres.ddl.free_sequences import have_sequences
from penstock.sinks.postgres.ddl.schemas import have_schemas
from penstock.sinks.postgres.ddl.user_types import have_types
from penstock.sinks.postgres.mapping.kept_names import NO_NAMES
from penstock.sinks.postgres.mapping.rivals import refuse_rivals
from penstock.sinks.postgres.mapping.target import (
    columns_of,
    find_relations,
    hold_creation,
    plan_found,
)
from penstock.sinks.postgres.mapping.target_shape import target_description
from penstock.sinks.postgres.state import copy_records as records
from penstock.table import TableName, as_columns

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from penstock.sinks.copying import Copy, CopyOrder
    from penstock.sinks.postgres.mapping.plan import TablePlan
    from penstock.sinks.postgres.mapping.table_mapping import TableMappings

    Connection = psycopg.Connection[Any]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NewTable:
    """A table that was made, without its key, and how rows go into it."""

    order: CopyOrder
    plan: TablePlan
    is_binary: bool
    oid: int  # of the target's table


def make_new_tables(
    connection: Connection, table_mappings: TableMappings, copy: Copy, orders: Sequence[CopyOrder]
) -> list[NewTable]:
    """Begin the copy of those of the tables that can be made, in one transaction.

    Whoever finds a table without its key must find, too, that we have made it so.

    Raises:
        psycopg.Error: none was made.
    """
    if not table_mappings.options.create_tables:
        return []
    owner = table_mappings.owner
    wanted = {order.table: order for order in orders}
    with connection.transaction():
        # Without waiting: who holds one of the rows may wait for another that is ours by now.
        held = connection.execute(records.CLAIM_NEW, (*owner, *as_columns(wanted))).fetchall()
        listed = [wanted[TableName(*row)] for row in held]
        hold_creation(connection)
        targets = [table_mappings.target(order.table) for order in listed]
        there = find_relations(connection, targets)
        _have_schemas(connection, owner, {target.schema for target in targets})
        made: dict[TableName, list[str]] = {}
        for order in listed:
            notes = None
            if table_mappings.target(order.table) not in there:
                notes = _make(connection, table_mappings, order)
            if notes is not None:
                fault_point("copy.after_create")
                made[order.table] = notes
        new = _plan(connection, table_mappings, [wanted[table] for table in made], made)
        if new:
            _record(connection, owner, copy, new)
    return new


def _have_schemas(connection: Connection, owner: tuple[str, str], names: Collection[str]) -> None:
    """Make them before their tables; where the role may not, each table is refused with the reason."""
    try:
        with connection.transaction():
            have_schemas(connection, owner, names)
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:
        _log.debug("schemas are not made: %s", error)


def _make(
    connection: Connection, table_mappings: TableMappings, order: CopyOrder
) -> list[str] | None:
    """What was left out of it, None when it was not made."""
    table_mapping = table_mappings.of(order.table)
    try:
        refuse_rivals(connection, table_mappings, order.table, table_mapping.target)
        made = target_description(order.shape, table_mapping)
        rules = table_mappings.options.expression_rules
        with connection.transaction():
            have_types(connection, table_mappings.owner, made.name, made.types, rules)
            have_sequences(connection, table_mappings.owner, made.name, made.sequences)
            return create_table(
                connection,
                made,
                table_mapping.target,
                None,
                with_key=not table_mapping.is_like_source,
                rules=rules,
            )
    except psycopg.OperationalError:
        raise
    except (psycopg.Error, SinkError):
        return None  # and on its own it is refused with the reason


def _plan(
    connection: Connection,
    table_mappings: TableMappings,
    orders: Sequence[CopyOrder],
    notes: Mapping[TableName, list[str]],
) -> list[NewTable]:
    found = find_relations(connection, [table_mappings.target(order.table) for order in orders])
    oids = [each.oid for each in found.values()]
    columns, types = columns_of(connection, oids), column_types(connection, oids)
    new: list[NewTable] = []
    for order in orders:
        there = found[table_mappings.target(order.table)]
        plan = plan_found(
            connection,
            table_mappings,
            order.table,
            order.shape,
            there,
            columns[there.oid],
            NO_NAMES,
            notes[order.table],
        )
        copied_columns(order, plan)
        is_binary = may_be_binary(types[there.oid], order, plan)
        new.append(NewTable(order, plan, is_binary, there.oid))
    return new


def _record(
    connection: Connection, owner: tuple[str, str], copy: Copy, new: Sequence[NewTable]
) -> None:
    orders = [each.order for each in new]
    shapes = [order.shape for order in orders]
    tables = as_columns(order.table for order in orders)
    connection.execute(
        records.BEGIN_NEW,
        (
            copy.copy_id,
            str(copy.lsn),
            *tables,
            [order.range_count for order in orders],
            [shape.id for shape in shapes],
            [shape.model_dump_json() for shape in shapes],
            [each.oid for each in new],
            *owner,
        ),
    )
    connection.execute(records.FORGET_RANGES_OF, (*owner, *tables))
