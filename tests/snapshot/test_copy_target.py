"""What becomes of a copy when its target fails it, or penstock is asked to stop, in a bad moment."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from test_target_changes import as_writer

from fix_pipeline import (
    ALWAYS_COPIED,
    assert_equal,
    slowly,
    table_error,
    table_state,
    wait_for_state,
)
from fix_postgres import only_new
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_pipeline import Command, RunningPipeline
    from fix_postgres import Database, TwoServers

    Make = Callable[..., RunningPipeline]
    Small = Callable[[int], None]


def fill(source: Database, table: str, count: int) -> None:
    source.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)")
    source.execute(
        f"INSERT INTO {table} SELECT g, repeat('v', 50) || g FROM generate_series(1, {count}) g"
    )


def wait_for_ranges(target: Database, count: int) -> None:
    wait_until(
        lambda: (
            table_state(target, "t") == "copying"
            and target.value("SELECT count(*) FROM penstock.ranges") >= count
        ),
        60,
        what=f"{count} ranges to arrive",
    )


def copy_id(target: Database) -> str:
    found: str = target.value("SELECT copy_id FROM penstock.tables WHERE table_name = 't'")
    return found


@pytest.mark.long
@pytest.mark.parametrize("mode", ["fast", pytest.param("immediate", marks=pytest.mark.long)])
def test_restart_of_the_target_keeps_the_ranges_that_have_arrived(
    two_servers: TwoServers,
    make_pipeline: Make,
    small_ranges: Small,
    mode: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source, target = two_servers
    small_ranges(1)
    fill(source, "t", 4000)
    fill(source, "u", 300)
    pipeline = make_pipeline(source, target, source_options=slowly(2500))
    wait_for_ranges(target, 6)
    before = copy_id(target)

    target.server.restart(mode)
    source.execute("UPDATE t SET v = 'later' WHERE id % 10 = 0")
    pipeline.catch_up(120)

    assert_equal(source, target, "t", "u")
    assert copy_id(target) == before, "what had arrived was copied again"
    assert "is not copied" not in caplog.text


@pytest.mark.long
@only_new
def test_copier_that_loses_its_own_session_goes_on_with_what_its_tasks_have_brought(
    source: Database,
    target: Database,
    make_pipeline: Make,
    small_ranges: Small,
    caplog: pytest.LogCaptureFixture,
) -> None:
    small_ranges(1)
    fill(source, "t", 4000)
    pipeline = make_pipeline(source, target, source_options=slowly(1500))
    for count in (3, 12):
        wait_for_ranges(target, count)
        before = copy_id(target)
        wait_until(
            lambda: target.value(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name = 'penstock copies'"
            ),
            what="the copier's session",
        )
    pipeline.catch_up(120)

    assert_equal(source, target, "t")
    assert copy_id(target) == before, "what had arrived was copied again"
    assert "is not copied" not in caplog.text


@pytest.mark.long
@only_new
def test_connection_lost_after_a_table_was_made_leaves_none_without_its_key(
    source: Database,
    target: Database,
    make_pipeline: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(source, "t", 100)
    source.execute("CREATE INDEX t_v ON t (v)")
    lost: list[str] = []

    def lose_connection(point: str) -> None:
        if point == "copy.after_create" and not lost:
            lost.append(point)
            raise psycopg.OperationalError("lost")

    # Where tables are made in sets, and where one is made alone.
    for module in ("copy.new_tables", "copy.copying"):
        monkeypatch.setattr(f"penstock.sinks.postgres.{module}.fault_point", lose_connection)
    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    wait_until(lambda: lost, what="the connection to be lost")
    wait_for_state(target, "t", "streaming")
    pipeline.catch_up()

    assert_equal(source, target, "t")
    indexes = "SELECT indexdef FROM pg_indexes WHERE tablename = 't' ORDER BY 1"
    assert target.query(indexes) == source.query(indexes)


@only_new
def test_rows_in_a_shadow_table_that_a_crash_of_the_target_took_away_are_copied_again_and_not_merged(
    source: Database,
    target: Database,
    make_pipeline: Make,
    small_ranges: Small,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_ranges(1)
    fill(source, "t", 1000)
    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    pipeline.catch_up()
    target.execute("DELETE FROM t WHERE id < 10")
    crashed: list[str] = []

    def crash(point: str) -> None:
        if point == "copy.before_finish" and not crashed:
            # What is left of an unlogged table.
            shadows = target.query(
                "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
                " WHERE nspname = 'penstock' AND relname LIKE 'copy\\_%' AND relkind = 'r'"
            )
            for (shadow,) in shadows:
                target.execute(f"TRUNCATE penstock.{shadow}")
                crashed.append(copy_id(target))
        elif point == "copy.before_finish":
            counts.append(target.value("SELECT count(*) FROM t"))

    counts: list[int] = []
    monkeypatch.setattr("penstock.sinks.postgres.copy.copying.fault_point", crash)
    target.execute("UPDATE penstock.tables SET request = 'resync'")
    wait_until(lambda: crashed, what="the crash")
    query = "SELECT request IS NULL AND state = 'streaming' FROM penstock.tables"
    wait_until(lambda: target.value(query), 60, what="t to stream again")
    pipeline.catch_up()

    assert counts == [991], "what a reader saw in between"
    assert_equal(source, target, "t")
    assert copy_id(target) != crashed[0]
    assert table_error(target, "t") == ""


SLOW = """
    CREATE FUNCTION slow(n int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_sleep(%s); RETURN n; END $$
"""
BUILDING = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND query LIKE 'CREATE INDEX%' AND state = 'active' AND pid <> pg_backend_pid()"
)


@pytest.mark.long
@only_new
def test_stop_does_not_wait_for_an_index_and_the_next_start_makes_it(
    source: Database,
    target: Database,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    source.execute(SLOW % 0)
    target.execute(SLOW % 1000)
    fill(source, "t", 100)
    # Several: the one that is cancelled is not taken for one that cannot be made.
    for number in range(3):
        source.execute(f"CREATE INDEX t_{number} ON t (public.slow(id + {number}))")
    path = pipeline_file(
        source,
        target,
        source_options=ALWAYS_COPIED,
        sink={"allow_functions": ["public.slow"]},
    )
    command = penstock_command("run", str(path))
    wait_until(lambda: target.value(BUILDING), 60, what="an index to be made")

    began = time.monotonic()
    command.terminate()
    assert time.monotonic() - began < 10
    wait_until(lambda: not target.value(BUILDING), 5, what="nothing to be made any more")
    assert table_state(target, "t") == "copying"

    target.execute("DROP FUNCTION slow CASCADE; " + SLOW % 0)
    source.execute("DELETE FROM t WHERE id < 10")
    again = penstock_command("run", str(path), "--until-caught-up")
    assert again.wait() == 0, again.stderr

    assert_equal(source, target, "t")
    indexes = "SELECT indexdef FROM pg_indexes WHERE tablename = 't' ORDER BY 1"
    assert target.query(indexes) == source.query(indexes)
    assert target.value("SELECT notes FROM penstock.tables") is None


@only_new
@pytest.mark.parametrize("role", ["superuser", pytest.param("writer", marks=pytest.mark.long)])
def test_second_attempt_takes_no_rows_of_other_tables_along(
    source: Database, target: Database, make_pipeline: Make, small_ranges: Small, role: str
) -> None:
    small_ranges(1)
    fill(source, "t", 2000)
    # As pg_dump -s leaves it; the last range is refused at first.
    target.execute("CREATE TABLE t (id int PRIMARY KEY, v text CHECK (length(v) < 54))")
    target.execute("CREATE TABLE vip (id int REFERENCES t ON DELETE CASCADE)")
    url = target if role == "superuser" else as_writer(target)
    target.execute("GRANT ALL ON t TO PUBLIC; GRANT REFERENCES ON t TO PUBLIC")
    pipeline = make_pipeline(source, url, source_options=ALWAYS_COPIED)
    wait_for_state(target, "t", "failed")
    assert target.value("SELECT count(*) FROM t WHERE id = 1") == 1
    target.execute("INSERT INTO vip VALUES (1)")

    source.execute("DELETE FROM t WHERE id = 2; UPDATE t SET v = 'fits'")
    target.execute("UPDATE penstock.tables SET retry_at = now() WHERE state = 'failed'")
    wait_for_state(target, "t", "streaming")
    pipeline.catch_up()

    assert_equal(source, target, "t")
    assert target.query("SELECT id FROM vip") == [(1,)]


@only_new
def test_rows_that_somebody_puts_there_between_two_attempts_are_not_emptied(
    source: Database, target: Database, make_pipeline: Make, small_ranges: Small
) -> None:
    small_ranges(1)
    fill(source, "t", 2000)
    target.execute("CREATE TABLE t (id int PRIMARY KEY, v text CHECK (length(v) < 54))")
    make_pipeline(source, target, source_options=ALWAYS_COPIED)
    wait_for_state(target, "t", "failed")
    assert target.value("SELECT count(*) FROM t WHERE id = 1") == 1

    target.execute("INSERT INTO t VALUES (-1, 'own'); ALTER TABLE t DROP CONSTRAINT t_v_check")
    target.execute("UPDATE penstock.tables SET retry_at = now() WHERE state = 'failed'")

    wait_until(lambda: "PEN-513" in table_error(target, "t"), what="the table to be refused")
    assert target.value("SELECT v FROM t WHERE id = -1") == "own"
