"""Copies in small pieces, and what tests ask about them."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.snapshot import ranges

if TYPE_CHECKING:
    from collections.abc import Callable

# The random writer of test_property and the types of test_types are used here as well.
sys.path.append(str(Path(__file__).parent.parent / "pipeline"))


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Ranges of so many pages, each a task of its own: a small table is then copied as a large one is."""

    def use(page_count: int) -> None:
        monkeypatch.setattr(
            "penstock.snapshot.round.cut", partial(ranges.cut, range_bytes=page_count * 8192)
        )
        monkeypatch.setattr(ranges, "_TASK_BYTES", 1)

    return use
