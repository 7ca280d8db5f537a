"""Lag and throughput of the last hour, in memory: so many points, and no more, whatever happens."""

from __future__ import annotations

import threading
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from penstock.timing import timing

if TYPE_CHECKING:
    from penstock.server.watched import Snapshot

MOST_POINTS = 720
MOST_SINKS = 64


class LastHour:
    """A point every few seconds for each sink: time, lag in seconds and bytes, changes delivered."""

    def __init__(self) -> None:
        self._points: dict[str, deque[tuple[float, float | None, int | None, int]]] = {}
        self.taken_at = 0.0  # when the last points were, seconds since 1970
        self._lock = threading.Lock()

    def take(self, snapshot: Snapshot) -> None:
        """Note how the sinks stand, if it is time to."""
        with self._lock:
            if snapshot.at - self.taken_at < timing().history_point_seconds:
                return
            for name, sink in list(snapshot.status.sinks.items())[:MOST_SINKS]:
                points = self._points.setdefault(name, deque(maxlen=MOST_POINTS))
                points.append(
                    (snapshot.at, sink.lag_seconds, sink.lag_bytes, sink.changes_delivered)
                )
            self.taken_at = snapshot.at

    def as_dict(self, since: float = 0.0) -> dict[str, Any]:
        """By sink: columns of points after a moment, with changes a second from one to the next."""
        with self._lock:
            points = {name: list(each) for name, each in self._points.items()}
        return {name: _columns(each, since) for name, each in points.items()}


def _columns(
    points: list[tuple[float, float | None, int | None, int]], since: float
) -> dict[str, list[Any]]:
    rates: list[float | None] = [None]  # of the first point: nothing is known of before
    for before, after in pairwise(points):
        # A sink that begins anew counts from where it stands.
        rates.append(max(0, after[3] - before[3]) / max(after[0] - before[0], 0.001))
    kept = [
        (round(at, 1), lag, size, None if rate is None else round(rate, 1))
        for (at, lag, size, _), rate in zip(points, rates, strict=False)
        if at > since
    ]
    at, lag, size, rate = (list(column) for column in zip(*kept, strict=True)) if kept else [[]] * 4
    return {"at": at, "lag_seconds": lag, "lag_bytes": size, "changes_per_second": rate}
