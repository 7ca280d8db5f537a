"""See that what is about to be read by its name holds rows itself, and is no view.

Whoever owns a table can drop it and make a view of its name, or make it one, whose functions would run as
penstock's role. Servers since August 2024 refuse that for a session that asks for it, as `connect_source` does.
On older ones the relation is held by a lock and looked at before it is read; what is left of the race there is an
owner who renames the whole schema in between, which no lock keeps him from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import sql

from penstock.table import as_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from penstock.table import TableName

    Connection = psycopg.Connection[Any]

# As they are now, also under an older snapshot: a view or a foreign table has neither.
_ARE_ORDINARY = """
SELECT bool_and(coalesce(pg_relation_filenode(o.oid), pg_partition_root(o.oid)::oid) IS NOT NULL)
FROM unnest(%s::text[], %s::text[]) AS t(schema_name, name)
CROSS JOIN LATERAL (SELECT to_regclass(format('%%I.%%I', t.schema_name, t.name)) AS oid) AS o
"""


def refuses_views(connection: Connection) -> bool:
    """Whether the server itself reads nothing but tables and sequences for this session."""
    row = connection.execute(
        "SELECT coalesce(current_setting('restrict_nonsystem_relation_kind', true), '') <> ''"
    ).fetchone()
    return row is not None and bool(row[0])


def are_ordinary(connection: Connection, names: Sequence[TableName]) -> bool:
    """Whether all of these are tables or sequences; held so until the caller's transaction ends.

    Raises:
        psycopg.Error: one is not there, or the role may not read it.
    """
    # Parsing a statement locks its relations, sequences as well, and runs nothing.
    listed = sql.SQL(", ").join(sql.SQL("ONLY {}").format(sql.Identifier(*name)) for name in names)
    connection.execute(sql.SQL("PREPARE penstock_held AS SELECT FROM {}").format(listed))
    connection.execute("DEALLOCATE penstock_held")
    row = connection.execute(_ARE_ORDINARY, as_columns(names)).fetchone()
    return row is not None and bool(row[0])
