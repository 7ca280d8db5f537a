"""What belongs to tables of the source beside their columns: keys, indexes, constraints, sequences.

Reads only, and all tables at once: the number of queries does not grow with theirs. Definitions are
the server's own spelling, with every name that is not Postgres's own under its schema.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.rows import namedtuple_row

from penstock.schema.description import (
    ACTIONS,
    CONSTRAINT_KINDS,
    MATCHES,
    Constraint,
    ForeignKey,
    Index,
    PrimaryKey,
    TableStructure,
    UsedSequence,
)
from penstock.source.connect import source_errors
from penstock.source.description import qualified_names, sequence_of
from penstock.table import TableName, as_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.schema.description import SequenceUse

    Connection = psycopg.Connection[Any]

__all__ = [
    "Constraint",
    "ForeignKey",
    "Index",
    "PrimaryKey",
    "TableStructure",
    "UsedSequence",
    "read_structure",
]

_USES: dict[str, SequenceUse] = {"i": "identity", "a": "serial", "n": "default"}

_TABLES = """
SELECT c.oid, n.nspname AS schema, c.relname AS name, c.relreplident::text AS replica_identity
FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS wanted(schema, name, place)
JOIN pg_namespace n ON n.nspname = wanted.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name
WHERE c.relkind IN ('r', 'p')
ORDER BY wanted.place
"""

# The start of a definition is computed, not looked for: a name may hold ' USING '. Columns of
# expressions and predicates are known from what the index depends on.
_INDEXES = """
SELECT i.indrelid AS table_oid, c.relname AS name, i.indisunique AS is_unique,
       i.indisprimary AS is_primary, i.indisreplident AS is_identity, i.indisvalid AS is_valid,
       i.indimmediate AS is_immediate, o.conindid IS NOT NULL AS is_of_constraint,
       format('CREATE %%sINDEX %%I ON %%s%%I.%%I USING ', CASE WHEN i.indisunique THEN 'UNIQUE ' END,
              c.relname, CASE WHEN c.relkind = 'I' THEN 'ONLY ' END, n.nspname, t.relname) AS head,
       pg_get_indexdef(i.indexrelid) AS definition,
       ARRAY(SELECT a.attname::text
             FROM unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) WITH ORDINALITY AS k(number, place)
             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
             ORDER BY k.place) AS key_columns,
       ARRAY(SELECT a.attname::text FROM pg_attribute a
             WHERE a.attrelid = i.indrelid AND a.attnum > 0
               AND (a.attnum = ANY (i.indkey::int2[]) OR EXISTS (
                   SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass
                   AND d.objid = i.indexrelid AND d.refclassid = 'pg_class'::regclass
                   AND d.refobjid = i.indrelid AND d.refobjsubid = a.attnum))) AS used_columns
FROM pg_index i
JOIN pg_class c ON c.oid = i.indexrelid
JOIN pg_class t ON t.oid = i.indrelid
JOIN pg_namespace n ON n.oid = t.relnamespace
LEFT JOIN pg_constraint o ON o.conindid = i.indexrelid AND o.conrelid = i.indrelid
    AND o.contype IN ('p', 'u', 'x')
WHERE i.indrelid = ANY (%s::oid[]) AND i.indislive
  AND pg_get_indexdef(i.indexrelid) IS NOT NULL -- dropped after the snapshot
ORDER BY i.indrelid, c.relname
"""

# Fields that not every version has are asked of the row as JSON. A foreign key that leads to a
# partitioned table has rows for its partitions too, whose parent is a constraint of the same table.
_CONSTRAINTS = """
SELECT o.conrelid AS table_oid, o.conname AS name, o.contype::text AS kind,
       pg_get_constraintdef(o.oid) AS definition, o.condeferrable AS is_deferrable,
       o.condeferred AS is_deferred, o.convalidated AS is_valid,
       o.confupdtype::text AS on_update, o.confdeltype::text AS on_delete,
       o.confmatchtype::text AS match, x.relname AS index_name,
       coalesce((to_jsonb(o) ->> 'conenforced')::boolean, true) AS is_enforced,
       coalesce((to_jsonb(o) ->> 'conperiod')::boolean, false) AS has_period,
       fn.nspname AS referenced_schema, f.relname AS referenced_name,
       ARRAY(SELECT a.attname::text FROM unnest(o.conkey) WITH ORDINALITY AS k(number, place)
             JOIN pg_attribute a ON a.attrelid = o.conrelid AND a.attnum = k.number
             ORDER BY k.place) AS columns,
       ARRAY(SELECT a.attname::text FROM unnest(o.confkey) WITH ORDINALITY AS k(number, place)
             JOIN pg_attribute a ON a.attrelid = o.confrelid AND a.attnum = k.number
             ORDER BY k.place) AS referenced_columns,
       ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = o.conrelid
             AND to_jsonb(o) -> 'confdelsetcols' @> to_jsonb(a.attnum)
             ORDER BY a.attnum) AS on_delete_columns
FROM pg_constraint o
LEFT JOIN pg_constraint p ON p.oid = o.conparentid
LEFT JOIN pg_class x ON x.oid = o.conindid
LEFT JOIN pg_class f ON f.oid = o.confrelid
LEFT JOIN pg_namespace fn ON fn.oid = f.relnamespace
WHERE o.conrelid = ANY (%s::oid[]) AND o.contype IN ('p', 'u', 'x', 'c', 'f')
  AND pg_get_constraintdef(o.oid) IS NOT NULL
  AND (o.contype <> 'f' OR p.conrelid IS DISTINCT FROM o.conrelid)
