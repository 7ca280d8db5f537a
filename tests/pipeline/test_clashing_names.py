"""Columns of the source whose names are those of something else at the target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fix_pipeline import INITIAL, table_error, wait_for_state
from fix_postgres import only_new
from penstock.run.requests import resync_tables

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]

pytestmark = only_new

SHARED: dict[str, Any] = {"source_id_column": "tenant"}
HISTORY: dict[str, Any] = {"tables": {"t": {"kind": "history"}}}


@pytest.mark.parametrize(
    ("sink", "change", "name"),
    [
        (SHARED, "ADD COLUMN tenant text DEFAULT 'main'", "tenant"),
        pytest.param(SHARED, "ADD COLUMN tenant text", "tenant", marks=pytest.mark.long),
        (HISTORY, "ADD COLUMN kvsz_deleted boolean DEFAULT true", "kvsz_deleted"),
        pytest.param(
            HISTORY, "RENAME COLUMN v TO kvsz_start", "kvsz_start", marks=pytest.mark.long
        ),
        pytest.param(
            {**SHARED, **HISTORY},
            "ADD COLUMN tenant text DEFAULT 'main'",
            "tenant",
            marks=pytest.mark.long,
        ),
    ],
    ids=["shared", "shared, no default", "history", "history, renamed", "shared history"],
)
def test_column_that_comes_under_a_name_of_penstocks_own_stops_its_table_and_changes_no_row(
    source: Database,
    target: Database,
    make_pipeline: Make,
    sink: dict[str, Any],
    change: str,
    name: str,
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE other (id int PRIMARY KEY)"
    )
    source.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    # A person's own table, which would allow that the column is empty.
    if sink is SHARED:
        target.execute("CREATE TABLE t (tenant text, id int, v text, UNIQUE (tenant, id))")
    pipeline = make_pipeline(source, target, sink=sink, source_options=INITIAL)
    pipeline.catch_up()
    before = target.query("SELECT * FROM t ORDER BY id")

    source.execute(f"ALTER TABLE t {change}")
    source.execute("UPDATE t SET id = id + 10; INSERT INTO other VALUES (1)")
    wait_for_state(target, "t", "failed")
    pipeline.catch_up()

    reported = table_error(target, "t")
    assert "PEN-507" in reported
    assert f"the source has a column {name}, which penstock is to fill at the target" in reported
    assert target.query("SELECT * FROM t ORDER BY id") == before
    assert target.query("SELECT id FROM other") == [(1,)]

    source.execute(f"ALTER TABLE t RENAME COLUMN {name} TO fitting")
    resync_tables(pipeline.file, ["t"])
    wait_for_state(target, "t", "streaming")
    source.execute("DELETE FROM t WHERE id = 11")
    pipeline.catch_up()
    alive = "" if sink is SHARED else " AND kvsz_end > now() AND NOT kvsz_deleted"
    assert target.query(f"SELECT id FROM t WHERE id > 10{alive}") == [(12,)]


def test_column_that_is_renamed_to_the_source_id_keeps_its_name_at_the_target(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    """A shared table follows no rename, so that nothing takes the name there."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')")
    pipeline = make_pipeline(source, target, sink=SHARED, source_options=INITIAL)
    pipeline.catch_up()

    source.execute("ALTER TABLE t RENAME COLUMN v TO tenant")
    source.execute("UPDATE t SET tenant = 'b'; INSERT INTO t VALUES (2, 'c')")
    pipeline.catch_up()

    assert target.query("SELECT tenant, id, v FROM t ORDER BY id") == [
        ("test", 1, "b"),
        ("test", 2, "c"),
    ]


@pytest.mark.parametrize("snapshot", ["initial", "never"])
def test_column_lands_under_the_name_of_one_that_is_not_delivered(
    source: Database, target: Database, make_pipeline: Make, snapshot: str
) -> None:
    source.execute("CREATE TABLE users (id int PRIMARY KEY, email text, mail text)")
    if snapshot == "initial":
        source.execute("INSERT INTO users VALUES (1, 'e1', 'm1')")
    pipeline = make_pipeline(
        source,
        target,
        sink={"tables": {"users": {"columns": {"id": None, "email": "mail"}}}},
        source_options={"snapshot": snapshot},
    )
    if snapshot == "never":
        source.execute("INSERT INTO users VALUES (1, 'e1', 'm1')")
    source.execute("INSERT INTO users VALUES (2, 'e2', 'm2'); UPDATE users SET mail = 'x'")
    source.execute(
        "ALTER TABLE users ADD COLUMN more int; UPDATE users SET email = 'e3' WHERE id = 2"
    )
    pipeline.catch_up()

    assert table_error(target, "users") == ""
    assert target.query("SELECT * FROM users ORDER BY id") == [(1, "e1"), (2, "e3")]


@pytest.mark.parametrize("is_met", [False, True], ids=["new", "there already"])
def test_column_of_a_type_without_equality_comes_with_its_default_into_a_shared_table(
    source: Database, target: Database, make_pipeline: Make, is_met: bool
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    pipeline = make_pipeline(source, target, sink=SHARED, source_options=INITIAL)
    pipeline.catch_up()
    target.execute("INSERT INTO t VALUES ('else', 1)")
    if is_met:
        target.execute("ALTER TABLE t ADD COLUMN meta json, ADD COLUMN place point")

    source.execute(
        "ALTER TABLE t ADD COLUMN meta json DEFAULT '{\"a\": 1}', ADD COLUMN place point DEFAULT '(1,2)'"
    )
    source.execute("INSERT INTO t VALUES (3, NULL, NULL)")
    pipeline.catch_up()

    assert table_error(target, "t") == ""
    found = target.query("SELECT tenant, id, meta::text, place::text FROM t ORDER BY 1, 2")
    assert found == [
        ("else", 1, None, None),
        ("test", 1, '{"a": 1}', "(1,2)"),
        ("test", 2, '{"a": 1}', "(1,2)"),
        ("test", 3, None, None),
    ]
