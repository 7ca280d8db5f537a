"""penstock.progress at the target: the truth about what has been delivered."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from psycopg.types.json import Jsonb

from penstock.claims import holder_of, try_claim, wait_a_little
from penstock.errors import PositionTaken, SecondInstance
from penstock.lsn import Lsn
from penstock.sinks.sink import StoredPosition
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import psycopg

    from penstock.sinks.sink import Batch

    Connection = psycopg.Connection[Any]

_log = logging.getLogger(__name__)

# Microseconds since 2000-01-01 are exact as an interval; as a float they would not be.
_COMMITTED_AT = "timestamptz '2000-01-01 00:00:00+00' + %s * interval '1 microsecond'"


# Only ours: the number may be another backend's by now.
_END_PREDECESSOR = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE pid = %s AND usename = current_user AND application_name = 'penstock deliver'"
)


class Progress:
    """One pipeline's and source's rows in penstock's own tables."""

    def __init__(self, pipeline: str, source: str) -> None:
        self.pipeline = pipeline
        self.source = source
        self._has_reported = False

    def claim(self, connection: Connection, place: str, predecessor: int | None = None) -> None:
        """Hold this pipeline at this target as long as the connection lives.

        Args:
            predecessor: the backend of a connection that this process has given up. Where the
                network is gone the server may not know that yet, so it is named.

        Raises:
            SecondInstance: another session holds it.
        """
        name = f"penstock {self.pipeline} {self.source}"
        deadline = time.monotonic() + timing().claim_patience_seconds
        while try_claim(connection, name) is None:
            if time.monotonic() < deadline:
                if predecessor is not None:
                    connection.execute(_END_PREDECESSOR, (predecessor,))
                wait_a_little()
                continue
            holder = holder_of(connection, name)
            described = (
                f"backend {holder.backend}, since {holder.since} UTC" if holder else "a backend"
            )
            raise SecondInstance(
                f"another process delivers pipeline {self.pipeline} there ({described})",
                place,
                "stop the other penstock first",
            )

    def read(self, connection: Connection) -> tuple[StoredPosition, int] | None:
        """The stored position and the number of changes delivered; None before the first."""
        row = connection.execute(
            "SELECT delivered_lsn::text, identity, changes FROM penstock.progress"
            " WHERE pipeline = %s AND source = %s",
            (self.pipeline, self.source),
        ).fetchone()
        if row is None:
            return None
        return StoredPosition(Lsn.parse(row[0]), {k: str(v) for k, v in row[1].items()}), row[2]

    def report_orphans(self, connection: Connection, sink: str, known: Sequence[str]) -> None:
        """A source that was taken out of the file still has its slot, which keeps WAL for ever."""
        if self._has_reported or self.source != known[0]:
            return
        self._has_reported = True
        for (source,) in connection.execute(
            "SELECT source FROM penstock.progress WHERE pipeline = %s AND source <> ALL (%s)"
            " ORDER BY source",
            (self.pipeline, list(known)),
        ):
            _log.warning(
                "sink %s has a position of source %s, which the pipeline does not follow; its slot keeps"
                " WAL until it is followed again, or torn down: put it back into the file, and"
                " penstock teardown --source %s",
                sink,
                source,
                source,
            )

    def begin(self, connection: Connection, identity: Mapping[str, str], lsn: Lsn) -> None:
        """Write the first position."""
        connection.execute(
            "INSERT INTO penstock.progress (pipeline, source, delivered_lsn, identity)"
            " VALUES (%s, %s, %s::pg_lsn, %s)",
            (self.pipeline, self.source, str(lsn), Jsonb(dict(identity))),
        )

    def advance(self, cursor: psycopg.Cursor[Any], batch: Batch, change_count: int) -> None:
        """Move the position, inside the transaction that holds the rows.

        Raises:
            PositionTaken: it is not where this process left it.
        """
        cursor.execute(
            "UPDATE penstock.progress SET delivered_lsn = %s::pg_lsn, changes = changes + %s,"
            f" committed_at = coalesce({_COMMITTED_AT}, committed_at), updated_at = now()"
            " WHERE pipeline = %s AND source = %s AND delivered_lsn = %s::pg_lsn",
            (
                str(batch.end_lsn),
                change_count,
                batch.committed_at or None,
                self.pipeline,
                self.source,
                str(batch.after_lsn),
            ),
        )
        if cursor.rowcount != 1:
            raise PositionTaken(
                f"the position is no longer {batch.after_lsn}",
                f"penstock.progress, pipeline {self.pipeline}",
                "stop the other penstock that delivers this pipeline, and start again",
            )

    def count(self, cursor: psycopg.Cursor[Any], change_count: int) -> None:
        """Count changes of tables that catch up; the position is not theirs."""
        cursor.execute(
            "UPDATE penstock.progress SET changes = changes + %s WHERE pipeline = %s AND source = %s",
            (change_count, self.pipeline, self.source),
        )
