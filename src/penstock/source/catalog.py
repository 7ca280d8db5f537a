"""What the source's catalog says of its tables. Reads only; chooses nothing.

Whether a table can be followed for updates is decided here, because Postgres refuses the user's own
UPDATE of a published table that has no usable replica identity.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from psycopg import sql
from psycopg.rows import namedtuple_row

from penstock.source.connect import source_errors
from penstock.table import TableName, as_columns

if TYPE_CHECKING:
    from collections.abc import Iterable

    import psycopg

    Connection = psycopg.Connection[Any]

__all__ = [
    "SourceTable",
    "identity_statement",
    "list_tables",
    "other_relations",
]

# The columns that make a replica identity: a valid, immediate index. A deferrable primary key is
# none (RelationGetIndexList in relcache.c), nor does an index do that is still being built.
_TABLES = """
SELECT c.oid, n.nspname AS schema, c.relname AS name, c.relkind::text AS kind,
       c.relreplident::text AS replica_identity, c.relpersistence::text AS persistence,
       coalesce(has_schema_privilege(n.oid, 'USAGE')
                AND has_table_privilege(c.oid, 'SELECT'), false) AS readable,
       c.relrowsecurity AND row_security_active(c.oid) AS is_filtered,
       coalesce(pg_has_role(c.relowner, 'USAGE'), false) AS owned,
       CASE WHEN c.relispartition THEN ARRAY(
           SELECT relid::oid FROM pg_partition_ancestors(c.oid) WITH ORDINALITY AS a(relid, step)
           WHERE step > 1 ORDER BY step) ELSE '{}' END AS ancestors,
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary) AS has_primary,
       k.columns IS NOT NULL AS has_key,
       ARRAY(SELECT a.attname::text FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum = ANY (k.columns)) AS key_columns,
       EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum = ANY (k.columns)
               AND a.attgenerated <> '') AS generated_key,
       EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0
               AND NOT a.attisdropped AND a.attgenerated <> '') AS has_generated,
       EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0
               AND NOT a.attisdropped AND a.attgenerated = '') AS has_columns
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN LATERAL (
    SELECT i.indkey::int2[] AS columns FROM pg_index i
    WHERE i.indrelid = c.oid AND i.indisvalid AND i.indisunique AND i.indimmediate
      AND i.indpred IS NULL
      AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END
    LIMIT 1) k ON true
WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
  AND n.nspname !~ '^pg_' AND n.nspname NOT IN ('information_schema', 'penstock')
