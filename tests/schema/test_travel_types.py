"""Types travel with the tables that need them: real servers, the whole way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fix_pipeline import INITIAL, assert_equal, table_error, table_state, wait_for_state
from fix_postgres import only_new

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]

TYPES = (
    "SELECT typname, typtype, format_type(typbasetype, typtypmod) FROM pg_type t"
    " WHERE typnamespace = 'public'::regnamespace AND typcategory <> 'A' AND typrelid NOT IN"
    " (SELECT oid FROM pg_class WHERE relkind <> 'c') ORDER BY 1"
)

ANEW = (
    "ALTER TABLE t ALTER v TYPE numeric; DROP DOMAIN m; CREATE DOMAIN m AS numeric(12,4);"
    "ALTER TABLE t ALTER v TYPE m; INSERT INTO t VALUES (2, 1.2345, '(2,two)')"
)


@only_new
def test_types_are_followed_by_definition_and_names_that_are_taken_stop_one_table(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE DOMAIN m AS numeric(8,2); CREATE TYPE ct AS (x int, y text);"
        "CREATE TABLE t (id int PRIMARY KEY, v m, c ct); INSERT INTO t VALUES (1, 1.25, '(1,one)');"
        "CREATE TABLE u (id int PRIMARY KEY)"
    )
    target.execute("CREATE TABLE status (id int)")
    pipeline = make_pipeline(source, target, source_options=INITIAL)
    pipeline.catch_up()

    for statement in ANEW.split(";"):
        source.execute(statement)
    source.execute(
        "ALTER TYPE ct ADD ATTRIBUTE z int; UPDATE t SET c = '(3,three,33)' WHERE id = 1"
    )
    source.execute("CREATE TYPE status AS ENUM ('new'); ALTER TYPE status ADD VALUE 'old'")
    source.execute("CREATE TYPE _ct AS ENUM ('new'); DROP TYPE _ct")
    pipeline.catch_up()
    assert_equal(source, target, "t")
    assert target.value("SELECT v::text FROM t WHERE id = 2") == "1.2345"
    assert target.query(TYPES) == [row for row in source.query(TYPES) if row[0] != "status"]

    source.execute("ALTER TABLE u ADD s status; INSERT INTO u VALUES (1, 'new')")
    source.execute("INSERT INTO t VALUES (3, 0.0001, NULL)")
    pipeline.catch_up()
    wait_for_state(target, "u", "failed")
    assert_equal(source, target, "t")
    assert "at the target public.status is the row type of a table" in table_error(target, "u")

    pipeline.stop()
    pipeline.start()
    source.execute("ALTER TABLE t DROP c; INSERT INTO t VALUES (4, 4)")
    pipeline.catch_up()
    assert_equal(source, target, "t")
    assert table_state(target, "u") == "failed"
    target.execute("ALTER TABLE status RENAME TO mine")
    wait_for_state(target, "u", "streaming")
    assert_equal(source, target, "u")
    assert [row[0] for row in target.query(TYPES)] == ["m", "status"]


@pytest.mark.long
@pytest.mark.parametrize("tracking", ["triggers", "relation"])
@pytest.mark.parametrize(
    ("first", "second", "value"),
    [
        ("DOMAIN m AS numeric(8,2)", "DOMAIN m AS numeric(12,4)", "1.2345"),
        ("TYPE m AS ENUM ('a', 'b')", "TYPE m AS ENUM ('c', 'a')", "c"),
        ("TYPE m AS (x int)", "TYPE m AS (x int, y text)", "(1,one)"),
        ("TYPE m AS RANGE (SUBTYPE = int)", "TYPE m AS RANGE (SUBTYPE = numeric)", "[1.5,2.5)"),
        ("DOMAIN m AS int", "TYPE m AS ENUM ('a', 'c')", "c"),
    ],
)
def test_type_is_made_anew_in_one_transaction(
    source: Database,
    target: Database,
    make_pipeline: Make,
    tracking: str,
    first: str,
    second: str,
    value: str,
) -> None:
    source.execute(f"CREATE {first}; CREATE TABLE t (id int PRIMARY KEY, v m, w m[])")
    source.execute("INSERT INTO t VALUES (1, NULL, '{}')")
    options: dict[str, Any] = {**INITIAL, "schema": {"tracking": tracking}}
    pipeline = make_pipeline(source, target, source_options=options)
    pipeline.catch_up()

    with source.connect(autocommit=False) as connection:
        connection.execute("ALTER TABLE t ALTER v TYPE text, ALTER w TYPE text")
        connection.execute(f"DROP {first.split(maxsplit=1)[0]} m")
        connection.execute(f"CREATE {second}")
        connection.execute("ALTER TABLE t ALTER v TYPE m USING v::m, ALTER w TYPE m[] USING w::m[]")
        connection.execute("INSERT INTO t VALUES (2, %s, ARRAY[%s]::m[])", (value, value))
        connection.commit()
    source.execute("INSERT INTO t VALUES (3, %s)", value)
    pipeline.catch_up()

    wait_for_state(target, "t", "streaming")
    assert_equal(source, target, "t")
    assert target.query(TYPES) == source.query(TYPES)


@pytest.mark.long
@only_new
@pytest.mark.parametrize("snapshot", ["initial", "never"])
def test_table_and_type_are_dropped_and_made_anew(
    source: Database, target: Database, make_pipeline: Make, snapshot: str
) -> None:
    source.execute("CREATE DOMAIN m AS varchar(3); CREATE TABLE t (id int PRIMARY KEY, v m)")
    pipeline = make_pipeline(source, target, source_options={"snapshot": snapshot})
    source.execute("INSERT INTO t VALUES (1, 'abc')")
    pipeline.catch_up()

    source.execute("DROP TABLE t; DROP DOMAIN m; CREATE DOMAIN m AS varchar(9)")
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v m); INSERT INTO t VALUES (1, 'abcdefghi')"
    )
    pipeline.catch_up()
    assert_equal(source, target, "t")
    source.execute("DROP TABLE t")
    pipeline.catch_up()

    assert target.query(TYPES) == []
