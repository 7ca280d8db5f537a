"""Constraints that come while a table is copied again hold for the rows that it brings, not for the old ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from test_resync import ask, wait_for_resync

from fix_pipeline import INITIAL, assert_equal, table_state, wait_for_state
from fix_postgres import only_new
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]

_TABLE = "CREATE TABLE t (id int PRIMARY KEY, a int, b int, c text)"
_FILL = "INSERT INTO t SELECT g, g, g, 'c' || g FROM generate_series(1, 200) g"
# Rows that none of the claims below holds for.
_DAMAGE = (
    "UPDATE t SET a = NULL WHERE id < 10; UPDATE t SET b = 1; UPDATE t SET c = 'bad';"
    "INSERT INTO t SELECT g, NULL, 1, '' FROM generate_series(30000, 30010) g"
)

_CLAIMS = {
    "not_null": "ALTER TABLE t ALTER a SET NOT NULL",
    "unique": "ALTER TABLE t ADD CONSTRAINT t_b UNIQUE (b)",
    "unique_index": "CREATE UNIQUE INDEX t_b ON t (b)",
    "check": "ALTER TABLE t ADD CONSTRAINT t_c CHECK (c <> 'bad')",
    "late_check": (
        "ALTER TABLE t ADD CONSTRAINT t_c CHECK (c <> 'bad') NOT VALID;"
        "ALTER TABLE t VALIDATE CONSTRAINT t_c"
    ),
    "exclusion": "ALTER TABLE t ADD CONSTRAINT t_x EXCLUDE USING btree (b WITH =)",
    "expression": "CREATE INDEX t_e ON t ((10 / (b - 1 + id - id * (b - b / b))))",
    "primary_key": "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (b)",
    "wider_key": "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (a, b)",
    "named_key": "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD CONSTRAINT k PRIMARY KEY (a)",
    "foreign_key": "ALTER TABLE t ADD CONSTRAINT t_f FOREIGN KEY (b) REFERENCES p (id)",
    "type": "ALTER TABLE t ALTER c TYPE int USING substr(c, 2)::int",
    "narrower": "ALTER TABLE t ALTER a TYPE smallint",
    "generated": "ALTER TABLE t ADD g int GENERATED ALWAYS AS (10 / (a + 1 - id % 1)) STORED",
    "all": (
        "ALTER TABLE t ALTER a SET NOT NULL, ADD CONSTRAINT t_c CHECK (c <> 'bad'),"
        " ADD CONSTRAINT t_id UNIQUE (id), DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (b);"
        "ALTER TABLE t ADD CONSTRAINT t_f FOREIGN KEY (b) REFERENCES p (id)"
    ),
}
_QUICK = ("all", "before")


def structure(database: Database, table: str) -> list[tuple[Any, ...]]:
    """Columns, constraints and indexes of a table, without the names that Postgres gives to NOT NULL."""
    return sorted(
        database.query(
            f"""
            SELECT 'column', attname::text, format_type(atttypid, atttypmod), attnotnull::text
            FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped
            UNION ALL
            SELECT 'constraint', conname::text, pg_get_constraintdef(oid), convalidated::text
            FROM pg_constraint WHERE conrelid = '{table}'::regclass AND contype <> 'n'
            UNION ALL
            SELECT 'index', indexrelid::regclass::text, pg_get_indexdef(indexrelid), indisvalid::text
            FROM pg_index WHERE indrelid = '{table}'::regclass
            """
        )
    )


def _begin(source: Database, target: Database, make_pipeline: Make) -> RunningPipeline:
    source.execute(
        "CREATE TABLE p (id int PRIMARY KEY); INSERT INTO p SELECT generate_series(1, 500)"
    )
    source.execute(f"{_TABLE}; {_FILL}")
    pipeline = make_pipeline(source, target, source_options=INITIAL)
    pipeline.catch_up()
    return pipeline


def _wait_until_alike(source: Database, target: Database) -> None:
    wait_until(
        lambda: structure(target, "t") == structure(source, "t"), what="the tables to be alike"
    )
    assert not target.value("SELECT notes FROM penstock.tables WHERE table_name = 't'")


@only_new
@pytest.mark.parametrize(
    ("claim", "when"),
    [
        pytest.param(claim, when, marks=() if (claim, when) == _QUICK else pytest.mark.long)
        for claim in _CLAIMS
        for when in ("before", "running", "refused")
    ],
)
def test_what_is_claimed_of_rows_comes_after_those_of_the_copy(
    source: Database, target: Database, make_pipeline: Make, claim: str, when: str
) -> None:
    pipeline = _begin(source, target, make_pipeline)
    target.execute(_DAMAGE)

    if when == "before":
        pipeline.stop()
        ask(target, "t")
        source.execute(_CLAIMS[claim])
        pipeline.start()
    elif when == "running":
        ask(target, "t")
        source.execute(_CLAIMS[claim])
    else:
        source.execute(_CLAIMS[claim])
        pipeline.catch_up()
        ask(target, "t")
    wait_for_resync(target, "t")
    source.execute(
        "INSERT INTO t (id, a, b, c) VALUES (400, 400, 400, 5); DELETE FROM t WHERE id = 2"
    )
    pipeline.catch_up()

    _wait_until_alike(source, target)
    assert_equal(source, target, "t")


@pytest.mark.long
@only_new
@pytest.mark.parametrize(
    "claim", ["not_null", "unique", "check", "primary_key", "foreign_key", "all"]
)
def test_what_is_claimed_while_a_copy_runs_comes_with_the_changes_after_it(
    source: Database, target: Database, make_pipeline: Make, claim: str
) -> None:
    source.execute(
        "CREATE TABLE p (id int PRIMARY KEY); INSERT INTO p SELECT generate_series(1, 9000)"
    )
    source.execute(f"{_TABLE}; {_FILL.replace('200', '3000')}")
    snapshot = {"mode": "initial", "max_rows_per_second": 3000}
    pipeline = make_pipeline(source, target, source_options={"snapshot": snapshot})
    pipeline.catch_up()
    target.execute(_DAMAGE)
    pipeline.stop()
    ask(target, "t")
    pipeline.start()
    wait_for_state(target, "t", "copying")

    source.execute("UPDATE t SET c = 'c' WHERE c = 'bad'")
    source.execute(_CLAIMS[claim])
    wait_for_resync(target, "t")
    source.execute("INSERT INTO t (id, a, b, c) VALUES (4000, 4000, 4000, 5)")
    pipeline.catch_up()

    _wait_until_alike(source, target)
    assert_equal(source, target, "t")


@pytest.mark.long
@only_new
@pytest.mark.parametrize("claim", ["not_null", "primary_key", "wider_key"])
def test_table_that_a_person_has_made_follows_after_the_rows_of_the_copy_as_well(
    source: Database, target: Database, make_pipeline: Make, claim: str
) -> None:
    source.execute(f"{_TABLE}; {_FILL}")
    target.execute(f"{_TABLE}; ALTER TABLE t ADD own text DEFAULT 'mine'")
    pipeline = make_pipeline(source, target, source_options=INITIAL)
    pipeline.catch_up()
    target.execute("UPDATE t SET own = 'kept' WHERE id = 20")
    pipeline.stop()
    target.execute(_DAMAGE)
    ask(target, "t")
    source.execute(_CLAIMS[claim])
    pipeline.start()
    wait_for_resync(target, "t")
    source.execute("INSERT INTO t (id, a, b, c) VALUES (400, 400, 400, 5)")
    pipeline.catch_up()

    columns = "SELECT id, a, b, c FROM t ORDER BY id"
    assert target.query(columns) == source.query(columns)
    own = [each for each in structure(target, "t") if each[1] != "own"]
    assert own == structure(source, "t")


@pytest.mark.long
@only_new
def test_foreign_key_to_a_key_that_waits_for_a_copy_is_made_after_it(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    pipeline = _begin(source, target, make_pipeline)
    source.execute(
        "CREATE TABLE child (id int PRIMARY KEY, b int); INSERT INTO child VALUES (1, 5)"
    )
    pipeline.catch_up()
    target.execute(_DAMAGE)
    pipeline.stop()
    ask(target, "t")
    source.execute(
        "BEGIN; ALTER TABLE t ADD CONSTRAINT t_b UNIQUE (b);"
        "ALTER TABLE child ADD CONSTRAINT child_b FOREIGN KEY (b) REFERENCES t (b); COMMIT"
    )
    pipeline.start()
    wait_for_resync(target, "t")
    pipeline.catch_up()

    _wait_until_alike(source, target)
    wait_until(
        lambda: structure(target, "child") == structure(source, "child"), what="the foreign key"
    )


@pytest.mark.long
@only_new
def test_table_whose_copy_failed_follows_once_its_rows_can_be_copied(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    pipeline = _begin(source, target, make_pipeline)
    target.execute(_DAMAGE)
    target.execute("CREATE VIEW holds AS SELECT c FROM t")
    ask(target, "t")
    source.execute(
        f"{_CLAIMS['type']}; {_CLAIMS['primary_key']}; ALTER TABLE t ALTER a SET NOT NULL"
    )
    wait_until(lambda: table_state(target, "t") == "failed", 60, what="the view to be in the way")

    target.execute("DROP VIEW holds")
    ask(target, "t")
    wait_for_resync(target, "t")
    source.execute("INSERT INTO t (id, a, b, c) VALUES (400, 400, 400, 5)")
    pipeline.catch_up()

    _wait_until_alike(source, target)
    assert_equal(source, target, "t")
