"""Changes as they come: how far behind the target is, and what it costs to wait for them."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from bench.failure import BenchFailed
from bench.probe import ArrivalProbe, Lag, await_truth, delays, lag_now, percentile
from bench.processes import PENSTOCK, Meter
from bench.servers import connect, one
from bench.workload import Result, Workload, growth

if TYPE_CHECKING:
    from bench.probe import System
    from bench.servers import Pair

LATENCY_RATE = 50
_MOST_P50_MS, _MOST_P99_MS = 150.0, 500.0
_LEAST_STEADY_RATE = 10_000
_MOST_IDLE_PERCENT = 2.0


class Latency(Workload):
    """Small transactions now and then: from the return of COMMIT until another session sees it."""

    name = "latency"
    required = "p50 ≤ 150 ms, p99 ≤ 500 ms; aim at 20 ms"

    @property
    def seconds(self) -> float:
        """How long it writes."""
        return self.sizes.duration(20, 4)

    @property
    def title(self) -> str:
        """See Workload."""
        return (
            f"{LATENCY_RATE} single-row transactions a second for {self.seconds:.0f} s,"
            " commit to visible"
        )

    def measure(self, pair: Pair, system: System) -> Result:
        """See Workload."""
        count = round(self.seconds * LATENCY_RATE)
        before = system.seconds()
        probe = ArrivalProbe(pair.target_dsn, count, self.seconds + 60)
        try:
            with Meter(pair, system.pid) as meter:
                began = time.perf_counter()
                committed = self.write(pair, count)
                arrivals = probe.arrivals(system)
                seconds = time.perf_counter() - began
        finally:
            probe.close()
        found = [delay * 1000 for delay in delays(committed, arrivals)]
        result = Result(self.name, system.name, count, seconds, uses=meter.uses())
        result.parts = growth(before, system.seconds())
        for name, percent in (("p50", 50), ("p95", 95), ("p99", 99), ("max", 100)):
            result.figures[name] = percentile(found, percent)
        result.notes.append(f"both sides equal: {pair.compare():,} rows")
        return result

    def write(self, pair: Pair, count: int, first: int = 1) -> dict[int, float]:
        """Write rows at the rate; when each was committed, by time.perf_counter."""
        committed: dict[int, float] = {}
        with connect(pair.source_dsn, "bench writer") as writer:
            began = time.perf_counter()
            for number in range(count):
                time.sleep(max(0.0, began + number / LATENCY_RATE - time.perf_counter()))
                key = first + number
                writer.execute("INSERT INTO orders SELECT * FROM bench_rows(%s, %s)", (key, key))
                committed[key] = time.perf_counter()
        return committed

    def figure(self, result: Result) -> str:
        """See Workload."""
        reported = [f"{name} {result.figures[name]:.1f}" for name in ("p50", "p95", "p99", "max")]
        return ", ".join(reported) + " ms"

    def reached(self, native: Result | None, ours: Result) -> bool | None:
        """See Workload."""
        del native
        return ours.figures["p50"] <= _MOST_P50_MS and ours.figures["p99"] <= _MOST_P99_MS


class Steady(Workload):
    """Many small transactions, for a while: the target must keep up."""

    name = "steady"
    required = "≥ 10,000 transactions/s with flat lag"

    @property
    def _seconds(self) -> float:
        return self.sizes.duration(30, 6)

    @property
    def preloaded(self) -> int:
        """See Workload."""
        return self.sizes.count(100_000, 1000)

    @property
    def title(self) -> str:
        """See Workload."""
        return (
            f"{self.sizes.rate:,.0f} transactions a second for {self._seconds:.0f} s,"
            " 1 update + 1 insert each"
        )

    def measure(self, pair: Pair, system: System) -> Result:
        """See Workload."""
        pair.checkpoint()
        before = system.seconds()
        with Meter(pair, system.pid) as meter:
            began = time.perf_counter()
            writer = _SteadyWriter(pair, self.sizes.rate, self._seconds, self.preloaded)
            samples = self._sample(pair, system, writer, began)
            writing = writer.finish()
            last_id = one(pair.source, "SELECT max(id) FROM orders")
            ended = await_truth(
                system,
                pair.target,
                "SELECT EXISTS (SELECT FROM orders WHERE id = %s)",
                (last_id,),
                120,
            )
        result = Result(
            self.name, system.name, last_id - self.preloaded, writing, uses=meter.uses()
        )
        result.parts = growth(before, system.seconds())
        result.figures = _lag_figures(samples, result.per_second)
        result.figures["drain"] = max(0.0, ended - began - writing)
        reported = ", ".join(f"{lag.second:.0f} s: {lag.commits:,}" for lag in samples)
        result.notes.append(f"commits not yet visible, second by second: {reported}")
        result.notes.append(f"both sides equal: {pair.compare():,} rows")
        return result

    def _sample(self, pair: Pair, system: System, writer: _SteadyWriter, began: float) -> list[Lag]:
        samples: list[Lag] = []
        for second in range(1, int(self._seconds) + 1):
            # A little before the last moment: afterwards the writer may have ended.
            moment = began + min(second, self._seconds - 0.05)
            time.sleep(max(0.0, moment - time.perf_counter()))
            writer.raise_if_failed()
            system.check()
            samples.append(lag_now(pair.source, pair.target, began))
        return samples

    def figure(self, result: Result) -> str:
        """See Workload."""
        lags = [f"{result.figures[f'lag {third}']:,.0f}" for third in (1, 2, 3)]
        moments = [f"{result.figures[f'second {third}']:.0f}" for third in (1, 2, 3)]
        flat = "flat" if result.figures["flat"] else "growing"
        return (
            f"{result.per_second:,.0f} transactions/s; lag {flat}: {', '.join(lags)} commits"
            f" after {', '.join(moments)} s; drained in {result.figures['drain']:.2f} s"
        )

    def reached(self, native: Result | None, ours: Result) -> bool | None:
        """See Workload."""
        del native
        # The writer keeps time by sleeping, and may end a moment short of the rate.
        return ours.per_second >= 0.98 * _LEAST_STEADY_RATE and bool(ours.figures["flat"])


class _SteadyWriter(threading.Thread):
    """Runs the procedure in a session of its own."""

    def __init__(self, pair: Pair, rate: float, seconds: float, known: int) -> None:
        super().__init__(name="steady writer", daemon=True)
        self._pair = pair
        self._arguments = (rate, seconds, known)
        self._failure: Exception | None = None
        self._seconds = 0.0
        self.start()

    def run(self) -> None:
        """Write; keep what went wrong for the main thread."""
        try:
            with connect(self._pair.source_dsn, "bench writer") as connection:
                connection.execute("SET synchronous_commit = off")
                began = time.perf_counter()
                connection.execute("CALL bench_steady(%s, %s, %s)", self._arguments)
                self._seconds = time.perf_counter() - began
        except Exception as failure:  # noqa: BLE001
            self._failure = failure

    def raise_if_failed(self) -> None:
        """Raise what ended the writer."""
        if self._failure is not None:
            raise BenchFailed(f"steady: the writer failed: {self._failure}")

    def finish(self) -> float:
        """Wait for the end; how long it wrote."""
        self.join(120)
        self.raise_if_failed()
        if self.is_alive():
            raise BenchFailed("steady: the writer does not end")
        return self._seconds


def _lag_figures(samples: list[Lag], rate: float) -> dict[str, float]:
    """The lag at each third, and whether it stayed the same from the second third to the last."""
    third = max(1, len(samples) // 3)
    middle = [lag.commits for lag in samples[third : 2 * third]] or [0]
    last = [lag.commits for lag in samples[2 * third :]] or [0]
    before, after = sum(middle) / len(middle), sum(last) / len(last)
    # Batches make it go up and down: a tenth of a second's worth is noise.
    figures = {"flat": float(after <= 1.1 * before + 0.1 * rate)}
    for number, lag in enumerate((samples[third - 1], samples[2 * third - 1], samples[-1]), 1):
        figures[f"lag {number}"], figures[f"second {number}"] = lag.commits, lag.second
    return figures


class Idle(Workload):
    """Nothing is written: what waiting costs."""

    name = "idle"
    required = "< 2% of a core"
    most_percent = _MOST_IDLE_PERCENT

    @property
    def _seconds(self) -> float:
        return self.sizes.duration(30, 8)

    @property
    def title(self) -> str:
        """See Workload."""
        return f"no changes for {self._seconds:.0f} s, CPU in percent of one core"

    def measure(self, pair: Pair, system: System) -> Result:
        """See Workload."""
        time.sleep(5)  # what the warm-up stirred up must settle
        with Meter(pair, system.pid, sample_seconds=1.0) as meter:
            began = time.perf_counter()
            time.sleep(self._seconds)
            seconds = time.perf_counter() - began
        system.check()
        result = Result(self.name, system.name, 1, seconds, uses=meter.uses())
        servers = ("walsender", "logical replication", "penstock")
        for use in result.uses:
            key = "own" if use.group == PENSTOCK else "servers"
            if key == "own" or use.label.startswith(servers):
                percent = 100 * use.cpu_seconds / seconds
                result.figures[key] = result.figures.get(key, 0.0) + percent
        return result

    def figure(self, result: Result) -> str:
        """See Workload."""
        servers = f"{result.figures.get('servers', 0.0):.2f}% in the servers' processes for it"
        if "own" not in result.figures:
            return servers
        return f"{result.figures['own']:.2f}%, and {servers}"

    def reached(self, native: Result | None, ours: Result) -> bool | None:
        """See Workload."""
        del native
        return ours.figures["own"] < self.most_percent
