"""The proof: both sides hold the same rows, and the target never showed half a transaction."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from penstock.demo.shop import PIECES, SUMS, TABLES
from penstock.errors import SidesDiffer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_PAUSE_SECONDS = 0.03
_READ_SECONDS = 30.0
_REPORT_IT = "keep this output and report it; penstock must never let this happen"

# Every value of every row, in an order that depends on nothing else.
_CHECKSUM = """
SELECT count(*), left(md5(coalesce(string_agg(md5(t::text), '' ORDER BY md5(t::text)), '')), 12)
FROM {} t
"""


@dataclass(frozen=True)
class Content:
    """What a table holds: how many rows, and a checksum over all their values."""

    row_count: int
    checksum: str

    def __str__(self) -> str:
        return f"{self.row_count} rows, checksum {self.checksum}"


@dataclass(frozen=True)
class Comparison:
    """One table on both sides."""

    table: str
    source: Content
    target: Content

    @property
    def is_equal(self) -> bool:
        """Whether both sides hold the same rows."""
        return self.source == self.target


def compare(
    source: psycopg.Connection[Any],
    target: psycopg.Connection[Any],
    tables: Iterable[str] = TABLES,
) -> list[Comparison]:
    """Let each server count and sum up its own tables. Nothing may be writing."""
    return [Comparison(table, _content(source, table), _content(target, table)) for table in tables]


def compare_rows(
    source: psycopg.Connection[Any],
    rows: Callable[[str], list[str]],
    tables: Iterable[str] = TABLES,
) -> list[Comparison]:
    """Have the source read rows that somebody else has as JSON, and sum up both. Nothing may be writing."""
    compared = []
    with source.transaction(force_rollback=True):
        for table in tables:
            name, read = sql.Identifier(table), sql.Identifier(f"read_{table}")
            # Without NOT NULL: who has not read yet that a column was renamed has no value for it.
            made = sql.SQL("CREATE TEMP TABLE {} AS TABLE {} WITH NO DATA")
            source.execute(made.format(read, name))
            insert = sql.SQL("INSERT INTO {} SELECT (json_populate_record(NULL::{}, %s)).*")
            with source.cursor() as cursor:
                cursor.executemany(insert.format(read, name), [(each,) for each in rows(table)])
            compared.append(
                Comparison(table, _content(source, table), _content(source, f"read_{table}"))
            )
    return compared


def compare_once_read(
    source: psycopg.Connection[Any],
    rows: Callable[[str], list[str]],
    wait: Callable[[], None],
) -> list[Comparison]:
    """The same, again after each `wait` until both sides are equal or time is up: who reads may be a moment behind.

    As many rows are not the same rows yet: one that is still to come and one that is still to go look like none.
    """
    patience_ends = time.monotonic() + _READ_SECONDS
    while True:
        compared = compare_rows(source, rows)
        if all(each.is_equal for each in compared) or time.monotonic() > patience_ends:
            return compared
        wait()


def require_equal(compared: list[Comparison]) -> None:
    """Let nothing pass that differs.

    Raises:
        SidesDiffer: names every table that differs, with what each side holds.
    """
    different = [
        f"{each.table} has {each.source} at the source but {each.target} at the target"
        for each in compared
        if not each.is_equal
    ]
    if different:
        raise SidesDiffer("; ".join(different), "the two sides differ", _REPORT_IT)


def require_none_twice(written_count: int, delivered_count: int) -> None:
    """Compare what the writer has committed with what the target says it was given.

    What was written before the copy came with the copy; so fewer are well, more are not.

    Raises:
        SidesDiffer: a change was delivered twice.
    """
    if delivered_count > written_count:
        raise SidesDiffer(
            f"{delivered_count} changes were delivered, wanted at most the {written_count} written",
            "penstock.progress at the target",
            _REPORT_IT,
        )


def _content(connection: psycopg.Connection[Any], table: str) -> Content:
    row = connection.execute(sql.SQL(_CHECKSUM).format(sql.Identifier(table))).fetchone()
    assert row is not None
    return Content(*row)


class Watcher:
    """Polls the target while changes arrive, each time in one snapshot."""

    def __init__(self, url: str) -> None:
        self.poll_count = 0
        self.state_count = 0
        self.torn_count = 0
        self._torn = ""
        self._connection: psycopg.Connection[Any] = psycopg.connect(url, autocommit=True)
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="demo watcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the watch. Safe to repeat."""
        self._stop.set()
        self._thread.join()
        self._connection.close()

    def require_whole(self) -> None:
        """Let no torn state pass, nor a watch that saw nothing.

        Raises:
            SidesDiffer: one poll at least saw half a transaction.
        """
        if self._failure is not None:
            raise self._failure
        if self.torn_count or not self.poll_count:
            raise SidesDiffer(
                f"{self.torn_count} of {self.poll_count} polls saw half a transaction{self._torn}",
                "target",
                _REPORT_IT,
            )

    def _run(self) -> None:
        state = None
        try:
            while not self._stop.wait(_PAUSE_SECONDS):
                found = self._poll()
                if found is None:
                    continue
                pieces, money, delivered_lsn = found
                self.poll_count += 1
                self.state_count += delivered_lsn != state
                state = delivered_lsn
                if (pieces, money) != (PIECES, 0):
                    self.torn_count += 1
                    self._torn = (
                        f": {pieces} pieces, wanted {PIECES};"
                        f" totals and items differ by {money}; at {delivered_lsn}"
                    )
        except psycopg.Error as error:
            self._failure = error

    def _poll(self) -> tuple[int, Any, str] | None:
        """The sums and the position they belong to; None before the whole shop has been copied."""
        position = (
            "(SELECT delivered_lsn::text FROM penstock.progress),"
            f" (SELECT count(*) = {len(TABLES)} FROM penstock.tables WHERE state = 'streaming')"
        )
        try:
            row = self._connection.execute(f"{SUMS.rstrip()}, {position}".encode()).fetchone()
        except (psycopg.errors.UndefinedTable, psycopg.errors.DeadlockDetected):
            return None  # tables are being made: all of them are locked at once, in another order
        assert row is not None
        return row[:3] if row[3] else None
