"""Shapes of the source's tables now, in the words of `penstock.schema`. Reads only."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.schema.catalog import read_shapes, read_shapes_by_id
from penstock.source.connect import place_of, source_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import psycopg

    from penstock.schema.shape import TableShape
    from penstock.table import TableName

    Connection = psycopg.Connection[Any]

_PUBLISHED = """
SELECT DISTINCT r.prrelid::int8 FROM pg_publication_rel r
JOIN pg_publication p ON p.oid = r.prpubid WHERE p.pubname = ANY (%s)
"""


def read_published_shapes(connection: Connection, publications: Sequence[str]) -> list[TableShape]:
    """The tables of publications."""
    with source_errors(connection), qualified_names(connection):
        oids = [oid for (oid,) in connection.execute(_PUBLISHED, (list(publications),))]
        return list(read_shapes_by_id(connection, oids, place_of(connection)).values())


# Expressions are spelled under a lock on their table, which a user's ALTER may hold for long: capture waits no
# longer than it may take to stop, and tries again.
_PATIENCE = "SET LOCAL lock_timeout = '5s'"


def read_shape_now(connection: Connection, oid: int) -> TableShape | None:
    """One table by its oid, None when it is gone.

    Raises:
        SourceError: somebody holds a lock on it, which passes.
    """
    with source_errors(connection), qualified_names(connection):
        connection.execute(_PATIENCE)
        return read_shapes_by_id(connection, [oid], place_of(connection)).get(oid)


def read_named_shapes(
    connection: Connection, names: Sequence[TableName]
) -> dict[TableName, TableShape]:
    """Those of the tables that are there."""
    with source_errors(connection), qualified_names(connection):
        return read_shapes(connection, names, place_of(connection), with_partitions=True)


@contextmanager
def qualified_names(connection: Connection) -> Iterator[None]:
    """An empty search_path for one transaction, or for our part of the caller's.

    Names are spelled with their schema then: what is on the search_path goes without.
    """
    with connection.transaction():
        row = connection.execute("SELECT pg_catalog.current_setting('search_path')").fetchone()
        before = row[0] if row else ""
        connection.execute("SELECT pg_catalog.set_config('search_path', '', true)")
        yield
        connection.execute("SELECT pg_catalog.set_config('search_path', %s, true)", (before,))
