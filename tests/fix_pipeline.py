"""Run a pipeline inside a test: capture and delivery in threads, on one Spark for the whole run.

A test that kills a process, or wants the command line, uses `penstock_command` instead.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import yaml

import penstock
from fix_wait import wait_until
from penstock.config import pipeline_from_document
from penstock.metrics import NOTHING
from penstock.pipeline import build_sinks, top_wire_of
from penstock.run.capture_process import capture_here
from penstock.run.deliver import Delivery
from penstock.run.deliveries import build_copier, build_flow
from penstock.run.pauses import PauseWatch
from penstock.run.sources import mark_now
from penstock.run.start import Origin, start
from penstock.spark.options import SparkOptions
from penstock.spark.session import Spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fix_postgres import Database
    from penstock.lsn import Lsn
    from penstock.metrics import Recorder
    from penstock.run.flow import Flow
    from penstock.snapshot.copier import Copier


INITIAL: dict[str, Any] = {"snapshot": "initial"}
"""Source options of a pipeline whose tables are copied first."""

ALWAYS_COPIED: dict[str, Any] = {**INITIAL, "schema": {"tracking": "relation"}}
"""The same, also for tables that are made later: with triggers the stream brings those itself."""


def slowly(rows_per_second: int) -> dict[str, Any]:
    """Source options of a copy that lasts long enough for something to happen meanwhile."""
    snapshot = {"mode": "initial", "max_rows_per_second": rows_per_second}
    return {**ALWAYS_COPIED, "snapshot": snapshot}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    """One Spark for the whole run: starting it takes several seconds."""
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    spark = Spark("tests", SparkOptions(master="local[2]"), log)
    spark.start()
    yield spark
    spark.stop()


class RunningPipeline:
    """A pipeline between two databases of a test."""

    def __init__(
        self, document: dict[str, Any], spark: Spark, recorder: Recorder = NOTHING
    ) -> None:
        self.file = pipeline_from_document(document, "test")
        self._recorder = recorder
        self._spark = spark
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.deliveries: list[Flow] = []
        self._copiers: list[Copier] = []
        self.failures: list[BaseException] = []
        self._locks = ExitStack()

    def start(self) -> RunningPipeline:
        """Start both halves; returns once everything is created and the positions are read."""
        self._stop = threading.Event()
        started = start(self.file)
        self._locks = ExitStack()
        self._locks.enter_context(top_wire_of(self.file).hold_delivery(self.file.sinks))
        self.deliveries = [
            build_flow(self.file, started, sink, self._spark, self._stop, self._recorder)
            for sink in build_sinks(self.file)
        ]
        wire = top_wire_of(self.file)
        loops = [
            Delivery(flow.name, self._stop, [flow], is_paused=PauseWatch(wire, flow.name))
            for flow in self.deliveries
        ]
        self._copiers = [
            build_copier(self.file, flow, self._spark, self._stop) for flow in self.deliveries
        ]
        jobs: list[Callable[[], None]] = [
            lambda: capture_here(self.file, Origin.of(started), self._stop),
            *(loop.run for loop in loops),
            *(copier.run for copier in self._copiers),
        ]
        self._threads = [threading.Thread(target=self._guard, args=(job,)) for job in jobs]
        for thread in self._threads:
            thread.start()
        wait_until(
            lambda: self.failures or all(each.delivered_lsn for each in self.deliveries),
            what="the sinks to be opened",
        )
        return self

    def _guard(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - asserted on by the test
            self.failures.append(error)

    def catch_up(self, deadline_seconds: float = 150) -> None:
        """Wait until everything committed so far is delivered."""
        lsn = mark_now(self.file)
        wait_until(
            lambda: self.failures or all(each.has_caught_up(lsn) for each in self.deliveries),
            deadline_seconds,
            what=f"delivery up to {lsn}",
        )
        if self.failures:
            raise self.failures[0]

    def stop(self) -> None:
        """Stop both halves and wait for them."""
        self._stop.set()
        for copier in self._copiers:
            copier.wake()
        deadline = time.monotonic() + 6
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        # As the product does it: what takes too long is cancelled.
        for delivery in self.deliveries:
            delivery.interrupt()
        for thread in self._threads:
            thread.join(30)
        self._locks.close()
        assert not any(thread.is_alive() for thread in self._threads), "a loop does not stop"

    @property
    def delivered_lsn(self) -> Lsn:
        """The position of the slowest sink."""
        return min(each.delivered_lsn for each in self.deliveries)


@pytest.fixture
def make_pipeline(spark: Spark, tmp_path: Path) -> Iterator[Callable[..., RunningPipeline]]:
    """Build and start pipelines; all are stopped when the test ends."""
    made: list[RunningPipeline] = []

    def make(
        source: Database | str,
        target: Database | str | None = None,
        *,
        tables: Any = ("*.*",),
        name: str = "test",
        source_options: dict[str, Any] | None = None,
        sink: dict[str, Any] | None = None,
        recorder: Recorder = NOTHING,
        **top: Any,
    ) -> RunningPipeline:
        document = pipeline_document(
            source,
            target,
            tmp_path,
            tables=tables,
            name=name,
            source_options=source_options,
            sink=sink,
        )
        pipeline = RunningPipeline({**document, **top}, spark, recorder)
        made.append(pipeline)
        return pipeline.start()

    yield make
    for pipeline in made:
        pipeline.stop()


def pipeline_document(
    source: Database | str,
    target: Database | str | None,
    directory: Path,
    *,
    tables: Any = ("*.*",),
    name: str = "test",
    source_options: dict[str, Any] | None = None,
    sink: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """What a pipeline file between two databases says."""
    source_url = source if isinstance(source, str) else source.url
    sink_options = dict(sink or {})
    if target is not None:
        sink_options = {
            "kind": "postgres",
            "url": target if isinstance(target, str) else target.url,
            **sink_options,
        }
    return {
        "name": name,
        "state": str(directory / f"{name}-state"),
        "source": {
            "url": source_url,
            "tables": list(tables) if isinstance(tables, tuple) else tables,
            # Most tests are about the stream alone; those about copies ask for them.
            "snapshot": "never",
            **(source_options or {}),
        },
        "sinks": {"target": sink_options},
    }


def rows(database: Database, table: str) -> list[tuple[Any, ...]]:
    """Every row of a table as its text form, sorted: equal tables give equal lists."""
    try:
        found = database.query(f"SELECT t::text FROM {table} t")
    except psycopg.errors.UndefinedTable:
        return []
    return sorted(found)


def row_count(database: Database, table: str) -> int:
    """How many rows a table has; none where it is not there yet."""
    try:
        return int(database.value(f"SELECT count(*) FROM {table}"))
    except psycopg.errors.UndefinedTable:
        return 0


def assert_equal(source: Database, target: Database, *tables: str) -> None:
    """Both sides have the same rows."""
    for table in tables:
        assert rows(target, table) == rows(source, table), f"{table} differs"


def table_state(target: Database, table: str, schema: str = "public") -> str | None:
    """How a table stands at a Postgres sink, as penstock.tables says; None when it is not listed."""
    found = _table_row(target, table, schema)
    return found[0] if found else None


def table_error(target: Database, table: str, schema: str = "public") -> str:
    """Why a table waits, "" when it does not. One that is just being tried again is waited for."""

    def settled() -> list[str]:
        found = _table_row(target, table, schema)
        if found and not found[1] and found[0] in ("pending", "copying"):
            return []
        return [(found[1] or "") if found else ""]

    return str(wait_until(settled, what=f"{table} to be tried again")[0])


def _table_row(target: Database, table: str, schema: str) -> tuple[Any, ...] | None:
    query = "SELECT state, error FROM penstock.tables WHERE schema_name = %s AND table_name = %s"
    try:
        found = target.query(query, schema, table)
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return None
    return found[0] if found else None


def wait_for_state(
    target: Database,
    table: str,
    *states: str,
    schema: str = "public",
    deadline_seconds: float = 150,
) -> None:
    """Wait until a table is in one of the states."""
    wait_until(
        lambda: table_state(target, table, schema) in states,
        deadline_seconds,
        what=f"{table} to be {' or '.join(states)}",
    )


class Command:
    """A penstock command running in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], stderr: Path) -> None:
        self.process = process
        self._stderr = stderr

    @property
    def stderr(self) -> str:
        """What it has said so far."""
        return self._stderr.read_text()

    @property
    def is_struck(self) -> bool:
        """Whether a fault has struck: the command, its capture or a worker was killed."""
        return (
            self.process.poll() is not None
            or "was killed by signal" in self.stderr
            or "a job failed" in self.stderr
        )

    def wait(self, deadline_seconds: float = 120) -> int:
        """Wait for its end; the exit code."""
        return self.process.wait(deadline_seconds)

    def kill(self) -> None:
        """SIGKILL to the command itself; its children notice on their own."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """SIGTERM, and wait; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


