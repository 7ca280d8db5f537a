"""How long messages of a stream are let arrive: not at all, a moment, longer in a backlog."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.source import stream
from penstock.source.stream import _Pace
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> Callable[[_Pace], float]:
    slept: list[float] = []
    monkeypatch.setattr(stream.time, "sleep", slept.append)

    def seconds(pace: _Pace) -> float:
        slept.clear()
        assert pace.wait() is bool(slept)
        return sum(slept)

    return seconds


def test_few_messages_are_taken_at_once(waited: Callable[[_Pace], float]):
    pace = _Pace()

    for count in (0, 1, 15):
        pace.note(count)

        assert waited(pace) == 0


def test_dense_stream_is_let_arrive_for_a_moment_and_no_longer(waited: Callable[[_Pace], float]):
    pace = _Pace()

    # 10,000 transactions a second, of four messages each.
    for count in (16, 40, 40, 40, 40):
        pace.note(count)

        assert waited(pace) == timing().stream_gather_seconds


def test_backlog_is_let_arrive_longer_up_to_a_limit(waited: Callable[[_Pace], float]):
    pace = _Pace()
    found = []
    pace.note(10_000)
    for _ in range(8):
        found.append(waited(pace))
        pace.note(round(300_000 * found[-1]))

    assert found == [0.001, 0.002, 0.004, 0.008, 0.016, 0.016, 0.016, 0.016]


def test_full_buffer_is_not_waited_for(waited: Callable[[_Pace], float]):
    """Where no more arrives however long it is waited, the server waits for us."""
    pace = _Pace()
    longest = 0.0
    for _ in range(20):
        pace.note(250)
        longest = max(longest, waited(pace))

    assert longest <= 0.004


def test_end_of_a_backlog_ends_the_waiting(waited: Callable[[_Pace], float]):
    pace = _Pace()
    for _ in range(8):
        pace.note(10_000)
        waited(pace)

    pace.note(3)

    assert waited(pace) == 0
