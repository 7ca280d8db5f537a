"""Schemas at the target: made where they are missing, recorded, and dropped with the source's.

A schema that was there before, or that somebody else has made, is never dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from penstock.sinks.postgres.ddl.alter_steps import Step, run_steps
from penstock.sinks.postgres.ddl.create import missing_schemas, schema_statement
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Collection

    Connection = psycopg.Connection[Any]
    Cursor = psycopg.Cursor[Any]
    Owner = tuple[str, str]

# Another role may have made it a moment before: then it is that role's.
_RECORD = """
INSERT INTO penstock.schemas (pipeline, source, oid, schema_name)
SELECT {}, {}, oid, nspname FROM pg_namespace
WHERE nspname = {} AND pg_get_userbyid(nspowner) = current_user ON CONFLICT DO NOTHING
"""
# Under another name it may be somebody's by now, or be another one.
_MADE_BY_US = """
SELECT FROM penstock.schemas m JOIN pg_namespace n ON n.oid = m.oid AND n.nspname = m.schema_name
WHERE m.pipeline = %s AND m.source = %s AND m.schema_name = %s
  AND pg_get_userbyid(n.nspowner) = current_user
"""
_FORGET_GONE = """
DELETE FROM penstock.schemas m WHERE m.pipeline = %s AND m.source = %s AND m.schema_name = %s
AND NOT EXISTS (SELECT FROM pg_namespace n WHERE n.oid = m.oid)
"""


def schema_steps(connection: Connection, owner: Owner | None, name: str) -> list[Step]:
    """What makes a schema, none where it is there. Without an owner nothing is recorded."""
    if not missing_schemas(connection, [name]):
        return []
    steps = [Step(schema_statement(name))]
    if owner is not None:
        record = sql.SQL(_RECORD).format(*map(sql.Literal, (*owner, name)))
        steps.append(Step(record, is_record=True))
    return steps


def have_schemas(connection: Connection, owner: Owner, names: Collection[str]) -> None:
    """Make those that are missing, and record them; within a transaction.

    Raises:
        psycopg.Error: the role may not, or the server went away.
    """
    for name in missing_schemas(connection, names):
        connection.execute(schema_statement(name))
        connection.execute(sql.SQL(_RECORD).format(*map(sql.Literal, (*owner, name))))


def drop_schema(cursor: Cursor, owner: Owner, name: str) -> list[str]:
    """Drop a schema that penstock has made, if there is nothing in it; else a line that says why it is kept.

    Raises:
        psycopg.Error: others are in the way, or the server went away.
    """
    if cursor.execute(_MADE_BY_US, (*owner, name)).fetchone() is None:
        return []  # not there, or somebody else's
    drop = sql.SQL("DROP SCHEMA IF EXISTS {}").format(sql.Identifier(name))
    step = Step(drop, f"schema {name} is kept")
    notes = run_steps(cursor.connection, [step], TableName(name, ""), "").notes
    cursor.execute(_FORGET_GONE, (*owner, name))
    return notes
