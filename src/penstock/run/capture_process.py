"""Capture in processes of its own, children of `penstock run`: a few for all sources, each of which
has a thread in one of them.

The child's first line of stdin is the pipeline as JSON: it holds passwords, which a command line or an
environment would show to others. Each further line is an order to follow one source. Then stdin stays
open for as long as the parent lives; its end is the order to stop, also when the parent was killed. An
error goes to the parent as a line of JSON on stdout that names the source; the others go on.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import subprocess
import sys
import threading
import time
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.config import pipeline_from_document
from penstock.errors import PenstockError, RunError, error_classes
from penstock.logging import set_up_logging, speak_for
from penstock.metrics import NOTHING
from penstock.pipeline import log_of, past_shapes_of, state_of, top_of, top_wire_of, wire_of
from penstock.retry import BackOff, is_temporary
from penstock.run.capture import Capture
from penstock.run.failures import CAPTURE, forget_failure, kept_failure
from penstock.run.membership import MembershipWatch
from penstock.run.notify import notified_by_a_thread
from penstock.run.sinkreports import SinkReports
from penstock.run.sources import Sources
from penstock.run.start import Origin
from penstock.run.watched import CAPTURE_ALONE, watched
from penstock.shelter import start_sheltered
from penstock.state.reports import CaptureReport
from penstock.stopping import ends_waits
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from penstock.config import PipelineFile
    from penstock.metrics import Recorder
    from penstock.run.notify import Notify
    from penstock.run.start import Started

_log = logging.getLogger(__name__)


def run_capture(
    pipeline: PipelineFile,
    stop: threading.Event,
    *,
    log_format: str = "text",
    log_level: str = "info",
) -> None:
    """Only the left half of the pipeline: a sole source in this process, several in children."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(ends_waits(stop))
        stack.enter_context(kept_failure(top_of(pipeline), top_wire_of(pipeline), CAPTURE))
        notify = stack.enter_context(notified_by_a_thread(CaptureSigns(pipeline)))
        _, recorder = stack.enter_context(watched(pipeline, CAPTURE_ALONE))
        sources = Sources(pipeline)
        sources.begin(stop)
        # Of one source it is the source's own, which is locked by the process that captures it.
        if pipeline.is_whole and not take_role(stack, top_wire_of(pipeline).hold_capture, stop):
            return
        if pipeline.is_alone:
            for view, started in sources.take_started():
                capture_here(view, Origin.of(started), stop, notify)
            return
        captures = Captures(pipeline, log_format, log_level, recorder)
        stack.callback(captures.stop)
        notify.ready()
        _supervise(captures, sources, stop)


class CaptureSigns:
    """Whether capture shows signs of life; for the watchdog's thread."""

    def __init__(self, pipeline: PipelineFile) -> None:
        self._pipeline = pipeline
        self._since = time.time()

    def __call__(self) -> bool:
        """Not while a source is streamed, by its last report, and that is old.

        Who waits, for a server or for room in the log, does so at length and in good health.
        """
        limit = timing().watch_stale_seconds
        for view in self._pipeline.each():
            try:
                report = wire_of(view).latest(CaptureReport)
            except PenstockError:
                continue  # where reports are kept cannot be reached, which capture waits out as well
            # One of a predecessor's says nothing of this process.
            if report is None or not report.connected or report.at < self._since:
                continue
            if time.time() - report.at > limit:
                return False
        return True


def _supervise(captures: Captures, sources: Sources, stop: threading.Event) -> None:
    while not stop.wait(timing().capture_process_poll_seconds):
        sources.poll()
        for view, started in sources.take_started():
            captures.follow(view, started)
        for source_id, error in captures.errors():
            sources.fail(source_id, error)


def capture_here(
    pipeline: PipelineFile, origin: Origin, stop: threading.Event, notify: Notify | None = None
) -> None:
    """Capture one source in this thread until stopped."""
    state, wire = state_of(pipeline), wire_of(pipeline)
    past_shapes = past_shapes_of(pipeline, state)
    reports = SinkReports(wire, pipeline.sinks)
    with contextlib.ExitStack() as stack:
        if not take_role(stack, wire.hold_capture, stop):
            return
        watch = MembershipWatch(
            pipeline.source,
            origin.subscription,
            past_shapes,
            wire,
            reports,
            pace=pipeline.paced(1.0),
        )
        watch.start()
        try:
            capture = Capture(
                pipeline, state, log_of(pipeline), wire, past_shapes, reports, origin, stop
            )
            capture.on_connected = partial(_connected, pipeline, notify)
            capture.run(watch)
        finally:
            watch.stop()


def take_role(
    stack: contextlib.ExitStack,
    hold: Callable[[], AbstractContextManager[None]],
    stop: threading.Event,
) -> bool:
    """Be the one who captures, or delivers, until the stack ends; a broker that is away is waited for. Whether nobody
    stopped it."""
    back_off = BackOff()
    while not stop.is_set():
        try:
            stack.enter_context(hold())
        except PenstockError as error:
            if not is_temporary(error):
                raise
            wait = back_off.next_seconds()
            _log.warning("%s (next attempt in %.1f s)", str(error).splitlines()[0], wait)
            stop.wait(wait)
        else:
            return True
    return False


def _connected(pipeline: PipelineFile, notify: Notify | None) -> None:
    forget_failure(top_wire_of(pipeline), CAPTURE)
    if notify is not None:
        notify.ready()


