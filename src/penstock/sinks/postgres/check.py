"""What `penstock check` says of a Postgres sink: tables that cannot land, and what differs already.

Opens connections and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.findings import Finding
from penstock.sinks.postgres.compare.check import compare_structures, other_tables
from penstock.sinks.postgres.compare.left_out import expressions_left_out
from penstock.sinks.postgres.kind import mappings_of
from penstock.sinks.postgres.mapping.orphaned_rules import orphaned_rules
from penstock.sinks.postgres.mapping.rivals import mixed, taken
from penstock.sinks.postgres.mapping.row_security import filtered_tables
from penstock.sinks.postgres.preflight import check_target, missing_extensions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penstock.errors import PenstockError
    from penstock.sinks.chosen import ChosenTables
    from penstock.sinks.kind import SinkPlace
    from penstock.sinks.postgres.compare.check import Said
    from penstock.sinks.postgres.kind import PostgresKind
    from penstock.sinks.postgres.mapping.table_mapping import TableMappings
    from penstock.sinks.postgres.options import PostgresOptions
    from penstock.table import TableName

    Place = SinkPlace[PostgresOptions]


def check_sink(
    kind: PostgresKind, places: Mapping[str, Place], chosen: Mapping[str, ChosenTables]
) -> Iterator[Finding]:
    """Every finding. `places` are those of all sources, `chosen` the tables of those that answered.

    Raises:
        SinkError: the target went away meanwhile.
    """
    any_place = next(iter(places.values()))
    options, pipeline = any_place.options, any_place.pipeline
    mappings = {source_id: mappings_of(places[source_id]) for source_id in chosen}
    yield from map(Finding, _mixed_tables(mappings, chosen))
    faults = check_target(options.url)
    yield from map(Finding, faults)
    if faults:
        return
    mapped = _mapped_tables(mappings, chosen)
    yield from map(Finding, filtered_tables(options.url, mapped))
    for source_id, each in chosen.items():
        yield from _tables_of_source(kind, places[source_id], each)
    yield from map(_finding, other_tables(options, pipeline, mapped))
    yield from _warnings(missing_extensions(options.url, _extensions(chosen)))
    if len(chosen) == len(places):
        named = {table for each in chosen.values() for table in each.named}
        yield from _warnings(orphaned_rules(pipeline, any_place.name, options, named))


def _mixed_tables(
    mappings: Mapping[str, TableMappings], chosen: Mapping[str, ChosenTables]
) -> Iterator[PenstockError]:
    """Tables that would land in one, of which nobody has said so."""
    takers: dict[TableName, tuple[str, TableName]] = {}
    for source_id, each in chosen.items():
        for table in sorted(each.followed):
            mapping = mappings[source_id].of(table)
            first, other = takers.setdefault(mapping.target, (source_id, table))
            if first != source_id:
                if mapping.refuses_others:
                    yield mixed(mapping.target, first, source_id, table)
            elif other != table and not (mapping.is_mixed and mappings[first].of(other).is_mixed):
                yield taken(mapping.target, other, table)


def _mapped_tables(
    mappings: Mapping[str, TableMappings], chosen: Mapping[str, ChosenTables]
) -> dict[TableName, TableName]:
    """The tables that are delivered to, each with a table of a source that lands there."""
    return {
        mappings[source_id].of(table).target: table
        for source_id, each in chosen.items()
        for table in each.followed
    }


def _tables_of_source(kind: PostgresKind, place: Place, chosen: ChosenTables) -> Iterator[Finding]:
    """Tables whose place is taken, expressions that are not taken over, and what differs already."""
    if place.copies_first:
        yield from kind.occupied(place, chosen.followed)
    mappings = mappings_of(place)
    left_out = expressions_left_out(mappings, chosen.shapes)
    yield from _warnings(each.finding for each in left_out)
    differing = compare_structures(
        mappings, chosen.shapes, left_out, copies_first=place.copies_first
    )
    for each in map(_finding, differing):
        yield each if place.is_alone else each.of_source(place.source_id)


def _extensions(chosen: Mapping[str, ChosenTables]) -> dict[str, list[TableName]]:
    """What tables of all sources are made with."""
    found: dict[str, list[TableName]] = {}
    for each in chosen.values():
        for extension, tables in each.extensions.items():
            found.setdefault(extension, []).extend(tables)
    return found


def _warnings(errors: Iterable[PenstockError]) -> Iterator[Finding]:
    return (Finding(error, "warning") for error in errors)


def _finding(said: Said) -> Finding:
    return Finding(said.error, "info" if said.is_meant else "warning")