def _limited(file_size_limit: int | None) -> list[str]:
    """A command that runs another one with a limit on the size of files it writes."""
    return ["prlimit", f"--fsize={file_size_limit}"] if file_size_limit else []


@pytest.fixture
def penstock_command(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Start `penstock …` as a user does; whatever still runs at the end is killed."""
    started: list[Command] = []

    def begin(
        *arguments: str,
        env: dict[str, str] | None = None,
        file_size_limit: int | None = None,
        is_group: bool = False,
    ) -> Command:
        stderr = tmp_path / f"stderr-{len(started)}.txt"
        with stderr.open("wb") as file:
            process = subprocess.Popen(
                [*_limited(file_size_limit), sys.executable, "-m", "penstock", *arguments],
                stdout=subprocess.PIPE,
                stderr=file,
                cwd=tmp_path,
                env={**os.environ, **(env or {})},
                start_new_session=is_group,
            )
        command = Command(process, stderr)
        started.append(command)
        return command

    yield begin
    for command in started:
        if command.process.poll() is None:
            command.kill()
        if command.process.stdout is not None:
            command.process.stdout.close()


@pytest.fixture
def pipeline_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a pipeline file between two databases; its path."""

    def write(source: Database | str, target: Database | str | None, **options: Any) -> Path:
        document = pipeline_document(source, target, tmp_path, **options)
        path = tmp_path / f"{document['name']}.yml"
        path.write_text(yaml.safe_dump(document))
        return path

    return write


def status_of(path: Path) -> dict[str, Any]:
    """What `penstock status --json` prints of a pipeline file; tests/pipeline/test_python.py has it print."""
    return json.loads(json.dumps(penstock.status(path).as_dict()))
