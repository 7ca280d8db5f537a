"""A disk without space keeps the log from growing, with a clear error, and loses nothing that was durable."""

from __future__ import annotations

import errno
import os
import resource
from contextlib import contextmanager

import numpy as np
import pytest

from fix_log import SmallLog, texts
from fix_machine import mounted_disk
from penstock.errors import DiskFull, LogShortened, StateUnusable
from penstock.log.background import BackgroundWriter
from penstock.log.files import writer as writer_module
from penstock.log.files.segment import list_segments
from penstock.log.files.spool import FileSpool
from penstock.log.files.writer import FilesWriter
from penstock.log.slice import SliceHead, SliceKind
from penstock.lsn import Lsn
from penstock.retry import is_temporary
from penstock.schema.mark import Mark
from penstock.schema.past_shapes import PastShapes
from penstock.state.directory import StateDirectory
from penstock.state.reports import CaptureReport, MembershipReport
from penstock.state.wire import FileWire


@contextmanager
def files_of_at_most(size):
    """The kernel takes the bytes up to there, and then no more."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_slice_that_does_not_fit_leaves_the_log_as_it_was(log):
    log.whole(8)
    [segment] = list_segments(log.directory)
    size = segment.stat().st_size

    with files_of_at_most(size + 50), pytest.raises(DiskFull, match="nothing is lost") as caught:
        log.whole(16)

    assert caught.value.where == str(log.directory)
    assert (segment.stat().st_size, log.writer.durable_lsn) == (size, 8)
    assert log.ends() == [8]
    log.whole(16)
    log.reopen()
    assert texts(log.read()) == ["1", "3"]


def test_spool_that_does_not_fit_is_refused(log):
    with files_of_at_most(10), pytest.raises(DiskFull):
        log.streamed(8)

    log.reopen()
    assert list(log.directory.glob("*.spool")) == []
    assert log.ends() == []


def fail(monkeypatch, name, number):
    def refuse(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(writer_module.os, name, refuse)


@pytest.mark.parametrize("step", ["write", "fdatasync"])
def test_failure_to_write_or_sync_takes_the_slice_back(log, monkeypatch, step):
    log.whole(8)
    with monkeypatch.context() as patch:
        fail(patch, step, errno.ENOSPC)
        with pytest.raises(DiskFull):
            log.whole(16)

    assert log.writer.durable_lsn == 8
    assert log.ends() == [8]


def test_failure_to_take_a_slice_back_is_fixed_on_reopening(log, monkeypatch):
    log.whole(8)
    with monkeypatch.context() as patch:
        fail(patch, "fdatasync", errno.EIO)
        fail(patch, "ftruncate", errno.EIO)
        with pytest.raises(StateUnusable, match="Input/output"):
            log.whole(16)

    log.reopen()
    # The bytes did arrive: a slice that is whole is as good as one that was acknowledged.
    assert log.ends() in ([8], [8, 16])
    assert log.writer.durable_lsn == log.ends()[-1]


def test_failure_to_begin_a_segment_keeps_what_is_durable(log, segments_of, monkeypatch):
    segments_of(100)
    with monkeypatch.context() as patch:
        fail(patch, "open", errno.ENOSPC)
        with pytest.raises(DiskFull):
            log.whole(8)

    assert log.writer.durable_lsn == 8
    log.whole(16)  # the writer still has its file
    log.reopen()
    assert log.ends() == [8, 16]


def test_failure_to_make_a_spool_is_reported_as_a_full_disk(log, monkeypatch):
    with monkeypatch.context() as patch:
        fail(patch, "open", errno.ENOSPC)
        with pytest.raises(DiskFull):
            FileSpool(log.directory, 9, Lsn(8))


@pytest.fixture
def tiny_disk(tmp_path):
    with mounted_disk(tmp_path, "128k") as disk:
        yield disk


def take_all(path):
    """Somebody else's file, to the last byte of the disk."""
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return


def fill_up(log):
    """Append until there is no space; where the slices that fitted end."""
    for end in range(8, 10_000, 8):
        try:
            log.whole(end, filling=5000)
        except DiskFull:
            return list(range(8, end, 8))
    raise AssertionError("the disk is not tiny")


def test_disk_that_fills_up_loses_nothing_and_goes_on_when_there_is_space(tiny_disk):
    log = SmallLog(tiny_disk / "log")
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(bytes(40_000))
    durable = fill_up(log)

    assert log.writer.durable_lsn == durable[-1]
    assert log.ends() == durable
    with pytest.raises(DiskFull):
        log.streamed(5000, parts=5000)

    ballast.unlink()
    log.reopen()
    assert log.ends()[: len(durable)] == durable
    log.append(SliceKind.WHOLE, 20_000, filling=5000)
    assert log.ends()[-1] == 20_000
    log.writer.close()


def test_something_is_left_free_for_reports(tiny_disk):
    log = SmallLog(tiny_disk / "log")
    fill_up(log)

    wire = FileWire(StateDirectory(tiny_disk, "p"))

    assert wire.publish(CaptureReport(durable_lsn=Lsn(8)))
    log.writer.close()


