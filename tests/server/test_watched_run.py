"""A run as its server sees it: the status in memory, counts of batches, pauses, tables tried again."""

from __future__ import annotations

import http.client
import json
import logging
import re
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fix_pipeline import pipeline_document, table_error, wait_for_state
from fix_postgres import only_new
from fix_wait import wait_until
from fix_watched import TOKEN
from penstock.errors import BadValue
from penstock.logging import json_lines
from penstock.lsn import Lsn
from penstock.metrics import BatchRecord, BatchTrace, Recorder
from penstock.run.pauses import set_pause
from penstock.run.sources import mark_now
from penstock.run.status import read_status, refresh_status
from penstock.run.watched import BOTH, WatchedRun
from penstock.spark import jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from fix_pipeline import Command, RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]


class KeptTrace(BatchTrace):
    """Keeps what a batch ended with."""

    def __init__(self, trace_id: str) -> None:
        self.trace_id = trace_id
        self.traceparent = f"00-{trace_id}-{1:016x}-01"
        self.ends: list[BatchRecord | None] = []

    def end(self, record: BatchRecord | None) -> None:
        self.ends.append(record)


class Kept(Recorder):
    """Keeps what loops report."""

    is_on = True

    def __init__(self) -> None:
        self.records: list[BatchRecord] = []
        self.traces: dict[int, KeptTrace] = {}

    def begin(self, source: str, sink: str, number: int) -> BatchTrace:
        self.traces[number] = KeptTrace(f"{number:032x}")
        return self.traces[number]

    def batch(self, record: BatchRecord) -> None:
        self.records.append(record)

    def rows(self) -> dict[tuple[str, str], int]:
        found: dict[tuple[str, str], int] = {}
        for record in self.records:
            for key, count in record.rows.items():
                found[key] = found.get(key, 0) + count
        return found


@only_new
def test_batches_are_reported_with_rows_by_table_and_operation(
    source: Database, target: Database, make_pipeline: Make
):
    source.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v int); CREATE TABLE b (id int PRIMARY KEY)"
    )
    target.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v int); CREATE TABLE b (id int PRIMARY KEY)"
    )
    kept = Kept()
    pipeline = make_pipeline(source, target, recorder=kept)

    source.execute("INSERT INTO a SELECT n, n FROM generate_series(1, 100) n")
    source.execute(
        "UPDATE a SET v = 0 WHERE id <= 10; DELETE FROM a WHERE id > 95; INSERT INTO b VALUES (1)"
    )
    pipeline.catch_up()

    assert kept.rows() == {
        ("public.a", "insert"): 100,
        ("public.a", "update"): 10,
        ("public.a", "delete"): 5,
        ("public.b", "insert"): 1,
    }
    worked = [each for each in kept.records if each.has_job]
    assert sum(each.read_bytes.get("insert", 0) for each in worked) > 1000
    for record in worked:
        assert record.sink == "target"
        assert 0 < record.commit_seconds < 60
        assert 0 < record.job_seconds < 60
        assert record.tasks
        assert {"read", "decode", "modify", "stage"} <= set(record.tasks[0].seconds)
        # The clocks of driver and task are one here.
        assert record.began_at - 1 <= record.tasks[0].began_at <= record.commit_began_at + 1


