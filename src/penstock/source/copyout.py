"""Rows of a table under an adopted snapshot, as COPY sends them. Runs on executors.

https://www.postgresql.org/docs/current/sql-copy.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
from psycopg import pq, sql

from penstock.errors import SnapshotGone, TableRewritten
from penstock.source.connect import (
    classify_source_error,
    connect_to_copy,
    result_error,
    source_errors,
)
from penstock.source.ordinary import are_ordinary, refuses_views

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.dsn import Dsn
    from penstock.table import TableName

# What is handed on at once: large enough for few calls, small enough to be nothing.
BLOCK_BYTES = 256 * 1024

_SNAPSHOT_GONE = ("22023", "42704")
_IS_VIEW = "55000"


# Rows of catalogs are read under the snapshot, the functions return what is true now. COPY, too, finds its
# table and its columns by the names that they have now.
_SAME_TABLE = """
SELECT c.relfilenode = pg_relation_filenode(c.oid)
   AND c.oid = to_regclass(quote_ident(n.nspname) || '.' || quote_ident(c.relname))
   AND NOT EXISTS (
       SELECT FROM pg_attribute a,
            pg_identify_object_as_address('pg_class'::regclass, c.oid, a.attnum) AS now
       WHERE a.attrelid = c.oid AND a.attname = ANY (%s) AND NOT a.attisdropped
         AND now.object_names[3] IS DISTINCT FROM a.attname::text)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""


class SnapshotReader:
    """One connection that sees the source as the snapshot shows it."""

    def __init__(self, dsn: Dsn, snapshot: str) -> None:
        self._connection = connect_to_copy(dsn)
        self._dsn = dsn
        self._snapshot = sql.Literal(snapshot)
        self._adopt()
        with source_errors(dsn):
            self._refuses_views = refuses_views(self._connection)

    def let_go(self) -> None:
        """Let go of the tables that were read, and go on under the same snapshot.

        Each of them is locked against ALTER until then, and takes room in the server's table of locks.

        Raises:
            SnapshotGone: there is no going on.
            SourceError: the server is away.
        """
        self._adopt("COMMIT; ")

    def _adopt(self, before: LiteralString = "") -> None:
        # In one message: it is sent for each table, however small.
        adopt = sql.SQL(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT {}"
        ).format(self._snapshot)
        try:
            self._connection.execute(sql.SQL(before) + adopt)
        except psycopg.Error as error:
            self.close()
            if error.sqlstate in _SNAPSHOT_GONE:
                raise SnapshotGone(
                    "the snapshot is gone",
                    str(self._dsn),
                    "nothing; the copy begins again under a new one",
                ) from None
            raise classify_source_error(error, self._dsn) from None

    def blocks(
        self,
        relation: TableName,
        columns: Sequence[str],
        pages: tuple[int, int | None],
        *,
        is_binary: bool,
        literals: Sequence[tuple[str, str]] = (),
        condition: str = "",
        block_bytes: int = BLOCK_BYTES,
    ) -> Iterator[list[memoryview]]:
        """The rows on some pages of a relation, its own only, some at a time; each one COPY message.

        `literals`, types and values, follow the columns in every row. `condition`: SQL that rows must meet.
        `block_bytes`: how many of them at a time.

        Raises:
            psycopg.Error: as the server says.
        """
        query = sql.SQL("COPY ({}) TO STDOUT{}").format(
            _select(_listed(columns, literals, is_binary=is_binary), relation, pages, condition),
            sql.SQL(" (FORMAT binary)") if is_binary else sql.SQL(""),
        )
        pgconn = self._connection.pgconn
        self._require_ordinary(relation)
        self._begin(pgconn, query.as_bytes(self._connection), relation)
        get = pgconn.get_copy_data
        rows: list[memoryview] = []
        size = 0
        while True:
            length, data = get(0)
            if length < 0:
                break
            rows.append(data)
            size += length
            if size >= block_bytes:
                yield rows
                rows, size = [], 0
        _finish(pgconn)
        self._require_same_table(relation, columns)
        if rows:
            yield rows

    def _require_same_table(self, relation: TableName, columns: Sequence[str]) -> None:
        """See that pages and columns are still those that the snapshot knew.

        A table that was written anew since shows nothing to older snapshots (ALTER TABLE), or has
        its rows on other pages (VACUUM FULL); and another one may have got its name, or another column that
        of one. The COPY holds
        a lock by now on what it has read, so it stays as it is.
        """
        row = self._connection.execute(_SAME_TABLE, (list(columns), *relation)).fetchone()
        if row is None or not row[0]:
            raise _rewritten(relation)

    def _require_ordinary(self, relation: TableName) -> None:
        """See that a view is not read in place of a table: it would run its owner's functions as us."""
        if not (self._refuses_views or are_ordinary(self._connection, [relation])):
            raise _rewritten(relation)

    def _begin(self, pgconn: pq.abc.PGconn, query: bytes, relation: TableName) -> None:
        result = pgconn.exec_(query)
        if result.status != pq.ExecStatus.COPY_OUT:
            error = result_error(result)
            raise _rewritten(relation) if error.sqlstate == _IS_VIEW else error

    def key_at(
        self,
        relation: TableName,
        key: Sequence[str],
        pages: tuple[int, int | None],
        number: int,
        condition: str = "",
    ) -> tuple[Any, ...] | None:
        """The key, as text, of a row by its number in what `blocks` gives, from 0."""
        # Not by a cast, which the owner of a type can make.
        listed = sql.SQL(", ").join(
            sql.SQL("format('%s', {})").format(sql.Identifier(name)) for name in key
        )
        query = sql.SQL("{} OFFSET {} LIMIT 1").format(
            _select(listed, relation, pages, condition), sql.Literal(number)
        )
        self._require_ordinary(relation)
        return self._connection.execute(query).fetchone()

    def close(self) -> None:
        """Let go of the snapshot."""
        self._connection.close()


