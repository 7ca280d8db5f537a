"""A snapshot as the page is shown it: a summary, a row for each table, and only the rows that have changed.

A row is a list, in the order of `ROW`: a thousand of them go over the wire when somebody opens the page.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from penstock.server.problems import id_of, problems, without_details
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.run.status import PipelineStatus
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
# And so many subscriptions, those first of which there is something to say.
MOST_SUBSCRIPTIONS = 100
_WORST_FIRST = ("cut_off", "suspended", "disabled", "failing", "pending", "active")

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
        self.subscriptions = _listed(status)
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
            "subscription_count": sum(len(sink.subscriptions) for sink in status.sinks.values()),
        }

    def since(self, before: View | None) -> dict[str, Any]:
        """What one needs to know who has seen the view before: None for a table that is gone."""
        changed = {
            sink: _changed(before.rows.get(sink, {}) if before is not None else {}, rows)
            for sink, rows in self.rows.items()
        }
        is_same = before is not None and before.subscriptions == self.subscriptions
        subscriptions = {} if is_same else {"subscriptions": self.subscriptions}
        # Ages, for the clock of a browser may be another.
        age = max(0.0, time.time() - self._at)
        return {
            **self.summary,
            **subscriptions,
            "is_whole": before is None,
            "age": age,
            "tables": changed,
        }


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


def _listed(status: PipelineStatus) -> list[dict[str, Any]]:
    """Subscriptions of all sinks; the sink, the id as the API takes it, and how each stands."""
    found = [
        {"sink": name, "name": shown, "id": id_of(shown), **asdict(each)}
        for name, sink in status.sinks.items()
        for shown, each in sink.subscriptions.items()
    ]

    def rank(each: dict[str, Any]) -> tuple[int, int]:
        state = each["state"]
        known = _WORST_FIRST.index(state) if state in _WORST_FIRST else 0
        return known, -(each["lag_bytes"] or 0)

    return sorted(found, key=rank)[:MOST_SUBSCRIPTIONS]


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
        "subscriptions": dict(Counter(each.state for each in sink.subscriptions.values())),
        "states": dict(Counter(entry.state for entry in sink.tables.values())),
    }
