"""What belongs to tables of the source beside their columns: keys, indexes, constraints, sequences.

Reads only, and all tables at once: the number of queries does not grow with theirs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.rows import namedtuple_row

from penstock.schema.describe import structure_of
from penstock.schema.description import TableStructure, UsedSequence
from penstock.schema.shape import SequenceShape
from penstock.source.connect import source_errors
from penstock.source.ordinary import are_ordinary, refuses_views
from penstock.source.shapes import qualified_names, read_named_shapes
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.schema.description import SequenceUse
    from penstock.schema.shape import TableShape

    Connection = psycopg.Connection[Any]

__all__ = ["TableStructure", "UsedSequence", "read_structure", "structures_of"]

_USES: dict[str, SequenceUse] = {"i": "identity", "a": "serial", "n": "default"}

# pg_sequence_last_value returns nothing for a sequence that has not been called, and in some versions
# fails for a role without privilege.
_SEQUENCES = """
WITH used(table_oid, number, oid, kind) AS (
    SELECT d.refobjid, d.refobjsubid::int, d.objid, d.deptype::text FROM pg_depend d
    WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
      AND d.refobjid = ANY (%(oids)s::oid[]) AND d.refobjsubid > 0 AND d.deptype IN ('a', 'i')
    UNION ALL
    SELECT a.adrelid, a.adnum::int, d.refobjid, 'n' FROM pg_attrdef a
    JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = a.oid
        AND d.refclassid = 'pg_class'::regclass AND d.deptype = 'n'
    WHERE a.adrelid = ANY (%(oids)s::oid[])
)
SELECT DISTINCT ON (u.table_oid, u.number, n.nspname, c.relname)
       u.table_oid, u.kind, a.attname AS column,
       c.oid::int8 AS sequence_oid, n.nspname AS sequence_schema,
       c.relname AS sequence_name, format_type(s.seqtypid, NULL) AS sequence_type,
       s.seqstart AS start, s.seqincrement AS increment, s.seqmin AS minimum, s.seqmax AS maximum,
       s.seqcache AS cache, s.seqcycle AS cycles,
       has_schema_privilege(n.oid, 'USAGE') AND has_sequence_privilege(c.oid, 'SELECT') AS readable,
       CASE WHEN has_sequence_privilege(c.oid, 'SELECT, USAGE')
            THEN pg_sequence_last_value(c.oid) END AS last_value
FROM used u
JOIN pg_sequence s ON s.seqrelid = u.oid
JOIN pg_class c ON c.oid = s.seqrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = u.table_oid AND a.attnum = u.number
ORDER BY u.table_oid, u.number, n.nspname, c.relname, u.kind = 'n'
"""

_NO_SEQUENCE = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.ObjectNotInPrerequisiteState,  # a view
)

# Each sequence that is read is locked until the transaction ends.
_SEQUENCES_AT_ONCE = 200


def read_structure(
    connection: Connection, names: Sequence[TableName]
) -> dict[TableName, TableStructure]:
    """Each of the tables that exists, as it is now, in the order given.

    Of a partitioned table it is what the root itself has.

    Raises:
        SourceError: or the subclass that says why.
    """
    shapes = read_named_shapes(connection, names)
    found = structures_of(connection, shapes.values())
    return {name: found[name] for name in names if name in found}


def structures_of(
    connection: Connection, shapes: Iterable[TableShape]
) -> dict[TableName, TableStructure]:
    """What tables of these shapes have, and where their sequences stand now.

    Raises:
        SourceError: or the subclass that says why.
    """
    shapes = list(shapes)
    with (
        source_errors(connection),
        qualified_names(connection),
        connection.cursor(row_factory=namedtuple_row) as cursor,
    ):
        oids = [shape.id for shape in shapes]
        rows: list[Any] = cursor.execute(_SEQUENCES, {"oids": oids}).fetchall()
        uncalled = _uncalled_values(
            connection,
            [
                TableName(row.sequence_schema, row.sequence_name)
                for row in rows
                if row.readable and row.last_value is None
            ],
        )
    used: dict[int, list[UsedSequence]] = {}
    for row in rows:
        used.setdefault(row.table_oid, []).append(_used_sequence(row, uncalled))
    return {
        shape.table: replace(structure_of(shape), sequences=tuple(used.get(shape.id, ())))
        for shape in shapes
    }


def _used_sequence(row: Any, uncalled: dict[TableName, tuple[int, bool]]) -> UsedSequence:
    sequence = SequenceShape(
        id=row.sequence_oid,
        schema_name=row.sequence_schema,
        name=row.sequence_name,
        type=row.sequence_type,
        start=row.start,
        increment=row.increment,
        minimum=row.minimum,
        maximum=row.maximum,
        cache=row.cache,
        cycles=row.cycles,
    )
    value, is_called = row.last_value, True
    if value is None:
        value, is_called = uncalled.get(sequence.qualified, (None, False))
    return UsedSequence(row.column, _USES[row.kind], sequence, value, is_called)


def _uncalled_values(
    connection: Connection, names: list[TableName]
) -> dict[TableName, tuple[int, bool]]:
    """Where sequences stand that have not given a value yet: only they themselves know."""
    distinct = list(dict.fromkeys(names))
    found: dict[TableName, tuple[int, bool]] = {}
    is_safe = not distinct or refuses_views(connection)
    for start in range(0, len(distinct), _SEQUENCES_AT_ONCE):
        some = distinct[start : start + _SEQUENCES_AT_ONCE]
        found.update(_values(connection, some, is_safe=is_safe))
    return found


def _values(
    connection: Connection, names: Sequence[TableName], *, is_safe: bool
) -> Iterator[tuple[TableName, tuple[int, bool]]]:
    selects = [
        sql.SQL("SELECT {}::int, last_value, is_called FROM {}").format(
            sql.Literal(place), sql.Identifier(*name)
        )
        for place, name in enumerate(names)
    ]
    try:
        with connection.transaction():
            if not (is_safe or are_ordinary(connection, names)):
                raise psycopg.errors.ObjectNotInPrerequisiteState
            rows = connection.execute(sql.SQL(" UNION ALL ").join(selects)).fetchall()
    except _NO_SEQUENCE:
        # One was dropped since the catalog was read, or is another relation by now; the others have a value
        # all the same.
        for name in names if len(names) > 1 else ():
            yield from _values(connection, [name], is_safe=is_safe)
    else:
        yield from ((names[place], (value, is_called)) for place, value, is_called in rows)
