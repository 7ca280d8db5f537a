"""penstock sinks: which sinks a pipeline has; hold one, or let it go on."""

from __future__ import annotations

import enum
import json
from typing import Annotated

import typer

from penstock.cli.options import AsJson, PipelinePath
from penstock.config import read_pipeline
from penstock.errors import BadValue


class Action(enum.StrEnum):
    """What to do with sinks."""

    LIST = "list"
    PAUSE = "pause"
    RESUME = "resume"


def sinks(
    path: PipelinePath,
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="What to do.")] = Action.LIST,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="A sink as the file names it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the pipeline's sinks, pause some, or have them go on; whether it runs or not."""
    from penstock.run.pauses import paused_since, set_pause

    pipeline = read_pipeline(path)
    if action is Action.LIST:
        found = {name: paused_since(pipeline, name) for name in pipeline.sinks}
        if as_json:
            typer.echo(json.dumps({name: {"paused_since": since} for name, since in found.items()}))
            return
        for name, since in found.items():
            typer.echo(f"{name}: {f'paused since {since}' if since else 'not paused'}")
        return
    if not names:
        raise BadValue(
            f"{action.value} without a sink",
            "penstock sinks",
            f"penstock sinks {path} {action.value} {next(iter(pipeline.sinks))}",
        )
    for name in names:
        typer.echo(set_pause(pipeline, name, is_paused=action is Action.PAUSE))
