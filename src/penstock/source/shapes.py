"""Shapes of the source's tables now, in the words of `penstock.schema`. Reads only."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from penstock.errors import SourceError
from penstock.schema.catalog import read_shapes, read_shapes_by_id
from penstock.source.connect import place_of, source_errors
from penstock.table import TableName, as_columns

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from penstock.schema.shape import TableShape

    Connection = psycopg.Connection[Any]

_PUBLISHED = """
SELECT DISTINCT r.prrelid::int8 FROM pg_publication_rel r
JOIN pg_publication p ON p.oid = r.prpubid WHERE p.pubname = ANY (%s)
"""


def read_published_shapes(connection: Connection, publications: Sequence[str]) -> list[TableShape]:
    """The tables of publications.

    Raises:
        SourceError: somebody holds a lock on one, which passes; it is named.
    """
    with source_errors(connection):
        oids = [oid for (oid,) in connection.execute(_PUBLISHED, (list(publications),))]
        with waiting_little(connection, oids), qualified_names(connection):
            return list(read_shapes_by_id(connection, oids, place_of(connection)).values())


def read_shape_now(connection: Connection, oid: int) -> TableShape | None:
    """One table by its oid, None when it is gone.

    Raises:
        SourceError: somebody holds a lock on it, which passes.
    """
    with (
        source_errors(connection),
        waiting_little(connection, [oid]),
        qualified_names(connection),
    ):
        return read_shapes_by_id(connection, [oid], place_of(connection)).get(oid)


def read_named_shapes(
    connection: Connection, names: Sequence[TableName]
) -> dict[TableName, TableShape]:
    """Those of the tables that are there.

    Raises:
        SourceError: somebody holds a lock on one, which passes; it is named.
    """
    oids = oids_of(connection, names)
    with source_errors(connection), waiting_little(connection, oids), qualified_names(connection):
        return read_shapes(connection, names, place_of(connection), with_partitions=True)


# Expressions are spelled, and sizes read, under a lock on their table, which a user's ALTER may hold for long: nobody
# waits longer than capture may take to stop, and all say so and try again.
_PATIENCE = "SET LOCAL lock_timeout = '5s'"

_NAMED = """
SELECT c.oid::int8 FROM unnest(%s::text[], %s::text[]) AS t(schema_name, name)
JOIN pg_namespace n ON n.nspname = t.schema_name
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.name
"""
# A lock on a partition keeps who asks for its root waiting as well; who waits for a lock, those who come after.
_LOCKED = """
SELECT r.oid::int8, n.nspname, r.relname, min(l.pid),
       extract(epoch FROM max(clock_timestamp() - a.xact_start))::int
FROM pg_locks l JOIN pg_class r
  ON r.oid = ANY (%s::oid[]) AND (r.oid = l.relation OR r.oid IN (
      SELECT relid FROM pg_partition_ancestors(l.relation) AS p(relid)))
JOIN pg_namespace n ON n.oid = r.relnamespace
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock'
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.pid IS DISTINCT FROM pg_backend_pid()
GROUP BY 1, 2, 3 ORDER BY 2, 3
"""


def oids_of(connection: Connection, names: Collection[TableName]) -> list[int]:
    """The oids of those that are there."""
    with source_errors(connection):
        return [oid for (oid,) in connection.execute(_NAMED, as_columns(names))]


def locked_by_others(connection: Connection, oids: Collection[int]) -> dict[TableName, SourceError]:
    """Those of the tables that another session has locked against everybody, as errors that name it."""
    with source_errors(connection):
        rows = connection.execute(_LOCKED, (list(oids),)).fetchall()
    return {
        TableName(schema, name): SourceError(
            f"{schema}.{name} is locked against readers by "
            + (f"session {pid}, open for {seconds or 0} s" if pid else "a prepared transaction"),
            place_of(connection),
            "wait until that transaction ends, or end it; what penstock does by itself it tries again",
        )
        for _, schema, name, pid, seconds in rows
    }


@contextmanager
def waiting_little(connection: Connection, oids: Collection[int]) -> Iterator[None]:
    """A transaction, or a part of the caller's, that waits for the locks of tables for some seconds only.

    Raises:
        SourceError: that was too short; it names the first of them that somebody has locked.
    """
    try:
        with connection.transaction():
            connection.execute(_PATIENCE)
            yield
    except psycopg.errors.LockNotAvailable:
        for error in locked_by_others(connection, oids).values():
            raise error from None
        raise


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
