"""kill -9 of penstock at each fault point and at random, and of the server: documents are what the rows are."""

from __future__ import annotations

import random
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from test_kill_brokers import Writer

from fix_pipeline import INITIAL
from fix_postgres import only_new
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fix_pipeline import Command
    from fix_postgres import Database
    from fix_search import SearchServer

pytestmark = [only_new, pytest.mark.long]

POINTS = (
    "search.before_switch",
    "search.after_switch",
    "deliver.after_job",
    "search.before_position",
    "search.after_position",
    "search.between_requests",
    "documents.after_deliver",
    "deliver.after_commit",
)


@pytest.fixture
def writer(source: Database) -> Iterator[Writer]:
    with Writer(source) as writer:
        source.execute("INSERT INTO a SELECT g, 0 FROM generate_series(1, 200) g")
        # Not sent again with updates: they must not lose it.
        source.execute("ALTER TABLE b ADD big text; ALTER TABLE b ALTER big SET STORAGE EXTERNAL")
        source.execute("INSERT INTO b SELECT g, 0, repeat('x', 3000) FROM generate_series(1, 99) g")
        yield writer


def is_same(server: SearchServer, source: Database, *others: str) -> bool:
    return all(
        server.rows(f"k-public-{table}")
        == dict(source.query(f"SELECT id::text, to_jsonb(t) FROM {table} t"))
        for table in ("a", "b", *others)
    )


def thrown() -> random.Random:
    """Other dice each time; which, is shown of a test that fails."""
    seed = uuid.uuid4().hex
    print(f"seed {seed}")
    return random.Random(seed)


DDL_POINTS = (
    "search.before_schema_change",
    "search.after_schema_change",
    "documents.after_deliver",
    "search.between_requests",
    "search.before_switch",
    "search.after_switch",
    "search.before_position",
    "search.after_position",
    "schema.after_commit",
)


def change_tables(source: Database, number: int) -> str:
    """Rename, retype, add and rename columns, with rows before and after; what the table `c` is called then."""
    old, new = f"c{number}", f"c{number + 1}"
    kind = ("text", "int")[number % 2]
    source.execute(
        f"BEGIN; UPDATE {old} SET n = n + 1; INSERT INTO {old} VALUES ({10 * number}, 1, '7', 'before');"
        f" ALTER TABLE {old} RENAME TO {new}; UPDATE {new} SET n = n + 1 WHERE id % 20 = 0;"
        f" INSERT INTO {new} VALUES ({10 * number + 1}, 1, '8', 'after'); COMMIT"
    )
    source.execute(f"ALTER TABLE {new} ALTER v TYPE {kind} USING v::{kind}")
    source.execute(f"UPDATE {new} SET n = n + 1")
    source.execute(f"ALTER TABLE b ADD x{number} int DEFAULT {number}")
    source.execute(f"ALTER TABLE a ADD x{number} int")
    source.execute(f"UPDATE a SET x{number} = id WHERE id % 7 = 0")
    source.execute(f"ALTER TABLE a RENAME x{number} TO y{number}")
    source.execute(f"UPDATE a SET y{number} = -id WHERE id % 5 = 0")
    return new


@pytest.mark.timeout(1200)
def test_kill_while_tables_change(
    source: Database,
    writer: Writer,
    own_search: SearchServer,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    sink: dict[str, Any] = {"kind": "search", "url": own_search.url, "index": "k-{schema}-{table}"}
    path = pipeline_file(source, None, sink=sink, source_options=INITIAL)
    source.execute("CREATE TABLE c0 (id int PRIMARY KEY, n int, v int, big text)")
    source.execute("ALTER TABLE c0 ALTER big SET STORAGE EXTERNAL")
    source.execute(
        "INSERT INTO c0 SELECT -g, 0, g, repeat('y', 3000) FROM generate_series(1, 99) g"
    )
    penstock_command("init", str(path)).wait()
    first = penstock_command("run", str(path))
    wait_until(lambda: len(own_search.hits("k-public-c0")) == 99, 120, "the copy")
    assert first.terminate() == 0
    writer.start()
    name = "c0"
    dice = thrown()
    for number, point in enumerate(DDL_POINTS):
        passing = dice.randint(1, 3) if "schema_change" in point else 1
        command = penstock_command("run", str(path), env={"PENSTOCK_FAULT": f"{point}:{passing}"})
        name = change_tables(source, number)
        wait_until(lambda command=command: command.is_struck, 120, f"a kill at {point}")
        command.kill()
    for number in range(len(DDL_POINTS), len(DDL_POINTS) + 3):
        command = penstock_command("run", str(path))
        name = change_tables(source, number)
        wanted = writer.count + dice.randint(50, 500)
        wait_until(lambda wanted=wanted: writer.count > wanted, 120, "changes")
        command.kill()
    writer.stop()
    last = penstock_command("run", str(path))
    wait_until(
        lambda: is_same(own_search, source, name), 240, "what the source has", pause_seconds=1.0
    )
    assert last.terminate() == 0
    assert is_same(own_search, source, name)
    aliases = own_search.must("GET", "/_cat/aliases/k-public-*?format=json")
    assert sorted(each["alias"] for each in aliases) == [
        f"k-public-{each}" for each in ("a", "b", name)
    ]


@pytest.mark.timeout(900)
def test_kill_at_each_point_and_at_random(
    source: Database,
    writer: Writer,
    own_search: SearchServer,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    sink: dict[str, Any] = {"kind": "search", "url": own_search.url, "index": "k-{schema}-{table}"}
    path = pipeline_file(source, None, sink=sink, source_options=INITIAL)
    penstock_command("init", str(path)).wait()
    writer.start()
    for point in POINTS:
        # Of two tables one may have been switched before.
        passing = 1 if "switch" in point else 2
        command = penstock_command("run", str(path), env={"PENSTOCK_FAULT": f"{point}:{passing}"})
        wait_until(lambda command=command: command.is_struck, 120, f"a kill at {point}")
        command.kill()
    dice = thrown()
    for number in range(3):
        before = writer.count
        command = penstock_command("run", str(path))
        wanted = before + dice.randint(100, 800)
        wait_until(lambda wanted=wanted: writer.count > wanted, 120, "changes")
        if number == 1:
            own_search.kill()
            own_search.start()
        command.kill()
    writer.stop()
    last = penstock_command("run", str(path))
    wait_until(lambda: is_same(own_search, source), 180, "what the source has", pause_seconds=1.0)
    assert last.terminate() == 0
