"""What instruments read off a snapshot when somebody asks. Pure: no library that measures.

Each function yields values with their labels; `OBSERVED` says which instrument has which, and `CAPTURED`
which are those of the half that captures; all others are of the half that delivers.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from penstock.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.run.status import PipelineStatus

    Observed = Iterator[tuple[float, dict[str, str]]]
    Reading = Callable[[PipelineStatus], Observed]

_POSITIONS = ("current", "received", "durable", "acknowledged")
_STATES = ("pending", "copying", "catching_up", "streaming", "failed", "removed")
_SUBSCRIPTION_STATES = ("active", "failing", "suspended", "disabled", "cut_off")
_WAL_STATUSES = ("reserved", "extended", "unreserved", "lost")


def _source_positions(status: PipelineStatus) -> Observed:
    for name, source in status.sources.items():
        for position in _POSITIONS:
            lsn = getattr(source, f"{position}_lsn")
            if lsn is not None:
                yield Lsn.parse(lsn), {"source": name, "position": position}


def _of_sources(value: Callable[[Any], float | None]) -> Reading:
    def read(status: PipelineStatus) -> Observed:
        for name, source in status.sources.items():
            found = value(source)
            if found is not None:
                yield found, {"source": name}

    return read


def _wal_statuses(status: PipelineStatus) -> Observed:
    for name, source in status.sources.items():
        for each in _WAL_STATUSES if source.wal_status is not None else ():
            yield float(each == source.wal_status), {"source": name, "status": each}


def _log_ages(status: PipelineStatus) -> Observed:
    for name in status.sources:
        flows = [sink.sources[name] for sink in status.sinks.values() if name in sink.sources]
        ages = [flow.log_age_seconds for flow in flows if flow.log_age_seconds is not None]
        if ages:
            yield max(ages), {"source": name}


def _of_flows(value: Callable[[Any], float | None]) -> Reading:
    def read(status: PipelineStatus) -> Observed:
        for sink_name, sink in status.sinks.items():
            for source, flow in sink.sources.items():
                found = value(flow)
                if found is not None:
                    yield found, {"sink": sink_name, "source": source}

    return read


def _of_sinks(value: Callable[[Any], float]) -> Reading:
    def read(status: PipelineStatus) -> Observed:
        for name, sink in status.sinks.items():
            yield value(sink), {"sink": name}

    return read


def _tables(status: PipelineStatus) -> Observed:
    for name, sink in status.sinks.items():
        states = Counter(entry.state for entry in sink.tables.values())
        for state in _STATES:
            yield states[state], {"sink": name, "state": state}


def _subscriptions(status: PipelineStatus) -> Observed:
    for name, sink in status.sinks.items():
        states = Counter(entry.state for entry in sink.subscriptions.values())
        for state in _SUBSCRIPTION_STATES if states else ():
            yield states[state], {"sink": name, "state": state}


def _conflicts(status: PipelineStatus) -> Observed:
    for name, sink in status.sinks.items():
        counts: Counter[str] = Counter()
        for entry in sink.tables.values():
            counts.update(entry.conflicts)
        for kind, count in counts.items():
            yield count, {"sink": name, "kind": kind}


def copied(sink: Any, what: str) -> int:
    """A sum over the tables that are being copied."""
    return sum(getattr(each, what) for each in sink.tables.values() if each.state == "copying")


def _copy_ranges(status: PipelineStatus) -> Observed:
    for name, sink in status.sinks.items():
        yield copied(sink, "ranges_done"), {"sink": name, "progress": "done"}
        yield copied(sink, "ranges_total"), {"sink": name, "progress": "total"}


def _position(flow: Any) -> float | None:
    return Lsn.parse(flow.delivered_lsn) if flow.delivered_lsn is not None else None


OBSERVED: dict[str, Reading] = {
    "penstock.source.position": _source_positions,
    "penstock.source.up": _of_sources(lambda each: float(each.connected)),
    "penstock.source.report.age": _of_sources(
        lambda each: max(0.0, time.time() - each.reported_at) if each.reported_at else None
    ),
    "penstock.slot.active": _of_sources(lambda each: float(each.slot_active)),
    "penstock.slot.retained": _of_sources(lambda each: each.retained_bytes),
    "penstock.slot.wal.status": _wal_statuses,
    "penstock.source.transactions": _of_sources(lambda each: each.transactions),
    "penstock.log.size": _of_sources(lambda each: each.log_bytes),
    "penstock.log.age": _log_ages,
    "penstock.sink.position": _of_flows(_position),
    "penstock.sink.lag": _of_flows(lambda each: each.lag_seconds),
    "penstock.sink.lag.size": _of_flows(lambda each: each.lag_bytes),
    "penstock.sink.up": _of_sinks(lambda each: float(each.error is None)),
    "penstock.sink.paused": _of_sinks(lambda each: float(each.paused_since is not None)),
    "penstock.sink.changes": _of_flows(lambda each: each.changes_delivered),
    "penstock.sink.parked": _of_sinks(lambda each: each.parked),
    "penstock.tables": _tables,
    "penstock.subscriptions": _subscriptions,
    "penstock.conflicts": _conflicts,
    "penstock.copy.rows": _of_sinks(lambda each: copied(each, "rows_copied")),
    "penstock.copy.size": _of_sinks(lambda each: copied(each, "bytes_copied")),
    "penstock.copy.ranges": _copy_ranges,
}

# Of two processes that run a half each, one exports a series.
CAPTURED = frozenset(
    name
    for name in OBSERVED
    if name.startswith(("penstock.source.", "penstock.slot.", "penstock.log."))
)
