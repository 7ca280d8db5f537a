"""Whose changes these are: cluster, timeline, database, slot and generation, stored with a position.

Any difference between what is stored and what answers has one named outcome; none is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors

from penstock.errors import OtherCluster, PublicationChanged, SourceError, SourceRestored
from penstock.source.connect import connect_replication, source_errors
from penstock.source.refusals import START_ANEW

if TYPE_CHECKING:
    from penstock.dsn import Dsn
    from penstock.lsn import Lsn
    from penstock.source.subscription import Subscription

    Connection = psycopg.Connection[Any]

# The name of the current WAL file begins with the timeline that is written now; pg_control_checkpoint
# still shows the old one for a while after a promotion.
_PRIMARY = "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"
_STANDBY = "SELECT to_hex(min_recovery_end_timeline) FROM pg_control_recovery()"


@dataclass(frozen=True)
class SourceIdentity:
    """What is stored with a position and compared on start."""

    system_identifier: str
    timeline: int
    database: str
    slot: str
    generation: str


@dataclass(frozen=True)
class Answering:
    """Who answers on a replication connection, and how far its WAL goes."""

    system_identifier: str
    timeline: int
    lsn: Lsn
    database: str
    is_standby: bool
    started_at: str  # when the server was started


def read_identity(
    connection: Connection, subscription: Subscription, dsn: Dsn | None = None
) -> SourceIdentity:
    """The identity of what answers now.

    `dsn` is needed only where execution of pg_control_system was revoked; a replication connection
    then says the same.
    """
    system, timeline, database = _ask(connection, dsn)
    return SourceIdentity(system, timeline, database, subscription.slot, subscription.generation)


def read_cluster(connection: Connection, dsn: Dsn | None = None) -> tuple[str, str]:
    """System identifier and database: by these two sources are known to be the same."""
    system, _, database = _ask(connection, dsn)
    return system, database


def _ask(connection: Connection, dsn: Dsn | None) -> tuple[str, int, str]:
    with source_errors(connection):
        try:
            system, timeline = _by_sql(connection)
        except errors.InsufficientPrivilege:
            if dsn is None:
                raise
            system, timeline = identify_system(dsn)
        return system, timeline, _value(connection, "SELECT current_database()")


def compare_identity(stored: SourceIdentity, found: SourceIdentity, place: str) -> None:
    """Refuse to go on from a position that belongs to something else.

    Raises:
        OtherCluster: another cluster, timeline or database answers.
        PublicationChanged: slot or publication were made anew.
    """
    for part, before, after in (
        ("system identifier", stored.system_identifier, found.system_identifier),
        ("database", stored.database, found.database),
        ("timeline", str(stored.timeline), str(found.timeline)),
    ):
        if before != after:
            raise OtherCluster(
                f"{part} is {after}, wanted {before}",
                place,
                "put the former server into the url; if this one replaces it"
                " (promotion, restore), penstock teardown, then init",
            )
    for part, before, after in (
        ("generation", stored.generation, found.generation),
        ("slot", stored.slot, found.slot),
    ):
        if before != after:
            raise PublicationChanged(
                f"{part} is {after}, wanted {before}: made anew since the last delivery",
                place,
                START_ANEW,
            )


def compare_answering(stored: SourceIdentity, found: Answering, place: str) -> None:
    """Refuse to go on when another server answers than the one that is followed.

    Raises:
        OtherCluster: another cluster, timeline or database answers.
    """
    answers = replace(
        stored,
        system_identifier=found.system_identifier,
        timeline=found.timeline,
        database=found.database,
    )
    compare_identity(stored, answers, place)


def check_reach(found: Answering, have_lsn: Lsn, place: str) -> None:
    """Refuse a server whose WAL ends before what was received from it, or is delivered.

    Raises:
        SourceRestored: it was put back to an earlier state.
        SourceError: it is a standby, which may come so far.
    """
    if found.lsn >= have_lsn:
        return
    what = f"the server's WAL ends at {found.lsn}, wanted {have_lsn}, which was received from it"
    if found.is_standby:
        raise SourceError(f"{what}: a standby that is behind", place, "nothing: it is waited for")
    raise restored(what, place)


def restored(what: str, place: str) -> SourceRestored:
    """The error for a source that is not what it was."""
    return SourceRestored(
        f"{what}: it was restored from an older state",
        place,
        "put the former server into the url; if this one replaces it, penstock teardown, then init:"
        " tables are copied anew",
    )


def identify_system(dsn: Dsn) -> tuple[str, int]:
    """System identifier and timeline as IDENTIFY_SYSTEM returns them, over a replication connection.

    Raises:
        psycopg.Error: no such connection, or something that is not a walsender answers.
    """
    with connect_replication(dsn, "penstock check") as connection:
        result = connection.pgconn.exec_(b"IDENTIFY_SYSTEM")
        if result.status != psycopg.pq.ExecStatus.TUPLES_OK:
            raise errors.error_from_result(result)
        system, timeline = result.get_value(0, 0) or b"", result.get_value(0, 1) or b"0"
    return system.decode(), int(timeline)


def _by_sql(connection: Connection) -> tuple[str, int]:
    system = _value(connection, "SELECT system_identifier::text FROM pg_control_system()")
    standby = _value(connection, "SELECT pg_is_in_recovery()")
    return system, int(_value(connection, _STANDBY if standby else _PRIMARY), 16)


def _value(connection: Connection, query: str) -> Any:
    row = connection.execute(query).fetchone()
    return None if row is None else row[0]
