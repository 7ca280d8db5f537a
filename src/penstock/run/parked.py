"""What sinks have refused and keep: find it, ask for another try, drop it; whether the pipeline runs or not.

A request is left where the process that delivers finds it. Nothing here waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.pipeline import top_of
from penstock.run.requests import choose_sinks, choose_sources

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


def find_parked(pipeline: PipelineFile, choice: Choice) -> list[ParkedAt]:
    """The entries that are meant, where there are any.

    Raises:
        BadValue: no such sink or source.
        SinkError: a sink cannot be asked.
    """
    views = choose_sources(pipeline, choice.source_id)
    found = []
    for name in choose_sinks(pipeline, choice.sink):
        for view in views:
            entries = pipeline.kind_of(name).parked(view.place_of(name))
            meant = [entry for entry in entries if choice.means(entry)]
            if meant:
                found.append(ParkedAt(view, name, meant))
    return found


def retry_parked(pipeline: PipelineFile, found: Sequence[ParkedAt]) -> bool:
    """Ask for entries to be tried again; whether a process runs that does so now.

    Raises:
        SinkError: a sink cannot be asked.
    """
    _ask(found, "retry")
    return top_of(pipeline).is_held("deliver")


def drop_parked(pipeline: PipelineFile, found: Sequence[ParkedAt]) -> bool:
    """Drop entries, at once or by the process that delivers; whether there is one.

    Raises:
        SinkError: a sink cannot be asked.
        SecondInstance: the pipeline was started at this very moment.
    """
    top = top_of(pipeline)
    if top.is_held("deliver"):
        _ask(found, "drop")
        return True
    top.claim()  # the directory may be gone, while a sink still has what it parked
    with top.lock("deliver"):
        for each in found:
            kind = each.pipeline.kind_of(each.sink)
            kind.drop_parked(each.pipeline.place_of(each.sink), each.ids)
    return False


def _ask(found: Sequence[ParkedAt], action: str) -> None:
    for each in found:
        kind = each.pipeline.kind_of(each.sink)
        kind.ask_parked(each.pipeline.place_of(each.sink), action, each.ids)
