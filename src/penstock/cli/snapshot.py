"""penstock snapshot: copy tables and end."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from penstock.cli.options import (
    LogFormat,
    LogFormatOption,
    LogLevel,
    LogLevelOption,
    PipelinePath,
    SourceId,
)
from penstock.cli.progress import CopyProgress
from penstock.config import read_pipeline
from penstock.errors import BadValue
from penstock.logging import set_up_logging


def snapshot(
    path: PipelinePath,
    table: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            envvar="PENSTOCK_TABLE",
            help="Table to copy again, may be repeated; default: all that were never copied.",
        ),
    ] = None,
    source_id: SourceId = None,
    worker: Annotated[
        bool,
        typer.Option(
            "--worker",
            envvar="PENSTOCK_WORKER",
            help="Copy for a pipeline that runs in another process, until stopped (Ctrl-C).",
        ),
    ] = False,
    log_format: LogFormatOption = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Copy tables, let them catch up, and end. The slot stays: penstock run goes on from there."""
    set_up_logging(log_format, log_level)
    if worker and table:
        raise BadValue(
            "--worker and --table, wanted one or the other",
            "penstock snapshot",
            "penstock tables PIPELINE.yml resync asks for tables; the worker copies what was asked for",
        )
    pipeline = read_pipeline(path)
    from penstock.run.signals import stop_on_signals
    from penstock.run.snapshot import run_snapshot, run_worker

    progress = CopyProgress()
    with stop_on_signals() as stop, closing(progress):
        if worker:
            run_worker(pipeline, stop, on_copying=progress)
            return
        copied = run_snapshot(
            pipeline,
            table or [],
            stop,
            source_id=source_id,
            log_format=log_format,
            log_level=log_level,
            on_copying=progress,
        )
    for name in copied:
        typer.echo(f"{name}: copied and caught up")
