"""Work that is killed at a fault point, and work that hangs in the child of a fork."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from penstock.failpoints import fault_point
from penstock.testing import forked

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_work_is_killed_where_it_passes_the_point_so_often() -> None:
    def work() -> None:
        fault_point("file.after_append")
        fault_point("file.after_append")

    assert forked.was_killed_at("file.after_append", 2, work)
    assert not forked.was_killed_at("file.after_append", 3, work)


def test_work_that_fails_is_a_failure() -> None:
    with pytest.raises(AssertionError, match="raised an exception"):
        forked.was_killed_at("file.after_append", 1, lambda: int("x"))


def test_child_that_hangs_is_killed_and_the_work_done_again(
    tmp_path: Path, use_timing: Callable[..., None]
) -> None:
    use_timing(forked_work_seconds=1)
    seen = tmp_path / "seen"

    def hangs_once() -> None:
        if not seen.exists():
            seen.write_text(str(os.getpid()))
            signal.pause()
        fault_point("file.after_append")

    assert forked.was_killed_at("file.after_append", 1, hangs_once)
    with pytest.raises(ProcessLookupError):
        os.kill(int(seen.read_text()), 0)


def test_child_that_hangs_each_time_is_reported(use_timing: Callable[..., None]) -> None:
    use_timing(forked_work_seconds=0.1)

    with pytest.raises(AssertionError, match="took longer than"):
        forked.was_killed_at("file.after_append", 1, signal.pause)
