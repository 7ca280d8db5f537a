"""One very large transaction: it must arrive whole, in memory that does not grow with it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from bench.failure import BenchFailed
from bench.processes import PENSTOCK, Meter, ProcessUse
from bench.servers import connect, one
from bench.workload import Result, Workload, growth

if TYPE_CHECKING:
    from bench.probe import System
    from bench.servers import Pair

_PROBES = 1000
_PROBE_SECONDS = 0.1
_CHECK_SECONDS = 1.0
_MOST_CAPTURE_BYTES = 300_000_000
_MOST_WORKER_BYTES = 600_000_000


class Big(Workload):
    """INSERT ... SELECT of millions of rows, followed while it is written."""

    name = "big"
    required = "whole; capture < 300 MB, each Python worker < 600 MB"

    @property
    def count(self) -> int:
        """How many rows."""
        return self.sizes.count(5_000_000, _PROBES)

    @property
    def title(self) -> str:
        """See Workload."""
        return f"one transaction of {self.count:,} rows"

    def measure(self, pair: Pair, system: System) -> Result:
        """See Workload."""
        pair.checkpoint()
        before = system.seconds()
        with Meter(pair, system.pid) as meter:
            began = time.perf_counter()
            writer = _BigWriter(pair, self.count)
            ended, probe_count = self._await_whole(pair, system, writer)
        writer.join()
        result = Result(self.name, system.name, self.count, ended - began, uses=meter.uses())
        result.parts = growth(before, system.seconds())
        result.figures["write"] = writer.committed_at - began
        result.figures["after"] = max(0.0, ended - writer.committed_at)
        capture, workers = _peaks(result.uses)
        if capture:
            result.figures["capture"] = capture / 1e6
            result.figures["worker"] = workers / 1e6
        row_count = pair.compare()
        if row_count != self.count:
            raise BenchFailed(f"big: {row_count} rows on both sides, wanted {self.count}")
        result.notes.append(
            f"seen at the target, looked at {probe_count} times: 0, then {row_count:,} rows;"
            " both sides equal"
        )
        return result

    def _await_whole(self, pair: Pair, system: System, writer: _BigWriter) -> tuple[float, int]:
        """Poll rows all over the table until they are there: all at once, or it is torn.

        Not count(*): it would read every row not yet committed, again and again, and take a good part
        of a core. It is asked once, when the first row is seen.
        """
        ids = [1 + place * (self.count - 1) // (_PROBES - 1) for place in range(_PROBES)]
        deadline = time.perf_counter() + 120 + self.count / 5000
        checked = 0.0
        probe_count = 0
        while True:
            seen = one(pair.target, "SELECT count(*) FROM orders WHERE id = ANY(%s)", (ids,))
            now = time.perf_counter()
            probe_count += 1
            if seen:
                whole = one(pair.target, "SELECT count(*) FROM orders")
                if seen != _PROBES or whole != self.count:
                    raise BenchFailed(
                        f"{system.name}: the transaction was torn; {seen} of {_PROBES} rows seen,"
                        f" then {whole} of {self.count}"
                    )
                return now, probe_count
            if now - checked > _CHECK_SECONDS:
                checked = now
                system.check()
                writer.raise_if_failed()
            if now > deadline:
                raise BenchFailed(f"{system.name}: nothing of {self.count:,} rows in time")
            time.sleep(_PROBE_SECONDS)

    def figure(self, result: Result) -> str:
        """See Workload."""
        reported = (
            f"visible {result.figures['after']:.1f} s after COMMIT"
            f" (written in {result.figures['write']:.1f} s)"
        )
        if "capture" in result.figures:
            reported += (
                f"; whole; capture {result.figures['capture']:.0f} MB,"
                f" largest Python worker {result.figures['worker']:.0f} MB"
            )
        return reported

    def reached(self, native: Result | None, ours: Result) -> bool | None:
        """See Workload."""
        del native
        capture, worker = _peaks(ours.uses)
        return 0 < capture < _MOST_CAPTURE_BYTES and 0 < worker < _MOST_WORKER_BYTES


class _BigWriter(threading.Thread):
    """Writes the transaction in a session of its own."""

    def __init__(self, pair: Pair, count: int) -> None:
        super().__init__(name="big writer", daemon=True)
        self._pair = pair
        self._count = count
        self._failure: Exception | None = None
        self.committed_at = 0.0
        self.start()

    def run(self) -> None:
        """Write; keep what went wrong for the main thread."""
        try:
            with connect(self._pair.source_dsn, "bench writer") as connection:
                connection.execute(
                    "INSERT INTO orders SELECT * FROM bench_rows(1, %s)", (self._count,)
                )
                self.committed_at = time.perf_counter()
        except Exception as failure:  # noqa: BLE001
            self._failure = failure

    def raise_if_failed(self) -> None:
        """Raise what ended the writer."""
        if self._failure is not None:
            raise BenchFailed(f"big: the writer failed: {self._failure}")


def _peaks(uses: list[ProcessUse]) -> tuple[int, int]:
    """The most memory of capture, and of the largest Python worker."""
    ours = [use for use in uses if use.group == PENSTOCK]
    capture = [use.peak_bytes for use in ours if use.label == "capture"]
    workers = [use.peak_bytes for use in ours if use.label.startswith("Python worker")]
    return max(capture, default=0), max(workers, default=0)
