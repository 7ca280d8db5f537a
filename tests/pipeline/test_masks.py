"""Masks end to end: copies and stream alike, migrations, and a canary that is searched in all that was written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fix_pipeline import INITIAL, pipeline_document, rows, table_error, wait_for_state
from fix_postgres import only_new
from fix_transform import SALT, transformed
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_pipeline import Command, RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]

pytestmark = only_new

CANARY = "c4n4ry"
RULES = {
    "table": "people",
    "coverage": "strict",
    "columns": {
        "id": {"with": "hash"},
        "email": {"with": "email"},
        "phone": {"with": "phone_number"},
        "name": {"with": "masking"},
        "card": {"with": "mask", "keep_first": 0, "keep_last": 0},
        "doc": {
            "with": "json",
            "parameters": {"operations": [{"operation": "set", "path": "who", "value": "x"}]},
        },
    },
}
PEOPLE = (
    "CREATE TABLE people (id text PRIMARY KEY, email varchar(60), phone text, name text, card text,"
    " doc jsonb); ALTER TABLE people REPLICA IDENTITY FULL"
)


@pytest.fixture(autouse=True)
def _salted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SALT", SALT)


def some_people(first: int, last: int) -> str:
    return (
        f"INSERT INTO people SELECT '{CANARY}' || n, '{CANARY}' || n || '@x.org', '{CANARY}' || n,"
        f" '{CANARY}' || n, '{CANARY}' || n, jsonb_build_object('who', '{CANARY}' || n, 'n', 1.50)"
        f" FROM generate_series({first}, {last}) n"
    )


def as_masked(source: Database) -> list[tuple[Any, ...]]:
    """What the target is to have, row by row."""
    found = source.query("SELECT id, email, phone, name, card FROM people")
    rules = [RULES["columns"][name] for name in ("id", "email", "phone", "name", "card")]
    return sorted(
        tuple(
            value if value is None else transformed(rule, value)
            for rule, value in zip(rules, row, strict=True)
        )
        for row in found
    )


def test_copied_and_streamed_rows_are_masked_alike_and_found_by_their_masked_key(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(PEOPLE)
    source.execute(some_people(1, 300))
    source.execute(f"UPDATE people SET phone = NULL WHERE id = '{CANARY}7'")
    modifiers = [{"transform": RULES}]
    pipeline = make_pipeline(source, target, source_options=INITIAL, modifiers=modifiers)
    pipeline.catch_up()
    wait_for_state(target, "people", "streaming")
    query = "SELECT id, email, phone, name, card FROM people"
    assert sorted(target.query(query)) == as_masked(source), "the copy"

    source.execute(some_people(301, 350))
    source.execute(
        f"UPDATE people SET email = 'new' || email WHERE id IN ('{CANARY}1', '{CANARY}301')"
    )
    source.execute(f"UPDATE people SET id = id || 'moved' WHERE id IN ('{CANARY}2', '{CANARY}302')")
    source.execute(f"DELETE FROM people WHERE id IN ('{CANARY}3', '{CANARY}303')")
    pipeline.catch_up()

    assert sorted(target.query(query)) == as_masked(source), "the stream"
    assert target.query("SELECT DISTINCT doc::text FROM people") == [('{"n": 1.50, "who": "x"}',)]


def test_migration_without_a_rule_stops_the_table_before_a_value_passes(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(PEOPLE)
    source.execute("CREATE TABLE books (id int PRIMARY KEY)")
    modifiers = [{"transform": RULES}]
    pipeline = make_pipeline(source, target, source_options=INITIAL, modifiers=modifiers)
    pipeline.catch_up()
    source.execute(some_people(1, 5))
    source.execute("ALTER TABLE people ADD COLUMN passport text")
    source.execute(f"UPDATE people SET passport = '{CANARY}'")
    source.execute("INSERT INTO books VALUES (1)")
    wait_for_state(target, "people", "failed")
    pipeline.catch_up()

    assert len(rows(target, "books")) == 1, "the others go on"
    error = table_error(target, "people")
    assert "PEN-711" in error
    assert "passport" in error
    everything = str(rows(target, "people")) + str(
        target.query("SELECT t::text FROM penstock.tables t")
    )
    assert CANARY not in everything

    pipeline.stop()
    covered = {**RULES, "columns": {**RULES["columns"], "passport": {"with": "masking"}}}
    # Changes from before the migration lack the column.
    covered["columns"]["passport"]["when_missing"] = "skip"
    pipeline = make_pipeline(
        source, target, source_options=INITIAL, modifiers=[{"transform": covered}]
    )
    wait_for_state(target, "people", "streaming")
    pipeline.catch_up()
    assert target.query("SELECT DISTINCT passport FROM people") == [("*" * len(CANARY),)]
    assert len(rows(target, "people")) == 5


def test_detached_partition_is_not_copied_without_what_rules_did_to_it_in_its_root(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TABLE people (id int, email text, PRIMARY KEY (id)) PARTITION BY RANGE (id);"
        "CREATE TABLE old PARTITION OF people FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE young PARTITION OF people FOR VALUES FROM (10) TO (20);"
        f"INSERT INTO people SELECT n, '{CANARY}' || n FROM generate_series(1, 19) n"
    )
    mask = {"transform": {"table": "people", "column": "email", "with": "masking"}}
    other = {"filter": {"table": "*.*", "where": {"column": "id", "operator": "gt", "value": 0}}}
    pipeline = make_pipeline(source, target, source_options=INITIAL, modifiers=[mask, other])
    pipeline.catch_up()
    source.execute("ALTER TABLE people DETACH PARTITION old")
    wait_for_state(target, "old", "failed")

    error = table_error(target, "old")
    assert "PEN-701" in error
    assert "partition of public.people" in error
    assert "transform of column email" in error
    pipeline.catch_up()
    found = target.query("SELECT to_regclass('public.old') IS NULL")
    assert found == [(True,)] or rows(target, "old") == []
    assert target.query("SELECT DISTINCT translate(email, '*', '') FROM people") == [("",)]

    pipeline.stop()
    own = {"transform": {"table": "old", "column": "email", "with": "masking"}}
    make_pipeline(source, target, source_options=INITIAL, modifiers=[mask, own, other])
    wait_for_state(target, "old", "streaming")
    assert target.query("SELECT count(*), max(translate(email, '*', '')) FROM old") == [(9, "")]


def test_default_of_a_masked_column_is_masked_in_rows_that_are_older_than_it(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE people (id int PRIMARY KEY); INSERT INTO people VALUES (1), (2)")
    modifiers = [
        {"transform": {"column": "*name*", "with": "masking"}},
        {"transform": {"column": "*token*", "with": "hash", "generator": "random"}},
    ]
    pipeline = make_pipeline(source, target, source_options=INITIAL, modifiers=modifiers)
    pipeline.catch_up()
    source.execute(f"ALTER TABLE people ADD COLUMN name text DEFAULT '{CANARY}' NOT NULL")
    source.execute("INSERT INTO people VALUES (3)")
    pipeline.catch_up()
    wait_for_state(target, "people", "streaming")

    stars = "*" * len(CANARY)
    named = "SELECT id, name FROM people ORDER BY id"
    assert target.query(named) == [(n, stars) for n in (1, 2, 3)]

    source.execute(f"ALTER TABLE people ADD COLUMN token text DEFAULT '{CANARY}'")
    source.execute("INSERT INTO people VALUES (4)")
    pipeline.catch_up()
    wait_until(
        lambda: target.query("SELECT count(DISTINCT token) FROM people") == [(4,)],
        60,
        "only rows say what becomes of it: the table is copied",
    )
    pipeline.catch_up()
    defaults = (
        "SELECT count(column_default) FROM information_schema.columns WHERE table_name = 'people'"
    )
    assert target.query(defaults) == [(0,)]
    assert CANARY not in str(rows(target, "people"))


FUNCTION = """
import os
from pathlib import Path

