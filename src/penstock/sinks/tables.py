"""How one table stands at one sink: whether it flows with the others, and if not, why and where.

    pending -> copying -> catching_up -> streaming
       ^          |            |             |
       |          +--> failed <+-------------+     (each goes on from where it failed)
       +---------------- resync ----------------   removed

A table that streams has the sink's position. Any other one is detached: batches skip it, and it
has a position of its own, which the log keeps. Whoever delivers makes a table pending, again after a
copy has failed: only then is the log known to be kept from before the moment of the copy.

A table is known by its oid at the source; its name is the one that it has at its position in the stream.
One that needs a copy goes by the sink's position: the stream renames or drops it there, and a copy that is
under way begins again. So a copy is made only of a table that has the same name at the sink's position and
under the snapshot. Until then it is pending at a position that the sink has yet to reach.

Every sink has the same `SinkTables`; where they are stored is the sink's own (`TableStore`). Steps that come
with rows (a table is refused, catches up, is renamed by the stream) are stored by the sink itself, in one with
the rows; `SinkTables` learns of them afterwards.
"""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from penstock.table import name_tables

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.lsn import Lsn
    from penstock.table import TableName

_log = logging.getLogger(__name__)


class TableState(enum.StrEnum):
    """Where in its life a table is. Stored and shown as these words."""

    PENDING = "pending"
    COPYING = "copying"
    CATCHING_UP = "catching_up"
    STREAMING = "streaming"
    FAILED = "failed"
    REMOVED = "removed"


@dataclass(frozen=True)
class DetachedTable:
    """A table that does not flow with the others.

    Changes after `delivered_lsn` wait for it in the log. `needs_copy`: its rows are not there yet, so
    that changes cannot be applied, whether or not a copy has failed. `oid` is 0 where it is not known.
    """

    state: TableState
    delivered_lsn: Lsn
    error: str = ""
    needs_copy: bool = False
    oid: int = 0

    @property
    def can_catch_up(self) -> bool:
        """Whether its changes can be applied."""
        return self.state in (TableState.CATCHING_UP, TableState.FAILED) and not self.needs_copy

    @property
    def is_underway(self) -> bool:
        """Whether somebody copies it, or will as soon as there is one to do so."""
        return self.state in (TableState.PENDING, TableState.COPYING)

    @property
    def keeps_log(self) -> bool:
        """Whether what lies in the log after its position is still wanted.

        Not for a copy that failed: the next one is of a later moment.
        """
        return self.state != TableState.REMOVED and not (
            self.state == TableState.FAILED and self.needs_copy
        )


@dataclass(frozen=True)
class Standing:
    """How all tables of a sink stand."""

    streaming: set[TableName] = field(default_factory=set)
    detached: dict[TableName, DetachedTable] = field(default_factory=dict)
    objects_due: bool = False
    has_notes: bool = False


class TableStore(Protocol):
    """Where a sink keeps how its tables stand. What a call has written is durable when it returns.

    Raises:
        SinkError: by any call; it may have been written or not, `open` the sink and see.
    """

    def read(self) -> Standing:
        """How all tables stand, by what is stored and what a copier has noted."""

    def poll(self) -> bool:
        """Whether `read` may return something else by now; cheaper than that."""

    def schedule(self, tables: Mapping[TableName, int], lsn: Lsn, *, is_new: bool) -> None:
        """Store tables as pending; as `SinkTables.schedule_copy` says."""

    def retry(self, tables: Collection[TableName], lsn: Lsn) -> None:
        """Store tables as pending whose copy has failed; how often it has is not forgotten."""

    def rename(self, table: TableName, name: TableName, lsn: Lsn) -> None:
        """Store a table under another name, as pending."""

    def remove(self, tables: Collection[TableName]) -> None:
        """Store that tables are followed no more."""

    def attach(self, tables: Collection[TableName]) -> Collection[TableName]:
        """Store that tables stream; those that do, without one that has stopped at its last row."""

    def note(self, table: TableName, text: str) -> None:
        """Add something to what people read of a table."""

    def requested(self) -> Mapping[TableName, int]:
        """Tables that a person wants copied again, with their oids, as far as nobody is at it."""

    def answered(self) -> None:
        """Forget what was asked for: it is scheduled."""

    def due_again(self) -> Collection[TableName]:
        """Tables whose copy failed, and whose time has come to be tried again."""


