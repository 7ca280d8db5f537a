"""Pipelines whose log is on a broker: the halves share it, and no disk."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fix_broker_log import CaptureHalf, kafka_log, nats_log
from fix_command import run_penstock
from fix_pipeline import INITIAL, assert_equal, pipeline_document, row_count, status_of
from fix_postgres import only_new
from fix_wait import wait_until
from penstock.errors import LogGone, SecondInstance
from penstock.pipeline import log_of, wire_of
from penstock.run.status import read_status
from penstock.run.teardown import tear_down
from penstock.state.reports import CaptureReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_kafka import KafkaServer
    from fix_nats import NatsServer
    from fix_pipeline import Command, RunningPipeline
    from fix_postgres import Database

pytestmark = only_new
long_on_kafka = pytest.mark.parametrize(
    "broker_log", [pytest.param("kafka", marks=pytest.mark.long), "nats"], indirect=True
)

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"


def document_of(
    source: Database, target: Database, directory: Path, log: dict[str, Any], **more: Any
) -> dict[str, Any]:
    document = pipeline_document(source, target, directory, source_options=INITIAL, **more)
    return {**document, "log": log}


def test_rows_and_shapes_go_from_one_directory_to_another(
    source: Database,
    target: Database,
    broker_log: dict[str, Any],
    halves: Callable[..., Any],
    tmp_path: Path,
) -> None:
    """Copied and streamed, large and small, with a change of the table in between."""
    source.execute(TABLE)
    source.execute("INSERT INTO t SELECT g, repeat('v', 50) FROM generate_series(1, 500) g")
    document = document_of(source, target, tmp_path, broker_log)
    capture = halves("capture", document)
    deliver = halves("deliver", document)
    deliver.catch_up()
    assert_equal(source, target, "t")

    source.execute("INSERT INTO t SELECT g, repeat('w', 90) FROM generate_series(501, 20500) g")
    source.execute("ALTER TABLE t ADD COLUMN n int DEFAULT 7")
    source.execute("UPDATE t SET n = id, v = 'x' WHERE id % 3 = 0")
    source.execute("DELETE FROM t WHERE id % 7 = 0")
    deliver.catch_up()

    assert_equal(source, target, "t")
    status = read_status(capture.file)
    assert status.errors == []
    assert status.sinks["target"].tables["public.t"].state == "streaming"
    wait_until(
        lambda: (
            wire_of(deliver.file).latest(CaptureReport).acknowledged_lsn
            >= deliver.flows[0].delivered_lsn
        ),
        what="what is delivered to be acknowledged",
    )


@long_on_kafka
def test_both_halves_in_one_process_and_after_a_restart(
    source: Database,
    target: Database,
    broker_log: dict[str, Any],
    make_pipeline: Callable[..., RunningPipeline],
) -> None:
    source.execute(TABLE)
    pipeline = make_pipeline(source, target, log=broker_log)
    for number in range(1, 30):
        source.execute(f"INSERT INTO t VALUES ({number}, 'one')")
    pipeline.catch_up()
    pipeline.stop()
    source.execute("INSERT INTO t SELECT g, 'two' FROM generate_series(30, 60) g")
    pipeline.start()
    pipeline.catch_up()
    pipeline.stop()

    assert_equal(source, target, "t")
    assert pipeline.failures == []
    removed = tear_down(pipeline.file)
    assert any("log-" in each for each in removed), removed
    assert any("state-" in each for each in removed), removed
    assert log_of(pipeline.file).end_lsn() == 0


@long_on_kafka
def test_two_processes_deliver_to_two_sinks_from_one_log(
    source: Database,
    target: Database,
    broker_log: dict[str, Any],
    halves: Callable[..., Any],
    tmp_path: Path,
) -> None:
    source.execute(TABLE)
    document = document_of(source, target, tmp_path, broker_log)
    document["sinks"]["lines"] = {"kind": "file", "path": str(tmp_path / "lines")}
    capture = halves("capture", document)
    first = halves("deliver", document, "target")
    source.execute("INSERT INTO t SELECT g, 'v' FROM generate_series(1, 100) g")
    first.catch_up()
    report = wire_of(first.file).latest(CaptureReport)
    assert report.acknowledged_lsn < first.flows[0].delivered_lsn, "the other sink needs it still"

    second = halves("deliver", document, "lines")
    second.catch_up()

    assert_equal(source, target, "t")
    files = [path for path in (tmp_path / "lines").rglob("*changes*") if path.is_file()]
    written = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert sorted(each["key"]["id"] for each in written) == list(range(1, 101))
    with pytest.raises(SecondInstance):
        halves("deliver", document, "lines")
    assert capture.failure is None


def test_second_capture_is_refused_and_the_first_goes_on(
    source: Database,
    target: Database,
    broker_log: dict[str, Any],
    halves: Callable[..., Any],
    tmp_path: Path,
) -> None:
    source.execute(TABLE)
    document = document_of(source, target, tmp_path, broker_log)
    first = halves("capture", document)
    wait_until(lambda: log_of(first.file).end_lsn(), what="the log to begin")

    second = halves("capture", document)

    assert isinstance(second.wait_for_end(), SecondInstance)
    before = log_of(first.file).end_lsn()
    source.execute("INSERT INTO t VALUES (1, 'v')")
    wait_until(lambda: log_of(first.file).end_lsn() > before, what="the first to go on")
    assert first.failure is None


def delete_records(kafka: KafkaServer, log: dict[str, Any], *, kept: int) -> None:
    """As retention does, but for the last ones of all records, marks that end a transaction included."""
    from confluent_kafka import TopicPartition

    topic = log["topic"].replace("{source}", "test")
    high = kafka._ends([TopicPartition(topic, 0)])[topic, 0]
    place = TopicPartition(topic, 0, high - kept)
    kafka.admin.delete_records([place])[place].result(10)


# The last record is the mark that ends a transaction.
@pytest.mark.long
@pytest.mark.parametrize(
    "kept",
    [pytest.param(2, id="in part"), pytest.param(0, id="to nothing")],
)
def test_log_that_was_cut_below_what_a_sink_needs_is_reported(
    kept: int,
    source: Database,
    target: Database,
    kafka: KafkaServer,
    halves: Callable[..., Any],
    tmp_path: Path,
) -> None:
    source.execute(TABLE)
    log = kafka_log(kafka.servers)
    document = document_of(source, target, tmp_path, log)
    document["source"]["acknowledge"] = "logged"
    capture = halves("capture", document)
    deliver = halves("deliver", document)
    deliver.catch_up()
    deliver.stop()
    before = log_of(capture.file).end_lsn()
    source.execute("INSERT INTO t SELECT g, 'v' FROM generate_series(1, 100) g")
    wait_until(lambda: log_of(capture.file).end_lsn() > before, what="it to be in the log")
    before = log_of(capture.file).end_lsn()
    source.execute("INSERT INTO t VALUES (0, 'after')")
    wait_until(lambda: log_of(capture.file).end_lsn() > before, what="the last row to be there")
    logged = log_of(capture.file).end_lsn()
    wait_until(
        lambda: wire_of(capture.file).latest(CaptureReport).acknowledged_lsn >= logged,
        what="it to be acknowledged",
    )
    capture.stop()
    delete_records(kafka, log, kept=kept)

    again = halves("deliver", document)

    wait_until(lambda: again.failures, 60, "delivery to end")
    assert isinstance(again.failures[0], LogGone), again.failures[0]
    assert row_count(target, "t") == 0


@pytest.mark.long
def test_log_that_was_cut_to_nothing_after_every_sink_had_it_goes_on(
    source: Database,
    target: Database,
    kafka: KafkaServer,
    halves: Callable[..., Any],
    tmp_path: Path,
) -> None:
    """Retention of an idle source: nothing that anybody needs is missing."""
    source.execute(TABLE)
    log = kafka_log(kafka.servers)
    document = document_of(source, target, tmp_path, log)
    halves("capture", document)
    deliver = halves("deliver", document)
    source.execute("INSERT INTO t VALUES (1, 'before')")
    deliver.catch_up()
    deliver.stop()
    delete_records(kafka, log, kept=0)

    again = halves("deliver", document)
    source.execute("INSERT INTO t VALUES (2, 'after')")
    again.catch_up()

    assert_equal(source, target, "t")


@pytest.mark.long
@pytest.mark.parametrize("is_new", [True, False])
def test_capture_that_begins_while_the_broker_is_away_waits_for_it_and_says_so(
    source: Database,
    own_nats: NatsServer,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    is_new: bool,
) -> None:
    source.execute(TABLE)
    capture = CaptureHalf(document_of(source, source, tmp_path, nats_log(own_nats.url)), tmp_path)
    if not is_new:
        capture.start()
        wait_until(lambda: log_of(capture.file).end_lsn(), what="the log to begin")
        capture.stop()
    own_nats.kill()

    capture.start()
    try:
        wait_until(lambda: "PEN-307" in caplog.text or capture.failure, what="it to be said")
        assert capture.failure is None
        own_nats.start()
        wait_until(lambda: log_of(capture.file).end_lsn(), 60, "the log to begin")
        before = log_of(capture.file).end_lsn()
        source.execute("INSERT INTO t VALUES (1, 'v')")
        wait_until(lambda: log_of(capture.file).end_lsn() > before, what="capture to go on")
    finally:
        capture.stop()
    assert capture.failure is None


@pytest.mark.long
def test_capture_waits_for_a_broker_that_is_away_and_says_so(
    source: Database,
    target: Database,
    own_kafka: KafkaServer,
    halves: Callable[..., Any],
    tmp_path: Path,
) -> None:
    source.execute(TABLE)
    document = document_of(source, target, tmp_path, kafka_log(own_kafka.servers, timeout=5))
    capture = halves("capture", document)
    deliver = halves("deliver", document)
    source.execute("INSERT INTO t SELECT g, 'before' FROM generate_series(1, 100) g")
    deliver.catch_up()
    acknowledged = source.value("SELECT confirmed_flush_lsn FROM pg_replication_slots")

    own_kafka.kill()
    source.execute("INSERT INTO t SELECT g, 'while away' FROM generate_series(101, 200) g")

    def error() -> str:
        return read_status(capture.file).sources["test"].error or ""

    wait_until(lambda: "PEN-307" in error(), 120, "status to say that the broker is away")
    assert row_count(target, "t") == 100
    assert source.value("SELECT confirmed_flush_lsn FROM pg_replication_slots") >= acknowledged
    own_kafka.start()
    source.execute("INSERT INTO t SELECT g, 'after' FROM generate_series(201, 300) g")
    deliver.catch_up(180)

    assert_equal(source, target, "t")
    assert capture.failure is None
    wait_until(lambda: not error(), 60, "status to say that all is well")


@pytest.mark.long
def test_halves_as_commands_with_executors_of_their_own(
    source: Database,
    target: Database,
    broker_log: dict[str, Any],
    penstock_command: Callable[..., Command],
    tmp_path: Path,
) -> None:
    """Executors are processes that see neither half's memory, and read their slices from the broker."""
    source.execute(TABLE)
    source.execute("INSERT INTO t SELECT g, repeat('v', 100) FROM generate_series(1, 1000) g")
    document = document_of(source, target, tmp_path, broker_log)
    paths = {}
    for half in ("capture", "deliver"):
        conf = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
        own = {"state": str(tmp_path / half / "state")}
        own["spark"] = {"master": "local-cluster[2,1,1024]", "conf": conf}
        paths[half] = tmp_path / f"{half}.yml"
        paths[half].write_text(yaml.safe_dump({**document, **own}))
    capture = penstock_command("capture", str(paths["capture"]))
    deliver = penstock_command(
        "deliver", str(paths["deliver"]), env={"SPARK_LOCAL_IP": "127.0.0.1"}
    )
    wait_until(lambda: row_count(target, "t") == 1000, 180, what="the copy")
    source.execute("INSERT INTO t SELECT g, repeat('w', 300) FROM generate_series(1001, 60000) g")
    wait_until(lambda: row_count(target, "t") == 60_000, 180, what="the stream")
    assert_equal(source, target, "t")
    assert status_of(paths["capture"])["phase"] in ("streaming", "catching_up")

    second = penstock_command("deliver", str(paths["deliver"]))
    assert second.wait() == 1
    assert "PEN-6" in second.stderr
    assert (deliver.terminate(), capture.terminate()) == (0, 0), deliver.stderr
    assert not (tmp_path / "deliver" / "state" / "log").exists()


