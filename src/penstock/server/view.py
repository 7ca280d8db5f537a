"""A snapshot as the page is shown it: a summary, a row for each table, and only the rows that have changed.

A row is a list, in the order of `ROW`: a thousand of them go over the wire when somebody opens the page.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from penstock.server.problems import problems, without_details
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.server.watched import Snapshot
    from penstock.sinks.status import SinkStatus, TableStatus

ROW = (
    "state",
    "rows_per_second",
    "rows_copied",
    "bytes_copied",
    "ranges_done",
    "ranges_total",
    "request",
    "notes",
    "changed_at",
    "conflicts",
    "error",
)

# So many problems are shown; how many there are is said.
MOST_PROBLEMS = 50

Rows = dict[str, dict[str, list[Any]]]


class View:
    """One snapshot, for those with the token or for those without."""

    def __init__(
        self,
        snapshot: Snapshot,
        halves: frozenset[str],
        rates: Mapping[tuple[str, str], float],
        *,
        is_trusted: bool,
        has_token: bool,
        log: str,
    ) -> None:
        status = snapshot.status if is_trusted else without_details(snapshot.status)
        found = problems(snapshot, halves, is_trusted=is_trusted)
        self.version = snapshot.version
        self._at = snapshot.at
        self.rows: Rows = {
            name: {
                table: _row(entry, rates.get((name, table), 0.0))
                for table, entry in sink.tables.items()
            }
            for name, sink in status.sinks.items()
        }
        self.summary: dict[str, Any] = {
            "name": status.name,
            "phase": status.phase,
            "at": snapshot.at,
            "version": snapshot.version,
            "halves": sorted(halves),
            "log": log,
            "is_trusted": is_trusted,
            "has_token": has_token,
            "stale_seconds": timing().watch_stale_seconds,
            "sources": {name: asdict(source) for name, source in status.sources.items()},
            "sinks": {name: _summary(sink) for name, sink in status.sinks.items()},
            "problems": [each.as_dict() for each in found[:MOST_PROBLEMS]],
            "problem_count": len(found),
        }

    def since(self, before: View | None) -> dict[str, Any]:
        """What one needs to know who has seen the view before: None for a table that is gone."""
        changed = {
            sink: _changed(before.rows.get(sink, {}) if before is not None else {}, rows)
            for sink, rows in self.rows.items()
        }
        # Ages, for the clock of a browser may be another.
        age = max(0.0, time.time() - self._at)
        return {**self.summary, "is_whole": before is None, "age": age, "tables": changed}


def _row(entry: TableStatus, rate: float) -> list[Any]:
    return [
        entry.state,
        round(rate, 1),
        entry.rows_copied,
        entry.bytes_copied,
        entry.ranges_done,
        entry.ranges_total,
        entry.request,
        entry.notes,
        entry.changed_at,
        {kind: count for kind, count in entry.conflicts.items() if count},
        entry.error,
    ]


def _changed(before: dict[str, list[Any]], now: dict[str, list[Any]]) -> dict[str, Any]:
    changed: dict[str, Any] = {table: row for table, row in now.items() if before.get(table) != row}
    return changed | {table: None for table in before if table not in now}


def _summary(sink: SinkStatus) -> dict[str, Any]:
    return {
        "delivered_lsn": sink.delivered_lsn,
        "lag_bytes": sink.lag_bytes,
        "lag_seconds": sink.lag_seconds,
        "changes_delivered": sink.changes_delivered,
        "parked": sink.parked,
        "paused_since": sink.paused_since,
        "error": sink.error,
        "sources": {name: asdict(flow) for name, flow in sink.sources.items()},
        "states": dict(Counter(entry.state for entry in sink.tables.values())),
    }
