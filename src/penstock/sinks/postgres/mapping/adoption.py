"""Tables of the target that are somebody's own: of a source table's name, with rows that penstock has not brought.

They are not taken over in passing. A person says that they are meant: `adopt: true`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from psycopg import sql

from penstock.errors import SinkError, TargetTableOccupied, TargetTableUnfit
from penstock.sinks.postgres.connect import connect_target, target_errors
from penstock.sinks.postgres.state.objects import has_objects
from penstock.table import TableName, as_columns

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import psycopg

    from penstock.sinks.postgres.mapping.table_mapping import TableMappings

    Connection = psycopg.Connection[Any]

# So many tables are asked in one statement whether they hold rows: each is locked meanwhile, for reading.
_AT_ONCE = 200

# A view is not read: it would run functions of whoever has made it, as the sink's role.
_THERE = """
SELECT wanted.place::int, c.relkind IN ('r', 'p') AS is_table, EXISTS (SELECT FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attname = %s AND NOT a.attisdropped),
    has_table_privilege(c.oid, 'SELECT')
FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS wanted(schema, name, place)
JOIN pg_namespace n ON n.nspname = wanted.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
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
    connection: Connection, table_mappings: TableMappings, tables: Collection[TableName]
) -> list[SinkError]:
    """Those of a source's tables whose place at the target is taken, before anything is made.

    Raises:
        TargetObjectsForeign: penstock's own tables are somebody else's.
        psycopg.Error: the server went away.
    """
    known: set[TableName] = set()
    if has_objects(connection):
        rows = connection.execute(
            _KNOWN, (table_mappings.pipeline, table_mappings.source)
        ).fetchall()
        known = {TableName(schema, name) for schema, name in rows}
    asked = [
        (table, table_mappings.target(table)) for table in sorted(tables) if table not in known
    ]
    return [
        error
        for begin in range(0, len(asked), _AT_ONCE)
        for error in _occupied(connection, table_mappings, asked[begin : begin + _AT_ONCE])
    ]


def _occupied(
    connection: Connection,
    table_mappings: TableMappings,
    asked: Sequence[tuple[TableName, TableName]],
) -> list[SinkError]:
    """Those of some tables, in their order."""
    with connection.transaction():
        others, taken = _taken(connection, table_mappings, asked)
    made = _made_here(connection, table_mappings, [asked[place][1] for place in taken])
    found: dict[int, SinkError] = {place: no_table(*asked[place]) for place in others}
    found |= {place: occupied(*asked[place]) for place in taken if asked[place][1] not in made}
    return [found[place] for place in sorted(found)]


def _taken(
    connection: Connection,
    table_mappings: TableMappings,
    pairs: Sequence[tuple[TableName, TableName]],
) -> tuple[list[int], list[int]]:
    """Places where the target has something that is no table, and where it has a table with rows.

    Inside of a transaction: what is read was seen to be a table while nobody could replace it.
    """
    own, targets = table_mappings.options.source_id_column, [target for _, target in pairs]
    there = _read_there(connection, own, targets)
    held = [targets[each.place] for each in there if each.is_table and each.may_read]
    if held:
        _hold(connection, held)
        there = _read_there(connection, own, targets)
    asked = [
        each
        for each in there
        if each.is_table
        and targets[each.place] in held
        and not table_mappings.adopts(pairs[each.place][0])
    ]
    others = [each.place for each in there if not each.is_table]
    return others, _with_rows(connection, table_mappings, targets, asked)


def _with_rows(
    connection: Connection,
    table_mappings: TableMappings,
    targets: Sequence[TableName],
    asked: Sequence[_There],
) -> list[int]:
    """Places of those that hold rows which would be this source's. One statement for all."""
    own = table_mappings.options.source_id_column
    queries = [
        sql.SQL("SELECT {} WHERE EXISTS (SELECT FROM {} t WHERE {})").format(
            sql.Literal(each.place),
            sql.Identifier(*targets[each.place]),
            _ours(table_mappings, own if each.has_column else None),
        )
        for each in asked
    ]
    if not queries:
        return []
    rows = connection.execute(sql.SQL(" UNION ALL ").join(queries)).fetchall()
    return sorted(place for (place,) in rows)


