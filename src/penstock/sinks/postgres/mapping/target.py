"""What the target's catalog says of a table, and the plan that follows from it."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.rows import namedtuple_row

from penstock.errors import TargetTableMissing, TargetTableUnfit
from penstock.sinks.postgres.ddl.create import create_table
from penstock.sinks.postgres.ddl.free_sequences import have_sequences
from penstock.sinks.postgres.ddl.schemas import have_schemas
from penstock.sinks.postgres.ddl.user_types import have_types
from penstock.sinks.postgres.expressions.foreign_code import refuse_foreign_code
from penstock.sinks.postgres.mapping.kept_names import NO_NAMES, KeptNames
from penstock.sinks.postgres.mapping.own_columns import (
    fixed_columns,
    history_columns,
    refuse_unfilled,
)
from penstock.sinks.postgres.mapping.plan import TablePlan, TargetColumn
from penstock.sinks.postgres.mapping.rivals import refuse_rivals
from penstock.sinks.postgres.mapping.row_security import filtered
from penstock.sinks.postgres.mapping.target_shape import target_description
from penstock.table import TableName, as_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from penstock.schema.shape import TableShape
    from penstock.sinks.postgres.expressions.expressions import ExpressionRules
    from penstock.sinks.postgres.mapping.table_mapping import TableMapping, TableMappings
    from penstock.sinks.postgres.options import PostgresOptions

    Connection = psycopg.Connection[Any]

    DescribeNow = Callable[[TableName], TableShape | None]

_log = logging.getLogger(__name__)

# Domains down to their base type, with the domain's own modifier. Equal is what the type's default
# operator class says, which only a superuser can make; an operator of the name anybody can.
_COLUMNS = """
WITH RECURSIVE base(relid, attnum, oid, modifier) AS (
    SELECT a.attrelid, a.attnum, a.atttypid, a.atttypmod FROM pg_attribute a
    WHERE a.attrelid = ANY (%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT base.relid, base.attnum, t.typbasetype, t.typtypmod
    FROM base JOIN pg_type t ON t.oid = base.oid WHERE t.typtype = 'd'
)
SELECT a.attrelid AS relid, a.attname AS name, format_type(base.oid, base.modifier) AS stage_type,
       a.attgenerated <> '' AS is_generated, a.attidentity <> 'a' AS is_updatable,
       a.atttypid <> base.oid AS is_domain,
       CASE WHEN t.typnamespace <> 'pg_catalog'::regnamespace THEN (
           SELECT format('OPERATOR(%%I.%%s)', n.nspname, o.oprname)
           FROM pg_opclass c JOIN pg_am m ON m.oid = c.opcmethod
           JOIN pg_amop p ON p.amopfamily = c.opcfamily AND p.amoplefttype = c.opcintype
               AND p.amoprighttype = c.opcintype
               AND (m.amname, p.amopstrategy) IN (('btree', 3), ('hash', 1))
           JOIN pg_operator o ON o.oid = p.amopopr JOIN pg_namespace n ON n.oid = o.oprnamespace
           WHERE c.opcdefault AND c.opcintype = base.oid ORDER BY m.amname LIMIT 1) END AS equals,
       t.typcategory IN ('S', 'A') AND t.typcollation <> 0
           AND (NOT l.collisdeterministic OR t.typnamespace <> 'pg_catalog'::regnamespace) AS is_loose
FROM pg_attribute a LEFT JOIN pg_collation l ON l.oid = a.attcollation
JOIN base ON base.relid = a.attrelid AND base.attnum = a.attnum
JOIN pg_type t ON t.oid = base.oid AND t.typtype <> 'd'
WHERE a.attrelid = ANY (%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum
"""

_REFERENCED = """EXISTS (SELECT FROM pg_constraint f WHERE f.confrelid = c.oid AND f.contype = 'f')
           AS is_referenced"""
_EVALUATES = """
       EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'c')
       OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated <> '')
       OR EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid
                  AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL)) AS evaluates"""
_TABLE = f"""
SELECT c.oid, c.relkind::text AS kind, row_security_active(c.oid) AS is_filtered,
       {_REFERENCED},{_EVALUATES},
       pg_get_userbyid(c.relowner)::text AS owner,
       NOT r.rolsuper AND r.rolname <> current_user AS is_foreign,
       c.relkind = 'p' AND EXISTS (
           SELECT FROM pg_partition_tree(c.oid) t JOIN pg_class p ON p.oid = t.relid
           JOIN pg_roles o ON o.oid = p.relowner WHERE NOT (o.rolsuper OR o.rolname = current_user)
       ) AS has_foreign_parts,
       EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0
               AND NOT a.attisdropped AND a.atttypid >= 16384) AS has_made_types
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_roles r ON r.oid = c.relowner
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
"""
_TABLES = f"""
SELECT n.nspname AS schema, c.relname AS name, c.oid, c.relkind::text AS kind,
       {_REFERENCED},{_EVALUATES}