HOW_TO = Path(__file__).parents[2] / "docs" / "howto" / "log-on-a-broker.md"


@pytest.mark.long
def test_how_to_from_postgres_over_kafka_to_postgres_masks_on_the_way(
    source: Database,
    target: Database,
    kafka: KafkaServer,
    penstock_command: Callable[..., Command],
    tmp_path: Path,
) -> None:
    """The file and the commands of the page, on one broker instead of three."""
    source.execute("CREATE TABLE users (id int PRIMARY KEY, email text, note text)")
    source.execute(
        "INSERT INTO users SELECT g, 'copied' || g || '@canary.org', 'n' FROM generate_series(1, 200) g"
    )
    document = yaml.safe_load(
        re.findall(r"^```yaml\n(.*?)^```$", HOW_TO.read_text(), re.M | re.S)[0]
    )
    log = kafka_log(kafka.servers)
    assert document["log"]["kind"] == "kafka"
    document["log"] |= log | {"replication_factor": 1, "config": {"min.insync.replicas": 1}}
    path = tmp_path / "shop.yml"
    path.write_text(yaml.safe_dump(document))
    both = {"SHOP_URL": str(source.url), "WAREHOUSE_URL": str(target.url)}
    here = {**both, "PENSTOCK_STATE": str(tmp_path / "here")}
    there = {**both, "PENSTOCK_STATE": str(tmp_path / "there")}

    checked = penstock_command("check", "shop.yml", env=here)
    assert checked.wait() == 0, checked.process.stdout.read()
    capture = penstock_command("capture", "shop.yml", env=here)
    deliver = penstock_command("deliver", "shop.yml", env=there)
    wait_until(lambda: row_count(target, "users") == 200, 180, what="the copy")
    source.execute(
        "INSERT INTO users SELECT g, 'streamed' || g || '@canary.org', 'n' FROM generate_series(201, 300) g"
    )
    source.execute("UPDATE users SET email = 'changed@canary.org' WHERE id = 7")
    source.execute("DELETE FROM users WHERE id = 8")
    source.execute("INSERT INTO users VALUES (1000, 'last@canary.org', 'n')")
    last = "SELECT count(*) FROM users WHERE id = 1000"
    wait_until(lambda: target.value(last) == 1, 120, what="the stream")

    def masked(email: str) -> str:
        return email[0] + "*" * (len(email) - 2) + email[-1]

    assert sorted(target.query("SELECT id, email, note FROM users")) == sorted(
        (key, masked(email), note)
        for key, email, note in source.query("SELECT id, email, note FROM users")
    )
    raw = b"".join(
        each.value() or b"" for each in kafka.records(log["topic"].replace("{source}", "shop"))
    )
    assert b"streamed250@canary.org" in raw, "the page says that raw changes travel through Kafka"
    # One status, seen from both sides.
    seen = [read_status_of(path, env) for env in (here, there)]
    assert [each["sinks"]["warehouse"]["tables"]["public.users"]["state"] for each in seen] == [
        "streaming",
        "streaming",
    ]
    assert (deliver.terminate(), capture.terminate()) == (0, 0), deliver.stderr
    torn_down = penstock_command("teardown", "shop.yml", env=there)
    assert torn_down.wait() == 0, torn_down.stderr
    assert kafka.records(log["topic"].replace("{source}", "shop")) == []


