"""penstock.schema_log: the versions of a source's schemas, one row each, written by penstock itself.

A row holds what its transaction has changed; the oldest of a schema, the whole of it. A pipeline
writes rows of its own, after it has read the transaction from the stream. Connections must be in
autocommit mode.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from penstock.lsn import ZERO, Lsn
from penstock.schema.mark import CHANGE, VERSION
from penstock.schema.shape import read_change, read_version
from penstock.schema.versions import difference_of, whole_of
from penstock.source.connect import source_errors
from penstock.source.tracking.install import has_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import psycopg

    from penstock.schema.mark import Mark

    Connection = psycopg.Connection[Any]

# How many versions of a schema are kept, and how many more there may be before some are let go.
KEPT_VERSIONS = 100
_SLACK = 20

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # of commit times in the stream

_INSERT = """
INSERT INTO penstock.schema_log
    (pipeline, schema_name, version, schema, is_whole, created_at, acked, lsn)
SELECT * FROM unnest(%s::text[], %s::text[], %s::int8[], %s::jsonb[], %s::bool[], %s::timestamptz[],
                     %s::bool[], %s::pg_lsn[])
ON CONFLICT (pipeline, schema_name, version) DO NOTHING
"""
# Rows of an earlier penstock's triggers belong to no pipeline.
_OURS = "pipeline IN (%(pipeline)s, '')"


@dataclass(frozen=True)
class SchemaVersion:
    """One row, less its document."""

    schema_name: str
    version: int
    created_at: datetime
    acked: bool
    lsn: Lsn | None


def write_versions(
    connection: Connection, pipeline: str, transactions: Iterable[Sequence[Mark]]
) -> None:
    """Add the versions that transactions of the stream led to. May be repeated.

    Raises:
        SchemaUnreadable: a document does not parse.
    """
    rows: list[tuple[Any, ...]] = []
    for marks in transactions:
        changes = [read_change(mark.content, mark.where) for mark in marks if mark.kind == CHANGE]
        for mark in marks:
            if mark.kind != VERSION:
                continue
            written = read_version(mark.content, mark.where)
            document, is_whole = difference_of(written.schema_name, changes)
            at = _EPOCH + timedelta(microseconds=mark.committed_at)
            key = (pipeline, written.schema_name, written.version)
            whole = is_whole or written.version == 1
            rows.append((*key, json.dumps(document), whole, at, False, str(mark.commit_lsn)))
    if rows:
        with source_errors(connection):
            connection.execute(_INSERT, [list(column) for column in zip(*rows, strict=True)])


def numbered_versions(connection: Connection, pipeline: str) -> dict[str, int]:
    """How far each schema's versions are counted; empty where there is no log."""
    if not has_log(connection):
        return {}
    query = f"SELECT schema_name, max(version) FROM penstock.schema_log WHERE {_OURS} GROUP BY 1"
    with source_errors(connection):
        rows = connection.execute(query, {"pipeline": pipeline}).fetchall()
    return {schema: int(version) for schema, version in rows}


def last_lsn(connection: Connection, pipeline: str) -> Lsn:
    """Up to which commit the versions of a pipeline are written."""
    query = "SELECT max(lsn)::text FROM penstock.schema_log WHERE pipeline = %s"
    with source_errors(connection):
        row = connection.execute(query, (pipeline,)).fetchone()
    return Lsn.parse(row[0]) if row is not None and row[0] else ZERO


def acknowledge_versions(connection: Connection, pipeline: str, delivered: Lsn) -> None:
    """Mark versions as delivered everywhere. May be repeated."""
    query = (
        f"UPDATE penstock.schema_log SET acked = true WHERE {_OURS}"
        " AND NOT acked AND lsn < %(lsn)s::pg_lsn"
    )
    with source_errors(connection):
        connection.execute(query, {"pipeline": pipeline, "lsn": str(delivered)})


def trim_versions(connection: Connection, pipeline: str) -> None:
    """Let go what was delivered long ago: of each schema the last hundred stay."""
    query = (
        "SELECT schema_name, (array_agg(version ORDER BY version DESC))[%(kept)s]"
        f" FROM penstock.schema_log WHERE {_OURS} GROUP BY 1 HAVING count(*) > %(limit)s"
    )
    limits = {"kept": KEPT_VERSIONS, "limit": KEPT_VERSIONS + _SLACK}
    with source_errors(connection):
        due = connection.execute(query, {"pipeline": pipeline, **limits}).fetchall()
        for schema, version in due:
            _trim_to(connection, pipeline, schema, version)


def _trim_to(connection: Connection, pipeline: str, schema: str, version: int) -> None:
    """Make the version the oldest, where all before it are delivered."""
    names = {"pipeline": pipeline, "schema": schema, "version": version}
    where = f"{_OURS} AND schema_name = %(schema)s AND version"
    with connection.transaction():
        row = connection.execute(
            f"SELECT bool_and(acked) FROM penstock.schema_log WHERE {where} <= %(version)s", names
        ).fetchone()
        if row is None or not row[0]:
            return
        whole = _whole(connection, names)
        connection.execute(
            "UPDATE penstock.schema_log SET schema = %(whole)s::jsonb, is_whole = true"
            f" WHERE {where} = %(version)s",
            {**names, "whole": json.dumps(whole)},
        )
        connection.execute(f"DELETE FROM penstock.schema_log WHERE {where} < %(version)s", names)


def read_versions(connection: Connection, pipeline: str) -> list[SchemaVersion]:
    """All versions, oldest first; none where there is no log."""
    if not has_log(connection):
        return []
    query = (
        "SELECT schema_name, version, created_at, acked, lsn::text AS spelled"
        f" FROM penstock.schema_log WHERE {_OURS} ORDER BY lsn, id"
    )
    with source_errors(connection):
        rows = connection.execute(query, {"pipeline": pipeline}).fetchall()
    return [
        SchemaVersion(schema, version, at, acked, Lsn.parse(lsn) if lsn else None)
        for schema, version, at, acked, lsn in rows
    ]


def read_schema_version(
    connection: Connection, pipeline: str, schema: str, version: int
) -> dict[str, Any]:
    """A schema as it was in one of its versions: format, tables, types, sequences."""
    names = {"pipeline": pipeline, "schema": schema, "version": version}
    with source_errors(connection):
        return _whole(connection, names)


def _whole(connection: Connection, names: dict[str, Any]) -> dict[str, Any]:
    query = (
        "SELECT schema, is_whole FROM penstock.schema_log"
        f" WHERE {_OURS} AND schema_name = %(schema)s AND version <= %(version)s"
        " AND version >= coalesce((SELECT max(version) FROM penstock.schema_log"
        f" WHERE {_OURS} AND schema_name = %(schema)s AND version <= %(version)s AND is_whole), 0)"
        " ORDER BY version, id"
    )
    return whole_of(connection.execute(query, names).fetchall())