FROM unnest(%s::text[], %s::text[]) AS w(schema, name)
JOIN pg_namespace n ON n.nspname = w.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
"""

_REFERENCES = """
SELECT cn.nspname, c.relname, pn.nspname, p.relname
FROM pg_constraint f
JOIN pg_class c ON c.oid = f.conrelid JOIN pg_namespace cn ON cn.oid = c.relnamespace
JOIN pg_class p ON p.oid = f.confrelid JOIN pg_namespace pn ON pn.oid = p.relnamespace
WHERE f.contype = 'f' AND c.oid <> p.oid
"""


def plan_table(
    connection: Connection,
    table_mappings: TableMappings,
    source: TableName,
    describe: DescribeNow,
    *,
    is_filled: bool,
    with_key: bool = True,
    kept: KeptNames | None = None,
) -> TablePlan:
    """How a source table goes to the target; a missing table is created where that is allowed.

    One that `is_filled` had rows, which creating it again would not bring back. `with_key` False
    leaves the key of a table that is created to be added later.

    Raises:
        TargetTableMissing: it is not there and may not or cannot be created.
        TargetTableUnfit: it is there, but is no table, lacks columns that it must have, or hides rows.
    """
    kept = kept or NO_NAMES
    table_mapping = table_mappings.of(source, kept.ruled_as)
    target = kept.target or table_mapping.target
    if not is_filled:
        refuse_rivals(connection, table_mappings, source, target)
    shape = describe(source)
    found = find_table(connection, target)
    is_new = found is None
    notes: list[str] = []
    if found is None:
        _require_creation(table_mappings.options, source, target, shape, is_filled=is_filled)
        assert shape is not None
        rules = table_mappings.options.expression_rules
        notes = _create(
            connection,
            table_mappings.owner,
            shape,
            target,
            table_mapping,
            rules,
            with_key=with_key,
        )
        found = find_table(connection, target)
        assert found is not None
    _require_table(found, source, target)
    if found.is_filtered:
        raise filtered(source, target)
    is_watched = not is_new and refuse_foreign_code(connection, found, source, target)
    columns = columns_of(connection, [found.oid])[found.oid]
    plan = plan_found(
        connection,
        table_mappings,
        source,
        shape,
        found,
        columns,
        kept,
        notes if is_new else None,
    )
    return replace(plan, is_watched=is_watched)


def refuse_new_code(connection: Connection, plan: TablePlan) -> None:
    """See that a table which another role can change is still as it was planned, until the transaction ends.

    Raises:
        TargetObjectsForeign: writing to it would run what another role has made since.
        TargetTableUnfit: it is no table any more.
        psycopg.Error: the table is gone, or the server went away.
    """
    if plan.is_watched:
        # As writing does it; nobody makes a trigger or a constraint meanwhile.
        _refuse_code_now(connection, plan.source, plan.target, sql.SQL("ROW EXCLUSIVE"))


def refuse_code_of_table(connection: Connection, source: TableName, *places: TableName) -> None:
    """The same for who alters a table, or deletes of its rows: the first that is there of some places.

    Raises:
        TargetObjectsForeign: that would run what another role has made.
        TargetTableUnfit: it is no table.
        psycopg.Error: the server went away.
    """
    for place in places:
        found = find_table(connection, place)
        if found is None:
            continue
        if found.is_foreign or found.has_foreign_parts:
            _require_table(found, source, place)
            # One at a time: of two that both wrote and then altered it each would wait for the other.
            _refuse_code_now(connection, source, place, sql.SQL("SHARE UPDATE EXCLUSIVE"))
        elif found.has_made_types:
            refuse_foreign_code(connection, found, source, place)
        return


def _refuse_code_now(
    connection: Connection, source: TableName, target: TableName, mode: sql.SQL
) -> None:
    connection.execute(sql.SQL("LOCK TABLE {} IN {} MODE").format(sql.Identifier(*target), mode))
    found = find_table(connection, target)
    _require_table(found, source, target)
    refuse_foreign_code(connection, found, source, target)


def _require_table(found: Any, source: TableName, target: TableName) -> None:
    if found.kind not in ("r", "p"):
        raise TargetTableUnfit(
            f"{target} is no table at the target",
            str(source),
            "rename it, or choose another schema",
        )


def plan_found(
    connection: Connection,
    table_mappings: TableMappings,
    source: TableName,
    shape: TableShape | None,
    found: Any,
    columns: tuple[TargetColumn, ...],
    kept: KeptNames,
    made: Sequence[str] | None,
) -> TablePlan:
    """How a source table goes to a table that is there.

    `made`: what of it was left out when it was made just now; None for one that was there before.

    Raises:
        TargetTableUnfit: it lacks columns that it must have.
    """
    table_mapping = table_mappings.of(source, kept.ruled_as)
    target = kept.target or table_mapping.target
    names = kept.names(table_mapping)
    is_new = made is not None
    fixed = fixed_columns(connection, table_mapping, table_mappings.source, target, columns)
    history = history_columns(connection, table_mapping, source, target, columns)
    own = {each.name for each in fixed}
    if history is not None:
        own |= {history.start, history.end, history.deleted}
    wanted = kept.wanted(table_mapping)
    filled, others = _sort_columns(columns, own, wanted, names)
    if shape is not None:
        _log_ignored(shape, filled, wanted, target, names)
    plan = TablePlan(
        source=source,
        target=target,
        columns=filled,
        others=others,
        key=_primary_key(shape) if shape is not None else (),
        is_referenced=found.is_referenced,
        evaluates=found.evaluates,
        names=tuple(sorted(names.items())),
        wanted=wanted,
        is_new=is_new,
        kind=table_mapping.kind,
        fixed=fixed,
        history=history,
        is_mixed=table_mapping.is_mixed,
        notes=tuple(made or ()),
    )
    if shape is not None:
        if not is_new:  # else it has what it was made with just now
            refuse_unfilled(connection, plan, table_mappings.options, shape)
        if shape.replica_identity in ("d", "i"):
            plan.require(shape.key_columns)
    return plan


def _primary_key(shape: TableShape) -> tuple[str, ...]:
    """Of a deferrable one two rows may have a value between two changes: it is none."""
    key = shape.primary_key
    return () if key is None or key.is_deferrable else shape.names_of(key.columns)


def _sort_columns(
    columns: Sequence[TargetColumn],
    own: Collection[str],
    wanted: Sequence[str] | None,
    names: Mapping[str, str],
) -> tuple[tuple[TargetColumn, ...], tuple[str, ...]]:
    """The target's columns that the source's rows fill; the names of those that nobody delivers."""
    filled = tuple(column for column in columns if column.name not in own)
    if wanted is None:
        return filled, ()
    taken = {names.get(name, name) for name in wanted}
    others = tuple(column.name for column in filled if column.name not in taken)
    return tuple(column for column in filled if column.name in taken), others


def _require_creation(
    options: PostgresOptions,
    source: TableName,
    target: TableName,
    shape: TableShape | None,
    *,
    is_filled: bool,
) -> None:
    if is_filled:
        raise TargetTableMissing(
            f"the target table {target} is gone, with the rows it had",
            str(source),
            f"penstock tables PIPELINE.yml resync {source} makes it again and copies its rows; or create it with"
            " the source's rows: its changes wait in the log",
        )
    if not options.create_tables or shape is None:
        why = "create_tables is false" if not options.create_tables else "the source lacks it too"
        raise TargetTableMissing(
            f"the target has no table {target}, and {why}",
            str(source),
            f"create {target} at the target, or set create_tables: true",
        )


def _create(
    connection: Connection,
    owner: tuple[str, str],
    shape: TableShape,
    target: TableName,
    table_mapping: TableMapping,
    rules: ExpressionRules,
    *,
    with_key: bool,
) -> list[str]:
    made = target_description(shape, table_mapping)
    try:
        with connection.transaction():
            hold_creation(connection)
            if find_table(connection, target) is None:
                have_schemas(connection, owner, [target.schema])
                have_types(connection, owner, made.name, made.types, rules)
                have_sequences(connection, owner, made.name, made.sequences)
                notes = create_table(
                    connection,
                    made,
                    target,
                    None,
                    with_key=with_key or not table_mapping.is_like_source,
                    rules=rules,
                )
                _log.info("created %s like the source's %s", target, shape.table)
                return notes
            return []
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:
        raise TargetTableMissing(
            f"the target has no table {target} and refuses to create it: "
            f"{error.diag.message_primary} (SQLSTATE {error.sqlstate})",
            str(shape.table),
            f"create {target} by hand, or grant the role what it lacks",
        ) from None


def hold_creation(connection: Connection) -> None:
    """Be the one who makes tables until the transaction ends: another source may be about to, too."""
    connection.execute("LOCK TABLE penstock.tables IN SHARE UPDATE EXCLUSIVE MODE")


def find_table(connection: Connection, target: TableName) -> Any:
    """`oid`, `kind`, `is_referenced`, `owner`, `is_foreign` and so on of what has the name, None when nothing has."""
    with connection.cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute(_TABLE, target).fetchone()


def find_relations(connection: Connection, targets: Collection[TableName]) -> dict[TableName, Any]:
    """The same of many names, as far as anything at all has them."""
    with connection.cursor(row_factory=namedtuple_row) as cursor:
        rows: list[Any] = cursor.execute(_TABLES, as_columns(targets)).fetchall()
    return {TableName(row.schema, row.name): row for row in rows}


def columns_of(
    connection: Connection, oids: Collection[int]
) -> dict[int, tuple[TargetColumn, ...]]:
    """The columns of tables that can be written to, by the tables' oids."""
    with connection.transaction(), connection.cursor(row_factory=namedtuple_row) as cursor:
        # format_type leaves out a schema that is on the search_path.
        cursor.execute("SET LOCAL search_path = ''")
        rows: list[Any] = cursor.execute(_COLUMNS, {"oids": list(oids)}).fetchall()
    columns: dict[int, list[TargetColumn]] = {oid: [] for oid in oids}
    for row in rows:
        if not row.is_generated:
            columns[row.relid].append(
                TargetColumn(
                    row.name,
                    row.stage_type,
                    row.is_updatable,
                    row.is_domain,
                    row.equals or "=",
                    bool(row.is_loose),
                )
            )
    return {oid: tuple(listed) for oid, listed in columns.items()}


