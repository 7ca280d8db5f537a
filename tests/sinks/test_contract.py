"""Every sink of documents keeps the contract: those of penstock, one that tasks deliver to, the example."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.sinks.file.kind import FileKind
from penstock.sinks.file.options import FileOptions
from penstock.sinks.stdout.kind import StdoutKind
from penstock.sinks.stdout.options import StdoutOptions
from penstock.sinks.stdout.sink import StdoutSink
from penstock.testing import SinkContract
from penstock.testing.task_files import TaskFilesKind, TaskFilesOptions

if TYPE_CHECKING:
    from penstock.sink import Options, SinkPlace

EXAMPLE = Path(__file__).parents[2] / "examples" / "sqlite-sink"
for each in ("src", "tests"):
    sys.path.append(str(EXAMPLE / each))

from test_sqlite_sink import TestSqliteSink  # noqa: E402, F401


def _documents(*paths: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


class TestFile(SinkContract):
    def kind(self) -> FileKind:
        return FileKind()

    def options(self, directory: Path) -> FileOptions:
        return FileOptions(path=directory / "files", rotate_bytes=700)

    def delivered(self, options: FileOptions) -> list[dict[str, Any]]:
        return _documents(*sorted(options.path.glob("*.jsonl")))


class _PrintToFile(StdoutKind):
    """Prints into a file, where a test can read it."""

    def sink(self, place: SinkPlace[StdoutOptions]) -> StdoutSink:
        printed = place.state.parent / "printed"
        return _Printing(place.name, os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_APPEND))


class _Printing(StdoutSink):
    def __del__(self) -> None:
        os.close(self._descriptor)


class TestStdout(SinkContract):
    is_exclusive = False  # a pipe is nobody's; the state directory has one process that delivers

    def kind(self) -> _PrintToFile:
        return _PrintToFile()

    def options(self, directory: Path) -> StdoutOptions:
        self._directory = directory
        return StdoutOptions()

    def delivered(self, options: StdoutOptions) -> list[dict[str, Any]]:
        return _documents(self._directory / "printed")


class TestDeliveredByTasks(SinkContract):
    is_exclusive = False

    def kind(self) -> TaskFilesKind:
        return TaskFilesKind()

    def options(self, directory: Path) -> TaskFilesOptions:
        return TaskFilesOptions(path=directory / "spread")

    def delivered(self, options: TaskFilesOptions) -> list[dict[str, Any]]:
        found = _documents(*sorted(options.path.glob("*.jsonl")))
        # Between keys no order is promised; a document that came again stays where it was first.
        return sorted(found, key=lambda one: (one["op"] != "read", _place(one)))

    def refuse(self, options: Options, key: int) -> bool:
        options.path.mkdir(exist_ok=True)
        (options.path / "refused").write_text(f'{{"id":{key}}}')
        return True

    def accept(self, options: Options) -> None:
        (options.path / "refused").unlink()


def _place(one: dict[str, Any]) -> tuple[int, int]:
    high, low = one["commit_lsn"].split("/")
    return int(high, 16) << 32 | int(low, 16), one["ordinal"]
