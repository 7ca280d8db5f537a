"""penstock parked: what sinks have refused under `on_refused: park`."""

from __future__ import annotations

import enum
import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from penstock.cli.options import AsJson, PipelinePath, SourceId
from penstock.cli.status import print_rendered
from penstock.config import read_pipeline
from penstock.errors import BadValue
from penstock.table import TableRule
from penstock.text import counted, printable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.config import PipelineFile
    from penstock.run.parked import ParkedAt

_BEHIND = "behind an earlier change of its key"


class Action(enum.StrEnum):
    """What to do with parked changes."""

    LIST = "list"
    RETRY = "retry"
    DROP = "drop"


def parked(
    path: PipelinePath,
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="What to do.")] = Action.LIST,
    sink: Annotated[
        str | None,
        typer.Option(
            "--sink", metavar="NAME", envvar="PENSTOCK_SINK", help="One sink; default: all."
        ),
    ] = None,
    source_id: SourceId = None,
    table: Annotated[
        str | None,
        typer.Option(
            "--table",
            metavar="NAME",
            envvar="PENSTOCK_TABLE",
            help="Of one table: schema.table, schema.* or *.table.",
        ),
    ] = None,
    ids: Annotated[
        list[str] | None,
        typer.Option(
            "--id", metavar="ID", envvar="PENSTOCK_ID", help="One of them; may be repeated."
        ),
    ] = None,
    as_json: AsJson = False,
    values: Annotated[
        bool,
        typer.Option(
            "--values", envvar="PENSTOCK_VALUES", help="With --json: the rows' values, too."
        ),
    ] = False,
) -> None:
    """List what sinks have refused and keep, have it tried again, or drop it."""
    from penstock.run.parked import Choice, as_dicts, find_parked

    if values and not as_json:
        raise BadValue("--values without --json", "penstock parked", "add --json")
    pipeline = read_pipeline(path)
    rule = TableRule.parse(table) if table is not None else None
    choice = Choice(sink, source_id, rule, frozenset(ids or ()))
    found = find_parked(pipeline, choice, with_values=values)
    if action is Action.LIST and as_json:
        typer.echo(json.dumps(as_dicts(found, with_values=values)))
    elif not found:
        typer.echo("nothing is parked" if choice.is_all else "none of these")
    elif action is Action.LIST:
        _print_entries(found)
    elif action is Action.RETRY:
        _retry(pipeline, found, path)
    else:
        _drop(pipeline, found)


def _retry(pipeline: PipelineFile, found: Sequence[ParkedAt], path: Path) -> None:
    from penstock.run.parked import retry_parked

    runs = retry_parked(pipeline, found)
    when = "is tried again within seconds" if runs else "will be tried again at the next run"
    _report(found, f"{when}; penstock parked {path} shows what is refused again")


def _drop(pipeline: PipelineFile, found: Sequence[ParkedAt]) -> None:
    from penstock.run.parked import drop_parked

    runs = drop_parked(pipeline, found)
    _report(found, "is dropped within seconds" if runs else "dropped")


def _report(found: Sequence[ParkedAt], what: str) -> None:
    for each in found:
        typer.echo(printable(f"{_place(each)}: {counted(len(each.entries), 'change')}: {what}"))


def _place(found: ParkedAt) -> str:
    source = "" if found.pipeline.is_alone else f", source {found.pipeline.source_id}"
    return f"sink {found.sink}{source}"


def _print_entries(found: Sequence[ParkedAt]) -> None:
    shown = Table(box=None, padding=(0, 2), header_style="dim")
    for heading in ("sink", "table", "op", "key", "commit_lsn", "since", "id", "reason"):
        shown.add_column(heading, overflow="fold")
    for each in found:
        source = "" if each.pipeline.is_alone else f"{each.pipeline.source_id}/"
        for entry in each.entries:
            asked = f" ({entry.request} asked for)" if entry.request else ""
            cells = (
                each.sink,
                f"{source}{entry.table}",
                entry.op,
                entry.key or "",
                entry.commit_lsn,
                entry.parked_at,
                entry.id,
                f"{entry.reason or _BEHIND}{asked}",
            )
            shown.add_row(*(Text(printable(cell)) for cell in cells))
    print_rendered(shown)
