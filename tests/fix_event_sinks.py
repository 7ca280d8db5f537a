"""Deliver a log to a sink of documents, both halves in one process, without Spark.

Also a program, so that a test can have it killed at a fault point:
`python -m fix_event_sinks file LOG DIRECTORY ROTATE_BYTES` or `… stdout LOG POSITION`.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

from penstock.log.files.reader import FilesReader
from penstock.lsn import Lsn
from penstock.sinks.documents.driver import DocumentDriver
from penstock.sinks.file.kind import FileKind
from penstock.sinks.file.options import FileOptions
from penstock.sinks.kind import SinkPlace
from penstock.sinks.sink import Batch
from penstock.sinks.stdout.kind import StdoutKind
from penstock.sinks.stdout.options import StdoutOptions
from penstock.sinks.stdout.sink import StdoutSink
from penstock.spark.jobs import Span, run_task
from penstock.table import TableName
from penstock.testing import insert, read_log, relation, table, transaction, write_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.log.contract import Slice
    from penstock.options import Options
    from penstock.sinks.sink import Receipt, Sink

ORDERS = table(16400, "orders", {"id": "int8", "note": "text"}, key=["id"])
START = Lsn(0x1000)
IDENTITY = {"system_identifier": "7", "slot": "penstock_shop_00000000"}


def write_transactions(log: Path, ids: Iterable[int], rows_each: int = 3) -> None:
    """Append one transaction per id, each a slice of its own; its rows are numbered in `note`."""
    for number in ids:
        rows = [insert(ORDERS, [str(number), str(row)]) for row in range(rows_each)]
        messages = [relation(ORDERS), *transaction(START + 0x100 * number, *rows, xid=number)]
        write_log(log, messages, START)


def wanted_rows(ids: Iterable[int], rows_each: int = 3) -> list[tuple[int, str]]:
    """What all the documents must say, in order."""
    return [(number, str(row)) for number in ids for row in range(rows_each)]


def batch_of(after: Lsn, slices: Sequence[Slice], number: int = 1) -> Batch:
    """The batch that these slices make."""
    tables = frozenset({TableName("public", "orders")})
    return Batch(number, after, slices[-1].head.end_lsn, 0, tables)


def run_tasks(sink: Sink, batch: Batch, tasks: Sequence[Sequence[Slice]]) -> list[Receipt]:
    """One task for each list of slices, the last first, as executors might finish them."""
    receipts = []
    for number, slices in reversed(list(enumerate(tasks))):
        worker = pickle.loads(pickle.dumps(sink.worker(batch)))
        receipt = run_task(
            worker, Span(batch.after_lsn, batch.end_lsn), number, [[ref] for ref in slices]
        )
        receipts.append(pickle.loads(pickle.dumps(receipt)))
    return receipts


def open_sink(sink: Sink) -> Lsn:
    """Open a sink as the delivering loop does; where it stands."""
    stored = sink.open()
    if stored is None:
        sink.begin(IDENTITY, START)
        return START
    assert stored.identity == IDENTITY
    return stored.delivered_lsn


def deliver(sink: Sink, log: Path) -> Lsn:
    """Open the sink, deliver what it lacks, a batch for each slice; the sink stays open."""
    position = open_sink(sink)
    reader = FilesReader(log, position)
    try:
        while slices := reader.read(1):
            batch = batch_of(position, slices)
            sink.commit(batch, run_tasks(sink, batch, [slices]))
            position = batch.end_lsn
    finally:
        reader.close()
    return position


def deliver_at_once(sink: Sink, log: Path, position: Lsn, task_count: int) -> Lsn:
    """Deliver to an open sink what it lacks, as one batch of a few tasks."""
    slices = read_log(log, position)
    cut = -(-len(slices) // task_count)
    tasks = [slices[begin : begin + cut] for begin in range(0, len(slices), cut)]
    batch = batch_of(position, slices)
    sink.commit(batch, run_tasks(sink, batch, tasks))
    return batch.end_lsn


def place_of(name: str, options: Options, state: Path) -> SinkPlace[Options]:
    """A sink of pipeline and source `shop`."""
    return SinkPlace(name, options, "shop", "shop", ("shop",), state)


def file_sink(
    directory: Path,
    rotate_bytes: int = 1 << 40,
    rotate_seconds: float = 3600.0,
    mode: int = 0o640,
) -> DocumentDriver:
    """A file sink of pipeline and source `shop`."""
    options = FileOptions(
        path=directory, rotate_bytes=rotate_bytes, rotate_seconds=rotate_seconds, mode=mode
    )
    return DocumentDriver(FileKind(), place_of("lines", options, directory.parent / "state"))


def file_place(directory: Path) -> SinkPlace[Options]:
    """Where `file_sink` is."""
    return place_of("lines", FileOptions(path=directory), directory.parent / "state")


def visible(directory: Path) -> list[Path]:
    """The finished files, in order."""
    return sorted(path for path in directory.iterdir() if not path.name.startswith("."))


def hidden(directory: Path) -> list[str]:
    """The names of all other files."""
    return sorted(path.name for path in directory.iterdir() if path.name.startswith("."))


def rows_in(*paths: Path) -> list[tuple[int, str]]:
    """What the documents in the files say, to be held against `wanted_rows`."""
    found = []
    for path in paths:
        lines = path.read_bytes().split(b"\n")
        assert lines.pop() == b"", "a file ends with a whole line"
        documents = [json.loads(line) for line in lines]
        found += [(one["key"]["id"], one["after"]["note"]) for one in documents]
    return found


def killed_at(fault: str, *arguments: str, stdout: IO[bytes] | None = None) -> None:
    """Run this module as a program that must die at a fault point."""
    path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PENSTOCK_FAULT": fault, "PYTHONPATH": os.pathsep.join(path)}
    command = [sys.executable, "-m", "fix_event_sinks", *arguments]
    killed = subprocess.run(command, env=environment, stdout=stdout, check=False)
    assert killed.returncode == -signal.SIGKILL


class _PrintingKind(StdoutKind):
    """Prints to another descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def sink(self, place: SinkPlace[StdoutOptions]) -> StdoutSink:
        return StdoutSink(place.name, self._descriptor)


