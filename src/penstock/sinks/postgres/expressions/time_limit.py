"""How long statements may take that evaluate expressions of a table, which may be the source's.

The sink's sessions have no `statement_timeout`. Where the role has one of its own, it is in force again for
statements that hold others up: DDL, and merges of the stream, which share a transaction with other tables.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

import psycopg
from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.sinks.postgres.mapping.plan import StagedStep, TablePlan

    Connection = psycopg.Connection[Any]
    Cursor = psycopg.Cursor[Any]

# A role's limit is meant for a person's statements. A merge writes what thousands of those have written.
ROWS_OF_A_LIMIT = 10_000

_OWN = """
SELECT pg_catalog.set_config('statement_timeout', reset_val, true), reset_val::int
FROM pg_catalog.pg_settings WHERE name = 'statement_timeout'
"""

# Waiting for a lock is no fault of an expression, and is noticed first.
_FOR_ROWS = """
WITH own AS (
    SELECT least(r.reset_val::int8 * greatest(1, ceil(({rows}) / {at_once}.0)), 2147483647)::int8 AS ms,
           l.setting::int8 AS lock_ms
    FROM pg_catalog.pg_settings r, pg_catalog.pg_settings l
    WHERE r.name = 'statement_timeout' AND l.name = 'lock_timeout' AND r.reset_val <> '0')
SELECT ms, lock_ms, pg_catalog.set_config('statement_timeout', ms::text, true),
       pg_catalog.set_config('lock_timeout',
           least(nullif(lock_ms, 0), greatest(1, ms / 2))::text, true)
FROM own
"""
_LIFT = """
SELECT pg_catalog.set_config('statement_timeout', '0', true),
       pg_catalog.set_config('lock_timeout', %s, true)
"""

_cancelled: WeakSet[Connection] = WeakSet()


class TimeLimitReachedError(psycopg.errors.ProgramLimitExceeded):
    """A statement that evaluates the source's expressions took longer than the role may."""


class _TimedCursor(psycopg.Cursor[Any]):
    """Knows when its last statement began."""

    began_at = 0.0

    def execute(self, *args: Any, **kwargs: Any) -> Self:
        """Execute, and remember when that began."""
        self.began_at = time.monotonic()
        return super().execute(*args, **kwargs)


def note_cancelled(connection: Connection) -> None:
    """Penstock is about to cancel what runs over a connection: that is no limit that was reached."""
    _cancelled.add(connection)


@contextmanager
def own_time_limit(connection: Connection, *, is_limited: bool = True) -> Iterator[None]:
    """The role's own statement_timeout is in force for one statement; within a transaction.

    `is_limited` False: nothing of the source's is evaluated, and it may take as long as it needs.

    Raises:
        TimeLimitReachedError: it has reached the limit.
    """
    if not is_limited:
        yield
        return
    row = connection.execute(_OWN).fetchone()
    began_at = time.monotonic()
    try:
        yield
    except psycopg.errors.QueryCanceled as error:
        raise _explain(connection, error, row[1] if row is not None else 0, began_at) from None
    connection.execute("SELECT pg_catalog.set_config('statement_timeout', '0', true)")


@contextmanager
def merge_time_limit(
    cursor: Cursor, plan: TablePlan, step: StagedStep, stage: sql.Identifier
) -> Iterator[Cursor]:
    """The cursor for statements that write a step's rows; within a transaction.

    Each of them has the role's own statement_timeout for each 10,000 rows that are begun. Not for a TRUNCATE
    or a DELETE: they evaluate nothing.

    Raises:
        TimeLimitReachedError: a statement has reached it.
        psycopg.errors.LockNotAvailable: somebody else holds what it needs; nobody is to blame.
    """
    row = None
    if plan.evaluates and step.kind != "truncate":
        rows = sql.SQL("SELECT {} FROM {}").format(
            sql.SQL("coalesce(sum(n), 0)" if step.has_copies else "count(*)"), stage
        )
        at_once = sql.Literal(ROWS_OF_A_LIMIT)
        row = cursor.execute(sql.SQL(_FOR_ROWS).format(rows=rows, at_once=at_once)).fetchone()
    if row is None:  # the role has none
        yield cursor
        return
    limit_ms, lock_ms = row[:2]
    with _TimedCursor(cursor.connection) as timed:
        try:
            yield timed
        except psycopg.errors.QueryCanceled as error:
            raise _explain(cursor.connection, error, limit_ms, timed.began_at) from None
    cursor.execute(_LIFT, (str(lock_ms),))


def _explain(
    connection: Connection, error: psycopg.Error, limit_ms: int, began_at: float
) -> psycopg.Error:
    """What a statement was cancelled for: its limit, or somebody who wanted that."""
    if connection in _cancelled:
        _cancelled.discard(connection)
        return error
    if limit_ms and time.monotonic() - began_at >= limit_ms / 1000:
        return TimeLimitReachedError("statement_timeout")
    return error
