"""kill -9 at each named fault point: nothing lost, nothing doubled, nothing torn.

Accounts move money between two tables, a conserved total. A watcher on the target never sees another
total; when the pipeline has been started again and has caught up, both sides are equal.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from fix_pipeline import assert_equal, status_of
from fix_postgres import only_new
from fix_wait import wait_until
from penstock.failpoints import POINTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fix_pipeline import Command
    from fix_postgres import Database

pytestmark = only_new

TOTAL = 100_000
# Enough for rows to be staged in tables of their own, and not brought along in receipts.
LARGE_ROWS = 6_000
# No more often than this, and no more on their way than these: what waits for a start of Spark would
# take minutes to deliver and to compare, and the watcher would see ever less of it.
LARGE_SECONDS = 0.5
LARGE_ON_THEIR_WAY = 2


class Bank:
    """A writer at the source and a watcher at the target."""

    def __init__(self, source: Database, target: Database) -> None:
        self._source = source
        self._target = target
        self._stop = threading.Event()
        self.torn: list[Any] = []
        self.transfers = 0
        self._large_written = 0
        self._large_arrived = 0
        self._threads = [
            threading.Thread(target=self._write),
            threading.Thread(target=self._watch),
        ]

    def open(self) -> None:
        """Create the accounts; the money is paid in once the pipeline follows them."""
        for table in ("checking", "savings"):
            self._source.execute(
                f"CREATE TABLE {table} (id int PRIMARY KEY, balance int NOT NULL, note text)"
            )
        self._source.execute("CREATE TABLE ledger (id bigserial PRIMARY KEY, amount int, pad text)")

    def start(self) -> None:
        """Pay in, then move money about."""
        with self._source.connect(autocommit=False) as connection:
            connection.execute(
                f"INSERT INTO checking SELECT g, {TOTAL // 100}, 'x' FROM generate_series(1, 100) g"
            )
            connection.execute(
                "INSERT INTO savings SELECT g, 0, 'x' FROM generate_series(1, 100) g"
            )
            connection.commit()
        for thread in self._threads:
            thread.start()

    def _write(self) -> None:
        with self._source.connect(autocommit=False) as connection:
            large_at = 0.0
            while not self._stop.is_set():
                n = self.transfers
                one, two = 1 + n * 7 % 100, 1 + n * 13 % 100
                connection.execute(
                    "UPDATE checking SET balance = balance - 5, note = %s WHERE id = %s",
                    (str(n), one),
                )
                is_large = n % 40 == 39 and time.monotonic() >= large_at and self._may_be_large()
                if is_large:
                    large_at = time.monotonic() + LARGE_SECONDS
                    connection.execute(
                        "INSERT INTO ledger (amount, pad) SELECT 5, repeat('p', 100)"
                        f" FROM generate_series(1, {LARGE_ROWS})"
                    )
                connection.execute("INSERT INTO ledger (amount) VALUES (5)")
                connection.execute("UPDATE savings SET balance = balance + 5 WHERE id = %s", (two,))
                if n % 11 == 10:
                    connection.rollback()
                else:
                    connection.commit()
                    self._large_written += is_large
                self.transfers += 1
                self._stop.wait(0.005)

    def _may_be_large(self) -> bool:
        return self._large_written - self._large_arrived < LARGE_ON_THEIR_WAY

    def _watch(self) -> None:
        total = (
            "SELECT (SELECT sum(balance) FROM checking) + (SELECT sum(balance) FROM savings),"
            " (SELECT 5 * count(*) FROM ledger WHERE pad IS NULL) - (SELECT sum(balance) FROM savings),"
            " (SELECT count(*) FROM ledger WHERE pad IS NOT NULL)"
        )
        with self._target.connect() as connection:
            while not self._stop.is_set():
                try:
                    row = connection.execute(total).fetchone()
                except psycopg.errors.UndefinedTable:
                    row = None
                if row is not None and row[0] is not None:
                    self._large_arrived, rest = divmod(row[2], LARGE_ROWS)
                    if (*row[:2], rest) != (TOTAL, 0, 0):
                        self.torn.append(row)
                # Often enough to see each commit of the target; to ask without a pause took a core.
                self._stop.wait(0.01)

    def stop(self) -> None:
        """Stop writer and watcher."""
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()


@pytest.fixture
def bank(source: Database, target: Database) -> Iterator[Bank]:
    bank = Bank(source, target)
    bank.open()
    yield bank
    bank.stop()


def finish(
    bank: Bank,
    path: Path,
    penstock_command: Callable[..., Command],
    source: Database,
    target: Database,
) -> None:
    """Start again without a fault, catch up, compare."""
    bank.stop()
    again = penstock_command("run", str(path), "--until-caught-up")
    assert again.wait() == 0, again.stderr
    assert bank.torn == []
    assert bank.transfers > 20
    assert_equal(source, target, "checking", "savings", "ledger")
    status = status_of(path)
    assert status["phase"] == "stopped", status
    leftover = target.query(
        "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
        " WHERE nspname = 'penstock' AND relname LIKE 'stage%'"
    )
    assert leftover == []


# Copies have points of their own (tests/snapshot/test_copy_kill.py), and so have changes of tables
# (tests/schema/test_travel_kill.py) and files (tests/sinks/test_event_copies_kill.py).
RUN_POINTS = [point for point in POINTS if point.startswith(("capture.", "stage.", "deliver."))]


@pytest.mark.parametrize("point", RUN_POINTS)
@pytest.mark.long
def test_kill_at_each_fault_point_loses_and_doubles_nothing(
    point: str,
    bank: Bank,
    source: Database,
    target: Database,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    path = pipeline_file(source, target, tables=("public.*",))
    assert penstock_command("init", str(path)).wait() == 0

    passing = 3 if not point.startswith("stage.") else 1
    command = penstock_command("run", str(path), env={"PENSTOCK_FAULT": f"{point}:{passing}"})
    bank.start()
    wait_until(lambda: command.is_struck, 90, what=f"the fault at {point} to strike")
    command.kill()

    finish(bank, path, penstock_command, source, target)


def test_kill_at_commit_and_within_a_slice_loses_and_doubles_nothing(
    bank: Bank,
    source: Database,
    target: Database,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    path = pipeline_file(source, target, tables=("public.*",))
    assert penstock_command("init", str(path)).wait() == 0
    bank.start()

    for fault in ("deliver.after_commit:4", "capture.torn_slice:6", "stage.after_copy"):
        command = penstock_command("run", str(path), env={"PENSTOCK_FAULT": fault})
        wait_until(lambda: command.is_struck, 90, what=f"{fault} to strike")  # noqa: B023
        command.kill()

    finish(bank, path, penstock_command, source, target)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_kill_at_random_moments_under_load_loses_and_doubles_nothing(
    bank: Bank,
    source: Database,
    target: Database,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    path = pipeline_file(source, target, tables=("public.*",))
    assert penstock_command("init", str(path)).wait() == 0
    bank.start()

    for kill_number in range(8):
        command = penstock_command("run", str(path))
        mark = bank.transfers
        # A moment that differs each time, counted in the writer's progress and not in seconds.
        wait_until(
            lambda: bank.transfers > mark + 300 + 170 * kill_number,  # noqa: B023
            120,
            what="the writer to go on",
        )
        command.kill()

    finish(bank, path, penstock_command, source, target)


@pytest.mark.long
def test_deleting_the_whole_state_directory_loses_nothing(
    bank: Bank,
    source: Database,
    target: Database,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
    tmp_path: Path,
) -> None:
    import shutil

    path = pipeline_file(source, target, tables=("public.*",))
    assert penstock_command("init", str(path)).wait() == 0
    bank.start()
    command = penstock_command("run", str(path))
    wait_until(lambda: target.query("SELECT to_regclass('savings')") != [(None,)], 60, what="rows")
    mark = bank.transfers
    wait_until(lambda: bank.transfers > mark + 100, 60, what="transfers")
    command.kill()
    shutil.rmtree(tmp_path / "test-state")

    finish(bank, path, penstock_command, source, target)
