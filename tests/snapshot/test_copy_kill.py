"""kill -9 at each fault point of a copy, under load: the next run ends with both sides equal.

Money moves between two tables all the time, some rows by new keys and new places. What is compared at
the end is every row of every table.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from fix_pipeline import ALWAYS_COPIED, assert_equal, status_of, table_state
from fix_postgres import only_new
from fix_wait import wait_until
from penstock.failpoints import POINTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fix_pipeline import Command
    from fix_postgres import Database

pytestmark = only_new

TABLES = ("checking", "savings", "keyless", "large", *(f"small_{number}" for number in range(6)))
SEVERAL_TIMES = (
    "after_create",
    "before_range",
    "inside_range",
    "after_range",
    "before_finish",
    "after_finish",
)
COPY_POINTS = [
    point
    for point in POINTS
    if point.startswith(("copy.", "catch_up.")) and point != "copy.after_merge"  # of a second copy
]


class Bank:
    """Tables with rows, and a writer that never rests."""

    def __init__(self, source: Database) -> None:
        self._source = source
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._guard)
        self.transfers = 0
        self.failures: list[BaseException] = []

    def open(self, large_rows: int) -> None:
        with self._source.connect() as connection:
            for table in ("checking", "savings"):
                connection.execute(
                    f"CREATE TABLE {table} (id int PRIMARY KEY, balance int, note text)"
                )
                connection.execute(
                    f"INSERT INTO {table} SELECT g, 100, repeat('x', 100) FROM generate_series(1, 3000) g"
                )
            connection.execute(
                "CREATE TABLE keyless (n int); ALTER TABLE keyless REPLICA IDENTITY FULL"
            )
            connection.execute("INSERT INTO keyless SELECT g % 9 FROM generate_series(1, 2000) g")
            connection.execute("CREATE TABLE large (id int PRIMARY KEY, pad text)")
            connection.execute("ALTER TABLE large ALTER pad SET STORAGE PLAIN")
            connection.execute(
                f"INSERT INTO large SELECT g, repeat(md5(g::text), 30) FROM generate_series(1, {large_rows}) g"
            )
            for number in range(6):
                connection.execute(f"CREATE TABLE small_{number} (id serial PRIMARY KEY, v int)")
                connection.execute(
                    f"INSERT INTO small_{number} (v) SELECT g FROM generate_series(1, 500) g"
                )

    def start(self) -> None:
        self._thread.start()

    def _guard(self) -> None:
        try:
            self._write()
        except BaseException as error:  # noqa: BLE001 - asserted on by the test
            self.failures.append(error)

    def _write(self) -> None:
        with self._source.connect(autocommit=False) as connection:
            while not self._stop.wait(0.004):
                n = self.transfers
                one, two = 1 + n * 7 % 3000, 1 + n * 13 % 3000
                connection.execute(
                    "UPDATE checking SET balance = balance - 5 WHERE id = %s", (one,)
                )
                connection.execute(
                    "UPDATE savings SET balance = balance + 5, note = note || 'y' WHERE id = %s",
                    (two,),
                )
                connection.execute("UPDATE savings SET id = -id WHERE id IN (%s, -%s)", (one, one))
                connection.execute("INSERT INTO keyless VALUES (%s)", (n % 9,))
                connection.execute(
                    "DELETE FROM keyless WHERE ctid = (SELECT ctid FROM keyless WHERE n = %s LIMIT 1)",
                    ((n + 4) % 9,),
                )
                connection.execute(
                    "UPDATE large SET pad = 'short' WHERE id = %s", (1 + n * 11 % 5000,)
                )
                connection.execute(f"INSERT INTO small_{n % 6} (v) VALUES ({n})")
                connection.execute(f"DELETE FROM small_{n % 6} WHERE id = {1 + n % 400}")
                connection.rollback() if n % 11 == 10 else connection.commit()
                self.transfers += 1

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()


@pytest.fixture
def bank(source: Database) -> Iterator[Bank]:
    bank = Bank(source)
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
    mark = bank.transfers
    wait_until(lambda: bank.transfers > mark + 20, what="the writer to go on")
    bank.stop()
    again = penstock_command("run", str(path), "--until-caught-up")
    assert again.wait() == 0, again.stderr
    assert bank.failures == []
    assert_equal(source, target, *TABLES)
    assert {table_state(target, table) for table in TABLES} == {"streaming"}
    assert status_of(path)["phase"] == "stopped"
    leftover = target.query(
        "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
        " WHERE nspname = 'penstock' AND relkind = 'r' AND relname ~ '^(stage|copy)'"
    )
    assert leftover == []
    assert target.value("SELECT count(*) FROM penstock.ranges") == 0
    keys = "SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1, 2"
    assert target.query(keys) == source.query(keys)


def kill_and_finish(
    fault: str,
    bank: Bank,
    source: Database,
    target: Database,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    path = pipeline_file(source, target, tables=("public.*",), source_options=ALWAYS_COPIED)
    bank.start()
    command = penstock_command("run", str(path), env={"PENSTOCK_FAULT": fault})
    wait_until(lambda: command.is_struck, 90, what=f"{fault} to strike")
    command.kill()
    finish(bank, path, penstock_command, source, target)


@pytest.mark.parametrize(
    "point",
    ["copy.inside_range", "catch_up.before_commit"],
)
@pytest.mark.long
def test_kill_in_the_middle_of_a_copy_loses_and_doubles_nothing(
    point: str,
    bank: Bank,
    source: Database,
    target: Database,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    bank.open(large_rows=5_000)
    # Tables of one snapshot catch up together, so that that point may be passed no more than once.
    passing = 1 if point.startswith("catch_up.") else 3
    kill_and_finish(f"{point}:{passing}", bank, source, target, pipeline_file, penstock_command)


@pytest.mark.parametrize(
    ("point", "passing"),
    [
        *((point, 1) for point in COPY_POINTS),
        # The others are passed once: one snapshot, whose tables catch up together.
        *((f"copy.{point}", 3) for point in SEVERAL_TIMES),
    ],
)
@pytest.mark.long
def test_kill_at_each_fault_point_of_a_copy_loses_and_doubles_nothing(
    point: str,
    passing: int,
    bank: Bank,
    source: Database,
    target: Database,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    # 3 ranges and more of the large one.
    bank.open(large_rows=90_000)
    kill_and_finish(f"{point}:{passing}", bank, source, target, pipeline_file, penstock_command)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_kill_at_random_moments_of_a_copy_loses_and_doubles_nothing(
    bank: Bank,
    source: Database,
    target: Database,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    bank.open(large_rows=90_000)
    path = pipeline_file(source, target, tables=("public.*",), source_options=ALWAYS_COPIED)
    bank.start()
    for number in range(6):
        command = penstock_command("run", str(path))
        wait_until(
            lambda: command.process.poll() is not None or "copying" in command.stderr,  # noqa: B023
            90,
            what="a copy to begin",
        )
        mark = bank.transfers
        wait_until(lambda: bank.transfers > mark + 40 * number, 90, what="the writer")  # noqa: B023
        command.kill()
        if number % 2:
            target.execute(
                "UPDATE penstock.tables SET request = 'resync' WHERE state = 'streaming'"
            )
    finish(bank, path, penstock_command, source, target)


@pytest.mark.long
def test_kill_in_the_middle_of_a_resync_leaves_the_rows_that_were_there_until_it_is_done(
    bank: Bank,
    source: Database,
    target: Database,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    bank.open(large_rows=5_000)
    path = pipeline_file(source, target, tables=("public.*",), source_options=ALWAYS_COPIED)
    assert penstock_command("run", str(path), "--until-caught-up").wait() == 0
    bank.start()
    mark = bank.transfers
    wait_until(lambda: bank.transfers > mark + 50, what="transfers")
    target.execute("DELETE FROM checking WHERE id % 2 = 0")
    there = target.value("SELECT count(*) FROM checking")
    target.execute("UPDATE penstock.tables SET request = 'resync' WHERE table_name = 'checking'")

    fault = {"PENSTOCK_FAULT": "copy.before_finish"}
    command = penstock_command("run", str(path), env=fault)
    wait_until(lambda: command.is_struck, 90, what="the fault to strike")
    command.kill()

    assert there <= target.value("SELECT count(*) FROM checking") < 3000
    command = penstock_command("run", str(path), env={"PENSTOCK_FAULT": "copy.after_merge"})
    wait_until(lambda: command.is_struck, 90, what="the fault to strike")
    command.kill()
    finish(bank, path, penstock_command, source, target)
