"""Finish many small tables whose rows are all there, in one transaction: keys, indexes, the record.

What cannot be finished so (rows in a shadow table, a table that was begun anew, is locked, or lacks a
range) is left to be finished on its own.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from penstock.sinks.postgres.copy.columns import structured_columns
from penstock.sinks.postgres.ddl.create import complete_columns
from penstock.sinks.postgres.ddl.structure import add_indexes, add_key, find_all
from penstock.sinks.postgres.state import copy_records as records
from penstock.table import TableName, as_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.schema.description import TableDescription, TableStructure
    from penstock.sinks.copying import Copy, CopyOrder
    from penstock.sinks.postgres.ddl.structure import Found
    from penstock.sinks.postgres.mapping.plan import TablePlan
    from penstock.sinks.postgres.options import PostgresOptions

    Connection = psycopg.Connection[Any]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WholeTable:
    """A table whose ranges have all arrived, and what is to be made of it."""

    order: CopyOrder
    plan: TablePlan
    made: TableDescription  # the table as it was to be made
    structure: TableStructure


def _held(
    connection: Connection, owner: tuple[str, str], copy: Copy, tables: Sequence[WholeTable]
) -> list[tuple[WholeTable, bool]]:
    """Those of the tables of which all has arrived and that are held now; whether penstock made each."""
    names = as_columns(each.order.table for each in tables)
    # Without waiting: who holds one of the rows may wait for another that is ours by now.
    rows = connection.execute(records.STAND_TOGETHER, (*owner, *names, copy.copy_id)).fetchall()
    made_by_us = {TableName(schema, name): is_ours for schema, name, is_ours in rows}
    recorded = connection.execute(records.RECORDED_OF, (*owner, *names, copy.copy_id))
    arrived = {TableName(schema, name): count for schema, name, count in recorded}
    return [
        (each, made_by_us[each.order.table])
        for each in tables
        if each.order.table in made_by_us
        and arrived.get(each.order.table, 0) == each.order.range_count
    ]


def finish_together(
    connection: Connection,
    owner: tuple[str, str],
    copy: Copy,
    tables: Sequence[WholeTable],
    options: PostgresOptions,
) -> set[TableName]:
    """Those of the tables that may catch up now.

    Raises:
        psycopg.Error: none of them may.
    """
    notes: dict[TableName, list[str]] = {}
    with connection.transaction():
        connection.execute("SET LOCAL synchronous_commit = on")
        whole = _held(connection, owner, copy, tables)
        found = find_all(connection, [each.plan.target for each, _ in whole])
        for each, is_ours in whole:
            made = _try(connection, each, found[each.plan.target], options) if is_ours else []
            if made is not None:
                notes[each.order.table] = made
        done = as_columns(notes)
        lines = ["\n".join(made) or None for made in notes.values()]
        values = (str(copy.lsn), options.create_indexes, *done, lines, *owner, copy.copy_id, *owner)
        connection.execute(records.FINISH_TOGETHER, values)
        connection.execute(records.FORGET_RANGES_OF, (*owner, *done))
    for table, made in notes.items():
        for note in made:
            _log.warning("%s: %s", table, note)
    return set(notes)


def _try(
    connection: Connection, each: WholeTable, there: Found, options: PostgresOptions
) -> list[str] | None:
    """What `_make` says; None where it is refused, and refused on its own, with the reason."""
    try:
        # Nothing of it stays when its key is refused.
        with connection.transaction():
            return _make(connection, each, there, options)
    except psycopg.OperationalError:
        raise
    except psycopg.Error:
        return None


def _make(
    connection: Connection, each: WholeTable, there: Found, options: PostgresOptions
) -> list[str]:
    """Key, indexes and constraints; a line for each thing that the table goes without."""
    target, rules = each.plan.target, options.expression_rules
    notes = complete_columns(connection, each.made, target, rules)
    add_key(connection, target, each.structure, there)
    if options.create_indexes:
        columns = structured_columns(each.order, each.plan)
        notes += add_indexes(connection, target, each.structure, columns, rules, there)
    return notes
