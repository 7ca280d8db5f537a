"""Many sources that do nothing: what it costs to follow them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar, Self

from psycopg import sql

from bench.failure import BenchFailed
from bench.ours import Penstock
from bench.processes import PENSTOCK, Meter
from bench.servers import connect, drop_database, one
from bench.workload import Result, Workload

if TYPE_CHECKING:
    from bench.probe import System
    from bench.servers import Pair

_SOURCES = 50
_START_SECONDS = 240.0
_SETTLE_SECONDS = 30.0
_MOST_PERCENT = 5.0
_CONNECTED = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'penstock %%'"


class PenstockOfMany(Penstock):
    """One pipeline that follows the pair's database and many others beside it, on the same server."""

    def __init__(self, pair: Pair, *, copies: bool = False) -> None:
        super().__init__(pair, copies=copies)
        self._names = [f"{pair.name}_{number}" for number in range(1, _SOURCES)]

    def __enter__(self) -> Self:
        server = self._pair.servers.source
        for number, name in enumerate(self._names, start=1):
            with connect(server.dsn()) as connection:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
            with connect(server.dsn(name)) as connection:
                connection.execute(f"CREATE SCHEMA s{number}")
                connection.execute(f"CREATE TABLE s{number}.t (id int PRIMARY KEY, v text)")
        return super().__enter__()

    def __exit__(self, failure: object, *rest: object) -> None:
        super().__exit__(failure, *rest)
        if failure is None:
            with connect(self._pair.servers.source.dsn()) as connection:
                for name in self._names:
                    drop_database(connection, name)

    def followed(self, source: dict[str, Any]) -> dict[str, Any]:
        """See Penstock."""
        dsn = self._pair.servers.source.dsn
        others = {
            f"s{number}": {**source, "url": dsn(name), "tables": [f"s{number}.*"]}
            for number, name in enumerate(self._names, start=1)
        }
        return {"sources": {"s0": source, **others}}

    def _report(self, part: str) -> dict[str, Any]:
        return super()._report(f"s0/{part}")

    def _await_start(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        for number in range(_SOURCES):
            while not (
                super()._report(f"s{number}/sinks/target").get("delivered_lsn")
                and super()._report(f"s{number}/capture").get("connected")
            ):
                self.check()
                if time.monotonic() > deadline:
                    raise BenchFailed(f"penstock: source s{number} is not followed", self._tail())
                time.sleep(0.05)


class IdleSources(Workload):
    """Nothing is written at any of many sources."""

    name = "idle_sources"
    required = f"< {_MOST_PERCENT:.0f}% of a core"
    systems: ClassVar = (PenstockOfMany,)

    @property
    def _seconds(self) -> float:
        return self.sizes.duration(60, 20)

    @property
    def title(self) -> str:
        """See Workload."""
        return (
            f"{_SOURCES} sources without changes for {self._seconds:.0f} s,"
            " CPU in percent of one core"
        )

    def measure(self, pair: Pair, system: System) -> Result:
        """See Workload."""
        time.sleep(_SETTLE_SECONDS)  # what the start and the warm-up stirred up must settle
        with Meter(pair, system.pid, sample_seconds=1.0) as meter:
            began = time.perf_counter()
            time.sleep(self._seconds)
            seconds = time.perf_counter() - began
        system.check()
        result = Result(self.name, system.name, _SOURCES, seconds, uses=meter.uses())
        for use in result.uses:
            percent = 100 * use.cpu_seconds / seconds
            result.figures[use.group] = result.figures.get(use.group, 0.0) + percent
        own = [use for use in result.uses if use.group == PENSTOCK]
        result.figures["memory"] = sum(use.peak_bytes for use in own) / 1e6
        result.figures["at source"] = float(one(pair.source, _CONNECTED))
        result.figures["at target"] = float(one(pair.target, _CONNECTED))
        return result

    def figure(self, result: Result) -> str:
        """See Workload."""
        reported = result.figures
        return (
            f"{reported[PENSTOCK]:.2f}%, and {reported['source']:.2f}% at the source's and"
            f" {reported['target']:.2f}% at the target's server; {reported['memory']:,.0f} MB;"
            f" {reported['at source']:.0f} connections at the source, {reported['at target']:.0f} at the target"
        )

    def reached(self, native: Result | None, ours: Result) -> bool | None:
        """See Workload."""
        del native
        return ours.figures[PENSTOCK] < _MOST_PERCENT
