"""CPU seconds and peak memory of every process that takes part, sampled while a workload runs."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil

from bench.servers import connect

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import psycopg

    from bench.servers import Pair

SOURCE, TARGET, PENSTOCK, BESIDE = "source", "target", "penstock", "beside"

_SAMPLE_SECONDS = 0.25
# A process of a server that ended before the server was asked who it is.
_NAMELESS = "other"
# Those that ended before they were sampled at all.
_UNSEEN = "short-lived, between two samples"
# More processes alike than these are shown as one line.
_MOST_ALIKE = 6
# Fewer in a half of the time show nothing of whether memory grows.
_LEAST_SAMPLES = 2
_NAMES = (
    "SELECT pid, CASE WHEN backend_type = 'client backend' THEN application_name"
    " ELSE backend_type END FROM pg_stat_activity"
)


@dataclass(frozen=True)
class ProcessUse:
    """What one process used."""

    group: str  # source, target (the servers), penstock, or what is beside them
    label: str
    cpu_seconds: float
    peak_bytes: int  # 0: not known
    # At most, in the first and in the second half of the time in which it did something.
    halves: tuple[int, int] | None = None


@dataclass
class _Track:
    process: psutil.Process
    group: str
    label: str
    first_cpu: float
    last_cpu: float
    peak_bytes: int = 0
    busy_bytes: list[int] = field(default_factory=list)

    @property
    def cpu_seconds(self) -> float:
        """What it used since the block began."""
        return self.last_cpu - self.first_cpu

    @property
    def halves(self) -> tuple[int, int] | None:
        """See ProcessUse."""
        middle = len(self.busy_bytes) // 2
        if middle < _LEAST_SAMPLES:
            return None
        return max(self.busy_bytes[:middle]), max(self.busy_bytes[middle:])


@dataclass
class Meter:
    """Samples the servers of a pair and a process tree until its block ends, and single processes by their names."""

    pair: Pair
    root_pid: int | None
    sample_seconds: float = _SAMPLE_SECONDS
    beside: Mapping[str, int] = field(default_factory=dict)
    _tracks: dict[int, _Track] = field(default_factory=dict)
    _ended_before: dict[str, float] = field(default_factory=dict)
    _unseen: dict[str, float] = field(default_factory=dict)
    _connections: dict[str, psycopg.Connection[Any]] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _open: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        servers = self.pair.servers
        for group, server in ((SOURCE, servers.source), (TARGET, servers.target)):
            connection = connect(server.dsn(), "bench meter")
            self._connections[group] = self._open.enter_context(connection)
        self._sample(first=True)
        self._name()
        self._ended_before = self._ended_cpu()
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if reason[0] is None:
            self._sample()
            self._name()
            self._find_unseen()
        self._open.close()

    def uses(self) -> list[ProcessUse]:
        """What each process used, those alike numbered; after the block."""
        found: list[ProcessUse] = []
        by_label: dict[tuple[str, str], list[_Track]] = {}
        for track in self._tracks.values():
            by_label.setdefault((track.group, track.label), []).append(track)
        for (group, label), tracks in by_label.items():
            if len(tracks) > _MOST_ALIKE:
                cpu = sum(track.cpu_seconds for track in tracks)
                peak = max(track.peak_bytes for track in tracks)
                found.append(ProcessUse(group, f"{label}, {len(tracks)} of them", cpu, peak))
                continue
            for number, track in enumerate(tracks, 1):
                name = label if len(tracks) == 1 else f"{label} {number}"
                found.append(
                    ProcessUse(group, name, track.cpu_seconds, track.peak_bytes, track.halves)
                )
        for group, cpu in self._unseen.items():
            found.append(ProcessUse(group, _UNSEEN, cpu, 0))
        groups = (SOURCE, TARGET, PENSTOCK, BESIDE)
        return sorted(found, key=lambda use: (groups.index(use.group), -use.cpu_seconds))

    def _run(self) -> None:
        while not self._stop.wait(self.sample_seconds):
            self._sample()
            if any(track.label == _NAMELESS for track in self._tracks.values()):
                self._name()

    def _ended_cpu(self) -> dict[str, float]:
        """CPU of all processes of each server that have ended, as its postmaster has it."""
        found = {}
        for group, pid in self._roots():
            if group != PENSTOCK:
                times = psutil.Process(pid).cpu_times()
                found[group] = times.children_user + times.children_system
        return found

    def _find_unseen(self) -> None:
        """What processes used that ended before they were sampled, or after they last were."""
        for group, cpu in self._ended_cpu().items():
            seen = sum(
                track.last_cpu
                for track in self._tracks.values()
                if track.group == group and not track.process.is_running()
            )
            self._unseen[group] = max(0.0, cpu - self._ended_before[group] - seen)

    def _roots(self) -> Iterator[tuple[str, int]]:
        servers = self.pair.servers
        for group, pid in (
            (SOURCE, servers.source.pid),
            (TARGET, servers.target.pid),
            (PENSTOCK, self.root_pid),
        ):
            if pid is not None:
                yield group, pid

    def _sample(self, *, first: bool = False) -> None:
        for group, pid in self._roots():
            try:
                root = psutil.Process(pid)
                family = [root, *root.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
            for process in family:
                try:
                    self._measure(group, process, first=first)
                except (psutil.NoSuchProcess, psutil.ZombieProcess):
                    continue
        for label, pid in self.beside.items():
            self._measure(BESIDE, psutil.Process(pid), first=first, label=label)

    def _measure(
        self, group: str, process: psutil.Process, *, first: bool, label: str = _NAMELESS
    ) -> None:
        with process.oneshot():
            times = process.cpu_times()
            cpu = times.user + times.system
            track = self._tracks.get(process.pid)
            if track is None or track.process != process:
                label = _label_of(process) if group == PENSTOCK else label
                # What was there before the block began is not charged for its past.
                track = _Track(process, group, label, cpu if first else 0.0, cpu)
                self._tracks[process.pid] = track
            elif group == PENSTOCK and track.label == "python":
                track.label = _label_of(process)  # it had not yet become what it is
            size = process.memory_info().rss
            if cpu > track.last_cpu:
                track.busy_bytes.append(size)
            track.last_cpu = cpu
            track.peak_bytes = max(track.peak_bytes, size)
        if group == PENSTOCK:
            track.peak_bytes = max(track.peak_bytes, _high_water_bytes(process.pid))

    def _name(self) -> None:
        for group, connection in self._connections.items():
            for pid, label in connection.execute(_NAMES):
                track = self._tracks.get(pid)
                if track is not None and label:
                    track.label = label
            root = self.pair.servers.source if group == SOURCE else self.pair.servers.target
            if root.pid in self._tracks:
                self._tracks[root.pid].label = "postmaster"


def _label_of(process: psutil.Process) -> str:
    """The part of penstock that a process is."""
    command = " ".join(process.cmdline())
    if process.name() == "java":
        return "JVM"
    if "penstock.run.capture_process" in command:
        return "capture"
    if "penstock.spark.worker_daemon" in command:
        parent = process.parent()
        started = parent is not None and parent.name() == "java"
        return "worker daemon" if started else "Python worker"
    if "penstock run" in command:
        return "driver"
    return "python" if "python" in process.name() else process.name()


def _high_water_bytes(pid: int) -> int:
    """The most memory a process ever had; a peak between two samples would be missed otherwise."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return 0
