"""Expressions that a tenant has written do not run at the target, whichever way they come there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fix_pipeline import INITIAL, assert_equal, rows, table_error, table_state, wait_for_state
from fix_postgres import only_new
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]

pytestmark = only_new

# Sequences are not rolled back: who was called is seen.
_SPY = """
CREATE SCHEMA ev; CREATE SEQUENCE ev.calls;
CREATE FUNCTION ev.spy(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
    $$ BEGIN PERFORM nextval('ev.calls'); RETURN $1; END $$;
"""
_TABLE = """
CREATE TABLE {0} (id int PRIMARY KEY, a int NOT NULL DEFAULT ev.spy(1), b int DEFAULT 7 CHECK (b > 0),
    CONSTRAINT {0}_spied CHECK (ev.spy(a) > 0));
CREATE INDEX {0}_by_spy ON {0} (ev.spy(a)) WHERE ev.spy(b) > 0;
CREATE INDEX {0}_by_b ON {0} (abs(b));
INSERT INTO {0} SELECT g FROM generate_series(1, 50) g;
"""


def test_what_a_tenant_has_written_does_not_run_at_the_target(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(_SPY + _TABLE.format("copied"))
    target.execute(_SPY)
    pipeline = make_pipeline(source, target, source_options=INITIAL, tables=("public.*",))
    wait_for_state(target, "copied", "streaming")

    source.execute(_TABLE.format("streamed"))
    source.execute(
        "ALTER TABLE copied ADD c int CHECK (ev.spy(c) > 0), ADD d timestamptz DEFAULT now();"
        "UPDATE copied SET c = 1, a = 2"
    )
    pipeline.catch_up()
    wait_for_state(target, "copied", "streaming")
    wait_for_state(target, "streamed", "streaming")
    pipeline.catch_up()

    assert_equal(source, target, "copied", "streamed")
    assert target.query("SELECT is_called FROM ev.calls") == [(False,)]
    for table, more in (("copied", ["copied_c_check"]), ("streamed", [])):
        query = "SELECT notes FROM penstock.tables WHERE table_name = %s"
        notes = target.value(query, table)
        for what in (
            "column a goes without its default",
            f"{table}_spied",
            f"{table}_by_spy",
            *more,
        ):
            assert what in notes
        indexes = "SELECT indexname FROM pg_indexes WHERE tablename = %s ORDER BY 1"
        assert target.query(indexes, table) == [(f"{table}_by_b",), (f"{table}_pkey",)]
        checks = "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'c'"
        assert target.query(checks, f"public.{table}") == [(f"{table}_b_check",)]
        required = (
            "SELECT attnotnull FROM pg_attribute WHERE attrelid = %s::regclass AND attname = 'a'"
        )
        assert target.query(required, f"public.{table}") == [(True,)]


# What is quick for the rows that are there, and slow for one.
_SLOW = "CHECK (v < 100 OR pg_sleep(20) IS NOT NULL)"
_TABLES = "CREATE TABLE slow (id int PRIMARY KEY, v int); CREATE TABLE plain (id int PRIMARY KEY);"
_LIMIT = "ALTER DATABASE \"{}\" SET statement_timeout = '300ms'"


def _stops(target: Database) -> None:
    """Wait until the slow table has stopped because of its expression."""
    wait_until(lambda: "statement_timeout" in table_error(target, "slow"), what="the table to stop")
    assert table_state(target, "slow") != "streaming"


def test_rows_whose_expressions_are_slow_stop_their_own_table_alone(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(_TABLES)
    target.execute(_TABLES + f"ALTER TABLE slow ADD CONSTRAINT slow {_SLOW}")
    target.execute(_LIMIT.format(target.name))
    pipeline = make_pipeline(source, target)
    source.execute("INSERT INTO slow VALUES (1, 1); INSERT INTO plain VALUES (1)")
    pipeline.catch_up()

    source.execute("INSERT INTO slow VALUES (2, 200); INSERT INTO plain VALUES (2)")
    pipeline.catch_up()

    _stops(target)
    assert_equal(source, target, "plain")
    assert rows(target, "slow") == [("(1,1)",)]

    target.execute("ALTER TABLE slow DROP CONSTRAINT slow")
    wait_for_state(target, "slow", "streaming")
    pipeline.catch_up()
    assert_equal(source, target, "slow")


# What takes longer than the limit, and yet is worth waiting for.
_LENGTHY = "CHECK (v < 100 OR pg_sleep(0.5) IS NOT NULL)"


@pytest.mark.parametrize(
    "there", ["nothing", pytest.param("rows", marks=pytest.mark.long)], ids="into {}".format
)
def test_copied_rows_may_take_longer_than_the_role_has_for_a_statement(
    source: Database, target: Database, make_pipeline: Make, there: str
) -> None:
    source.execute(_TABLES + "INSERT INTO slow VALUES (2, 200); INSERT INTO plain VALUES (2)")
    target.execute(_TABLES + f"ALTER TABLE slow ADD CONSTRAINT slow {_LENGTHY}")
    if there == "rows":
        target.execute("INSERT INTO slow VALUES (2, 1)")
    target.execute(_LIMIT.format(target.name))

    pipeline = make_pipeline(source, target, source_options=INITIAL, sink={"adopt": True})

    wait_for_state(target, "plain", "streaming")
    wait_for_state(target, "slow", "streaming")
    assert not table_error(target, "slow")
    pipeline.catch_up()
    assert_equal(source, target, "slow", "plain")
