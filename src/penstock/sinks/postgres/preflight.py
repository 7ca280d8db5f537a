"""What stands in the way of delivering to a Postgres, found without changing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from penstock.errors import (
    ExtensionMissing,
    PenstockError,
    SinkError,
    SinkPrivilegeMissing,
    SinkTooOld,
    TargetObjectsForeign,
)
from penstock.sinks.postgres.connect import OLDEST_VERSION, classify_target_error, connect_target
from penstock.sinks.postgres.state.objects import denied_statements
from penstock.table import name_tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.dsn import Dsn
    from penstock.table import TableName


_FACTS = """
SELECT current_user::text, current_database()::text, pg_is_in_recovery(),
       has_database_privilege(current_database(), 'CREATE'),
       to_regnamespace('penstock') IS NOT NULL,
       coalesce(has_schema_privilege(to_regnamespace('penstock'), 'USAGE, CREATE'), false)
"""


def check_target(dsn: Dsn) -> list[PenstockError]:
    """Every fault of the target at once; empty when penstock can deliver there."""
    try:
        with connect_target(dsn, "penstock check") as connection:
            return list(_faults(connection, dsn))
    except psycopg.Error as error:
        return [classify_target_error(error, dsn)]
    except PenstockError as error:
        return [error]


def missing_extensions(dsn: Dsn, wanted: Mapping[str, Sequence[TableName]]) -> list[PenstockError]:
    """Extensions that tables of the source are made with and that the target does not have."""
    try:
        with connect_target(dsn, "penstock check") as connection:
            rows = connection.execute("SELECT extname FROM pg_extension").fetchall()
    except psycopg.Error as error:
        return [classify_target_error(error, dsn)]
    there = {name for (name,) in rows}
    return [
        ExtensionMissing(
            f"extension {name} is not there, which {name_tables(tables)} of the source needs: columns of its"
            " types become text, indexes with its operators are left out",
            str(dsn),
            sql.SQL("CREATE EXTENSION {}").format(sql.Identifier(name)).as_string(None),
        )
        for name, tables in sorted(wanted.items())
        if name not in there
    ]


def _faults(connection: psycopg.Connection[Any], dsn: Dsn) -> Iterator[PenstockError]:
    version = connection.info.server_version
    if version < OLDEST_VERSION:
        yield SinkTooOld(
            f"the target is Postgres {version // 10000}, wanted 14 or later",
            str(dsn),
            "deliver to a newer server",
        )
        return
    row = connection.execute(_FACTS).fetchone()
    assert row is not None
    role, database, in_recovery, may_create, has_schema, may_use = row
    if in_recovery:
        yield SinkError(
            "the target is a standby and cannot be written", str(dsn), "use its primary"
        )
    if not has_schema and not may_create:
        yield SinkPrivilegeMissing(
            f"role {role} may not create schema penstock in database {database}",
            str(dsn),
            sql.SQL("GRANT CREATE ON DATABASE {} TO {}")
            .format(sql.Identifier(database), sql.Identifier(role))
            .as_string(connection),
        )
    if has_schema and not may_use:
        yield SinkPrivilegeMissing(
            f"role {role} may not use and create in schema penstock",
            str(dsn),
            sql.SQL("GRANT USAGE, CREATE ON SCHEMA penstock TO {}")
            .format(sql.Identifier(role))
            .as_string(connection),
        )
    try:
        denied = denied_statements(connection)
    except TargetObjectsForeign as error:
        yield error
        return
    if denied:
        yield SinkPrivilegeMissing(
            f"schema penstock is of an older penstock, and role {role} may not alter table penstock.tables,"
            " which another role owns",
            str(dsn),
            f"run as its owner or a superuser: {' '.join(' '.join(denied).split())}",
        )
