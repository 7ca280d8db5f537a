"""penstock check: every finding at once, each with what mends it. Changes nothing."""

from __future__ import annotations

import json
import sys
from contextlib import suppress

import typer

from penstock.cli.exposure import exposures
from penstock.cli.options import AsJson, PipelinePath
from penstock.config import PipelineFile, read_pipeline
from penstock.errors import JavaMissing, PenstockError, SourceTwice
from penstock.findings import Finding
from penstock.pipeline import check_logs
from penstock.run.start import Databases
from penstock.schema.catalog import read_shapes
from penstock.sinks.chosen import ChosenTables
from penstock.source.choice import read_choice
from penstock.source.connect import connect_source
from penstock.source.extensions import read_extensions
from penstock.source.preflight import preflight
from penstock.source.publication import read_publications
from penstock.source.sequences import read_sequences
from penstock.source.tracking import tier_in_force
from penstock.table import TableName
from penstock.text import printable

_NAMED_TABLES = 5
_ORDER = ("info", "warning", "error")  # what matters most is read last


def check(path: PipelinePath, as_json: AsJson = False) -> None:
    """See whether the pipeline could run: servers, privileges, tables, Java. Changes nothing."""
    pipeline = read_pipeline(path)
    choices = _choices(pipeline)
    findings = find(pipeline, choices)
    errors = [finding for finding in findings if finding.severity == "error"]
    if as_json:
        typer.echo(
            json.dumps(
                [
                    {
                        "severity": finding.severity,
                        "code": finding.code,
                        "place": finding.place,
                        "what": finding.what,
                        "do": finding.do,
                    }
                    for finding in findings
                ]
            )
        )
    else:
        for finding in sorted(findings, key=lambda each: _ORDER.index(each.severity)):
            print(f"{finding.severity}: {finding.error}", file=sys.stderr)  # noqa: T201
        for view in pipeline.each():
            tier = _tier(view)
            place = "" if view.is_alone else f"source {view.source_id}: "
            creates = _creates_tables(pipeline)
            for line in _tables(choices.get(view.source_id), creates=creates):
                typer.echo(f"{place}{line}")
            if tier is not None:
                typer.echo(f"{place}changes of tables: tracking by {tier}")
        warnings = [finding for finding in findings if finding.severity == "warning"]
        typer.echo(_verdict(pipeline, len(errors), len(warnings)))
    if errors:
        raise typer.Exit(1)


def find(pipeline: PipelineFile, choices: dict[str, ChosenTables] | None = None) -> list[Finding]:
    """Every finding about source, sinks and this machine."""
    choices = _choices(pipeline) if choices is None else choices
    findings: list[Finding] = []
    databases = Databases(pipeline.sources)
    for view in pipeline.each():
        source = view.source
        found = preflight(source.url, source.tables, view.name, source.schema_options.tracking)
        findings += found if view.is_alone else [each.of_source(view.source_id) for each in found]
        findings += [Finding(fault) for fault in _same_database(view, databases)]
    for name in pipeline.sinks:
        places = {view.source_id: view.place_of(name) for view in pipeline.each()}
        findings += pipeline.kind_of(name).check(places, choices)
    findings += [Finding(each, "warning") for each in exposures(pipeline)]
    findings += [Finding(fault) for fault in _machine_faults()]
    findings += [Finding(fault, "warning") for fault in check_logs(pipeline)]
    return findings


def _same_database(view: PipelineFile, databases: Databases) -> list[PenstockError]:
    try:
        with connect_source(view.source.url, "penstock check") as connection:
            databases.claim(view.source_id, connection, view.source.url)
    except SourceTwice as error:
        return [error]
    except PenstockError:
        databases.tell(view.source_id)  # it is among the findings already
    return []


def _choices(pipeline: PipelineFile) -> dict[str, ChosenTables]:
    """What is followed of each source that answers."""
    found: dict[str, ChosenTables] = {}
    for view in pipeline.each():
        with (
            suppress(PenstockError),  # it is among the findings already
            connect_source(view.source.url, "penstock check") as connection,
        ):
            rules = view.source.tables
            publications = read_publications(connection, view.name)
            if publications is not None:
                rules = publications.stamp.adjust(rules)
            choice, faults = read_choice(connection, rules)
            followed = [each.name for each in (*choice.updates, *choice.inserts)]
            shapes = list(read_shapes(connection, followed, with_partitions=True).values())
            found[view.source_id] = ChosenTables(
                followed,
                [each.table for each in (*choice.left_out, *faults)],
                shapes,
                read_extensions(connection, followed),
                read_sequences(connection, shapes),
            )
    return found


def _creates_tables(pipeline: PipelineFile) -> bool:
    """Whether tables of the source are made anew anywhere."""
    return any(
        pipeline.kind_of(name).creates_tables(options) for name, options in pipeline.sinks.items()
    )


def _tables(chosen: ChosenTables | None, *, creates: bool) -> list[str]:
    """What is followed, in a few words, and what will look different where penstock creates it."""
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
            "sequences that no column owns, created under their own names": sequences.free,
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


def _machine_faults() -> list[PenstockError]:
    from penstock.embedded.java import java_home

    try:
        java_home()
    except JavaMissing as error:
        return [error]
    return []


def _verdict(pipeline: PipelineFile, error_count: int, warning_count: int) -> str:
    if error_count:
        return (
            f"{pipeline.name}: {error_count} to mend before it can run, warnings: {warning_count}"
        )
    return f"{pipeline.name}: ready to run, warnings: {warning_count}"
