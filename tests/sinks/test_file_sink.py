"""Documents in files: nothing lost, nothing doubled, whole batches only, wherever it stops."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fix_event_sinks import (
    START,
    batch_of,
    deliver,
    deliver_at_once,
    file_sink,
    open_sink,
    run_tasks,
    wanted_rows,
    write_transactions,
)
from fix_wait import wait_until
from penstock.errors import (
    PenstockError,
    PositionMissing,
    PositionTaken,
    Remedy,
    RunError,
    SecondInstance,
    SinkError,
    SinkPrivilegeMissing,
)
from penstock.sinks import durable
from penstock.sinks.sink import Batch
from penstock.table import TableName
from penstock.testing import read_log


@pytest.fixture
def log(tmp_path):
    write_transactions(tmp_path / "log", range(1, 5))
    return tmp_path / "log"


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def sink_of(directory):
    """Sinks on the directory; those left open are closed in the end."""
    made = []

    def sink_of(**options):
        made.append(file_sink(directory, **options))
        return made[-1]

    yield sink_of
    for sink in made:
        sink.close()


def visible(directory):
    return sorted(path for path in directory.iterdir() if not path.name.startswith("."))


def hidden(directory):
    return sorted(path.name for path in directory.iterdir() if path.name.startswith("."))


def rows(paths):
    found = []
    for path in paths:
        lines = path.read_bytes().split(b"\n")
        assert lines.pop() == b"", "a file ends with a whole line"
        documents = [json.loads(line) for line in lines]
        found += [(one["key"]["id"], one["after"]["note"]) for one in documents]
    return found


def test_every_change_becomes_one_line_and_close_makes_it_visible(log, directory, sink_of):
    sink = sink_of()

    end = deliver(sink, log)

    assert visible(directory) == []
    assert sink.change_count == 12
    sink.close()
    (path,) = visible(directory)
    assert path.name == f"changes-{START:016X}-{end:016X}.jsonl"
    assert rows([path]) == wanted_rows(range(1, 5))
    assert hidden(directory) == [".lock", ".position.json"]


def test_parts_are_joined_in_the_order_of_their_tasks(log, directory, sink_of):
    sink = sink_of()

    deliver_at_once(sink, log, open_sink(sink), task_count=3)

    sink.close()
    assert rows(visible(directory)) == wanted_rows(range(1, 5))


def test_next_run_goes_on_from_the_position_in_the_directory(log, directory, sink_of):
    first = sink_of()
    position = deliver(first, log)
    first.close()
    write_transactions(log, range(5, 8))

    second = sink_of()
    assert second.open().delivered_lsn == position
    assert second.change_count == 12
    deliver(second, log)
    second.close()

    assert rows(visible(directory)) == wanted_rows(range(1, 8))
    assert second.change_count == 21


def test_full_file_is_finished_and_another_begins(log, directory, sink_of):
    sink = sink_of(rotate_bytes=1000)

    deliver(sink, log)

    finished = visible(directory)
    assert [path.stat().st_size >= 1000 for path in finished] == [True, True]
    assert rows(finished) == wanted_rows(range(1, 5))
    names = [path.stem.split("-")[1:] for path in finished]
    assert names[0][1] == names[1][0], "each begins where the one before ends"


def test_old_file_is_finished_without_another_batch(log, directory, sink_of):
    sink = sink_of(rotate_seconds=0.05)
    deliver(sink, log)

    def becomes_visible():
        sink.idle()
        return hidden(directory) == [".lock", ".position.json"]

    wait_until(becomes_visible, 5)
    assert rows(visible(directory)) == wanted_rows(range(1, 5))


def test_idle_leaves_a_young_file_alone(log, directory, sink_of):
    sink = sink_of()
    deliver(sink, log)

    sink.idle()

    assert visible(directory) == []


def test_age_of_a_file_outlives_the_process(log, directory, sink_of):
    first = sink_of()
    deliver(first, log)
    first._forget()
    os.close(first._lock)
    first._lock = None

    second = sink_of(rotate_seconds=1e-6)
    second.open()
    second.idle()

    assert rows(visible(directory)) == wanted_rows(range(1, 5))


def test_batch_without_changes_moves_the_position(sink_of, directory):
    sink = sink_of()
    open_sink(sink)

    sink.commit(Batch(1, START, START + 64, 0, frozenset()), [])
    sink.close()

    again = sink_of()
    assert again.open().delivered_lsn == START + 64
    assert visible(directory) == []


@pytest.mark.parametrize(
    "fault",
    [
        "deliver.after_job:1",
        "deliver.after_job:3",
        "file.after_append:1",
        "file.after_append:3",
        "file.after_position:1",
        "deliver.after_commit:2",
    ],
)
def test_kill_at_any_point_loses_nothing_and_doubles_nothing(fault, log, directory, sink_of):
    arguments = ["file", str(log), str(directory), "1000"]
    environment = os.environ | {
        "PENSTOCK_FAULT": fault,
        "PYTHONPATH": str(Path(__file__).parent.parent),
    }

    killed = subprocess.run(
        [sys.executable, "-m", "fix_event_sinks", *arguments], env=environment, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    seen = rows(visible(directory))
    assert seen == wanted_rows(range(1, 5))[: len(seen)]
    assert len(seen) % 3 == 0, "only whole batches are visible"

    sink = sink_of(rotate_bytes=1000)
    deliver(sink, log)
    sink.close()

    assert rows(visible(directory)) == wanted_rows(range(1, 5))
    assert sink.change_count == 12
    assert hidden(directory) == [".lock", ".position.json"]


def test_what_was_never_recorded_is_cut_off(log, directory, sink_of):
    first = sink_of()
    position = deliver(first, log)
    (growing,) = directory.glob(".changes-*")
    with growing.open("ab") as file:
        file.write(b'{"op":"ins')
    (directory / ".part-0-torn").write_bytes(b"x")
    (directory / f".changes-{position:016X}.open").write_bytes(b"never recorded")

    assert first.open().delivered_lsn == position
    first.close()

    assert rows(visible(directory)) == wanted_rows(range(1, 5))
    assert hidden(directory) == [".lock", ".position.json"]


def test_finished_file_taken_away_by_its_reader_is_not_missed(log, directory, sink_of):
    first = sink_of(rotate_bytes=1)
    deliver(first, log)
    for path in visible(directory):
        path.unlink()
    write_transactions(log, [5])

    deliver(first, log)

    assert rows(visible(directory)) == wanted_rows([5])


def test_documents_removed_before_they_were_visible_are_reported(log, directory, sink_of):
    sink = sink_of()
    deliver(sink, log)
    (growing,) = directory.glob(".changes-*")
    growing.unlink()

    with pytest.raises(PositionMissing, match="0 bytes of documents, wanted"):
        sink.open()


def test_file_that_is_there_already_is_not_overwritten(log, directory, sink_of):
    sink = sink_of()
    end = deliver(sink, log)
    taken = directory / f"changes-{START:016X}-{end:016X}.jsonl"
    taken.write_text("of a person\n")
    sink.close()

    with pytest.raises(SinkPrivilegeMissing, match="already there"):
        sink.open()

    taken.unlink()
    sink.open()
    assert rows(visible(directory)) == wanted_rows(range(1, 5))


def test_full_disk_changes_nothing_and_is_waited_out(log, directory, sink_of, monkeypatch):
    sink = sink_of()
    position = open_sink(sink)
    slices = read_log(log, position)
    batch = batch_of(position, slices)
    receipts = run_tasks(sink, batch, [slices])

    with monkeypatch.context() as patch:

        def full(fd, data):
            os.write(fd, data[:7])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr("penstock.sinks.file.sink.write_all", full)
        with pytest.raises(SinkError, match="no space left") as caught:
            sink.commit(batch, receipts)

    assert caught.value.remedy is Remedy.TIME
    with pytest.raises(SinkError, match="not open"):
        sink.commit(batch, receipts)
    assert sink.open().delivered_lsn == START
    deliver(sink, log)
    sink.close()
    assert rows(visible(directory)) == wanted_rows(range(1, 5))


def test_task_on_a_full_disk_leaves_no_part(log, directory, sink_of, tmp_path, monkeypatch):
    sink = sink_of()
    slices = read_log(log, open_sink(sink))
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    monkeypatch.setattr("uuid.uuid4", lambda: type("Fixed", (), {"hex": "0"}))
    monkeypatch.setattr(Path, "open", lambda path, *args, **kwargs: open(full, "wb", buffering=0))

    with pytest.raises(SinkError, match="no space left"):
        run_tasks(sink, batch_of(START, slices), [slices])


def test_position_that_cannot_be_written_stops_the_commit(log, directory, sink_of, monkeypatch):
    sink = sink_of()
    open_sink(sink)
    slices = read_log(log, START)
    batch = batch_of(START, slices)

    with monkeypatch.context() as patch:

        def broken(directory):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        patch.setattr(durable, "sync_directory", broken)
        with pytest.raises(SinkError, match="input/output error"):
            sink.commit(batch, run_tasks(sink, batch, [slices]))
    sink.close()

    again = sink_of()
    deliver(again, log)
    again.close()
    assert rows(visible(directory)) == wanted_rows(range(1, 5))


def test_second_instance_is_refused_and_names_the_first(directory, sink_of):
    open_sink(sink_of())

    with pytest.raises(SecondInstance, match=f"pid {os.getpid()}"):
        sink_of().open()


def test_directory_of_another_pipeline_is_refused(directory, sink_of):
    first = sink_of()
    open_sink(first)
    first.close()
    other = sink_of()
    other._position._owner["pipeline"] = "other"

    with pytest.raises(SinkPrivilegeMissing, match="belongs to pipeline 'shop'"):
        other.open()


@pytest.mark.parametrize("place", ["", "below/it"])
def test_path_that_is_a_file_is_refused(directory, place):
    directory.write_text("")

    with pytest.raises(SinkPrivilegeMissing, match="cannot write there") as caught:
        file_sink(directory / place).open()

    assert caught.value.remedy is Remedy.OPERATOR
    assert "choose another `path:`" in caught.value.do


def test_damaged_position_is_reported(directory, sink_of):
    sink = sink_of()
    open_sink(sink)
    (directory / ".position.json").write_text('{"format": 1')

    with pytest.raises(PositionMissing, match="damaged"):
        sink.open()


def test_part_that_the_driver_cannot_see_is_reported(log, directory, sink_of):
    sink = sink_of()
    slices = read_log(log, open_sink(sink))
    batch = batch_of(START, slices)
    receipts = run_tasks(sink, batch, [slices])
    for part in directory.glob(".part-*"):
        part.unlink()

    with pytest.raises(SinkPrivilegeMissing, match="the driver sees 0 of"):
        sink.commit(batch, receipts)


def test_batch_that_does_not_begin_at_the_position_is_refused(sink_of):
    sink = sink_of()
    open_sink(sink)

    with pytest.raises(PositionTaken):
        sink.commit(Batch(1, START + 8, START + 16, 0, frozenset()), [])


def test_interrupted_commit_changes_nothing(log, directory, sink_of):
    sink = sink_of()
    slices = read_log(log, open_sink(sink))
    batch = batch_of(START, slices)
    receipts = run_tasks(sink, batch, [slices])

    sink.interrupt()

    with pytest.raises(SinkError, match="called off"):
        sink.commit(batch, receipts)
    assert sink.open().delivered_lsn == START


def test_no_table_goes_on_alone(sink_of):
    sink = sink_of()
    table = TableName("public", "orders")
    batch = Batch(1, START, START + 8, 0, frozenset({table}))

    assert sink.stopped == {}
    for call in (
        lambda: sink.worker(batch, {table}),
        lambda: sink.commit_table(table, batch, []),
        lambda: sink.resume_table(table),
        lambda: sink.restate_failure(table, PenstockError("why")),
    ):
        with pytest.raises(RunError):
            call()


def test_teardown_leaves_nothing_but_documents(log, directory, sink_of):
    sink = sink_of()
    deliver(sink, log)
    sink._forget()

    assert sink.remove_position() == [f"position in {directory}"]
    assert hidden(directory) == []
    assert rows(visible(directory)) == wanted_rows(range(1, 5))
    assert sink.remove_position() == []