ORDER BY o.conrelid, o.contype, o.conname
"""

# pg_sequence_last_value tells nothing of a sequence that has not been called, and in some versions
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
       u.table_oid, u.kind, a.attname AS column, n.nspname AS sequence_schema,
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
    with (
        source_errors(connection),
        qualified_names(connection),
        connection.cursor(row_factory=namedtuple_row) as cursor,
    ):
        tables: list[Any] = cursor.execute(_TABLES, as_columns(names)).fetchall()
        oids = [table.oid for table in tables]
        indexes = _by_table(cursor.execute(_INDEXES, (oids,)))
        constraints = _by_table(cursor.execute(_CONSTRAINTS, (oids,)))
        sequences: list[Any] = cursor.execute(_SEQUENCES, {"oids": oids}).fetchall()
        uncalled = _uncalled_values(
            connection,
            [
                TableName(row.sequence_schema, row.sequence_name)
                for row in sequences
                if row.readable and row.last_value is None
            ],
        )
    used: dict[int, list[UsedSequence]] = {}
    for row in sequences:
        used.setdefault(row.table_oid, []).append(_used_sequence(row, uncalled))
    return {
        TableName(table.schema, table.name): _structure(
            table,
            indexes.get(table.oid, []),
            constraints.get(table.oid, []),
            tuple(used.get(table.oid, ())),
        )
        for table in tables
    }


def _by_table(rows: Iterable[Any]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for row in rows:
        found.setdefault(row.table_oid, []).append(row)
    return found


def _structure(
    table: Any, indexes: list[Any], constraints: list[Any], sequences: tuple[UsedSequence, ...]
) -> TableStructure:
    used = {index.name: frozenset(index.used_columns) for index in indexes}
    identity = next((index for index in indexes if index.is_identity), None)
    if table.replica_identity != "i":
        identity = None
    primary = next((index for index in indexes if index.is_primary), None)
    key = next((index for index in (identity, primary) if index and _tells_rows(index)), None)
    return TableStructure(
        name=TableName(table.schema, table.name),
        key_columns=tuple(key.key_columns) if key is not None else (),
        primary_key=next(
            (
                _primary_key(row, used.get(row.index_name, frozenset()))
                for row in constraints
                if row.kind == "p"
            ),
            None,
        ),
        identity_index=key.name if key is not None and key is not primary else None,
        indexes=tuple(_index(row) for row in indexes if row.is_valid and not row.is_of_constraint),
        constraints=tuple(
            Constraint(
                row.name,
                CONSTRAINT_KINDS[row.kind],
                row.definition,
                frozenset(row.columns) | used.get(row.index_name, frozenset()),
            )
            for row in constraints
            if row.kind in CONSTRAINT_KINDS
        ),
        foreign_keys=tuple(_foreign_key(row) for row in constraints if row.kind == "f"),
        sequences=sequences,
    )


def _tells_rows(index: Any) -> bool:
    """As in `describe_table`: a deferrable key may hold a value twice for a moment."""
    return bool(index.is_valid and index.is_immediate)


def _index(row: Any) -> Index:
    assert row.definition.startswith(row.head), "the server spells an index as it never did"
    return Index(
        row.name,
        row.is_unique,
        row.definition.removeprefix(row.head),
        frozenset(row.used_columns),
    )


def _primary_key(row: Any, used_columns: frozenset[str]) -> PrimaryKey:
    return PrimaryKey(
        row.name,
        tuple(row.columns),
        row.definition,
        used_columns,
        is_deferrable=row.is_deferrable,
        has_period=row.has_period,
    )


def _foreign_key(row: Any) -> ForeignKey:
    return ForeignKey(
        name=row.name,
        columns=tuple(row.columns),
        referenced=TableName(row.referenced_schema, row.referenced_name),
        referenced_columns=tuple(row.referenced_columns),
        on_update=ACTIONS[row.on_update],
        on_delete=ACTIONS[row.on_delete],
        on_delete_columns=tuple(row.on_delete_columns),
        match=MATCHES[row.match],
        is_deferrable=row.is_deferrable,
        is_deferred=row.is_deferred,
        is_valid=row.is_valid,
        is_enforced=row.is_enforced,
        has_period=row.has_period,
    )


def _used_sequence(row: Any, uncalled: dict[TableName, tuple[int, bool]]) -> UsedSequence:
    sequence = sequence_of(row)
    value, is_called = row.last_value, True
    if value is None:
        value, is_called = uncalled.get(sequence.name, (None, False))
    return UsedSequence(row.column, _USES[row.kind], sequence, value, is_called)


def _uncalled_values(
    connection: Connection, names: list[TableName]
) -> dict[TableName, tuple[int, bool]]:
    """Where sequences stand that have not given a value yet: only they themselves know."""
    distinct = list(dict.fromkeys(names))
    found: dict[TableName, tuple[int, bool]] = {}
    for start in range(0, len(distinct), _SEQUENCES_AT_ONCE):
        found.update(_values(connection, distinct[start : start + _SEQUENCES_AT_ONCE]))
    return found


def _values(
    connection: Connection, names: Sequence[TableName]
) -> Iterator[tuple[TableName, tuple[int, bool]]]:
    selects = [
        sql.SQL("SELECT {}::int, last_value, is_called FROM {}").format(
            sql.Literal(place), sql.Identifier(*name)
        )
        for place, name in enumerate(names)
    ]
    try:
        with connection.transaction():
            rows = connection.execute(sql.SQL(" UNION ALL ").join(selects)).fetchall()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege):
        # One was dropped since the catalog was read; the others have a value all the same.
        for name in names if len(names) > 1 else ():
            yield from _values(connection, [name])
    else:
        yield from ((names[place], (value, is_called)) for place, value, is_called in rows)
