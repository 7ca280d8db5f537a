"""Other times than those of the run, for one test. Which times there are is in penstock/timing.py."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def use_timing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets single times, in this process alone; a command gets them as PENSTOCK_TIMING."""

    def use(**seconds: float) -> None:
        monkeypatch.setattr("penstock.timing._current", replace(timing(), **seconds))

    return use
