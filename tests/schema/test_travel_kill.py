"""kill -9 before and after the commit of a change of tables: it is done once, and rows are as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
from test_travel_hard import everything

from fix_pipeline import INITIAL, status_of, table_state
from fix_postgres import only_new
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_pipeline import Command
    from fix_postgres import Database

pytestmark = [only_new, pytest.mark.long]

BEFORE = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE t (id int PRIMARY KEY, v text, n int, m mood);
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE swap_a (id int PRIMARY KEY, a int);
CREATE TABLE swap_b (id int PRIMARY KEY, b int);
INSERT INTO t SELECT g, 'v' || g, g, 'ok' FROM generate_series(1, 500) g;
INSERT INTO parent SELECT generate_series(1, 500);
INSERT INTO swap_a VALUES (1, 1);
INSERT INTO swap_b VALUES (2, 2)
"""
MIGRATIONS = (
    (
        "BEGIN; INSERT INTO t VALUES (1001, 'a', 1, 'sad'); ALTER TABLE t ADD x int NOT NULL DEFAULT 5;"
        "UPDATE t SET x = x + id; ALTER TABLE t RENAME v TO w; INSERT INTO t VALUES (1002, 'b', 1, 'ok', 1);"
        "ALTER TABLE t ALTER n TYPE bigint; CREATE INDEX i ON t (w); COMMIT"
    ),
    "ALTER TYPE mood ADD VALUE 'fine' BEFORE 'ok'",
    "INSERT INTO t VALUES (1003, 'c', 1, 'fine', 1)",
    "ALTER TABLE t ADD FOREIGN KEY (n) REFERENCES parent",
    (
        "BEGIN; ALTER TABLE swap_a RENAME TO x; ALTER TABLE swap_b RENAME TO swap_a;"
        "ALTER TABLE x RENAME TO swap_b; INSERT INTO swap_a VALUES (3, 3);"
        "INSERT INTO swap_b VALUES (3, 3); COMMIT"
    ),
    (
        "BEGIN; CREATE TABLE made (id serial PRIMARY KEY, at timestamptz DEFAULT now());"
        "INSERT INTO made (at) SELECT now() FROM generate_series(1, 20); DROP TABLE swap_b; COMMIT"
    ),
    "ALTER TABLE made ADD r uuid DEFAULT gen_random_uuid(); INSERT INTO made DEFAULT VALUES",
    "ALTER TABLE t DROP x; ALTER TABLE t RENAME TO u; DELETE FROM u WHERE id < 100",
)


def are_same(source: Database, target: Database) -> bool:
    """Whether both sides are equal by now; a table may be altered while its catalog is read."""
    try:
        return everything(target) == everything(source)
    except (
        psycopg.errors.InternalError_,
        psycopg.errors.UndefinedTable,
        psycopg.errors.UndefinedColumn,
    ):
        return False


# Up to seven starts of a whole pipeline, each with a deadline of its own.
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(["schema.before_commit", "schema.after_commit"], id="once each"),
        pytest.param(
            [f"schema.{when}_commit:{n}" for n in (1, 2, 3) for when in ("before", "after")],
            id="again and again",
        ),
    ],
)
def test_kill_at_the_commit_of_a_change_does_it_once(
    faults: list[str],
    source: Database,
    target: Database,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    source.execute(BEFORE)
    path = pipeline_file(source, target, source_options=INITIAL)
    first = penstock_command("run", str(path), "--until-caught-up")
    assert first.wait() == 0, first.stderr
    wait_until(lambda: table_state(target, "t") == "streaming", what="the copy")
    for migration in MIGRATIONS:
        source.execute(migration)
    for fault in faults:
        command = penstock_command("run", str(path), env={"PENSTOCK_FAULT": fault})
        wait_until(
            lambda: command.is_struck or are_same(source, target),  # noqa: B023
            90,
            what=f"the fault at {fault} to strike",
            pause_seconds=0.3,
        )
        command.kill()
    again = penstock_command("run", str(path), "--until-caught-up")
    assert again.wait() == 0, again.stderr
    found, wanted = everything(target), everything(source)
    assert list(found) == list(wanted)
    for table, each in wanted.items():
        assert found[table] == each, table
    status = status_of(path)
    assert status["phase"] == "stopped", status
