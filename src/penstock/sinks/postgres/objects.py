"""penstock's own tables at a target: made once, brought up to date when a newer penstock comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors

from penstock.claims import wait_a_little

if TYPE_CHECKING:
    Connection = psycopg.Connection[Any]

_TABLES = """
CREATE SCHEMA IF NOT EXISTS penstock;
CREATE TABLE IF NOT EXISTS penstock.progress (
    pipeline text NOT NULL,
    source text NOT NULL,
    delivered_lsn pg_lsn NOT NULL,
    committed_at timestamptz,
    changes bigint NOT NULL DEFAULT 0,
    identity jsonb NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, source)
);
CREATE TABLE IF NOT EXISTS penstock.tables (
    pipeline text NOT NULL,
    source text NOT NULL,
    schema_name text NOT NULL,
    table_name text NOT NULL,
    state text NOT NULL,
    delivered_lsn pg_lsn,
    error text,
    filled boolean NOT NULL DEFAULT false,
    changed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, source, schema_name, table_name)
);
-- One row for each range of a copy that has arrived, written together with its rows.
CREATE TABLE IF NOT EXISTS penstock.ranges (
    pipeline text NOT NULL,
    source text NOT NULL,
    schema_name text NOT NULL,
    table_name text NOT NULL,
    copy_id text NOT NULL,
    number integer NOT NULL,
    rows bigint NOT NULL,
    bytes bigint NOT NULL,
    PRIMARY KEY (pipeline, source, schema_name, table_name, copy_id, number)
);
-- One row for each type of the source that was made or altered here: which one it is, and how it looked.
CREATE TABLE IF NOT EXISTS penstock.types (
    pipeline text NOT NULL,
    source text NOT NULL,
    source_oid bigint NOT NULL,
    oid oid NOT NULL,
    schema_name text NOT NULL,
    type_name text NOT NULL,
    made_by_us boolean NOT NULL,
    shape jsonb NOT NULL,
    PRIMARY KEY (pipeline, source, source_oid)
);
"""

_LATER_COLUMNS = {
    "needs_copy": "boolean NOT NULL DEFAULT false",
    "request": "text",  # what a person has asked for and nobody has begun: resync
    "copy_id": "text",  # which snapshot the rows come from
    "copy_way": "text",  # direct: into the table; aside: into a table of penstock's, merged at the end
    "made_by_us": "boolean NOT NULL DEFAULT false",
    "ranges_total": "integer NOT NULL DEFAULT 0",
    "rows_copied": "bigint NOT NULL DEFAULT 0",
    "bytes_copied": "bigint NOT NULL DEFAULT 0",
    "attempts": "integer NOT NULL DEFAULT 0",
    "retry_at": "timestamptz",
    "snapshot_at": "timestamptz",
    "copied_at": "timestamptz",
    "foreign_keys_due": "boolean NOT NULL DEFAULT false",  # once the table streams
    "notes": "text",  # indexes and constraints that could not be made
    "source_oid": "bigint",  # the source's table, whatever it is called
    "shape": "jsonb",  # how the source's table looked when this one last followed
    "shape_lsn": "pg_lsn",  # the position of that
    "mapping": "jsonb",  # names that this one did not follow
    # What was other than the source's changes said, since it is known.
    "insert_exists": "bigint NOT NULL DEFAULT 0",
    "update_missing": "bigint NOT NULL DEFAULT 0",
    "delete_missing": "bigint NOT NULL DEFAULT 0",
}

# Two pipelines may start against a new target at once. Nothing is there yet that others could not lock,
# so who comes second fails, and finds it made.
_MADE_MEANWHILE = (
    errors.UniqueViolation,
    errors.DuplicateSchema,
    errors.DuplicateTable,
    errors.DuplicateObject,
)
_TRIES = 10

_HAS_ALL = """
SELECT to_regclass('penstock.progress') IS NOT NULL, (
    SELECT count(*) = %s FROM pg_attribute
    WHERE attrelid = to_regclass('penstock.tables') AND attname = ANY (%s) AND NOT attisdropped)
    AND to_regclass('penstock.ranges') IS NOT NULL AND to_regclass('penstock.types') IS NOT NULL
"""


def has_objects(connection: Connection) -> bool:
    """Whether penstock's tables are there, of this version or an older one."""
    return _look(connection)[0]


def make_objects(connection: Connection) -> None:
    """Make what is missing. A role that may only write need not be able to create what is there."""
    failure: psycopg.Error | None = None
    for _ in range(_TRIES):
        if all(_look(connection)):
            return
        try:
            with connection.transaction():
                connection.execute(statements())
        except _MADE_MEANWHILE as error:
            failure = error
            wait_a_little()
    if failure is not None:
        raise failure


def statements() -> str:
    """The SQL that makes everything, also where an older penstock has made a part of it."""
    added = ",\n".join(
        f"    ADD COLUMN IF NOT EXISTS {name} {declared}"
        for name, declared in _LATER_COLUMNS.items()
    )
    return f"{_TABLES}ALTER TABLE penstock.tables\n{added};\n"


def _look(connection: Connection) -> tuple[bool, bool]:
    row = connection.execute(_HAS_ALL, (len(_LATER_COLUMNS), list(_LATER_COLUMNS))).fetchone()
    assert row is not None
    return bool(row[0]), bool(row[1])
