"""Code of other roles that a row written to the target would run as the sink's role: it is refused.

Triggers that fire although they are switched off for replicas, or because the role cannot switch them off; rules;
functions in checks, defaults, indexes and partition keys of a table that another role owns; and types of another role, whose owner
says what a domain checks, what a range measures itself with, and what a cast calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import TargetObjectsForeign
from penstock.schema.catalog import TYPE_PARTS
from penstock.sinks.postgres.expressions.expressions import BUILTIN, refused_trees
from penstock.sinks.postgres.expressions.node_tree import FIRST_USER_OID
from penstock.table import TableName, as_columns

if TYPE_CHECKING:
    from collections.abc import Collection

    import psycopg

    Connection = psycopg.Connection[Any]

_MAY_SWITCH_OFF = """(SELECT rolsuper FROM pg_roles WHERE rolname = current_user)"""
_MAY_SWITCH_OFF_SINCE_15 = (
    "has_parameter_privilege(current_user, 'session_replication_role', 'SET')"
)

_PARTS = """parts AS (
    SELECT oid, relowner FROM pg_class WHERE oid = %(oid)s
    UNION SELECT c.oid, c.relowner FROM pg_partition_tree(%(oid)s) p JOIN pg_class c ON c.oid = p.relid
)"""

# A function that is SECURITY DEFINER runs as its owner, but the WHEN of its trigger does not.
_FIRING = """
WITH {parts},
fires(mode) AS (SELECT unnest(CASE WHEN {may_switch_off} THEN '{A,R}' ELSE '{A,O}' END::"char"[]))
SELECT format('trigger %%I of table %%s, function %%s', t.tgname, t.tgrelid::regclass, p.oid::regprocedure)
FROM parts JOIN pg_trigger t ON t.tgrelid = parts.oid JOIN pg_proc p ON p.oid = t.tgfoid
JOIN pg_roles o ON o.oid = parts.relowner JOIN pg_roles f ON f.oid = p.proowner
WHERE NOT t.tgisinternal AND t.tgenabled IN (SELECT mode FROM fires)
  AND (NOT p.prosecdef OR t.tgqual IS NOT NULL)
  AND NOT ((o.rolsuper OR o.rolname = current_user) AND (f.rolsuper OR f.rolname = current_user))
UNION ALL
SELECT format('rule %%I of table %%s', w.rulename, w.ev_class::regclass)
FROM parts JOIN pg_rewrite w ON w.ev_class = parts.oid JOIN pg_roles o ON o.oid = parts.relowner
WHERE w.ev_type IN ('2', '3', '4') AND w.ev_enabled IN (SELECT mode FROM fires)
  AND NOT (o.rolsuper OR o.rolname = current_user)
LIMIT 1
"""

# Names and stored expressions of a table of another role, and of such partitions.
_TREES = f"""
WITH {_PARTS},
others AS (SELECT p.oid FROM parts p JOIN pg_roles r ON r.oid = p.relowner
           WHERE NOT (r.rolsuper OR r.rolname = current_user))
SELECT 'constraint ' || conname, conbin::text FROM others
JOIN pg_constraint ON conrelid = others.oid WHERE conbin IS NOT NULL
UNION ALL
SELECT 'column ' || a.attname, d.adbin::text FROM others JOIN pg_attrdef d ON d.adrelid = others.oid
JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
UNION ALL
SELECT 'index ' || c.relname, concat_ws(' ', i.indexprs::text, i.indpred::text)
FROM others JOIN pg_index i ON i.indrelid = others.oid JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indexprs IS NOT NULL OR i.indpred IS NOT NULL
UNION ALL
SELECT 'partition key', k.partexprs::text FROM others
JOIN pg_partitioned_table k ON k.partrelid = others.oid WHERE k.partexprs IS NOT NULL
"""

# Of all that types are made of, those of other roles, and the first that runs what is theirs: a domain, whose
# checks its owner may change at any time, a range that calls functions, a type that is cast by one.
_FOREIGN_TYPES = f"""
WITH RECURSIVE needed(oid) AS (
    {{begin}}
    UNION
    SELECT part.oid FROM needed JOIN pg_type t ON t.oid = needed.oid
    CROSS JOIN LATERAL {TYPE_PARTS} AS part(oid) WHERE part.oid >= {FIRST_USER_OID}
),
others AS (SELECT t.oid, t.typtype, r.rolname FROM needed JOIN pg_type t ON t.oid = needed.oid
           JOIN pg_roles r ON r.oid = t.typowner WHERE NOT (r.rolsuper OR r.rolname = current_user)),
