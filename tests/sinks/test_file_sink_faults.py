"""What goes wrong around a file sink is one clear error, and changes nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fix_event_sinks import (
    START,
    batch_of,
    deliver,
    file_sink,
    open_sink,
    rows_in,
    run_tasks,
    visible,
    wanted_rows,
)
from fix_machine import missing
from penstock.errors import (
    PositionMissing,
    PositionTaken,
    Remedy,
    SecondInstance,
    SinkError,
    SinkPrivilegeMissing,
)
from penstock.sinks import durable
from penstock.sinks.documents import worker
from penstock.sinks.documents.parts import PartWriter
from penstock.sinks.documents.position import PositionText
from penstock.sinks.sink import Batch
from penstock.testing import read_log


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
    assert rows_in(*visible(directory)) == wanted_rows(range(1, 5))


def test_part_on_a_full_disk_is_not_left_behind(tmp_path):
    if not Path("/dev/full").exists():
        missing("this machine has no /dev/full")
    part = PartWriter(str(tmp_path), ".part-")
    part.write(b"fits")
    part._file.close()
    part._file = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115

    with pytest.raises(SinkError, match="no space left"):
        part.write(b"does not")

    assert os.listdir(tmp_path) == []


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
    assert rows_in(*visible(directory)) == wanted_rows(range(1, 5))


def test_second_instance_is_refused_and_names_the_first(directory, sink_of):
    open_sink(sink_of())

    with pytest.raises(SecondInstance, match=f"pid {os.getpid()}"):
        sink_of().open()


def test_directory_of_another_pipeline_is_refused(directory, sink_of):
    first = sink_of()
    open_sink(first)
    first.close()
    other = sink_of()
    other._sink._position.text = PositionText("other", "shop", str(directory))

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


def test_part_that_the_driver_cannot_see_is_reported(log, directory, sink_of, monkeypatch):
    monkeypatch.setattr(worker, "INLINE_BYTES", 0)
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

    with pytest.raises(SinkError, match="cancelled"):
        sink.commit(batch, receipts)
    assert sink.open().delivered_lsn == START
