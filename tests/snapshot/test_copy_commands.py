"""penstock snapshot and penstock tables, as an operator uses them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from fix_command import run_penstock
from fix_pipeline import ALWAYS_COPIED, assert_equal, status_of
from fix_postgres import only_new
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_pipeline import Command, RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]
    Start = Callable[..., Command]
    WriteFile = Callable[..., Path]


pytestmark = only_new


def states(path: Path) -> dict[str, str]:
    """Each table's state."""
    tables = status_of(path)["sinks"]["target"]["tables"]
    return {name: reported["state"] for name, reported in tables.items()}


@pytest.mark.long
def test_snapshot_copies_and_ends_and_copies_again_what_is_named(
    source: Database, target: Database, pipeline_file: WriteFile
) -> None:
    source.execute("CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1), (2)")
    source.execute("CREATE TABLE b (id int PRIMARY KEY); INSERT INTO b VALUES (1), (2)")
    # `never` is about what run does; snapshot is asked to copy.
    path = pipeline_file(source, target, tables=("public.*",))

    first = run_penstock("snapshot", path)
    assert (first.returncode, first.stdout.splitlines()) == (
        0,
        ["public.a: copied and caught up", "public.b: copied and caught up"],
    ), first.stderr
    assert_equal(source, target, "a", "b")

    target.execute("DELETE FROM a; DELETE FROM b")
    again = run_penstock("snapshot", path, "--table", "a")
    assert (again.returncode, again.stdout) == (0, "public.a: copied and caught up\n"), again.stderr
    assert_equal(source, target, "a")
    assert target.value("SELECT count(*) FROM b") == 0


@pytest.mark.long
def test_tables_are_added_removed_and_copied_again_while_the_pipeline_runs(
    source: Database, target: Database, make_pipeline: Make, pipeline_file: WriteFile
) -> None:
    for name in ("a", "b"):
        source.execute(f"CREATE TABLE {name} (id int PRIMARY KEY); INSERT INTO {name} VALUES (1)")
    options = {"tables": ("public.a",), "source_options": ALWAYS_COPIED}
    pipeline = make_pipeline(source, target, **options)
    path = pipeline_file(source, target, **options)
    pipeline.catch_up()

    added = run_penstock("tables", path, "add", "b")
    assert (added.returncode, added.stdout) == (
        0,
        "public.b: followed from now on; copied first\n",
    ), added.stderr
    wait_until(lambda: states(path) == {"public.a": "streaming", "public.b": "streaming"})
    source.execute("INSERT INTO b VALUES (2)")
    pipeline.catch_up()
    assert_equal(source, target, "a", "b")

    target.execute("INSERT INTO a VALUES (77)")
    assert run_penstock("tables", path, "resync", "public.*").returncode == 0
    wait_until(lambda: target.value("SELECT count(*) FROM a") == 1, what="the row to vanish")

    assert run_penstock("tables", path, "remove", "b").returncode == 0
    wait_until(lambda: states(path).get("public.b") == "removed", what="the table to be let go")
    source.execute("INSERT INTO b VALUES (3); INSERT INTO a VALUES (3)")
    pipeline.catch_up()
    assert_equal(source, target, "a")
    assert target.value("SELECT count(*) FROM b") == 2
    listed = json.loads(run_penstock("tables", path, "list", "--json").stdout)
    assert listed["target"]["public.b"]["state"] == "removed"

    # What was removed stays so across a restart, and comes back when it is added again.
    pipeline.stop()
    pipeline.start()
    pipeline.catch_up()
    assert states(path)["public.b"] == "removed"
    assert run_penstock("tables", path, "add", "b").returncode == 0
    wait_until(lambda: states(path)["public.b"] == "streaming", what="the table to be copied")
    assert_equal(source, target, "b")


@pytest.mark.parametrize(
    ("statement", "name", "said"),
    [
        ("SELECT 1", "nope", "PEN-212 public.nope: does not exist"),
        ("CREATE VIEW v AS SELECT 1 AS x", "v", "PEN-212 public.v: is a view, wanted a table"),
        ("CREATE UNLOGGED TABLE u (id int PRIMARY KEY)", "u", "PEN-212 public.u: is unlogged"),
        ("CREATE TABLE k (id int)", "k", "PEN-211 public.k: no primary key"),
        ("SELECT 1", "public.*", "is a wildcard, wanted one table"),
        ("SELECT 1", "a.b.c", "has 3 parts"),
    ],
)
def test_table_that_cannot_be_added_is_refused_and_nothing_changes(
    source: Database,
    target: Database,
    pipeline_file: WriteFile,
    statement: str,
    name: str,
    said: str,
) -> None:
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    source.execute(statement)
    path = pipeline_file(source, target, tables=("public.a",))
    assert run_penstock("init", path).returncode == 0
    members = "SELECT pubname, tablename FROM pg_publication_tables"
    comments = "SELECT obj_description(oid, 'pg_publication') FROM pg_publication ORDER BY 1"
    before = source.query(members), source.query(comments)

    refused = run_penstock("tables", path, "add", "a", name)

    assert refused.returncode in (1, 2)
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr
    assert (source.query(members), source.query(comments)) == before


def test_tables_wants_names_and_a_pipeline_that_was_made(
    source: Database, target: Database, pipeline_file: WriteFile
) -> None:
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    path = pipeline_file(source, target, tables=("public.a",))

    too_early = run_penstock("tables", path, "add", "a")
    without = run_penstock("tables", path, "resync")
    unknown = run_penstock("tables", path, "resync", "other")

    assert (too_early.returncode, "penstock init or run first" in too_early.stderr) == (1, True)
    assert (without.returncode, "resync without a table" in without.stderr) == (2, True)
    assert (unknown.returncode, "PEN-212 other" in unknown.stderr) == (1, True)


@pytest.mark.long
def test_worker_copies_for_a_pipeline_that_runs_elsewhere(
    source: Database,
    target: Database,
    make_pipeline: Make,
    pipeline_file: WriteFile,
    penstock_command: Start,
) -> None:
    source.execute("CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1)")
    options = {"tables": ("public.*",), "source_options": ALWAYS_COPIED}
    path = pipeline_file(source, target, **options)
    assert run_penstock("init", path).returncode == 0
    worker = penstock_command("snapshot", "--worker", str(path))
    claims = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted"
    in_target = f"{claims} AND database = (SELECT oid FROM pg_database WHERE datname = %s)"
    wait_until(
        lambda: target.value(in_target, target.name), 90, what="the worker to claim the copies"
    )

    pipeline = make_pipeline(source, target, **options)
    pipeline.catch_up()

    wait_until(lambda: "copied 1 tables" in worker.stderr, what="the worker to say so")
    assert_equal(source, target, "a")
    source.execute("INSERT INTO a VALUES (2)")
    pipeline.catch_up()
    assert_equal(source, target, "a")
    assert worker.terminate() == 0


def test_copy_keeps_to_the_rows_a_second_it_was_allowed(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
    source.execute("INSERT INTO a SELECT g, repeat('x', 1000) FROM generate_series(1, 3000) g")
    options = {"mode": "initial", "parallel": 1, "max_rows_per_second": 1500}
    pipeline = make_pipeline(source, target, source_options={"snapshot": options})
    pipeline.catch_up()
    assert_equal(source, target, "a")
    seconds = "SELECT extract(epoch FROM copied_at - snapshot_at) FROM penstock.tables"
    assert target.value(seconds) > 1.5  # 2 s, less what fits into the last block
