"""A target in other hands: roles with few rights, foreign keys, tables dropped and altered by people."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg
import pytest
from test_conflicts import all_at_once, stopped, wait_for_fix, wait_for_stop

from fix_pipeline import assert_equal, rows, status_of
from fix_postgres import only_15, only_new
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]


def as_writer(target: Database) -> str:
    """The URL of a role that owns what it makes and may do nothing else."""
    target.execute("CREATE ROLE writer LOGIN")
    target.execute(f'GRANT CREATE ON DATABASE "{target.name}" TO writer')
    target.execute("GRANT CREATE, USAGE ON SCHEMA public TO writer")
    return target.server.dsn(target.name, user="writer")


@pytest.mark.long
@only_new
def test_dropped_target_table_stops_until_a_person_brings_it_back(
    source: Database,
    target: Database,
    make_pipeline: Make,
    pipeline_file: Callable[..., Path],
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE good (id int PRIMARY KEY)"
    )
    pipeline = make_pipeline(source, target)
    source.execute(
        "INSERT INTO t SELECT g, 'v' FROM generate_series(1, 10) g; INSERT INTO good VALUES (1)"
    )
    pipeline.catch_up()

    target.execute("DROP TABLE t")
    source.execute("INSERT INTO t VALUES (11, 'v'); UPDATE t SET v = 'w' WHERE id = 3")
    source.execute("INSERT INTO good VALUES (2)")
    assert "public.t is gone" in wait_for_stop(pipeline, "public.t")
    pipeline.stop()
    pipeline.start()
    source.execute("DELETE FROM t WHERE id = 4; INSERT INTO good VALUES (3)")
    pipeline.catch_up()
    # It has been tried again, by both processes, and was not made anew with half of its rows.
    reported = status_of(pipeline_file(source, target))
    table = reported["sinks"]["target"]["tables"]["public.t"]
    assert (table["state"], reported["phase"]) == ("failed", "failed")
    assert "public.t is gone" in table["error"]
    good = reported["sinks"]["target"]["tables"]["public.good"]
    assert (good["state"], good["error"], good["delivered_lsn"]) == ("streaming", None, None)
    assert target.value("SELECT to_regclass('t')") is None
    assert_equal(source, target, "good")
    target.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    target.execute("INSERT INTO t SELECT g, 'v' FROM generate_series(1, 10) g")
    wait_for_fix(pipeline)

    assert_equal(source, target, "t")


@pytest.mark.long
@only_15
def test_altered_target_table_stops_until_it_is_fixed(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE good (id int PRIMARY KEY)")
    source.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    for name in ("typed", "keyed", "enumed"):
        source.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text, m mood)")
    pipeline = make_pipeline(source, target)
    for name in ("typed", "keyed", "enumed"):
        source.execute(f"INSERT INTO {name} SELECT g, g::text, 'ok' FROM generate_series(1, 10) g")
    pipeline.catch_up()

    target.execute("ALTER TABLE typed ALTER v TYPE int USING v::int")
    target.execute("ALTER TABLE keyed RENAME id TO key")
    target.execute("DROP TYPE mood CASCADE; CREATE TYPE mood AS ENUM ('sad')")
    target.execute("ALTER TABLE enumed ADD m mood")
    for name in ("typed", "keyed", "enumed"):
        source.execute(
            f"INSERT INTO {name} VALUES (11, 'canary', 'ok'); DELETE FROM {name} WHERE id = 2"
        )
    source.execute("INSERT INTO good VALUES (1)")
    pipeline.catch_up()
    wait_until(lambda: len(stopped(pipeline)) == 3, what="three tables to stop")
    reported = stopped(pipeline)
    assert "key (id=11)" in reported["public.typed"]
    assert "canary" not in str(reported)
    assert_equal(source, target, "good")
    target.execute("ALTER TABLE typed ALTER v TYPE text; ALTER TABLE keyed RENAME key TO id")
    target.execute("ALTER TYPE mood ADD VALUE 'ok'")
    target.execute("UPDATE enumed SET m = 'ok'")
    for name in ("typed", "keyed"):
        target.execute(f"ALTER TABLE {name} ADD m mood; UPDATE {name} SET m = 'ok'")
    source.execute("UPDATE typed SET m = 'ok'; UPDATE keyed SET m = 'ok'")
    wait_for_fix(pipeline)

    assert_equal(source, target, "typed", "keyed", "enumed")


@pytest.mark.long
@only_15
def test_stopped_table_leaves_nothing_behind_and_goes_on_while_others_are_busy(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TABLE bad (id int PRIMARY KEY, v text); CREATE TABLE busy (id serial PRIMARY KEY)"
    )
    target.execute("CREATE TABLE bad (id int PRIMARY KEY, v text CHECK (v <> 'canary'))")
    pipeline = make_pipeline(source, target)
    staged = "SELECT count(*) FROM pg_class WHERE relnamespace = 'penstock'::regnamespace AND relname LIKE 'stage%'"
    end = threading.Event()

    def write() -> None:
        with source.connect() as connection:
            while not end.is_set():
                connection.execute("INSERT INTO busy DEFAULT VALUES")

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        source.execute("INSERT INTO bad SELECT g, repeat('x', 500) FROM generate_series(1, 2000) g")
        source.execute("UPDATE bad SET v = 'canary' WHERE id = 1000")
        wait_until(lambda: stopped(pipeline), what="the table to stop")
        target.execute("ALTER TABLE bad DROP CONSTRAINT bad_v_check")
        wait_until(lambda: not stopped(pipeline), 10, what="the table to go on beside busy ones")
    finally:
        end.set()
        for writer in writers:
            writer.join()
    pipeline.catch_up()

    assert_equal(source, target, "bad", "busy")
    wait_until(lambda: target.value(staged) == 0, what="staging tables to be dropped")


@pytest.mark.long
@only_new
def test_stopped_table_that_is_tried_again_leaves_no_staging_tables(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE bad (id int PRIMARY KEY, v text)")
    target.execute("CREATE TABLE bad (id int PRIMARY KEY, v text CHECK (v <> 'canary'))")
    pipeline = make_pipeline(source, target)
    source.execute("INSERT INTO bad SELECT g, repeat('x', 500) FROM generate_series(1, 2000) g")
    source.execute("INSERT INTO bad VALUES (0, 'canary')")
    wait_for_stop(pipeline, "public.bad")

    # Each attempt stages the backlog; what the reason says changes when another one has been made.
    target.execute("ALTER TABLE bad RENAME CONSTRAINT bad_v_check TO renamed")
    wait_until(lambda: "renamed" in stopped(pipeline).get("public.bad", ""), what="another attempt")
    target.execute("ALTER TABLE bad RENAME CONSTRAINT renamed TO again")
    wait_until(lambda: "again" in stopped(pipeline).get("public.bad", ""), what="another attempt")

    staged = target.query(
        "SELECT relname FROM pg_class WHERE relnamespace = 'penstock'::regnamespace AND relname LIKE 'stage%'"
    )
    assert len(staged) <= 1


def test_role_that_cannot_switch_triggers_off_keeps_foreign_keys(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    url = as_writer(target)
    ddl = (
        "CREATE TABLE parent (id int PRIMARY KEY, up int REFERENCES parent, v text);"
        "CREATE TABLE child (id int PRIMARY KEY, parent int NOT NULL REFERENCES parent ON DELETE CASCADE);"
        "CREATE TABLE grandchild (id int PRIMARY KEY, child int NOT NULL REFERENCES child)"
    )
    source.execute(ddl)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(ddl)
    pipeline = make_pipeline(source, url)

    all_at_once(
        source,
        "INSERT INTO parent SELECT g, nullif(g - 1, 0), 'v' FROM generate_series(1, 20) g",
        "INSERT INTO child SELECT g, g FROM generate_series(1, 20) g",
        "INSERT INTO grandchild SELECT g, g FROM generate_series(1, 20) g",
    )
    pipeline.catch_up()
    assert not stopped(pipeline)
    assert_equal(source, target, "parent", "child", "grandchild")
    all_at_once(
        source,
        "DELETE FROM grandchild WHERE id > 10",
        "DELETE FROM child WHERE id > 12",
        "UPDATE parent SET up = NULL WHERE id > 14",
        "DELETE FROM parent WHERE id > 14",
        "INSERT INTO parent VALUES (100, 1, 'new')",
        "UPDATE child SET parent = 100 WHERE id = 1",
        "INSERT INTO child VALUES (100, 100)",
        "INSERT INTO grandchild VALUES (100, 100)",
        "UPDATE parent SET v = 'w' WHERE id < 5",
    )
    pipeline.catch_up()
    assert not stopped(pipeline)
    assert_equal(source, target, "parent", "child", "grandchild")
    source.execute("TRUNCATE parent CASCADE")
    pipeline.catch_up()

    assert not stopped(pipeline)
    assert_equal(source, target, "parent", "child", "grandchild")


@pytest.mark.parametrize("role", ["postgres", "writer"])
@only_15
def test_keys_of_many_rows_shift_at_once_whatever_the_role(
    source: Database, target: Database, make_pipeline: Make, role: str
) -> None:
    url = as_writer(target)
    source.execute("CREATE TABLE t (id int PRIMARY KEY, n int, big text, more text)")
    source.execute("ALTER TABLE t ALTER big SET STORAGE EXTERNAL, ALTER more SET STORAGE EXTERNAL")
    pipeline = make_pipeline(source, url if role == "writer" else target)
    # Some rows have one value out of line, some two.
    source.execute(
        "INSERT INTO t SELECT g, g, repeat(md5(g::text), 80),"
        " CASE WHEN g % 3 = 0 THEN repeat(md5(g::text), 90) END FROM generate_series(1, 1500) g"
    )
    pipeline.catch_up()

    source.execute("UPDATE t SET id = id - 1")
    pipeline.catch_up()
    assert_equal(source, target, "t")
    all_at_once(
        source,
        "UPDATE t SET id = -1 WHERE id = 7",
        "UPDATE t SET id = 7 WHERE id = 8",
        "UPDATE t SET id = 8, n = 0 WHERE id = -1",
        "UPDATE t SET id = id + 5000 WHERE id < 100",
        "UPDATE t SET id = id - 5000 WHERE id >= 5000",
    )
    pipeline.catch_up()

    assert not stopped(pipeline)
    assert_equal(source, target, "t")


@only_new
def test_deferred_constraint_stops_only_its_table(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    url = as_writer(target)
    for name in ("parent", "good"):
        source.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
    source.execute("CREATE TABLE child (id int PRIMARY KEY, p int); INSERT INTO parent VALUES (1)")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE parent (id int PRIMARY KEY)")
        connection.execute(
            "CREATE TABLE child (id int PRIMARY KEY,"
            " p int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)"
        )
    pipeline = make_pipeline(source, url)

    all_at_once(source, "INSERT INTO child VALUES (4, NULL), (5, 1)", "INSERT INTO good VALUES (1)")
    reason = wait_for_stop(pipeline, "public.child")
    assert "key (id=5)" in reason
    assert "child_p_fkey" in reason
    assert_equal(source, target, "good")
    target.execute("INSERT INTO parent VALUES (1)")
    wait_for_fix(pipeline)

    assert_equal(source, target, "child")


@only_new
def test_missing_privilege_on_one_table_stops_only_that_one(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    url = as_writer(target)
    source.execute("CREATE SCHEMA closed; CREATE TABLE closed.t (id int PRIMARY KEY)")
    source.execute(
        "CREATE TABLE good (id int PRIMARY KEY); CREATE TABLE locked (id int PRIMARY KEY)"
    )
    target.execute("CREATE SCHEMA closed; CREATE TABLE locked (id int PRIMARY KEY)")
    pipeline = make_pipeline(source, url)

    source.execute("INSERT INTO closed.t VALUES (1); INSERT INTO locked VALUES (1)")
    source.execute("INSERT INTO good VALUES (1)")
    pipeline.catch_up()
    wait_until(lambda: len(stopped(pipeline)) == 2, what="two tables to stop")
    reported = stopped(pipeline)
    assert "permission denied" in reported["closed.t"]
    assert "permission denied" in reported["public.locked"]
    assert_equal(source, target, "good")
    target.execute("GRANT USAGE, CREATE ON SCHEMA closed TO writer; GRANT ALL ON locked TO writer")
    wait_for_fix(pipeline)

    assert_equal(source, target, "closed.t", "locked")
    assert rows(target, "closed.t") == [("(1)",)]