def _listed(
    columns: Sequence[str], literals: Sequence[tuple[str, str]], *, is_binary: bool
) -> sql.Composed:
    # As text, a value need not be of a type that this server has.
    added = [
        sql.SQL("{}::{}").format(sql.Literal(value), sql.SQL(kind if is_binary else "text"))
        for kind, value in literals
    ]
    return sql.SQL(", ").join([*map(sql.Identifier, columns), *added])


def _select(
    listed: sql.Composable,
    relation: TableName,
    pages: tuple[int, int | None],
    condition: str = "",
) -> sql.Composed:
    """By ctid, so that only those pages are read. ONLY: children are tables of their own."""
    first, end = pages
    limits: list[sql.Composable] = []
    if first:
        limits.append(sql.SQL("ctid >= {}::tid").format(sql.Literal(f"({first},0)")))
    if end is not None:
        limits.append(sql.SQL("ctid < {}::tid").format(sql.Literal(f"({end},0)")))
    if condition:
        # Braces of a value are none of psycopg's.
        escaped = condition.replace("{", "{{").replace("}", "}}")
        limits.append(sql.SQL(escaped).format())
    where = sql.SQL(" WHERE {}").format(sql.SQL(" AND ").join(limits)) if limits else sql.SQL("")
    return sql.SQL("SELECT {} FROM ONLY {}{}").format(listed, sql.Identifier(*relation), where)


def _rewritten(relation: TableName) -> TableRewritten:
    return TableRewritten(
        "the table was written anew while it was copied (ALTER TABLE, VACUUM FULL, TRUNCATE),"
        " or another table or column has its name now",
        str(relation),
        "nothing; the copy begins again, under a new snapshot",
    )


def _finish(pgconn: pq.abc.PGconn) -> None:
    failure: pq.abc.PGresult | None = None
    while (result := pgconn.get_result()) is not None:
        if result.status != pq.ExecStatus.COMMAND_OK:
            failure = result
    if failure is not None:
        raise result_error(failure)
