"""A slice's messages -> changes, one table at a time, all rows of a table at once.

The messages of a slice are walked column by column: for column k of a table, numpy reads the
k-th value of every row in one go. No Python loop over rows. Pure: no socket, no Spark, no clock.

Whatever the bytes are, the outcome is changes or a DecodeError, never a crash or a wrong row: every
place is compared with the end of its message before it is read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from penstock.changes.cells import Cells, Index, Mask, no_cells
from penstock.changes.messages import Messages
from penstock.changes.pgoutput import (
    BEGIN,
    DELETE,
    INSERT,
    KNOWN_KINDS,
    NULL,
    RELATION,
    TEXT,
    TRUNCATE,
    UNCHANGED,
    UPDATE,
    Relation,
    parse_relation,
    parse_truncate,
)
from penstock.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Sequence

_MARK_NEW, _MARK_KEY, _MARK_OLD = b"NKO"
_LAST_LSN = 2**64 - 1


@dataclass(frozen=True)
class Transaction:
    """What all rows share when a slice is a part of one transaction."""

    commit_lsn: int
    committed_at: int
    xid: int
    first_ordinal: int
    carries_xids: bool
    aborted_xids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Positions:
    """For each row: its transaction, and its place within."""

    commit_lsn: npt.NDArray[np.uint64]
    ordinal: Index
    committed_at: Index  # microseconds since 2000-01-01
    xid: Index

    def take(self, rows: Index) -> Positions:
        """The positions of some rows."""
        return Positions(
            self.commit_lsn[rows], self.ordinal[rows], self.committed_at[rows], self.xid[rows]
        )


@dataclass(frozen=True)
class TableChanges:
    """The changes of one table in commit order, under one description of its columns."""

    relation: Relation
    operation: npt.NDArray[np.uint8]  # INSERT, UPDATE, DELETE
    positions: Positions
    after: tuple[Cells, ...]  # one per column; ABSENT for a DELETE
    before: tuple[Cells, ...]  # the old row, or only its key; ABSENT where none was sent
    has_full_before: Mask

    def __len__(self) -> int:
        return len(self.operation)

    def take(self, rows: Index) -> TableChanges:
        """Some of the changes."""
        return replace(
            self,
            operation=self.operation[rows],
            positions=self.positions.take(rows),
            after=tuple(cells.take(rows) for cells in self.after),
            before=tuple(cells.take(rows) for cells in self.before),
            has_full_before=self.has_full_before[rows],
        )


@dataclass(frozen=True)
class TableTruncated:
    """A table was emptied here, between the changes before and after."""

    relation: Relation
    commit_lsn: int
    ordinal: int
    committed_at: int
    xid: int
    restart_identity: bool


Piece = TableChanges | TableTruncated


def decode(
    data: bytes,
    lengths: Index,
    transaction: Transaction | None = None,
    after_lsn: int = 0,
    until_lsn: int = _LAST_LSN,
) -> list[Piece]:
    """The changes of a slice, in an order that keeps each table's own.

    Args:
        data: the messages, one after another.
        lengths: the length of each.
        transaction: set when the slice is a part of one transaction; else it holds whole ones.
        after_lsn: transactions that committed before this are left out,
        until_lsn: and those that committed at or after this.

    Raises:
        DecodeError: these bytes are not what pgoutput sends.
    """
    messages = Messages(data, lengths)
    shift = 4 if transaction is not None and transaction.carries_xids else 0
    if not KNOWN_KINDS.issuperset(np.unique(messages.kinds).tolist()):
        raise DecodeError("a message of a kind that pgoutput does not have")
    kinds = messages.kinds
    is_row = (kinds == INSERT) | (kinds == UPDATE) | (kinds == DELETE) | (kinds == TRUNCATE)
    rows = np.flatnonzero(is_row)
    if len(rows) == 0:
        return []
    messages.require(rows, 5 + shift, "row")
    positions = (
        _positions_of_whole(messages, is_row, rows)
        if transaction is None
        else _positions_of_part(transaction, len(rows))
    )
    wanted = (positions.commit_lsn >= np.uint64(after_lsn)) & (
        positions.commit_lsn < np.uint64(until_lsn)
    )
    if transaction is not None and transaction.aborted_xids:
        subxids = messages.u32(messages.starts[rows] + 1)
        wanted &= ~np.isin(subxids, np.array(transaction.aborted_xids, np.int64))
    if not bool(wanted.all()):
        rows, positions = rows[wanted], positions.take(np.flatnonzero(wanted))
    return _by_table(messages, rows, positions, shift)


def _positions_of_whole(messages: Messages, is_row: Mask, rows: Index) -> Positions:
    is_begin = messages.kinds == BEGIN
    begins = np.flatnonzero(is_begin)
    messages.require(begins, 21, "Begin")
    of_row = (np.cumsum(is_begin) - 1)[rows]
    if len(begins) == 0 or int(of_row[0]) < 0:
        raise DecodeError("a row comes before any Begin message")
    rows_before = np.cumsum(is_row)
    at = messages.starts[begins]
    return Positions(
        commit_lsn=messages.u64(at + 1)[of_row],
        ordinal=rows_before[rows] - 1 - rows_before[begins][of_row],
        committed_at=messages.i64(at + 9)[of_row],
        xid=messages.u32(at + 17)[of_row],
    )


def _positions_of_part(transaction: Transaction, count: int) -> Positions:
    return Positions(
        commit_lsn=np.full(count, transaction.commit_lsn, np.uint64),
        ordinal=transaction.first_ordinal + np.arange(count, dtype=np.int64),
        committed_at=np.full(count, transaction.committed_at, np.int64),
        xid=np.full(count, transaction.xid, np.int64),
    )


def _by_table(messages: Messages, rows: Index, positions: Positions, shift: int) -> list[Piece]:
    """Cut the rows by table, by description of its columns, and at each TRUNCATE."""
    versions = _versions(messages, shift)
    pieces: list[Piece] = []
    row_kinds = messages.kinds[rows]
    cuts = np.flatnonzero(row_kinds == TRUNCATE).tolist()
    begin = 0
    for cut in [*cuts, len(rows)]:
        span = np.arange(begin, cut)
        pieces += _changes(messages, rows[span], positions.take(span), versions, shift)
        if cut < len(rows):
            pieces += _truncates(messages, int(rows[cut]), positions, cut, versions, shift)
        begin = cut + 1
    return pieces


def _versions(messages: Messages, shift: int) -> dict[int, list[tuple[int, Relation]]]:
    """For each table: from which message on its columns are described how."""
    versions: dict[int, list[tuple[int, Relation]]] = {}
    parsed: dict[bytes, Relation] = {}
    for index in np.flatnonzero(messages.kinds == RELATION).tolist():
        raw = messages.one(index)
        described = raw[1 + shift :]
        if described not in parsed:
            parsed[described] = parse_relation(raw, carries_xid=bool(shift))
        relation = parsed[described]
        known = versions.setdefault(relation.oid, [])
        # Slices that are decoded together each repeat what their rows need: that is nothing new.
        if not known or known[-1][1] is not relation:
            known.append((index, relation))
    return versions


def _changes(
    messages: Messages,
    rows: Index,
    positions: Positions,
    versions: dict[int, list[tuple[int, Relation]]],
    shift: int,
) -> list[TableChanges]:
    if len(rows) == 0:
        return []
    oids = messages.u32(messages.starts[rows] + 1 + shift)
    by_oid = np.argsort(oids, kind="stable")
    found: list[tuple[int, TableChanges]] = []
    for of_table in _cut_where_new(by_oid, oids[by_oid]):
        oid = int(oids[of_table[0]])
        known = versions.get(oid, [])
        version = np.searchsorted([index for index, _ in known], rows[of_table]) - 1
        if not known or int(version[0]) < 0:
            raise DecodeError(f"a row of table {oid} comes before its Relation message")
        for run in _cut_where_new(np.arange(len(of_table)), version):
            span, relation = of_table[run], known[int(version[run[0]])][1]
            changes = _table_changes(messages, rows[span], positions.take(span), relation, shift)
            found.append((int(span[0]), changes))
    # By time, not by oid: a table may have taken over the name of another.
    found.sort(key=lambda one: one[0])
    return [changes for _, changes in found]


def _cut_where_new(rows: Index, numbers: Index) -> list[Index]:
    """The rows in runs of equal numbers."""
    return np.split(rows, np.flatnonzero(numbers[1:] != numbers[:-1]) + 1)


def _truncates(
    messages: Messages,
    index: int,
    positions: Positions,
    row: int,
    versions: dict[int, list[tuple[int, Relation]]],
    shift: int,
) -> list[TableTruncated]:
    truncate = parse_truncate(messages.one(index), carries_xid=bool(shift))
    found = []
    for oid in truncate.relation_oids:
        known = [relation for at, relation in versions.get(oid, []) if at < index]
        if not known:
            raise DecodeError(f"a Truncate of table {oid} comes before its Relation message")
        found.append(
            TableTruncated(
                known[-1],
                int(positions.commit_lsn[row]),
                int(positions.ordinal[row]),
                int(positions.committed_at[row]),
                int(positions.xid[row]),
                truncate.restart_identity,
            )
        )
    return found


def _table_changes(
    messages: Messages, rows: Index, positions: Positions, relation: Relation, shift: int
) -> TableChanges:
    operation = messages.kinds[rows]
    at = messages.starts[rows] + 5 + shift
    end = messages.ends[rows]
    _require_inside(at, end)
    mark = messages.bytes[at]
    has_before = (mark == _MARK_KEY) | (mark == _MARK_OLD)
    is_delete = operation == DELETE
    is_sound = np.where(
        is_delete, has_before, (mark == _MARK_NEW) | ((operation == UPDATE) & has_before)
    )
    if not bool(is_sound.all()):
        raise DecodeError(f"{relation.table}: a row begins with an unknown tuple mark")

    width = len(relation.columns)
    before: Sequence[Cells] = [no_cells(messages.data, at)] * width
    next_at = at.copy()
    if bool(has_before.any()):
        before, next_at = _walk(messages, at, end, width, has_before)
    has_after = ~is_delete
    if bool(has_after.any()):
        _require_inside(next_at[has_after], end[has_after])
        if bool((messages.bytes[next_at[has_after]] != _MARK_NEW).any()):
            raise DecodeError(f"{relation.table}: a new row is missing after the old one")
    after, finish = _walk(messages, next_at, end, width, has_after)
    if bool((finish != end).any()):
        raise DecodeError(f"{relation.table}: a row goes on after its last column")
    return TableChanges(
        relation=relation,
        operation=operation,
        positions=positions,
        after=tuple(after),
        before=tuple(before),
        has_full_before=mark == _MARK_OLD,
    )


def _require_inside(at: Index, end: Index) -> None:
    if bool((at >= end).any()):
        raise DecodeError("a row ends before its last column")


def _walk(
    messages: Messages, at: Index, end: Index, width: int, present: Mask
) -> tuple[list[Cells], Index]:
    """Walk a tuple of every row at once, column by column. mark u8 | count u16 | columns.

    A column is: kind u8, and for a value its length u32 and its text. Rows where `present` is False
    have no such tuple; their place does not move.
    """
    everywhere = bool(present.all())
    live = slice(None) if everywhere else np.flatnonzero(present)
    place, limit = at[live], end[live]
    _require_inside(place + 2, limit)
    if bool((messages.u16(place + 1) != width).any()):
        raise DecodeError(f"a row has another number of columns than its table, {width}")
    place = place + 3
    columns: list[Cells] = []
    for _ in range(width):
        _require_inside(place, limit)
        kind = messages.bytes[place]
        is_value = kind == TEXT
        if bool(is_value.all()):
            _require_inside(place + 4, limit)
            length = messages.u32(place + 1)
            start = place + 5
            place = start + length
        else:
            if not bool((is_value | (kind == NULL) | (kind == UNCHANGED)).all()):
                raise DecodeError("a column of a kind that was not asked for")
            _require_inside(place[is_value] + 4, limit[is_value])
            length = np.where(is_value, messages.u32(np.where(is_value, place + 1, 0)), 0)
            start = np.where(is_value, place + 5, place)
            place = start + np.where(is_value, length, 1)
        if bool((place > limit).any()):
            raise DecodeError("a value is longer than its message")
        cells = Cells(messages.data, start, length, kind)
        columns.append(cells if everywhere else _spread(cells, at, live))
    if everywhere:
        return columns, place
    finish = at.copy()
    finish[live] = place
    return columns, finish


def _spread(cells: Cells, at: Index, live: Index | slice) -> Cells:
    """Cells of some rows as cells of all, ABSENT elsewhere."""
    blank = no_cells(cells.data, at.copy())
    blank.start[live], blank.length[live], blank.kind[live] = cells.start, cells.length, cells.kind
    return blank
