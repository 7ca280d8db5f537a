"""penstock schema: the versions of the source's schemas."""

from __future__ import annotations

import enum
import json
from typing import Annotated, Any

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
    from penstock.run.requests import choose_sources
    from penstock.run.versions import compare_versions, list_versions, show_version

    given = versions or []
    wanted = {Action.LOG: (0,), Action.SHOW: (0, 1), Action.DIFF: (2,)}[action]
    if len(given) not in wanted:
        raise BadValue(
            f"{len(given)} versions, wanted {' or '.join(map(str, wanted))}",
            f"penstock schema {action.value}",
            "penstock schema PIPELINE.yml log shows which there are",
        )
    views = choose_sources(read_pipeline(path), source_id)
    if len(views) > 1:
        raise BadValue(
            f"{len(views)} sources, wanted one",
            "penstock schema",
            f"say --source, one of {', '.join(view.source_id for view in views)}",
        )
    [pipeline] = views
    if action is Action.LOG:
        found = list_versions(pipeline, name)
        if as_json:
            typer.echo(
                json.dumps(
                    [{**vars(each), "created_at": each.created_at.isoformat()} for each in found]
                )
            )
            return
        table = Table("schema", "version", "written", "position", "delivered", box=None)
        for each in found:
            when = f"{each.created_at:%Y-%m-%d %H:%M:%S %Z}"
            delivered = "yes" if each.acked else "no"
            row = (str(each.version), when, each.lsn or "-", delivered)
            table.add_row(Text(printable(each.schema_name)), *row)
        print_rendered(table)
    elif action is Action.SHOW:
        document = show_version(pipeline, name, given[0] if given else None)
        if as_json:
            typer.echo(json.dumps(document))
        else:
            _print_version(document)
    else:
        differences = compare_versions(pipeline, name, *given)
        if as_json:
            typer.echo(json.dumps([difference_as_json(each) for each in differences]))
            return
        for difference in differences:
            typer.echo(
                printable(
                    f"{difference.schema}.{difference.name}: {describe_difference(difference)}"
                )
            )
        if not differences:
            typer.echo(f"versions {given[0]} and {given[1]} are the same")


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
