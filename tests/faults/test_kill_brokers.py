"""kill -9 of penstock and of brokers: a consumer that reads committed records has each document once, in order per key."""

from __future__ import annotations

import random
import threading
import uuid
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from fix_documents import parse
from fix_postgres import only_new
from fix_replay import assert_order_per_key, replayed, rows_of
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fix_pipeline import Command
    from fix_postgres import Database

pytestmark = [only_new, pytest.mark.long]

POINTS = (
    "deliver.after_job",
    "documents.before_deliver",
    "documents.inside_deliver",
    "kafka.before_commit",
    "documents.after_deliver",
    "deliver.after_commit",
    "capture.after_seal",
)


# Without transactions, and where tasks deliver, some are never passed.
_NOT_PASSED = {
    "exactly_once": (),
    "at_least_once": (
        "documents.before_deliver",
        "documents.inside_deliver",
        "kafka.before_commit",
    ),
    None: ("kafka.before_commit",),  # NATS
}


class Writer:
    """Changes rows of two tables until it is stopped; where `may_go_on` is given, while it says so."""

    def __init__(self, source: Database, may_go_on: Callable[[], bool] = lambda: True) -> None:
        self._source = source
        self.may_go_on = may_go_on
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self.count = 0

    def __enter__(self) -> Writer:
        self._source.execute("CREATE TABLE a (id int PRIMARY KEY, n int)")
        self._source.execute("CREATE TABLE b (id int PRIMARY KEY, n int)")
        return self

    def start(self) -> None:
        self._thread.start()

    def __exit__(self, *reason: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _write(self) -> None:
        dice = random.Random(7)
        with self._source.connect(autocommit=False) as connection:
            while not self._stop.wait(0.005):
                if not self.may_go_on():
                    continue
                for table in ("a", "b"):
                    key = dice.randint(1, 200)
                    connection.execute(
                        f"INSERT INTO {table} VALUES (%s, %s) ON CONFLICT (id)"
                        " DO UPDATE SET n = EXCLUDED.n",
                        (key, self.count),
                    )
                    if dice.random() < 0.2:
                        connection.execute(
                            f"DELETE FROM {table} WHERE id = %s", (dice.randint(1, 200),)
                        )
                try:
                    connection.commit()
                except psycopg.Error:
                    connection.rollback()
                self.count += 1


@pytest.fixture
def writer(source: Database) -> Iterator[Writer]:
    with Writer(source) as writer:
        yield writer


@pytest.fixture(params=["exactly_once", "at_least_once", "nats"])
def broker(request: pytest.FixtureRequest) -> Any:
    """A server of the test's own, and the sink's options."""
    if request.param == "nats":
        server = request.getfixturevalue("own_nats")
        return server, {"kind": "nats", "url": server.url, "stream": "k", "subject": "k.{table}"}
    server = request.getfixturevalue("own_kafka")
    return server, {
        "kind": "kafka",
        "servers": server.servers,
        "topic": "k.{table}",
        "partitions": 3,
        "delivery": request.param,
        "timeout": 5.0,
    }


def assert_consumed(server: Any, source: Database, *, is_once: bool) -> None:
    """A consumer has what the source has."""
    if hasattr(server, "servers"):
        records = [(each.key(), parse(each.value())) for each in server.records("k.a", "k.b")]
    else:
        records = [(each.subject, parse(each.data)) for each in server.messages("k")]
    assert_order_per_key(records)
    documents = [document for _, document in records]
    if is_once:
        assert len(documents) == len({one["id"] for one in documents})
    assert replayed(documents) == rows_of(source, "a", "b")


@pytest.mark.timeout(900)  # a dozen starts
def test_kill_at_each_point_and_at_random_loses_and_doubles_nothing(
    source: Database,
    writer: Writer,
    broker: Any,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    server, sink = broker
    path = pipeline_file(source, None, sink=sink)
    penstock_command("init", str(path)).wait()
    writer.start()

    for number, point in enumerate(POINTS):
        if point in _NOT_PASSED[sink.get("delivery")]:
            continue
        command = penstock_command(
            "run", str(path), env={"PENSTOCK_FAULT": f"{point}:{2 + number}"}
        )
        wait_until(lambda command=command: command.is_struck, 120, f"a kill at {point}")
        command.kill()
    dice = random.Random(uuid.uuid4().hex)
    for _ in range(3):
        before = writer.count
        command = penstock_command("run", str(path))
        wanted = before + dice.randint(200, 2000)
        wait_until(lambda wanted=wanted: writer.count > wanted, 120, "changes")
        command.kill()
    writer.stop()

    last = penstock_command("run", str(path), "--until-caught-up")
    assert last.wait() == 0, last.stderr

    # NATS drops what comes again, within its duplicate window.
    assert_consumed(server, source, is_once=sink.get("delivery") != "at_least_once")


@pytest.mark.timeout(900)
def test_broker_that_is_killed_and_comes_back_is_waited_for(
    source: Database,
    writer: Writer,
    broker: Any,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    server, sink = broker
    path = pipeline_file(source, None, sink=sink)
    penstock_command("init", str(path)).wait()
    command = penstock_command("run", str(path))
    writer.start()

    for _ in range(2):
        before = writer.count
        wait_until(lambda before=before: writer.count > before + 300, 120, "changes")
        server.kill()
        before = writer.count
        wait_until(lambda before=before: writer.count > before + 300, 120, "changes")
        assert command.process.poll() is None, command.stderr
        server.start()
    writer.stop()
    assert command.terminate() == 0

    last = penstock_command("run", str(path), "--until-caught-up")
    assert last.wait() == 0, last.stderr

    assert_consumed(server, source, is_once=sink.get("delivery") == "exactly_once")
