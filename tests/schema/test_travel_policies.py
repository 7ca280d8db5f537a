"""What a person may choose: policies of a sink, ways to know, documents, commands."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from test_travel import shape_of
from test_travel_hard import assert_same, settle, states

from fix_command import run_penstock
from fix_pipeline import (
    INITIAL,
    row_count,
    rows,
    status_of,
    table_error,
    table_state,
    wait_for_state,
)
from fix_postgres import only_15, only_new
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]

COPIED: dict[str, Any] = {"source_options": INITIAL}
RELATION: dict[str, Any] = {"source_options": {**INITIAL, "schema": {"tracking": "relation"}}}
OFF: dict[str, Any] = {"source_options": {**INITIAL, "schema": {"tracking": "off"}}}


def columns(database: Database, table: str) -> dict[str, str]:
    shape = shape_of(database, table)
    return {name: kind for name, kind, *_ in shape["columns"]} if shape else {}


@only_new
def test_additive_adds_and_widens_and_never_takes_away(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text NOT NULL, n int, w bigint);"
        "INSERT INTO t VALUES (1, 'a', 1, 1); CREATE TABLE gone (id int PRIMARY KEY);"
        "INSERT INTO gone VALUES (1)"
    )
    pipeline = make_pipeline(source, target, sink={"schema_changes": "additive"}, **COPIED)
    settle(pipeline, target)
    source.execute(
        "ALTER TABLE t ADD x int NOT NULL DEFAULT 5; INSERT INTO t VALUES (2, 'b', 2, 2)"
    )
    source.execute(
        "ALTER TABLE t ALTER n TYPE bigint; UPDATE t SET n = 1::bigint << 40 WHERE id = 2"
    )
    source.execute("ALTER TABLE t ALTER w TYPE int; INSERT INTO t VALUES (3, 'c', 3, 3)")
    source.execute("ALTER TABLE t DROP v; INSERT INTO t VALUES (4, 4, 4, 4)")
    source.execute("ALTER TABLE t ADD UNIQUE (n), ADD CHECK (n > 0); CREATE INDEX i ON t (x)")
    source.execute("CREATE UNIQUE INDEX j ON t (x, n); ALTER TABLE t RENAME x TO y")
    source.execute("DROP TABLE gone; ALTER TABLE t RENAME TO u; INSERT INTO u VALUES (5, 5, 5, 5)")
    source.execute("CREATE TABLE made (id int PRIMARY KEY); INSERT INTO made VALUES (1)")
    settle(pipeline, target)
    assert states(target)["public", "u"] == ("streaming", None)
    assert columns(target, "u") == {
        "id": "integer",
        "v": "text",
        "n": "bigint",
        "w": "bigint",
        "y": "integer",
    }
    same = "SELECT id, n, w, y FROM u ORDER BY id"
    assert target.query(same) == source.query(same)
    assert target.query("SELECT v FROM u ORDER BY id") == [("a",), ("b",), ("c",), (None,), (None,)]
    assert [name for name, _ in shape_of(target, "u")["indexes"]] == ["i"]
    assert [name for name, _ in shape_of(target, "u")["constraints"]] == ["t_pkey"]
    assert rows(target, "gone") == [("(1)",)]
    assert rows(target, "made") == [("(1)",)]


@only_new
def test_ignore_keeps_the_shape_and_takes_the_rows(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text NOT NULL DEFAULT 'none', n int);"
        "INSERT INTO t VALUES (1, 'a', 1); CREATE TABLE gone (id int PRIMARY KEY)"
    )
    pipeline = make_pipeline(source, target, sink={"schema_changes": "ignore"}, **COPIED)
    settle(pipeline, target)
    was = shape_of(target, "t")
    source.execute("ALTER TABLE t ADD x int DEFAULT 5; INSERT INTO t VALUES (2, 'b', 2, 2)")
    source.execute("ALTER TABLE t RENAME n TO m; INSERT INTO t VALUES (3, 'c', 3, 3)")
    source.execute("ALTER TABLE t ADD UNIQUE (m); CREATE INDEX ON t (x); DROP TABLE gone")
    source.execute("ALTER TABLE t ALTER m TYPE bigint; INSERT INTO t VALUES (4, 'd', 4, 4)")
    settle(pipeline, target)
    source.execute("ALTER TABLE t DROP v; INSERT INTO t VALUES (5, 5, 5)")
    source.execute(
        "ALTER TABLE t RENAME TO u; INSERT INTO u VALUES (6, 6, 6); DELETE FROM u WHERE id = 1"
    )
    settle(pipeline, target)
    print(states(target))
    assert shape_of(target, "t") == was
    assert target.query("SELECT * FROM t ORDER BY id") == [
        (2, "b", 2),
        (3, "c", 3),
        (4, "d", 4),
        (5, "none", 5),
        (6, "none", 6),
    ]
    assert shape_of(target, "u") is None
    assert shape_of(target, "gone") is not None
    pipeline.stop()
    pipeline.start()
    source.execute("UPDATE u SET m = 60 WHERE id = 6; INSERT INTO u VALUES (7, 7, 7)")
    settle(pipeline, target)
    assert target.query("SELECT * FROM t WHERE id > 5 ORDER BY id") == [
        (6, "none", 60),
        (7, "none", 7),
    ]


@only_new
def test_stop_stops_the_table_until_a_person_has_done_it(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE o (id int PRIMARY KEY)"
    )
    source.execute("INSERT INTO t VALUES (1, 'a')")
    pipeline = make_pipeline(source, target, sink={"schema_changes": "stop"}, **COPIED)
    settle(pipeline, target)
    source.execute(
        "BEGIN; ALTER TABLE t ADD n int; INSERT INTO t VALUES (2, 'b', 2);"
        "INSERT INTO o VALUES (1); COMMIT"
    )
    source.execute("INSERT INTO o VALUES (2)")
    wait_until(lambda: row_count(target, "o") == 2, what="the other table")
    wait_for_state(target, "t", "failed")
    error = table_error(target, "t")
    assert "PEN-511" in error
    assert 'ALTER TABLE "public"."t" ADD COLUMN "n" integer' in error
    assert rows(target, "t") == [("(1,a)",)]
    pipeline.stop()
    pipeline.start()
    wait_for_state(target, "t", "failed")
    target.execute('ALTER TABLE "public"."t" ADD COLUMN "n" integer')
    assert_same(pipeline, source, target)


@only_new
@pytest.mark.parametrize("policy", ["stop", "apply"])
def test_table_that_waits_for_a_copy_and_is_dropped_keeps_no_other_waiting(
    source: Database, target: Database, make_pipeline: Make, policy: str
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE o (id int PRIMARY KEY);"
        "INSERT INTO t VALUES (1, 'a'); INSERT INTO o VALUES (1)"
    )
    pipeline = make_pipeline(source, target, sink={"schema_changes": policy}, **COPIED)
    settle(pipeline, target)
    # What is copied is refused, and so is DROP TABLE.
    target.execute(
        "DELETE FROM t; ALTER TABLE t ADD CHECK (id < 0); CREATE VIEW w AS SELECT * FROM t;"
        "UPDATE penstock.tables SET request = 'resync' WHERE table_name = 't'"
    )
    wait_for_state(target, "t", "failed")
    assert target.value("SELECT needs_copy FROM penstock.tables WHERE table_name = 't'")
    source.execute("DROP TABLE t; INSERT INTO o VALUES (2)")
    wait_until(lambda: rows(target, "o") == rows(source, "o"), what="the other table")
    pipeline.catch_up()
    assert pipeline.failures == []
    assert shape_of(target, "t") is not None


@only_new
@pytest.mark.parametrize("snapshot", ["initial", "never"])
def test_table_that_no_longer_fits_stops_alone_when_its_rows_come_with_the_change(
    source: Database, target: Database, make_pipeline: Make, snapshot: str
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL, total int);"
        "CREATE TABLE o (id int PRIMARY KEY)"
    )
    pipeline = make_pipeline(
        source,
        target,
        sink={"tables": {"t": {"columns": ["id", "total"]}}},
        source_options={"snapshot": snapshot},
    )
    source.execute("INSERT INTO t VALUES (1, 'x', 0)")
    pipeline.catch_up()
    source.execute(
        "BEGIN; ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (code);"
        "UPDATE t SET total = 1 WHERE code = 'x'; INSERT INTO o VALUES (1); COMMIT"
    )
    wait_for_state(target, "t", "failed")
    assert "PEN-507" in table_error(target, "t")
    assert "lacks key columns code" in table_error(target, "t")
    source.execute("INSERT INTO o VALUES (2)")
    pipeline.catch_up()
    assert rows(target, "o") == [("(1)",), ("(2)",)]
    assert rows(target, "t") == [("(1,0)",)]
    # It is tried again by itself, and what it meets is still about this table alone.
    pipeline.stop()
    pipeline.start()
    source.execute("INSERT INTO o VALUES (3)")
    pipeline.catch_up()
    assert table_state(target, "t") == "failed"
    assert rows(target, "o") == [("(1)",), ("(2)",), ("(3)",)]


@pytest.mark.long
@only_new
def test_stop_is_no_stop_for_what_a_sink_need_not_do(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')")
    pipeline = make_pipeline(source, target, sink={"schema_changes": "stop"}, **COPIED)
    settle(pipeline, target)
    source.execute("COMMENT ON TABLE t IS 'c'; COMMENT ON COLUMN t.v IS 'd'; ANALYZE t")
    source.execute("ALTER TABLE t SET (fillfactor = 70); ALTER TABLE t ALTER v SET STATISTICS 100")
    source.execute("CREATE VIEW w AS SELECT v FROM t; CREATE TEMP TABLE x (id int)")
    source.execute("VACUUM FULL t")
    source.execute("CREATE TABLE made (id int PRIMARY KEY); INSERT INTO made VALUES (1)")
    source.execute("INSERT INTO t VALUES (2, 'b')")
    settle(pipeline, target)
    assert rows(target, "t") == rows(source, "t")
    wait_until(lambda: rows(target, "made") == [("(1)",)], what="the new table")


@pytest.mark.parametrize(
    "server", ["15", pytest.param("new", marks=pytest.mark.long)], indirect=True
)
def test_relations_report_columns_added_dropped_and_retyped(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, n int); INSERT INTO t VALUES (1, 'a', 1)"
    )
    pipeline = make_pipeline(source, target, **RELATION)
    settle(pipeline, target)
    assert source.query("SELECT evtname FROM pg_event_trigger WHERE evtname LIKE 'penstock%'") == []
    source.execute("ALTER TABLE t ADD x int; INSERT INTO t VALUES (2, 'b', 2, 2)")
    settle(pipeline, target)
    source.execute(
        "ALTER TABLE t ALTER n TYPE bigint; UPDATE t SET n = 1::bigint << 40 WHERE id = 1"
    )
    settle(pipeline, target)
    source.execute("ALTER TABLE t DROP v; INSERT INTO t VALUES (3, 3, 3)")
    settle(pipeline, target)
    assert columns(target, "t") == columns(source, "t")
    assert sorted(target.query("SELECT id, n, x FROM t")) == sorted(
        source.query("SELECT id, n, x FROM t")
    )
    source.execute("CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (1)")
    wait_until(lambda: table_state(target, "u") == "streaming", what="the new table")
    pipeline.catch_up()
    assert rows(target, "u") == [("(1)",)]


@pytest.mark.long
@only_new
def test_changes_while_stopped_are_reported_by_relations_too(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, n int); INSERT INTO t VALUES (1, 'a', 1)"
    )
    pipeline = make_pipeline(source, target, **RELATION)
    settle(pipeline, target)
    pipeline.stop()
    source.execute("INSERT INTO t VALUES (2, 'b', 2)")
    source.execute("ALTER TABLE t ADD x int; INSERT INTO t VALUES (3, 'c', 3, 3)")
    source.execute("ALTER TABLE t DROP v, ALTER n TYPE text; INSERT INTO t VALUES (4, 'four', 4)")
    source.execute("ALTER TABLE t ADD v bigint; INSERT INTO t VALUES (5, 'five', 5, 5)")
    pipeline.start()
    settle(pipeline, target)
    assert columns(target, "t") == columns(source, "t")
    same = "SELECT id, n, x, v FROM t"
    assert sorted(target.query(same)) == sorted(source.query(same))


@pytest.mark.long
@only_15
def test_off_ignores_new_columns_and_fills_dropped_ones(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text DEFAULT 'd'); INSERT INTO t VALUES (1, 'a')"
    )
    pipeline = make_pipeline(source, target, **OFF)
    settle(pipeline, target)
    source.execute("ALTER TABLE t ADD n int; INSERT INTO t VALUES (2, 'b', 2)")
    source.execute("ALTER TABLE t DROP v; INSERT INTO t VALUES (3, 3)")
    settle(pipeline, target)
    assert sorted(rows(target, "t")) == [("(1,a)",), ("(2,b)",), ("(3,d)",)]


def documents(directory: Path) -> list[dict[str, Any]]:
    files = sorted(path for path in directory.iterdir() if not path.name.startswith("."))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


@only_new
def test_documents_report_changes_in_order_with_version_and_difference(
    source: Database, make_pipeline: Make, tmp_path: Path
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')")
    sink = {"kind": "file", "path": str(tmp_path / "out"), "rotate_seconds": 1}
    pipeline = make_pipeline(source, sink=sink)
    # Capture sees the shapes of tables, and then streams.
    streams = "SELECT active FROM pg_replication_slots WHERE database = current_database()"
    wait_until(lambda: source.query(streams) == [(True,)], what="the stream to begin")
    source.execute("INSERT INTO t VALUES (2, 'b')")
    source.execute(
        "BEGIN; INSERT INTO t VALUES (3, 'c'); ALTER TABLE t ADD n int DEFAULT 7;"
        "INSERT INTO t VALUES (4, 'd', 4); ALTER TABLE t RENAME v TO w; UPDATE t SET w = 'x' WHERE id = 4; COMMIT"
    )
    source.execute("CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (1); DROP TABLE u")
    source.execute("BEGIN; ALTER TABLE t ADD never int; ROLLBACK; INSERT INTO t VALUES (5, 'e', 5)")
    pipeline.catch_up()
    wait_until(
        lambda: any((d.get("key") or {}).get("id") == 5 for d in documents(tmp_path / "out")),
        what="the last row",
    )
    reported = documents(tmp_path / "out")
    for each in reported:
        print(json.dumps(each))
    order = [(each["op"], each["table"]) for each in reported]
    assert order == [
        ("insert", "t"),
        ("insert", "t"),
        ("schema", "t"),
        ("insert", "t"),
        ("schema", "t"),
        ("update", "t"),
        ("schema", "u"),
        ("insert", "u"),
        ("schema", "u"),
        ("insert", "t"),
    ]
    schemas = [each for each in reported if each["op"] == "schema"]
    ops = [[one["op"] for one in each["difference"]] for each in schemas]
    assert ops == [["add_column"], ["rename_column"], ["create_table"], ["drop_table"]]
    versions = [each["version"] for each in schemas]
    assert versions[0] == versions[1]
    assert all(isinstance(version, int) for version in versions)
    assert versions == sorted(versions)
    assert list(reported[3]["after"]) == ["id", "v", "n"]
    assert reported[5]["after"] == {"id": 4, "w": "x", "n": 4}
    places = [(each["commit_lsn"], each["ordinal"]) for each in reported[1:6]]
    assert len({lsn for lsn, _ in places}) == 1
    assert [ordinal for _, ordinal in places] == sorted(ordinal for _, ordinal in places)


@only_new
def test_two_changes_of_a_table_before_the_same_row_have_ids_of_their_own(
    source: Database, make_pipeline: Make, tmp_path: Path
) -> None:
    source.execute("CREATE TABLE o (id int PRIMARY KEY); INSERT INTO o VALUES (1)")
    sink = {"kind": "file", "path": str(tmp_path / "out"), "rotate_seconds": 1}
    pipeline = make_pipeline(source, sink=sink)
    streams = "SELECT active FROM pg_replication_slots WHERE database = current_database()"
    wait_until(lambda: source.query(streams) == [(True,)], what="the stream to begin")

    source.execute(
        "BEGIN; ALTER TABLE o ADD a int; ALTER TABLE o ADD b int; UPDATE o SET a = 1, b = 2; COMMIT"
    )
    pipeline.catch_up()

    def reported() -> list[dict[str, Any]]:
        return documents(tmp_path / "out")

    wait_until(lambda: any(each["op"] == "update" for each in reported()), what="the row")
    changes = [each for each in reported() if each["op"] == "schema"]
    names = [one["after"]["name"] for each in changes for one in each["difference"]]
    assert (len(changes), names) == (2, ["a", "b"])
    assert reported()[-1]["after"] == {"id": 1, "a": 1, "b": 2}
    ids = [each["id"] for each in reported()]
    assert len(ids) == len(set(ids)) >= 2, ids
    assert len({each["commit_lsn"] for each in reported()}) == 1


@only_new
@pytest.mark.long
def test_commands_show_versions_and_say_what_is_wrong(
    source: Database, target: Database, make_pipeline: Make, pipeline_file: Callable[..., Path]
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline = make_pipeline(source, target, **COPIED)
    path = str(pipeline_file(source, target, **COPIED))
    settle(pipeline, target)
    source.execute("ALTER TABLE t ADD n int NOT NULL DEFAULT 7")
    source.execute("BEGIN; ALTER TABLE t RENAME v TO w; CREATE INDEX i ON t (w); COMMIT")
    source.execute("BEGIN; ALTER TABLE t ADD never int; ROLLBACK")
    pipeline.catch_up()
    wait_until(
        lambda: source.value("SELECT count(*) FROM penstock.schema_log WHERE acked") == 3,
        what="three versions that are delivered",
    )

    log = json.loads(run_penstock("schema", path, "log", "--json").stdout)
    assert [each["version"] for each in log] == [1, 2, 3]
    assert all(each["acked"] for each in log)
    assert all(each["lsn"] for each in log[1:])
    shown = json.loads(run_penstock("schema", path, "show", "--json").stdout)
    assert (shown["schema"], shown["version"]) == ("public", 3)
    assert [c["name"] for c in shown["tables"][0]["columns"]] == ["id", "w", "n"]
    first = json.loads(run_penstock("schema", path, "show", "1", "--json").stdout)
    assert [c["name"] for c in first["tables"][0]["columns"]] == ["id", "v"]
    diff = json.loads(run_penstock("schema", path, "diff", "1", "3", "--json").stdout)
    assert sorted(each["op"] for each in diff) == ["add_column", "add_index", "rename_column"]
    back = json.loads(run_penstock("schema", path, "diff", "3", "1", "--json").stdout)
    assert sorted(each["op"] for each in back) == ["drop_column", "drop_index", "rename_column"]

    text = run_penstock("schema", path, "log").stdout
    assert len([line for line in text.splitlines() if "public" in line]) == 3, text
    assert "w text" in run_penstock("schema", path, "show", "3").stdout
    assert "public.t" in run_penstock("schema", path, "diff", "1", "3").stdout
    assert "the same" in run_penstock("schema", path, "diff", "2", "2").stdout
    for wrong in (("show", "99"), ("diff", "1"), ("show", "--schema", "nowhere")):
        done = run_penstock("schema", path, *wrong)
        assert done.returncode != 0, wrong
        assert "PEN-" in done.stderr, wrong
        assert "Traceback" not in done.stderr, wrong
    [reported] = status_of(path)["sources"].values()
    assert reported["tracking"] == "triggers"


@pytest.mark.long
@pytest.mark.parametrize(
    "server", ["15", pytest.param("new", marks=pytest.mark.long)], indirect=True
)
def test_status_is_failed_while_a_trigger_is_missing(
    source: Database, target: Database, make_pipeline: Make, pipeline_file: Callable[..., Path]
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    pipeline = make_pipeline(source, target, **COPIED)
    path = pipeline_file(source, target, **COPIED)
    settle(pipeline, target)
    [first, *_] = source.query(
        "SELECT evtname FROM pg_event_trigger WHERE evtname LIKE 'penstock%'"
    )
    for harm, cure in (
        (
            f"ALTER EVENT TRIGGER {first[0]} DISABLE",
            f"ALTER EVENT TRIGGER {first[0]} ENABLE ALWAYS",
        ),
        ("DROP FUNCTION penstock.tell", None),
    ):
        source.execute(harm)
        status = status_of(path)
        [reported] = status["sources"].values()
        assert status["phase"] == "failed", harm
        assert "PEN-221" in reported["tracking_error"], harm
        assert "PEN-221" in run_penstock("status", str(path)).stdout, harm
        if cure:
            source.execute(cure)
            assert status_of(path)["phase"] != "failed"
    source.execute("ALTER TABLE t ADD n int; INSERT INTO t VALUES (1, 1)")
    assert_same(pipeline, source, target)
