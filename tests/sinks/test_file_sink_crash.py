"""Stop a file sink before every single step it takes on disk, and once more while it recovers."""

from __future__ import annotations

import os

import pytest

from fix_event_sinks import (
    Crashed,
    crash_before,
    deliver,
    file_sink,
    hidden,
    rows_in,
    visible,
    wanted_rows,
    write_transactions,
)

STEPS = ("open", "write", "fsync", "fdatasync", "ftruncate", "rename", "replace", "unlink")


def crashes(log, directory, monkeypatch, number):
    """Deliver, and crash before that step; whether there was such a step."""
    sink = file_sink(directory, rotate_bytes=1000)
    with monkeypatch.context() as patch:
        crash_before(patch, STEPS, number)
        try:
            deliver(sink, log)
            sink.close()
        except Crashed:
            return True
        finally:
            sink._sink._forget()
            if sink._sink._lock is not None:
                os.close(sink._sink._lock)
    return False


@pytest.mark.parametrize("again_at", [None, 0, 4, 9])
def test_crash_before_any_step_loses_nothing_and_doubles_nothing(again_at, tmp_path, monkeypatch):
    write_transactions(tmp_path / "log", range(1, 4))
    wanted = wanted_rows(range(1, 4))
    # Nothing is lost by a crash of this process, so nothing need wait for the disk.
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
            assert len(seen) % 3 == 0, "only whole batches are visible"

        sink = file_sink(directory, rotate_bytes=1000)
        deliver(sink, tmp_path / "log")
        sink.close()

        assert rows_in(*visible(directory)) == wanted, number
        assert sink.change_count == 9
        assert hidden(directory) == [".lock", ".position.json"]
        if not crashed:
            break
        number += 1
    assert number > 40
