"""Who may capture where the log is on a broker: a process that was suspended for so long that the broker gave it up."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fix_broker_log import kafka_log
from fix_pipeline import INITIAL, pipeline_document, row_count
from fix_postgres import only_new
from fix_processes import command_line, tree_of
from fix_wait import wait_until
from penstock.config import read_pipeline
from penstock.pipeline import log_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_kafka import KafkaServer
    from fix_pipeline import Command
    from fix_postgres import Database

pytestmark = only_new

# Of a stop 10 s are promised; a machine under load may need a little more.
STOP_SECONDS = 15


def members(kafka: KafkaServer, group: str) -> list[str]:
    found = kafka.admin.describe_consumer_groups([group])[group].result(20)
    return [each.client_id for each in found.members]


def capturing(command: Command) -> int:
    """The process that captures for a run."""
    return next(
        each
        for each in tree_of(command.process.pid)
        if "penstock.run.capture_process" in command_line(each)
    )


@pytest.mark.long
@pytest.mark.parametrize("half", [pytest.param("run", marks=pytest.mark.long), "capture"])
def test_capture_that_was_suspended_longer_than_its_session_stops_at_once(
    half: str,
    source: Database,
    target: Database,
    kafka: KafkaServer,
    penstock_command: Callable[..., Command],
    tmp_path: Path,
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    document = pipeline_document(source, target, tmp_path, source_options=INITIAL)
    path = tmp_path / "pipeline.yml"
    path.write_text(yaml.safe_dump({**document, "log": kafka_log(kafka.servers)}))
    command = penstock_command(half, str(path))
    group = f"penstock/{document['name']}/capture/test"
    wait_until(lambda: "following slot" in command.stderr, 120, "capture to begin")
    assert members(kafka, group)
    pid = capturing(command) if half == "run" else command.process.pid
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: not members(kafka, group), 60, "the broker to give it up", 0.2)
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: members(kafka, group), 30, "it to be a member again", 0.2)

    began = time.monotonic()
    command.process.send_signal(signal.SIGTERM)

    assert command.wait(60) == 0, command.stderr
    assert time.monotonic() - began < STOP_SECONDS, command.stderr


@pytest.mark.long
def test_capture_that_was_suspended_ends_where_another_has_begun_meanwhile(
    source: Database,
    target: Database,
    broker_log: dict[str, Any],
    penstock_command: Callable[..., Command],
    tmp_path: Path,
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    document = pipeline_document(source, target, tmp_path, source_options=INITIAL)
    paths = [tmp_path / f"{name}.yml" for name in ("first", "second")]
    for path in paths:
        own = {"state": str(tmp_path / path.stem), "log": broker_log}
        path.write_text(yaml.safe_dump({**document, **own}))
    log = log_of(read_pipeline(paths[1]))
    first = penstock_command("capture", str(paths[0]))
    wait_until(lambda: "following slot" in first.stderr, 120, "capture to begin")
    first.process.send_signal(signal.SIGSTOP)
    # As the server does by itself after wal_sender_timeout.
    source.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")

    def second_has_begun() -> bool:
        nonlocal second
        if second.process.poll() is not None:  # on Kafka a session has to end first
            assert "PEN-601" in second.stderr
            second = penstock_command("capture", str(paths[1]))
        return "following slot" in second.stderr

    second = penstock_command("capture", str(paths[1]))
    wait_until(second_has_begun, 120, "the other to begin", 0.2)
    before = log.end_lsn()
    source.execute("INSERT INTO t VALUES (1, 'v')")
    wait_until(lambda: log.end_lsn() > before, 30, "the other to capture")

    first.process.send_signal(signal.SIGCONT)

    assert first.wait(60) == 1, first.stderr
    assert "PEN-601" in first.stderr
    before = log.end_lsn()
    source.execute("INSERT INTO t VALUES (2, 'v')")
    wait_until(lambda: log.end_lsn() > before, 30, "the other to go on")
    assert second.terminate() == 0, second.stderr
    heads = [each.head for each in log.reader(log.span().begin_lsn).read(1 << 60)]
    commits = [each.last_commit_lsn for each in heads if each.last_commit_lsn]
    assert commits == sorted(set(commits))


@pytest.mark.long  # it starts a broker of its own
@pytest.mark.parametrize("half", ["capture", "deliver", "run"])
def test_stop_does_not_wait_for_a_broker_that_is_silent(
    half: str,
    source: Database,
    target: Database,
    own_kafka: KafkaServer,
    penstock_command: Callable[..., Command],
    tmp_path: Path,
) -> None:
    """One that keeps its connections and does not answer, which takes longer to notice than one that is gone."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    document = pipeline_document(source, target, tmp_path, source_options=INITIAL)
    path = tmp_path / "pipeline.yml"
    log = kafka_log(own_kafka.servers, timeout=60)
    path.write_text(yaml.safe_dump({**document, "log": log}))
    command = penstock_command(half, str(path))
    if half == "deliver":
        penstock_command("capture", str(path))
    source.execute("INSERT INTO t VALUES (1, 'v')")
    if half == "capture":
        wait_until(lambda: "following slot" in command.stderr, 120, "capture to begin")
    else:
        wait_until(lambda: row_count(target, "t") == 1, 120, "the first row")
    own_kafka.signal(signal.SIGSTOP)
    source.execute("INSERT INTO t VALUES (2, 'v')")

    began = time.monotonic()
    command.process.send_signal(signal.SIGTERM)

    assert command.wait(90) == 0, command.stderr
    assert time.monotonic() - began < STOP_SECONDS, command.stderr
