"""What sinks have refused and keep: find it, ask for another try, drop it; whether the pipeline runs or not.

A request is left where the process that delivers finds it. Nothing here waits for it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.pipeline import top_of, top_wire_of, wire_of
from penstock.run.delivered import elsewhere, is_delivered_here
from penstock.run.requests import choose_sinks, choose_sources
from penstock.sinks.parked import Wanted
from penstock.state.reports import DeliveryReport
from penstock.text import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from penstock.config import PipelineFile
    from penstock.sinks.parked import ParkedEntry
    from penstock.table import TableRule


@dataclass(frozen=True)
class Choice:
    """Which entries are meant; what is None or empty excludes nothing."""

    sink: str | None = None
    source_id: str | None = None
    table: TableRule | None = None
    ids: Collection[str] = ()

    @property
    def is_all(self) -> bool:
        """Whether it excludes nothing."""
        return not (self.sink or self.source_id or self.table or self.ids)

    def means(self, entry: ParkedEntry) -> bool:
        """Whether an entry of a chosen sink and source is meant."""
        if self.ids and entry.id not in self.ids:
            return False
        return self.table is None or self.table.matches(entry.table)


@dataclass(frozen=True)
class ParkedAt:
    """The entries of one sink and one source."""

    pipeline: PipelineFile
    sink: str
    entries: Sequence[ParkedEntry]

    @property
    def ids(self) -> list[str]:
        """Those of all entries."""
        return [entry.id for entry in self.entries]


def find_parked(
    pipeline: PipelineFile, choice: Choice, *, with_values: bool = False, most: int | None = None
) -> list[ParkedAt]:
    """The entries that are meant, where there are any.

    Args:
        with_values: those of the rows, too.
        most: of each sink and source, where the choice names neither a table nor ids.

    Raises:
        BadValue: no such sink or source.
        SinkError: a sink cannot be asked.
        DeliveredElsewhere: another machine delivers to one, and something is parked there.
    """
    views = choose_sources(pipeline, choice.source_id)
    wanted = Wanted(with_values, None if choice.table or choice.ids else most)
    found = []
    for name in choose_sinks(pipeline, choice.sink):
        for view in views:
            if not is_delivered_here(view, name):
                _require_none(view, name)
                continue
            entries = pipeline.kind_of(name).parked(view.place_of(name), wanted)
            meant = [entry for entry in entries if choice.means(entry)]
            if meant:
                found.append(ParkedAt(view, name, meant))
    return found


def _require_none(pipeline: PipelineFile, sink: str) -> None:
    report = wire_of(pipeline).latest(DeliveryReport, sink)
    if report is None:
        raise elsewhere(sink, "what is parked is kept")
    if report.parked:
        raise elsewhere(sink, f"{counted(report.parked, 'change')} parked")


def as_dicts(found: Sequence[ParkedAt], *, with_values: bool = False) -> list[dict[str, Any]]:
    """The entries as `penstock parked --json` and the admin API give them."""
    return [
        _as_dict(each, entry, with_values=with_values) for each in found for entry in each.entries
    ]


def _as_dict(found: ParkedAt, entry: ParkedEntry, *, with_values: bool) -> dict[str, Any]:
    reported = {
        "sink": found.sink,
        "source": found.pipeline.source_id,
        "table": str(entry.table),
        "id": entry.id,
        "op": entry.op,
        "key": None if entry.key is None else json.loads(entry.key),
        "commit_lsn": entry.commit_lsn,
        "reason": entry.reason,
        "parked_at": entry.parked_at,
        "request": entry.request,
    }
    return {**reported, "values": entry.values} if with_values else reported


def retry_parked(pipeline: PipelineFile, found: Sequence[ParkedAt]) -> bool:
    """Ask for entries to be tried again; whether a process runs that does so now.

    Raises:
        SinkError: a sink cannot be asked.
    """
    _ask(found, "retry")
    return top_wire_of(pipeline).delivering_run() is not None


def drop_parked(pipeline: PipelineFile, found: Sequence[ParkedAt]) -> bool:
    """Drop entries, at once or by the process that delivers; whether there is one.

    Raises:
        SinkError: a sink cannot be asked.
        SecondInstance: the pipeline was started at this very moment.
    """
    wire = top_wire_of(pipeline)
    if wire.delivering_run() is not None:
        _ask(found, "drop")
        return True
    top_of(pipeline).claim()  # the directory may be gone, while a sink still has what it parked
    with wire.hold_delivery(pipeline.sinks):
        for each in found:
            kind = each.pipeline.kind_of(each.sink)
            kind.drop_parked(each.pipeline.place_of(each.sink), each.ids)
    return False


def _ask(found: Sequence[ParkedAt], action: str) -> None:
    for each in found:
        kind = each.pipeline.kind_of(each.sink)
        kind.ask_parked(each.pipeline.place_of(each.sink), action, each.ids)
