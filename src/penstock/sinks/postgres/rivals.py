"""Tables that would land in one at the target, of which nobody has said so: who was first has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import TargetTableUnfit
from penstock.sinks.postgres.mapped import mapped
from penstock.table import TableName, as_columns

if TYPE_CHECKING:
    import psycopg

    from penstock.sinks.postgres.landing import Landings

_LISTED = """
SELECT source, schema_name, table_name, mapping,
       filled OR state IN ('copying', 'catching_up', 'streaming') AS has_begun
FROM penstock.tables
WHERE pipeline = %s AND state <> 'removed' AND (source, schema_name, table_name) <> (%s, %s, %s)
  AND (table_name = %s OR mapping ? 'target' OR (schema_name, table_name) IN
       (SELECT * FROM unnest(%s::text[], %s::text[])))
ORDER BY source, schema_name, table_name
"""


def refuse_rivals(
    connection: psycopg.Connection[Any], landings: Landings, table: TableName, target: TableName
) -> None:
    """See that no other table has the place; of two that have not begun, the first in order has it.

    Raises:
        TargetTableUnfit: one has, and the rules do not say of both that they go there.
    """
    if not landings.may_collide:
        return
    landing = landings.of(table)
    named = landings.names_for(target)
    values = (landings.pipeline, landings.source, *table, target.name, *as_columns(named))
    here = (landings.sources.index(landings.source), table)
    for source, schema, name, mapping, has_begun in connection.execute(_LISTED, values).fetchall():
        other, known = TableName(schema, name), mapped(mapping)
        theirs = landings.of(other, known.ruled_as)
        if (known.target or theirs.target) != target:
            continue
        if source != landings.source:
            is_allowed = landing.is_shared and theirs.is_shared
            order = landings.sources.index(source) if source in landings.sources else -1
        else:
            is_allowed = landing.is_mixed and theirs.is_mixed
            order = here[0]
        if not is_allowed and (has_begun or (order, other) < here):
            if source != landings.source:
                raise mixed(target, source, landings.source, table)
            raise taken(target, other, table)


def taken(target: TableName, other: TableName, table: TableName) -> TargetTableUnfit:
    """The error of a table that would land where another one of its source does."""
    return TargetTableUnfit(
        f"{target} at the target already takes the rows of {other}",
        str(table),
        "set schema: same, exclude one of the two tables, or name a target for each",
    )


def mixed(target: TableName, other: str, source_id: str, source: TableName) -> TargetTableUnfit:
    """The error of a table that would land where another source's does."""
    return TargetTableUnfit(
        f"{target} at the target takes the rows of source {other}",
        f"{source_id}/{source}",
        "set source_id_column, or in tables: a target for each;"
        " a rule that names the target allows that they are mixed",
    )
