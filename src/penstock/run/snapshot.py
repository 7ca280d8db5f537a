"""`penstock snapshot`: copy tables and end, or copy for a pipeline that runs elsewhere."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.errors import RunError, recognise
from penstock.pipeline import build_copying, state_of
from penstock.run.requests import known_tables, resync_tables
from penstock.run.signals import take_signals
from penstock.run.start import start_up
from penstock.run.status import read_status
from penstock.run.supervise import LoopThread, run_pipeline
from penstock.snapshot.copier import Copier
from penstock.source.options import SnapshotMode
from penstock.spark.session import start_session, stop_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.config import PipelineFile
    from penstock.run.supervise import OnCopying
    from penstock.table import TableName

_POLL_SECONDS = 0.5
_PATIENCE_SECONDS = 8.0


def run_snapshot(
    pipeline: PipelineFile,
    names: Sequence[str],
    stop: threading.Event,
    *,
    log_format: str = "text",
    log_level: str = "info",
    on_copying: OnCopying | None = None,
) -> list[TableName]:
    """Copy what was never copied, and again what is named; end when it is there and caught up.

    Where the pipeline runs already, that process does the work, and this one waits for it.

    Raises:
        PenstockError: a table was not copied, or cannot be.
    """
    again = resync_tables(pipeline, names) if names else []
    if state_of(pipeline).is_held("deliver"):
        _wait(pipeline, again, stop)
    else:
        options = pipeline.source.snapshot.model_copy(update={"mode": SnapshotMode.INITIAL})
        source = pipeline.source.model_copy(update={"snapshot": options})
        run_pipeline(
            replace(pipeline, source=source),
            stop,
            log_format=log_format,
            log_level=log_level,
            until_caught_up=True,
            on_copying=on_copying,
        )
    return again or known_tables(pipeline, ["*.*"])


def _wait(pipeline: PipelineFile, tables: Sequence[TableName], stop: threading.Event) -> None:
    wanted = {str(table) for table in tables}
    while not stop.wait(_POLL_SECONDS):
        found = read_status(pipeline)
        entries = [
            (name, entry)
            for sink in found.sinks.values()
            for name, entry in sink.tables.items()
            if not wanted or name in wanted
        ]
        for name, entry in entries:
            if entry.state == "failed" and entry.request is None:
                raise recognise(entry.error or "") or RunError(f"{name} failed", name)
        if all(entry.state == "streaming" and entry.request is None for _, entry in entries):
            return


def run_worker(
    pipeline: PipelineFile, stop: threading.Event, on_copying: OnCopying | None = None
) -> None:
    """Copy whatever tables wait, beside a pipeline that runs in another process, until stopped.

    Raises:
        PenstockError: what ended it; what arrived stays, and the pipeline itself goes on copying.
    """
    start_up(pipeline, stop)
    session = start_session(
        f"{pipeline.name} worker", pipeline.spark, pipeline.state / "spark-worker.log"
    )
    take_signals(stop)
    inner_stop = threading.Event()
    copiers = [
        Copier(
            session.sparkContext,
            name,
            build_copying(pipeline, name),
            pipeline.source,
            inner_stop,
            keeps_claim=True,
        )
        for name in pipeline.sinks
    ]
    threads = [LoopThread(copier) for copier in copiers]
    try:
        for thread in threads:
            thread.start()
        while not stop.wait(_POLL_SECONDS):
            for thread in threads:
                thread.raise_if_failed()
            if on_copying is not None:
                on_copying([each for copier in copiers for each in copier.progress])
    finally:
        inner_stop.set()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        stop_session(session)
    for thread in threads:
        thread.raise_if_failed()
