"""`penstock snapshot`: copy tables and end, or copy for a pipeline that runs elsewhere."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.errors import RunError, recognise
from penstock.modifiers.chain import chain_for
from penstock.pipeline import build_copying, former_parts_of, top_wire_of
from penstock.run.deliveries import LoopThread
from penstock.run.requests import (
    at_each_source,
    choose_sources,
    known_tables,
    resync_tables,
)
from penstock.run.sources import Sources
from penstock.run.sparkwatch import watched_spark
from penstock.run.status import read_status
from penstock.run.supervise import run_pipeline
from penstock.snapshot.copier import Copier
from penstock.source.options import SnapshotMode
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.config import PipelineFile
    from penstock.run.supervise import OnCopying
    from penstock.sinks.status import TableStatus
    from penstock.source.options import SourceOptions
    from penstock.spark.session import Spark
    from penstock.table import TableName

_log = logging.getLogger(__name__)


def run_snapshot(
    pipeline: PipelineFile,
    names: Sequence[str],
    stop: threading.Event,
    *,
    source_id: str | None = None,
    log_format: str = "text",
    log_level: str = "info",
    on_copying: OnCopying | None = None,
) -> list[str]:
    """Copy what was never copied, and again what is named; end when it is there and caught up, or when told to stop.

    Where the pipeline runs already, that process does the work, and this one waits for it. Returns what is there.

    Raises:
        PenstockError: a table was not copied, or cannot be.
    """
    views = choose_sources(pipeline, source_id)
    again = at_each_source(views, names, resync_tables) if names else []
    if top_wire_of(pipeline).delivering_run() is not None:
        _wait(pipeline, {_key(view, table) for view, table in again}, stop)
    else:
        run_pipeline(
            _copying_first(pipeline, [view.source_id for view in views]),
            stop,
            log_format=log_format,
            log_level=log_level,
            until_caught_up=True,
            on_copying=on_copying,
        )
    if stop.is_set():
        return _whole(pipeline, {_key(view, table) for view, table in again})
    done = again or [(view, table) for view in views for table in known_tables(view, ["*.*"])]
    return [_key(view, table) for view, table in done]


def _whole(pipeline: PipelineFile, wanted: set[str]) -> list[str]:
    """What had been copied when a signal came; nobody is to believe it of the rest."""
    entries = _entries(pipeline, wanted)
    left = wanted.difference(name for name, _ in entries)
    left.update(name for name, entry in entries if not _is_whole(entry))
    if left or not entries:
        which = f"{len(left)} tables" if left else "any table"
        _log.warning("stopped before %s had been copied and had caught up", which)
    return sorted({name for name, _ in entries} - left)


def _entries(pipeline: PipelineFile, wanted: set[str]) -> list[tuple[str, TableStatus]]:
    """How tables stand at each sink; all of them, or those that are wanted."""
    return [
        (name, entry)
        for sink in read_status(pipeline).sinks.values()
        for name, entry in sink.tables.items()
        if not wanted or name in wanted
    ]


def _copying_first(pipeline: PipelineFile, source_ids: Sequence[str]) -> PipelineFile:
    """The pipeline with these sources alone, whose tables are copied whatever the file says."""

    def copied(source: SourceOptions) -> SourceOptions:
        options = source.snapshot.model_copy(update={"mode": SnapshotMode.INITIAL})
        return source.model_copy(update={"snapshot": options})

    sources = {source_id: copied(pipeline.sources[source_id]) for source_id in source_ids}
    return replace(pipeline, sources=sources)


def _key(view: PipelineFile, table: TableName) -> str:
    """A table as `status` calls it."""
    return str(table) if view.is_alone else f"{view.source_id}/{table}"


def _wait(pipeline: PipelineFile, wanted: set[str], stop: threading.Event) -> None:
    while not stop.wait(timing().snapshot_command_poll_seconds):
        entries = _entries(pipeline, wanted)
        for name, entry in entries:
            if entry.state == "failed" and entry.request is None:
                raise recognise(entry.error or "") or RunError(f"{name} failed", name)
        if all(_is_whole(entry) for _, entry in entries):
            return


def _is_whole(entry: TableStatus) -> bool:
    return entry.state == "streaming" and entry.request is None and not entry.foreign_keys_due


def run_worker(
    pipeline: PipelineFile, stop: threading.Event, on_copying: OnCopying | None = None
) -> None:
    """Copy whatever tables wait, beside a pipeline that runs in another process, until stopped.

    Raises:
        PenstockError: what ended it; what arrived stays, and the pipeline itself goes on copying.
    """
    sources = Sources(pipeline)
    sources.begin(stop)
    inner_stop = threading.Event()
    threads: list[LoopThread] = []
    copiers: dict[tuple[str, str], Copier] = {}
    name, log_path = f"{pipeline.name} worker", pipeline.top / "spark-worker.log"
    with watched_spark(name, pipeline.spark_at_rest, log_path, stop) as watch:
        try:
            while not stop.wait(timing().snapshot_command_poll_seconds):
                watch.poll()
                sources.poll()
                for view, sink in _started(sources):
                    if (view.source_id, sink) not in copiers:
                        copier = _build_worker(view, sink, watch.spark, inner_stop)
                        copiers[view.source_id, sink] = copier
                        threads.append(LoopThread(copier, view, names_sink=len(view.sinks) > 1))
                        threads[-1].start()
                for thread in threads:
                    thread.raise_if_failed()
                if on_copying is not None:
                    on_copying([each for copier in copiers.values() for each in copier.progress])
        finally:
            inner_stop.set()
            watch.spark.let_go()
            for copier in copiers.values():
                copier.wake()
            deadline = time.monotonic() + timing().snapshot_command_stop_seconds
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
    for thread in threads:
        thread.raise_if_failed()


def _started(sources: Sources) -> list[tuple[PipelineFile, str]]:
    """Sources that have been started since, with each of their sinks."""
    return [(view, sink) for view, _ in sources.take_started() for sink in view.sinks]


def _build_worker(view: PipelineFile, name: str, spark: Spark, stop: threading.Event) -> Copier:
    return Copier(
        spark,
        name,
        build_copying(view, name),
        view.source,
        stop,
        keeps_claim=True,
        is_alone=view.is_alone,
        modifiers=chain_for(view.modifiers, name),
        former_parts=former_parts_of(view, name),
    )
