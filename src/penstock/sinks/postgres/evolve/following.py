"""Follow a change of a source table as the sink's options say, and know what it is called here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from penstock.errors import SchemaChangeStops, TargetTableUnfit
from penstock.schema.catalog import read_shapes
from penstock.schema.difference import compare_tables
from penstock.schema.difference_text import describe_differences
from penstock.sinks.postgres.ddl.alter import (
    AlterContext,
    Followed,
    Others,
    drop_gone_foreign_keys,
    follow,
    refusal,
)
from penstock.sinks.postgres.ddl.alter_pieces import KEY_STAYS
from penstock.sinks.postgres.ddl.create import without_search_path
from penstock.sinks.postgres.mapping.kept_names import KeptNames
from penstock.sinks.postgres.mapping.rivals import refuse_rivals
from penstock.sinks.postgres.mapping.target import find_table, refuse_code_of_table
from penstock.sinks.postgres.mapping.target_shape import target_key
from penstock.sinks.postgres.options import Kind, SchemaChanges
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.errors import PenstockError
    from penstock.lsn import Lsn
    from penstock.schema.shape import TableShape
    from penstock.sinks.copying import CopyOrder
    from penstock.sinks.postgres.mapping.table_mapping import TableMapping, TableMappings
    from penstock.sinks.postgres.state.shapes import KnownTable, ShapeStore

    Connection = psycopg.Connection[Any]
    Cursor = psycopg.Cursor[Any]

_MADE_BEFORE = """
SELECT 1 FROM penstock.tables
WHERE pipeline = %s AND schema_name = %s AND table_name = %s AND made_by_us
"""

_FOLLOWED = """
SELECT schema_name, table_name, mapping FROM penstock.tables
WHERE pipeline = %s AND source = %s AND state <> 'removed'
"""


def follow_table(
    cursor: Cursor,
    table_mappings: TableMappings,
    before: TableShape,
    after: TableShape,
    known: KeptNames,
    *,
    made_by_us: bool,
    has_using: bool = False,
    before_copy: bool = False,
) -> tuple[Followed, KeptNames]:
    """Let the target's table follow; the names that it did not follow. `known` are those so far.

    `before_copy`: without what is claimed of rows, which `follow_after_copy` brings. Foreign keys are left
    to the caller.

    Raises:
        SinkError: SchemaChangeRefused, SchemaChangeStops, TargetTableMissing, TargetObjectsForeign.
        psycopg.Error: others are in the way, or the server went away.
    """
    was = table_mappings.of(before.table, known.ruled_as)
    ruled_as = table_mappings.ruled_as(known.ruled_as or before.table, after.table)
    now = table_mappings.of(after.table, ruled_as)
    target = known.target or was.target
    moved = target if now.keeps_place else now.target
    context = AlterContext(
        moved=moved,
        place=table_mappings.target,
        policy=now.policy.value,
        wanted=known.wanted(now),
        made_by_us=made_by_us and now.is_like_source,
        with_indexes=table_mappings.options.create_indexes,
        with_foreign_keys=False,  # what they lead to may follow later
        has_using=has_using,
        before_copy=before_copy,
        names=known.names_of(now, {column.name for column in before.columns}),
        keeps_names=now.keeps_names,
        others=_others(table_mappings, now) if now.is_shared else None,
        table_mapping=now,
        rules=table_mappings.options.expression_rules,
        owner=table_mappings.owner,
        losing=lambda: _losing(cursor, table_mappings),
    )
    if now.policy is not SchemaChanges.IGNORE:
        refuse_code_of_table(cursor.connection, after.table, target, moved)
    followed = follow(cursor, before, after, target, context)
    if made_by_us and not now.is_like_source and now.policy is not SchemaChanges.IGNORE:
        kept = [note for note in followed.notes if note != KEY_STAYS]
        left = follow_key(cursor, before, after, followed.target, now, followed.column_names)
        followed = replace(followed, notes=[*kept, *([left] if left else [])])
    return followed, followed.kept_names(now.target, ruled_as)


def _losing(cursor: Cursor, table_mappings: TableMappings) -> set[TableName]:
    """Where those of the source's tables are that are not to keep what it drops."""
    found = set()
    for schema, name, mapping in cursor.execute(_FOLLOWED, table_mappings.owner).fetchall():
        known = KeptNames.read(mapping)
        table_mapping = table_mappings.of(TableName(schema, name), known.ruled_as)
        if table_mapping.policy is not SchemaChanges.ADDITIVE:
            found.add(known.target or table_mapping.target)
    return found


