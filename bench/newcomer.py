"""A newcomer's first start: many tables are there, and nothing of penstock anywhere yet."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar, Self

from bench.copies import ManyTables, await_streaming
from bench.failure import BenchFailed
from bench.live import Idle
from bench.native import Native
from bench.ours import Penstock
from bench.processes import Meter
from bench.workload import Result, Workload

if TYPE_CHECKING:
    from bench.probe import System
    from bench.servers import Pair

_RUN_SECONDS = 1800.0
_ROWS = 100
_SETTLE_SECONDS = 30.0


class FirstStart(Penstock):
    """`penstock run --until-caught-up`, from its start to its end."""

    def __enter__(self) -> Self:
        self.write_file()
        return self

    def make_room(self, table_count: int) -> None:
        """The tables are where they are followed; at the target there is nothing."""
        del table_count
        self._pair.reveal()

    def run(self, table_count: int) -> None:
        """Start, copy everything, follow it up to now, and end."""
        del table_count
        self.start("--until-caught-up")
        assert self._process is not None
        code = self._process.wait(_RUN_SECONDS)
        if code != 0:
            raise BenchFailed(f"penstock: ended with exit code {code}, wanted 0", self._tail())


class NativeStart(Native):
    """A subscription to tables that the target has already."""

    def __enter__(self) -> Self:
        return self

    def run(self, table_count: int) -> None:
        """Subscribe, and wait until every table follows."""
        self.begin_copy()
        await_streaming(self, table_count, _ROWS)


class Newcomer(ManyTables):
    """From the command to its end: init, Spark's start, tables, rows, keys, and the stop."""

    name = "newcomer"
    required = "≤ 1.0 of native's time"
    most_ratio = 1.0
    is_warm = False
    systems: ClassVar = (NativeStart, FirstStart)

    @property
    def title(self) -> str:
        """See Workload."""
        return f"first start with {self.table_count:,} tables of {self.row_count} rows, from nothing to the end"

    def measure(self, pair: Pair, system: System) -> Result:
        """See Workload."""
        return _measure(self.name, pair, system, self.table_count)


class First1000(FirstStart):
    """With fewer tables, to compare with."""

    name = "penstock, 1,000 tables"
    table_count = 1000


class First5000(FirstStart):
    """With many."""

    table_count = 5000


class Newcomers(Workload):
    """Whether a table costs the same among five times as many."""

    name = "newcomer_5000"
    required = "≤ 6 times the time of 1,000 tables"
    copies = True
    is_warm = False
    is_optional = True
    baseline = First1000.name
    systems: ClassVar = (First1000, First5000)

    @property
    def title(self) -> str:
        """See Workload."""
        return f"first start with 1,000 and with 5,000 tables of {_ROWS} rows"

    def measure(self, pair: Pair, system: System) -> Result:
        """See Workload."""
        assert isinstance(system, First1000 | First5000)
        count = self.sizes.count(system.table_count)
        pair.fill(count, _ROWS)
        return _measure(self.name, pair, system, count)

    def figure(self, result: Result) -> str:
        """See Workload."""
        return f"{result.seconds:.1f} s ({1000 * result.seconds * _ROWS / result.count:.1f} ms a table)"

    def ratio(self, native: Result, ours: Result) -> float | None:
        """See Workload."""
        return ours.seconds / native.seconds

    def reached(self, native: Result | None, ours: Result) -> bool | None:
        """See Workload."""
        return None if native is None else ours.seconds <= 6 * native.seconds


class IdleTables(Idle):
    """Nothing is written to any of many tables."""

    name = "idle_tables"
    required = "< 3% of a core"
    copies = True
    is_warm = False
    most_percent = 3.0
    systems: ClassVar = (Penstock,)

    @property
    def _count(self) -> int:
        return self.sizes.count(1000)

    @property
    def title(self) -> str:
        """See Workload."""
        return f"{self._count:,} tables without changes for {self._seconds:.0f} s, CPU in percent of one core"

    def prepare(self, pair: Pair) -> None:
        """See Workload."""
        super().prepare(pair)
        pair.fill(self._count, 1)
        pair.reveal()

    def measure(self, pair: Pair, system: System) -> Result:
        """See Workload."""
        await_streaming(system, self._count, 1)
        time.sleep(_SETTLE_SECONDS)
        return super().measure(pair, system)


def _measure(name: str, pair: Pair, system: System, table_count: int) -> Result:
    assert isinstance(system, FirstStart | NativeStart)
    system.make_room(table_count)
    pair.checkpoint()
    with Meter(pair, system.pid) as meter:
        began = time.perf_counter()
        system.run(table_count)
        seconds = time.perf_counter() - began
    result = Result(name, system.name, table_count * _ROWS, seconds, uses=meter.uses())
    result.figures["copy"] = seconds
    found = pair.compare_copies()
    if found != result.count:
        raise BenchFailed(f"{name}: {found} rows on both sides, wanted {result.count}")
    result.notes.append(f"both sides equal, with keys: {found:,} rows")
    return result
