"""Copies: rows that are there before anything is followed, in one large table or in many small ones."""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import TYPE_CHECKING

from psycopg import sql

from bench.failure import BenchFailed
from bench.probe import await_truth
from bench.processes import PENSTOCK, Meter
from bench.servers import COPIED_SCHEMA
from bench.workload import Result, Workload

if TYPE_CHECKING:
    from bench.probe import CopyMoments, System
    from bench.processes import ProcessUse
    from bench.servers import Pair

# Not as often as a row is polled: among a thousand tables a poll reads a thousand rows.
_POLL_SECONDS = 0.02
_CHECK_SECONDS = 1.0
# A row that only the stream can bring.
_STREAMED_ID = -1
# What a task keeps of the rows it copies it keeps all along; that it has grown a little is the
# allocator's doing.
_MOST_GROWTH = 1.1


class Copy(Workload):
    """The clock runs from the request until every table is whole, has its key and streams.

    Before it starts the system is up and another table has gone through it.
    """

    copies = True
    most_ratio: float

    @property
    @abstractmethod
    def table_count(self) -> int:
        """How many tables."""

    @property
    @abstractmethod
    def row_count(self) -> int:
        """How many rows in each."""

    @abstractmethod
    def _each(self, seconds: float) -> str:
        """What that is a second, or for one."""

    def prepare(self, pair: Pair) -> None:
        """See Workload."""
        super().prepare(pair)
        pair.fill(self.table_count, self.row_count)

    def measure(self, pair: Pair, system: System) -> Result:
        """See Workload."""
        system.make_room(self.table_count)
        pair.checkpoint()
        with Meter(pair, system.pid) as meter:
            began_at = time.time()
            began = time.perf_counter()
            system.begin_copy()
            ended = await_streaming(system, self.table_count, self.row_count)
        row_count = self.table_count * self.row_count
        result = Result(self.name, system.name, row_count, ended - began, uses=meter.uses())
        result.figures["copy"] = result.seconds
        moments = system.copy_moments()
        if moments is not None:
            result.figures["copy"] = moments.copied - moments.scheduled
            result.parts = _parts(moments, began_at, result.seconds)
            result.notes.append(f"in its own words: {moments.reported}")
        if halves := _largest_worker(result.uses):
            result.figures["first half"], result.figures["second half"] = halves
        self._see_stream(pair, system)
        found = pair.compare_copies(self.compared(system))
        if found != row_count + self.table_count:
            raise BenchFailed(
                f"{self.name}: {found} rows on both sides, wanted {row_count + self.table_count}"
            )
        result.notes.append(
            f"both sides equal, with keys: {row_count:,} rows copied, and one more in each table,"
            " written afterwards"
        )
        return result

    def _see_stream(self, pair: Pair, system: System) -> None:
        """A row in every table that is written now must arrive, too; `compare_copies` reads all."""
        pair.source.execute("CALL bench_touch(%s, %s)", (COPIED_SCHEMA, _STREAMED_ID))
        last = sql.Identifier(COPIED_SCHEMA, f"orders_{self.table_count}").as_string(None)
        query = f"SELECT EXISTS (SELECT FROM {last} WHERE id = %s)"
        await_truth(system, pair.target, query, (_STREAMED_ID,), 120)

    def figure(self, result: Result) -> str:
        """See Workload."""
        seconds = result.figures["copy"]
        reported = f"{seconds:.2f} s ({self._each(seconds)})"
        if result.parts:
            reported += f"; {result.seconds:.2f} s with scheduling and catching up"
        if "first half" in result.figures:
            first, second = result.figures["first half"], result.figures["second half"]
            reported += (
                f"; largest Python worker {first / 1e6:.0f} MB in the first half,"
                f" {second / 1e6:.0f} MB in the second"
            )
        return reported

    def ratio(self, native: Result, ours: Result) -> float | None:
        """See Workload."""
        return ours.figures["copy"] / native.figures["copy"]

    def reached(self, native: Result | None, ours: Result) -> bool | None:
        """See Workload."""
        if native is None:
            return None
        return ours.figures["copy"] / native.figures["copy"] <= self.most_ratio


class BigTable(Copy):
    """One table, and nothing else going on."""

    name = "copy"
    required = "≤ 1.0 of native's time, aim at 0.7; memory of a task flat"
    most_ratio = 1.0

    @property
    def table_count(self) -> int:
        """See Copy."""
        return 1

    @property
    def row_count(self) -> int:
        """See Copy."""
        return self.sizes.count(2_000_000)

    def _each(self, seconds: float) -> str:
        return f"{self.row_count / seconds:,.0f} rows/s"

    @property
    def title(self) -> str:
        """See Workload."""
        return f"copy of a table of {self.row_count:,} rows"

    def reached(self, native: Result | None, ours: Result) -> bool | None:
        """See Workload."""
        is_quick = super().reached(native, ours)
        if not is_quick or "first half" not in ours.figures:
            # Too short a copy does not show whether memory grows.
            return False if is_quick is False else None
        return ours.figures["second half"] <= _MOST_GROWTH * ours.figures["first half"]


class ManyTables(Copy):
    """What a table costs, however small."""

    name = "tables"
    required = "≤ 3 times native's time"
    most_ratio = 3.0

    @property
    def table_count(self) -> int:
        """See Copy."""
        return self.sizes.count(1000)

    @property
    def row_count(self) -> int:
        """See Copy."""
        return 100

    def _each(self, seconds: float) -> str:
        return f"{1000 * seconds / self.table_count:.1f} ms a table"

    @property
    def title(self) -> str:
        """See Workload."""
        return f"copy of {self.table_count:,} tables of {self.row_count} rows each"


def await_streaming(system: System, table_count: int, row_count: int) -> float:
    """The moment, by time.perf_counter, at which all tables stream."""
    began = checked = time.perf_counter()
    deadline = began + 120 + table_count * (0.2 + row_count / 5000)
    while True:
        count = system.streaming_tables()
        now = time.perf_counter()
        if count == table_count:
            return now
        if now - checked > _CHECK_SECONDS:
            checked = now
            system.check()
        if now > deadline:
            raise BenchFailed(
                f"{system.name}: {count} of {table_count} tables stream"
                f" {now - began:.0f} s after the start"
            )
        time.sleep(_POLL_SECONDS)


def _parts(moments: CopyMoments, began_at: float, seconds: float) -> dict[str, float]:
    """One after the other; those of the copy itself lie between the first and the last."""
    return {
        "enrol": moments.scheduled - began_at,
        "describe": moments.described - moments.scheduled,
        "create": moments.created - moments.described,
        "transfer": moments.copied - moments.created,
        "join": began_at + seconds - moments.copied,
    }


def _largest_worker(uses: list[ProcessUse]) -> tuple[int, int] | None:
    """The most memory of a Python worker, in the first and in the second half of its work."""
    halves = [
        use.halves
        for use in uses
        if use.group == PENSTOCK and use.label.startswith("Python worker") and use.halves
    ]
    return max(halves, key=max, default=None)
