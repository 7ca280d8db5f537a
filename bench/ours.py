"""`penstock run` between a pair of databases, as a child process that knows nothing of this."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil
import yaml

from bench.failure import BenchFailed, last_lines

if TYPE_CHECKING:
    from bench.servers import Pair

_START_SECONDS = 120.0
# A stop may take 10 s.
_STOP_SECONDS = 15.0
_MARK_BYTES = 1000


class Penstock:
    """One pipeline with one Postgres sink, everything as shipped."""

    name = "penstock"

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
        self._state = self._home / "state"
        self._printed = self._home / "printed"
        self._process: subprocess.Popen[bytes] | None = None
        self._held_pid: int | None = None
        self._log_watch: _LogWatch | None = None

    def __enter__(self) -> Self:
        document = {
            "name": "bench",
            "state": str(self._state),
            "source": {"url": self._pair.source_dsn, "tables": ["public.orders"]},
            "sinks": {"target": {"kind": "postgres", "url": self._pair.target_dsn}},
        }
        path = self._home / "bench.yml"
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        try:
            with self._printed.open("ab") as printed:
                # A session of its own: Ctrl-C reaches the benchmark, which then stops this.
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "penstock", "run", str(path)],
                    cwd=self._home,
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=printed,
                    start_new_session=True,
                )
            self._await_start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, failure: object, *rest: object) -> None:
        printed = self._tail()
        began = time.monotonic()
        code = self._end()
        if isinstance(failure, type) and not issubclass(failure, BenchFailed | KeyboardInterrupt):
            print(printed, file=sys.stderr)
        if failure is None and code != 0:
            took = time.monotonic() - began
            raise BenchFailed(
                f"penstock: SIGTERM ended it with {code} after {took:.1f} s, wanted 0", printed
            )

    @property
    def pid(self) -> int | None:
        """The process that everything of penstock's descends from."""
        return None if self._process is None else self._process.pid

    def hold(self) -> None:
        """Freeze capture: nothing reaches the log, and the server keeps what is written."""
        pid = int((self._state / "capture.lock").read_text())
        os.kill(pid, signal.SIGSTOP)
        self._held_pid = pid
        deadline = time.monotonic() + 5
        while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
            if time.monotonic() > deadline:
                raise BenchFailed("penstock: capture still runs 5 s after SIGSTOP")
            time.sleep(0.01)

    def release(self) -> None:
        """Let capture go on."""
        if self._held_pid is not None:
            self._log_watch = _LogWatch(self._state / "log")
            with suppress(ProcessLookupError):
                os.kill(self._held_pid, signal.SIGCONT)
        self._held_pid = None

    def check(self) -> None:
        """Raise when it has ended, or reports an error or a stopped table."""
        if self._process is None or self._process.poll() is not None:
            code = None if self._process is None else self._process.returncode
            raise BenchFailed(f"penstock: ended with exit code {code}", self._tail())
        report = self._report("sinks/target")
        failed = {
            name: table["error"]
            for name, table in report.get("tables", {}).items()
            if table.get("state") == "failed"
        }
        error = report.get("error") or self._report("capture").get("error") or failed
        if error:
            raise BenchFailed(f"penstock: {error}", self._tail())

    def seconds(self) -> dict[str, float]:
        """Where its time went since it started, by its own report."""
        # Reports are a quarter of a second behind at most.
        time.sleep(0.6)
        return dict(self._report("sinks/target").get("seconds", {}))

    def log_written_at(self) -> float | None:
        """When capture last wrote changes to the log since it was released, by time.perf_counter."""
        return None if self._log_watch is None else self._log_watch.stop()

    def _await_start(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not (
            self._report("sinks/target").get("delivered_lsn")
            and self._report("capture").get("connected")
        ):
            self.check()
            if time.monotonic() > deadline:
                raise BenchFailed(
                    f"penstock: not streaming {_START_SECONDS:.0f} s after its start", self._tail()
                )
            time.sleep(0.05)

    def _report(self, part: str) -> dict[str, Any]:
        try:
            return dict(json.loads((self._state / f"{part}.json").read_text()))
        except (OSError, ValueError):
            return {}

    def _tail(self) -> str:
        parts = []
        for path in (self._printed, self._state / "spark.log"):
            with suppress(OSError):
                parts.append(f"-- {path.name} --\n{last_lines(path.read_text(errors='replace'))}")
        return "\n".join(parts)

    def _end(self) -> int | None:
        """Stop it and leave nothing behind; its exit code."""
        try:
            self.release()
            return None if self._process is None else _terminate(self._process)
        finally:
            self.log_written_at()
            shutil.rmtree(self._home, ignore_errors=True)


class _LogWatch(threading.Thread):
    """Notes when the log last grew by more than a mark, which a reader of nothing writes too."""

    def __init__(self, directory: Path) -> None:
        super().__init__(name="log watch", daemon=True)
        self._directory = directory
        self._ended = threading.Event()
        self._grown_at = time.perf_counter()
        self.start()

    def run(self) -> None:
        """Look a hundred times a second."""
        size = self._size()
        while not self._ended.wait(0.01):
            found = self._size()
            if found > size + _MARK_BYTES:
                self._grown_at = time.perf_counter()
            size = found

    def stop(self) -> float:
        """Stop looking; when it was."""
        self._ended.set()
        self.join()
        return self._grown_at

    def _size(self) -> int:
        total = 0
        for entry in os.scandir(self._directory):
            with suppress(FileNotFoundError):
                total += entry.stat().st_size
        return total


def _terminate(process: subprocess.Popen[bytes]) -> int | None:
    """SIGTERM, and what still runs after a while is killed, its children too."""
    with suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
        for left in [*family, psutil.Process(process.pid)] if process.poll() is None else family:
            with suppress(psutil.NoSuchProcess):
                left.kill()
    return process.wait(_STOP_SECONDS)
