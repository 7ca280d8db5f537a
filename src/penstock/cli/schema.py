"""penstock schema: the versions of the source's schemas."""

from __future__ import annotations

import enum
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from penstock.cli.options import AsJson, PipelinePath, SourceId
from penstock.cli.status import print_rendered
from penstock.config import read_pipeline
from penstock.errors import BadValue
from penstock.schema.difference import as_json as difference_as_json
from penstock.schema.difference_text import describe_difference
from penstock.text import printable

if TYPE_CHECKING:
    from penstock.config import PipelineFile


class Action(enum.StrEnum):
    """What to do."""

    LOG = "log"
    SHOW = "show"
    DIFF = "diff"


def schema(
    path: PipelinePath,
    action: Annotated[
        Action, typer.Argument(metavar="ACTION", help="log: all versions; show: one; diff: two.")
    ] = Action.LOG,
    versions: Annotated[
        list[int] | None, typer.Argument(metavar="VERSION", help="One for show, two for diff.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="NAME",
            envvar="PENSTOCK_SCHEMA",
            help="Which schema; public if several.",
        ),
    ] = None,
    source_id: SourceId = None,
    as_json: AsJson = False,
) -> None:
    """Show the versions of the source's schemas, what one holds, or how two differ."""
    given = versions or []
    wanted = {Action.LOG: (0,), Action.SHOW: (0, 1), Action.DIFF: (2,)}[action]
    if len(given) not in wanted:
        raise BadValue(
            f"{len(given)} versions, wanted {' or '.join(map(str, wanted))}",
            f"penstock schema {action.value}",
            "penstock schema PIPELINE.yml log shows which there are",
        )
    pipeline = _choose_source(read_pipeline(path), source_id)
    if action is Action.LOG:
        _log(pipeline, name, as_json=as_json)
    elif action is Action.SHOW:
        _show(pipeline, name, given[0] if given else None, as_json=as_json)
    else:
        _compare(pipeline, name, given[0], given[1], as_json=as_json)


def _choose_source(pipeline: PipelineFile, source_id: str | None) -> PipelineFile:
    from penstock.run.requests import choose_sources

    views = choose_sources(pipeline, source_id)
    if len(views) > 1:
        raise BadValue(
            f"{len(views)} sources, wanted one",
            "penstock schema",
            f"say --source, one of {', '.join(view.source_id for view in views)}",
        )
    return views[0]


def _log(pipeline: PipelineFile, name: str | None, *, as_json: bool) -> None:
    from penstock.run.versions import list_versions

    found = list_versions(pipeline, name)
    if as_json:
        shown = [{**vars(each), "created_at": each.created_at.isoformat()} for each in found]
        typer.echo(json.dumps(shown))
        return
    table = Table("schema", "version", "written", "position", "delivered", box=None)
    for each in found:
        when = f"{each.created_at:%Y-%m-%d %H:%M:%S %Z}"
        delivered = "yes" if each.acked else "no"
        row = (str(each.version), when, each.lsn or "-", delivered)
        table.add_row(Text(printable(each.schema_name)), *row)
    print_rendered(table)


def _show(pipeline: PipelineFile, name: str | None, version: int | None, *, as_json: bool) -> None:
    from penstock.run.versions import show_version

    document = show_version(pipeline, name, version)
    if as_json:
        typer.echo(json.dumps(document))
    else:
        _print_version(document)


def _compare(
    pipeline: PipelineFile, name: str | None, first: int, second: int, *, as_json: bool
) -> None:
    from penstock.run.versions import compare_versions

    differences = compare_versions(pipeline, name, first, second)
    if as_json:
        typer.echo(json.dumps([difference_as_json(each) for each in differences]))
        return
    for each in differences:
        typer.echo(printable(f"{each.schema}.{each.name}: {describe_difference(each)}"))
    if not differences:
        typer.echo(f"versions {first} and {second} are the same")


def _print_version(document: dict[str, Any]) -> None:
    typer.echo(f"{document['schema']}, version {document['version']}")
    for table in document.get("tables", ()):
        typer.echo("\n" + printable(f"{table['schema_name']}.{table['name']}"))
        for column in table.get("columns", ()):
            said = [column["name"], column["type"]]
            said += ["not null"] * bool(column.get("not_null"))
            said += [f"default {column['default']}"] * bool(column.get("default"))
            typer.echo(printable("  " + " ".join(said)))
        for one in (*table.get("constraints", ()), *table.get("indexes", ())):
            typer.echo(printable(f"  {one['name']}: {one['definition']}"))
        for key in table.get("foreign_keys", ()):
            leads_to = f"{key['referenced_schema']}.{key['referenced_name']}"
            typer.echo(printable(f"  {key['name']}: foreign key to {leads_to}"))
