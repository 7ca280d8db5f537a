"""What `penstock status` reads at a Postgres: positions and tables, over one connection for all sources."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import psycopg

from penstock.errors import PenstockError
from penstock.sinks.postgres.connect import classify_target_error, connect_target
from penstock.sinks.postgres.state.objects import has_objects
from penstock.sinks.postgres.state.parked import ParkedRows
from penstock.sinks.postgres.state.progress import Progress
from penstock.sinks.postgres.state.tables import TargetTables
from penstock.sinks.status import TableStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.sinks.kind import SinkPlace
    from penstock.sinks.postgres.options import PostgresOptions
    from penstock.sinks.status import SinkStatus

    Place = SinkPlace[PostgresOptions]


def read_status(places: Sequence[Place], parts: Sequence[SinkStatus]) -> None:
    """Put the target's word in place of what the loop last said. Never raises."""
    url = places[0].options.url
    try:
        with connect_target(url, "penstock status") as connection:
            is_there = has_objects(connection)
            for place, part in zip(places, parts, strict=True):
                if not is_there:
                    part.delivered_lsn = None
                else:
                    _read_source(place, connection, part)
    except psycopg.Error as error:
        failure: PenstockError = classify_target_error(error, url)
    except PenstockError as error:
        failure = error
    else:
        return
    for part in parts:
        part.error = str(failure)


def _read_source(place: Place, connection: psycopg.Connection[Any], status: SinkStatus) -> None:
    owned = TargetTables(place.pipeline, place.source_id)
    stored = Progress(place.pipeline, place.source_id).read(connection)
    tables = owned.read_with_ranges(connection)
    blocked = {row.table for row in tables if row.keys_due}
    if blocked:
        blocked -= set(owned.keys_due(connection))
    status.delivered_lsn = str(stored[0].delivered_lsn) if stored else None
    status.changes_delivered = stored[1] if stored else 0
    status.parked = ParkedRows(place.pipeline, place.source_id).count(connection)
    status.tables = {
        str(row.table): TableStatus(
            state=row.state,
            rows_copied=row.rows_copied,
            bytes_copied=row.bytes_copied,
            ranges_done=row.ranges_done,
            ranges_total=row.ranges_total,
            delivered_lsn=str(row.delivered_lsn) if row.delivered_lsn else None,
            snapshot_seconds=row.snapshot_seconds,
            request=row.request,
            foreign_keys_due=row.keys_due and row.table not in blocked,
            notes=row.notes,
            changed_at=row.changed_at.isoformat(timespec="seconds"),
            conflicts=asdict(row.conflicts),
            error=row.error,
        )
        for row in tables
    }
