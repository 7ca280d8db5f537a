"""How the tables of a sink of documents stand: by its position, and by what a copier has noted.

It is the store of its `SinkTables`. A document that the destination refuses while a copy is delivered
puts the copy off for a while; it is made anew then, since who waits for a copy has no log kept for it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.sinks.documents.copies import COPIED
from penstock.sinks.documents.position import KeptTable
from penstock.sinks.tables import DetachedTable, Standing, TableState
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from penstock.lsn import Lsn
    from penstock.sinks.documents.copies import Copies, TableCopy
    from penstock.sinks.documents.keeper import PositionKeeper
    from penstock.table import TableName


class KeptTableStore:
    """The tables of one sink's position. Implements `penstock.sinks.tables.TableStore`."""

    def __init__(self, keeper: PositionKeeper, copies: Copies) -> None:
        self._keeper = keeper
        self._copies = copies
        self._known_copies: dict[TableName, TableCopy] = {}
        self._answering: list[Path] = []
        self._refused_until: dict[TableName, float] = {}

    def read_copies(self) -> None:
        """See what the copier has noted."""
        self._known_copies = self._copies.read()

    def read(self) -> Standing:
        """By what is recorded, and by what the copier said last of those that wait."""
        tables = self._keeper.stored.tables
        return Standing(
            {name for name, table in tables.items() if table.state == TableState.STREAMING},
            {
                name: _detached(table, self._known_copies.get(name))
                for name, table in tables.items()
                if table.state != TableState.STREAMING
            },
        )

    def poll(self) -> bool:
        """See what the copier has noted; that is all that can be new."""
        with self._keeper.or_forget():
            self.read_copies()
        return True

    def schedule(self, tables: Mapping[TableName, int], lsn: Lsn, *, is_new: bool) -> None:
        """Record tables as pending. What is known of an earlier life is forgotten."""
        del is_new  # all that is known is the position
        self._record({table: KeptTable.scheduled(lsn, oid) for table, oid in tables.items()})

    def retry(self, tables: Collection[TableName], lsn: Lsn) -> None:
        """Record tables as pending; the copier knows how often it has tried."""
        kept = self._keeper.stored.tables
        self._record({table: KeptTable.scheduled(lsn, kept[table].oid) for table in tables})

    def rename(self, table: TableName, name: TableName, lsn: Lsn) -> None:
        """Record a table under another name."""
        kept = self._keeper.stored
        others = {each: known for each, known in kept.tables.items() if each != table}
        others[name] = KeptTable.scheduled(lsn, kept.tables[table].oid)
        with self._keeper.or_forget():
            self._keeper.record(replace(kept, tables=others))

    def remove(self, tables: Collection[TableName]) -> None:
        """Record tables as removed."""
        self._record({table: KeptTable(TableState.REMOVED) for table in tables})

    def attach(self, tables: Collection[TableName]) -> Collection[TableName]:
        """Record tables as streaming; one whose last documents were refused stays where it is."""
        kept = self._keeper.stored.tables
        ready = {table for table in tables if kept[table].state == TableState.CATCHING_UP}
        if ready:
            self._record({table: KeptTable(TableState.STREAMING) for table in ready})
        return ready

    def note(self, table: TableName, text: str) -> None:
        """Nothing: documents say what has happened, not what there is."""
        del table, text

    def requested(self) -> dict[TableName, int]:
        """Tables that a person has left word of, as far as they are followed."""
        kept = self._keeper.stored.tables
        with self._keeper.or_forget():
            asked = self._copies.asked()
        self._answering = list(asked)
        return {
            table: kept[table].oid
            for tables in asked.values()
            for table in tables
            if table in kept and kept[table].state != TableState.REMOVED
        }

    def answered(self) -> None:
        """Remove the files that asked; what is found twice is begun twice, which only costs time."""
        with self._keeper.or_forget():
            for path in self._answering:
                path.unlink()
        self._answering = []

    def due_again(self) -> list[TableName]:
        """Tables whose copy failed or was refused, and whose time has come."""
        kept = self._keeper.stored
        now = time.monotonic()
        return [
            table
            for table in kept.in_state(TableState.PENDING)
            if (kept.tables[table].error and now >= self._refused_until.get(table, 0.0))
            or self._has_failed(table, kept.tables[table])
        ]

    def _has_failed(self, table: TableName, kept: KeptTable) -> bool:
        copy = self._known_copies.get(table)
        return copy is not None and copy.schedule_id == kept.schedule_id and copy.may_be_tried_again

    def put_off(self, table: TableName) -> None:
        """Have a copy that was refused wait before it is made anew."""
        self._refused_until[table] = time.monotonic() + timing().copy_refused_seconds

    def whole_copies(self) -> list[TableCopy]:
        """Copies that can be delivered: all of them is there, and none of it was refused."""
        kept = self._keeper.stored
        return [
            copy
            for table in sorted(kept.in_state(TableState.PENDING))
            if (copy := self._known_copies.get(table)) is not None
            and copy.state == COPIED
            and copy.schedule_id == kept.tables[table].schedule_id
            and not kept.tables[table].error
        ]

    def _record(self, tables: Mapping[TableName, KeptTable]) -> None:
        kept = self._keeper.stored
        with self._keeper.or_forget():
            self._keeper.record(kept.with_tables(tables))


def _detached(table: KeptTable, copy: TableCopy | None) -> DetachedTable:
    """What the delivering loop is to know of a table."""
    if table.state != TableState.PENDING:
        return DetachedTable(table.state, table.delivered_lsn, table.error, oid=table.oid)
    state, error = TableState.PENDING, ""
    if copy is not None and copy.schedule_id == table.schedule_id:
        has_failed = copy.state == TableState.FAILED or table.error
        state = TableState.FAILED if has_failed else TableState.COPYING
        error = table.error or copy.error
    return DetachedTable(state, table.delivered_lsn, error, needs_copy=True, oid=table.oid)