def _others(table_mappings: TableMappings, table_mapping: TableMapping) -> Others:
    """How rows of this source are distinguished from others'; a history's past is not to be rewritten."""
    if (
        table_mapping.source_id_column is None
        or table_mapping.is_mixed
        or table_mapping.history is not None
    ):
        return Others()
    return Others(
        sql.SQL("t.{}::text = {}").format(
            sql.Identifier(table_mapping.source_id_column), sql.Literal(table_mappings.source)
        )
    )


def take_ours(
    cursor: Cursor,
    table_mappings: TableMappings,
    table_mapping: TableMapping,
    target: TableName,
    known: KnownTable,
) -> None:
    """Take away the rows of a table that the source has dropped, from among other sources'.

    What appends or keeps a history stays.

    Raises:
        SinkError: TargetObjectsForeign, TargetTableUnfit: it is not to be written to.
        psycopg.Error: the target refuses.
    """
    ours = _others(table_mappings, table_mapping).ours
    is_wanted = table_mappings.options.schema_changes is SchemaChanges.APPLY and known.is_filled
    if table_mapping.kind is Kind.CLONE and ours is not None and is_wanted:
        refuse_code_of_table(cursor.connection, known.name, target)
        delete = sql.SQL("DELETE FROM {} t WHERE {}")
        cursor.execute(delete.format(sql.Identifier(*target), ours))


def join_table(
    cursor: Cursor,
    table_mappings: TableMappings,
    shape: TableShape,
    known: KeptNames,
) -> None:
    """Make room in a table that was made for another source's, or an earlier one: columns, wider types.

    A table that a person has made is taken as it is.

    Raises:
        SinkError: SchemaChangeRefused, or TargetTableUnfit where another table has the place.
    """
    table_mapping = table_mappings.of(shape.table, known.ruled_as)
    target = known.target or table_mapping.target
    if table_mapping.is_like_source or table_mapping.policy is not SchemaChanges.ADDITIVE:
        return
    connection = cursor.connection
    refuse_rivals(connection, table_mappings, shape.table, target)  # nothing of theirs is altered
    made = cursor.execute(_MADE_BEFORE, (table_mappings.pipeline, *shape.table)).fetchone()
    with connection.transaction(), without_search_path(connection):
        there = read_shapes(connection, [target], str(target)).get(target)
    if made is None or there is None:
        return
    names = known.names(table_mapping)
    types = {column.name: column.type for column in there.columns}
    # As if the source's table had had what is there, and had now got the rest.
    before = shape.model_copy(
        update={
            "columns": tuple(
                column.model_copy(update={"type": types[called]})
                for column in shape.columns
                if (called := names.get(column.name, column.name)) in types
            )
        }
    )
    follow_table(cursor, table_mappings, before, shape, known, made_by_us=False)


def follow_before_copy(
    connection: Connection,
    table_mappings: TableMappings,
    store: ShapeStore,
    order: CopyOrder,
    lsn: Lsn,
    made_by_us: bool,
) -> tuple[TableName, KeptNames]:
    """Bring a table that is there into the shape that the copy's rows have; where it is.

    Raises:
        SinkError: it cannot follow, or the name is another table's by now.
    """
    table, shape = order.table, order.shape
    stored, known = store.shape_and_names(connection, table)
    # Made again it has the source's names, but it is still what it was: a history, say.
    anew = KeptNames(ruled_as=known.ruled_as)
    place = table_mappings.target(table, anew.ruled_as)
    _require_same(stored, shape, table)
    called = stored.table if stored is not None else table
    target = known.target or table_mappings.target(called, known.ruled_as)
    is_there = find_table(connection, target) is not None
    if stored is None and is_there:
        with connection.transaction(), connection.cursor() as cursor:
            join_table(cursor, table_mappings, shape, known)
    if stored is None or not is_there:
        store.keep(connection, table, shape, lsn, anew)
        return place, anew
    table_mapping = table_mappings.of(stored.table, known.ruled_as)
    is_followed = table_mapping.is_like_source and table_mapping.policy is SchemaChanges.APPLY
    with connection.transaction(), connection.cursor() as cursor:
        if made_by_us and is_followed:
            drop_gone_foreign_keys(cursor, stored, shape, target, before_copy=True)
        followed, kept = follow_table(
            cursor,
            table_mappings,
            stored,
            shape,
            known,
            made_by_us=made_by_us,
            before_copy=True,
        )
        store.keep(cursor, table, shape, lsn, kept, before_copy=True)
        if followed.awaits_names:
            store.await_names(cursor, table)
    return followed.target, kept


