"""Run a statement of a merge, and take from it what the merge wants to know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

    Cursor = psycopg.Cursor[Any]


def affected(cursor: Cursor, statement: sql.Composed) -> int:
    """How many rows it has changed."""
    cursor.execute(statement)
    return cursor.rowcount


def counted(cursor: Cursor, statement: sql.Composed) -> int:
    """The number that it asks for."""
    row = cursor.execute(statement).fetchone()
    return int(row[0]) if row is not None else 0


def first_key(cursor: Cursor, statement: sql.Composed) -> str | None:
    """The key in its first row, as an error tells it; None where there is none."""
    row = cursor.execute(statement).fetchone()
    return f"key ({', '.join(row)})" if row is not None else None
