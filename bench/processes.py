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
    from collections.abc import Iterator

    import psycopg

    from bench.servers import Pair

SOURCE, TARGET, PENSTOCK = "source", "target", "penstock"

_SAMPLE_SECONDS = 0.25
# A process of a server that ended before the server was asked who it is.
_NAMELESS = "other"
_NAMES = (
    "SELECT pid, CASE WHEN backend_type = 'client backend' THEN application_name"
    " ELSE backend_type END FROM pg_stat_activity"
)


@dataclass(frozen=True)
class ProcessUse:
    """What one process used."""

    group: str  # source, target (the servers) or penstock
    label: str
    cpu_seconds: float
    peak_bytes: int


@dataclass
class _Track:
    process: psutil.Process
    group: str
    label: str
    first_cpu: float
    last_cpu: float
    peak_bytes: int = 0


@dataclass
class Meter:
    """Samples the servers of a pair and a process tree until its block ends."""

    pair: Pair
    root_pid: int | None
    sample_seconds: float = _SAMPLE_SECONDS
    _tracks: dict[int, _Track] = field(default_factory=dict)
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
        self._open.close()

    def uses(self) -> list[ProcessUse]:
        """What each process used, those alike numbered; after the block."""
        found: list[ProcessUse] = []
        by_label: dict[tuple[str, str], list[_Track]] = {}
        for track in self._tracks.values():
            by_label.setdefault((track.group, track.label), []).append(track)
        for (group, label), tracks in by_label.items():
            for number, track in enumerate(tracks, 1):
                name = label if len(tracks) == 1 else f"{label} {number}"
                cpu = track.last_cpu - track.first_cpu
                found.append(ProcessUse(group, name, cpu, track.peak_bytes))
        groups = (SOURCE, TARGET, PENSTOCK)
        return sorted(found, key=lambda use: (groups.index(use.group), -use.cpu_seconds))

    def _run(self) -> None:
        while not self._stop.wait(self.sample_seconds):
            self._sample()
            if any(track.label == _NAMELESS for track in self._tracks.values()):
                self._name()

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

    def _measure(self, group: str, process: psutil.Process, *, first: bool) -> None:
        with process.oneshot():
            times = process.cpu_times()
            cpu = times.user + times.system
            track = self._tracks.get(process.pid)
            if track is None or track.process != process:
                label = _label_of(process) if group == PENSTOCK else _NAMELESS
                # What was there before the block began is not charged for its past.
                track = _Track(process, group, label, cpu if first else 0.0, cpu)
                self._tracks[process.pid] = track
            elif group == PENSTOCK and track.label == "python":
                track.label = _label_of(process)  # it had not yet become what it is
            track.last_cpu = cpu
            track.peak_bytes = max(track.peak_bytes, process.memory_info().rss)
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
