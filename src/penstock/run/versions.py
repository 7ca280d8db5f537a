"""Versions of the source's schemas: which there are, what each was, how two differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import BadValue, TrackingBroken
from penstock.schema.difference import (
    Difference,
    compare_sequences,
    compare_tables,
    compare_types,
)
from penstock.schema.match import match_by_id
from penstock.schema.shape import SequenceShape, TableShape, TypeShape, read_schema
from penstock.source.connect import connect_source
from penstock.source.schemalog import read_schema_version, read_versions

if TYPE_CHECKING:
    from datetime import datetime

    from penstock.config import PipelineFile

_NONE = "penstock init with source.schema.tracking: triggers, by a role that may install them"


@dataclass(frozen=True)
class Version:
    """One version of one schema. `lsn` is where in the stream it begins."""

    schema_name: str
    version: int
    created_at: datetime
    acked: bool
    lsn: str | None


def list_versions(pipeline: PipelineFile, schema: str | None = None) -> list[Version]:
    """Every version that the source's log has, oldest first.

    Raises:
        TrackingBroken: there are no triggers that would write versions.
        SourceError: the source cannot be asked.
    """
    with connect_source(pipeline.source.url, "penstock schema") as connection:
        found = read_versions(connection, pipeline.name)
    if not found:
        raise TrackingBroken(
            "the source has no versions of its schemas", str(pipeline.source.url), _NONE
        )
    return [
        Version(
            each.schema_name,
            each.version,
            each.created_at,
            each.acked,
            str(each.lsn) if each.lsn is not None else None,
        )
        for each in found
        if schema is None or each.schema_name == schema
    ]


def show_version(pipeline: PipelineFile, schema: str | None, number: int | None) -> dict[str, Any]:
    """A schema as it was in a version, as JSON; the last one where none is said.

    Raises:
        BadValue: there is no such version, or no one schema is meant.
    """
    versions = list_versions(pipeline, schema)
    name = _one_schema(versions, schema)
    own = [each.version for each in versions if each.schema_name == name]
    number = max(own) if number is None else number
    if number not in own:
        raise BadValue(
            f"{name} has no version {number}, wanted {min(own)} to {max(own)}",
            "penstock schema",
            f"penstock schema PIPELINE.yml log --schema {name}",
        )
    with connect_source(pipeline.source.url, "penstock schema") as connection:
        document = read_schema_version(connection, pipeline.name, name, number)
    found = read_schema(document, f"version {number}")
    return {
        "schema": name,
        "version": number,
        "format": found.format,
        "tables": [each.model_dump(mode="json") for each in found.tables],
        "types": [each.model_dump(mode="json") for each in found.types],
        "sequences": [each.model_dump(mode="json") for each in found.sequences],
    }


def compare_versions(
    pipeline: PipelineFile, schema: str | None, first: int, second: int
) -> list[Difference]:
    """What the second version has that the first has not, and the other way round.

    Raises:
        BadValue: there is no such version, or no one schema is meant.
        SchemaUnreadable: a version does not parse.
    """
    before = read_schema(show_version(pipeline, schema, first), f"version {first}")
    after = read_schema(show_version(pipeline, schema, second), f"version {second}")
    differences: list[Difference] = []
    types: list[tuple[TypeShape | None, TypeShape | None]] = match_by_id(before.types, after.types)
    for old_type, new_type in types:
        differences += compare_types(old_type, new_type)
    tables: list[tuple[TableShape | None, TableShape | None]] = match_by_id(
        before.tables, after.tables
    )
    for old, new in tables:
        differences += compare_tables(old, new)
    sequences: list[tuple[SequenceShape | None, SequenceShape | None]] = match_by_id(
        before.sequences, after.sequences
    )
    for old_sequence, new_sequence in sequences:
        differences += compare_sequences(old_sequence, new_sequence)
    return differences


def _one_schema(versions: list[Version], schema: str | None) -> str:
    names = sorted({each.schema_name for each in versions})
    if schema is None and len(names) > 1 and "public" in names:
        return "public"
    if schema is not None and not names:
        raise BadValue(
            f"the source has no version of schema {schema!r}",
            "penstock schema",
            "penstock schema PIPELINE.yml log lists those there are",
        )
    if len(names) != 1:
        raise BadValue(
            f"versions of {', '.join(names) or 'no schema'}, wanted those of one",
            "penstock schema",
            "say --schema NAME",
        )
    return names[0]