@only_new
def test_tasks_of_a_batch_know_its_trace(
    source: Database, target: Database, make_pipeline: Make, monkeypatch: pytest.MonkeyPatch
):
    seen: list[str | None] = []
    run_tasks = jobs.run_tasks

    def asking(
        spark: Any, function: Callable[..., Any], work: Sequence[Any], *given: Any, **named: Any
    ) -> list[Any]:
        def both(some: Any) -> Iterator[Any]:
            from pyspark import TaskContext

            context = TaskContext.get()
            said = context.getLocalProperty("penstock.traceparent") if context else None
            for result in function(some):
                yield said, result

        found = run_tasks(spark, both, work, *given, **named)
        seen.extend(said for said, _ in found)
        return [result for _, result in found]

    source.execute("CREATE TABLE a (id int PRIMARY KEY, v int)")
    recorder = Kept()
    pipeline = make_pipeline(source, target, recorder=recorder)
    pipeline.catch_up()
    monkeypatch.setattr(jobs, "run_tasks", asking)
    source.execute("INSERT INTO a VALUES (1, 1)")
    pipeline.catch_up()
    source.execute("ALTER TABLE a ADD w int; INSERT INTO a VALUES (2, 2, 2)")
    pipeline.catch_up()

    assert None not in seen
    assert len(set(seen)) >= 2, "each batch has its own"
    assert set(seen) <= {trace.traceparent for trace in recorder.traces.values()}
    monkeypatch.setattr(recorder, "begin", lambda *_: BatchTrace())
    source.execute("INSERT INTO a VALUES (3, 3, 3)")
    pipeline.catch_up()
    assert seen[-1] is None, "it is not left behind for the next job"


@only_new
def test_rows_beside_a_change_of_shape_are_counted_and_traced_once(
    source: Database, target: Database, make_pipeline: Make
):
    for side in (source, target):
        side.execute("CREATE TABLE a (id int PRIMARY KEY)")
    kept = Kept()
    pipeline = make_pipeline(source, target, recorder=kept)

    with source.connect(autocommit=False) as connection:
        connection.execute("INSERT INTO a SELECT n FROM generate_series(1, 20) n")
        connection.execute("ALTER TABLE a ADD COLUMN note text")
        connection.execute("INSERT INTO a SELECT n, 'x' FROM generate_series(21, 50) n")
        connection.commit()
    pipeline.catch_up()

    assert target.query("SELECT count(*), count(note) FROM a") == [(50, 30)]
    assert kept.rows() == {("public.a", "insert"): 50}
    for number, trace in kept.traces.items():
        [record] = trace.ends
        assert record is not None
        assert record.number == number


@only_new
def test_rows_of_a_table_that_stops_are_counted_when_it_has_caught_up(
    source: Database, target: Database, make_pipeline: Make
):
    source.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    target.execute(
        "CREATE TABLE a (id int PRIMARY KEY CHECK (id < 5)); CREATE TABLE b (id int PRIMARY KEY)"
    )
    kept, lines = Kept(), Lines()
    make_pipeline(source, target, recorder=kept)
    with lines.kept():
        source.execute("INSERT INTO b VALUES (1), (2); INSERT INTO a VALUES (1), (9)")
        wait_for_state(target, "a", "failed")
        wait_until(lambda: ("public.b", "insert") in kept.rows(), what="the batch to be counted")

        assert kept.rows() == {("public.b", "insert"): 2}
        target.execute("ALTER TABLE a DROP CONSTRAINT a_id_check")
        wait_for_state(target, "a", "streaming")

    assert kept.rows() == {("public.b", "insert"): 2, ("public.a", "insert"): 2}
    # In JSON the line that says so names the batch, and its trace.
    stops = next(each for each in lines.found if "public.a" in each["message"])
    assert stops["trace_id"] == kept.traces[stops["batch"]].trace_id
    assert "key (id=9)" in stops["message"]


