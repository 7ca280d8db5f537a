"""`penstock run` between a pair of databases, as a child process that knows nothing of this."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
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
from bench.probe import CopyMoments
from bench.servers import COPIED_SCHEMA, one

if TYPE_CHECKING:
    from bench.servers import Pair

_START_SECONDS = 120.0
# A stop may take 10 s.
_STOP_SECONDS = 15.0
_MARK_BYTES = 1000
_LINE_SECONDS = 60.0
_ROUND_BEGINS = re.compile(r"copying \d+ tables, .* as of ")


class Penstock:
    """One pipeline with one Postgres sink, everything as shipped."""

    name = "penstock"

    def __init__(self, pair: Pair, *, copies: bool = False) -> None:
        self._pair = pair
        self._copies = copies
        self._home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
        self._path = self._home / "bench.yml"
        self._state = self._home / "state"
        self._printed = self._home / "printed"
        self._process: subprocess.Popen[bytes] | None = None
        self._held_pid: int | None = None
        self._log_watch: _LogWatch | None = None

    def __enter__(self) -> Self:
        self.write_file()
        try:
            self.start()
            self._await_start()
        except BaseException:
            self._end()
            raise
        return self

    def write_file(self) -> None:
        """Write the pipeline's file."""
        source: dict[str, Any] = {"url": self._pair.source_dsn, "tables": ["public.orders"]}
        if self._copies:
            source["tables"].append(f"{COPIED_SCHEMA}.*")
        else:
            # Both sides have the same rows before it starts: the stream alone is measured.
            source["snapshot"] = "never"
        document = {
            "name": "bench",
            "state": str(self._state),
            **self.followed(source),
            "sinks": {
                "target": {
                    "kind": "postgres",
                    "url": self._pair.target_dsn,
                    **self.sink_options(),
                }
            },
        }
        self._path.write_text(yaml.safe_dump(document), encoding="utf-8")

    def start(self, *options: str) -> None:
        """Start the command."""
        # JSON: its lines have the time to the millisecond.
        command = [sys.executable, "-m", "penstock", "run", str(self._path)]
        with self._printed.open("ab") as printed:
            # A session of its own: Ctrl-C reaches the benchmark, which then stops this.
            self._process = subprocess.Popen(
                [*command, "--log-format", "json", *options],
                cwd=self._home,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                start_new_session=True,
            )

    def followed(self, source: dict[str, Any]) -> dict[str, Any]:
        """What the file says of sources, given the pair's own."""
        return {"source": source}

    def sink_options(self) -> dict[str, Any]:
        """What is said of the sink besides where it is."""
        return {}

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
        pid = int((self._state / "capture.lock").read_text().split()[0])
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
            self.watch_log()
            with suppress(ProcessLookupError):
                os.kill(self._held_pid, signal.SIGCONT)
        self._held_pid = None

    def watch_log(self) -> None:
        """Note when the log grows."""
        self.log_written_at()
        self._log_watch = _LogWatch(self._state / "log")

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

    def make_room(self, table_count: int) -> None:
        """Nothing: it creates the tables itself, while the clock runs."""

    def begin_copy(self) -> None:
        """The tables match from now on; that it has to notice is in the figure."""
        self._pair.reveal()

    def streaming_tables(self) -> int:
        """How many tables flow with the others, by penstock's own table at the target."""
        return int(
            one(
                self._pair.target,
                "SELECT count(*) FROM penstock.tables WHERE schema_name = %s AND state = 'streaming'",
                (COPIED_SCHEMA,),
            )
        )

    def copy_moments(self) -> CopyMoments:
        """From its log lines, and from its table at the target."""
        row = self._pair.target.execute(
            "SELECT extract(epoch FROM min(snapshot_at))::float8,"
            " extract(epoch FROM max(copied_at))::float8"
            " FROM penstock.tables WHERE schema_name = %s",
            (COPIED_SCHEMA,),
        ).fetchone()
        assert row is not None
        described, copied = row
        # A round ends after its last table flows: statistics are gathered meanwhile.
        ended = self._await_line("copied ", copied)
        # The warm-up's table, too, was scheduled and copied.
        scheduled = [at for at, text in self._lines() if text.endswith(" to be copied")]
        # "copying 3 tables, 1.2 MB, as of 0/1A2B3C"; how far it is, it reports otherwise.
        created = [at for at, text in self._lines() if _ROUND_BEGINS.match(text)]
        return CopyMoments(
            scheduled=max(at for at in scheduled if at <= described),
            described=described,
            created=max(at for at in created if at <= copied),
            copied=copied,
            reported=ended,
        )

    def _await_line(self, beginning: str, after: float) -> str:
        """What it said, once it says it."""
        deadline = time.monotonic() + _LINE_SECONDS
        while True:
            for at, text in self._lines():
                # Its lines cut the microseconds off.
                if at >= after - 0.001 and text.startswith(beginning):
                    return text
            self.check()
            if time.monotonic() > deadline:
                raise BenchFailed(
                    f"penstock: no line {beginning!r} {_LINE_SECONDS:.0f} s after the copy",
                    self._tail(),
                )
            time.sleep(0.05)

    def _lines(self) -> list[tuple[float, str]]:
        """Its log lines: when, by time.time, and what."""
        lines = []
        for line in self._printed.read_text(errors="replace").splitlines():
            # Not everything printed is a line of its log.
            with suppress(ValueError, KeyError, TypeError):
                reported = json.loads(line)
                lines.append(
                    (dt.datetime.fromisoformat(reported["at"]).timestamp(), reported["message"])
                )
        return lines

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
        """Poll a hundred times a second."""
        size = self._size()
        while not self._ended.wait(0.01):
            found = self._size()
            if found > size + _MARK_BYTES:
                self._grown_at = time.perf_counter()
            size = found

    def stop(self) -> float:
        """Stop polling; when it was."""
        self._ended.set()
        self.join()
        return self._grown_at

    def _size(self) -> int:
        total = 0
        with suppress(FileNotFoundError):  # it is read once more when penstock is gone
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
