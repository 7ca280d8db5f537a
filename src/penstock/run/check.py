"""What `penstock check` finds about sources, sinks and this machine. Changes nothing, prints nothing."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.embedded.java import java_home
from penstock.errors import (
    JavaMissing,
    LogKeyMissing,
    LogKeyUnusable,
    LogRefused,
    LogUnreachable,
    PenstockError,
    SourceTwice,
)
from penstock.findings import Finding
from penstock.pipeline import check_logs, state_of, top_of
from penstock.run.exposure import exposures
from penstock.run.rules import find_rules, modified_choices
from penstock.run.start import Databases
from penstock.sinks.chosen import ChosenTables
from penstock.source.choice import read_choice
from penstock.source.connect import connect_source
from penstock.source.extensions import read_extensions
from penstock.source.preflight import preflight
from penstock.source.publication import read_publications
from penstock.source.sequences import read_sequences
from penstock.source.shapes import read_named_shapes

if TYPE_CHECKING:
    from penstock.config import PipelineFile


def find(pipeline: PipelineFile, choices: dict[str, ChosenTables] | None = None) -> list[Finding]:
    """Every finding about sources, sinks and this machine.

    Args:
        choices: what `read_choices` has returned, where the caller wants it, too.
    """
    choices = read_choices(pipeline) if choices is None else choices
    findings: list[Finding] = []
    databases = Databases(pipeline.sources)
    for view in pipeline.each():
        source = view.source
        found = preflight(source.url, source.tables, view.name, source.schema_options.tracking)
        findings += found if view.is_alone else [each.of_source(view.source_id) for each in found]
        findings += [Finding(fault) for fault in _same_database(view, databases)]
    findings += find_rules(pipeline, choices)
    for name in pipeline.sinks:
        places = {view.source_id: view.place_of(name) for view in pipeline.each()}
        findings += pipeline.kind_of(name).check(places, modified_choices(pipeline, name, choices))
    findings += [Finding(each, "warning") for each in exposures(pipeline)]
    findings += [Finding(fault) for fault in _machine_faults()]
    findings += [Finding(fault) for fault in _state_faults(pipeline)]
    findings += [_of_log(fault) for fault in check_logs(pipeline)]
    return findings


def read_choices(pipeline: PipelineFile) -> dict[str, ChosenTables]:
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
            shapes = list(read_named_shapes(connection, followed).values())
            found[view.source_id] = ChosenTables(
                followed,
                [each.table for each in (*choice.left_out, *faults)],
                shapes,
                read_extensions(connection, followed),
                read_sequences(connection, shapes),
            )
    return found


def _same_database(view: PipelineFile, databases: Databases) -> list[PenstockError]:
    try:
        with connect_source(view.source.url, "penstock check") as connection:
            databases.claim(view.source_id, connection, view.source.url)
    except SourceTwice as error:
        return [error]
    except PenstockError:
        databases.report(view.source_id)  # it is among the findings already
    return []


def _of_log(fault: PenstockError) -> Finding:
    # What is at risk, or might not fit, is not lost yet.
    is_error = isinstance(fault, LogKeyMissing | LogKeyUnusable | LogRefused | LogUnreachable)
    return Finding(fault, "error" if is_error else "warning")


def _state_faults(pipeline: PipelineFile) -> list[PenstockError]:
    """Of the pipeline's directory, else of those of its sources, which lie in it."""
    if (fault := top_of(pipeline).fault()) is not None:
        return [fault]
    if not pipeline.is_whole:
        return []
    faults = [state_of(view).fault() for view in pipeline.each()]
    return [fault for fault in faults if fault is not None]


def _machine_faults() -> list[PenstockError]:
    try:
        java_home()
    except JavaMissing as error:
        return [error]
    return []
