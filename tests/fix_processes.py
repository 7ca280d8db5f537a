"""The processes that a command has started, as /proc shows them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def children_by_parent() -> dict[int, list[int]]:
    """Every process of the machine, by its parent."""
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                # The name in brackets may hold anything; the parent is the second field behind it.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            if fields[0] != "Z":
                found.setdefault(int(fields[1]), []).append(int(entry.name))
    return found


def tree_of(pid: int) -> list[int]:
    """A process and all that descend from it, parents first."""
    by_parent = children_by_parent()
    found = [pid]
    for each in found:
        found += by_parent.get(each, [])
    return found


def command_line(pid: int) -> list[str]:
    """What a process was started with; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def jvms_of(pid: int) -> list[int]:
    """The JVMs below a process that run Spark; not the one that only puts its command together."""
    lines = {each: command_line(each) for each in tree_of(pid)}
    return [
        each
        for each, line in lines.items()
        if "org.apache.spark.deploy.SparkSubmit" in line
        and "org.apache.spark.launcher.Main" not in line
        and line[0].endswith("java")
    ]


def is_running(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def described(pids: Iterable[int]) -> str:
    """What processes are, what they do and which signals they have not taken: to explain a failure."""
    return "\n".join(_describe(pid) for pid in dict.fromkeys(pids))


def _describe(pid: int) -> str:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return f"{pid} has ended"
    wanted = ("PPid", "State", "Threads", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt")
    status = [" ".join(line.split()) for line in lines if line.partition(":")[0] in wanted]
    return f"{pid} {', '.join(status)}: {' '.join(command_line(pid))[:300]}"


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