import pyarrow.compute as pc


def shout(values):
    Path(__file__).with_name(f"ran-{os.getpid()}").touch()
    return pc.utf8_upper(values)
"""


@pytest.mark.long
def test_function_of_a_module_of_the_users_runs_on_executors_in_copies_and_stream(
    source: Database,
    target: Database,
    penstock_command: Callable[..., Command],
    tmp_path: Path,
) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "own_masks.py").write_text(FUNCTION)
    source.execute("CREATE TABLE people (id int PRIMARY KEY, name text)")
    source.execute("INSERT INTO people VALUES (1, 'ada'), (2, NULL), (3, 'zoë')")
    document = pipeline_document(source, target, tmp_path, source_options=INITIAL)
    rule = {"table": "people", "column": "name", "python": "own_masks.shout"}
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump({**document, "modifiers": [{"transform": rule}]}))

    refused = penstock_command("run", str(path))
    assert refused.wait() == 2
    assert "'own_masks.shout' cannot be used: ModuleNotFoundError" in refused.stderr

    path_variable = os.pathsep.join(filter(None, [str(modules), os.environ.get("PYTHONPATH")]))
    command = penstock_command("run", str(path), env={"PYTHONPATH": path_variable})
    named = "SELECT id, name FROM people ORDER BY id"
    wait_until(lambda: len(rows(target, "people")) == 3, 90, what="the copy")
    assert target.query(named) == [(1, "ADA"), (2, None), (3, "ZOË")]
    copied_by = ran_in(modules)
    source.execute(
        "INSERT INTO people VALUES (4, 'streamed'); UPDATE people SET name = 'x' WHERE id = 1"
    )
    wait_until(lambda: len(rows(target, "people")) == 4, 60, what="the stream")

    assert target.query(named) == [(1, "X"), (2, None), (3, "ZOË"), (4, "STREAMED")]
    assert copied_by
    assert command.process.pid not in ran_in(modules), "tasks run it, not the driver"
    assert command.terminate() == 0, command.stderr


def ran_in(modules: Path) -> set[int]:
    return {int(each.name.removeprefix("ran-")) for each in modules.glob("ran-*")}


@pytest.mark.long
def test_no_byte_that_penstock_wrote_shows_a_masked_value_or_the_salt(
    source: Database,
    target: Database,
    penstock_command: Callable[..., Command],
    tmp_path: Path,
) -> None:
    source.execute(PEOPLE)
    source.execute(some_people(1, 2000))
    source.execute("CREATE TABLE broken (id int PRIMARY KEY, v text)")
    path = write_pipeline(source, target, tmp_path)
    command = penstock_command("run", str(path))
    wait_until(lambda: len(rows(target, "people")) == 2000, 90, what="the copy")
    target.execute("ALTER TABLE people ADD CONSTRAINT short CHECK (length(name) < 12) NOT VALID")
    source.execute(some_people(2001, 2500))
    source.execute(
        f"UPDATE people SET name = '{CANARY} is too long', id = id || '-' WHERE id = '{CANARY}5'"
    )
    source.execute(f"UPDATE people SET email = '{CANARY}@new.org' WHERE id = '{CANARY}6'")
    source.execute(f"DELETE FROM people WHERE id = '{CANARY}7'")
    source.execute(f"INSERT INTO broken VALUES (1, '{CANARY}')")
    wait_for_state(target, "broken", "failed")
    wait_until(lambda: len(rows(target, "people")) >= 2498, 60, what="the stream")
    wait_until(
        lambda: said(path, "status", "--json").count(b'"parked": 1'), 60, what="a parked row"
    )
    shown = [said(path, "status", "--json"), said(path, "status"), said(path, "parked", "list")]
    shown.append(said(path, "tables", "list"))
    assert command.terminate() == 0, command.stderr

    state = tmp_path / "test-state"
    raw = [each for each in files_below(state) if each.is_relative_to(state / "log")]
    written = [each for each in files_below(tmp_path) if each not in raw and each != path]
    texts = {str(each): each.read_bytes() for each in written}
    texts |= {f"shown {number}": text for number, text in enumerate(shown)}
    texts["target"] = everything_in(target).encode()

    assert any(name.endswith("spark.log") for name in texts)
    assert len(documents_in(tmp_path / "out")) >= 2503, "the documents are among what is searched"
    for secret in (CANARY.encode(), SALT.encode()):
        assert [name for name, text in texts.items() if secret in text] == []
    assert any(CANARY.encode() in each.read_bytes() for each in raw), (
        "the log holds what the source sent"
    )
    assert not [each for each in raw if each.stat().st_mode & 0o077], "and is this user's alone"
    assert SALT.encode() not in b"".join(each.read_bytes() for each in raw)


def write_pipeline(source: Database, target: Database, directory: Path) -> Path:
    document = pipeline_document(source, target, directory, source_options=INITIAL)
    for_broken = {"table": "broken", "column": "v", "with": "template"}
    document["modifiers"] = [
        {"transform": RULES},
        {"transform": {**for_broken, "template": "{{ int .GetValue }}"}},
    ]
    document["sinks"]["target"]["on_refused"] = "park"
    document["sinks"]["out"] = {"kind": "file", "path": str(directory / "out")}
    path = directory / "test.yml"
    path.write_text(yaml.safe_dump(document))
    return path


def said(path: Path, command: str, *arguments: str) -> bytes:
    """All that a command prints."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock", command, str(path), *arguments],
        capture_output=True,
        check=False,
    )
    return done.stdout + done.stderr


def files_below(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def documents_in(root: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for each in files_below(root) for line in each.read_text().splitlines()
    ]


def everything_in(database: Database) -> str:
    """Every row of every table, penstock's own included."""
    tables = database.query(
        "SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname) FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p')"
        " AND n.nspname NOT IN ('pg_catalog', 'information_schema')"
    )
    found = [database.query(f"SELECT t::text FROM {name} t") for (name,) in tables]
    comments = database.query("SELECT description FROM pg_description WHERE objoid >= 16384")
    return str(found) + str(comments)
