"""The key of a table that has more than the source's rows follows the source's, with what it has besides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from penstock.schema.describe import row_key_of
from penstock.sinks.postgres.mapping.target_shape import landed_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.schema.shape import TableShape
    from penstock.sinks.postgres.mapping.table_mapping import Landing
    from penstock.table import TableName

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
    landing: Landing,
    names: Mapping[str, str],
) -> str | None:
    """Give the target's table the key that it would be made with; a line if that is left to a person.

    `names` is what the target calls columns, where that is not their name.
    """
    was, now = row_key_of(before), row_key_of(after)
    if now is None or (was is not None and was.columns == now.columns):
        return None
    called = tuple(names.get(name, name) for name in after.names_of(now.columns))
    row = cursor.execute(_PRIMARY_KEY, target).fetchone()
    drop = sql.SQL("DROP CONSTRAINT {}, ").format(sql.Identifier(row[0])) if row else sql.SQL("")
    statement = sql.SQL("ALTER TABLE {} {}ADD PRIMARY KEY ({})").format(
        sql.Identifier(*target),
        drop,
        sql.SQL(", ").join(map(sql.Identifier, landed_key(called, landing))),
    )
    by_hand = (
        f"the primary key stays as it was; to follow the source's: {statement.as_string(None)}"
    )
    if landing.keeps_names:
        return by_hand  # others deliver by the key that it has
    try:
        with cursor.connection.transaction():
            cursor.execute(statement)
    except (psycopg.errors.LockNotAvailable, psycopg.OperationalError):
        raise
    except psycopg.Error:
        return by_hand
    return None