class Captures:
    """The children, seen from the parent. Each source is one child's."""

    def __init__(
        self, pipeline: PipelineFile, log_format: str, log_level: str, recorder: Recorder = NOTHING
    ) -> None:
        head = {
            "document": pipeline.document,
            "log_format": log_format,
            "log_level": log_level,
        }
        count = min(len(pipeline.source_ids), os.cpu_count() or 1)
        processes = [
            CaptureProcess(json.dumps(head), recorder, is_alone=pipeline.is_alone)
            for _ in range(count)
        ]
        self._by_source = {
            source_id: processes[number % count]
            for number, source_id in enumerate(pipeline.sources)
        }
        self._processes = processes

    def follow(self, view: PipelineFile, started: Started) -> None:
        """Have a source followed, from now on or again."""
        order = {
            "source": view.source_id,
            "origin": Origin.of(started).as_json(),
        }
        self._by_source[view.source_id].follow(view.source_id, json.dumps(order))

    def errors(self) -> Iterator[tuple[str, PenstockError]]:
        """Sources that are followed no more, and why. Children that were killed are started again."""
        for process in self._processes:
            yield from process.errors()

    def stop(self) -> None:
        """Have the children stop at a consistent point; every point is one, so killing loses nothing."""
        for process in self._processes:
            process.close_orders()
        deadline = time.monotonic() + timing().capture_process_stop_seconds
        for process in self._processes:
            process.end(deadline)


class CaptureProcess:
    """One child, made when there is something for it to do."""

    def __init__(self, head: str, recorder: Recorder = NOTHING, *, is_alone: bool) -> None:
        self._head = head
        self._recorder = recorder
        self._is_alone = is_alone
        self._orders: dict[str, str] = {}  # by source: what is followed, or should be
        self._back_off = BackOff(timing().process_retry_first_seconds)
        self._started_at = 0.0
        self._start_at = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def follow(self, source_id: str, order: str) -> None:
        """Have a source followed."""
        self._orders[source_id] = order
        if self._process is None:
            self._spawn()
        else:
            self._send(order)

    def errors(self) -> Iterator[tuple[str, PenstockError]]:
        """What the child has reported; start it again if it was killed.

        Raises:
            RunError: it ended by itself, and is not needed by other sources.
        """
        while not self._lines.empty():
            source_id, code, what, where, do = json.loads(self._lines.get())
            self._orders.pop(source_id, None)
            yield source_id, error_classes().get(code, PenstockError)(what, where, do)
        if self._process is not None and self._process.poll() is not None:
            self._take_end(self._process.returncode)
        if self._process is None and self._orders and time.monotonic() >= self._start_at:
            self._spawn()

    def _spawn(self) -> None:
        self._started_at = time.monotonic()
        self._process = start_sheltered(
            [sys.executable, "-m", "penstock.run.capture_process"], stdout=subprocess.PIPE
        )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        for line in (self._head, *self._orders.values()):
            self._send(line)

    def _send(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it was killed, and will get it when it is back
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.put(line)

    def _take_end(self, code: int) -> None:
        self._process = None
        if code >= 0 and self._is_alone:
            raise RunError(
                f"capture ended with exit code {code}",
                "capture",
                "see the lines above, and start penstock again",
            )
        # Killed from outside, by a person or for want of memory. It left nothing half done.
        if time.monotonic() - self._started_at > 60:
            self._back_off.succeed()
        wait = self._back_off.next_seconds()
        self._start_at = time.monotonic() + wait
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        self._recorder.restart("capture")
        _log.warning("capture %s, starting it again in %.1f s", how, wait)

    def close_orders(self) -> None:
        """Have the child stop."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def end(self, deadline: float) -> None:
        """Wait for its end, up to a moment."""
        if self._process is None:
            return
        try:
            self._process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _Followed(threading.Thread):
    """One source, in the child."""

    printing = threading.Lock()

    def __init__(
        self, pipeline: PipelineFile, order: dict[str, Any], stop: threading.Event
    ) -> None:
        self._view = pipeline.of(order["source"])
        super().__init__(name=f"capture {self._view.source_id}", daemon=True)
        self._origin = Origin.from_json(order["origin"])
        self._stop_event = stop

    def run(self) -> None:
        """Capture; report to the parent what ends it."""
        speak_for("" if self._view.is_alone else self._view.source_id)
        try:
            capture_here(self._view, self._origin, self._stop_event)
        except PenstockError as error:
            self._report(error)
        except Exception as error:  # noqa: BLE001 - a defect; the parent decides what it ends
            traceback.print_exc()
            self._report(
                RunError(
                    f"capture ended with {type(error).__name__}",
                    "capture",
                    "see the lines above, and start penstock again",
                )
            )

    def _report(self, error: PenstockError) -> None:
        report = [self._view.source_id, error.code, error.what, error.where, error.do]
        with self.printing:
            print(json.dumps(report), flush=True)  # noqa: T201


def _take_orders(
    pipeline: PipelineFile, followed: dict[str, _Followed], stop: threading.Event
) -> None:
    for line in sys.stdin.buffer:
        order = json.loads(line)
        before = followed.get(order["source"])
        if before is None or not before.is_alive():
            followed[order["source"]] = _Followed(pipeline, order, stop)
            followed[order["source"]].start()
    stop.set()


def main() -> None:
    """Entry point of the child."""
    head: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    set_up_logging(head["log_format"], head["log_level"])
    stop = threading.Event()
    pipeline = pipeline_from_document(head["document"], "pipeline")
    followed: dict[str, _Followed] = {}
    threading.Thread(target=_take_orders, args=(pipeline, followed, stop), daemon=True).start()
    with ends_waits(stop):
        stop.wait()
        for thread in list(followed.values()):
            thread.join()
    # Not through interpreter shutdown: the thread that reads stdin may still hold its lock.
    os._exit(0)


if __name__ == "__main__":
    main()