called(oid, function) AS (
    SELECT rngtypid, unnest(ARRAY[rngcanonical, rngsubdiff]::oid[]) FROM pg_range
    WHERE rngtypid IN (SELECT oid FROM others)
    UNION ALL SELECT o.oid, c.castfunc FROM others o JOIN pg_cast c ON o.oid IN (c.castsource, c.casttarget)
)
SELECT min(format('type %%s of role %%I', o.oid::regtype, o.rolname)) FILTER (
           WHERE o.typtype = 'd' OR o.oid IN (
               SELECT c.oid FROM called c JOIN pg_proc p ON p.oid = c.function
               JOIN pg_roles r ON r.oid = p.proowner
               WHERE NOT (p.prosecdef OR r.rolsuper OR r.rolname = current_user))),
       count(*) > 0
FROM others o
"""
_FOREIGN_TYPES_OF_TABLE = _FOREIGN_TYPES.format(
    begin="SELECT atttypid FROM pg_attribute WHERE attrelid = %(oid)s"
    f" AND attnum > 0 AND NOT attisdropped AND atttypid >= {FIRST_USER_OID}"
)
_FOREIGN_TYPES_OF_NAMES = _FOREIGN_TYPES.format(
    begin="""SELECT t.oid FROM unnest(%s::text[], %s::text[]) AS w(schema_name, type_name)
    JOIN pg_namespace n ON n.nspname = w.schema_name
    JOIN pg_type t ON t.typnamespace = n.oid AND t.typname = w.type_name"""
)


def refuse_foreign_code(
    connection: Connection, found: Any, source: TableName, target: TableName
) -> bool:
    """See that writing to a table that is there runs nothing of another role.

    Whether somebody else can change that: the table, a partition, or a type is another role's.

    Raises:
        TargetObjectsForeign: it would.
        psycopg.Error: the server went away.
    """
    what, has_types = _firing(connection, found), False
    if what is None and found.has_made_types:
        row = connection.execute(_FOREIGN_TYPES_OF_TABLE, {"oid": found.oid}).fetchone()
        what, has_types = row or (None, False)
    is_foreign = found.is_foreign or found.has_foreign_parts
    if what is None and is_foreign:
        what = _foreign_expression(connection, found, target)
    if what is not None:
        raise _foreign(connection, what, source, f"{target} and what it calls")
    return bool(is_foreign or has_types)


def _firing(connection: Connection, found: Any) -> str | None:
    """A trigger or rule of another role's that writing to the table runs."""
    since_15 = connection.info.server_version >= 150000
    may_switch_off = _MAY_SWITCH_OFF_SINCE_15 if since_15 else _MAY_SWITCH_OFF
    query = _FIRING.replace("{parts}", _PARTS).replace("{may_switch_off}", may_switch_off)
    row = connection.execute(query, {"oid": found.oid}).fetchone()
    return row[0] if row is not None else None


def _foreign_expression(connection: Connection, found: Any, target: TableName) -> str | None:
    """An expression in the table that calls what is not Postgres's own."""
    trees = connection.execute(_TREES, {"oid": found.oid}).fetchall()
    refused = refused_trees(connection, BUILTIN, [tree for _, tree in trees])
    if not refused:
        return None
    place = min(refused)
    return f"{trees[place][0]} of table {target}: {refused[place]}"


def refuse_foreign_types(
    connection: Connection, names: Collection[TableName], source: TableName
) -> None:
    """See that values of types that are there, by their names, run nothing of another role.

    Raises:
        TargetObjectsForeign: they would.
        psycopg.Error: the server went away.
    """
    row = connection.execute(_FOREIGN_TYPES_OF_NAMES, as_columns(names)).fetchone()
    if row is not None and row[0] is not None:
        raise _foreign(connection, row[0], source, "it")


def _foreign(
    connection: Connection, what: str, source: TableName, owned: str
) -> TargetObjectsForeign:
    role = connection.info.user
    return TargetObjectsForeign(
        f"a row that is written would run what another role has made, as role {role}: {what}",
        str(source),
        f"let role {role} or a superuser own {owned}; or make a trigger's function SECURITY"
        " DEFINER, or take it off; the table goes on by itself",
    )
