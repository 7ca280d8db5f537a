"""Let the target's sequences go on where the source's stand, for the day it takes inserts itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import namedtuple_row

from penstock.errors import TargetTableUnfit
from penstock.sinks.status import SequencePosition
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.schema.description import TableStructure, UsedSequence

    Connection = psycopg.Connection[Any]

# For each wanted column the sequence that it counts with here: the identity's, one that it owns,
# one that its default names; else the sequence of the same name beside the table.
_SEQUENCES = """
SELECT w.place::int, s.seqrelid AS oid, n.nspname AS schema, c.relname AS name,
       s.seqincrement > 0 AS counts_up, s.seqcycle AS cycles,
       CASE WHEN has_sequence_privilege(c.oid, 'SELECT, USAGE')
            THEN pg_sequence_last_value(c.oid) END AS last_value
FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[]) WITH ORDINALITY
    AS w(schema, table_name, column_name, sequence_name, place)
CROSS JOIN LATERAL (
    SELECT used.oid
    FROM (
        SELECT d.objid AS oid, CASE d.deptype WHEN 'i' THEN 0 ELSE 1 END AS rank
        FROM pg_namespace tn
        JOIN pg_class t ON t.relnamespace = tn.oid AND t.relname = w.table_name
        JOIN pg_attribute a ON a.attrelid = t.oid AND a.attname = w.column_name
        JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
            AND d.refobjid = t.oid AND d.refobjsubid = a.attnum AND d.deptype IN ('a', 'i')
        WHERE tn.nspname = w.schema
        UNION ALL
        SELECT d.refobjid, 2
        FROM pg_namespace tn
        JOIN pg_class t ON t.relnamespace = tn.oid AND t.relname = w.table_name
        JOIN pg_attribute a ON a.attrelid = t.oid AND a.attname = w.column_name
        JOIN pg_attrdef e ON e.adrelid = t.oid AND e.adnum = a.attnum
        JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = e.oid
            AND d.refclassid = 'pg_class'::regclass AND d.deptype = 'n'
        WHERE tn.nspname = w.schema
        UNION ALL
        SELECT b.oid, 3 FROM pg_class b JOIN pg_namespace bn ON bn.oid = b.relnamespace
        WHERE bn.nspname = w.schema AND b.relname = w.sequence_name
    ) AS used
    JOIN pg_class u ON u.oid = used.oid AND u.relkind = 'S'
    ORDER BY used.rank, u.relname <> w.sequence_name, used.oid
    LIMIT 1
) AS chosen
JOIN pg_sequence s ON s.seqrelid = chosen.oid
JOIN pg_class c ON c.oid = s.seqrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY w.place
"""


def set_sequences(connection: Connection, target: TableName, structure: TableStructure) -> int:
    """Let one table's sequences go on where the source's stood; how many were set.

    Raises:
        psycopg.Error, TargetTableUnfit: as below.
    """
    positions = sync_sequences(connection, [structure], lambda _: target)
    return sum(position.is_set for position in positions)


def sync_sequences(
    connection: Connection,
    structures: Iterable[TableStructure],
    place: Callable[[TableName], TableName],
) -> list[SequencePosition]:
    """Let sequences of the target go on where the source's stood. May be repeated.

    `place` says where a source table goes. A sequence is never moved back: the target may have
    handed out numbers itself. What the target does not have, and what the source did not report, is
    skipped.

    Raises:
        psycopg.Error: the role may not set one, or the server went away.
        TargetTableUnfit: a sequence of the target cannot hold the value.
    """
    known = [
        (place(structure.name), used, used.last_value)
        for structure in structures
        for used in structure.sequences
        if used.last_value is not None
    ]
    columns = (
        [table.schema for table, _, _ in known],
        [table.name for table, _, _ in known],
        [used.column for _, used, _ in known],
        [used.sequence.name for _, used, _ in known],
    )
    with connection.cursor(row_factory=namedtuple_row) as cursor:
        rows: list[Any] = cursor.execute(_SEQUENCES, columns).fetchall()
    positions = []
    for row in rows:
        table, used, value = known[row.place - 1]
        name = TableName(row.schema, row.name)
        if _is_ahead(row, value):
            positions.append(SequencePosition(table, name, row.last_value, is_set=False))
            continue
        _set(connection, row.oid, name, table, used, value)
        positions.append(SequencePosition(table, name, value, is_set=True))
    return positions


def _is_ahead(row: Any, value: int) -> bool:
    if row.last_value is None or row.cycles:
        return False
    return bool(row.last_value > value if row.counts_up else row.last_value < value)


def _set(
    connection: Connection,
    oid: int,
    name: TableName,
    table: TableName,
    used: UsedSequence,
    value: int,
) -> None:
    try:
        connection.execute("SELECT setval(%s::oid::regclass, %s, %s)", (oid, value, used.is_called))
    except psycopg.errors.NumericValueOutOfRange:
        raise TargetTableUnfit(
            f"the target's sequence {name} cannot hold {value}, where the source's stands",
            str(table),
            f"ALTER SEQUENCE with the type and the limits of the source's {used.sequence.qualified}",
        ) from None
