"""The source server's settings and the role's rights, read at once and judged. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg.rows import namedtuple_row

from penstock.errors import (
    NoSlotLeft,
    PenstockError,
    SlotLost,
    SourceError,
    SourcePrivilegeMissing,
    WalLevelTooLow,
)
from penstock.lsn import Lsn
from penstock.source.connect import connect_source, place_of, role_of, source_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from penstock.dsn import Dsn

    Connection = psycopg.Connection[Any]

OLDEST_VERSION = 140000
# From here on creating a logical slot raises the effective WAL level by itself.
_RAISES_WAL_LEVEL = 190000

# pg_settings has no row for a setting that this version, or this role, does not know.
_FACTS = """
SELECT (SELECT setting FROM pg_settings WHERE name = 'wal_level') AS wal_level,
       pg_is_in_recovery() AS is_standby,
       (SELECT setting::int FROM pg_settings WHERE name = 'max_replication_slots') AS max_slots,
       (SELECT count(*) FROM pg_replication_slots WHERE slot_name <> ALL (%(own)s)) AS used_slots,
       (SELECT setting::int FROM pg_settings WHERE name = 'max_wal_senders') AS max_senders,
       (SELECT count(*) FROM pg_stat_replication WHERE pid NOT IN (
           SELECT active_pid FROM pg_replication_slots
           WHERE slot_name = ANY (%(own)s) AND active_pid IS NOT NULL)) AS used_senders,
       (SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user)
           OR coalesce(pg_has_role(to_regrole('rds_replication'), 'MEMBER'), false)
           AS may_replicate,
       has_database_privilege(current_database(), 'CREATE') AS may_create,
       (SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size')
           AS keep_megabytes,
       (SELECT setting::bigint FROM pg_settings WHERE name = 'idle_replication_slot_timeout')
           AS idle_timeout_seconds,
       (SELECT setting FROM pg_settings WHERE name = 'output_plugin_libraries') AS plugins
"""


@dataclass(frozen=True)
class ServerFacts:
    """What decides whether the server can be followed; `used_…` leave our own slot out."""

    place: str
    role: str
    version: int
    wal_level: str
    is_standby: bool
    max_slots: int
    used_slots: int
    max_senders: int
    used_senders: int
    may_replicate: bool
    may_create: bool
    keep_megabytes: int | None
    idle_timeout_seconds: int | None
    plugins: str | None


def read_server(connection: Connection, own_slots: list[str]) -> ServerFacts:
    """The facts, in one query."""
    with source_errors(connection), connection.cursor(row_factory=namedtuple_row) as cursor:
        row: Any = cursor.execute(_FACTS, {"own": own_slots}).fetchone()
    return ServerFacts(
        place=place_of(connection),
        role=role_of(connection),
        version=connection.info.server_version,
        **row._asdict(),
    )


def server_errors(facts: ServerFacts) -> Iterator[PenstockError]:
    """What keeps the server from being followed."""
    if facts.is_standby:
        what = "the server is a standby, wanted the primary"
        yield SourceError(what, facts.place, "put the primary into the url")
    if facts.wal_level != "logical" and facts.version < _RAISES_WAL_LEVEL:
        yield _wal_level_too_low(facts)
    if not facts.may_replicate:
        what = f"the role {facts.role} may not replicate"
        do = f"ALTER ROLE {facts.role} REPLICATION; on Amazon RDS: GRANT rds_replication TO {facts.role}"
        yield SourcePrivilegeMissing(what, facts.place, do)
    if facts.used_slots >= facts.max_slots:
        yield _none_left("replication slots", "max_replication_slots", facts.max_slots, facts)
    if facts.used_senders >= facts.max_senders:
        yield _none_left("WAL senders", "max_wal_senders", facts.max_senders, facts)
    if facts.plugins is not None and "pgoutput" not in _listed(facts.plugins):
        yield _plugin_forbidden(facts)


def server_warnings(facts: ServerFacts) -> Iterator[PenstockError]:
    """What does not keep the server from being followed, but may from being copied or for long."""
    for noun, setting, used, limit in (
        ("replication slot", "max_replication_slots", facts.used_slots, facts.max_slots),
        ("WAL sender", "max_wal_senders", facts.used_senders, facts.max_senders),
    ):
        if used == limit - 1:
            yield NoSlotLeft(
                f"only one {noun} is left for the pipeline, wanted a second one while it copies tables",
                facts.place,
                f"ALTER SYSTEM SET {setting} = {limit + 5}; then restart the server",
            )
    if facts.keep_megabytes is not None and facts.keep_megabytes >= 0:
        yield SlotLost(
            f"max_slot_wal_keep_size is {facts.keep_megabytes}MB: a pipeline that falls further"
            " behind loses its slot and must start anew",
            facts.place,
            "raise it as far as the disk allows: ALTER SYSTEM SET max_slot_wal_keep_size = '…';"
            " SELECT pg_reload_conf()",
        )
    if facts.idle_timeout_seconds:
        yield SlotLost(
            f"idle_replication_slot_timeout is {facts.idle_timeout_seconds}s: a pipeline that is"
            " stopped for longer loses its slot and must start anew",
            facts.place,
            "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf()",
        )


def _wal_level_too_low(facts: ServerFacts) -> PenstockError:
    return WalLevelTooLow(
        f"wal_level is {facts.wal_level}, wanted logical",
        facts.place,
        "ALTER SYSTEM SET wal_level = 'logical'; then restart the server"
        " (Amazon RDS: rds.logical_replication = 1)",
    )


def _none_left(noun: str, setting: str, limit: int, facts: ServerFacts) -> PenstockError:
    return NoSlotLeft(
        f"all {limit} {noun} are in use, wanted one more",
        facts.place,
        f"ALTER SYSTEM SET {setting} = {limit + 5}; then restart the server;"
        " or drop what nobody reads: SELECT * FROM pg_replication_slots WHERE NOT active",
    )


def _plugin_forbidden(facts: ServerFacts) -> PenstockError:
    plugins = ", ".join([*_listed(facts.plugins or ""), "pgoutput"])
    return SourcePrivilegeMissing(
        f"output_plugin_libraries is '{facts.plugins}', wanted pgoutput among them",
        facts.place,
        f"ALTER SYSTEM SET output_plugin_libraries = {plugins}; SELECT pg_reload_conf()",
    )


def _listed(setting: str) -> list[str]:
    return [part for each in setting.split(",") if (part := each.strip().strip('"'))]


def current_lsn(connection: Connection) -> Lsn:
    """How far the primary has written."""
    with source_errors(connection):
        row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    assert row is not None
    return Lsn.parse(row[0])


def emit_mark(dsn: Dsn, text: str) -> Lsn:
    """Put a message of ours into the stream: all that has committed by now comes before it."""
    with connect_source(dsn, "penstock mark") as connection, source_errors(connection):
        row = connection.execute(
            "SELECT pg_logical_emit_message(true, 'penstock', %s)::text", (text,)
        ).fetchone()
    assert row is not None
    return Lsn.parse(row[0])
