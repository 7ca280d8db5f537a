"""Stop a copy into files before every single step on disk, and once more while it recovers."""

from __future__ import annotations

import os

import pytest

from fix_copies import copies_in, drive, file_copying, wanted_reads
from fix_event_sinks import (
    Crashed,
    crash_before,
    file_sink,
    hidden,
    rows_in,
    visible,
    wanted_rows,
    write_transactions,
)

STEPS = (
    *("open", "write", "fsync", "fdatasync", "ftruncate"),
    *("rename", "replace", "unlink", "mkdir", "rmdir"),
)


def crashes(log, directory, monkeypatch, number):
    """Copy and deliver, and crash before that step; whether there was such a step."""
    sink, copying = file_sink(directory, rotate_bytes=1000), file_copying(directory)
    with monkeypatch.context() as patch:
        crash_before(patch, STEPS, number)
        try:
            drive(sink, copying, log, 3)
            sink.close()
        except Crashed:
            return True
        finally:
            sink._sink._forget()
            for fd in (sink._sink._lock, copying._claim):
                if fd is not None:
                    os.close(fd)
    return False


# A part that is being written is left to the garbage collector, as nobody may tidy up.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <_io.FileIO name=.*unfinished-:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("again_at", [None, 3, 11])
def test_crash_before_any_step_of_a_copy_loses_nothing_and_doubles_nothing(
    again_at, tmp_path, monkeypatch
):
    write_transactions(tmp_path / "log", range(1, 4))
    wanted = wanted_reads(3) + wanted_rows([3])
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd: None)
    number = 0
    while True:
        directory = tmp_path / f"out{number}"
        crashed = crashes(tmp_path / "log", directory, monkeypatch, number)
        if crashed and again_at is not None:
            crashes(tmp_path / "log", directory, monkeypatch, again_at)
        if directory.exists():
            seen = rows_in(*visible(directory))
            assert seen == wanted[: len(seen)]

        sink, copying = file_sink(directory, rotate_bytes=1000), file_copying(directory)
        drive(sink, copying, tmp_path / "log", 3)
        sink.close()
        copying.close()

        assert rows_in(*visible(directory)) == wanted, number
        assert sink.change_count == 3
        assert hidden(directory) == [".copies", ".lock", ".position.json"]
        assert copies_in(directory) == ["lock", "state.json"]
        if not crashed:
            break
        number += 1
    assert number > 80