class _There(NamedTuple):
    """What has the name of a target, by its place among those that were asked for."""

    place: int
    is_table: bool
    has_column: bool  # the one that identifies sources
    may_read: bool


def _read_there(
    connection: Connection, own: str | None, targets: Sequence[TableName]
) -> list[_There]:
    rows = connection.execute(_THERE, (own or "", *as_columns(targets)))
    return [_There(place - 1, *others) for place, *others in rows]


def _hold(connection: Connection, targets: Collection[TableName]) -> None:
    """Have nobody drop or replace them until the transaction ends. Readers and writers go on."""
    named = sql.SQL(", ").join(sql.Identifier(*target) for target in targets)
    connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(named))


def find_occupied(table_mappings: TableMappings, tables: Collection[TableName]) -> list[SinkError]:
    """The same over a connection of its own.

    Raises:
        SinkError: the target cannot be asked.
    """
    dsn = table_mappings.options.url
    with connect_target(dsn, "penstock check") as connection, target_errors(dsn):
        return occupied_tables(connection, table_mappings, tables)


def refuse_occupied(
    connection: Connection,
    table_mappings: TableMappings,
    table: TableName,
    target: TableName,
    *,
    ruled_as: TableName | None = None,
) -> None:
    """See that a table that is there may be used for one that is new to this pipeline.

    Raises:
        TargetTableOccupied: it holds rows, and nobody has said that they are meant.
        TargetTableUnfit: it is no table.
        psycopg.Error: it lacks the column that identifies sources, say.
    """
    if table_mappings.adopts(ruled_as or table) or _made_here(connection, table_mappings, [target]):
        return
    ours = _ours(table_mappings, table_mappings.options.source_id_column)
    query = sql.SQL("SELECT EXISTS (SELECT FROM {} t WHERE {})")
    with connection.transaction():
        _hold(connection, [target])
        if any(not each.is_table for each in _read_there(connection, None, [target])):
            raise no_table(table, target)
        row = connection.execute(query.format(sql.Identifier(*target), ours)).fetchone()
    if row == (True,):
        raise occupied(table, target)


def holds_more(
    connection: Connection, table_mappings: TableMappings, target: TableName, row_count: int
) -> bool:
    """Whether a table holds more of this source's rows than so many, which a copy has brought.

    Raises:
        psycopg.Error: it lacks the column that identifies sources, say.
    """
    ours = _ours(table_mappings, table_mappings.options.source_id_column)
    query = sql.SQL("SELECT count(*) > {} FROM {} t WHERE {}")
    found = connection.execute(query.format(row_count, sql.Identifier(*target), ours))
    return found.fetchone() == (True,)


def _made_here(
    connection: Connection, table_mappings: TableMappings, targets: Collection[TableName]
) -> set[TableName]:
    """Those of the target's tables that this pipeline has made, for whichever one of a source's."""
    if not targets or not has_objects(connection):
        return set()
    rows = connection.execute(_MADE_HERE, (table_mappings.pipeline, *as_columns(targets)))
    return {TableName(schema, name) for schema, name in rows}


def _ours(table_mappings: TableMappings, own: str | None) -> sql.Composable:
    """Rows that would be this source's. Others' are nobody's concern here: they are not touched."""
    if own is None:
        return sql.SQL("true")
    # Without a cast: the table is anybody's, and the owner of a type may have made its casts. What
    # concat calls came with the server. It leaves the blanks that fill a char(n) up.
    return sql.SQL("rtrim(concat(t.{})) = {}").format(
        sql.Identifier(own), sql.Literal(table_mappings.source)
    )


def no_table(table: TableName, target: TableName) -> TargetTableUnfit:
    """The error of a table in whose place the target has something else."""
    return TargetTableUnfit(
        f"{target} is no table at the target", str(table), "rename it, or choose another schema"
    )


def occupied(table: TableName, target: TableName) -> TargetTableOccupied:
    """The error of a table whose place at the target is taken."""
    return TargetTableOccupied(
        f"{target} at the target holds rows, and this pipeline has not made it",
        str(table),
        f"if it is meant for the source's rows (filled by hand, or by penstock before a teardown), set adopt: true"
        f" in tables: of the sink for {table}, or on the sink for all, and start again; else rename {target},"
        " empty it, or name another target",
    )
