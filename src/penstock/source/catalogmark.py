"""Whether the source's catalog may have changed since it was last read; cheap, however many tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.source.connect import source_errors

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[Any]

# The same snapshot sees the same rows. Of an idle source it stays the same.
_SNAPSHOT = "SELECT pg_current_snapshot()::text"

# Each statement that changes what is followed, or how, makes rows of these anew.
_CATALOG = """
SELECT count(*), sum(hashtextextended(row, 0))::text FROM (
    SELECT concat_ws(' ', 'c', oid, xmin) FROM pg_class
    WHERE relkind IN ('r', 'p') AND relpersistence <> 't' AND oid >= 16384
    UNION ALL SELECT concat_ws(' ', 'i', indexrelid, xmin) FROM pg_index WHERE indrelid >= 16384
    UNION ALL SELECT concat_ws(' ', 'n', oid, xmin) FROM pg_namespace
    WHERE nspname !~ '^pg_'
    UNION ALL SELECT concat_ws(' ', 'h', inhrelid, xmin) FROM pg_inherits
    UNION ALL SELECT concat_ws(' ', 'p', oid, xmin) FROM pg_publication
    UNION ALL SELECT concat_ws(' ', 'r', oid, xmin) FROM pg_publication_rel
    UNION ALL SELECT concat_ws(' ', 'd', objoid, xmin) FROM pg_description
    WHERE classoid = 'pg_publication'::regclass
) AS marks(row)
"""


class CatalogMark(NamedTuple):
    """What the catalog was like. Read it before the catalog itself."""

    snapshot: str
    catalog: tuple[int, str]


def read_catalog_mark(connection: Connection, before: CatalogMark | None = None) -> CatalogMark:
    """The mark of now; its `catalog` is that of `before` where nothing has changed.

    Not seen are what roles may do and how large tables are.

    Raises:
        SourceError: or the subclass that says why.
    """
    with source_errors(connection):
        row = connection.execute(_SNAPSHOT).fetchone()
        assert row is not None
        if before is not None and before.snapshot == row[0]:
            return before
        found = connection.execute(_CATALOG).fetchone()
        assert found is not None
        return CatalogMark(row[0], found)
