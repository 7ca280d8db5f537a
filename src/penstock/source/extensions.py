"""Which extensions of the source tables are made with: types of columns, operators of indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.source.connect import source_errors
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Collection

    import psycopg

# An array or a domain is its element's or its base's.
_USED = """
WITH chosen AS (
    SELECT c.oid, n.nspname, c.relname
    FROM unnest(%s::text[], %s::text[]) AS t(schema_name, name)
    JOIN pg_namespace n ON n.nspname = t.schema_name
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.name
), typed AS (
    SELECT chosen.oid AS relation, unnest(ARRAY[t.oid, t.typelem, t.typbasetype]) AS type
    FROM chosen JOIN pg_attribute a ON a.attrelid = chosen.oid AND a.attnum > 0 AND NOT a.attisdropped
    JOIN pg_type t ON t.oid = a.atttypid
), used AS (
    SELECT relation, 'pg_type'::regclass AS classid, type AS objid FROM typed
    UNION
    SELECT i.indrelid, 'pg_opclass'::regclass, unnest(i.indclass::oid[])
    FROM pg_index i WHERE i.indrelid IN (SELECT oid FROM chosen)
)
SELECT e.extname, chosen.nspname, chosen.relname FROM used
JOIN chosen ON chosen.oid = used.relation
JOIN pg_depend d ON d.classid = used.classid AND d.objid = used.objid AND d.deptype = 'e'
 AND d.refclassid = 'pg_extension'::regclass
JOIN pg_extension e ON e.oid = d.refobjid
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""


def read_extensions(
    connection: psycopg.Connection[Any], tables: Collection[TableName]
) -> dict[str, list[TableName]]:
    """Extensions, each with the tables that need it."""
    columns = ([table.schema for table in tables], [table.name for table in tables])
    with source_errors(connection):
        rows = connection.execute(_USED, columns).fetchall()
    found: dict[str, list[TableName]] = {}
    for extension, schema, name in rows:
        found.setdefault(extension, []).append(TableName(schema, name))
    return found