ORDER BY n.nspname, c.relname
"""

_KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "S": "a sequence",
    "i": "an index",
    "I": "an index",
    "c": "a composite type",
    "t": "a TOAST table",
}

# From this version on UPDATE fails on a published table with REPLICA IDENTITY FULL and generated
# columns, unless the publication sends those; none of penstock's does.
_REFUSES_GENERATED_IN_FULL = 180000

_SHOWN_PARTITION_COUNT = 3


@dataclass(frozen=True)
class SourceTable:
    """One ordinary or partitioned table of the source.

    `flaw` says why its updates cannot be followed, `fix` is the SQL that would change that; both
    are empty when `has_usable_key`. A partitioned table is judged with all its leaves, because
    UPDATE is checked on the leaf, while the stream announces the root's own identity.
    """

    oid: int
    name: TableName
    kind: str  # 'r' ordinary, 'p' partitioned
    replica_identity: str  # 'd' default, 'i' index, 'f' full, 'n' nothing
    has_usable_key: bool
    root: int | None = None  # oid of the topmost partition ancestor
    persistence: str = "p"  # 'p' permanent, 'u' unlogged: cannot be published
    readable: bool = True
    is_filtered: bool = False  # row-level security decides which rows the role sees
    owned: bool = True  # by the role that asks, which it must be to be added to a publication
    ancestors: tuple[int, ...] = ()  # oids, nearest first
    key_columns: frozenset[str] = frozenset()
    has_columns: bool = True  # that the stream brings: generated ones are none
    flaw: str = ""
    fix: str = ""


def list_tables(connection: Connection) -> list[SourceTable]:
    """Every table that could be followed, in one query, ordered by name.

    Left out: system and temporary schemas, and penstock's own.
    """
    with source_errors(connection), connection.cursor(row_factory=namedtuple_row) as cursor:
        rows = cursor.execute(_TABLES).fetchall()
    version = connection.info.server_version
    tables = [_table(row, version) for row in rows]
    leaves: dict[int, list[SourceTable]] = {}
    for table in tables:
        for ancestor in table.ancestors if table.kind == "r" else ():
            leaves.setdefault(ancestor, []).append(table)
    return [_judged_with_leaves(table, leaves.get(table.oid, ())) for table in tables]


def other_relations(connection: Connection, names: Iterable[TableName]) -> dict[TableName, str]:
    """What those names are that `list_tables` does not list, in words; absent when nothing is."""
    wanted = list(names)
    if not wanted:
        return {}
    query = """
        SELECT n.nspname, c.relname, c.relkind::text, c.relpersistence::text
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE (n.nspname, c.relname) IN (
            SELECT * FROM unnest(%s::text[], %s::text[]))
    """
    with source_errors(connection):
        rows = connection.execute(query, as_columns(wanted)).fetchall()
    return {
        TableName(schema, name): _in_words(schema, kind, persistence)
        for schema, name, kind, persistence in rows
    }


def _in_words(schema: str, kind: str, persistence: str) -> str:
    if kind in _KINDS:
        return _KINDS[kind]
    if persistence == "t":
        return "a temporary table"
    return "a table of penstock's own" if schema == "penstock" else "a system table"


def _table(row: Any, version: int) -> SourceTable:
    name = TableName(row.schema, row.name)
    flaw, fix = _flaw(row, name, version)
    return SourceTable(
        oid=row.oid,
        name=name,
        kind=row.kind,
        replica_identity=row.replica_identity,
        has_usable_key=not flaw,
        root=row.ancestors[-1] if row.ancestors else None,
        persistence=row.persistence,
        readable=row.readable,
        is_filtered=row.is_filtered,
        owned=row.owned,
        ancestors=tuple(row.ancestors),
        key_columns=frozenset(row.key_columns),
        has_columns=row.has_columns,
        flaw=flaw,
        fix=fix,
    )


def _flaw(row: Any, name: TableName, version: int) -> tuple[str, str]:
    """Why the table's own replica identity will not do, and the SQL that fixes it."""
    full_fails = row.has_generated and version >= _REFUSES_GENERATED_IN_FULL
    if row.replica_identity == "f":
        flaw = "REPLICA IDENTITY FULL with generated columns" if full_fails else ""
    else:
        flaw = _key_flaw(row)
    wanted = "FULL"
    if row.replica_identity in ("n", "f") and row.has_primary:
        wanted = "DEFAULT"
    elif full_fails:
        wanted = "USING INDEX <a unique index on columns NOT NULL and not generated>"
    return flaw, identity_statement(name, wanted) if flaw else ""


def _key_flaw(row: Any) -> str:
    if row.replica_identity == "n":
        return "REPLICA IDENTITY NOTHING"
    if row.has_key:
        return "a generated column in its key" if row.generated_key else ""
    if row.replica_identity == "i":
        return "REPLICA IDENTITY USING INDEX, but the index is gone or not valid"
    if row.has_primary:
        return "a deferrable or invalid primary key and REPLICA IDENTITY DEFAULT"
    return "no primary key and REPLICA IDENTITY DEFAULT"


def _judged_with_leaves(table: SourceTable, leaves: Iterable[SourceTable]) -> SourceTable:
    faulty = [(leaf, *found) for leaf in leaves if (found := _leaf_flaw(table, leaf)) is not None]
    if not faulty:
        return table
    shown = [f"partition {leaf.name}: {flaw}" for leaf, flaw, _ in faulty]
    fixes = [fix for _, _, fix in faulty]
    hidden = len(faulty) - _SHOWN_PARTITION_COUNT
    more = [f"and {hidden} more partitions"] if hidden > 0 else []
    return replace(
        table,
        has_usable_key=False,
        flaw="; ".join([table.flaw] * bool(table.flaw) + shown[:_SHOWN_PARTITION_COUNT] + more),
        fix="; ".join([table.fix] * bool(table.fix) + fixes[:_SHOWN_PARTITION_COUNT] + more),
    )


def _leaf_flaw(table: SourceTable, leaf: SourceTable) -> tuple[str, str] | None:
    if leaf.flaw:
        return leaf.flaw, leaf.fix
    # The stream names the root's key columns and carries what the leaf logs: a leaf may log more
    # (full) than its root announces, never something else.
    is_same = leaf.replica_identity == table.replica_identity
    if table.flaw or leaf.replica_identity == "f":
        return None
    if is_same and (leaf.replica_identity != "i" or leaf.key_columns >= table.key_columns):
        return None
    wanted = {"d": "DEFAULT", "f": "FULL"}.get(table.replica_identity)
    fix = identity_statement(leaf.name, wanted or "FULL")
    return f"another replica identity than {table.name}", fix


def identity_statement(name: TableName, identity: str) -> str:
    """ALTER TABLE … REPLICA IDENTITY …, to be shown."""
    return f"ALTER TABLE {sql.Identifier(*name).as_string(None)} REPLICA IDENTITY {identity}"
