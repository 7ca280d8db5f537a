"""penstock check: every finding at once, each with what mends it. Changes nothing."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import dataclass, replace

import typer

from penstock.cli.exposure import exposures
from penstock.cli.options import AsJson, PipelinePath
from penstock.config import PipelineFile, read_pipeline
from penstock.errors import JavaMissing, PenstockError, SourceTwice
from penstock.pipeline import check_logs, landings_of
from penstock.run.start import Databases
from penstock.schema.catalog import read_shapes
from penstock.schema.shape import TableShape
from penstock.sinks.postgres.adoption import find_occupied
from penstock.sinks.postgres.leftout import expressions_left_out
from penstock.sinks.postgres.options import PostgresOptions
from penstock.sinks.postgres.preflight import check_target, missing_extensions
from penstock.sinks.postgres.rivals import mixed
from penstock.sinks.postgres.rowsecurity import filtered_tables
from penstock.sinks.postgres.strayrules import stray_rules
from penstock.sinks.postgres.structurecheck import Said, compare_structures, other_tables
from penstock.source.choice import read_choice
from penstock.source.connect import connect_source
from penstock.source.extensions import read_extensions
from penstock.source.preflight import Finding, preflight
from penstock.source.publication import read_publications
from penstock.source.sequences import FoundSequences, read_sequences
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


def find(pipeline: PipelineFile, choices: dict[str, _Chosen] | None = None) -> list[Finding]:
    """Every finding about source, sinks and this machine."""
    choices = _choices(pipeline) if choices is None else choices
    findings: list[Finding] = []
    databases = Databases(pipeline.sources)
    for view in pipeline.each():
        source = view.source
        found = preflight(source.url, source.tables, view.name, source.schema_options.tracking)
        findings += found if view.is_alone else [_named(each, view.source_id) for each in found]
        findings += [Finding(fault) for fault in _same_database(view, databases)]
    findings += [Finding(fault) for fault in _mixed_tables(pipeline, choices)]
    for name, options in pipeline.sinks.items():
        if isinstance(options, PostgresOptions):
            faults = check_target(options.url)
            findings += [Finding(fault) for fault in faults]
            if not faults:
                landed = _landed(pipeline, options, choices)
                findings += [Finding(fault) for fault in filtered_tables(options.url, landed)]
                findings += _tables_of(pipeline, options, choices)
                findings += map(_said, other_tables(options, pipeline.name, landed))
                extensions = _extensions(choices)
                lacking = missing_extensions(options.url, extensions)
                findings += [Finding(fault, "warning") for fault in lacking]
            if not faults and len(choices) == len(pipeline.sources):
                named = {table for each in choices.values() for table in each.named}
                strays = stray_rules(pipeline.name, name, options, named)
                findings += [Finding(fault, "warning") for fault in strays]
    findings += [Finding(each, "warning") for each in exposures(pipeline)]
    findings += [Finding(fault) for fault in _machine_faults()]
    findings += [Finding(fault, "warning") for fault in check_logs(pipeline)]
    return findings


def _named(finding: Finding, source_id: str) -> Finding:
    """The finding, such that it tells which of several sources it is about."""
    told = finding.error
    return replace(finding, error=type(told)(told.what, f"{source_id}/{told.where}", told.do))


def _same_database(view: PipelineFile, databases: Databases) -> list[PenstockError]:
    try:
        with connect_source(view.source.url, "penstock check") as connection:
            databases.claim(view.source_id, connection, view.source.url)
    except SourceTwice as error:
        return [error]
    except PenstockError:
        databases.tell(view.source_id)  # it is among the findings already
    return []


@dataclass(frozen=True)
class _Chosen:
    """Tables of a source: those that are followed, and those that findings of their own name."""

    followed: list[TableName]
    others: list[TableName]
    shapes: list[TableShape]
    extensions: dict[str, list[TableName]]
    sequences: FoundSequences

    @property
    def named(self) -> list[TableName]:
        return [*self.followed, *self.others]


def _choices(pipeline: PipelineFile) -> dict[str, _Chosen]:
    """What is followed of each source that answers."""
    found: dict[str, _Chosen] = {}
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
            found[view.source_id] = _Chosen(
                followed,
                [each.table for each in (*choice.left_out, *faults)],
                shapes,
                read_extensions(connection, followed),
                read_sequences(connection, shapes),
            )
    return found


def _extensions(choices: dict[str, _Chosen]) -> dict[str, list[TableName]]:
    """What tables of all sources are made with."""
    found: dict[str, list[TableName]] = {}
    for chosen in choices.values():
        for extension, tables in chosen.extensions.items():
            found.setdefault(extension, []).extend(tables)
    return found


def _mixed_tables(pipeline: PipelineFile, choices: dict[str, _Chosen]) -> list[PenstockError]:
    """Tables of several sources that would land in one, of which nobody has said so."""
    if pipeline.is_alone:
        return []
    faults: list[PenstockError] = []
    for options in pipeline.sinks.values():
        takers: dict[TableName, str] = {}
        for source_id, chosen in choices.items():
            if not isinstance(options, PostgresOptions):
                continue
            landings = landings_of(pipeline.of(source_id), options)
            for table in chosen.followed:
                landing = landings.of(table)
                first = takers.setdefault(landing.target, source_id)
                if first != source_id and landing.refuses_others:
                    faults.append(mixed(landing.target, first, source_id, table))
    return faults


def _landed(
    pipeline: PipelineFile, options: PostgresOptions, choices: dict[str, _Chosen]
) -> dict[TableName, TableName]:
    """The tables of a sink that are delivered to, each with a table of a source that lands there."""
    return {
        landings.of(table).target: table
        for source_id, chosen in choices.items()
        for landings in [landings_of(pipeline.of(source_id), options)]
        for table in chosen.followed
    }


def _tables_of(
    pipeline: PipelineFile, options: PostgresOptions, choices: dict[str, _Chosen]
) -> list[Finding]:
    """Tables whose place is taken, expressions that are not taken over, and what differs already."""
    findings: list[Finding] = []
    for source_id, chosen in choices.items():
        view = pipeline.of(source_id)
        landings = landings_of(view, options)
        if view.source.snapshot.copies_first:
            taken = find_occupied(landings, chosen.followed)
            # One that stops lets the others go on.
            is_all = len(taken) == len(chosen.followed)
            findings += [Finding(each, "error" if is_all else "warning") for each in taken]
        left_out = expressions_left_out(landings, chosen.shapes)
        findings += [Finding(each.finding, "warning") for each in left_out]
        differing = compare_structures(
            landings, chosen.shapes, left_out, copies_first=view.source.snapshot.copies_first
        )
        found = [_said(each) for each in differing]
        findings += found if view.is_alone else [_named(each, source_id) for each in found]
    return findings


def _said(each: Said) -> Finding:
    return Finding(each.error, "info" if each.is_meant else "warning")


def _creates_tables(pipeline: PipelineFile) -> bool:
    """Whether tables of the source are made anew anywhere."""
    return any(
        isinstance(options, PostgresOptions) and options.create_tables
        for options in pipeline.sinks.values()
    )


def _tables(chosen: _Chosen | None, *, creates: bool) -> list[str]:
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
