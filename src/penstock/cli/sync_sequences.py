"""penstock sync-sequences: the targets' sequences go on where the source's stand."""

from __future__ import annotations

import json
import sys
from typing import Any

import typer
from psycopg import sql

from penstock.cli.options import AsJson, PipelinePath
from penstock.config import PipelineFile, read_pipeline
from penstock.errors import SourcePrivilegeMissing
from penstock.sinks.status import SequencePosition
from penstock.source.choice import read_choice
from penstock.source.connect import connect_source
from penstock.source.sequences import read_sequences
from penstock.source.shapes import read_named_shapes
from penstock.source.structure import TableStructure, structures_of
from penstock.table import TableName
from penstock.text import printable


def sync_sequences(path: PipelinePath, as_json: AsJson = False) -> None:
    """Let the sequences of Postgres targets go on where the source's stand, to cut over."""
    pipeline = read_pipeline(path)
    views = pipeline.each()
    sources = [_read_source(view) for view in views]
    structures = [structure for structure, _ in sources]
    found = [
        (name, position)
        for name in pipeline.sinks
        for view, each in zip(views, structures, strict=True)
        for position in pipeline.kind_of(name).sync_sequences(view.place_of(name), each)
    ]
    _print_positions(found, as_json=as_json)
    for unused in [each for _, sequences in sources for each in sequences]:
        said = f"{pipeline.name}: {unused} is left out: no column that is followed counts with it"
        print(printable(said), file=sys.stderr)  # noqa: T201
    for view, each in zip(views, structures, strict=True):
        _require_all_seen(view, each)
    if not found:
        print(f"{pipeline.name}: no sequence to set", file=sys.stderr)  # noqa: T201


def _print_positions(found: list[tuple[str, SequencePosition]], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([_as_dict(sink, position) for sink, position in found]))
        return
    for sink, position in found:
        typer.echo(printable(f"{sink}: {_as_text(position)}"))


def _read_source(pipeline: PipelineFile) -> tuple[list[TableStructure], list[TableName]]:
    """The followed tables, and sequences beside them that only applications call."""
    with connect_source(pipeline.source.url, "penstock sync-sequences") as connection:
        choice, _ = read_choice(connection, pipeline.source.tables)
        tables = [table.name for table in (*choice.updates, *choice.inserts)]
        shapes = read_named_shapes(connection, tables)
        structures = structures_of(connection, shapes.values())
        return list(structures.values()), read_sequences(connection, shapes.values()).unused


def _require_all_seen(pipeline: PipelineFile, structures: list[TableStructure]) -> None:
    """Say what was skipped, once all others are set: at a cut-over it would be missed.

    Raises:
        SourcePrivilegeMissing: the role may not see where some sequences stand.
    """
    hidden = dict.fromkeys(
        used.sequence.qualified
        for structure in structures
        for used in structure.sequences
        if used.last_value is None
    )
    if hidden:
        names = ", ".join(sql.Identifier(*name).as_string(None) for name in hidden)
        role = sql.Identifier(pipeline.source.url.user).as_string(None)
        raise SourcePrivilegeMissing(
            f"the role may not see where {len(hidden)} sequences stand; they were skipped",
            str(pipeline.source.url),
            f"GRANT SELECT ON SEQUENCE {names} TO {role}",
        )


def _as_text(position: SequencePosition) -> str:
    already = "" if position.is_set else ", where it was: further on than the source's"
    return f"{position.sequence} of {position.table} stands at {position.value}{already}"


def _as_dict(sink: str, position: SequencePosition) -> dict[str, Any]:
    return {
        "sink": sink,
        "table": str(position.table),
        "sequence": str(position.sequence),
        "value": position.value,
        "set": position.is_set,
    }
