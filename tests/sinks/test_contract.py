"""Every sink of documents keeps the contract: those of penstock, one that tasks deliver to, the example."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fix_task_files import TaskFilesKind, TaskFilesOptions
from penstock import failpoints
from penstock.sink import (
    Finding,
    PenstockError,
    SinkError,
    SinkPlace,
    SinkPrivilegeMissing,
    fault_point,
)
from penstock.sinks.file.kind import FileKind
from penstock.sinks.file.options import FileOptions
from penstock.sinks.file.sink import FileSink
from penstock.sinks.stdout.kind import StdoutKind
from penstock.sinks.stdout.options import StdoutOptions
from penstock.sinks.stdout.sink import StdoutSink
from penstock.testing import SinkContract, insert
from penstock.testing.failing import SECRET
from penstock.testing.scene import AUDIT, ORDERS, PURCHASES, START, created, renamed

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from penstock.sink import Options

EXAMPLE = Path(__file__).parents[2] / "examples" / "sqlite-sink"
for each in ("src", "tests"):
    sys.path.append(str(EXAMPLE / each))

from test_sqlite_details import *  # noqa: E402, F403
from test_sqlite_sink import TestSqliteSink  # noqa: E402


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


def test_table_that_comes_and_is_renamed_stops_by_the_name_that_it_came_with(
    tmp_path: Path,
) -> None:
    suite = TestSqliteSink()
    scene, options = suite._scene(tmp_path)
    suite.refuse(options, 2)
    scene.alter(
        created(ORDERS),
        (ORDERS, [insert(ORDERS, ["2", "new"])]),
        renamed(ORDERS, PURCHASES),
        (AUDIT, [insert(AUDIT, ["3", "seen"])]),
    )
    [(name, stopped)] = scene.sink.tables.detached.items()
    assert (name, stopped.delivered_lsn) == (ORDERS.table, START)

    suite.accept(options)
    scene.catch_up()
    scene.sink.close()

    found = [(one["table"], one["op"]) for one in suite.delivered(options)]
    assert ("audit", "insert") in found
    assert found.count(("orders", "insert")) == 1


def test_refusal_in_the_transaction_that_renames_its_table_loses_nothing(tmp_path: Path) -> None:
    suite = TestSqliteSink()
    scene, options = suite._scene(tmp_path)
    suite.refuse(options, 2)
    scene.write(1)
    scene.alter(
        (ORDERS, [insert(ORDERS, ["2", "new"])]),
        renamed(ORDERS, PURCHASES),
        (PURCHASES, [insert(PURCHASES, ["4", "late"])]),
    )
    assert list(scene.sink.tables.detached) == [ORDERS.table]

    suite.accept(options)
    scene.catch_up()
    scene.sink.close()

    assert scene.sink.tables.streaming >= {PURCHASES.table}
    found = [(one["table"], one["key"]) for one in suite.delivered(options) if one["key"]]
    assert found.count(("orders", {"id": 2})) == 1
    assert ("purchases", {"id": 4}) in found


class _Refusing(StdoutSink):
    """Finds one thing, and then cannot go on."""

    closed = 0

    def check(self) -> Iterator[Finding]:
        yield Finding(SinkPrivilegeMissing("no", "there", "allow it"))
        raise self.error

    def forget(self) -> list[str]:
        raise self.error

    def close(self) -> None:
        type(self).closed += 1
        raise OSError(SECRET)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SinkError("away", "there", "wait"), "PEN-501 there: away"),
        (ConnectionResetError(SECRET), "cannot write: connectionreseterror"),
        (KeyError(SECRET), "the sink raised KeyError"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_sink_that_raises_in_a_command_keeps_its_other_findings_and_is_closed(
    error: Exception, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Kind(StdoutKind):
        def sink(self, place: SinkPlace[StdoutOptions]) -> StdoutSink:
            made = _Refusing(place)
            made.error = error
            return made

    place = SinkPlace("local", StdoutOptions(), "shop", "shop", ("shop",), tmp_path)
    _Refusing.closed = 0

    found = [str(each.error) for each in Kind().check({"shop": place}, {})]
    with pytest.raises(PenstockError) as raised:
        Kind().forget(place)

    texts = [*found, str(raised.value), *traceback.format_exception(raised.value), caplog.text]
    assert len(found) == 2
    assert "PEN-503 there: no" in found[0]
    assert said in found[1]
    assert said in str(raised.value)
    assert SECRET not in "".join(texts)
    assert _Refusing.closed == 2


def test_kind_that_cannot_make_its_sink_is_a_finding(tmp_path: Path) -> None:
    class Kind(StdoutKind):
        def sink(self, place: SinkPlace[StdoutOptions]) -> StdoutSink:
            raise KeyError(SECRET)

    place = SinkPlace("local", StdoutOptions(), "shop", "shop", ("shop",), tmp_path)

    [found] = Kind().check({"shop": place}, {})

    assert (found.code, SECRET in str(found.error)) == ("PEN-518", False)


class _TwoSteps(FileSink):
    """Has a step of its own."""

    def deliver(self, documents: Iterator[pa.RecordBatch], state: str | None) -> None:
        super().deliver(documents, state)
        fault_point("two_steps.after_file")


class _TwoStepsKind(FileKind):
    def sink(self, place: SinkPlace[FileOptions]) -> FileSink:
        return _TwoSteps(place.options, place.pipeline, place.source_id)


class _OfTwoSteps(TestFile):
    fault_points = ("two_steps.after_file",)

    def kind(self) -> FileKind:
        return _TwoStepsKind()


def test_sink_is_killed_between_steps_of_its_own(tmp_path: Path) -> None:
    _OfTwoSteps().test_kill_between_any_two_steps_loses_nothing(tmp_path)


def test_fault_point_that_penstock_does_not_have_cannot_be_armed() -> None:
    for name in ("file.after_lunch", "capture.", "after_lunch", ".after_lunch"):
        with pytest.raises(ValueError, match="no fault point"):
            failpoints.arm(name)
