"""A disk without space stops the log with a clear error, and loses nothing that was durable."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from contextlib import contextmanager

import pytest

from fix_log import SmallLog, texts
from penstock.errors import DiskFull, StateUnusable
from penstock.log import writer as writer_module
from penstock.log.segment import list_segments
from penstock.log.slice import SliceKind
from penstock.log.spool import Spool
from penstock.lsn import Lsn


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


def test_failure_to_take_a_slice_back_is_mended_on_reopening(log, monkeypatch):
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


def test_failure_to_make_a_spool_is_told_as_a_full_disk(log, monkeypatch):
    with monkeypatch.context() as patch:
        fail(patch, "open", errno.ENOSPC)
        with pytest.raises(DiskFull):
            Spool(log.directory, 9, Lsn(8))


@pytest.fixture
def tiny_disk(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine does not let us mount")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


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