def _log_ignored(
    shape: TableShape,
    columns: tuple[TargetColumn, ...],
    wanted: tuple[str, ...] | None,
    target: TableName,
    names: Mapping[str, str],
) -> None:
    have = {column.name for column in columns}
    ignored = [
        column.name
        for column in shape.columns
        if names.get(column.name, column.name) not in have
        and not column.generated
        and (wanted is None or column.name in wanted)
    ]
    known = {column.name for column in shape.columns} | set(names.values())
    strange = set(wanted or ()) - known
    if strange:
        _log.warning(
            "columns: names %s, which %s at the source has not",
            ", ".join(sorted(strange)),
            shape.table,
        )
    if ignored:
        _log.warning("%s lacks columns %s; they are ignored", target, ", ".join(ignored))


def read_ranks(connection: Connection) -> dict[TableName, int]:
    """For tables of the target: how many tables their foreign keys lead through. Parents rank lower.

    A table that is not named has none, and ranks 0.
    """
    rows = connection.execute(sql.SQL(_REFERENCES)).fetchall()
    return rank_tables((TableName(*row[:2]), TableName(*row[2:])) for row in rows)


def rank_tables(references: Iterable[tuple[TableName, TableName]]) -> dict[TableName, int]:
    """The ranks of children and parents. Of a circle of tables one is taken to be the first."""
    parents: dict[TableName, set[TableName]] = {}
    children: dict[TableName, set[TableName]] = {}
    for child, parent in references:
        parents.setdefault(child, set()).add(parent)
        children.setdefault(parent, set()).add(child)
    waits_for = {table: len(above) for table, above in parents.items()}
    ranks: dict[TableName, int] = {}
    ready = [table for table in children if table not in parents]
    circled = iter(sorted(waits_for, key=lambda table: (waits_for[table], table)))
    while len(ranks) < len(parents.keys() | children.keys()):
        if not ready:
            ready.append(next(table for table in circled if table not in ranks))
        table = ready.pop()
        above = [ranks[parent] for parent in parents.get(table, ()) if parent in ranks]
        ranks[table] = 1 + max(above) if above else 0
        for child in children.get(table, ()):
            waits_for[child] -= 1
            if waits_for[child] == 0 and child not in ranks:
                ready.append(child)
    return ranks
