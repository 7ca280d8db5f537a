"""A snapshot of the source that other connections can adopt, and the exact position it belongs to.

A temporary slot gives both at once: the snapshot shows every transaction that ends before the slot's
consistent point and none that ends after. No other way is exact: between the moment that a commit is
in the WAL and the moment that it is visible, a plain snapshot and a position disagree.
"""

from __future__ import annotations

import logging
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import pq, sql

from penstock.errors import SourceError
from penstock.lsn import Lsn
from penstock.source.connect import (
    classify_source_error,
    connect_replication,
    connect_source,
    result_error,
    source_errors,
)
from penstock.source.server import current_lsn
from penstock.timing import timing

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator
    from datetime import datetime

    from penstock.dsn import Dsn

_log = logging.getLogger(__name__)

_OLDEST_STANDBY_VERSION = 160000

_OPEN_TRANSACTIONS = """
SELECT count(*), extract(epoch FROM max(now() - xact_start))::int FROM pg_stat_activity
WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() AND datname IS NOT NULL
"""


class ExportedSnapshot:
    """Lives as long as its connection, and with it the temporary slot. `close` lets both go.

    `taken_at` is when it was taken, by the clock that stamps the commits.
    """

    def __init__(
        self, name: str, lsn: Lsn, taken_at: datetime, connection: psycopg.Connection[Any]
    ) -> None:
        self.name = name
        self.lsn = lsn
        self.taken_at = taken_at
        self._connection = connection

    @classmethod
    def take(cls, dsn: Dsn, stop: threading.Event, primary: Dsn | None = None) -> ExportedSnapshot:
        """Take one; waits for the transactions that are open now.

        Args:
            dsn: the primary, or a standby of it, which must be of version 16 or later.
            stop: ends the waiting.
            primary: of the standby. All that it has committed by now is in the snapshot.

        Raises:
            SourceError: NoSlotLeft, for one; or asked to stop.
        """
        if primary is not None:
            _wait_for_standby(dsn, primary, stop)
        slot = f"penstock_copy_{uuid.uuid4().hex[:12]}"
        try:
            # A limit on idle transactions would end the snapshot in the middle of a copy.
            connection = connect_replication(dsn, "penstock snapshot", unlimited=True)
        except psycopg.Error as error:
            raise classify_source_error(error, dsn) from None
        try:
            command = f"CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT"
            answer = _ask(connection.pgconn, command.encode(), dsn, stop, primary)
            # Over another connection: the next command over this one would end the snapshot.
            taken_at = _clock(primary or dsn)
        except psycopg.Error as error:
            connection.close()
            raise classify_source_error(error, dsn) from None
        except BaseException:
            connection.close()
            raise
        # slot_name | consistent_point | snapshot_name | output_plugin
        point, name = answer.get_value(0, 1), answer.get_value(0, 2)
        assert point is not None
        assert name is not None
        return cls(name.decode(), Lsn.parse(point.decode()), taken_at, connection)

    @property
    def is_alive(self) -> bool:
        """Whether others can still adopt it."""
        pgconn = self._connection.pgconn
        try:
            pgconn.consume_input()
        except psycopg.Error:
            return False
        return pgconn.status == pq.ConnStatus.OK

    @contextmanager
    def seen_by(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        """Have a connection see the source as it was then, its catalog too."""
        with source_errors(connection), connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute(
                sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(self.name))
            )
            yield

    def close(self) -> None:
        """Let go of the snapshot and of its slot."""
        self._connection.close()


def _ask(
    pgconn: pq.abc.PGconn,
    command: bytes,
    dsn: Dsn,
    stop: threading.Event,
    primary: Dsn | None,
) -> pq.abc.PGresult:
    """Send a command and wait for its answer, as long as nobody says stop."""
    pgconn.send_query(command)
    pgconn.flush()
    began = time.monotonic()
    report_at, nudge_at = began + timing().snapshot_report_seconds, began
    while pgconn.is_busy():
        now = time.monotonic()
        if stop.wait(timing().snapshot_poll_seconds if now > began + 0.5 else 0.005):
            raise SourceError("asked to stop while waiting for a snapshot", str(dsn), "nothing")
        if now > report_at:
            report_at += 6 * timing().snapshot_report_seconds
            _report_waiting(primary or dsn)
        if primary is not None and now > nudge_at:
            nudge_at = now + 1.0
            _nudge(primary)
        pgconn.consume_input()
    result = pgconn.get_result()
    if result is None or result.status != pq.ExecStatus.TUPLES_OK:
        raise result_error(result)
    while pgconn.get_result() is not None:
        pass
    return result


def _clock(dsn: Dsn) -> datetime:
    with connect_source(dsn, "penstock snapshot") as connection, source_errors(connection):
        row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    found: datetime = row[0]
    return found


def _report_waiting(dsn: Dsn) -> None:
    with connect_source(dsn, "penstock snapshot") as connection, source_errors(connection):
        row = connection.execute(_OPEN_TRANSACTIONS).fetchone()
    if row is not None and row[0]:
        _log.warning(
            "the copy waits for %d open transactions, the oldest open for %d s", row[0], row[1] or 0
        )


def _nudge(primary: Dsn) -> None:
    """A standby learns from the primary which transactions run, and an idle one does not report."""
    with connect_source(primary, "penstock snapshot") as connection:
        try:
            connection.execute("SELECT pg_log_standby_snapshot()")
        except psycopg.errors.InsufficientPrivilege:
            _log.debug("may not call pg_log_standby_snapshot(); a checkpoint will do the same")


def _wait_for_standby(dsn: Dsn, primary: Dsn, stop: threading.Event) -> None:
    """A copy must show everything up to where its copy was scheduled, wherever it is taken."""
    with connect_source(primary, "penstock snapshot") as connection:
        lsn = current_lsn(connection)
    with connect_source(dsn, "penstock snapshot") as connection, source_errors(connection):
        version = connection.info.server_version
        if version < _OLDEST_STANDBY_VERSION:
            raise SourceError(
                f"a standby of version {version // 10000}, wanted 16 or later to copy from",
                str(dsn),
                "leave source.snapshot.url out: the primary is copied from then",
            )
        query = "SELECT coalesce(pg_last_wal_replay_lsn(), pg_current_wal_lsn()) >= %s::pg_lsn"
        while (row := connection.execute(query, (str(lsn),)).fetchone()) is None or not row[0]:
            if stop.wait(timing().snapshot_poll_seconds):
                raise SourceError(
                    "asked to stop while waiting for the standby", str(dsn), "nothing"
                )
