"""Options that several commands share, each with its environment form."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer


class LogFormat(enum.StrEnum):
    """The format of log lines."""

    TEXT = "text"
    JSON = "json"


class LogLevel(enum.StrEnum):
    """Which log lines are shown."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


PipelinePath = Annotated[
    Path,
    typer.Argument(metavar="PIPELINE.yml", envvar="PENSTOCK_PIPELINE", help="The pipeline file."),
]
LogFormatOption = Annotated[
    LogFormat,
    typer.Option(
        "--log-format", envvar="PENSTOCK_LOG_FORMAT", help="Text for people, JSON for machines."
    ),
]
LogLevelOption = Annotated[
    LogLevel,
    typer.Option("--log-level", envvar="PENSTOCK_LOG_LEVEL", help="Which lines are shown."),
]
UntilCaughtUp = Annotated[
    bool,
    typer.Option(
        "--until-caught-up",
        envvar="PENSTOCK_UNTIL_CAUGHT_UP",
        help="End once every sink has what the source had committed at the start.",
    ),
]
Listen = Annotated[
    str | None,
    typer.Option(
        "--listen",
        metavar="HOST:PORT",
        envvar="PENSTOCK_LISTEN",
        help="Serve health, status, metrics and the page there; default: as the file says.",
    ),
]
SourceId = Annotated[
    str | None,
    typer.Option(
        "--source",
        metavar="ID",
        envvar="PENSTOCK_SOURCE_ID",
        help="One of several sources; default: all, or all that have such a table.",
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", envvar="PENSTOCK_JSON", help="Print JSON on stdout.")
]
