"""Sequences that no column owns travel with the defaults that name them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from fix_command import run_penstock
from fix_pipeline import INITIAL, assert_equal, pipeline_document
from fix_postgres import only_new

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]

SEQUENCES = (
    "SELECT schemaname, sequencename, data_type::text, start_value, increment_by, cycle"
    " FROM pg_sequences WHERE schemaname <> 'penstock' ORDER BY 1, 2"
)
DEFAULTS = (
    "SELECT adrelid::regclass::text, pg_get_expr(adbin, adrelid) FROM pg_attrdef"
    " WHERE adrelid::regclass::text NOT LIKE 'penstock%' ORDER BY 1, 2"
)


def assert_alike(source: Database, target: Database, *tables: str) -> None:
    assert target.query(SEQUENCES) == source.query(SEQUENCES)
    assert target.query(DEFAULTS) == source.query(DEFAULTS)
    assert_equal(source, target, *tables)


@only_new
def test_sequence_and_default_are_carried_and_followed_and_synchronised(
    source: Database, target: Database, make_pipeline: Make, tmp_path: Path
) -> None:
    source.execute(
        "CREATE SEQUENCE s INCREMENT 5; CREATE SCHEMA other; CREATE SEQUENCE other.q AS int START 7;"
        "CREATE TABLE t (id int PRIMARY KEY DEFAULT nextval('s'), n int DEFAULT nextval('other.q'));"
        "CREATE TABLE u (id int PRIMARY KEY DEFAULT nextval('s'));"
        # Made after the one whose default needs its sequence.
        "CREATE TABLE z (id serial PRIMARY KEY);"
        "CREATE TABLE a (id int PRIMARY KEY DEFAULT nextval('z_id_seq'));"
        "INSERT INTO t SELECT FROM generate_series(1, 3); INSERT INTO u DEFAULT VALUES"
    )
    pipeline = make_pipeline(source, target, source_options=INITIAL)
    pipeline.catch_up()
    assert_alike(source, target, "t", "u", "a", "z")

    for ddl in (
        "ALTER SEQUENCE s INCREMENT 2 CYCLE",
        "ALTER SEQUENCE s RENAME TO r",
        "ALTER SEQUENCE r SET SCHEMA other",
        # Its key is another column: a table without one is published no more.
        "CREATE SEQUENCE v; CREATE TABLE w (k uuid PRIMARY KEY, id int DEFAULT nextval('v'))",
        "CREATE SEQUENCE x; ALTER TABLE w ADD y int; ALTER TABLE w ALTER y SET DEFAULT nextval('x')",
        "INSERT INTO w VALUES (gen_random_uuid()); INSERT INTO t DEFAULT VALUES",
        "ALTER TABLE w ALTER y DROP DEFAULT; DROP SEQUENCE x",
        "ALTER SEQUENCE v OWNED BY w.id",
        "ALTER SEQUENCE v OWNED BY NONE; ALTER TABLE w DROP id",
        "ALTER TABLE w ADD z int; ALTER TABLE w ALTER z SET DEFAULT nextval('v')",
        "DROP SEQUENCE v CASCADE",
    ):
        source.execute(ddl)
        pipeline.catch_up()
        assert_alike(source, target, "t", "u")
    path = tmp_path / "pipeline.yml"
    path.write_text(yaml.safe_dump(pipeline_document(source, target, tmp_path)))
    done = run_penstock("sync-sequences", path)
    done.check_returncode()

    assert "other.r" in done.stdout
    for sequence in ("other.r", "other.q"):
        next_value = f"SELECT nextval('{sequence}')"
        assert target.value(next_value) == source.value(next_value)


@only_new
def test_sequence_that_a_column_owns_and_uses_in_a_longer_default_is_carried_and_followed(
    source: Database, target: Database, make_pipeline: Make, tmp_path: Path
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, no text); CREATE SEQUENCE s START 100 OWNED BY t.no;"
        "ALTER TABLE t ALTER no SET DEFAULT 'INV-' || nextval('s');"
        "INSERT INTO t VALUES (1), (2); CREATE SEQUENCE by_hand"
    )
    pipeline = make_pipeline(source, target, source_options=INITIAL)
    pipeline.catch_up()
    target.execute("CREATE SEQUENCE by_hand")
    assert_alike(source, target, "t")

    for ddl in (
        "ALTER SEQUENCE s INCREMENT 7",
        "ALTER TABLE t ALTER no SET DEFAULT 'I' || nextval('s'); INSERT INTO t VALUES (3)",
        "ALTER SEQUENCE s OWNED BY NONE",
        "ALTER SEQUENCE s OWNED BY t.no",
        """CREATE TABLE u (id int PRIMARY KEY, no text); CREATE SEQUENCE q OWNED BY u.no;
        ALTER TABLE u ALTER no SET DEFAULT 'Q' || nextval('q'); INSERT INTO u VALUES (1)""",
    ):
        source.execute(ddl)
        pipeline.catch_up()
        assert_alike(source, target, "t")
    path = tmp_path / "pipeline.yml"
    path.write_text(yaml.safe_dump(pipeline_document(source, target, tmp_path)))
    done = run_penstock("sync-sequences", path)

    assert done.returncode == 0
    assert "public.by_hand is left out: no column that is followed counts with it" in done.stderr
    for sequence in ("s", "q"):
        next_value = f"SELECT nextval('{sequence}')"
        assert target.value(next_value) == source.value(next_value)


@pytest.mark.long
def test_sequences_that_somebody_else_has_made_are_used_and_left_alone(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE SEQUENCE s; CREATE SEQUENCE unused; CREATE TABLE t (id int PRIMARY KEY DEFAULT nextval('s'))"
    )
    target.execute("CREATE SEQUENCE s INCREMENT 3")
    pipeline = make_pipeline(source, target, source_options=INITIAL)
    source.execute("INSERT INTO t DEFAULT VALUES; ALTER SEQUENCE s INCREMENT 2")
    pipeline.catch_up()
    source.execute("DROP TABLE t; DROP SEQUENCE s, unused")
    pipeline.catch_up()

    assert [row[1:5:3] for row in target.query(SEQUENCES)] == [("s", 3)]
