"""penstock check: prints every finding at once, each with what fixes it. Changes nothing."""

from __future__ import annotations

import json
import sys

import typer

from penstock.cli.options import AsJson, PipelinePath
from penstock.config import PipelineFile, read_pipeline
from penstock.errors import PenstockError
from penstock.findings import Finding
from penstock.run.check import find, read_choices
from penstock.run.rules import chain_lines, table_chains
from penstock.sinks.chosen import ChosenTables
from penstock.source.connect import connect_source
from penstock.source.tracking.install import tier_in_force
from penstock.table import TableName
from penstock.text import printable

_NAMED_TABLES = 5
_ORDER = ("info", "warning", "error")  # what matters most is read last


def check(path: PipelinePath, as_json: AsJson = False) -> None:
    """See whether the pipeline could run: servers, privileges, tables, Java. Changes nothing."""
    pipeline = read_pipeline(path)
    choices = read_choices(pipeline)
    findings = find(pipeline, choices)
    errors = [finding for finding in findings if finding.severity == "error"]
    if as_json:
        listed = [_as_dict(finding) for finding in findings]
        for view in pipeline.each():
            listed += _chains_of(pipeline, view, choices.get(view.source_id))
        typer.echo(json.dumps(listed))
    else:
        for finding in sorted(findings, key=lambda each: _ORDER.index(each.severity)):
            print(f"{finding.severity}: {finding.error}", file=sys.stderr)  # noqa: T201
        for view in pipeline.each():
            _print_source(view, choices.get(view.source_id), creates=_creates_tables(pipeline))
            for line in chain_lines(pipeline, choices.get(view.source_id)):
                place = "" if view.is_alone else f"source {view.source_id}: "
                typer.echo(printable(f"{place}{line}"))
        warnings = [finding for finding in findings if finding.severity == "warning"]
        typer.echo(_verdict(pipeline, len(errors), len(warnings)))
    if errors:
        raise typer.Exit(1)


def _chains_of(
    pipeline: PipelineFile, view: PipelineFile, chosen: ChosenTables | None
) -> list[dict[str, str | None]]:
    """The rules of each table, sink by sink, as entries that look like findings and have no code."""
    return [
        {
            "severity": "info",
            "code": None,
            "place": str(each.table),
            "what": each.text or "as it is",
            "do": "",
            "source": view.source_id,
            "sink": each.sink,
        }
        for said in table_chains(pipeline, chosen)
        for each in said
    ]


def _as_dict(finding: Finding) -> dict[str, str | None]:
    return {
        "severity": finding.severity,
        "code": finding.code,
        "place": finding.place,
        "what": finding.what,
        "do": finding.do,
    }


def _print_source(view: PipelineFile, chosen: ChosenTables | None, *, creates: bool) -> None:
    tier = _tier(view)
    place = "" if view.is_alone else f"source {view.source_id}: "
    for line in _tables(chosen, creates=creates):
        typer.echo(f"{place}{line}")
    if tier is not None:
        typer.echo(f"{place}changes of tables: tracking by {tier}")


def _creates_tables(pipeline: PipelineFile) -> bool:
    """Whether tables of the source are made anew anywhere."""
    return any(
        pipeline.kind_of(name).creates_tables(options) for name, options in pipeline.sinks.items()
    )


def _tables(chosen: ChosenTables | None, *, creates: bool) -> list[str]:
    """What is followed, in a few words, and what will differ where penstock creates it."""
    if chosen is None:
        return []
    lines = {"tables": chosen.followed}
    if creates:
        shapes, sequences = chosen.shapes, chosen.sequences
        lines |= {
            "partitioned, plain where penstock creates them": [
                shape.table for shape in shapes if shape.kind == "p"
            ],
            "identity ALWAYS, BY DEFAULT where penstock creates them": [
                shape.table
                for shape in shapes
                if any(column.identity == "a" for column in shape.columns)
            ],
            "sequences, behind at the target until penstock sync-sequences": sequences.carried,
            "sequences of no serial column, created under their own names": sequences.free,
            "sequences that several columns count with, one at the target as well": sequences.shared,
            "sequences left out, with the defaults that name them": sequences.missed,
            "sequences left out, no followed column counts with them": sequences.unused,
        }
    return [f"{what}: {_few(names)}" for what, names in lines.items() if names or what == "tables"]


def _few(tables: list[TableName]) -> str:
    """How many, and the first by name."""
    named = ", ".join(printable(str(table)) for table in sorted(tables)[:_NAMED_TABLES])
    more = f" and {len(tables) - _NAMED_TABLES} more" if len(tables) > _NAMED_TABLES else ""
    return f"{len(tables)} ({named}{more})" if tables else "0"


def _tier(pipeline: PipelineFile) -> str | None:
    """How changes of tables are noticed; None when the source does not answer."""
    wanted = pipeline.source.schema_options.tracking
    try:
        with connect_source(pipeline.source.url, "penstock check") as connection:
            found = tier_in_force(connection, wanted)
    except PenstockError:
        return None
    return found.value if found is wanted else f"{found.value}, wanted {wanted.value}"


def _verdict(pipeline: PipelineFile, error_count: int, warning_count: int) -> str:
    if error_count:
        return f"{pipeline.name}: {error_count} to fix before it can run, warnings: {warning_count}"
    return f"{pipeline.name}: ready to run, warnings: {warning_count}"
