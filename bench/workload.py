"""What a workload is, what it gives, and what all have in common."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from bench.probe import await_truth

if TYPE_CHECKING:
    from bench.probe import System
    from bench.processes import ProcessUse
    from bench.servers import Pair

_WARM_TRANSACTIONS = 20
_WARM_ROWS = 20


@dataclass(frozen=True)
class Sizes:
    """How much of each workload is run; 1.0 is what the figures are quoted for."""

    scale: float = 1.0
    rate: float = 10_000.0  # transactions a second of the steady workload

    def count(self, full: int, step: int = 1) -> int:
        """So many of something, in whole steps."""
        return max(step, round(full * self.scale / step) * step)

    def duration(self, full: float, least: float) -> float:
        """So many seconds of something."""
        return max(least, full * self.scale)


@dataclass
class Result:
    """One workload on one system."""

    workload: str
    system: str
    count: int  # rows, changes or transactions
    seconds: float
    figures: dict[str, float] = field(default_factory=dict)
    uses: list[ProcessUse] = field(default_factory=list)
    # Of penstock: seconds by its own report.
    parts: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        """How many a second."""
        return self.count / self.seconds


class Workload(ABC):
    """What is written at the source, and what is measured meanwhile or afterwards."""

    name: ClassVar[str]
    required: ClassVar[str]
    copies: ClassVar[bool] = False  # whether rows are copied before they are followed
    is_warm: ClassVar[bool] = True  # whether rows have gone through the system before
    is_optional: ClassVar[bool] = False  # whether it is run only when it is named
    baseline: ClassVar[str] = "native"  # the system that ours is compared with
    # What is measured, where it is not native replication and penstock.
    systems: ClassVar[tuple[type[Any], ...]] = ()

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes

    @property
    @abstractmethod
    def title(self) -> str:
        """What it does, with its sizes."""

    @property
    def preloaded(self) -> int:
        """How many rows both sides have before anything is followed."""
        return 0

    def chosen(self, system: System) -> str:
        """What a row of the source must be to arrive, as SQL; "" is nothing."""
        del system
        return ""

    def compared(self, system: System) -> tuple[str, ...]:
        """The columns that are to be equal on both sides in the end; () is all."""
        del system
        return ()

    def prepare(self, pair: Pair) -> None:
        """Fill fresh databases, before any system is up."""
        pair.preload(self.preloaded)

    @abstractmethod
    def measure(self, pair: Pair, system: System) -> Result:
        """Run it on a system that is up and warm, and see that both sides are equal in the end.

        Raises:
            BenchFailed: it did not work; there is no figure.
        """

    @abstractmethod
    def figure(self, result: Result) -> str:
        """The result in a few words."""

    def ratio(self, native: Result, ours: Result) -> float | None:
        """Ours to native, of what `required` compares; None where that says nothing."""
        del native, ours
        return None

    @abstractmethod
    def reached(self, native: Result | None, ours: Result) -> bool | None:
        """Whether ours is as required; None when it cannot be known."""


def warm_up(pair: Pair, system: System) -> None:
    """Send a few hundred rows through, changed and deleted again; their ids are negative."""
    count = _WARM_TRANSACTIONS * _WARM_ROWS
    for number in range(_WARM_TRANSACTIONS):
        last = -1 - number * _WARM_ROWS
        pair.source.execute(
            "INSERT INTO orders SELECT * FROM bench_rows(%s, %s)", (last - _WARM_ROWS + 1, last)
        )
        time.sleep(0.02)
    seen = "SELECT count(*) = %s FROM orders WHERE id < 0"
    await_truth(system, pair.target, seen, (count,), 120)
    pair.source.execute("UPDATE orders SET customer_id = -1 WHERE id < 0")
    changed = seen + " AND customer_id = -1"
    await_truth(system, pair.target, changed, (count,), 60)
    pair.source.execute("DELETE FROM orders WHERE id < 0")
    await_truth(system, pair.target, seen, (0,), 60)


def growth(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """What was added to each part."""
    return {part: seconds - before.get(part, 0.0) for part, seconds in after.items()}