class Lines(logging.Handler):
    """Log lines in JSON, read again."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(json_lines())
        self.found: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(json.loads(self.format(record)))

    @contextmanager
    def kept(self) -> Iterator[None]:
        logger = logging.getLogger("penstock")
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)


@only_new
def test_status_in_memory_says_what_the_command_says(
    source: Database, target: Database, make_pipeline: Make
):
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    target.execute("CREATE TABLE a (id int PRIMARY KEY)")
    pipeline = make_pipeline(source, target)
    source.execute("INSERT INTO a VALUES (1)")
    pipeline.catch_up()
    asked = read_status(pipeline.file)

    source.execute("INSERT INTO a VALUES (2)")
    pipeline.catch_up()
    lsn = pipeline.delivered_lsn
    wait_until(
        lambda: (
            Lsn.parse(refresh_status(pipeline.file, asked).sinks["target"].delivered_lsn) >= lsn
        ),
        what="the report of the loop",
    )

    refreshed, anew = refresh_status(pipeline.file, asked), read_status(pipeline.file)
    assert refreshed.sinks["target"].tables.keys() == anew.sinks["target"].tables.keys()
    assert (
        refreshed.sinks["target"].changes_delivered == anew.sinks["target"].changes_delivered == 2
    )
    assert refreshed.sources["test"].connected
    assert refreshed.phase == anew.phase


@only_new
def test_paused_sink_gets_nothing_until_it_is_resumed(
    source: Database, target: Database, make_pipeline: Make
):
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    target.execute("CREATE TABLE a (id int PRIMARY KEY)")
    pipeline = make_pipeline(source, target)
    watched = WatchedRun(pipeline.file, BOTH)
    pipeline.catch_up()
    [flow] = pipeline.deliveries

    rounds = threading.Semaphore(0)
    rest = flow.rest
    flow.rest = lambda: (rest(), rounds.release())  # type: ignore[assignment,method-assign,return-value]
    assert "paused" in watched.pause("target", is_paused=True)
    rounds.acquire(timeout=30)
    source.execute("INSERT INTO a VALUES (1)")
    lsn = mark_now(pipeline.file)
    wait_until(lambda: (flow._log.end_lsn() or Lsn(0)) >= lsn, what="the log to have it")
    for _ in range(5):  # rounds of the loop
        assert rounds.acquire(timeout=30)
    status = read_status(pipeline.file).sinks["target"]
    assert status.paused_since is not None
    assert status.lag_bytes
    assert target.query("SELECT FROM a") == []

    watched.pause("target", is_paused=False)
    pipeline.catch_up()

    assert target.query("SELECT count(*) FROM a") == source.query("SELECT count(*) FROM a")
    assert read_status(pipeline.file).sinks["target"].paused_since is None


@only_new
def test_sink_that_is_not_there_cannot_be_paused(
    source: Database, target: Database, make_pipeline: Make
):
    pipeline = make_pipeline(source, target)

    with pytest.raises(BadValue, match="no sink 'other', wanted one of target"):
        set_pause(pipeline.file, "other", is_paused=True)


@only_new
def test_table_that_has_stopped_is_tried_again_when_asked(
    source: Database, target: Database, make_pipeline: Make
):
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    target.execute("CREATE TABLE a (id int PRIMARY KEY CHECK (id < 5))")
    pipeline = make_pipeline(source, target)
    [flow] = pipeline.deliveries
    watched = WatchedRun(pipeline.file, BOTH)
    watched.flows = lambda: pipeline.deliveries
    source.execute("INSERT INTO a VALUES (9)")
    wait_for_state(target, "a", "failed")
    assert "key (id=9)" in table_error(target, "a")
    # From here on nothing but the request gives it a turn.
    flow.tables._waits = {
        table: (float("inf"), wait[1]) for table, wait in flow.tables._waits.items()
    }
    target.execute("ALTER TABLE a DROP CONSTRAINT a_id_check")

    assert watched.retry_tables("target", ["public.a"], None) == ["public.a: is tried again now"]
    wait_for_state(target, "a", "streaming")

    assert target.query("SELECT id FROM a") == [(9,)]
    assert watched.retry_tables("target", ["public.a"], None) == ["public.a: has not stopped"]
    with pytest.raises(BadValue, match="delivers to no sink"):
        watched.retry_tables("other", ["public.a"], None)


@only_new
def test_version_of_a_schema_that_is_not_there_is_a_clear_error(
    source: Database, target: Database, make_pipeline: Make
):
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    tracked = {"schema": {"tracking": "triggers"}}
    watched = WatchedRun(make_pipeline(source, target, source_options=tracked).file, BOTH)

    source.execute("ALTER TABLE a ADD v int")
    version = wait_until(lambda: watched.versions(None, None), what="a version")[0]
    assert (version["schema_name"], version["version"]) == ("public", 1)
    assert watched.changes_of_version(None, "public", 1) == []
    for ask in (watched.changes_of_version, watched.version):
        with pytest.raises(BadValue, match="no version of schema 'nosuch'"):
            ask(None, "nosuch", 1)
        with pytest.raises(BadValue, match="public has no version"):
            ask(None, "public", 10**30)


@only_new
def test_half_that_captures_serves_as_well(
    source: Database,
    target: Database,
    penstock_command: Callable[..., Command],
    tmp_path: Path,
):
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    document = pipeline_document(source, target, tmp_path)
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump({**document, "token": TOKEN}))
    running = penstock_command("capture", str(path), "--listen", "127.0.0.1:0")
    found = wait_until(lambda: re.search(r"listening on http://(\S+)/", running.stderr), 60)

    def ask(method: str, path: str, token: str | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(found[1], timeout=30)
        try:
            connection.request(
                method, path, headers={"Authorization": f"Bearer {token}"} if token else {}
            )
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    wait_until(lambda: ask("GET", "/ready")[0] == 200, 60, "capture to be ready", 0.1)
    status = json.loads(ask("GET", "/status")[1])
    metrics = ask("GET", "/metrics")[1].decode()

    assert status["sources"]["test"]["connected"]
    assert 'penstock_source_up{pipeline="test",source="test"} 1.0' in metrics
    assert 'penstock_process_memory_bytes{pipeline="test",role="run"}' in metrics
    assert ask("POST", "/api/sinks/target/pause")[0] == 401
    assert ask("POST", "/api/sinks/target/pause", TOKEN)[0] == 200
    assert running.terminate() == 0
    assert "admin: pause sink target" in running.stderr
    assert TOKEN not in running.stderr


def _ask(address: str, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize("command", ["run", "capture", "deliver"])
def test_probes_are_answered_while_no_source_can_be_reached(
    penstock_command: Callable[..., Command], tmp_path: Path, command: str
):
    document = pipeline_document("", "postgresql://127.0.0.1:1/none", tmp_path)
    del document["source"]
    sources = {
        name: {"url": f"postgresql://127.0.0.1:1/{name}", "tables": ["*.*"]}
        for name in ("eu", "us")
    }
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump({**document, "sources": sources}))

    running = penstock_command(command, str(path), "--listen", "127.0.0.1:0")
    found = wait_until(lambda: re.search(r"listening on http://(\S+)/", running.stderr), 60)
    part = b"sink target" if command == "deliver" else b"source eu"
    wait_until(lambda: part in _ask(found[1], "/ready")[1], 60, "the first status")

    assert _ask(found[1], "/health")[0] == 200
    assert _ask(found[1], "/ready")[0] == 503
    assert running.process.poll() is None


@pytest.mark.long
@only_new
def test_second_instance_is_told_so_rather_than_that_its_address_is_taken(
    source: Database,
    target: Database,
    penstock_command: Callable[..., Command],
    pipeline_file: Callable[..., Path],
):
    path = pipeline_file(source, target)
    first = penstock_command("capture", str(path), "--listen", "127.0.0.1:0")
    found = wait_until(lambda: re.search(r"listening on http://(\S+)/", first.stderr), 60)
    wait_until(lambda: "following slot" in first.stderr, 60)

    second = penstock_command("capture", str(path), "--listen", found[1])

    assert second.wait() == 1
    assert "PEN-601" in second.stderr


@only_new
def test_address_that_is_taken_ends_the_command_with_what_to_do(
    source: Database,
    target: Database,
    penstock_command: Callable[..., Command],
    pipeline_file: Callable[..., Path],
):
    path = pipeline_file(source, target)
    first = penstock_command("capture", str(path), "--listen", "127.0.0.1:0")
    found = wait_until(lambda: re.search(r"listening on http://(\S+)/", first.stderr), 60)
    other = pipeline_file(source, target, name="other")

    second = penstock_command("capture", str(other), "--listen", found[1])

    assert second.wait() == 1
    assert f"PEN-620 listen {found[1]}: cannot listen: Address already in use" in second.stderr
