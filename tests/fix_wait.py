"""wait_until: how tests wait. Never a bare sleep."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

Answer = TypeVar("Answer")

_LONGEST_PAUSE_SECONDS = 0.05


def wait_until(
    condition: Callable[[], Answer],
    deadline_seconds: float = 30,
    what: str = "the condition",
    pause_seconds: float = 0.02,
) -> Answer:
    """Ask until the answer is true, and return it; fail the test after the deadline.

    A question that is work for a server gets a longer pause, or it slows down what is waited for. The
    longer it takes, the longer are the pauses, up to a twentieth of a second.

    An exception of the condition is not swallowed: a server that may be down while waiting is
    part of the condition's own question.
    """
    deadline = time.monotonic() + deadline_seconds
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            pytest.fail(
                f"waited {deadline_seconds:g} s for {what}; the last answer was {answer!r}",
                pytrace=True,
            )
        time.sleep(pause_seconds)
        pause_seconds = max(pause_seconds, min(pause_seconds * 1.1, _LONGEST_PAUSE_SECONDS))
