"""Backlogs: the system is up and warm, and held back while the changes are written."""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import TYPE_CHECKING

from bench.probe import await_truth
from bench.processes import Meter
from bench.servers import connect, one
from bench.workload import Result, Workload, growth

if TYPE_CHECKING:
    from bench.probe import System
    from bench.servers import Connection, Pair


class Backlog(Workload):
    """The clock runs from the release of the system until the last change is visible."""

    unit = "rows"
    per_transaction: int
    least_ratio: float

    @property
    @abstractmethod
    def count(self) -> int:
        """How many changes."""

    @property
    @abstractmethod
    def last_id(self) -> int:
        """The row that the very last change inserts."""

    @abstractmethod
    def write(self, connection: Connection) -> None:
        """Write the backlog."""

    def measure(self, pair: Pair, system: System) -> Result:
        """See Workload."""
        system.hold()
        decoded_before = _decoded(pair)
        with connect(pair.source_dsn, "bench writer") as writer:
            # How fast it is written is not the question.
            writer.execute("SET synchronous_commit = off")
            self.write(writer)
        pair.checkpoint()
        before = system.seconds()
        ahead = (_decoded(pair) - decoded_before) * self.per_transaction / self.count
        with Meter(pair, system.pid) as meter:
            began = time.perf_counter()
            system.release()
            ended = await_truth(
                system,
                pair.target,
                "SELECT EXISTS (SELECT FROM orders WHERE id = %s)",
                (self.last_id,),
                60 + self.count / 2000,
            )
            logged_at = system.log_written_at()
        result = Result(self.name, system.name, self.count, ended - began, uses=meter.uses())
        result.parts = growth(before, system.seconds())
        if logged_at is not None:
            result.parts["capture"] = max(0.0, logged_at - began)
        if ahead:
            result.notes.append(
                f"{ahead:.1%} of the backlog had reached the buffers of its socket before the clock"
                " started"
            )
        row_count = pair.compare(self.compared(system), self.chosen(system))
        result.notes.append(f"both sides equal: {row_count:,} rows")
        return result

    def figure(self, result: Result) -> str:
        """See Workload."""
        return f"{result.per_second:,.0f} {self.unit}/s"

    def ratio(self, native: Result, ours: Result) -> float | None:
        """See Workload."""
        return ours.per_second / native.per_second

    def reached(self, native: Result | None, ours: Result) -> bool | None:
        """See Workload."""
        if native is None:
            return None
        return ours.per_second / native.per_second >= self.least_ratio


class Inserts(Backlog):
    """Large transactions of inserts into an empty table."""

    name = "inserts"
    required = "≥ 0.5 of native, aim at 1.0"
    per_transaction = 1000
    least_ratio = 0.5

    @property
    def count(self) -> int:
        """See Backlog."""
        return self.sizes.count(1_000_000, 1000)

    @property
    def title(self) -> str:
        """See Workload."""
        return f"backlog of {self.count:,} inserts, 1,000 a transaction"

    @property
    def last_id(self) -> int:
        """See Backlog."""
        return self.count

    def write(self, connection: Connection) -> None:
        """See Backlog."""
        connection.execute("CALL bench_inserts(%s, 1000)", (self.count,))


class Mixed(Backlog):
    """Small transactions of all kinds of changes."""

    name = "mixed"
    unit = "changes"
    required = "≥ 0.6 of native, aim at 1.5"
    per_transaction = 10
    least_ratio = 0.6

    @property
    def preloaded(self) -> int:
        """See Workload."""
        return self.sizes.count(1_000_000)

    @property
    def count(self) -> int:
        """See Backlog."""
        return self.sizes.count(500_000, 10)

    @property
    def title(self) -> str:
        """See Workload."""
        return (
            f"backlog of {self.count:,} changes on {self.preloaded:,} rows:"
            " 40% update, 40% insert, 20% delete, 10 a transaction"
        )

    @property
    def last_id(self) -> int:
        """See Backlog."""
        return self.preloaded + self.count * 4 // 10

    def write(self, connection: Connection) -> None:
        """See Backlog."""
        connection.execute("CALL bench_mixed(%s, %s)", (self.count, self.preloaded))


def _decoded(pair: Pair) -> int:
    """How many transactions the server has decoded for the slot, sent or waiting in a socket."""
    return int(
        one(
            pair.source,
            "SELECT coalesce(sum(total_txns), 0) FROM pg_stat_replication_slots s"
            " JOIN pg_replication_slots r USING (slot_name) WHERE r.database = current_database()",
        )
    )