def _require_same(stored: TableShape | None, shape: TableShape, table: TableName) -> None:
    if stored is not None and stored.id != shape.id:
        raise TargetTableUnfit(
            "the source has another table of this name by now",
            str(table),
            "nothing; the copy is tried again once the stream has said what became of the first",
        )


def follow_after_copy(
    cursor: Cursor,
    table_mappings: TableMappings,
    store: ShapeStore,
    order: CopyOrder,
    made_by_us: bool,
) -> list[str]:
    """Let a table follow what was left for the rows of its copy; a line for each thing left undone.

    Keys, indexes and constraints of tables that are penstock's own are made by whoever calls this.

    Raises:
        SinkError: it cannot follow.
    """
    before = store.constraints_of(cursor, order.table)
    if before is None:
        return []
    # It is where it belongs by now; another table may have the name that it had.
    place = {"schema_name": order.shape.schema_name, "name": order.shape.name}
    before = before.model_copy(update=place)
    followed, _ = follow_table(
        cursor,
        table_mappings,
        before,
        order.shape,
        store.shape_and_names(cursor, order.table)[1],
        made_by_us=made_by_us,
        before_copy=made_by_us,
    )
    if followed.awaits_names:
        store.await_names(cursor, order.table)
    return followed.notes


def unsure(
    table_mappings: TableMappings, before: TableShape, after: TableShape
) -> SchemaChangeStops:
    """Columns went and others came: only a person knows whether one is the other."""
    return SchemaChangeStops(
        "columns went and others came, which may have been a rename: "
        + describe_differences(compare_tables(before, after)),
        str(before.table),
        f"alter {table_mappings.target(before.table)} at the target as it was altered at the source,"
        f" then penstock tables PIPELINE.yml resync {after.table}",
    )


def unexplained(error: psycopg.Error, before: TableShape, after: TableShape) -> PenstockError:
    """What the target said outside of any statement that a person could run."""
    return refusal(error, before.table, describe_differences(compare_tables(before, after)))


_PRIMARY_KEY = """
SELECT o.conname FROM pg_constraint o JOIN pg_class c ON c.oid = o.conrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE o.contype = 'p' AND n.nspname = %s AND c.relname = %s
"""


def follow_key(
    cursor: psycopg.Cursor[Any],
    before: TableShape,
    after: TableShape,
    target: TableName,
    table_mapping: TableMapping,
    names: Mapping[str, str],
) -> str | None:
    """Give the target's table the key that it would be made with; a line if that is left to a person.

    `names` is what the target calls columns, where that is not their name.
    """
    was, now = before.row_key, after.row_key
    if now is None or (was is not None and was.columns == now.columns):
        return None
    called = tuple(names.get(name, name) for name in after.names_of(now.columns))
    row = cursor.execute(_PRIMARY_KEY, target).fetchone()
    drop = sql.SQL("DROP CONSTRAINT {}, ").format(sql.Identifier(row[0])) if row else sql.SQL("")
    statement = sql.SQL("ALTER TABLE {} {}ADD PRIMARY KEY ({})").format(
        sql.Identifier(*target),
        drop,
        sql.SQL(", ").join(map(sql.Identifier, target_key(called, table_mapping))),
    )
    by_hand = (
        f"the primary key stays as it was; to follow the source's: {statement.as_string(None)}"
    )
    if table_mapping.keeps_names:
        return by_hand  # others deliver by the key that it has
    try:
        with cursor.connection.transaction():
            cursor.execute(statement)
    except (psycopg.errors.LockNotAvailable, psycopg.OperationalError):
        raise
    except psycopg.Error:
        return by_hand
    return None
