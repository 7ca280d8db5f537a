"""penstock run, capture, deliver: the whole pipeline, or one of its halves."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import (
    Listen,
    LogFormat,
    LogFormatOption,
    LogLevel,
    LogLevelOption,
    PipelinePath,
    UntilCaughtUp,
)
from penstock.cli.progress import CopyProgress
from penstock.config import PipelineFile, pipeline_from_urls, read_pipeline
from penstock.dsn import Dsn
from penstock.errors import BadValue
from penstock.logging import set_up_logging

_log = logging.getLogger(__name__)


def run(
    context: typer.Context,
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="PIPELINE.yml", envvar="PENSTOCK_PIPELINE", help="The pipeline file."
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            metavar="URL", envvar="PENSTOCK_SOURCE", help="The Postgres to follow, without a file."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="PENSTOCK_TARGET",
            help="The Postgres to deliver to, without a file.",
        ),
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            envvar="PENSTOCK_TABLE",
            help="Table to follow, may be repeated; default public.*",
        ),
    ] = None,
    until_caught_up: UntilCaughtUp = False,
    listen: Listen = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Create what is missing, copy what is not copied yet, then stream until stopped (Ctrl-C)."""
    set_up_logging(log_format, log_level)
    pipeline = _listening(_pipeline(path, source, target, table), listen)
    _warn_of_passwords(context, source=source, target=target)
    from penstock.run.signals import stop_on_signals
    from penstock.run.supervise import run_pipeline

    progress = CopyProgress()
    with stop_on_signals() as stop, closing(progress):
        run_pipeline(
            pipeline,
            stop,
            log_format=log_format,
            log_level=log_level,
            until_caught_up=until_caught_up,
            on_copying=progress,
        )


def _listening(pipeline: PipelineFile, listen: str | None) -> PipelineFile:
    return replace(pipeline, server=pipeline.server.at(listen))


def _warn_of_passwords(context: typer.Context, **urls: str | None) -> None:
    """Say which options have shown a password to everybody on this machine."""
    for name, url in urls.items():
        given = context.get_parameter_source(name)
        if (
            url
            and given is not None
            and given.name == "COMMANDLINE"
            and Dsn.parse(url).has_password
        ):
            _log.warning(
                "--%s holds a password, which every user of this machine can see in the list of"
                " processes (ps); set PENSTOCK_%s instead, or keep it in ~/.pgpass",
                name,
                name.upper(),
            )


def _pipeline(
    path: Path | None, source: str | None, target: str | None, tables: list[str] | None
) -> PipelineFile:
    if path is not None:
        if source or target or tables:
            raise BadValue(
                "a pipeline file and --source, --target or --table, wanted one or the other",
                "penstock run",
                "leave out the file, or the options",
            )
        return read_pipeline(path)
    if source is None or target is None:
        raise BadValue(
            "neither a pipeline file nor both --source and --target",
            "penstock run",
            "penstock run PIPELINE.yml, or penstock run --source URL --target URL",
        )
    return pipeline_from_urls(source, target, tables)


def capture(
    path: PipelinePath,
    listen: Listen = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Run only the left half, source to log, until stopped. Needs no Java."""
    set_up_logging(log_format, log_level)
    pipeline = _listening(read_pipeline(path), listen)
    from penstock.run.capture_process import run_capture
    from penstock.run.signals import stop_on_signals

    with stop_on_signals() as stop:
        run_capture(pipeline, stop, log_format=log_format, log_level=log_level)


def deliver(
    path: PipelinePath,
    sink: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            envvar="PENSTOCK_SINK",
            help="Sink to deliver to, may be repeated; default: all. For a log on a broker.",
        ),
    ] = None,
    until_caught_up: UntilCaughtUp = False,
    listen: Listen = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Run only the right half, log to sinks, until stopped."""
    set_up_logging(log_format, log_level)
    pipeline = _listening(read_pipeline(path), listen)
    if sink:
        pipeline = pipeline.only(sink)
    from penstock.run.signals import stop_on_signals
    from penstock.run.supervise import run_deliver

    progress = CopyProgress()
    with stop_on_signals() as stop, closing(progress):
        run_deliver(pipeline, stop, until_caught_up=until_caught_up, on_copying=progress)
