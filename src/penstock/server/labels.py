"""What each table is called in its series: by its name while there is room, else together with others.

A table that is gone makes room for another one. Its series end; no counter ever goes back.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from penstock.metrics import MOST_TABLES, OTHER_TABLES
from penstock.timing import timing

if TYPE_CHECKING:
    from penstock.server.watched import Snapshot

_log = logging.getLogger(__name__)


class Table(NamedTuple):
    """A table of a source at a sink, as batches name it."""

    sink: str
    source: str
    name: str


class TableLabels:
    """The labels of one run. Its caller holds a lock."""

    def __init__(self) -> None:
        self._named: dict[Table, str] = {}  # with a label of its own; as the status names it
        self._joined: dict[Table, str] = {}  # without; the same
        self._gone_since: dict[Table, float] = {}

    def label(self, table: Table, shown: str) -> str:
        """What a table is called of which rows are delivered now; `shown` is its name in the status."""
        self._gone_since.pop(table, None)
        if table in self._named:
            return table.name
        if len(self._named) < MOST_TABLES:
            self._joined.pop(table, None)
            self._named[table] = shown
            return table.name
        if not self._joined:
            _log.warning(
                "metrics: more than %d tables; rows of further ones are counted as %s",
                MOST_TABLES,
                OTHER_TABLES,
            )
        self._joined[table] = shown
        return OTHER_TABLES

    @property
    def joined_count(self) -> int:
        """Tables without a label of their own."""
        return len(self._joined)

    def take(self, snapshot: Snapshot) -> dict[Table, str]:
        """Free labels of tables that have been gone for long; these, as the status named them, had one of their own.

        What was counted of them is not added to the others': it would be a burst of rows that nobody delivered.
        """
        sinks = snapshot.status.sinks
        freed: dict[Table, str] = {}
        for table, shown in [*self._named.items(), *self._joined.items()]:
            sink = sinks.get(table.sink)
            if sink is None or sink.error:
                continue  # nobody knows what it has
            entry = sink.tables.get(shown)
            if entry is not None and entry.state != "removed":
                self._gone_since.pop(table, None)
                continue
            since = self._gone_since.setdefault(table, snapshot.at)
            if snapshot.at - since < timing().table_label_seconds:
                continue
            del self._gone_since[table]
            if self._joined.pop(table, None) is None:
                freed[table] = self._named.pop(table)
        return freed