def test_report_is_written_over_the_one_before_where_there_is_no_room_at_all(tiny_disk):
    wire = FileWire(StateDirectory(tiny_disk, "p"))
    wire.publish(CaptureReport(durable_lsn=Lsn(8), error="x" * 100))
    take_all(tiny_disk / "ballast")

    assert wire.publish(CaptureReport(durable_lsn=Lsn(16)))
    assert wire.latest(CaptureReport) == CaptureReport(durable_lsn=Lsn(16))
    assert not wire.publish(CaptureReport(error="x" * 100_000))
    assert wire.latest(CaptureReport) == CaptureReport(durable_lsn=Lsn(16))
    assert not wire.publish(MembershipReport(lsn=Lsn(16)))
    assert wire.latest(MembershipReport) is None
    assert sorted(path.name for path in tiny_disk.iterdir()) == ["ballast", "capture.json"]


def test_segments_are_small_while_room_is_short(log, monkeypatch):
    monkeypatch.setattr(writer_module, "_LEAST_SEGMENT_BYTES", 100)
    monkeypatch.setattr(writer_module, "free_bytes", lambda place: 8 * 500)
    for end in range(8, 80, 8):
        log.whole(end, filling=200)
    few = len(list_segments(log.directory))
    monkeypatch.setattr(writer_module, "free_bytes", lambda place: 1 << 40)
    for end in range(80, 160, 8):
        log.whole(end, filling=200)

    assert few > 2
    assert len(list_segments(log.directory)) == few
    assert log.ends() == list(range(8, 160, 8))


def test_log_that_was_cut_can_be_deleted_as_the_sinks_get_on(log):
    log.whole(8)
    log.whole(16)
    reader = log.reader()
    first = texts(reader.read(1 << 30))

    log.writer.cut()
    deleted = (log.writer.discard_before(Lsn(8)), log.writer.discard_before(Lsn(16)))
    log.whole(24)

    assert deleted == (0, 1)
    assert first == ["1", "2"]
    assert texts(reader.read(1 << 30)) == ["3"]
    reader.close()
    log.reopen()
    assert log.ends(16) == [24]


def test_parts_of_a_transaction_that_did_not_fit_are_given_up(log):
    log.whole(8)
    log.writer.cut()
    log.append(SliceKind.PART, 8, filling=5000)
    reader = log.reader()
    first = texts(reader.read(1 << 30))

    log.writer.cut()
    size = log.writer.size_bytes()
    log.append(SliceKind.PART, 8)
    log.append(SliceKind.LAST, 16, part=1)

    assert size < 1000
    assert first == ["1"]
    assert texts(reader.read(1 << 30)) == ["3", "4"]
    reader.close()
    log.reopen()
    assert log.ends(8) == [16, 16]


def test_spool_of_a_transaction_that_could_not_be_sealed_is_removed(log):
    kept = log.streamed(8)
    left = FileSpool(log.directory, 9, Lsn(8))
    left.seal()

    log.writer.cut()

    assert kept.path.exists()
    assert not left.path.exists()


def test_reader_of_an_end_that_was_taken_back_is_told_to_read_again(log):
    log.whole(8)
    [segment] = list_segments(log.directory)
    size = segment.stat().st_size
    log.whole(16)
    reader = log.reader()
    reader.read(1 << 30)

    os.truncate(segment, size)  # what a write does that could not be synced

    with pytest.raises(LogShortened) as caught:
        reader.read(1 << 30)
    assert is_temporary(caught.value)
    reader.close()


def test_writing_goes_on_after_a_failure_that_is_over(log, monkeypatch):
    background = BackgroundWriter(log.writer)
    message = np.array([1], np.uint32)
    with monkeypatch.context() as patch:
        fail(patch, "fdatasync", errno.ENOSPC)
        with pytest.raises(DiskFull):
            background.append(SliceHead(SliceKind.WHOLE, Lsn(8)), b"x", message)
    with pytest.raises(DiskFull):
        background.append(SliceHead(SliceKind.WHOLE, Lsn(8)), b"x", message)

    background.restart()
    background.append(SliceHead(SliceKind.WHOLE, Lsn(8)), b"x", message)
    background.close()

    assert log.ends() == [8]


def test_file_of_past_shapes_takes_back_a_line_that_does_not_fit(tmp_path):
    def mark(lsn):
        return Mark(Lsn(lsn), Lsn(lsn), 0, 0, 0, 0, "other", "x" * 100)

    past_shapes = PastShapes(tmp_path / "schema.jsonl")
    past_shapes.open_for_writing()
    past_shapes.append([mark(8)])
    size = past_shapes.path.stat().st_size

    with files_of_at_most(size + 50), pytest.raises(DiskFull):
        past_shapes.append([mark(16)])
    after = past_shapes.path.stat().st_size
    past_shapes.append([mark(16)])
    past_shapes.close()

    assert after == size
    assert len(past_shapes.path.read_text().splitlines()) == 2


def test_what_a_killed_predecessor_left_is_synced_before_it_is_relied_on(tmp_path, monkeypatch):
    log = SmallLog(tmp_path / "state" / "log")
    log.whole(8)
    past_shapes = tmp_path / "state" / "schema.jsonl"
    past_shapes.write_text("")
    log.writer.close()
    synced = set()
    sync = os.fsync

    def remember(fd):
        synced.add(os.readlink(f"/proc/self/fd/{fd}"))
        sync(fd)

    monkeypatch.setattr("os.fsync", remember)
    log.writer = FilesWriter(log.directory, log.keyring)
    log.writer.open(Lsn(0))
    PastShapes(past_shapes).open_for_writing()
    [segment] = list_segments(log.directory)

    assert {
        str(path) for path in (segment, log.directory, log.directory.parent, past_shapes)
    } <= synced
    log.writer.close()
