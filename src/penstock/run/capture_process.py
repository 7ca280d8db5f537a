"""Capture in a process of its own, as a child of `penstock run`.

The pipeline comes as JSON on the first line of stdin: it holds passwords, which a command line or an
environment would show to others. Then stdin stays open for as long as the parent lives; its end is
the order to stop, also when the parent was killed. An error goes to the parent as JSON on stdout.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from penstock.config import pipeline_from_document
from penstock.errors import PenstockError, RunError, error_classes
from penstock.logging import set_up_logging
from penstock.lsn import Lsn
from penstock.pipeline import state_of
from penstock.run.capture import Capture
from penstock.run.membership import MembershipWatch
from penstock.run.retry import BackOff
from penstock.run.start import start_up
from penstock.source.subscription import Subscription

if TYPE_CHECKING:
    from penstock.config import PipelineFile
    from penstock.run.start import Started

_log = logging.getLogger(__name__)


def run_capture(pipeline: PipelineFile, stop: threading.Event) -> None:
    """Only the left half of the pipeline, in this process."""
    started = start_up(pipeline, stop)
    capture_here(pipeline, started.subscription, started.start_lsn, stop)


def capture_here(
    pipeline: PipelineFile, subscription: Subscription, start_lsn: Lsn, stop: threading.Event
) -> None:
    """Capture in this process until stopped."""
    state = state_of(pipeline)
    with state.lock("capture"):
        watch = MembershipWatch(pipeline.source, subscription, state, pipeline.sinks)
        watch.start()
        try:
            Capture(pipeline, state, subscription, start_lsn, stop).run(watch)
        finally:
            watch.stop()


class CaptureProcess:
    """The child, seen from the parent."""

    def __init__(
        self, pipeline: PipelineFile, started: Started, log_format: str, log_level: str
    ) -> None:
        order = {
            "document": pipeline.document,
            "subscription": {
                **asdict(started.subscription),
                "created_lsn": int(started.subscription.created_lsn),
            },
            "start_lsn": int(started.start_lsn),
            "log_format": log_format,
            "log_level": log_level,
        }
        self._order = json.dumps(order).encode() + b"\n"
        self._back_off = BackOff(first_seconds=0.5)
        self._started_at = 0.0
        self._process = self._spawn()

    def _spawn(self) -> subprocess.Popen[bytes]:
        self._started_at = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.run.capture_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        process.stdin.write(self._order)
        process.stdin.flush()
        return process

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def watch(self) -> None:
        """Start the child again if it was killed; raise its error if it ended with one."""
        if self._process.poll() is None:
            return
        if self._process.returncode < 0:
            # Killed from outside, by a person or for want of memory. It left nothing half done.
            if time.monotonic() - self._started_at > 60:
                self._back_off.succeed()
            wait = self._back_off.next_seconds()
            _log.warning(
                "capture was killed by signal %d, starting it again in %.1f s",
                -self._process.returncode,
                wait,
            )
            time.sleep(wait)
            self._process = self._spawn()
            return
        assert self._process.stdout is not None
        told = self._process.stdout.read()
        try:
            code, what, where, do = json.loads(told)
        except ValueError:
            raise RunError(
                f"capture ended with exit code {self._process.returncode}",
                "capture",
                "see the lines above, and start penstock again",
            ) from None
        raise error_classes().get(code, PenstockError)(what, where, do)

    def stop(self, patience_seconds: float = 8.0) -> None:
        """Have the child stop at a consistent point; every point is one, so killing it loses nothing."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _await_parent(stop: threading.Event) -> None:
    sys.stdin.buffer.read()
    stop.set()


def main() -> None:
    """Entry point of the child."""
    order: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    set_up_logging(order["log_format"], order["log_level"])
    stop = threading.Event()
    # Ctrl-C reaches the whole group; the parent decides, and closes our stdin.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threading.Thread(target=_await_parent, args=(stop,), daemon=True).start()
    pipeline = pipeline_from_document(order["document"], "pipeline")
    told = order["subscription"]
    subscription = Subscription(
        name=told["name"],
        publications=tuple(told["publications"]),
        slot=told["slot"],
        generation=told["generation"],
        created_lsn=Lsn(told["created_lsn"]),
    )
    try:
        capture_here(pipeline, subscription, Lsn(order["start_lsn"]), stop)
    except PenstockError as error:
        print(json.dumps([error.code, error.what, error.where, error.do]), flush=True)  # noqa: T201
        os._exit(1)
    # Not through interpreter shutdown: the thread that reads stdin may still hold its lock.
    os._exit(0)


if __name__ == "__main__":
    main()
