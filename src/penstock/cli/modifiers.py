"""penstock modifiers: rows before and after the rules of the file, side by side."""

from __future__ import annotations

import enum
import json
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from penstock.cli.options import AsJson, PipelinePath, SourceId
from penstock.cli.status import print_rendered
from penstock.config import read_pipeline
from penstock.run.preview import Preview, as_json, destination, preview
from penstock.text import printable

_LONGEST = 60


class Action(enum.StrEnum):
    """What to do with the rules."""

    PREVIEW = "preview"


def modifiers(
    path: PipelinePath,
    table: Annotated[
        str,
        typer.Option("--table", metavar="NAME", envvar="PENSTOCK_TABLE", help="schema.table"),
    ],
    action: Annotated[
        Action, typer.Argument(metavar="ACTION", help="What to do: preview.")
    ] = Action.PREVIEW,
    rows: Annotated[
        int,
        typer.Option("--rows", min=1, max=1000, envvar="PENSTOCK_ROWS", help="How many at most."),
    ] = 20,
    from_log: Annotated[
        bool,
        typer.Option(
            "--from-log", envvar="PENSTOCK_FROM_LOG", help="Changes in the log instead of rows."
        ),
    ] = False,
    sink: Annotated[
        str | None,
        typer.Option("--sink", metavar="NAME", envvar="PENSTOCK_SINK", help="Default: the first."),
    ] = None,
    source_id: SourceId = None,
    as_json_lines: AsJson = False,
) -> None:
    """Show rows of a table before and after the file's rules. Writes nothing."""
    from penstock.run.requests import choose_sources

    del action  # there is one
    view = choose_sources(read_pipeline(path), source_id)[0]
    found = preview(view, table, sink=sink, rows=rows, from_log=from_log)
    if as_json_lines:
        typer.echo(json.dumps([as_json(each) for each in found], ensure_ascii=False))
        return
    kept = sum(each.after is not None for each in found)
    print_rendered(_table(found))
    target = destination(view, table, sink)
    to = "" if target is None else f" to {printable(str(target))}"
    typer.echo(f"{len(found)} shown, {kept} delivered{to}")


def _table(found: list[Preview]) -> Table:
    table = Table(box=None, pad_edge=False)
    names = list(
        dict.fromkeys(name for each in found for name in (*each.before, *(each.after or {})))
    )
    table.add_column("op")
    for name in names:
        table.add_column(printable(name))
    for each in found:
        became = "not delivered" if each.after is None else each.became
        operation = f"{each.operation} → {became}" if became else each.operation
        table.add_row(operation, *(_cell(each, name) for name in names))
    return table


def _cell(each: Preview, name: str) -> Text:
    was = _shown(each.before[name]) if name in each.before else None
    if each.after is None:
        return Text(was or "", style="dim")
    now = _shown(each.after[name]) if name in each.after else "(dropped)"
    return Text(now) if was == now or was is None else Text(f"{was} → {now}", style="bold")


def _shown(value: str | None) -> str:
    text = "NULL" if value is None else printable(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
