"""CPU and memory of this run's processes, by what they are: run, capture, spark, worker."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from dataclasses import dataclass

import psutil

from penstock.timing import timing


@dataclass
class Usage:
    """What the processes of one role use together; CPU time also of those that have ended."""

    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    count: int = 0


class Processes:
    """This process and its children. From any thread."""

    def __init__(self) -> None:
        self._known: list[tuple[str, psutil.Process]] = []
        self._listed_at = float("-inf")
        self._usage: dict[str, Usage] = {}
        self._measured_at = float("-inf")
        self._seen: dict[tuple[int, float], float] = {}  # CPU time by pid and start
        self._cpu_seconds: defaultdict[str, float] = defaultdict(float)
        self._lock = threading.Lock()

    def usage(self) -> dict[str, Usage]:
        """By role; as it was a moment ago, for several ask in a row."""
        with self._lock:
            now = time.monotonic()
            if now - self._measured_at > timing().process_usage_seconds:
                self._usage, self._measured_at = self._measured(now), now
            return self._usage

    def _measured(self, now: float) -> dict[str, Usage]:
        # A list costs more the more processes the machine has, whosever they are.
        if now - self._listed_at > timing().process_list_seconds:
            self._known, self._listed_at = _listed(), now
        found: defaultdict[str, Usage] = defaultdict(Usage)
        alive: dict[tuple[int, float], float] = {}
        for role, process in self._known:
            try:
                with process.oneshot():
                    times, memory = process.cpu_times(), process.memory_info().rss
            except psutil.Error:
                self._listed_at = float(
                    "-inf"
                )  # it has ended, and another may have taken its place
                continue
            used = found[role]
            used.memory_bytes += memory
            used.count += 1
            # Added up by what each has used since it was last seen: a counter must not fall when one ends.
            key = (process.pid, process.create_time())
            alive[key] = times.user + times.system
            self._cpu_seconds[role] += max(0.0, alive[key] - self._seen.get(key, 0.0))
        self._seen = alive
        for role, seconds in self._cpu_seconds.items():
            found[role].cpu_seconds = seconds
        return dict(found)


def _listed() -> list[tuple[str, psutil.Process]]:
    own = psutil.Process(os.getpid())
    found = [("run", own)]
    try:
        children = own.children(recursive=True)
    except psutil.Error:
        children = []
    for child in children:
        try:
            found.append((_role(child.cmdline()), child))
        except psutil.Error:
            continue
    return found


def _role(words: list[str]) -> str:
    line = " ".join(words)
    if "penstock.run.capture_process" in line:
        return "capture"
    return "spark" if words and "java" in os.path.basename(words[0]) else "worker"  # noqa: PTH119
