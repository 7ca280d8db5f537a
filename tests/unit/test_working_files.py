"""What the loop reports of working files that other machines do not see: bounded, and read at a bounded price."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.run import delivered
from penstock.run.delivered import WorkingFiles
from penstock.sinks.status import SinkStatus, TableStatus
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Iterator


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(delivered, "time", clock)
    return clock


def test_report_has_copies_of_so_many_tables_the_ones_that_move_first() -> None:
    def read(status: SinkStatus) -> None:
        for number in range(3000):
            status.tables[f"public.waits{number}"] = TableStatus("copying", ranges_total=5)
        status.tables["public.moves"] = TableStatus("copying", ranges_done=1, ranges_total=5)
        status.tables["public.asked"] = TableStatus("copying", ranges_total=5, request="resync")

    files = WorkingFiles(read)

    assert files.refresh()
    copies = files.reported["copies"]
    assert len(copies) == 200
    assert list(copies)[:2] == ["public.asked", "public.moves"]
    assert copies["public.asked"]["request"] == "resync"


def test_working_files_that_take_long_to_read_are_read_less_often(clock: Clock) -> None:
    reads: list[float] = []
    took = 0.0

    def read(status: SinkStatus) -> None:
        reads.append(clock.now)
        clock.now += took

    files = WorkingFiles(read)
    files.refresh()
    clock.now += timing().flow_files_seconds
    took = 3.0
    files.refresh()
    assert len(reads) == 2

    clock.now += 50
    files.refresh()
    assert len(reads) == 2, "that would be more than a twentieth of the flow's time"
    clock.now += 10
    files.refresh()
    assert len(reads) == 3
