"""Tables that would go to one at the target, of which nobody has said so: who was first has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import TargetTableUnfit
from penstock.sinks.postgres.mapping.kept_names import KeptNames
from penstock.table import TableName, as_columns

if TYPE_CHECKING:
    import psycopg

    from penstock.sinks.postgres.mapping.table_mapping import TableMapping, TableMappings

_OWN = """
SELECT mapping, filled FROM penstock.tables
WHERE pipeline = %s AND source = %s AND schema_name = %s AND table_name = %s AND state <> 'removed'
"""
# Where a table goes that was renamed or ruled as another does not follow from its name. A target with placeholders
# may be filled in alike for two: a.b_c and a_b.c both go to {schema}_{table}.
_LISTED = """
SELECT source, schema_name, table_name, mapping,
       filled OR state IN ('catching_up', 'streaming') AS has_rows, state = 'copying' AS is_copying
FROM penstock.tables
WHERE pipeline = %s AND state <> 'removed' AND (source, schema_name, table_name) <> (%s, %s, %s)
  AND (table_name = %s OR mapping ?| '{target,ruled_as}' OR (schema_name, table_name) IN
       (SELECT * FROM unnest(%s::text[], %s::text[]))
       OR %s = ANY (SELECT replace(replace(t, '{schema}', schema_name), '{table}', table_name)
                    FROM unnest(%s::text[]) AS t))
ORDER BY source, schema_name, table_name
"""


def refuse_rivals(
    connection: psycopg.Connection[Any],
    table_mappings: TableMappings,
    table: TableName,
    target: TableName,
) -> None:
    """See that no other table has the place; of two that have not begun, the first in order has it.

    Who has rows there keeps the place, against all that have none.

    Raises:
        TargetTableUnfit: one has, and the rules do not say of both that they go there.
    """
    if not table_mappings.may_collide:
        return
    own = connection.execute(
        _OWN, (table_mappings.pipeline, table_mappings.source, *table)
    ).fetchone()
    own_mapping, is_filled = own or (None, False)
    table_mapping = table_mappings.of(table, KeptNames.read(own_mapping).ruled_as)
    named = table_mappings.names_for(target)
    values = (
        table_mappings.pipeline,
        table_mappings.source,
        *table,
        target.name,
        *as_columns(named),
        target.name,
        table_mappings.templates,
    )
    here = (table_mappings.sources.index(table_mappings.source), table)
    listed = connection.execute(_LISTED, values).fetchall()
    for source, schema, name, mapping, has_rows, is_copying in listed:
        other, known = TableName(schema, name), KeptNames.read(mapping)
        theirs = table_mappings.of(other, known.ruled_as)
        if (known.target or theirs.target) != target:
            continue
        is_of_other_source = source != table_mappings.source
        is_before = is_copying or (_order(table_mappings, source), other) < here
        has_the_place = has_rows or (is_before and not is_filled)
        if has_the_place and not _may_share(table_mapping, theirs, is_of_other_source):
            if is_of_other_source:
                raise mixed(target, source, table_mappings.source, table)
            raise taken(target, other, table)


def _order(table_mappings: TableMappings, source: str) -> int:
    """Which of the pipeline's sources it is; one that is not among them any more is before all."""
    return table_mappings.sources.index(source) if source in table_mappings.sources else -1


def _may_share(ours: TableMapping, theirs: TableMapping, is_of_other_source: bool) -> bool:
    """Whether the rules say of both tables that they go to one."""
    if is_of_other_source:
        return ours.is_shared and theirs.is_shared
    return ours.is_mixed and theirs.is_mixed


def taken(target: TableName, other: TableName, table: TableName) -> TargetTableUnfit:
    """The error of a table that would go where another one of its source does."""
    return TargetTableUnfit(
        f"{target} at the target already takes the rows of {other}",
        str(table),
        "set schema: same, exclude one of the two tables, or name a target for each",
    )


def mixed(target: TableName, other: str, source_id: str, source: TableName) -> TargetTableUnfit:
    """The error of a table that would go where another source's does."""
    return TargetTableUnfit(
        f"{target} at the target takes the rows of source {other}",
        f"{source_id}/{source}",
        "set source_id_column, or in tables: a target for each;"
        " a rule that names the target allows that they are mixed",
    )
