"""What a sink does when tables are copied into it: a driver half and an executor half, as for batches.

claim()               one copier at a time
due()                 tables that wait for a copy
begin()               make room for tables, and say how their rows are to come
  writer.begin() …    on an executor: one range; either all of it arrives and is recorded, or nothing
arrived()             which ranges have arrived
finish() / fail()     tables can catch up from the snapshot's position / waits for another attempt
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import datetime

    from penstock.changes.pgoutput import Relation
    from penstock.errors import PenstockError
    from penstock.lsn import Lsn
    from penstock.schema.description import TableStructure
    from penstock.schema.shape import TableShape
    from penstock.table import TableName


@dataclass(frozen=True)
class Copy:
    """One snapshot that tables are copied from, and the position it belongs to.

    `taken_at` is when that was, by the clock that commits are stamped with: the source's.
    """

    copy_id: str
    lsn: Lsn
    taken_at: datetime | None = None


@dataclass(frozen=True)
class CopyOrder:
    """One table to be copied."""

    table: TableName
    shape: TableShape
    structure: TableStructure
    range_count: int
    as_text: bool = False  # rows are changed on their way, and never come in binary form
    injected: Relation | None = (
        None  # the table as rows describe it, where documents say more of it
    )


@dataclass(frozen=True)
class Arrived:
    """What of a table has arrived."""

    ranges: frozenset[int] = frozenset()
    row_count: int = 0
    byte_count: int = 0


class RangeRefused(Exception):
    """The sink does not take a row of a range; `line` says which one, from 0, when it is known.

    Not an error for people yet: the reader of the range knows the row's key.
    """

    def __init__(self, what: str, do: str, line: int | None) -> None:
        super().__init__(what)
        self.what = what
        self.do = do
        self.line = line


class RangeThere(Exception):
    """The range has arrived already, by a task that was given up and lived on."""


class CopySuperseded(Exception):
    """The table is not this copy's any more: removed, dropped, scheduled or begun anew meanwhile.

    No error, and nothing to record: how the table stands is somebody else's to say by now.
    """


class CopyLost(Exception):
    """What had arrived of a table is not all there any more; it has to be copied anew."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class OpenRange(Protocol):
    """One range on its way into the sink."""

    def write(self, rows: Sequence[bytes | memoryview]) -> None:
        """Take rows, as COPY sends them.

        Raises:
            RangeRefused: one of them cannot be taken.
            SinkError: the sink is away.
        """

    def finish(self) -> None:
        """Everything written is there, and recorded.

        Raises:
            RangeRefused: one of the rows cannot be taken; nothing is there.
            SinkError: the sink is away; nothing is there, or all of it is and `arrived` says so.
        """

    def abort(self) -> None:
        """Leave nothing of it."""


class RangeWriter(Protocol):
    """The executor half for one table: picklable, and without open connections."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that are wanted, in this order."""

    @property
    def literals(self) -> tuple[tuple[str, str], ...]:
        """Types and values that are to follow them in every row."""

    @property
    def is_binary(self) -> bool:
        """Whether rows are to come in COPY's binary form."""

    def begin(self, number: int) -> OpenRange:
        """Begin a range.

        Raises:
            RangeThere: there is nothing left to do.
            CopySuperseded: nothing of the table is wanted any more.
            SinkError: the sink is away.
        """


class Copying(Protocol):
    """The driver half. Has connections of its own: a batch may be committed at the same time."""

    def open(self) -> None:
        """Reach the sink. May be called again, after a SinkError.

        Raises:
            SinkError: or one of its kinds.
        """

    def claim(self) -> bool:
        """Be the copier, until `release` or `close`; False while another one is."""

    def release(self) -> None:
        """Let another one copy."""

    def due(self) -> Mapping[TableName, int]:
        """Tables that wait for a copy, or for another attempt whose time has come; with their oids,
        0 where one is not known."""

    def begin(
        self,
        copy: Copy,
        orders: Sequence[CopyOrder],
        on_begun: Callable[[int], None] = lambda _: None,
    ) -> tuple[Mapping[TableName, RangeWriter], Mapping[TableName, PenstockError]]:
        """Make room for the rows of tables; those that cannot be made room for, and why.

        `on_begun` is called with how many are made room for, now and then.
        """

    def arrived(self, copy: Copy) -> Mapping[TableName, Arrived]:
        """What has arrived of the tables that are not finished."""

    def finish(self, orders: Sequence[CopyOrder], copy: Copy) -> Mapping[TableName, Exception]:
        """Every range of some tables is there: they may catch up from the copy's position.

        Those that may not, and why: a PenstockError; CopySuperseded, where the table is not this
        copy's any more; CopyLost, where some of it is not there any more.

        Raises:
            PenstockError: none of them may, yet.
        """

    def fail(self, table: TableName, error: PenstockError, copy: Copy | None = None) -> None:
        """The copy failed; there will be another attempt.

        `copy`: the one that failed, if it has begun. A table that another one has is left alone.
        """

    def postpone(self, table: TableName, lsn: Lsn) -> None:
        """The table has another name at the source, or is gone: it waits until the stream has come to
        a position, and so reported what became of it. Before `begin`."""

    def begin_again(self, table: TableName, copy: Copy | None = None) -> None:
        """The copy cannot be finished under its snapshot; the table waits for another one."""

    def ask(self, tables: Collection[TableName]) -> list[TableName]:
        """Ask for tables to be copied again; those that are known there, and so will be.

        From any process; who delivers finds the request, now or when it runs again.
        """

    def after_attach(self, on_made: Callable[[int, int], None] = lambda _made, _due: None) -> bool:
        """Do what waits until tables stream; whether anything did.

        `on_made` is called with how many tables have what they lacked, and how many lacked it.
        """

    @property
    def is_review_due(self) -> bool:
        """Whether `after_attach` would see which notes on tables are still so; from any thread."""

    def interrupt(self) -> None:
        """Cancel what is under way, from another thread; nothing more is done after that."""

    def close(self) -> None:
        """Let go of everything."""
