"""`penstock run` and its halves: processes and threads are started, watched and stopped here.

penstock run
├── capture …          a few child processes: in each, a thread per source, slot -> log
├── delivery <sink>    one thread per sink: logs of all sources -> Spark jobs -> sink
├── copier <sink>      one thread per sink and source: tables -> Spark jobs -> sink
└── Spark              JVM, and its Python workers
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import PenstockError, ReaderGone, RunError, recognise
from penstock.metrics import NOTHING
from penstock.pipeline import top_of, top_wire_of, wire_of
from penstock.retry import is_temporary
from penstock.run.capture_process import Captures, take_role
from penstock.run.deliveries import Deliveries
from penstock.run.failures import DELIVER, forget_failure, kept_failure
from penstock.run.notify import Notify
from penstock.run.sources import Sources
from penstock.run.sparkwatch import watched_spark
from penstock.run.watched import BOTH, DELIVER_ALONE, watched
from penstock.state.reports import CaptureReport
from penstock.stopping import ends_waits
from penstock.timing import timing

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from penstock.config import PipelineFile
    from penstock.lsn import Lsn
    from penstock.metrics import Recorder
    from penstock.run.flow import Flow
    from penstock.run.start import Started
    from penstock.run.watched import WatchedRun
    from penstock.snapshot.round import RoundProgress
    from penstock.spark.session import Spark

    OnCopying = Callable[[list[RoundProgress]], None]


def run_pipeline(
    pipeline: PipelineFile,
    stop: threading.Event,
    *,
    log_format: str = "text",
    log_level: str = "info",
    until_caught_up: bool = False,
    on_ready: Callable[[Started], None] | None = None,
    on_copying: OnCopying | None = None,
    spark: Spark | None = None,
) -> None:
    """Capture and deliver until stopped, or until caught up.

    Args:
        spark: to run jobs on, not started yet; by default it is made as the pipeline file says.

    Raises:
        PenstockError: what ended it; everything delivered is whole, the rest waits.
    """
    sources = Sources(pipeline, wants_marks=until_caught_up)
    run = _Run(pipeline, sources, stop, on_copying, spark)
    with ExitStack() as stack:
        stack.enter_context(ends_waits(stop))
        stack.enter_context(kept_failure(top_of(pipeline), top_wire_of(pipeline)))
        # Before the sources are started: some may be away for long, and probes ask meanwhile.
        run.watched, run.recorder = stack.enter_context(watched(pipeline, BOTH))
        sources.begin(stop)
        wire = top_wire_of(pipeline)
        if not take_role(stack, partial(wire.hold_delivery, pipeline.sinks), stop):
            return
        # Of a sole source the child holds it.
        if pipeline.is_whole and not take_role(stack, wire.hold_capture, stop):
            return
        captures = Captures(pipeline, log_format, log_level, run.recorder)
        stack.callback(captures.stop)
        run.captures = captures
        run.take_started()
        if on_ready is not None:
            on_ready(run.waiting[0][1])
        run.deliver(until_caught_up=until_caught_up)


def run_deliver(
    pipeline: PipelineFile,
    stop: threading.Event,
    *,
    until_caught_up: bool = False,
    on_copying: OnCopying | None = None,
) -> None:
    """Only the right half, in this process."""
    sources = Sources(pipeline, wants_marks=until_caught_up)
    wire = top_wire_of(pipeline)
    with (
        ends_waits(stop),
        kept_failure(top_of(pipeline), wire, DELIVER),
        watched(pipeline, DELIVER_ALONE) as found,
    ):
        sources.begin(stop)
        run = _Run(pipeline, sources, stop, on_copying)
        run.watched, run.recorder = found
        with ExitStack() as stack:
            if take_role(stack, partial(wire.hold_delivery, pipeline.sinks), stop):
                run.deliver(until_caught_up=until_caught_up)


class _Run:
    """One run, watched from the main thread."""

    def __init__(
        self,
        pipeline: PipelineFile,
        sources: Sources,
        stop: threading.Event,
        on_copying: OnCopying | None,
        spark: Spark | None = None,
    ) -> None:
        self.captures: Captures | None = None
        self.watched: WatchedRun | None = None
        self.recorder: Recorder = NOTHING
        self._notify = Notify()
        self.waiting: list[
            tuple[PipelineFile, Started]
        ] = []  # to be delivered, once Spark is there
        self._pipeline = pipeline
        self._sources = sources
        self._stop = stop
        self._on_copying = on_copying
        self._spark = spark
        self._views = {view.source_id: view for view in pipeline.each()}
        self._check_at = 0.0
        self._behind: list[str] = []  # sources that have not caught up
        self._has_begun = False  # whether a sink was opened
        self._down_since: float | None = None

    def take_started(self) -> None:
        """Have sources followed that have been started; they are delivered soon."""
        for view, started in self._sources.take_started():
            if self.captures is not None:
                self.captures.follow(view, started)
            self.waiting.append((view, started))

    def deliver(self, *, until_caught_up: bool) -> None:
        """Deliver until stopped, or until caught up."""
        pipeline = self._pipeline
        log_path = pipeline.top / "spark.log"
        with watched_spark(
            pipeline.name, pipeline.spark_at_rest, log_path, self._stop, self._spark
        ) as watch:
            watch.on_restart = partial(self.recorder.restart, "spark")
            deliveries = Deliveries(pipeline, watch.spark, self.recorder)
            if self.watched is not None:
                self.watched.flows = partial(_all_flows, deliveries)
            try:
                while not self._stop.wait(timing().supervise_poll_seconds):
                    self._notify.beat()
                    watch.poll()
                    self._poll(deliveries)
                    if until_caught_up and self._has_caught_up(deliveries):
                        break
            finally:
                self._notify.stopping()
                deliveries.stop()
        try:
            deliveries.raise_if_failed()
        except ReaderGone:
            # Ctrl-C ends who reads our stdout, too; what was not read comes again.
            if not self._stop.is_set():
                raise
        if until_caught_up and not self._stop.is_set():
            _raise_if_tables_wait(deliveries)
            for source_id in self._behind:
                self._raise_down(source_id, deliveries)

    def _poll(self, deliveries: Deliveries) -> None:
        self._sources.poll()
        self.take_started()
        for view, started in self.waiting:
            deliveries.take(view, started)
        self.waiting.clear()
        if self.captures is not None:
            for source_id, error in self.captures.errors():
                self._sources.fail(source_id, error)
        deliveries.raise_if_failed()
        if not self._has_begun and deliveries.has_open:
            self._has_begun = True
            self._notify.ready()
            forget_failure(top_wire_of(self._pipeline), DELIVER)
        if self._on_copying is not None:
            self._on_copying(deliveries.progress)

    def _has_caught_up(self, deliveries: Deliveries) -> bool:
        """Whether every source has what it had committed, or is down and is not waited for longer.

        Who cuts over wants to know about a source that does not answer, once the others are there.
        """
        self._behind = behind = [
            source_id
            for source_id, lsn in self._sources.marks().items()
            if not self._is_there(source_id, lsn, deliveries)
        ]
        if not behind:
            return True
        now = time.monotonic()
        if self._pipeline.is_alone or now < self._check_at:
            return False
        self._check_at = now + timing().supervise_late_poll_seconds
        errors = [self._error_of(source_id, deliveries) for source_id in behind]
        if None in errors:
            self._down_since = None
            return False
        if all(error is not None and not is_temporary(error) for error in errors):
            return True
        self._down_since = self._down_since or now
        return now - self._down_since > timing().supervise_down_seconds

    def _is_there(self, source_id: str, lsn: Lsn | None, deliveries: Deliveries) -> bool:
        flows = deliveries.flows.get(source_id, [])
        return bool(flows) and lsn is not None and all(flow.has_caught_up(lsn) for flow in flows)

    def _error_of(self, source_id: str, deliveries: Deliveries) -> PenstockError | None:
        """Why a source stands still."""
        errors = [self._sources.error_of(source_id)]
        errors += [flow.error for flow in deliveries.flows.get(source_id, ())]
        report = wire_of(self._views[source_id]).latest(CaptureReport)
        if report is not None and report.error and self.captures is not None:
            errors.append(recognise(report.error) or RunError(report.error, f"source {source_id}"))
        return next((error for error in errors if error is not None), None)

    def _raise_down(self, source_id: str, deliveries: Deliveries) -> None:
        error = self._error_of(source_id, deliveries)
        if error is not None:
            raise error
        raise RunError("did not catch up", f"source {source_id}", "see penstock status")


def _all_flows(deliveries: Deliveries) -> list[Flow]:
    return [flow for flows in list(deliveries.flows.values()) for flow in list(flows)]


def _raise_if_tables_wait(deliveries: Deliveries) -> None:
    for flows in deliveries.flows.values():
        for flow in flows:
            for table, text in flow.stopped_tables.items():
                known = recognise(text)
                if known is not None:
                    raise known
                raise RunError(f"{table} is stopped", f"sink {flow.name}", "see penstock status")
