"""Which sequences tables count with, and what becomes of them at a target that penstock fills."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.schema.sequences import FoundSequences
from penstock.source.connect import source_errors
from penstock.table import TableName, as_columns

if TYPE_CHECKING:
    from collections.abc import Collection

    import psycopg

    from penstock.schema.shape import TableShape

# Sequences that columns of the tables count with, and those of the same schemas that are nobody's.
_SEQUENCES = """
WITH chosen AS (
    SELECT c.oid, c.relnamespace
    FROM unnest(%s::text[], %s::text[]) AS t(schema_name, name)
    JOIN pg_namespace n ON n.nspname = t.schema_name
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.name
), counted AS (
    SELECT d.objid AS sequence, d.refobjid AS relation, d.refobjsubid::int AS number
    FROM pg_depend d JOIN chosen ON chosen.oid = d.refobjid
    WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
      AND d.refobjsubid > 0 AND d.deptype = 'i'
    UNION
    SELECT d.refobjid, a.adrelid, a.adnum::int
    FROM pg_attrdef a JOIN chosen ON chosen.oid = a.adrelid
    JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = a.oid
        AND d.refclassid = 'pg_class'::regclass AND d.deptype = 'n'
), used AS (
    SELECT sequence, count(*) AS columns FROM counted GROUP BY sequence
)
SELECT n.nspname, c.relname, coalesce(used.columns, 0), owner.relation IS NOT NULL
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN used ON used.sequence = c.oid
LEFT JOIN LATERAL (
    SELECT d.refobjid AS relation FROM pg_depend d
    WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype IN ('a', 'i')
      AND d.refclassid = 'pg_class'::regclass AND d.refobjsubid > 0
    LIMIT 1
) AS owner ON true
WHERE c.relkind = 'S' AND c.relpersistence <> 't'
  AND (used.sequence IS NOT NULL
       OR owner.relation IS NULL AND c.relnamespace IN (SELECT relnamespace FROM chosen))
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass
                  AND d.objid = c.oid AND d.deptype = 'e')
ORDER BY n.nspname, c.relname
"""


def read_sequences(
    connection: psycopg.Connection[Any], shapes: Collection[TableShape]
) -> FoundSequences:
    """The sequences of followed tables, and those beside them that no table owns.

    Raises:
        SourceError: or the subclass that says why.
    """
    tables = as_columns(shape.table for shape in shapes)
    with source_errors(connection):
        rows = connection.execute(_SEQUENCES, tables).fetchall()
    made = {
        TableName(column.sequence.schema_name, column.sequence.name)
        for shape in shapes
        for column in shape.columns
        if column.sequence is not None
    }
    free = {TableName(each.schema_name, each.name) for shape in shapes for each in shape.sequences}
    found = FoundSequences()
    for schema, name, column_count, is_owned in rows:
        sequence = TableName(schema, name)
        if not column_count:
            found.unused.append(sequence)
        elif is_owned and sequence not in made and sequence not in free:
            found.missed.append(sequence)
        else:
            found.carried.append(sequence)
            found.free.extend([sequence] * (not is_owned or sequence in free))
            found.shared.extend([sequence] * (column_count > 1))
    return found
