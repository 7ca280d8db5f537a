"""penstock init: create slot, publication and the target's own objects. Safe to repeat."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.options import LogFormat, LogFormatOption, LogLevel, LogLevelOption, PipelinePath
from penstock.config import read_pipeline
from penstock.logging import set_up_logging
from penstock.text import printable


def init(
    path: PipelinePath,
    print_sql: Annotated[
        bool,
        typer.Option(
            "--print-sql",
            envvar="PENSTOCK_PRINT_SQL",
            help="Only print what an admin would run; change nothing.",
        ),
    ] = False,
    log_format: LogFormatOption = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Create what the pipeline needs on both sides; say what is there afterwards."""
    set_up_logging(log_format, log_level)
    pipeline = read_pipeline(path)
    if print_sql:
        _print_sql(path)
        return
    from penstock.run.start import init_pipeline

    for line in init_pipeline(pipeline):
        typer.echo(printable(line))


# Who runs it has more rights than most, in a session of their own.
_SAFE = "SET search_path = pg_catalog, pg_temp"


def _print_sql(path: PipelinePath) -> None:
    from penstock.source.connect import connect_source
    from penstock.source.subscription import print_sql

    pipeline = read_pipeline(path)
    for view in pipeline.each():
        with connect_source(view.source.url, "penstock init") as connection:
            tracking = view.source.schema_options.tracking
            statements = print_sql(connection, view.name, view.source.tables, tracking)
        called = "the source" if view.is_alone else f"source {view.source_id}"
        typer.echo(f"-- on {called}, {view.source.url}")
        for statement in (_SAFE, *statements) if statements else ():
            typer.echo(f"{statement.strip().rstrip(';')};")
    for name, options in pipeline.sinks.items():
        own = pipeline.kind_of(name).statements(options)
        if own is not None:
            typer.echo(f"-- on sink {name}, {own.place}")
            typer.echo(own.text)