def read_status_of(path: Path, env: dict[str, str]) -> dict[str, Any]:
    """What `penstock status` says in this environment."""
    done = run_penstock("status", path, "--json", env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


POINTS = ["capture.before_seal", "capture.torn_slice", "capture.after_seal"]
POINTS += ["capture.after_acknowledge", "deliver.before_commit", "deliver.after_commit"]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.long
def test_kill_at_fault_points_loses_and_doubles_nothing(
    point: str,
    source: Database,
    target: Database,
    broker_log: dict[str, Any],
    penstock_command: Callable[..., Command],
    tmp_path: Path,
) -> None:
    source.execute(TABLE)
    source.execute("CREATE TABLE log (id bigserial PRIMARY KEY, v text)")
    document = document_of(source, target, tmp_path, broker_log)
    paths = {}
    for half in ("capture", "deliver"):
        paths[half] = tmp_path / f"{half}.yml"
        paths[half].write_text(
            yaml.safe_dump({**document, "state": str(tmp_path / half / "state")})
        )
    struck = point.partition(".")[0]
    fault = {"PENSTOCK_FAULT": f"{point}:3"}
    commands = {
        half: penstock_command(half, str(path), env=fault if half == struck else None)
        for half, path in paths.items()
    }
    number = 0

    def write_more() -> bool:
        nonlocal number
        number += 1
        source.execute(
            "WITH new AS (INSERT INTO log (v) SELECT repeat('p', 200) FROM generate_series(1, 400))"
            f" INSERT INTO t VALUES ({number}, 'x')"
        )
        return commands[struck].process.poll() is not None

    wait_until(write_more, 120, f"the fault at {point} to strike", 0.2)
    commands[struck] = penstock_command(struck, str(paths[struck]))
    write_more()

    def have_arrived() -> bool:
        return (row_count(target, "t"), row_count(target, "log")) == (number, 400 * number)

    wait_until(have_arrived, 120, "the rest to arrive")
    assert_equal(source, target, "t", "log")
    for command in commands.values():
        assert command.terminate() == 0, command.stderr
