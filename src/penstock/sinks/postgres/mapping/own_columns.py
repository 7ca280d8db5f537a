"""Columns of a target table that penstock fills itself: which source a row is from, when it was the current version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from penstock.errors import TargetTableUnfit
from penstock.sinks.postgres.mapping.plan import FixedColumn, HistoryPlan

if TYPE_CHECKING:
    from penstock.schema.shape import TableShape
    from penstock.sinks.postgres.mapping.plan import TablePlan, TargetColumn
    from penstock.sinks.postgres.mapping.table_mapping import TableMapping
    from penstock.sinks.postgres.options import PostgresOptions
    from penstock.table import TableName

_INSTANTS = ("timestamp with time zone", "timestamp without time zone", "date")

# What allows each of these values only once: constraints, and unique indexes over all rows.
_UNIQUE = """
SELECT c.relname, ARRAY(
    SELECT a.attname::text FROM unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) AS k(number)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
JOIN pg_class t ON t.oid = i.indrelid JOIN pg_namespace n ON n.oid = t.relnamespace
WHERE n.nspname = %s AND t.relname = %s AND i.indisunique AND i.indpred IS NULL
ORDER BY c.relname
"""

# Columns of the primary key that are filled by whoever inserts, or not at all.
_TO_BE_FILLED = """
SELECT a.attname::text FROM pg_index i JOIN pg_class t ON t.oid = i.indrelid
JOIN pg_namespace n ON n.oid = t.relnamespace
JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = ANY (i.indkey::int2[])
WHERE n.nspname = %s AND t.relname = %s AND i.indisprimary
  AND NOT a.atthasdef AND a.attidentity = ''
"""


def fixed_columns(
    connection: psycopg.Connection[Any],
    table_mapping: TableMapping,
    source_id: str,
    target: TableName,
    columns: tuple[TargetColumn, ...],
) -> tuple[FixedColumn, ...]:
    """What every row of this source says of itself.

    Raises:
        TargetTableUnfit: there is no such column, or it cannot hold the source's id as it is.
    """
    name = table_mapping.source_id_column
    if name is None:
        return ()
    found = next((column for column in columns if column.name == name), None)
    if found is None:
        raise TargetTableUnfit(
            f"{target} has no column {name} to write to, which is to say which source a row is from",
            str(target),
            f"ALTER TABLE {target} ADD COLUMN {name} text, and make it a part of the key",
        )
    if not _holds(connection, found.stage_type, source_id):
        raise TargetTableUnfit(
            f"column {name} is {found.stage_type}, but the source is called {source_id}",
            str(target),
            f"give the source a name in `sources:` that {name} can hold, or make {name} text",
        )
    return (FixedColumn(name, found.stage_type, source_id, found.equals),)


def _holds(connection: psycopg.Connection[Any], kind: str, text: str) -> bool:
    """Whether a text of this type is still the same text: a cast may cut it off."""
    query = sql.SQL("SELECT {0}::{1}::text = {0}").format(sql.Literal(text), sql.SQL(kind))
    try:
        with connection.transaction():
            row = connection.execute(query).fetchone()
    except psycopg.DataError:
        return False
    return row == (True,)


def history_columns(
    connection: psycopg.Connection[Any],
    table_mapping: TableMapping,
    source: TableName,
    target: TableName,
    columns: tuple[TargetColumn, ...],
) -> HistoryPlan | None:
    """The columns that say when a row was valid."""
    if table_mapping.history is None:
        return None
    names = table_mapping.history
    kinds = {column.name: column.stage_type for column in columns}
    missing = [name for name in (names.start, names.end, names.deleted) if name not in kinds]
    if missing:
        raise TargetTableUnfit(
            f"{target} has no column {', '.join(missing)}, which a history has",
            str(source),
            f"ALTER TABLE {target} ADD COLUMN {names.start} timestamptz NOT NULL DEFAULT"
            f" '1900-01-01 00:00:00+00', and {names.end} (9999-01-01), {names.deleted} (boolean) likewise",
        )
    for name, wanted in (
        (names.start, _INSTANTS),
        (names.end, _INSTANTS),
        (names.deleted, ("boolean",)),
    ):
        if kinds[name] not in wanted:
            raise TargetTableUnfit(
                f"column {name} of {target} is {kinds[name]}, wanted {wanted[0]}",
                str(source),
                f"ALTER TABLE {target} ALTER {name} TYPE {wanted[0]}",
            )
    for index, unique in connection.execute(_UNIQUE, target):
        if not {names.start, names.end} & set(unique):
            raise TargetTableUnfit(
                f"{index} of {target} allows one row for ({', '.join(unique)}), but a history has many",
                str(source),
                f"make it unique together with {names.end}, or drop it",
            )
    return HistoryPlan(names.start, kinds[names.start], names.end, kinds[names.end], names.deleted)


def refuse_unfilled(
    connection: psycopg.Connection[Any],
    plan: TablePlan,
    options: PostgresOptions,
    shape: TableShape,
) -> None:
    """See that a table which was made to hold more than one row of a key is not taken for a clone.

    Raises:
        TargetTableUnfit: it is a history, or identifies sources, and the options do not say so.
    """
    delivered = {each.name for column in shape.columns if (each := plan.column(column.name))}
    names = options.history_columns
    own = {names.start, names.end, names.deleted}
    there = {column.name for column in plan.columns} | set(plan.others)
    if plan.history is None and own <= there - delivered:
        raise TargetTableUnfit(
            f"{plan.target} is a history (it has {', '.join(sorted(own))}), but not in the pipeline file",
            str(plan.source),
            "say kind: history of it, or give its rows another target",
        )
    filled = delivered | {each.name for each in plan.fixed} | (own if plan.history else set())
    unfilled = [
        name for (name,) in connection.execute(_TO_BE_FILLED, plan.target) if name not in filled
    ]
    if unfilled:
        raise TargetTableUnfit(
            f"nothing fills {', '.join(unfilled)}, which is a part of the key of {plan.target}",
            str(plan.source),
            "set source_id_column if it distinguishes sources; else give it a default, or take it out of"
            " the key",
        )
