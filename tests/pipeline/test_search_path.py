"""Nothing that others have put into a database is called in place of Postgres's own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from fix_command import run_penstock
from fix_hostile import plant, safely, sprung
from fix_pipeline import INITIAL, assert_equal
from fix_postgres import only_new
from fix_wait import wait_until
from penstock.source.tracking.sql import EVENT_TRIGGERS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_pipeline import Command, RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]

pytestmark = only_new

_DDL = (
    "ALTER TABLE public.t ADD COLUMN extra pg_catalog.text",
    "CREATE TYPE public.mood AS ENUM ('sad', 'glad')",
    "CREATE TABLE public.later (id pg_catalog.int4 PRIMARY KEY, m public.mood)",
    "ALTER TABLE public.t RENAME COLUMN v TO value",
    "DROP TABLE public.gone",
)


def test_what_others_have_put_under_penstocks_names_is_never_called(
    source: Database,
    target: Database,
    make_pipeline: Make,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text, CHECK (id > 0))")
    source.execute("CREATE TABLE gone (id bigserial PRIMARY KEY)")
    source.execute("CREATE TABLE h (id text PRIMARY KEY, v text); CREATE TABLE w (a int, b text)")
    source.execute("ALTER TABLE w REPLICA IDENTITY FULL; INSERT INTO w VALUES (1, 'x'), (1, 'x')")
    source.execute("INSERT INTO t SELECT g, 'first' FROM generate_series(1, 50) g")
    source.execute("INSERT INTO h VALUES ('a', '1'), ('b', '2')")
    assert plant(source) > 500
    assert plant(target) > 500
    options: dict[str, Any] = {
        "source_options": INITIAL,
        "tables": ("public.*",),
        "sink": {"tables": {"h": {"kind": "history"}}},
    }
    path = pipeline_file(source, target, **options)

    # The commands, then everything that a pipeline does: copies, changes, changes of tables, an end.
    for command in ("check", "init"):
        done = penstock_command(command, str(path))
        assert done.wait() == 0, (command, done.stderr, sprung(source), sprung(target))
    pipeline = make_pipeline(source, target, **options)
    pipeline.catch_up()
    for statement in _DDL:
        source.execute(statement)  # in a session that others' search_path rules
    safely(source, "INSERT INTO later VALUES (1, 'glad')")
    safely(source, "UPDATE t SET value = 'second', extra = 'x' WHERE id < 10")
    safely(source, "UPDATE t SET id = id + 100 WHERE id = 20; DELETE FROM t WHERE id = 30")
    safely(source, "UPDATE h SET v = '3' WHERE id = 'a'; DELETE FROM h WHERE id = 'b'")
    safely(source, "DELETE FROM w WHERE ctid = '(0,1)'; UPDATE w SET b = 'y'")
    pipeline.catch_up()
    stopped = dict(pipeline.deliveries[0].stopped_tables)
    pipeline.stop()
    found = {name: safely(target, f"SELECT t::text FROM public.{name} t") for name in ("t", "w")}
    ours = {name: safely(source, f"SELECT t::text FROM public.{name} t") for name in found}
    for command in (("status",), ("sync-sequences",), ("teardown",)):
        done = penstock_command(command[0], str(path), *command[1:])
        assert done.wait() == 0, (command, done.stderr, sprung(source), sprung(target))

    assert (sprung(source), sprung(target)) == ("", "")
    assert not stopped
    assert {name: sorted(each) for name, each in found.items()} == {
        name: sorted(each) for name, each in ours.items()
    }


def test_what_an_admin_is_to_run_calls_nothing_that_others_have_put_there(
    source: Database, target: Database, pipeline_file: Callable[..., Path]
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    plant(source)
    plant(target)
    path = pipeline_file(source, target)
    done = run_penstock("init", path, "--print-sql")
    done.check_returncode()
    printed = done.stdout
    _, at_source, at_target = re.split(r"^-- on [^\n]*\n", printed, flags=re.MULTILINE)

    for database, statements in ((source, at_source), (target, at_target)):
        with database.connect() as connection:
            for statement in _split(statements):
                connection.execute(statement.encode())
        assert sprung(database) == ""

    assert safely(source, "SELECT count(*) FROM pg_event_trigger") == [(len(EVENT_TRIGGERS),)]
    assert safely(target, "SELECT count(*) FROM penstock.progress") == [(0,)]


def _split(statements: str) -> list[str]:
    """One by one, as psql sends them: a slot is made in a transaction that has written nothing."""
    parts = re.split(r"(\$penstock\$.*?\$penstock\$)|;\n", statements, flags=re.DOTALL)
    found, rest = [], ""
    for number, part in enumerate(parts):
        if number % 2:
            if part is None:
                found.append(rest)
                rest = ""
            else:
                rest += part
        else:
            rest += part
    return [each for each in (*found, rest) if each.strip()]


@pytest.mark.long
def test_keys_of_types_that_extensions_brought_find_their_rows(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    for database in (source, target):
        database.execute("CREATE SCHEMA ext; CREATE EXTENSION citext SCHEMA ext")
        database.execute("CREATE EXTENSION ltree; CREATE EXTENSION hstore SCHEMA ext")
        database.execute(
            "CREATE DOMAIN mail AS ext.citext; CREATE TYPE mood AS ENUM ('a', 'b', 'x')"
        )
        database.execute("CREATE DOMAIN temper AS mood")
    key = "k {} NOT NULL, v text, PRIMARY KEY (k)"
    kinds = {"c": "ext.citext", "l": "ltree", "s": "ext.hstore", "m": "mail", "e": "temper"}
    values = {
        "c": ("Bob", "ann"),
        "l": ("a.b", "c"),
        "s": ("a=>1", "b=>2"),
        "m": ("Bob", "ann"),
        "e": ("a", "b"),
    }
    for name, kind in kinds.items():
        for prefix in ("plain", "history", "full"):
            table = f"{prefix}_{name}"
            source.execute(f"CREATE TABLE {table} ({key.format(kind)})")
        source.execute(
            f"ALTER TABLE full_{name} DROP CONSTRAINT full_{name}_pkey; ALTER TABLE full_{name}"
            f" REPLICA IDENTITY FULL; INSERT INTO full_{name} VALUES ('{values[name][0]}', 'kept')"
        )
    tables = [f"{prefix}_{name}" for name in kinds for prefix in ("plain", "history", "full")]
    history = {table: {"kind": "history"} for table in tables if table.startswith("history")}
    pipeline = make_pipeline(source, target, source_options=INITIAL, sink={"tables": history})
    pipeline.catch_up()

    for table in tables:
        first, second = values[table[-1]]
        source.execute(f"INSERT INTO {table} VALUES ('{first}', '1'), ('{second}', '2')")
    pipeline.catch_up()
    for table in tables:
        first, second = values[table[-1]]
        source.execute(
            f"SET search_path = public, ext; UPDATE {table} SET v = '3' WHERE v = '1';"
            f"DELETE FROM {table} WHERE v = '2'; INSERT INTO {table} VALUES ('{second}', '4')"
        )
        source.execute(
            f"UPDATE {table} SET k = 'x{'=>1' if table[-1] == 's' else ''}' WHERE v = '4'"
        )
    pipeline.catch_up()

    # A history without rows, and with them again.
    for table in tables:
        source.execute(f"CREATE TABLE kept AS TABLE {table}; TRUNCATE {table}")
        source.execute(f"INSERT INTO {table} TABLE kept; DROP TABLE kept")
    pipeline.catch_up()

    # Then again what a copy says, merged with what is there.
    for table in tables:
        target.execute(f"UPDATE {table} SET v = 'strange' WHERE v = '3'")
    target.execute("UPDATE penstock.tables SET request = 'resync'")
    waiting = "SELECT FROM penstock.tables WHERE request IS NOT NULL OR state <> 'streaming'"
    wait_until(lambda: not target.query(waiting), what="the copies")
    pipeline.catch_up()

    assert not pipeline.deliveries[0].stopped_tables
    for table in tables:
        if not table.startswith("history"):
            assert_equal(source, target, table)
            continue
        still = "SELECT k::text, v FROM {} WHERE {}"
        assert sorted(target.query(still.format(table, "kvsz_end > '9000-01-01'"))) == sorted(
            source.query(still.format(table, "true"))
        )
