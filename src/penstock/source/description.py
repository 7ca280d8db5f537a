"""How a table of the source is made: enough to make one like it elsewhere. Reads only.

Types are spelled with their schema unless they are Postgres's own, whatever the search_path of the
connection: format_type leaves out a schema that is on it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from psycopg.rows import namedtuple_row

from penstock.schema.description import (
    TYPE_KINDS,
    ColumnDescription,
    Field,
    SequenceDescription,
    TableDescription,
    TypeName,
    UserType,
)
from penstock.source.connect import source_errors
from penstock.table import TableName, as_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import psycopg

    Connection = psycopg.Connection[Any]

__all__ = [
    "ColumnDescription",
    "Field",
    "SequenceDescription",
    "TableDescription",
    "TypeName",
    "UserType",
    "describe_table",
    "describe_tables",
    "qualified_names",
    "sequence_of",
]

_TABLES = """
SELECT c.oid, n.nspname AS schema, c.relname AS name, c.relkind::text AS kind,
       c.relreplident::text AS replica_identity
FROM unnest(%s::text[], %s::text[]) AS wanted(schema, name)
JOIN pg_namespace n ON n.nspname = wanted.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name AND c.relkind IN ('r', 'p')
"""

# A serial column is one whose default takes the next value of a sequence that it owns, and does no
# more than that. What nextval is spelled like follows from the empty search_path; a default, unlike
# quote_literal, never writes E''.
_COLUMNS = """
SELECT a.attrelid AS table, a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type, a.atttypid AS type_oid,
       t.typtype::text AS type_kind, a.attnotnull AS not_null, a.attgenerated::text AS generated,
       a.attidentity::text AS identity, a.attnum AS number,
       CASE WHEN a.attgenerated <> '' THEN pg_get_expr(d.adbin, d.adrelid) END AS expression,
       CASE WHEN a.attgenerated = '' THEN pg_get_expr(d.adbin, d.adrelid) END AS "default",
       (SELECT format('%%I.%%I', m.nspname, l.collname) FROM pg_collation l
        JOIN pg_namespace m ON m.oid = l.collnamespace
        WHERE l.oid = a.attcollation AND a.attcollation <> t.typcollation) AS collation,
       q.*
FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
LEFT JOIN LATERAL (
    SELECT n.nspname AS sequence_schema, c.relname AS sequence_name,
           format_type(s.seqtypid, NULL) AS sequence_type, s.seqstart AS start,
           s.seqincrement AS increment, s.seqmin AS minimum, s.seqmax AS maximum,
           s.seqcache AS cache, s.seqcycle AS cycles
    FROM pg_depend o JOIN pg_sequence s ON s.seqrelid = o.objid
    JOIN pg_class c ON c.oid = s.seqrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE o.classid = 'pg_class'::regclass AND o.refclassid = 'pg_class'::regclass
      AND o.refobjid = a.attrelid AND o.refobjsubid = a.attnum
      AND CASE o.deptype WHEN 'i' THEN true WHEN 'a' THEN pg_get_expr(d.adbin, d.adrelid)
          = format('nextval(''%%s''::regclass)', replace(s.seqrelid::regclass::text, '''', ''''''))
          END
    LIMIT 1) q ON true
WHERE a.attrelid = ANY (%s) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum
"""

_KEYS = """
SELECT i.indrelid AS table, i.indisprimary AS is_primary, i.indisreplident AS is_identity,
       (i.indkey::int2[])[0:i.indnkeyatts - 1] AS numbers
FROM pg_index i
WHERE i.indrelid = ANY (%s) AND (i.indisprimary OR i.indisreplident) AND i.indisvalid
  AND i.indimmediate -- a deferrable key may hold a value twice between two rows of one UPDATE
"""

# Every type that the columns need, however deep: array elements, bases of domains, fields of
# composites, subtypes of ranges.
_USER_TYPES = """
WITH RECURSIVE needed(root, oid) AS (
    SELECT attrelid, atttypid FROM pg_attribute
    WHERE attrelid = ANY (%s) AND attnum > 0 AND NOT attisdropped
    UNION
    SELECT needed.root, part.oid FROM needed JOIN pg_type t ON t.oid = needed.oid
    CROSS JOIN LATERAL (
        SELECT t.typelem WHERE t.typcategory = 'A'
        UNION ALL SELECT t.typbasetype WHERE t.typtype = 'd'
        UNION ALL SELECT a.atttypid FROM pg_attribute a WHERE t.typtype = 'c'
            AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL SELECT rngsubtype FROM pg_range WHERE rngtypid = t.oid
        UNION ALL SELECT rngtypid FROM pg_range WHERE rngmultitypid = t.oid
    ) AS part(oid)
    WHERE part.oid <> 0
)
SELECT needed.root AS table, t.oid, n.nspname AS schema, t.typname AS name, t.typtype::text AS kind,
       t.typcategory = 'A' AND t.typelem <> 0 AS is_array,
       CASE WHEN t.typtype = 'c' THEN (SELECT relkind = 'c' FROM pg_class WHERE oid = t.typrelid)
            END AS is_free_composite,
       CASE t.typtype
           WHEN 'd' THEN format_type(t.typbasetype, t.typtypmod)
           WHEN 'r' THEN (SELECT format_type(rngsubtype, NULL) FROM pg_range WHERE rngtypid = t.oid)
           END AS base,
       ARRAY(SELECT enumlabel::text FROM pg_enum WHERE enumtypid = t.oid ORDER BY enumsortorder)
           AS labels,
       ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE t.typtype = 'c'
             AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
             ORDER BY a.attnum) AS field_names,
       ARRAY(SELECT format_type(a.atttypid, a.atttypmod) FROM pg_attribute a WHERE t.typtype = 'c'
             AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
             ORDER BY a.attnum) AS field_types,
       ARRAY(SELECT a.atttypid FROM pg_attribute a WHERE t.typtype = 'c'
             AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
             UNION SELECT t.typelem WHERE t.typcategory = 'A'
             UNION SELECT t.typbasetype WHERE t.typtype = 'd'
             UNION SELECT rngsubtype FROM pg_range WHERE rngtypid = t.oid
             UNION SELECT rngtypid FROM pg_range WHERE rngmultitypid = t.oid) AS parts,
       (SELECT e.extname FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
        WHERE d.classid = 'pg_type'::regclass AND d.objid = t.oid
          AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e') AS extension
FROM needed JOIN pg_type t ON t.oid = needed.oid JOIN pg_namespace n ON n.oid = t.typnamespace
WHERE n.nspname NOT IN ('pg_catalog', 'information_schema')
ORDER BY n.nspname, t.typname
"""


def describe_table(connection: Connection, name: TableName) -> TableDescription | None:
    """The table as it is now, or None when there is no such table."""
    return describe_tables(connection, [name]).get(name)


def describe_tables(
    connection: Connection, names: Sequence[TableName]
) -> dict[TableName, TableDescription]:
    """Those of the tables that are there, as they are now; in four queries, however many they are."""
    with (
        source_errors(connection),
        qualified_names(connection),
        connection.cursor(row_factory=namedtuple_row) as cursor,
    ):
        tables: list[Any] = cursor.execute(_TABLES, as_columns(names)).fetchall()
        oids = [table.oid for table in tables]
        rows, keys, types = (
            _by_table(cursor.execute(query, (oids,))) for query in (_COLUMNS, _KEYS, _USER_TYPES)
        )
    return {
        TableName(table.schema, table.name): _description(
            table, rows.get(table.oid, []), keys.get(table.oid, []), types.get(table.oid, [])
        )
        for table in tables
    }


def _by_table(rows: Iterable[Any]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for row in rows:
        found.setdefault(row.table, []).append(row)
    return found


def _description(
    table: Any, rows: list[Any], keys: list[Any], types: list[Any]
) -> TableDescription:
    names = {row.number: row.name for row in rows}
    primary = _key_of([key for key in keys if key.is_primary], names)
    identity = _key_of([key for key in keys if key.is_identity], names)
    return TableDescription(
        name=TableName(table.schema, table.name),
        oid=table.oid,
        kind=table.kind,
        replica_identity=table.replica_identity,
        columns=tuple(_column(row) for row in rows),
        key_columns=identity if table.replica_identity == "i" and identity else primary,
        primary_key=primary,
        user_types=_in_order_of_need(types),
    )


@contextmanager
def qualified_names(connection: Connection) -> Iterator[None]:
    """An empty search_path for one transaction, or for our part of the caller's."""
    with connection.transaction():
        row = connection.execute("SELECT pg_catalog.current_setting('search_path')").fetchone()
        before = row[0] if row else ""
        connection.execute("SELECT pg_catalog.set_config('search_path', '', true)")
        yield
        connection.execute("SELECT pg_catalog.set_config('search_path', %s, true)", (before,))


def _column(row: Any) -> ColumnDescription:
    return ColumnDescription(
        name=row.name,
        type=row.type,
        type_oid=row.type_oid,
        type_kind=TYPE_KINDS.get(row.type_kind, "other"),
        not_null=row.not_null,
        generated=row.generated,
        identity=row.identity,
        expression=row.expression,
        sequence=None if row.sequence_name is None else sequence_of(row),
        default=row.default,
        collation=row.collation,
    )


def sequence_of(row: Any) -> SequenceDescription:
    """What a row of a query says, whose columns are called as here and in the query above."""
    return SequenceDescription(
        name=TableName(row.sequence_schema, row.sequence_name),
        type=row.sequence_type,
        start=row.start,
        increment=row.increment,
        minimum=row.minimum,
        maximum=row.maximum,
        cache=row.cache,
        cycles=row.cycles,
    )


def _key_of(keys: list[Any], names: dict[int, str]) -> tuple[str, ...]:
    return tuple(names[number] for number in keys[0].numbers) if keys else ()


def _in_order_of_need(rows: list[Any]) -> tuple[UserType, ...]:
    """Each type after those it is made of. Arrays and multiranges come with their own type."""
    waiting = {row.oid: row for row in rows}
    made: list[UserType] = []

    def make(oid: int) -> None:
        row = waiting.pop(oid, None)
        if row is None:
            return
        for part in row.parts:
            make(part)
        if not row.is_array and row.kind != "m":
            made.append(_user_type(row))

    for row in rows:
        make(row.oid)
    return tuple(made)


def _user_type(row: Any) -> UserType:
    kind: Literal["enum", "domain", "composite", "range", "other"] = "other"
    if row.kind == "e":
        kind = "enum"
    elif row.kind == "d":
        kind = "domain"
    elif row.kind == "r":
        kind = "range"
    elif row.is_free_composite:
        kind = "composite"
    return UserType(
        name=TypeName(row.schema, row.name),
        kind=kind,
        labels=tuple(row.labels),
        base=row.base or "",
        fields=tuple(map(Field, row.field_names, row.field_types)),
        extension=row.extension,
    )
