"""Tables of the target that are somebody's own: of a source table's name, with rows that penstock has not brought.

They are not taken over in passing. A person says that they are meant: `adopt: true`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import sql

from penstock.errors import TargetTableOccupied
from penstock.sinks.postgres.connect import connect_target, target_errors
from penstock.sinks.postgres.objects import has_objects
from penstock.table import TableName, as_columns

if TYPE_CHECKING:
    from collections.abc import Collection

    import psycopg

    from penstock.sinks.postgres.landing import Landings

    Connection = psycopg.Connection[Any]

# So many tables are asked in one statement whether they hold rows: each is locked meanwhile, for reading.
_AT_ONCE = 200

_THERE = """
SELECT wanted.place::int, EXISTS (SELECT FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attname = %s AND NOT a.attisdropped)
FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS wanted(schema, name, place)
JOIN pg_namespace n ON n.nspname = wanted.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name
WHERE c.relkind IN ('r', 'p') AND has_table_privilege(c.oid, 'SELECT')
ORDER BY 1
"""

_KNOWN = """
SELECT schema_name, table_name FROM penstock.tables
WHERE pipeline = %s AND source = %s AND (filled OR made_by_us)
"""

# As a document: the tables of an older penstock lack the column.
_MADE_HERE = """
SELECT n.nspname, c.relname FROM penstock.tables t
JOIN pg_class c ON c.oid::bigint = (to_jsonb(t) ->> 'target_oid')::bigint
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE t.pipeline = %s AND (n.nspname, c.relname) IN
    (SELECT * FROM unnest(%s::text[], %s::text[]))
"""


def occupied_tables(
    connection: Connection, landings: Landings, tables: Collection[TableName]
) -> list[TargetTableOccupied]:
    """Those of a source's tables whose place at the target is taken, before anything is made.

    Raises:
        TargetObjectsForeign: penstock's own tables are somebody else's.
        psycopg.Error: the server went away.
    """
    known: set[TableName] = set()
    if has_objects(connection):
        rows = connection.execute(_KNOWN, (landings.pipeline, landings.source)).fetchall()
        known = {TableName(schema, name) for schema, name in rows}
    asked = [table for table in sorted(tables) if table not in known and not landings.adopts(table)]
    targets = [landings.target(table) for table in asked]
    own = landings.options.source_id_column
    there = connection.execute(_THERE, (own or "", *as_columns(targets))).fetchall()
    taken: list[int] = []
    for begin in range(0, len(there), _AT_ONCE):
        part = there[begin : begin + _AT_ONCE]
        queries = [
            sql.SQL("SELECT {} WHERE EXISTS (SELECT FROM {} t WHERE {})").format(
                sql.Literal(place),
                sql.Identifier(*targets[place - 1]),
                _ours(landings, own if has_column else None),
            )
            for place, has_column in part
        ]
        rows = connection.execute(sql.SQL(" UNION ALL ").join(queries)).fetchall()
        taken += sorted(row[0] - 1 for row in rows)
    made = _made_here(connection, landings, [targets[place] for place in taken])
    return [occupied(asked[place], targets[place]) for place in taken if targets[place] not in made]


def find_occupied(landings: Landings, tables: Collection[TableName]) -> list[TargetTableOccupied]:
    """The same over a connection of its own.

    Raises:
        SinkError: the target cannot be asked.
    """
    dsn = landings.options.url
    with connect_target(dsn, "penstock check") as connection, target_errors(dsn):
        return occupied_tables(connection, landings, tables)


def refuse_occupied(
    connection: Connection,
    landings: Landings,
    table: TableName,
    target: TableName,
    *,
    ruled_as: TableName | None = None,
) -> None:
    """See that a table that is there may be used for one that is new to this pipeline.

    Raises:
        TargetTableOccupied: it holds rows, and nobody has said that they are meant.
        psycopg.Error: it lacks the column that tells sources apart, say.
    """
    if landings.adopts(ruled_as or table) or _made_here(connection, landings, [target]):
        return
    ours = _ours(landings, landings.options.source_id_column)
    query = sql.SQL("SELECT EXISTS (SELECT FROM {} t WHERE {})")
    row = connection.execute(query.format(sql.Identifier(*target), ours)).fetchone()
    if row == (True,):
        raise occupied(table, target)


def _made_here(
    connection: Connection, landings: Landings, targets: Collection[TableName]
) -> set[TableName]:
    """Those of the target's tables that this pipeline has made, for whichever one of a source's."""
    if not targets or not has_objects(connection):
        return set()
    rows = connection.execute(_MADE_HERE, (landings.pipeline, *as_columns(targets)))
    return {TableName(schema, name) for schema, name in rows}


def _ours(landings: Landings, own: str | None) -> sql.Composable:
    """Rows that would be this source's. Others' are nobody's concern here: they are not touched."""
    if own is None:
        return sql.SQL("true")
    return sql.SQL("t.{}::text = {}").format(sql.Identifier(own), sql.Literal(landings.source))


def occupied(table: TableName, target: TableName) -> TargetTableOccupied:
    """The error of a table whose place at the target is taken."""
    return TargetTableOccupied(
        f"{target} at the target holds rows, and this pipeline has not made it",
        str(table),
        f"if it is meant for the source's rows (filled by hand, or by penstock before a teardown), set adopt: true"
        f" in tables: of the sink for {table}, or on the sink for all, and start again; else rename {target},"
        " empty it, or name another target",
    )