def stdout_sink(position_path: Path, descriptor: int = 1) -> DocumentDriver:
    """A printing sink of pipeline and source `shop`; its position is <state>/sinks/screen.position.json."""
    return DocumentDriver(_PrintingKind(descriptor), stdout_place(position_path))


def stdout_place(position_path: Path) -> SinkPlace[Options]:
    """Where `stdout_sink` is."""
    assert position_path.parts[-2:] == ("sinks", "screen.position.json")
    return place_of("screen", StdoutOptions(), position_path.parent.parent)


def main(kind: str, log: str, where: str, rotate_bytes: str = "1") -> None:
    """Deliver the whole log and stop."""
    build = {
        "file": lambda: file_sink(Path(where), int(rotate_bytes)),
        "stdout": lambda: stdout_sink(Path(where)),
    }
    sink = build[kind]()
    try:
        deliver(sink, Path(log))
    finally:
        sink.close()


if __name__ == "__main__":
    main(*sys.argv[1:])


class Crashed(BaseException):
    """Not an Exception: nobody may catch it and tidy up."""


def crash_before(monkeypatch, steps, number):
    """Have the step on disk of this number crash, of those counted; a write that crashes is torn."""
    left = [number]

    def guard(name, step):
        def guarded(*args, **kwargs):
            if left[0] == 0:
                if name == "write":
                    step(args[0], args[1][: len(args[1]) // 2])
                raise Crashed
            left[0] -= 1
            return step(*args, **kwargs)

        return guarded

    for name in steps:
        monkeypatch.setattr(os, name, guard(name, getattr(os, name)))
