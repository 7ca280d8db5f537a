"""Names that an index or a constraint of ours has to wait for.

Tables stand at different positions of the stream: one may need a name for its key that another one, which
has yet to come to where it gives that name up, still has. Then the object is called by a name that nobody
else has, made of its table and of the name that it waits for, so that it is found again; `copy/due_names.py`
gives it its own name once its table streams. So what penstock has made bears at any time the name that the
table's shape in penstock.tables says, or the one that stands for it.
"""

from __future__ import annotations

import hashlib
import itertools
from typing import TYPE_CHECKING, Any

from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Iterable

    import psycopg

    from penstock.table import TableName

    Connection = psycopg.Connection[Any]

_LONGEST_NAME = 63  # bytes; Postgres cuts off the rest

_HAS_OBJECTS = "SELECT to_regclass('penstock.tables') IS NOT NULL"
# Constraints without an index have their names within a table.
_IS_OURS = """
SELECT EXISTS (
    SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_index i ON i.indexrelid = c.oid
    JOIN penstock.tables t ON t.target_oid = coalesce(i.indrelid, c.oid)::bigint
    WHERE n.nspname = %(schema)s AND c.relname = %(name)s
) OR EXISTS (
    SELECT FROM pg_constraint o JOIN pg_class c ON c.oid = o.conrelid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN penstock.tables t ON t.target_oid = c.oid::bigint
    WHERE n.nspname = %(schema)s AND c.relname = %(table)s AND o.conname = %(name)s
)
"""
_MARK = "UPDATE penstock.tables SET names_due = true WHERE target_oid = %s"
_RELATIONS = """
SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = ANY (%s)
"""


def stand_in(table_oid: int, name: str) -> str:
    """What an object of a target's table is called while it waits for a name."""
    return f"penstock_{hashlib.sha256(f'{table_oid} {name}'.encode()).hexdigest()[:20]}"


def is_held_by_ours(connection: Connection, table: TableName, name: str) -> bool:
    """Whether a table that penstock has made has the name that an object of a target's table is to get."""
    if connection.execute(_HAS_OBJECTS).fetchone() != (True,):
        return False
    values = {"schema": table.schema, "table": table.name, "name": name}
    return connection.execute(_IS_OURS, values).fetchone() == (True,)


def await_names(connection: Connection, table_oid: int) -> bool:
    """Have a target's table checked once it streams; False where nobody would."""
    return connection.execute(_MARK, (table_oid,)).rowcount > 0


def table_oid(connection: Connection, table: TableName) -> int:
    """The oid of a table that is there."""
    query = (
        "SELECT c.oid::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s"
    )
    row = connection.execute(query, table).fetchone()
    assert row is not None
    return int(row[0])


def taken_names(connection: Connection, schema: str, names: list[str]) -> set[str]:
    """Those of the names that a table, index, sequence or view of the schema has."""
    return {name for (name,) in connection.execute(_RELATIONS, (schema, names))}


def name_alike(connection: Connection, schemas: Iterable[str], name: str) -> str:
    """One like it that nothing in the schemas has."""
    for number in itertools.count(1):
        ending = f"_{number}"
        alike = name.encode()[: _LONGEST_NAME - len(ending)].decode(errors="ignore") + ending
        if not any(taken_names(connection, schema, [alike]) for schema in schemas):
            return alike
    raise AssertionError("numbers do not end")


def rename_object(table: TableName, old: str, new: str, *, has_index: bool) -> sql.Composed:
    """Renames an index, or a constraint with the index that it has, or one that has none."""
    if has_index:
        return sql.SQL("ALTER INDEX {} RENAME TO {}").format(
            sql.Identifier(table.schema, old), sql.Identifier(new)
        )
    return sql.SQL("ALTER TABLE {} RENAME CONSTRAINT {} TO {}").format(
        sql.Identifier(*table), sql.Identifier(old), sql.Identifier(new)
    )
