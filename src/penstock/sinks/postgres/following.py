"""Follow a change of a source table as the sink's options say, and know what it is called here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import SchemaChangeStops, TargetTableUnfit
from penstock.schema.difference import compare_tables
from penstock.schema.telling import tell_all
from penstock.sinks.postgres.alter import Followed, follow, mapping_of, refusal
from penstock.sinks.postgres.target import Mapped, find_table, mapped, target_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg

    from penstock.errors import PenstockError
    from penstock.lsn import Lsn
    from penstock.schema.shape import TableShape
    from penstock.sinks.copying import CopyOrder
    from penstock.sinks.postgres.options import PostgresOptions
    from penstock.sinks.postgres.shapes import ShapeStore
    from penstock.table import TableName

    Connection = psycopg.Connection[Any]
    Cursor = psycopg.Cursor[Any]


def follow_table(
    cursor: Cursor,
    options: PostgresOptions,
    before: TableShape,
    after: TableShape,
    mapping: Mapping[str, Any] | None,
    *,
    made_by_us: bool,
    with_foreign_keys: bool,
    has_using: bool = False,
) -> tuple[Followed, dict[str, Any] | None]:
    """Let the target's table follow; the names that it did not follow, as penstock.tables keeps them.

    Raises:
        SinkError: SchemaChangeRefused, SchemaChangeStops, TargetTableMissing.
        psycopg.Error: others are in the way, or the server went away.
    """
    names = mapped(mapping)
    followed = follow(
        cursor,
        before,
        after,
        names.target or target_name(options, before.table),
        place=lambda name: target_name(options, name),
        policy=options.schema_changes.value,
        wanted=options.columns_of(after.table),
        made_by_us=made_by_us,
        with_indexes=options.create_indexes,
        with_foreign_keys=with_foreign_keys,
        has_using=has_using,
        names=dict(names.columns),
    )
    return followed, mapping_of(followed, target_name(options, after.table))


def follow_before_copy(
    connection: Connection,
    options: PostgresOptions,
    store: ShapeStore,
    order: CopyOrder,
    lsn: Lsn,
    made_by_us: bool,
) -> tuple[TableName, Mapped]:
    """Bring a table that is there into the shape that the copy's rows have; where it is.

    Raises:
        SinkError: it cannot follow, or the name is another table's by now.
    """
    table, shape = order.table, order.shape
    place = target_name(options, table)
    if shape is None:
        return place, Mapped()
    stored, document = store.shape_and_mapping(connection, table)
    if stored is not None and stored.id != shape.id:
        raise TargetTableUnfit(
            "the source has another table of this name by now",
            str(table),
            "nothing; the copy is tried again once the stream has told what became of the first",
        )
    target = mapped(document).target or target_name(options, stored.table if stored else table)
    if stored is None or find_table(connection, target) is None:
        store.keep(connection, table, shape, lsn)
        return place, Mapped()
    with connection.transaction(), connection.cursor() as cursor:
        followed, document = follow_table(
            cursor, options, stored, shape, document, made_by_us=made_by_us, with_foreign_keys=False
        )
        store.keep(cursor, table, shape, lsn, document)
    return followed.target, mapped(document)


def unsure(options: PostgresOptions, before: TableShape, after: TableShape) -> SchemaChangeStops:
    """Columns went and others came: only a person can tell whether one is the other."""
    return SchemaChangeStops(
        "columns went and others came, which may have been a rename: "
        + tell_all(compare_tables(before, after)),
        str(before.table),
        f"alter {target_name(options, before.table)} at the target as it was altered at the source,"
        f" then penstock tables resync {after.table}",
    )


def unexplained(error: psycopg.Error, before: TableShape, after: TableShape) -> PenstockError:
    """What the target said outside of any statement that a person could run."""
    return refusal(error, before.table, tell_all(compare_tables(before, after)))
