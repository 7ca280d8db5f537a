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


def is_same(server: SearchServer, source: Database) -> bool:
    return all(
        server.rows(f"k-public-{table}")
        == dict(source.query(f"SELECT id::text, to_jsonb(t) FROM {table} t"))
        for table in ("a", "b")
    )


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
    dice = random.Random(uuid.uuid4().hex)
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
