"""The executor half of a copy: rows of a range, as COPY sent them, go into the target unseen."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from penstock.errors import SinkError
from penstock.failpoints import fault_point
from penstock.sinks.copying import CopySuperseded, RangeRefused, RangeThere
from penstock.sinks.postgres.connect import (
    classify_target_error,
    connect_target,
    is_about_table,
    set_replica_role,
    target_errors,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.dsn import Dsn
    from penstock.table import TableName

# One connection per worker process and target, kept from range to range.
_connections: dict[str, psycopg.Connection[Any]] = {}

_LINE = re.compile(r"^COPY [^\n]*?, line (\d+)(?:, column ([^:\n]+))?", re.MULTILINE)

# Waits while somebody begins the table anew, and is in their way until this range has ended.
_FENCE = (
    "SELECT FROM penstock.tables WHERE pipeline = %s AND source = %s AND schema_name = %s"
    " AND table_name = %s AND copy_id = %s AND state = 'copying' FOR SHARE"
)
# First of all, so that of two tasks at one range, the first of which was given up and lives on, the
# second waits for what becomes of it.
_RESERVE = (
    "INSERT INTO penstock.ranges VALUES (%s, %s, %s, %s, %s, %s, 0, 0) ON CONFLICT DO NOTHING"
)
_RECORD = (
    "UPDATE penstock.ranges SET rows = %s, bytes = %s WHERE pipeline = %s AND source = %s"
    " AND schema_name = %s AND table_name = %s AND copy_id = %s AND number = %s"
)


@dataclass(frozen=True)
class PostgresRangeWriter:
    """What the executors are sent for one table."""

    dsn: Dsn = field(repr=False)
    owner: tuple[str, str]
    table: TableName
    copy_id: str
    target: TableName
    columns: tuple[str, ...]
    literals: tuple[tuple[str, str], ...]
    target_columns: tuple[str, ...]
    is_binary: bool

    def begin(self, number: int) -> PostgresRange:
        """Begin a range."""
        return PostgresRange(self, number)


class PostgresRange:
    """One range, one transaction."""

    def __init__(self, writer: PostgresRangeWriter, number: int) -> None:
        self._writer = writer
        self._number = number
        self._byte_count = 0
        self._connection = _connection(writer.dsn)
        try:
            self._cursor = self._connection.cursor()
            of_copy = (*writer.owner, *writer.table, writer.copy_id)
            if self._cursor.execute(_FENCE, of_copy).fetchone() is None:
                self._connection.rollback()
                raise CopySuperseded(str(writer.table))
            self._cursor.execute(_RESERVE, (*of_copy, number))
            if self._cursor.rowcount == 0:
                self._connection.rollback()
                raise RangeThere(f"{writer.table} range {number}")
            statement = sql.SQL("COPY {} ({}) FROM STDIN{}").format(
                sql.Identifier(*writer.target),
                sql.SQL(", ").join(map(sql.Identifier, writer.target_columns)),
                sql.SQL(" (FORMAT binary)") if writer.is_binary else sql.SQL(""),
            )
            self._copy = self._cursor.copy(statement)
            self._into = self._copy.__enter__()
        except psycopg.Error as error:
            raise self._failure(error) from None

    def write(self, rows: Sequence[bytes | memoryview]) -> None:
        """Send some rows on."""
        block = b"".join(rows)
        self._byte_count += len(block)
        try:
            self._into.write(block)
        except psycopg.Error as error:
            raise self._failure(error) from None

    def finish(self) -> None:
        """End the COPY, record the range, commit."""
        writer = self._writer
        fault_point("copy.inside_range")
        try:
            self._copy.__exit__(None, None, None)
            self._cursor.execute(
                _RECORD,
                (
                    self._cursor.rowcount,
                    self._byte_count,
                    *writer.owner,
                    *writer.table,
                    writer.copy_id,
                    self._number,
                ),
            )
            self._connection.commit()
        except psycopg.Error as error:
            raise self._failure(error) from None
        fault_point("copy.after_range")

    def abort(self) -> None:
        """Leave nothing."""
        _connections.pop(self._writer.dsn.conninfo, None)
        self._connection.close()

    def _failure(self, error: psycopg.Error) -> Exception:
        """What a failure means; the connection is given up, and with it the range."""
        self.abort()
        known = classify_target_error(error, self._writer.dsn)
        # Binary rows that do not fit their columns are reported as a fault of the protocol.
        is_about_rows = is_about_table(error) or error.sqlstate == "08P01"
        if isinstance(known, SinkError) and not is_about_rows:
            return known  # of the server or the connection; all else is the table's
        match = _LINE.search(error.diag.context or "")
        where = f"column {match[2]}" if match and match[2] else "a row"
        if error.diag.constraint_name:
            where = f"a row, by constraint {error.diag.constraint_name}"
        return RangeRefused(
            f"{self._writer.target} refuses {where}: SQLSTATE {error.sqlstate}"
            f" {type(error).__name__}",
            f"fix {self._writer.target} or the row at the source; the copy is tried again by itself",
            int(match[1]) - 1 if match else None,
        )


def _connection(dsn: Dsn) -> psycopg.Connection[Any]:
    connection = _connections.get(dsn.conninfo)
    if connection is None or connection.closed:
        connection = connect_target(dsn, "penstock copy", autocommit=False)
        with target_errors(dsn):
            set_replica_role(connection)
            # A range and its record are lost together, if at all; the table's own commit flushes both.
            connection.execute("SET synchronous_commit = off")
            connection.commit()
        _connections[dsn.conninfo] = connection
    return connection
