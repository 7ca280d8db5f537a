"""The role's own statement_timeout, and merges of the stream: it ends what is slow, and nothing else."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from fix_postgres import only_new
from fix_wait import wait_until
from penstock import testing
from penstock.errors import TargetTableUnfit
from penstock.sinks.postgres.connect import connect_target
from penstock.sinks.postgres.expressions.time_limit import merge_time_limit, note_cancelled
from penstock.sinks.postgres.mapping.plan import TablePlan, TargetColumn
from penstock.sinks.postgres.merge.careful import merge_table
from penstock.sinks.postgres.merge.quick import merge_steps
from penstock.sinks.postgres.merge.receipts import staged_steps
from penstock.sinks.postgres.merge.stages import Stages
from penstock.sinks.postgres.options import OnConflict
from penstock.sinks.postgres.worker import PostgresWorker
from penstock.table import TableName
from penstock.testing import delete, insert, relation, table, transaction, truncate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fix_postgres import Database
    from penstock.sinks.postgres.mapping.plan import StagedStep

pytestmark = only_new

T = table(16400, "t", {"id": "int4", "v": "int4"}, key=["id"])

# Sequences keep what they were set to: a check tells which limits it ran under.
_TABLES = """
CREATE SEQUENCE statement_ms; CREATE SEQUENCE lock_ms;
CREATE FUNCTION noted(int) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
    PERFORM setval('public.statement_ms',
        (extract(epoch FROM current_setting('statement_timeout')::interval) * 1000)::bigint);
    PERFORM setval('public.lock_ms',
        (extract(epoch FROM current_setting('lock_timeout')::interval) * 1000)::bigint);
    RETURN $1 < 100 OR pg_sleep(20) IS NOT NULL; END $$;
CREATE TABLE t (id int PRIMARY KEY, v int CHECK (v = 2 OR public.noted(v)));
"""
_SECONDS = 0.3


class Target:
    """A table with a check, at a database with a limit, and what merges into it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        database.execute(_TABLES)
        database.execute(f"ALTER DATABASE {database.name} SET statement_timeout = '300ms'")
        database.execute("CREATE SCHEMA penstock")
        name = TableName("public", "t")
        columns = (TargetColumn("id", "integer", True), TargetColumn("v", "integer", True))
        self.plan = TablePlan(
            source=name, target=name, columns=columns, others=(), key=("id",), evaluates=True
        )
        self.connection = connect_target(database.dsn, "test")
        self.stages = Stages()

    def steps(self, *changes: bytes) -> list[StagedStep]:
        worker = PostgresWorker(
            self.database.dsn, "stage_test_", {self.plan.source: self.plan}, frozenset()
        )
        task = worker.begin(0)
        task.take(testing.changes([relation(T), *transaction(5, *changes)]))
        steps = staged_steps([task.finish()])
        assert not self.stages.prepare(self.connection, steps)
        return steps

    def merge(self, steps: list[StagedStep], *, is_careful: bool = False) -> Any:
        conflict = OnConflict.REPLACE
        with self.connection.transaction(), self.connection.cursor() as cursor:
            if is_careful:
                return merge_table(
                    cursor, self.plan, steps, self.stages, conflict, replica_role=False
                )
            return merge_steps(
                cursor, steps, lambda _: self.plan, self.stages, conflict, replica_role=True
            )

    def ran_under(self) -> tuple[int, int]:
        query = "SELECT s.last_value, l.last_value FROM statement_ms s, lock_ms l"
        return self.database.query(query)[0]


@pytest.fixture
def limited(target: Database) -> Iterator[Target]:
    made = Target(target)
    yield made
    made.connection.close()


def _in_background(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except psycopg.Error as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


@pytest.mark.parametrize("is_careful", [False, True], ids=["quick", "careful"])
@pytest.mark.parametrize(("count", "wanted"), [(1, (300, 150)), (10_001, (600, 300))])
def test_each_ten_thousand_rows_have_the_limit(
    limited: Target, count: int, wanted: tuple[int, int], is_careful: bool
) -> None:
    steps = limited.steps(
        *(insert(T, [str(number), "2" if number else "1"]) for number in range(count))
    )

    limited.merge(steps, is_careful=is_careful)

    assert limited.ran_under() == wanted
    with limited.connection.transaction():
        settings = limited.connection.execute(
            "SELECT current_setting('statement_timeout'), current_setting('lock_timeout')"
        ).fetchall()
    assert settings == [("0", "0")]


def test_rows_that_take_longer_stop_their_table(limited: Target) -> None:
    steps = limited.steps(insert(T, ["1", "200"]))

    stopped = limited.merge(steps, is_careful=True)

    assert isinstance(stopped, TargetTableUnfit)
    assert "statement_timeout" in stopped.what


@pytest.mark.parametrize("what", ["truncate", "delete"])
def test_what_evaluates_nothing_waits_for_a_lock_as_long_as_it_takes(
    limited: Target, what: str
) -> None:
    limited.database.execute("INSERT INTO t VALUES (1, 2)")
    steps = limited.steps(truncate(T) if what == "truncate" else delete(T, key=["1", None]))

    with limited.database.connect(autocommit=False) as reader:
        reader.execute("LOCK TABLE t IN SHARE MODE")
        merging, outcome = _in_background(lambda: limited.merge(steps))
        wait_until(
            lambda: (
                limited.database.value(
                    "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
                    " AND clock_timestamp() - query_start > interval '600 ms'",
                    limited.connection.info.backend_pid,
                )
                or outcome
            ),
            what="the merge to wait longer than the limit",
        )
        reader.rollback()
    merging.join()

    assert outcome == [{}]
    assert limited.database.query("SELECT FROM t") == []


@pytest.mark.parametrize("is_careful", [False, True], ids=["quick", "careful"])
def test_rows_in_front_of_a_lock_are_tried_again_and_stop_nothing(
    limited: Target, is_careful: bool
) -> None:
    steps = limited.steps(insert(T, ["1", "1"]))

    with limited.database.connect(autocommit=False) as other:
        other.execute("LOCK TABLE t IN SHARE MODE")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            limited.merge(steps, is_careful=is_careful)


@pytest.mark.parametrize("is_ours", [False, True], ids=["somebody's", "ours"])
def test_a_cancel_is_no_limit_however_long_the_statements_before_it_took(
    limited: Target, is_ours: bool
) -> None:
    steps = limited.steps(insert(T, ["1", "1"]))
    stage = limited.stages.place_of(steps[0])
    last = "SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep({})"

    def run() -> None:
        with (
            limited.connection.transaction(),
            limited.connection.cursor() as cursor,
            merge_time_limit(cursor, limited.plan, steps[0], stage) as timed,
        ):
            for _ in range(2):
                timed.execute(f"SELECT pg_sleep({_SECONDS / 2})")
            if is_ours:
                note_cancelled(limited.connection)
                timed.execute(f"SELECT pg_sleep({2 * _SECONDS})")
            timed.execute(last.format(2 * _SECONDS))

    with pytest.raises(psycopg.errors.QueryCanceled):
        run()
