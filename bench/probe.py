"""When changes become visible at the target."""

from __future__ import annotations

import math
import multiprocessing
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from bench.failure import BenchFailed
from bench.servers import connect, one

if TYPE_CHECKING:
    from multiprocessing.connection import Connection as Pipe

    import psycopg

_POLL_SECONDS = 0.003
_CHECK_SECONDS = 1.0
# A probe that slept longer would be seen in native's figures, whose latency is about one.
_LATENCY_POLL_SECONDS = 0.001


class System(Protocol):
    """What is measured: native replication, or penstock. A context manager that is up inside."""

    name: str

    @property
    def pid(self) -> int | None:
        """The root of its processes, when it has any outside the servers."""

    def hold(self) -> None:
        """Let nothing through."""

    def release(self) -> None:
        """Go on."""

    def check(self) -> None:
        """Raise BenchFailed when it has died or given up."""

    def seconds(self) -> dict[str, float]:
        """Where its time went since it started."""

    def log_written_at(self) -> float | None:
        """When its log last grew since the release, by time.perf_counter, if it has one."""

    def make_room(self, table_count: int) -> None:
        """What must be there before tables can be copied; before the clock starts."""

    def begin_copy(self) -> None:
        """Have the tables that wait at the source copied and followed."""

    def streaming_tables(self) -> int:
        """How many of them are there, with their keys, and follow."""

    def copy_moments(self) -> CopyMoments | None:
        """What it did when, once all are, if it reports that."""


@dataclass(frozen=True)
class CopyMoments:
    """Moments of a copy, by time.time, and what penstock said of it in the end."""

    scheduled: float  # the tables are listed as waiting for a copy
    described: float  # the snapshot is taken and the source's catalog read
    created: float  # the tables are there, empty
    copied: float  # the last table has its rows and its key, and begins to catch up
    reported: str


def await_truth(
    system: System,
    connection: psycopg.Connection[Any],
    query: str,
    values: tuple[Any, ...],
    deadline_seconds: float,
) -> float:
    """Ask until the answer is true; the moment it was, by time.perf_counter.

    Raises:
        BenchFailed: too late, or the system has failed.
    """
    began = checked = time.perf_counter()
    while True:
        answer = one(connection, query, values)
        now = time.perf_counter()
        if answer:
            return now
        if now - checked > _CHECK_SECONDS:
            checked = now
            system.check()
        if now - began > deadline_seconds:
            count = one(connection, "SELECT count(*) FROM orders")
            raise BenchFailed(
                f"{system.name}: not all there after {deadline_seconds:.0f} s;"
                f" {query % tuple(map(repr, values))} is still false, the target has {count} rows"
            )
        time.sleep(_POLL_SECONDS)


class ArrivalProbe:
    """A process that watches the highest id at the target grow, beside everything else."""

    def __init__(self, dsn: str, last_id: int, deadline_seconds: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._last_id = last_id
        self._deadline_seconds = deadline_seconds
        self._ours, theirs = context.Pipe()
        self._process = context.Process(
            target=_watch, args=(dsn, last_id, deadline_seconds, theirs), daemon=True
        )
        self._process.start()
        if not self._ours.poll(30) or self._ours.recv() != "ready":
            self._process.kill()
            raise BenchFailed("the latency probe did not start")

    def arrivals(self, system: System) -> list[tuple[float, int]]:
        """Moments (time.perf_counter) and the highest id seen at each."""
        try:
            # It answers at its deadline, or never.
            while not self._ours.poll(_CHECK_SECONDS):
                system.check()
            seen: list[tuple[float, int]] = self._ours.recv()
        except EOFError:
            raise BenchFailed("the latency probe ended without an answer") from None
        finally:
            self.close()
        if not seen or seen[-1][1] < self._last_id:
            found = seen[-1][1] if seen else 0
            raise BenchFailed(
                f"latency: the target has ids up to {found}, wanted {self._last_id},"
                f" {self._deadline_seconds:.0f} s after the start"
            )
        return seen

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self._ours.close()


def _watch(dsn: str, last_id: int, deadline_seconds: float, pipe: Pipe) -> None:
    """Runs in the probe's process. time.perf_counter is one clock for all processes on Linux."""
    with connect(dsn, "bench probe") as connection, connection.cursor() as cursor:
        deadline = time.perf_counter() + deadline_seconds
        seen: list[tuple[float, int]] = []
        top = 0
        pipe.send("ready")
        while top < last_id and time.perf_counter() < deadline:
            cursor.execute("SELECT max(id) FROM orders")
            row = cursor.fetchone()
            now = time.perf_counter()
            if row is not None and (row[0] or 0) > top:
                top = row[0]
                seen.append((now, top))
            time.sleep(_LATENCY_POLL_SECONDS)
        pipe.send(seen)


def delays(committed: dict[int, float], arrivals: list[tuple[float, int]]) -> list[float]:
    """Seconds from commit to visible, one for each id, sorted."""
    found = []
    ids = sorted(committed)
    place = 0
    for moment, top in arrivals:
        while place < len(ids) and ids[place] <= top:
            found.append(moment - committed[ids[place]])
            place += 1
    return sorted(found)


def percentile(values: list[float], percent: float) -> float:
    """Of values in any order, the one that so many percent of them do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


@dataclass(frozen=True)
class Lag:
    """How far the target was behind at one moment."""

    second: float
    commits: int


def lag_now(source: psycopg.Connection[Any], target: psycopg.Connection[Any], began: float) -> Lag:
    """Commits that are not visible yet; the target is asked first, so never too few."""
    query = "SELECT coalesce(max(id), 0) FROM orders"
    seen = one(target, query)
    written = one(source, query)
    return Lag(time.perf_counter() - began, written - seen)
