"""Tables that leave the rules and come back are copied again: what was written meanwhile was not sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from test_membership_e2e import published

from fix_copies import read
from fix_pipeline import INITIAL, assert_equal, rows, table_state
from fix_postgres import only_new
from fix_wait import wait_until
from penstock.run.requests import add_tables, remove_tables

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]

_TABLES = {"include": ["public.*"], "exclude": ["public.no_t"]}
_CREATE = (
    "CREATE TABLE public.t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b')"
)

# How it goes, where it is meanwhile, how it comes back, and what it is called then.
_WAYS = {
    "schema": (
        "ALTER TABLE public.t SET SCHEMA other",
        "other.t",
        "ALTER TABLE other.t SET SCHEMA public",
        "public.t",
    ),
    "rename": (
        "ALTER TABLE public.t RENAME TO no_t",
        "public.no_t",
        "ALTER TABLE public.no_t RENAME TO t",
        "public.t",
    ),
    "both": (
        "ALTER TABLE public.t RENAME TO x; ALTER TABLE public.x SET SCHEMA other",
        "other.x",
        "ALTER TABLE other.x SET SCHEMA public; ALTER TABLE public.x RENAME TO t",
        "public.t",
    ),
    "new_name": (
        "ALTER TABLE public.t SET SCHEMA other",
        "other.t",
        "ALTER TABLE other.t RENAME TO u; ALTER TABLE other.u SET SCHEMA public",
        "public.u",
    ),
    "altered": (
        "ALTER TABLE public.t SET SCHEMA other",
        "other.t",
        "ALTER TABLE other.t ADD n int DEFAULT 7; ALTER TABLE other.t SET SCHEMA public",
        "public.t",
    ),
    "identity": (
        "ALTER TABLE public.t REPLICA IDENTITY NOTHING",
        "public.t",
        "ALTER TABLE public.t REPLICA IDENTITY DEFAULT",
        "public.t",
    ),
    "by_hand": ("ALTER PUBLICATION penstock_test DROP TABLE t", "public.t", "", "public.t"),
}
_QUICK = ("schema", "running", "created_in_stream")


def _cases() -> list[Any]:
    every = [
        (way, running, origin)
        for way in _WAYS
        for running in ("running", "stopped")
        for origin in ("created_in_stream", "copied")
        # A start publishes again at once what was taken out by hand.
        if (way, running) != ("by_hand", "stopped")
    ]
    return [pytest.param(*case, marks=() if case == _QUICK else pytest.mark.long) for case in every]


def _begin(
    source: Database, make_pipeline: Make, target: Database | None, origin: str, **options: Any
) -> RunningPipeline:
    """A pipeline that follows `t`, which was there before it or not, and another table."""
    source.execute("CREATE SCHEMA other; CREATE TABLE public.k (id int PRIMARY KEY)")
    if origin == "copied":
        source.execute(_CREATE)
    pipeline = make_pipeline(source, target, tables=_TABLES, source_options=INITIAL, **options)
    pipeline.catch_up()
    if origin == "created_in_stream":
        source.execute(_CREATE)
        pipeline.catch_up()
    return pipeline


def _write_outside(source: Database, table: str) -> None:
    source.execute(f"INSERT INTO {table} VALUES (3, 'outside'); DELETE FROM {table} WHERE id = 1")


def _end(source: Database, pipeline: RunningPipeline, name: str) -> None:
    """Write to the table once it is published again, and catch up."""
    wait_until(lambda: name in published(source), what="it to be published")
    source.execute(
        f"INSERT INTO {name} (id, v) VALUES (4, 'back'); UPDATE {name} SET v = 'c' WHERE id = 2"
    )
    pipeline.catch_up()
    source.execute("INSERT INTO k VALUES (1)")
    pipeline.catch_up()


def _wait_until_equal(source: Database, target: Database, *tables: str) -> None:
    """Sinks notice what came back a moment after it is published."""
    for table in tables:
        wait_until(lambda: rows(target, table) == rows(source, table), what=f"{table} to be equal")  # noqa: B023


@only_new
@pytest.mark.parametrize(("way", "running", "origin"), _cases())
def test_table_that_left_the_rules_and_came_back_is_copied_again(
    source: Database, target: Database, make_pipeline: Make, way: str, running: str, origin: str
) -> None:
    pipeline = _begin(source, make_pipeline, target, origin)
    assert_equal(source, target, "public.t")
    out, meanwhile, back, name = _WAYS[way]
    is_stopped = running == "stopped"

    if is_stopped:
        pipeline.stop()
    source.execute(out)
    if is_stopped:
        pipeline.start()
    wait_until(lambda: not published(source) & {"public.t", meanwhile}, what="it to be let go")
    if is_stopped:
        pipeline.catch_up()
        pipeline.stop()
    _write_outside(source, meanwhile)
    if back:
        source.execute(back)
    if is_stopped:
        pipeline.start()
    _end(source, pipeline, name)

    _wait_until_equal(source, target, name, "k")


@pytest.mark.long
@only_new
@pytest.mark.parametrize("origin", ["created_in_stream", "copied"])
def test_table_that_goes_and_comes_back_unwatched_keeps_all_its_rows(
    source: Database, target: Database, make_pipeline: Make, origin: str
) -> None:
    pipeline = _begin(source, make_pipeline, target, origin)
    out, meanwhile, back, name = _WAYS["schema"]

    pipeline.stop()
    source.execute(out)
    _write_outside(source, meanwhile)
    source.execute(back)
    pipeline.start()
    _end(source, pipeline, name)

    _wait_until_equal(source, target, name, "k")


@pytest.mark.long
@only_new
@pytest.mark.parametrize("is_logged_at_once", [True, False])
def test_new_table_that_is_unlogged_for_a_while_has_all_its_rows_in_the_end(
    source: Database, target: Database, make_pipeline: Make, is_logged_at_once: bool
) -> None:
    pipeline = _begin(source, make_pipeline, target, "never")
    logged = "ALTER TABLE t SET LOGGED"

    source.execute(
        f"BEGIN; {_CREATE}; ALTER TABLE t SET UNLOGGED; INSERT INTO t VALUES (3, 'unlogged');"
        f" {logged if is_logged_at_once else ''}; DELETE FROM t WHERE id = 1; COMMIT"
    )
    if not is_logged_at_once:
        pipeline.catch_up()
        source.execute(logged)
    _end(source, pipeline, "public.t")

    _wait_until_equal(source, target, "public.t", "k")


@pytest.mark.long
@only_new
def test_table_that_people_remove_and_add_is_copied_again(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    pipeline = _begin(source, make_pipeline, target, "created_in_stream")

    remove_tables(pipeline.file, ["public.t"])
    wait_until(lambda: table_state(target, "t") == "removed", what="it to be let go")
    _write_outside(source, "public.t")
    add_tables(pipeline.file, ["public.t"])
    _end(source, pipeline, "public.t")

    _wait_until_equal(source, target, "public.t", "k")


@pytest.mark.long
@only_new
def test_table_that_the_file_leaves_out_for_a_while_is_copied_again(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    pipeline = _begin(source, make_pipeline, target, "created_in_stream")
    pipeline.stop()
    without = make_pipeline(source, target, tables=("public.k",), source_options=INITIAL)
    wait_until(lambda: "public.t" not in published(source), what="it to be let go")
    without.stop()
    _write_outside(source, "public.t")

    pipeline.start()
    _end(source, pipeline, "public.t")

    _wait_until_equal(source, target, "public.t", "k")


@pytest.mark.long
@only_new
def test_another_table_may_have_the_name_meanwhile(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    pipeline = _begin(source, make_pipeline, target, "created_in_stream")

    source.execute("ALTER TABLE public.t SET SCHEMA other")
    source.execute(
        "CREATE TABLE public.t (id int CONSTRAINT other_pkey PRIMARY KEY, w int);"
        "INSERT INTO t VALUES (9, 9)"
    )
    wait_until(lambda: "other.t" not in published(source), what="it to be let go")
    _write_outside(source, "other.t")
    source.execute("ALTER TABLE other.t RENAME TO u; ALTER TABLE other.u SET SCHEMA public")
    _end(source, pipeline, "public.u")
    source.execute("INSERT INTO t VALUES (10, 10)")
    pipeline.catch_up()

    _wait_until_equal(source, target, "public.t", "public.u", "k")


@pytest.mark.long
@only_new
@pytest.mark.parametrize("way", ["schema", "identity", "by_hand"])
def test_documents_of_a_table_that_came_back_bring_all_its_rows(
    source: Database, make_pipeline: Make, tmp_path: Path, way: str
) -> None:
    directory = tmp_path / "out"
    sink = {"kind": "file", "path": str(directory)}
    pipeline = _begin(source, make_pipeline, None, "created_in_stream", sink=sink)
    out, meanwhile, back, name = _WAYS[way]

    source.execute(out)
    wait_until(lambda: not published(source) & {"public.t", meanwhile}, what="it to be let go")
    _write_outside(source, meanwhile)
    if back:
        source.execute(back)
    _end(source, pipeline, name)

    def reported_again() -> dict[str, str]:
        documents = [one for one in read(directory) if one["table"] == "t" and one["key"]]
        ops = [one["op"] for one in documents]
        again = documents[ops.index("read") :] if "read" in ops else []
        return {one["key"]["id"].digits: one["after"]["v"] for one in again}

    wanted = {"2": "c", "3": "outside", "4": "back"}
    wait_until(lambda: reported_again() == wanted, what="it to be reported again")
