"""The right half: a loop for each sink, a copier for each sink and source, each in a thread."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from penstock.logging import speak_for, speak_of_sink
from penstock.metrics import NOTHING
from penstock.modifiers.chain import chain_for
from penstock.pipeline import (
    build_copying,
    build_shared,
    build_sinks,
    former_parts_of,
    log_of,
    modifiers_of,
    past_shapes_of,
    top_wire_of,
    wire_of,
)
from penstock.run.ddl_transactions import DdlTransactionReader
from penstock.run.deliver import Delivery
from penstock.run.delivered import Requests, WorkingFiles, ask_for_copies, is_shared
from penstock.run.flow import Feed, Flow
from penstock.run.pauses import PauseWatch
from penstock.run.start import PositionCheck
from penstock.snapshot.copier import Copier
from penstock.source.publication import publication_names
from penstock.timing import timing

if TYPE_CHECKING:
    from penstock.config import PipelineFile
    from penstock.metrics import Recorder
    from penstock.run.start import Started
    from penstock.sinks.sink import Sink
    from penstock.snapshot.round import RoundProgress
    from penstock.spark.session import Spark
    from penstock.table import TableName


def build_flow(
    pipeline: PipelineFile,
    started: Started,
    sink: Sink,
    spark: Spark,
    stop: threading.Event,
    recorder: Recorder = NOTHING,
) -> Flow:
    """What flows from one source to one sink."""
    rules = pipeline.source.tables
    modifiers = modifiers_of(pipeline, sink.name)
    chain = None if modifiers is None else modifiers.chain

    def follows(table: TableName) -> bool:
        is_chosen = rules.chooses(table) and not (chain is not None and chain.excludes(table))
        return is_chosen or table in sink.tables.streaming or table in sink.tables.detached

    names = publication_names(pipeline.name)
    is_shared_by_all = is_shared(pipeline, sink.name)
    feed = Feed(
        pipeline.source_id,
        log_of(pipeline),
        wire_of(pipeline),
        DdlTransactionReader(past_shapes_of(pipeline, started.state), follows, names, chain),
        PositionCheck(pipeline, started),
        modifiers=modifiers,
        copies_first=pipeline.source.snapshot.copies_first,
        pace=pipeline.paced(1.0),
        requests=None if is_shared_by_all else _requests_of(pipeline, sink.name),
        files=None if is_shared_by_all else _files_of(pipeline, sink.name),
    )
    run_id = top_wire_of(pipeline).delivering_run(sink.name)
    return Flow(spark, feed, sink, stop, run_id=run_id, recorder=recorder)


def _requests_of(pipeline: PipelineFile, sink: str) -> Requests:
    return Requests(wire_of(pipeline), sink, partial(ask_for_copies, pipeline, sink))


def _files_of(pipeline: PipelineFile, sink: str) -> WorkingFiles:
    kind, place = pipeline.kind_of(sink), pipeline.place_of(sink)
    return WorkingFiles(lambda status: kind.read_status([place], [status]))


def build_copier(pipeline: PipelineFile, flow: Flow, spark: Spark, stop: threading.Event) -> Copier:
    """The copier of a flow: its source's tables into its sink."""
    copier = Copier(
        spark,
        flow.name,
        build_copying(pipeline, flow.name),
        pipeline.source,
        stop,
        flow.tables.poll_soon,
        has_work=flow.tables.are_on_their_way,
        has_notes=flow.tables.have_notes,
        is_alone=pipeline.is_alone,
        modifiers=chain_for(pipeline.modifiers, flow.name),
        former_parts=former_parts_of(pipeline, flow.name),
        is_paused=PauseWatch(top_wire_of(pipeline), flow.name),
    )
    flow.on_scheduled = copier.wake
    return copier


class LoopThread(threading.Thread):
    """A loop and how it ended. Its lines name the sink where there is another one, too."""

    def __init__(
        self, loop: Delivery | Copier, view: PipelineFile | None = None, *, names_sink: bool
    ) -> None:
        super().__init__(name=f"{type(loop).__name__.lower()} {loop.name}", daemon=True)
        self.loop = loop
        self._sink = loop.name if names_sink else ""
        self._source_id = "" if view is None or view.is_alone else view.source_id
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Deliver; keep what went wrong for the main thread."""
        speak_for(self._source_id)
        speak_of_sink(self._sink)
        try:
            self.loop.run()
        except BaseException as error:  # noqa: BLE001 - handed to the main thread, which raises it
            self._failure = error

    def raise_if_failed(self) -> None:
        """Raise what ended the loop."""
        if self._failure is not None:
            raise self._failure


class Deliveries:
    """All loops and copiers of a pipeline. All methods from one thread."""

    def __init__(self, pipeline: PipelineFile, spark: Spark, recorder: Recorder = NOTHING) -> None:
        self._spark = spark
        self._recorder = recorder
        self._stop = threading.Event()
        self._shared = build_shared(pipeline)
        self._loops = {
            name: Delivery(
                name,
                self._stop,
                is_alone=pipeline.is_alone,
                is_paused=PauseWatch(top_wire_of(pipeline), name),
                recorder=recorder,
            )
            for name in pipeline.sinks
        }
        self._copiers: list[Copier] = []
        self._names_sink = len(pipeline.sinks) > 1
        self._threads = [
            LoopThread(loop, names_sink=self._names_sink) for loop in self._loops.values()
        ]
        self.flows: dict[str, list[Flow]] = {}  # by source
        for thread in self._threads:
            thread.start()

    def take(self, view: PipelineFile, started: Started) -> None:
        """Deliver a source that has been started, or started again."""
        if view.source_id in self.flows:
            check = PositionCheck(view, started)
            for flow in self.flows[view.source_id]:
                flow.check_again(check)
            return
        self.flows[view.source_id] = []
        for sink in build_sinks(view, self._shared):
            flow = build_flow(view, started, sink, self._spark, self._stop, self._recorder)
            copier = build_copier(view, flow, self._spark, self._stop)
            thread = LoopThread(copier, view, names_sink=self._names_sink)
            self.flows[view.source_id].append(flow)
            self._copiers.append(copier)
            self._threads.append(thread)
            self._loops[flow.name].add(flow)
            thread.start()

    @property
    def has_open(self) -> bool:
        """Whether a sink is open, with some source."""
        return any(flow.is_open for flows in self.flows.values() for flow in flows)

    @property
    def progress(self) -> list[RoundProgress]:
        """How far copies under way have got."""
        return [each for copier in self._copiers for each in copier.progress]

    def raise_if_failed(self) -> None:
        """Raise what ended a loop."""
        for thread in self._threads:
            thread.raise_if_failed()

    def stop(self) -> bool:
        """Let batches under way finish; whether all have, and those that have not are cancelled."""
        self._stop.set()
        self._spark.let_go()
        for copier in self._copiers:
            copier.wake()
        self._join(timing().delivery_patience_seconds)
        if not any(thread.is_alive() for thread in self._threads):
            return True
        # What is cancelled has changed nothing: the position has not moved.
        for loop in self._loops.values():
            loop.interrupt()
        for copier in self._copiers:
            copier.interrupt()
        self._spark.cancel()
        self._join(2.0)
        return False

    def _join(self, patience_seconds: float) -> None:
        deadline = time.monotonic() + patience_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
