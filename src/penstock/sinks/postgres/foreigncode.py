"""Code of other roles that a row written to the target would run as the sink's role: it is refused.

Triggers that fire although they are switched off for replicas, or because the role cannot switch them off; rules;
and functions in checks, defaults and indexes of a table that another role owns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import TargetObjectsForeign
from penstock.sinks.postgres.expressions import BUILTIN, refused_trees

if TYPE_CHECKING:
    import psycopg

    from penstock.table import TableName

    Connection = psycopg.Connection[Any]

_MAY_SWITCH_OFF = """(SELECT rolsuper FROM pg_roles WHERE rolname = current_user)"""
_MAY_SWITCH_OFF_SINCE_15 = (
    "has_parameter_privilege(current_user, 'session_replication_role', 'SET')"
)

# A function that is SECURITY DEFINER runs as its owner, but the WHEN of its trigger does not.
_FIRING = """
WITH parts AS (
    SELECT oid, relowner FROM pg_class WHERE oid = %(oid)s
    UNION SELECT c.oid, c.relowner FROM pg_partition_tree(%(oid)s) p JOIN pg_class c ON c.oid = p.relid
),
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

# Names and stored expressions of a table of another role.
_TREES = """
SELECT 'constraint ' || conname, conbin::text FROM pg_constraint
WHERE conrelid = %(oid)s AND conbin IS NOT NULL
UNION ALL
SELECT 'column ' || a.attname, d.adbin::text FROM pg_attrdef d
JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum WHERE d.adrelid = %(oid)s
UNION ALL
SELECT 'index ' || c.relname, concat_ws(' ', i.indexprs::text, i.indpred::text)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = %(oid)s AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL)
"""


def refuse_foreign_code(
    connection: Connection, found: Any, source: TableName, target: TableName
) -> None:
    """See that writing to a table that is there runs nothing of another role.

    Raises:
        TargetObjectsForeign: it would.
        psycopg.Error: the server went away.
    """
    since_15 = connection.info.server_version >= 150000
    may_switch_off = _MAY_SWITCH_OFF_SINCE_15 if since_15 else _MAY_SWITCH_OFF
    query = _FIRING.replace("{may_switch_off}", may_switch_off)
    row = connection.execute(query, {"oid": found.oid}).fetchone()
    what = row[0] if row is not None else None
    if what is None and found.is_foreign:
        trees = connection.execute(_TREES, {"oid": found.oid}).fetchall()
        refused = refused_trees(connection, BUILTIN, [tree for _, tree in trees])
        for place, why in sorted(refused.items()):
            what = f"{trees[place][0]} of table {target}: {why}"
            break
    if what is None:
        return
    role = connection.info.user
    raise TargetObjectsForeign(
        f"a row that is written would run what another role has made, as role {role}: {what}",
        str(source),
        f"let role {role} or a superuser own {target} and the functions that it calls, make the trigger's function SECURITY"
        " DEFINER, or take it off; the table goes on by itself",
    )
