"""Changes of tables travel with their rows: real servers, the whole way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fix_pipeline import (
    INITIAL,
    assert_equal,
    row_count,
    rows,
    table_error,
    table_state,
    wait_for_state,
)
from fix_postgres import only_new
from fix_subscription import ALL, rules
from fix_wait import wait_until
from penstock.schema.catalog import read_shapes
from penstock.source.connect import connect_source
from penstock.source.options import Tracking
from penstock.source.subscription import ensure_subscription
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]

IN_ONE_TRANSACTION = """
BEGIN;
ALTER TABLE t ADD x int;
INSERT INTO t VALUES (5, 'five', 5, 55);
ALTER TABLE t RENAME x TO y;
INSERT INTO t VALUES (6, 'six', 6, 66);
ALTER TABLE t ALTER y TYPE text;
UPDATE t SET y = 'was ' || y;
COMMIT
"""
COPIED = {"source_options": INITIAL}


def shape_of(database: Database, table: str, schema: str = "public") -> dict[str, Any] | None:
    """A table as its catalog has it, less what differs between any two servers."""
    with database.connect() as connection:
        connection.execute("SET search_path = ''")
        found = read_shapes(connection, [TableName(schema, table)])
    if not found:
        return None
    shape = next(iter(found.values()))
    return {
        "columns": [
            (c.name, c.type, c.not_null, c.default, bool(c.identity), c.expression, c.collation)
            for c in sorted(shape.columns, key=lambda c: c.name)
        ],
        "constraints": sorted((c.name, c.definition) for c in shape.constraints),
        "foreign_keys": sorted(
            (k.name, k.referenced_name, k.on_delete) for k in shape.foreign_keys
        ),
        "indexes": sorted((i.name, i.definition) for i in shape.indexes),
        "types": sorted((t.name, tuple(label.name for label in t.labels)) for t in shape.types),
    }


def assert_alike(source: Database, target: Database, *tables: str) -> None:
    for table in tables:
        assert shape_of(target, table) == shape_of(source, table), table
        assert rows_by_name(target, table) == rows_by_name(source, table), table


def rows_by_name(database: Database, table: str) -> list[tuple[Any, ...]]:
    return sorted(database.query(f"SELECT to_jsonb(t)::text FROM {table} t"))


@pytest.mark.parametrize("options", [COPIED, {}], ids=["copied", "streamed"])
def test_everything_that_happens_to_a_table_happens_at_the_target(
    source: Database, target: Database, make_pipeline: Make, options: dict[str, Any]
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline = make_pipeline(source, target, **options)
    source.execute("INSERT INTO t VALUES (1, 'one'), (2, 'two')")
    pipeline.catch_up()
    wait_for_state(target, "t", "streaming")
    for script in (
        "ALTER TABLE t ADD n int NOT NULL DEFAULT 7",
        "INSERT INTO t VALUES (3, 'three', 3)",
        "ALTER TABLE t RENAME v TO w",
        "UPDATE t SET w = w || '!'",
        "ALTER TABLE t ALTER n TYPE bigint, ALTER w SET NOT NULL",
        "INSERT INTO t VALUES (4, 'four', 9223372036854775807)",
        "CREATE INDEX i ON t (lower(w)); ALTER TABLE t ADD CONSTRAINT c CHECK (n > 0)",
        "ALTER TABLE t ADD UNIQUE (w)",
        "ALTER INDEX i RENAME TO j; ALTER TABLE t RENAME CONSTRAINT c TO d",
        IN_ONE_TRANSACTION,
        "ALTER TABLE t DROP y",
        "DROP INDEX j; ALTER TABLE t DROP CONSTRAINT d",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (w)",
        "UPDATE t SET w = w || '?'; DELETE FROM t WHERE w = 'five?'",
    ):
        source.execute(script)
        pipeline.catch_up()
        assert rows_by_name(target, "t") == rows_by_name(source, "t"), script
        assert shape_of(target, "t") == shape_of(source, "t"), script
    source.execute("ALTER TABLE t RENAME TO u")
    source.execute("INSERT INTO u VALUES (7, 'seven', 7)")
    pipeline.catch_up()
    assert shape_of(target, "t") is None
    assert_alike(source, target, "u")
    source.execute("CREATE SCHEMA s; ALTER TABLE u SET SCHEMA s; UPDATE s.u SET n = n - 1")
    pipeline.catch_up()
    assert rows_by_name(target, "s.u") == rows_by_name(source, "s.u")
    source.execute("DROP TABLE s.u")
    pipeline.catch_up()
    assert shape_of(target, "u", "s") is None
    assert target.query("SELECT state FROM penstock.tables") == []


@only_new
def test_table_made_later_is_there_from_its_first_row(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    pipeline = make_pipeline(source, target)
    source.execute(
        "BEGIN; CREATE TYPE mood AS ENUM ('sad', 'ok');"
        "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, m mood DEFAULT 'ok');"
        "INSERT INTO t (m) VALUES ('sad'), ('ok'); ALTER TABLE t ADD v text DEFAULT 'x';"
        "INSERT INTO t DEFAULT VALUES; COMMIT"
    )
    source.execute("ALTER TYPE mood ADD VALUE 'happy' AFTER 'sad'")
    source.execute(
        "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'; INSERT INTO t (m) VALUES ('happy')"
    )
    pipeline.catch_up()

    assert rows_by_name(target, "t") == rows_by_name(source, "t")
    assert len(rows(target, "t")) == 4
    assert shape_of(target, "t")["types"] == shape_of(source, "t")["types"]


@only_new
def test_existing_rows_get_what_they_got_at_the_source(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source.execute("INSERT INTO t SELECT generate_series(1, 50)")
    pipeline = make_pipeline(source, target, **COPIED)
    wait_for_state(target, "t", "streaming")
    source.execute("ALTER TABLE t ADD at timestamptz DEFAULT now()")
    pipeline.catch_up()
    assert_equal(source, target, "t")
    source.execute("ALTER TABLE t ADD r uuid DEFAULT gen_random_uuid(), ADD s serial")
    pipeline.catch_up()
    source.execute("INSERT INTO t VALUES (51)")
    pipeline.catch_up()
    wait_for_state(target, "t", "streaming")

    pipeline.catch_up()
    assert rows_by_name(target, "t") == rows_by_name(source, "t")
    source.execute("ALTER TABLE t ALTER id TYPE bigint USING id * 10")
    pipeline.catch_up()
    wait_for_state(target, "t", "streaming")
    assert rows_by_name(target, "t") == rows_by_name(source, "t")


@only_new
def test_changes_made_while_stopped_are_made_up_for_in_order(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    pipeline = make_pipeline(source, target, **COPIED)
    source.execute("INSERT INTO t VALUES (1, 'x')")
    pipeline.catch_up()
    pipeline.stop()
    source.execute("INSERT INTO t VALUES (2, 'old shape')")
    source.execute("ALTER TABLE t RENAME a TO b")
    source.execute("INSERT INTO t VALUES (3, 'renamed')")
    source.execute("ALTER TABLE t DROP b, ADD c int")
    source.execute("INSERT INTO t VALUES (4, 5)")
    source.execute("ALTER TABLE t RENAME TO u; INSERT INTO u VALUES (5, 6)")
    source.execute("BEGIN; ALTER TABLE u ADD gone int; ROLLBACK")
    pipeline.start()
    pipeline.catch_up()

    assert_alike(source, target, "u")


@only_new
def test_change_that_the_target_refuses_stops_its_table_alone_until_it_is_fixed(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE other (id int PRIMARY KEY)"
    )
    pipeline = make_pipeline(source, target, **COPIED)
    source.execute("INSERT INTO t VALUES (1, 'x')")
    pipeline.catch_up()
    wait_for_state(target, "t", "streaming")
    target.execute("CREATE VIEW seen AS SELECT v FROM t")
    source.execute("BEGIN; ALTER TABLE t DROP v; INSERT INTO other VALUES (1); COMMIT")
    source.execute("INSERT INTO other VALUES (2)")
    wait_until(lambda: row_count(target, "other") == 2, what="the other table")
    wait_for_state(target, "t", "failed")

    assert "PEN-510" in table_error(target, "t")
    assert 'ALTER TABLE "public"."t" DROP COLUMN "v"' in table_error(target, "t")
    source.execute("ALTER TABLE t RENAME TO u; INSERT INTO u VALUES (2)")
    source.execute("INSERT INTO other VALUES (3)")
    wait_until(lambda: row_count(target, "other") == 3, what="the other table")
    target.execute("DROP VIEW seen")
    wait_until(lambda: table_state(target, "u") == "streaming", what="the table to go on")
    pipeline.catch_up()
    assert_alike(source, target, "u")


@only_new
def test_foreign_key_that_cannot_be_made_while_following_is_noted(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE t (id int PRIMARY KEY, r int)"
    )
    pipeline = make_pipeline(source, target, tables=("public.t",), **COPIED)
    pipeline.catch_up()
    wait_for_state(target, "t", "streaming")

    source.execute("ALTER TABLE t ADD CONSTRAINT to_p FOREIGN KEY (r) REFERENCES p")
    pipeline.catch_up()

    assert "foreign key to_p" in target.value("SELECT notes FROM penstock.tables")


@pytest.mark.long
@pytest.mark.parametrize("snapshot", ["initial", "never"])
@pytest.mark.parametrize("tracking", ["triggers", "relation"])
def test_table_that_changes_between_init_and_the_first_start_follows(
    source: Database, target: Database, make_pipeline: Make, snapshot: str, tracking: str
):
    for database in (source, target) if snapshot == "never" else (source,):
        database.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    with connect_source(source.dsn) as connection:
        ensure_subscription(connection, "test", rules(*ALL), Tracking(tracking))
    source.execute("INSERT INTO t VALUES (1, 'x')")
    source.execute("ALTER TABLE t ADD b int DEFAULT 7")
    source.execute("INSERT INTO t VALUES (2, 'y')")

    options = {"snapshot": snapshot, "schema": {"tracking": tracking}}
    pipeline = make_pipeline(source, target, source_options=options)
    pipeline.catch_up()

    wait_until(lambda: row_count(target, "t") == 2, what="both rows")
    assert rows(target, "t") == [("(1,x,7)",), ("(2,y,7)",)]


@only_new
def test_only_a_schema_that_penstock_has_made_is_dropped_with_the_sources(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    # given: of four schemas one was there, and one is of a penstock that has not recorded it
    names = ("theirs", "copied", "streamed", "earlier")
    target.execute("CREATE SCHEMA theirs")
    for name in ("theirs", "copied", "earlier"):
        source.execute(f"CREATE SCHEMA {name}; CREATE TABLE {name}.t (id int PRIMARY KEY)")
    pipeline = make_pipeline(source, target, **COPIED)
    for name in ("theirs", "copied", "earlier"):
        wait_for_state(target, "t", "streaming", schema=name)
    source.execute("CREATE SCHEMA streamed CREATE TABLE t (id int PRIMARY KEY)")
    pipeline.catch_up()
    wait_for_state(target, "t", "streaming", schema="streamed")
    recorded = target.query("SELECT schema_name FROM penstock.schemas ORDER BY 1")
    target.execute("DELETE FROM penstock.schemas WHERE schema_name = 'earlier'")

    # when
    for name in names:
        source.execute(f"DROP SCHEMA {name} CASCADE")
    pipeline.catch_up()

    # then
    assert recorded == [("copied",), ("earlier",), ("streamed",)]
    left = "SELECT nspname FROM pg_namespace WHERE nspname = ANY (%s) ORDER BY 1"
    assert target.query(left, list(names)) == [("earlier",), ("theirs",)]
    assert target.query("SELECT FROM penstock.schemas") == []


@pytest.mark.long
@only_new
def test_schema_to_which_tables_types_and_sequences_move_is_recorded(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TYPE mood AS ENUM ('ok'); CREATE SEQUENCE s")
    source.execute("CREATE TABLE t (id int PRIMARY KEY DEFAULT nextval('s'), m mood)")
    pipeline = make_pipeline(source, target, **COPIED)
    wait_for_state(target, "t", "streaming")
    for name, what in (("a", "TABLE t"), ("b", "TYPE mood"), ("c", "SEQUENCE s")):
        source.execute(f"CREATE SCHEMA {name}; ALTER {what} SET SCHEMA {name}")
        pipeline.catch_up()

    recorded = target.query("SELECT schema_name FROM penstock.schemas ORDER BY 1")
    source.execute("DROP TABLE a.t; DROP TYPE b.mood; DROP SEQUENCE c.s")
    pipeline.catch_up()
    source.execute("DROP SCHEMA a, b, c")
    pipeline.catch_up()

    assert recorded == [("a",), ("b",), ("c",)]
    left = "SELECT nspname FROM pg_namespace WHERE nspname IN ('a', 'b', 'c')"
    assert target.query(left) == []
