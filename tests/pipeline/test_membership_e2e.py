"""Tables that come, go, change their shape or their identity while a pipeline runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from test_conflicts import all_at_once, stopped

from fix_command import run_penstock
from fix_pipeline import INITIAL, assert_equal, rows, status_of, wait_for_state
from fix_postgres import only_15, only_new
from fix_wait import wait_until
from penstock.pipeline import wire_of
from penstock.state.reports import MembershipReport

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]
    Write = Callable[..., Path]


def published(source: Database) -> set[str]:
    query = "SELECT schemaname || '.' || tablename FROM pg_publication_tables"
    return {name for (name,) in source.query(query)}


def wait_until_published(source: Database, *tables: str) -> None:
    wait_until(lambda: set(tables) <= published(source), what=f"{tables} to be published")


@only_new
def test_include_exclude_and_insert_only_choose_what_arrives(
    source: Database, target: Database, make_pipeline: Make, pipeline_file: Write
) -> None:
    source.execute("CREATE SCHEMA a; CREATE SCHEMA b")
    for table in ("a.one", "a.two", "a.audit", "b.one", "b.orders", "orders", "other"):
        source.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)")
    for table in ("a.keyless", "a.events"):
        source.execute(f"CREATE TABLE {table} (id int)")
    tables = {"include": ["a.*", "*.orders"], "exclude": ["*.audit", "a.two"]}
    options: dict[str, Any] = {"tables": tables, "source_options": {"insert_only": ["a.events"]}}
    path = pipeline_file(source, target, **options)
    checked = run_penstock("check", path, "--json")
    checked.check_returncode()
    pipeline = make_pipeline(source, target, **options)

    every = (
        "a.one",
        "a.two",
        "a.audit",
        "b.one",
        "b.orders",
        "orders",
        "other",
        "a.keyless",
        "a.events",
    )
    for table in every:
        source.execute(f"INSERT INTO {table} VALUES (1), (2)")
        source.execute(f"UPDATE {table} SET id = 3 WHERE id = 2")
        source.execute(f"DELETE FROM {table} WHERE id = 1")
    source.execute("TRUNCATE a.events")
    pipeline.catch_up()

    assert_equal(source, target, "a.one", "b.orders", "orders")
    assert rows(target, "a.events") == [("(1)",), ("(2)",)]
    for table in ("a.two", "a.audit", "b.one", "other", "a.keyless"):
        assert target.value(f"SELECT to_regclass('{table}')") is None
    [finding] = json.loads(checked.stdout)
    assert (finding["severity"], finding["code"], finding["place"]) == (
        "warning",
        "PEN-211",
        "a.keyless",
    )
    reported = status_of(path)
    assert list(reported["sources"]["test"]["left_out"]) == ["a.keyless"]
    assert set(reported["sinks"]["target"]["tables"]) == {
        "a.one",
        "a.events",
        "b.orders",
        "public.orders",
    }
    assert "UPDATE" in reported["sources"]["test"]["left_out"]["a.keyless"]


@pytest.mark.long
@only_15
@pytest.mark.parametrize("tracking", ["triggers", "off"])
def test_renamed_table_goes_on_under_its_new_name_and_a_new_one_may_take_the_old(
    source: Database, target: Database, make_pipeline: Make, tracking: str
) -> None:
    source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, v text); CREATE TABLE other (id int PRIMARY KEY)"
    )
    pipeline = make_pipeline(source, target, source_options={"schema": {"tracking": tracking}})
    source.execute("INSERT INTO orders SELECT g, 'old' FROM generate_series(1, 3) g")
    pipeline.catch_up()

    all_at_once(
        source,
        "INSERT INTO orders VALUES (4, 'old')",
        "ALTER TABLE orders RENAME TO orders_2023",
        "INSERT INTO orders_2023 VALUES (5, 'under the new name')",
        "CREATE TABLE orders (id text PRIMARY KEY, w text)",
    )
    wait_until_published(source, "public.orders", "public.orders_2023")
    source.execute("INSERT INTO orders VALUES ('6', 'another table')")
    source.execute(
        "INSERT INTO orders_2023 VALUES (7, 'still followed'); INSERT INTO other VALUES (1)"
    )
    pipeline.catch_up()

    assert_equal(source, target, "other")
    if tracking == "triggers":
        assert_equal(source, target, "orders", "orders_2023")
        return
    assert rows(target, "orders_2023") == [('(5,"under the new name")',), ('(7,"still followed")',)]
    # The old rows stay where they were; the new table's row has no column `v`.
    assert rows(target, "orders") == [(f"({number},old)",) for number in range(1, 5)] + [("(6,)",)]


@only_new
@pytest.mark.parametrize("tracking", ["triggers", pytest.param("off", marks=pytest.mark.long)])
def test_table_dropped_and_made_again_is_followed_again(
    source: Database, target: Database, make_pipeline: Make, pipeline_file: Write, tracking: str
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE other (id int PRIMARY KEY)"
    )
    pipeline = make_pipeline(
        source,
        target,
        tables=("t", "other"),
        source_options={"schema": {"tracking": tracking}},
    )
    source.execute("INSERT INTO t VALUES (1, 'first')")
    pipeline.catch_up()
    path = pipeline_file(source, target, tables=("t", "other"))

    source.execute("INSERT INTO t VALUES (2, 'first'); DROP TABLE t")
    wait_until(
        lambda: "public.t" in status_of(path)["sources"]["test"]["left_out"],
        what="it to be reported",
    )
    source.execute("INSERT INTO other VALUES (1)")
    pipeline.catch_up()
    assert_equal(source, target, "other")
    source.execute("CREATE TABLE t (w int, id int PRIMARY KEY)")
    wait_until_published(source, "public.t")
    source.execute("INSERT INTO t VALUES (7, 3), (8, 2)")
    pipeline.catch_up()

    if tracking == "triggers":
        assert_equal(source, target, "t")
    else:
        # What the former table left stays; so does a column that the new one does not deliver to.
        assert rows(target, "t") == [("(1,first)",), ("(2,first)",), ("(3,)",)]
    # A trigger publishes the table before the next poll of the catalog reports it.
    wait_until(
        lambda: "public.t" not in status_of(path)["sources"]["test"]["left_out"],
        what="it to be reported no more",
    )


@pytest.mark.parametrize("tracking", ["triggers", "off"])
def test_rows_of_old_and_new_shape_in_one_transaction_land_each_by_its_names(
    source: Database, target: Database, make_pipeline: Make, tracking: str
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b int, c text)")
    source.execute("ALTER TABLE t ALTER c SET STORAGE EXTERNAL")
    pipeline = make_pipeline(source, target, source_options={"schema": {"tracking": tracking}})
    source.execute("INSERT INTO t SELECT g, 'a', g, repeat('c', 9000) FROM generate_series(0, 5) g")
    pipeline.catch_up()

    all_at_once(
        source,
        "INSERT INTO t VALUES (10, 'old', 10, 'c')",
        "UPDATE t SET b = 11 WHERE id = 1",
        "ALTER TABLE t ADD d text DEFAULT 'd'",
        "INSERT INTO t VALUES (20, 'added', 20, 'c', 'd')",
        "UPDATE t SET a = 'added' WHERE id IN (1, 2)",
        "ALTER TABLE t DROP b",
        "INSERT INTO t VALUES (30, 'dropped', 'c', 'd')",
        "UPDATE t SET id = 103 WHERE id = 3",
        "SAVEPOINT s",
        "ALTER TABLE t ADD e int DEFAULT 5",
        "INSERT INTO t VALUES (40, 'never', 'c', 'd', 1)",
        "ROLLBACK TO s",
        "ALTER TABLE t RENAME d TO z",
        "INSERT INTO t VALUES (50, 'renamed', 'c', NULL)",
        "DELETE FROM t WHERE id = 4",
        "ALTER TABLE t ALTER a TYPE varchar(20)",
        "UPDATE t SET a = 'retyped' WHERE id = 5",
    )
    pipeline.catch_up()

    assert not stopped(pipeline)
    shared = "SELECT id, a, c FROM t ORDER BY id"
    assert target.query(shared) == source.query(shared)
    if tracking == "triggers":
        assert_equal(source, target, "t")
        return
    # b keeps what it had before it was dropped; rows that never had it hold NULL.
    expected = [
        (0, 0),
        (1, 11),
        (2, 2),
        (5, 5),
        (10, 10),
        (20, 20),
        (30, None),
        (50, None),
        (103, 3),
    ]
    assert target.query("SELECT id, b FROM t ORDER BY id") == expected


@only_new
def test_shape_changed_inside_a_large_streamed_transaction_and_rolled_back(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY, v text)"
    )
    pipeline = make_pipeline(source, target)
    fill = "INSERT INTO {0} ({1}) SELECT g, repeat('x', 700){2} FROM generate_series({3}, {3} + 19999) g"

    all_at_once(
        source,
        fill.format("t", "id, v", "", 0),
        "SAVEPOINT s",
        "ALTER TABLE t ADD extra int",
        fill.format("t", "id, v, extra", ", g", 100000),
        fill.format("u", "id, v", "", 0),
        "UPDATE u SET v = 'never'",
        "ROLLBACK TO s",
        fill.format("t", "id, v", "", 200000),
        fill.format("u", "id, v", "", 300000),
        "UPDATE t SET v = 'changed' WHERE id % 10 = 0",
        "ALTER TABLE t DROP v",
        "INSERT INTO t SELECT g FROM generate_series(400000, 419999) g",
    )
    pipeline.catch_up()

    assert not stopped(pipeline)
    checksum = "SELECT count(*), sum(id) FROM t"
    assert target.query(checksum) == source.query(checksum)
    assert_equal(source, target, "u")


@pytest.mark.long
@only_new
def test_equal_rows_are_distinguished_until_their_table_got_a_key(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int, v text); ALTER TABLE t REPLICA IDENTITY FULL")
    pipeline = make_pipeline(source, target)
    pipeline.stop()

    source.execute("INSERT INTO t VALUES (1, 'a'), (1, 'a'), (2, 'b')")
    source.execute("DELETE FROM t WHERE ctid = (SELECT min(ctid) FROM t)")
    source.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
    pipeline.start()
    pipeline.catch_up()

    assert_equal(source, target, "t")


@pytest.mark.long
@only_15
def test_replica_identity_may_change_while_rows_flow(
    source: Database, target: Database, make_pipeline: Make, pipeline_file: Write
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, u int NOT NULL UNIQUE, v text, big text)")
    source.execute("ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    pipeline = make_pipeline(source, target)
    source.execute(
        "INSERT INTO t SELECT g, -g, 'v', repeat('b', 9000) FROM generate_series(1, 20) g"
    )
    changes = (
        "UPDATE t SET v = v || '{0}' WHERE id % 2 = 0",
        "UPDATE t SET id = id + 100 WHERE u = -{1}",
        "UPDATE t SET u = u - 1000 WHERE u = -{1} - 1",
        "DELETE FROM t WHERE u = -{1} - 2",
        "INSERT INTO t VALUES ({1} + 1000, {1}, 'new', repeat('n', 9000))",
    )

    statements: list[str] = []
    identities = (
        "DEFAULT",
        "FULL",
        "USING INDEX t_u_key",
        "DEFAULT",
        "USING INDEX t_u_key",
        "FULL",
    )
    for number, identity in enumerate(identities):
        statements.append(f"ALTER TABLE t REPLICA IDENTITY {identity}")
        statements += [change.format(number, number * 3 + 1) for change in changes]
    all_at_once(source, *statements[: len(statements) // 2])
    for statement in statements[len(statements) // 2 :]:
        source.execute(statement)
    pipeline.catch_up()
    assert not stopped(pipeline)
    assert_equal(source, target, "t")

    source.execute("ALTER TABLE t REPLICA IDENTITY NOTHING")
    wait_until(lambda: not published(source), what="the table to be let go")
    source.execute("UPDATE t SET v = 'not followed'")
    path = pipeline_file(source, target)
    wait_until(lambda: status_of(path)["sources"]["test"]["left_out"], what="it to be reported")
    assert "REPLICA IDENTITY NOTHING" in status_of(path)["sources"]["test"]["left_out"]["public.t"]
    pipeline.catch_up()

    assert target.value("SELECT count(*) FROM t WHERE v = 'not followed'") == 0


@only_new
@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "running"])
def test_table_that_left_the_publication_and_came_back_is_copied_again(
    source: Database, target: Database, make_pipeline: Make, is_stopped: bool
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE k (id int PRIMARY KEY)")
    source.execute("INSERT INTO t VALUES (1), (2)")
    pipeline = make_pipeline(source, target, source_options=INITIAL)
    pipeline.catch_up()
    wait_for_state(target, "t", "streaming")
    copied_at = "SELECT copied_at FROM penstock.tables WHERE table_name = {!r}"
    before = {name: target.value(copied_at.format(name)) for name in "tk"}
    if is_stopped:
        pipeline.stop()

    source.execute(
        "ALTER PUBLICATION penstock_test DROP TABLE t; DELETE FROM t WHERE id = 1;"
        "INSERT INTO t VALUES (3)"
    )
    if is_stopped:
        pipeline.start()
    wait_until(
        lambda: target.value(copied_at.format("t")) != before["t"], what="t to be copied again"
    )
    wait_for_state(target, "t", "streaming")
    source.execute("INSERT INTO t VALUES (4)")
    pipeline.catch_up()

    assert_equal(source, target, "t")
    assert target.value(copied_at.format("k")) == before["k"]


@only_new
def test_tables_that_swap_names_are_not_copied_again_for_it(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    source.execute("INSERT INTO t VALUES (1)")
    pipeline = make_pipeline(source, target, source_options=INITIAL)
    pipeline.catch_up()
    copied_at = "SELECT table_name, copied_at FROM penstock.tables ORDER BY 2"
    before = [at for _, at in target.query(copied_at)]
    source.execute(
        "BEGIN; ALTER TABLE t RENAME TO x; ALTER TABLE u RENAME TO t; ALTER TABLE x RENAME TO u;"
        "INSERT INTO t VALUES (2); COMMIT"
    )
    pipeline.catch_up()
    # One that comes afterwards: once it is copied, the names have been polled, too.
    source.execute("CREATE TABLE z AS SELECT 1 AS id; ALTER TABLE z ADD PRIMARY KEY (id)")
    wait_for_state(target, "z", "streaming")

    assert_equal(source, target, "t", "u")
    assert [at for name, at in target.query(copied_at) if name != "z"] == before


@only_new
@pytest.mark.parametrize("kind", ["postgres", pytest.param("file", marks=pytest.mark.long)])
def test_table_without_columns_is_left_out_until_it_has_one(
    source: Database, target: Database, make_pipeline: Make, tmp_path: Path, kind: str
) -> None:
    source.execute("CREATE TABLE bare (); ALTER TABLE bare REPLICA IDENTITY FULL")
    source.execute("INSERT INTO bare DEFAULT VALUES; CREATE TABLE t (id int PRIMARY KEY)")
    sink = {"kind": "file", "path": str(tmp_path / "out")} if kind == "file" else None
    pipeline = make_pipeline(source, None if sink else target, sink=sink, source_options=INITIAL)

    def left_out() -> dict[str, str]:
        reported = wire_of(pipeline.file).latest(MembershipReport)
        return reported.left_out if reported is not None else {}

    source.execute("INSERT INTO t VALUES (1); INSERT INTO bare DEFAULT VALUES")
    pipeline.catch_up()
    wait_until(left_out, what="the table to be reported")
    assert list(left_out()) == ["public.bare"]
    assert "has no columns" in left_out()["public.bare"]
    assert not stopped(pipeline)

    source.execute("ALTER TABLE bare ADD id int DEFAULT 7; INSERT INTO bare VALUES (8)")
    wait_until_published(source, "public.bare")
    if sink is None:
        wait_for_state(target, "bare", "streaming")
        pipeline.catch_up()
        assert_equal(source, target, "bare", "t")
    else:
        files = tmp_path / "out"
        wait_until(
            lambda: any('"bare"' in each.read_text() for each in files.rglob("*.jsonl")),
            what="its documents",
        )
    assert not stopped(pipeline)
