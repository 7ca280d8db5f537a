"""`log.encrypt` end to end: nothing that penstock or Spark keeps on disk shows a row, and keys are asked for."""

from __future__ import annotations

import os
import tempfile
import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fix_command import run_penstock
from fix_pipeline import ALWAYS_COPIED, INITIAL, pipeline_document, rows
from fix_postgres import only_new
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fix_kafka import KafkaServer
    from fix_pipeline import Command
    from fix_postgres import Database

pytestmark = only_new

CANARY = "c4n4ry-4929"
OLD, NEW = "1a" * 32, "2b" * 32


class Searched(threading.Thread):
    """Reads all files below some directories again and again, while they come and go."""

    def __init__(self, *roots: Path) -> None:
        super().__init__(daemon=True)
        self._roots = roots
        self._ended = threading.Event()
        self.seen: set[str] = set()
        self.showing: set[str] = set()

    def run(self) -> None:
        while not self._ended.wait(0.05):
            self.search()

    def search(self) -> None:
        for path in [path for root in self._roots for path in root.rglob("*")]:
            try:
                content = path.read_bytes() if path.is_file() else b""
            except OSError:
                continue  # gone meanwhile
            if content:
                self.seen.add(str(path))
            if CANARY.encode() in content:
                self.showing.add(str(path))

    def has_seen(self, part: str) -> bool:
        return any(part in path for path in self.seen)

    def end(self) -> None:
        self._ended.set()
        self.join()
        self.search()


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A directory for Spark's own, with a name that is short enough for its sockets."""
    with tempfile.TemporaryDirectory(prefix="pst", dir="/tmp") as made:
        yield Path(made)


@pytest.fixture
def searched(tmp_path: Path, temporary: Path) -> Iterator[Searched]:
    thread = Searched(tmp_path / "test-state", temporary)
    thread.start()
    yield thread
    thread.end()


def write_pipeline(directory: Path, document: dict[str, Any], log: dict[str, Any]) -> Path:
    path = directory / "test.yml"
    path.write_text(yaml.safe_dump({**document, "log": log}))
    return path


def some_rows(first: int, last: int) -> str:
    return (
        f"INSERT INTO people SELECT n, '{CANARY}' || n || repeat('{CANARY}', 40)"
        f" FROM generate_series({first}, {last}) n"
    )


@pytest.mark.long
def test_no_file_of_penstocks_or_sparks_shows_a_row_while_it_is_copied_streamed_and_parked(
    source: Database,
    kafka: KafkaServer,
    tmp_path: Path,
    penstock_command: Callable[..., Command],
    temporary: Path,
    searched: Searched,
) -> None:
    source.execute("CREATE TABLE people (id int PRIMARY KEY, v text)")
    source.execute(some_rows(1, 5000))
    place = f"e{uuid.uuid4().hex[:10]}"
    bus = {"kind": "kafka", "servers": kafka.servers, "topic": f"{place}.{{table}}"}
    bus |= {"delivery": "at_least_once", "on_refused": "park"}
    document = pipeline_document(source, None, tmp_path, source_options=ALWAYS_COPIED, sink=bus)
    document["sinks"]["lines"] = {"kind": "stdout"}
    path = write_pipeline(tmp_path, document, {"encrypt": True, "key": "${LOG_KEY}"})
    environment = {"LOG_KEY": OLD, "TMPDIR": str(temporary)}
    source.execute(f"ALTER DATABASE \"{source.name}\" SET logical_decoding_work_mem = '64kB'")

    command = penstock_command("run", str(path), env=environment)
    assert command.process.stdout is not None
    printed = threading.Thread(target=command.process.stdout.read, daemon=True)
    printed.start()
    wait_until(lambda: len(records(kafka, place)) >= 5000, 180, what="the copy")
    source.execute(some_rows(5001, 15000))
    source.execute(f"INSERT INTO people VALUES (0, repeat('{CANARY}', 200000))")
    wait_until(lambda: parked(path, environment), 120, what="a document that is too large")
    wait_until(lambda: len(records(kafka, place)) >= 15000, 120, what="the stream")
    assert command.terminate() == 0, command.stderr
    searched.end()

    assert searched.showing == set()
    for part in (".segment", ".spool", ".copies/", "target.parked.jsonl", "spark.log"):
        assert searched.has_seen(part), f"{part} was never there: {sorted(searched.seen)}"
    assert any(CANARY.encode() in each.value() for each in records(kafka, place))


def records(kafka: KafkaServer, place: str) -> list[Any]:
    topics = kafka.topics(f"{place}.")
    return kafka.records(*topics) if topics else []


def parked(path: Path, environment: dict[str, str]) -> bool:
    done = run_penstock("parked", path, "list", env={**os.environ, **environment})
    return "people" in done.stdout


@pytest.mark.long
def test_run_wants_the_key_of_the_log_and_goes_on_with_it_and_with_a_new_one(
    source: Database, target: Database, tmp_path: Path
) -> None:
    source.execute("CREATE TABLE people (id int PRIMARY KEY, v text)")
    source.execute(some_rows(1, 10))
    document = pipeline_document(source, target, tmp_path, source_options=INITIAL)
    path = write_pipeline(tmp_path, document, {"encrypt": True, "key": "${LOG_KEY}"})

    def run(key: str) -> Any:
        environment = {**os.environ, "LOG_KEY": key}
        return run_penstock("run", path, "--until-caught-up", env=environment)

    assert run(OLD).returncode == 0
    source.execute(some_rows(11, 20))
    before = {each: each.read_bytes() for each in (tmp_path / "test-state" / "log").iterdir()}

    refused = run(NEW)
    checked = run_penstock("check", path, env={**os.environ, "LOG_KEY": NEW})

    for done in (refused, checked):
        said = done.stdout + done.stderr
        assert done.returncode != 0
        assert "PEN-311" in said
        assert OLD not in said
        assert NEW not in said
        assert "Traceback" not in said
    after = {each: each.read_bytes() for each in (tmp_path / "test-state" / "log").iterdir()}
    assert after == before
    assert len(rows(target, "people")) == 10

    gone_on = run(f"{NEW} {OLD}")
    assert gone_on.returncode == 0, gone_on.stderr
    assert rows(target, "people") == rows(source, "people")


def test_bad_options_of_the_key_name_their_line_and_show_no_key(
    source: Database, target: Database, tmp_path: Path
) -> None:
    document = pipeline_document(source, target, tmp_path)
    key_file = tmp_path / "log.key"
    key_file.write_text(OLD)
    key_file.chmod(0o644)
    cases = [
        ({"encrypt": True}, "test.yml"),
        ({"encrypt": True, "key": "hunter2hunter2"}, "64 hexadecimal digits"),
        ({"encrypt": True, "key": OLD, "key_file": str(key_file)}, "one place of keys"),
        ({"encrypt": True, "key_file": str(key_file)}, "PEN-312"),
        ({"encrypt": True, "key_file": str(tmp_path / "none")}, "PEN-312"),
        ({"encrypt": "sometimes"}, "log.encrypt"),
    ]
    for log, wanted in cases:
        done = run_penstock("check", write_pipeline(tmp_path, document, log))
        said = done.stdout + done.stderr
        assert done.returncode != 0, log
        assert wanted in said, (log, said)
        assert "hunter2" not in said
        assert OLD not in said
        assert "Traceback" not in said
    assert not (tmp_path / "test-state").exists()
