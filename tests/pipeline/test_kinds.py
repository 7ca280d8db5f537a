"""Kinds of tables: what a target keeps of rows that change or go."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from fix_pipeline import INITIAL, rows, status_of, wait_for_state
from fix_postgres import only_new
from fix_wait import wait_until
from penstock.sinks.postgres.state.tables import TargetTables

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_pipeline import Command, RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]

pytestmark = only_new

APPEND = {"tables": {"*": {"kind": "append"}}}
HISTORY = {"tables": {"*": {"kind": "history"}}}
SOURCE_IDS = pytest.mark.parametrize("sid", [None, "sid"], ids=["alone", "with source id"])


def at_once(database: Database, *statements: str) -> None:
    """One transaction."""
    with database.connect(autocommit=False) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def versions(target: Database, table: str = "t", columns: str = "id, v") -> list[tuple[Any, ...]]:
    """Every version: the columns, whether so from the beginning, still so, deleted; in order.

    Rows of one key follow each other without gap or overlap, as far as none of them was deleted.
    """
    key = columns.split(",", 1)[0]
    gaps = target.query(
        f"SELECT a.{key} FROM {table} a, {table} b WHERE a.{key} = b.{key} AND a.ctid <> b.ctid"
        " AND a.kvsz_start < b.kvsz_end AND b.kvsz_start < a.kvsz_end"
    )
    assert gaps == []
    assert target.value(f"SELECT count(*) FROM {table} WHERE kvsz_start >= kvsz_end") == 0
    return target.query(
        f"SELECT {columns}, kvsz_start = '1900-01-01 00:00:00+00',"
        " kvsz_end = '9999-01-01 00:00:00+00', kvsz_deleted"
        f" FROM {table} ORDER BY {key}, {table}.kvsz_start"
    )


def conflicts(target: Database, table: str = "t") -> tuple[int, int, int]:
    """What was odd: rows that were there, were missing on update, were missing on delete."""
    with target.connect() as connection:
        [row] = [
            each.conflicts
            for each in TargetTables("test", "test").read(connection)
            if each.table.name == table
        ]
    return row.insert_exists, row.update_missing, row.delete_missing


@SOURCE_IDS
def test_append_keeps_rows_that_the_source_deletes_or_empties(
    source: Database, target: Database, make_pipeline: Make, sid: str | None
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.execute("CREATE TABLE bag (a int, b text); ALTER TABLE bag REPLICA IDENTITY FULL")
    pipeline = make_pipeline(source, target, sink={**APPEND, "source_id_column": sid})

    source.execute("INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 5) g")
    source.execute("INSERT INTO bag VALUES (1, NULL), (1, NULL), (2, 'x')")
    pipeline.catch_up()
    at_once(
        source,
        "UPDATE t SET v = 'changed' WHERE id = 2",
        "UPDATE t SET id = 30 WHERE id = 3",
        "DELETE FROM t WHERE id IN (1, 4)",
        "UPDATE bag SET b = 'y' WHERE ctid = (SELECT min(ctid) FROM bag WHERE a = 1)",
        "DELETE FROM bag WHERE a = 2 OR b = 'y'",
    )
    pipeline.catch_up()
    source.execute("INSERT INTO t VALUES (4, 'again')")
    pipeline.catch_up()
    source.execute("TRUNCATE t, bag; INSERT INTO t VALUES (9, 'later')")
    pipeline.catch_up()

    assert target.query("SELECT id, v FROM t ORDER BY id") == [
        (1, "v1"),
        (2, "changed"),
        (4, "again"),
        (5, "v5"),
        (9, "later"),
        (30, "v3"),
    ]
    assert target.query("SELECT a, b FROM bag ORDER BY a, b") == [(1, "y"), (1, None), (2, "x")]
    assert conflicts(target) == (1, 0, 0)


@SOURCE_IDS
def test_history_keeps_a_row_for_every_change(
    source: Database, target: Database, make_pipeline: Make, sid: str | None
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline = make_pipeline(source, target, sink={**HISTORY, "source_id_column": sid})

    began = source.value("SELECT clock_timestamp()")
    source.execute("INSERT INTO t VALUES (1, 'a'), (2, 'other'), (3, 'old key')")
    source.execute("UPDATE t SET v = 'b' WHERE id = 1")
    pipeline.catch_up()
    source.execute("UPDATE t SET v = 'c' WHERE id = 1; UPDATE t SET v = 'd' WHERE id = 1")
    at_once(
        source,
        "UPDATE t SET v = 'not seen' WHERE id = 1",
        "UPDATE t SET v = 'e' WHERE id = 1",
        "INSERT INTO t VALUES (4, 'not seen')",
        "UPDATE t SET v = 'first' WHERE id = 4",
        "INSERT INTO t VALUES (5, 'never')",
        "DELETE FROM t WHERE id = 5",
    )
    source.execute("UPDATE t SET id = 33 WHERE id = 3")
    source.execute("DELETE FROM t WHERE id = 1")
    pipeline.catch_up()
    source.execute("INSERT INTO t VALUES (1, 'again'), (3, 'anew')")
    pipeline.catch_up()
    ended = source.value("SELECT clock_timestamp()")

    assert versions(target) == [
        (1, "a", True, False, False),
        (1, "b", False, False, False),
        (1, "d", False, False, False),
        (1, "e", False, False, True),
        (1, "again", False, True, False),
        (2, "other", True, True, False),
        (3, "old key", True, False, False),
        (3, "anew", False, True, False),
        (4, "first", True, True, False),
        (33, "old key", False, True, False),
    ]
    instants = target.query("SELECT DISTINCT kvsz_start FROM t WHERE kvsz_start > '1901-01-01'")
    assert all(began < instant < ended for (instant,) in instants)
    chained = "SELECT count(*) FROM t a JOIN t b ON a.id = b.id AND a.kvsz_end = b.kvsz_start"
    assert target.value(f"{chained} WHERE a.id = 1 AND NOT a.kvsz_deleted") >= 3
    source.execute("TRUNCATE t; INSERT INTO t VALUES (2, 'after')")
    pipeline.catch_up()
    assert [row for row in versions(target) if row[3]] == [(2, "after", False, True, False)]
    ends = "SELECT count(DISTINCT kvsz_end), bool_and(kvsz_deleted) FROM t"
    assert target.query(f"{ends} WHERE id = 4 OR v = 'again'") == [(1, True)]
    assert conflicts(target) == (0, 0, 0)


def test_history_keeps_large_values_that_a_change_leaves_alone(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, n int, big text)")
    source.execute("ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    pipeline = make_pipeline(source, target, sink=HISTORY)

    source.execute("INSERT INTO t SELECT g, 0, repeat('x', 9000) FROM generate_series(1, 4) g")
    pipeline.catch_up()
    source.execute("UPDATE t SET n = 1 WHERE id < 4")
    source.execute("UPDATE t SET id = 30, n = 3 WHERE id = 3")
    at_once(
        source,
        "UPDATE t SET n = 2 WHERE id = 1",
        "UPDATE t SET id = 10, n = 3 WHERE id = 1",
        "UPDATE t SET n = 4 WHERE id = 10",
        "INSERT INTO t VALUES (1, 5, repeat('y', 9000))",
        "UPDATE t SET n = 6 WHERE id = 1",
    )
    source.execute("DELETE FROM t WHERE id = 2")
    pipeline.catch_up()

    assert versions(target, columns="id, n, length(big), left(big, 1)") == [
        (1, 0, 9000, "x", True, False, False),
        (1, 1, 9000, "x", False, False, False),
        (1, 6, 9000, "y", False, True, False),
        (2, 0, 9000, "x", True, False, False),
        (2, 1, 9000, "x", False, False, True),
        (3, 0, 9000, "x", True, False, False),
        (3, 1, 9000, "x", False, False, False),
        (4, 0, 9000, "x", True, True, False),
        (10, 4, 9000, "x", False, True, False),
        (30, 3, 9000, "x", False, True, False),
    ]


@pytest.mark.long
def test_history_of_one_transaction_that_spans_many_slices_has_one_instant(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text, pad text)")
    pipeline = make_pipeline(source, target, sink=HISTORY)
    source.execute("INSERT INTO t VALUES (0, 'before', 'x')")

    at_once(
        source,
        "INSERT INTO t SELECT g, 'new', repeat('p', 300) FROM generate_series(1, 60000) g",
        "UPDATE t SET v = 'changed'",
        "DELETE FROM t WHERE id % 3 = 1",
        "UPDATE t SET v = 'twice' WHERE id % 3 = 2",
    )
    pipeline.catch_up()

    found = target.query(
        "SELECT v, kvsz_start = '1900-01-01 00:00:00+00', kvsz_end = '9999-01-01 00:00:00+00',"
        " kvsz_deleted, count(*) FROM t GROUP BY 1, 2, 3, 4 ORDER BY 1, 2"
    )
    assert found == [
        ("before", True, False, False, 1),
        ("changed", False, True, False, 1),
        ("changed", True, True, False, 20000),
        ("twice", True, True, False, 20000),
    ]


def test_copied_rows_are_current_from_the_beginning_and_a_later_copy_records_only_what_differs(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.execute("CREATE TABLE bag (a int, v text); ALTER TABLE bag REPLICA IDENTITY FULL")
    source.execute("CREATE TABLE log (id int PRIMARY KEY, v text)")
    source.execute("INSERT INTO t SELECT g, 'copied' FROM generate_series(1, 5) g")
    source.execute("INSERT INTO bag VALUES (1, NULL), (1, NULL), (2, 'x')")
    source.execute("INSERT INTO log VALUES (1, 'a'), (2, 'b')")
    tables = {"t": {"kind": "history"}, "bag": {"kind": "history"}, "log": {"kind": "append"}}
    pipeline = make_pipeline(source, target, sink={"tables": tables}, source_options=INITIAL)
    pipeline.catch_up()
    source.execute("UPDATE t SET v = 'changed' WHERE id = 2; DELETE FROM t WHERE id = 3")
    source.execute("DELETE FROM log WHERE id = 1")
    pipeline.catch_up()
    assert [row for row in versions(target) if row[0] in (1, 2)] == [
        (1, "copied", True, True, False),
        (2, "copied", True, False, False),
        (2, "changed", False, True, False),
    ]

    # As if changes had been lost.
    target.execute("UPDATE t SET v = 'wrong' WHERE id = 1")
    target.execute("INSERT INTO t (id, v) VALUES (7, 'not at the source')")
    target.execute("DELETE FROM t WHERE id = 4")
    target.execute("DELETE FROM bag WHERE a = 2; INSERT INTO bag (a, v) VALUES (3, 'more')")
    target.execute("UPDATE log SET v = 'wrong' WHERE id = 2")
    source.execute("INSERT INTO t VALUES (3, 'again')")
    pipeline.catch_up()
    before = {name: target.value(_COPIED, name) for name in tables}
    target.execute("UPDATE penstock.tables SET request = 'resync'")
    for name in tables:
        _wait_for_copy(target, name, before[name])
    pipeline.catch_up()
    for name in tables:
        wait_for_state(target, name, "streaming")

    assert versions(target) == [
        (1, "wrong", True, False, False),
        (1, "copied", False, True, False),
        (2, "copied", True, False, False),
        (2, "changed", False, True, False),
        (3, "copied", True, False, True),
        (3, "again", False, True, False),
        (4, "copied", True, True, False),
        (5, "copied", True, True, False),
        (7, "not at the source", True, False, True),
    ]
    open_rows = "SELECT a, v FROM bag WHERE kvsz_end = '9999-01-01 00:00:00+00' ORDER BY 1, 2"
    assert target.query(open_rows) == [(1, None), (1, None), (2, "x")]
    assert target.query("SELECT v, kvsz_deleted FROM bag WHERE a = 3") == [("more", True)]
    assert rows(target, "log") == [("(1,a)",), ("(2,b)",)]


def test_later_copy_of_a_history_is_of_the_moment_of_its_snapshot_by_the_source_s_clock(
    source: Database, target: Database, make_pipeline: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.execute("INSERT INTO t VALUES (1, 'copied')")
    tables = {"t": {"kind": "history"}}
    pipeline = make_pipeline(source, target, sink={"tables": tables}, source_options=INITIAL)
    pipeline.catch_up()
    wait_for_state(target, "t", "streaming")
    target.execute("UPDATE t SET v = 'wrong'")
    before = target.value(_COPIED, "t")
    seen: list[Any] = []

    def change(point: str) -> None:
        if point == "copy.after_snapshot":
            # Before the target has heard of the copy: its own clock would be too late.
            source.execute("UPDATE t SET v = 'changed'")
            seen.append(source.value("SELECT clock_timestamp()"))

    monkeypatch.setattr("penstock.snapshot.round.fault_point", change)
    target.execute("UPDATE penstock.tables SET request = 'resync'")
    _wait_for_copy(target, "t", before)
    wait_for_state(target, "t", "streaming")
    pipeline.catch_up()

    assert versions(target) == [
        (1, "wrong", True, False, False),
        (1, "copied", False, False, False),
        (1, "changed", False, True, False),
    ]
    assert target.value("SELECT kvsz_start FROM t WHERE v = 'copied'") < seen[0]


_COPIED = "SELECT copied_at FROM penstock.tables WHERE table_name = %s"


def _wait_for_copy(target: Database, table: str, before: Any) -> None:
    wait_until(lambda: target.value(_COPIED, table) != before, what=f"{table} to be copied")


def test_conflicts_are_counted_once_and_logged_by_key_at_debug_level_only(
    source: Database,
    target: Database,
    make_pipeline: Make,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in ("clone", "history"):
        source.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
        source.execute(f"INSERT INTO {name} VALUES (101, 'early'), (102, 'early'), (103, 'early')")
    pipeline = make_pipeline(source, target, sink={"tables": {"history": {"kind": "history"}}})
    for name in ("clone", "history"):
        source.execute(f"INSERT INTO {name} VALUES (1, 'a')")
    pipeline.catch_up()
    target.execute("INSERT INTO clone (id, v) VALUES (2, 'canary'), (3, 'canary')")
    target.execute("INSERT INTO history (id, v) VALUES (2, 'canary'), (3, 'canary')")

    with caplog.at_level(logging.DEBUG, "penstock.sinks.postgres.merge.conflicts"):
        for name in ("clone", "history"):
            at_once(
                source,
                f"INSERT INTO {name} VALUES (2, 'b'), (3, 'c'), (4, 'canary')",
                f"DELETE FROM {name} WHERE id = 4",
            )
            source.execute(f"UPDATE {name} SET v = 'made' WHERE id = 101")
            source.execute(f"DELETE FROM {name} WHERE id = 102")
        pipeline.catch_up()

    assert rows(target, "clone") == [("(1,a)",), ("(101,made)",), ("(2,b)",), ("(3,c)",)]
    assert [row for row in versions(target, "history") if row[3]] == [
        (1, "a", True, True, False),
        (2, "b", False, True, False),
        (3, "c", False, True, False),
        (101, "made", False, True, False),
    ]
    for name in ("clone", "history"):
        assert conflicts(target, name) == (2, 1, 1), name
        reported = [
            record.getMessage()
            for record in caplog.records
            if record.name == "penstock.sinks.postgres.merge.conflicts"
            and name in record.getMessage()
        ]
        assert any("insert_exists: key (id=2)" in line for line in reported), reported
        assert any("update_missing: key (id=101)" in line for line in reported)
        assert any("delete_missing: key (id=102)" in line for line in reported)
    assert "canary" not in caplog.text


@pytest.mark.long
def test_status_shows_conflicts(
    source: Database,
    target: Database,
    penstock_command: Callable[..., Command],
    pipeline_file: Callable[..., Path],
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    path = pipeline_file(source, target)
    assert penstock_command("init", str(path)).wait() == 0
    source.execute("DELETE FROM t WHERE id = 1; INSERT INTO t VALUES (2)")
    run = penstock_command("run", str(path), "--until-caught-up")
    assert run.wait() == 0, run.stderr

    table = status_of(path)["sinks"]["target"]["tables"]["public.t"]
    assert table["conflicts"] == {"insert_exists": 0, "update_missing": 0, "delete_missing": 1}
    text = penstock_command("status", str(path))
    assert text.process.stdout is not None
    assert b"delete_missing 1" in text.process.stdout.read()
    assert text.wait() == 0


@pytest.mark.parametrize("kind", ["append", "history"])
def test_table_that_changes_its_shape_keeps_what_it_has(
    source: Database, target: Database, make_pipeline: Make, kind: str
) -> None:
    """Rows before and after the change are of one transaction, and so of one instant."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text, gone int)")
    sink = {"tables": {"t": {"kind": kind}}}
    pipeline = make_pipeline(source, target, sink=sink)
    source.execute("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)")
    pipeline.catch_up()

    at_once(
        source,
        "INSERT INTO t VALUES (3, 'not seen', 3), (4, 'never', 4)",
        "UPDATE t SET v = 'not seen' WHERE id = 1",
        "ALTER TABLE t ADD COLUMN w text DEFAULT 'w'",
        "UPDATE t SET v = 'c', w = 'told' WHERE id IN (1, 3)",
        "DELETE FROM t WHERE id IN (2, 4)",
        "ALTER TABLE t DROP COLUMN gone",
        "INSERT INTO t VALUES (5, 'e', 'new')",
    )
    pipeline.catch_up()

    assert not pipeline.deliveries[0].stopped_tables
    if kind == "append":
        found = target.query("SELECT id, v, w, gone FROM t ORDER BY id")
        assert [row[:3] for row in found] == [
            (1, "c", "told"),
            (2, "b", "w"),
            (3, "c", "told"),
            (4, "never", "w"),
            (5, "e", "new"),
        ]
        return
    assert versions(target, columns="id, v, w") == [
        (1, "a", "w", True, False, False),
        (1, "c", "told", False, True, False),
        (2, "b", "w", True, False, True),
        (3, "c", "told", True, True, False),
        (5, "e", "new", True, True, False),
    ]