class SinkTables:
    """How the tables of one sink stand, and the steps of their lives.

    Nothing here is called during a `commit`. Other threads may read the attributes.
    """

    def __init__(self, store: TableStore) -> None:
        self._store = store
        self._standing = Standing()

    @property
    def streaming(self) -> set[TableName]:
        """Tables known to go with the sink's own position."""
        return self._standing.streaming

    @property
    def detached(self) -> dict[TableName, DetachedTable]:
        """Tables that do not."""
        return self._standing.detached

    @property
    def objects_due(self) -> bool:
        """Whether the copier has yet to make something of tables, such as foreign keys."""
        return self._standing.objects_due

    @property
    def has_notes(self) -> bool:
        """Whether there are notes on objects that somebody may have made since."""
        return self._standing.has_notes

    def read(self) -> None:
        """Know how tables stand."""
        self._standing = self._store.read()

    def refresh(self, lsn: Lsn) -> None:
        """See what others have done with tables; those begin again that are to be copied again.

        They are detached at `lsn`, the sink's position.
        """
        if not self._store.poll():
            return
        self.read()
        asked = self._store.requested()
        due = [table for table in self._store.due_again() if table not in asked]
        if asked:
            self._store.schedule(asked, lsn, is_new=False)
        if due:
            self._store.retry(due, lsn)
        self._store.answered()
        if asked or due:
            self.read()

    def schedule_copy(
        self, tables: Mapping[TableName, int], lsn: Lsn, *, is_new: bool = True
    ) -> None:
        """Tables that are to be copied first; they are detached from now on.

        With their oids, 0 where one is not known. `is_new`: what is known of one that had the name
        before is not of this one, unless it has the same oid.
        """
        self._store.schedule(tables, lsn, is_new=is_new)
        self.read()

    def rename(self, table: TableName, name: TableName, lsn: Lsn) -> None:
        """A table that needs a copy is called differently at `lsn`, the sink's position.

        Nobody else has the name.
        """
        self._store.rename(table, name, lsn)
        self.read()

    def remove(self, tables: Collection[TableName]) -> None:
        """Tables that are followed no more; what is there of them stays."""
        self._store.remove(tables)
        self.read()

    def note(self, table: TableName, text: str) -> None:
        """Something that people should read where they see how the table stands."""
        self._store.note(table, text)

    def attach(self, tables: Collection[TableName]) -> None:
        """Tables that have caught up with the position of the others flow with them."""
        attached = set(self._store.attach(tables))
        if attached:
            self.add_streaming(attached)
            _log.info("caught up: %s", name_tables(attached))

    # --- what a sink has stored with rows ------------------------------------------------------

    def add_streaming(self, tables: Collection[TableName]) -> None:
        """Tables flow with the others."""
        if not tables:
            return  # after most batches, with thousands of tables there
        self._standing = replace(
            self._standing,
            streaming=self.streaming | set(tables),
            detached={name: table for name, table in self.detached.items() if name not in tables},
        )

    def move(self, tables: Collection[TableName], lsn: Lsn) -> None:
        """Tables that catch up have come to a position."""
        moved = {name: replace(self.detached[name], delivered_lsn=lsn) for name in tables}
        self._standing = replace(self._standing, detached=self.detached | moved)

    def stop(self, tables: Mapping[TableName, DetachedTable]) -> None:
        """Tables wait, each where it is, for what refuses them to be fixed."""
        for name, table in tables.items():
            self.report_stop(name, table.error)
        self._standing = replace(
            self._standing,
            streaming=self.streaming - set(tables),
            detached=self.detached | dict(tables),
        )

    def report_stop(self, name: TableName, error: str) -> None:
        """Log once why a table stops."""
        known = self.detached.get(name)
        if known is None or known.error != error:
            _log.error("%s stops, the other tables go on: %s", name, error)


@dataclass(frozen=True)
class WantedTables:
    """Whose changes a worker takes: all but some, or some alone. Travels to the executors."""

    skipped: frozenset[TableName] = frozenset()
    only: frozenset[TableName] | None = None

    def __contains__(self, table: TableName) -> bool:
        return table not in self.skipped if self.only is None else table in self.only


ALL_TABLES = WantedTables()
