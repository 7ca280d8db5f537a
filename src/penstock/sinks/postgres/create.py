"""Create what is missing at the target, like it is at the source: schemas, types, tables with keys.

Names are quoted, types are the catalog's own spelling; no text of the source is run as it is, but
for the expressions of generated columns.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.source.description import ColumnDescription, TableDescription, UserType
    from penstock.table import TableName

    Connection = psycopg.Connection[Any]

_log = logging.getLogger(__name__)


def create_table(
    connection: Connection,
    description: TableDescription,
    target: TableName,
    wanted: tuple[str, ...] | None,
) -> None:
    """Create a plain table like the source's: columns, types, NOT NULL, key. One transaction.

    Partitioned tables become plain ones, identity columns plain columns: a clone is told its values.
    """
    columns = [column for column in description.columns if wanted is None or column.name in wanted]
    with connection.transaction():
        connection.execute(
            sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(target.schema))
        )
        for user_type in description.user_types:
            _create_type(connection, user_type)
        names = {column.name for column in columns}
        declared = [_declare(connection, column) for column in columns]
        key = [name for name in description.key_columns if name in names]
        if key and len(key) == len(description.key_columns):
            declared.append(
                sql.SQL("PRIMARY KEY ({})").format(sql.SQL(", ").join(map(sql.Identifier, key)))
            )
        connection.execute(
            sql.SQL("CREATE TABLE {} ({})").format(
                sql.Identifier(*target), sql.SQL(", ").join(declared)
            )
        )
    _log.info("created %s like the source's %s", target, description.name)


def _declare(connection: Connection, column: ColumnDescription) -> sql.Composed:
    kind = column.type if _type_exists(connection, column.type) else "text"
    if kind != column.type:
        _log.warning(
            "type %s is not at the target; column %s becomes text", column.type, column.name
        )
    parts: list[sql.Composable] = [sql.Identifier(column.name), sql.SQL(kind)]
    if column.generated and column.expression:
        # The stream does not carry generated columns; the target computes them as the source does.
        stored = sql.SQL("GENERATED ALWAYS AS ({}) STORED")
        parts.append(stored.format(sql.SQL(column.expression)))
    if column.not_null:
        parts.append(sql.SQL("NOT NULL"))
    return sql.SQL(" ").join(parts)


def _type_exists(connection: Connection, type_text: str) -> bool:
    try:
        with connection.transaction():
            connection.execute(sql.SQL("SELECT NULL::{}").format(sql.SQL(type_text)))
    except psycopg.Error:
        return False
    return True


def _create_type(connection: Connection, user_type: UserType) -> None:
    if user_type.extension is not None or user_type.kind == "other":
        return  # not ours to make; a column of it becomes text where the target lacks it
    name = sql.Identifier(*user_type.name)
    found = connection.execute(
        "SELECT 1 FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace"
        " WHERE n.nspname = %s AND t.typname = %s",
        user_type.name,
    ).fetchone()
    if found is not None:
        return
    connection.execute(
        sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(user_type.name.schema))
    )
    connection.execute(_type_statement(name, user_type))


def _type_statement(name: sql.Identifier, user_type: UserType) -> sql.Composed:
    if user_type.kind == "enum":
        return sql.SQL("CREATE TYPE {} AS ENUM ({})").format(
            name, _listed(sql.Literal(label) for label in user_type.labels)
        )
    if user_type.kind == "domain":
        # Without its checks: the source has made them.
        return sql.SQL("CREATE DOMAIN {} AS {}").format(name, sql.SQL(user_type.base))
    if user_type.kind == "range":
        return sql.SQL("CREATE TYPE {} AS RANGE (SUBTYPE = {})").format(
            name, sql.SQL(user_type.base)
        )
    fields = (
        sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(field.type))
        for field in user_type.fields
    )
    return sql.SQL("CREATE TYPE {} AS ({})").format(name, _listed(fields))


def _listed(parts: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)
