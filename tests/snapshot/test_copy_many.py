"""Many tables at the first start, and what a command that ends once it has caught up leaves behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fix_pipeline import ALWAYS_COPIED, status_of
from fix_postgres import only_new

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_pipeline import Command
    from fix_postgres import Database

    Start = Callable[..., Command]
    WriteFile = Callable[..., Path]

pytestmark = only_new

KEYS = (
    "SELECT count(*), count(*) FILTER (WHERE convalidated) FROM pg_constraint WHERE contype = 'f'"
)
INDEXES = "SELECT count(*) FROM pg_indexes WHERE schemaname = 'shop'"
# Together they take longer than a command that stops gives what is under way.
SLOW_KEYS = """
CREATE FUNCTION public.slow() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_query() LIKE '%FOREIGN KEY%' THEN PERFORM pg_sleep(1.2); END IF;
END $$;
CREATE EVENT TRIGGER slow ON ddl_command_start WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION public.slow();
ALTER EVENT TRIGGER slow ENABLE ALWAYS
"""


def make_chain(source: Database, count: int) -> None:
    """Tables of a few rows, each with an index and a foreign key to the one before."""
    source.execute("CREATE SCHEMA shop; CREATE TABLE shop.t0 (id int PRIMARY KEY, name text)")
    source.execute("INSERT INTO shop.t0 SELECT n, 'n' FROM generate_series(1, 20) n")
    source.execute(
        "".join(
            f"CREATE TABLE shop.t{n} (id int PRIMARY KEY, name text,"
            f" parent int REFERENCES shop.t{n - 1});"
            f"CREATE INDEX ON shop.t{n} (name);"
            f"INSERT INTO shop.t{n} SELECT n, 'n', n FROM generate_series(1, 20) n;"
            for n in range(1, count)
        )
    )


@pytest.mark.long
def test_command_ends_once_foreign_keys_and_indexes_are_made(
    source: Database, target: Database, pipeline_file: WriteFile, penstock_command: Start
) -> None:
    make_chain(source, 9)
    target.execute(SLOW_KEYS)
    # One that can never be made: what it leads to is not followed.
    source.execute(
        "CREATE TABLE elsewhere (id int PRIMARY KEY);"
        "ALTER TABLE shop.t0 ADD far int REFERENCES elsewhere"
    )
    path = pipeline_file(source, target, tables=("shop.*",), source_options=ALWAYS_COPIED)

    command = penstock_command("run", str(path), "--until-caught-up")

    assert command.wait() == 0, command.stderr
    assert target.query(KEYS) == [(8, 8)]
    assert target.query(INDEXES) == source.query(INDEXES)
    assert "57P01" not in command.stderr
    tables = status_of(path)["sinks"]["target"]["tables"]
    assert {name: reported["notes"] for name, reported in tables.items() if reported["notes"]} == {
        "shop.t0": "foreign key t0_far_fkey: the target has no table public.elsewhere"
    }
    assert not any(reported["foreign_keys_due"] for reported in tables.values())


@pytest.mark.long
def test_snapshot_command_ends_once_foreign_keys_are_made(
    source: Database, target: Database, pipeline_file: WriteFile, penstock_command: Start
) -> None:
    make_chain(source, 9)
    target.execute(SLOW_KEYS)
    path = pipeline_file(source, target, tables=("shop.*",))

    command = penstock_command("snapshot", str(path))

    assert command.wait() == 0, command.stderr
    assert target.query(KEYS) == [(8, 8)]
