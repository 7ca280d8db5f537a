"""Several sources into one table, beside one source that writes as much."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any, ClassVar, Self

from psycopg import sql

from bench.backlogs import Inserts
from bench.failure import BenchFailed
from bench.ours import Penstock
from bench.probe import await_truth
from bench.processes import Meter
from bench.servers import connect, drop_database, make_orders, one
from bench.workload import Result

if TYPE_CHECKING:
    from bench.probe import System
    from bench.servers import Pair

_SOURCES = 3

# Whoever reads the rows of the pair's own source finds them in the view.
_MAKE_SHARED = """
ALTER TABLE orders RENAME TO orders_all;
ALTER TABLE orders_all
    ADD COLUMN sid text NOT NULL,
    DROP CONSTRAINT orders_pkey,
    ADD PRIMARY KEY (sid, id);
CREATE VIEW orders AS
    SELECT id, customer_id, status, total, note, created_at, meta FROM orders_all
    WHERE sid = 's0';
"""


class SharedTable(Penstock):
    """Sources whose rows go into one table, distinguished by a column."""

    source_count: ClassVar[int]

    def __init__(self, pair: Pair, *, copies: bool = False) -> None:
        super().__init__(pair, copies=copies)
        names = [f"{pair.name}_{number}" for number in range(1, self.source_count)]
        self._others = {f"s{number}": name for number, name in enumerate(names, start=1)}
        self._held: set[int] = set()

    def __enter__(self) -> Self:
        self._pair.target.execute(_MAKE_SHARED)
        server = self._pair.servers.source
        for name in self._others.values():
            with connect(server.dsn()) as connection:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
            with connect(server.dsn(name)) as connection:
                make_orders(connection)
        return super().__enter__()

    def __exit__(self, failure: object, *rest: object) -> None:
        super().__exit__(failure, *rest)
        if failure is None:
            with connect(self._pair.servers.source.dsn()) as connection:
                for name in self._others.values():
                    drop_database(connection, name)

    @property
    def dsns(self) -> dict[str, str]:
        """Where each source is."""
        dsn = self._pair.servers.source.dsn
        others = {source_id: dsn(name) for source_id, name in self._others.items()}
        return {"s0": self._pair.source_dsn, **others}

    def followed(self, source: dict[str, Any]) -> dict[str, Any]:
        """See Penstock."""
        return {"sources": {each: {**source, "url": dsn} for each, dsn in self.dsns.items()}}

    def sink_options(self) -> dict[str, Any]:
        """See Penstock."""
        return {
            "source_id_column": "sid",
            "tables": {"public.orders": {"target": "public.orders_all"}},
        }

    def hold(self) -> None:
        """See System."""
        self._held = {
            int((self._state / source_id / "capture.lock").read_text().split()[0])
            for source_id in self.dsns
        }
        for pid in self._held:
            os.kill(pid, signal.SIGSTOP)

    def release(self) -> None:
        """See System."""
        for pid in self._held:
            os.kill(pid, signal.SIGCONT)
        self._held = set()

    def _report(self, part: str) -> dict[str, Any]:
        return super()._report(f"s0/{part}")

    def _await_start(self) -> None:
        for source_id in self.dsns:
            deadline = time.monotonic() + 120
            while not super()._report(f"{source_id}/capture").get("connected"):
                self.check()
                if time.monotonic() > deadline:
                    raise BenchFailed(f"penstock: source {source_id} is not followed", self._tail())
                time.sleep(0.05)
        super()._await_start()


class One(SharedTable):
    """What several are measured against."""

    name = "penstock, one source"
    source_count = 1


class Three(SharedTable):
    """As many rows, from three sources."""

    source_count = _SOURCES


class Together(Inserts):
    """A backlog of inserts, at one source or shared by several."""

    name = "together"
    required = "≥ 0.8 of one source's rate"
    least_ratio = 0.8
    baseline = One.name
    systems = (One, Three)

    @property
    def title(self) -> str:
        """See Workload."""
        return f"backlog of {self.count:,} inserts at {_SOURCES} sources into one table, beside one"

    def measure(self, pair: Pair, system: System) -> Result:
        """See Workload."""
        assert isinstance(system, SharedTable)
        share = self.count // system.source_count // 1000 * 1000
        system.hold()
        for dsn in system.dsns.values():
            with connect(dsn, "bench writer") as writer:
                writer.execute("SET synchronous_commit = off")
                writer.execute("CALL bench_inserts(%s, 1000)", (share,))
        pair.checkpoint()
        with Meter(pair, system.pid) as meter:
            began = time.perf_counter()
            system.release()
            ended = await_truth(
                system,
                pair.target,
                "SELECT count(*) = %s FROM orders_all WHERE id = %s",
                (system.source_count, share),
                60 + self.count / 2000,
            )
        count = share * system.source_count
        result = Result(self.name, system.name, count, ended - began, uses=meter.uses())
        found = one(pair.target, "SELECT count(*) FROM orders_all")
        if found != count:
            raise BenchFailed(f"{system.name}: the target has {found} rows, wanted {count}")
        pair.compare()
        result.notes.append(f"{found:,} rows of {system.source_count} sources, none too many")
        return result
