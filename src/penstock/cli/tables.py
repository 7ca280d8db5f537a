"""penstock tables: which tables a pipeline follows, and how each stands."""

from __future__ import annotations

import enum
import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from penstock.cli.options import AsJson, PipelinePath, SourceId
from penstock.cli.status import print_rendered, render_tables
from penstock.config import read_pipeline
from penstock.errors import BadValue
from penstock.run.status import PipelineStatus, read_status
from penstock.text import printable_lines


class Action(enum.StrEnum):
    """What to do with tables."""

    LIST = "list"
    ADD = "add"
    REMOVE = "remove"
    RESYNC = "resync"


def tables(
    path: PipelinePath,
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="What to do.")] = Action.LIST,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="schema.table; t is public.t")
    ] = None,
    source_id: SourceId = None,
    as_json: AsJson = False,
) -> None:
    """List the pipeline's tables, add or remove some, or have them copied again."""
    from penstock.run.requests import change_followed, choose_sources

    pipeline = read_pipeline(path)
    views = choose_sources(pipeline, source_id)
    if action is Action.LIST:
        found = read_status(pipeline if source_id is None else views[0])
        if as_json:
            shown = {
                name: {table: asdict(entry) for table, entry in sink.tables.items()}
                for name, sink in found.sinks.items()
            }
            typer.echo(json.dumps(shown))
            return
        _print_tables(found)
        return
    if not names:
        raise BadValue(
            f"{action.value} without a table",
            "penstock tables",
            f"penstock tables {path} {action.value} schema.table",
        )
    for line in change_followed(pipeline, action.value, names, source_id):
        typer.echo(line)


def _print_tables(found: PipelineStatus) -> None:
    parts: list[RenderableType] = []
    for name, sink in found.sinks.items():
        parts += [Text(f"sink {name}"), render_tables(sink)]
        if not sink.tables and not sink.error:
            parts.append(Text("  no tables yet: penstock run PIPELINE.yml brings them"))
    # What could not be asked may have tables that are not listed.
    parts += [Text(printable_lines(error), style="red") for error in found.errors]
    print_rendered(Group(*parts))