def test_kinds_work_for_a_role_that_cannot_switch_triggers_off(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    for name in ("log", "t"):
        source.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
    target.execute("CREATE ROLE writer LOGIN; GRANT ALL ON SCHEMA public TO writer")
    target.execute(f'GRANT ALL ON DATABASE "{target.name}" TO writer')
    tables = {"log": {"kind": "append"}, "t": {"kind": "history"}}
    url = target.server.dsn(target.name, user="writer")
    pipeline = make_pipeline(source, url, sink={"tables": tables})

    for name in ("log", "t"):
        source.execute(f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    pipeline.catch_up()
    for name in ("log", "t"):
        at_once(
            source,
            f"UPDATE {name} SET id = 9 WHERE id = 1",
            f"UPDATE {name} SET v = 'changed' WHERE id = 2",
            f"DELETE FROM {name} WHERE id = 3",
        )
        source.execute(f"INSERT INTO {name} VALUES (3, 'again')")
    pipeline.catch_up()

    assert not pipeline.deliveries[0].stopped_tables
    assert rows(target, "log") == [("(2,changed)",), ("(3,again)",), ("(9,a)",)]
    assert versions(target) == [
        (1, "a", True, False, False),
        (2, "b", True, False, False),
        (2, "changed", False, True, False),
        (3, "c", True, False, True),
        (3, "again", False, True, False),
        (9, "a", False, True, False),
    ]
