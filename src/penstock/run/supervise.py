"""`penstock run` and its halves: processes and threads are started, watched and stopped here.

penstock run
├── capture          child process: slot -> log
├── delivery <sink>  one thread per sink: log -> Spark jobs -> sink
├── copier <sink>    one thread per sink: tables -> Spark jobs -> sink
└── Spark            JVM, and its Python workers
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from penstock.errors import RunError, recognise
from penstock.pipeline import build_copying, build_sinks, state_of
from penstock.run.capture_process import CaptureProcess
from penstock.run.deliver import Delivery
from penstock.run.passages import PassageReader
from penstock.run.signals import take_signals
from penstock.run.start import PositionCheck, Started, start_up
from penstock.snapshot.copier import Copier
from penstock.source.publication import publication_names
from penstock.source.server import emit_mark
from penstock.spark.session import start_session, stop_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from penstock.config import PipelineFile
    from penstock.lsn import Lsn
    from penstock.sinks.sink import Sink
    from penstock.snapshot.round import RoundProgress
    from penstock.table import TableName

    OnCopying = Callable[[list[RoundProgress]], None]

_WATCH_SECONDS = 0.1
# Of the 10 s a stop may take: how long a batch under way may need before it is called off.
_PATIENCE_SECONDS = 6.0


def run_pipeline(
    pipeline: PipelineFile,
    stop: threading.Event,
    *,
    log_format: str = "text",
    log_level: str = "info",
    until_caught_up: bool = False,
    on_ready: Callable[[Started], None] | None = None,
    on_copying: OnCopying | None = None,
) -> None:
    """Capture and deliver until stopped, or until caught up.

    Raises:
        PenstockError: what ended it; everything delivered is whole, the rest waits.
    """
    started = start_up(pipeline, stop)
    if on_ready is not None:
        on_ready(started)
    target_lsn = mark_now(pipeline) if until_caught_up else None
    with state_of(pipeline).lock("deliver"):
        capture = CaptureProcess(pipeline, started, log_format, log_level)
        try:
            _deliver(pipeline, started, stop, capture.watch, target_lsn, on_copying)
        finally:
            capture.stop()


def run_deliver(
    pipeline: PipelineFile,
    stop: threading.Event,
    *,
    until_caught_up: bool = False,
    on_copying: OnCopying | None = None,
) -> None:
    """Only the right half, in this process."""
    started = start_up(pipeline, stop)
    target_lsn = mark_now(pipeline) if until_caught_up else None
    with state_of(pipeline).lock("deliver"):
        _deliver(pipeline, started, stop, lambda: None, target_lsn, on_copying)


def mark_now(pipeline: PipelineFile) -> Lsn:
    """A position that everything committed so far lies before, and that will come down the stream."""
    return emit_mark(pipeline.source.url, "caught up")


def _deliver(
    pipeline: PipelineFile,
    started: Started,
    stop: threading.Event,
    watch_other_half: Callable[[], None],
    target_lsn: Lsn | None,
    on_copying: OnCopying | None,
) -> None:
    session = start_session(pipeline.name, pipeline.spark, pipeline.state / "spark.log")
    # Spark puts its own handler on SIGINT when it starts.
    take_signals(stop)
    inner_stop = threading.Event()
    check = PositionCheck(pipeline, started)
    loops = [
        build_delivery(pipeline, started, sink, session.sparkContext, check, inner_stop)
        for sink in build_sinks(pipeline)
    ]
    copiers = [build_copier(pipeline, loop, session.sparkContext, inner_stop) for loop in loops]
    threads = [*map(LoopThread, loops), *map(LoopThread, copiers)]
    try:
        for thread in threads:
            thread.start()

        def watch() -> None:
            watch_other_half()
            if on_copying is not None:
                on_copying([each for copier in copiers for each in copier.progress])

        _watch(threads, loops, stop, watch, target_lsn)
    finally:
        inner_stop.set()
        _end(threads, session)
    for thread in threads:
        thread.raise_if_failed()
    if target_lsn is not None and not stop.is_set():
        _raise_if_tables_wait(loops)


def build_delivery(
    pipeline: PipelineFile,
    started: Started,
    sink: Sink,
    context: SparkContext,
    check: Callable[[Sink], Lsn],
    stop: threading.Event,
) -> Delivery:
    """The loop that delivers to one sink."""
    rules = pipeline.source.tables

    def follows(table: TableName) -> bool:
        return rules.chooses(table) or table in sink.flowing or table in sink.apart

    names = publication_names(pipeline.name)
    return Delivery(
        context,
        sink,
        started.state,
        check,
        stop,
        passages=PassageReader(started.state.history, follows, names),
        copies_first=pipeline.source.snapshot.copies_first,
    )


def build_copier(
    pipeline: PipelineFile, loop: Delivery, context: SparkContext, stop: threading.Event
) -> Copier:
    """Who copies tables into the sink that a loop delivers to."""
    copying = build_copying(pipeline, loop.name)
    copier = Copier(context, loop.name, copying, pipeline.source, stop, loop.has_news_of_tables)
    loop.on_enrolled = copier.wake
    return copier


class LoopThread(threading.Thread):
    """A loop and how it ended."""

    def __init__(self, loop: Delivery | Copier) -> None:
        super().__init__(name=f"{type(loop).__name__.lower()} {loop.name}", daemon=True)
        self.loop = loop
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Deliver; keep what went wrong for the main thread."""
        try:
            self.loop.run()
        except BaseException as error:  # noqa: BLE001 - handed to the main thread, which raises it
            self._failure = error

    def raise_if_failed(self) -> None:
        """Raise what ended the loop."""
        if self._failure is not None:
            raise self._failure


def _watch(
    threads: list[LoopThread],
    loops: list[Delivery],
    stop: threading.Event,
    watch: Callable[[], None],
    target_lsn: Lsn | None,
) -> None:
    while not stop.wait(_WATCH_SECONDS):
        watch()
        for thread in threads:
            thread.raise_if_failed()
        if target_lsn is not None and all(loop.has_caught_up(target_lsn) for loop in loops):
            return


def _end(threads: list[LoopThread], session: SparkSession) -> None:
    """Let batches under way finish, call off those that take too long, and stop Spark."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        # What is called off has changed nothing: the position has not moved.
        for thread in threads:
            if isinstance(thread.loop, Delivery):
                thread.loop.interrupt()
        session.sparkContext.cancelAllJobs()
        for thread in threads:
            thread.join(2.0)
    stop_session(session)


def _raise_if_tables_wait(loops: list[Delivery]) -> None:
    for loop in loops:
        for table, text in loop.stopped_tables.items():
            known = recognise(text)
            if known is not None:
                raise known
            raise RunError(f"{table} is stopped", f"sink {loop.name}", "see penstock status")
