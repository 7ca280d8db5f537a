"""Where the rows of tables lie: the heaps of each, with their size, and whether they can be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg.rows import namedtuple_row

from penstock.source.connect import source_errors
from penstock.table import TableName, as_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    Connection = psycopg.Connection[Any]

# A partitioned table has no rows of its own, its leaves have; of an inheritance tree only the
# table itself is asked for. Foreign leaves hold rows of another server. What was dropped since the
# snapshot is still in its catalog, but has no size and no partitions.
_HEAPS = """
SELECT t.schema_name, t.table_name, ln.nspname AS heap_schema,
       l.relname AS heap_name, l.relkind::text AS heap_kind,
       coalesce(has_schema_privilege(ln.oid, 'USAGE') AND has_table_privilege(l.oid, 'SELECT'),
                false) AS is_readable,
       pg_relation_size(l.oid) IS NULL AND l.relkind IN ('r', 'p') AS is_gone,
       CASE WHEN l.relkind = 'r'
            THEN coalesce(pg_relation_size(l.oid), 0) / current_setting('block_size')::int
            ELSE 0 END AS page_count,
       current_setting('block_size')::int AS page_bytes
FROM unnest(%s::text[], %s::text[]) AS t(schema_name, table_name)
JOIN pg_namespace n ON n.nspname = t.schema_name
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.table_name
CROSS JOIN LATERAL (
    SELECT relid FROM pg_partition_tree(c.oid) WHERE c.relkind = 'p' AND isleaf
    UNION ALL SELECT c.oid WHERE c.relkind <> 'p' OR pg_relation_size(c.oid) IS NULL
) AS leaf(relid)
JOIN pg_class l ON l.oid = leaf.relid JOIN pg_namespace ln ON ln.oid = l.relnamespace
ORDER BY 1, 2, 4, 5
"""


@dataclass(frozen=True)
class HeapSize:
    """One relation that holds rows of a table."""

    table: TableName
    relation: TableName
    kind: str  # as in pg_class.relkind
    is_readable: bool
    page_count: int
    page_bytes: int
    is_gone: bool = False  # dropped since the snapshot


def read_heaps(connection: Connection, tables: Sequence[TableName]) -> list[HeapSize]:
    """The heaps of all the tables that are there, in one query."""
    with source_errors(connection), connection.cursor(row_factory=namedtuple_row) as cursor:
        rows: list[Any] = cursor.execute(_HEAPS, as_columns(tables)).fetchall()
    return [
        HeapSize(
            TableName(row.schema_name, row.table_name),
            TableName(row.heap_schema, row.heap_name),
            row.heap_kind,
            row.is_readable,
            row.page_count,
            row.page_bytes,
            row.is_gone,
        )
        for row in rows
    ]
