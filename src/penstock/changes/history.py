"""Versions: every change of a slice as a row of its own, with the instants from and until which it was current.

Where `compact` keeps the last change of each key, this keeps the last one of each key and instant: what
one transaction does to a row happens at one instant, the time of its commit. Pure.

- Per key, instants never go back: a clock that was set back is taken to stand still.
- Only the first change of a key in a step meets what the destination has. What ends a row that the
  step itself brings is in that row, and needs none of its own.
- Without a key, a row is known by its whole content. What goes first is what came last; what came
  before this slice is the destination's to find.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from penstock.changes.compact import (
    COMES,
    GONE,
    LEAVES,
    REPLACE,
    Step,
    fill_from_before,
    in_key_order,
    in_order,
    is_another_row,
    is_new,
    key_changes,
    newest_known,
    row_numbers,
    spans,
    unchanged_groups,
)
from penstock.changes.pgoutput import DELETE, INSERT, UPDATE
from penstock.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.changes.cells import Cells, Index, Mask
    from penstock.changes.decode import TableChanges

    Operations = npt.NDArray[np.uint8]

# Microseconds since 2000-01-01, as Postgres counts: a row that is still so.
STILL = (datetime(9999, 1, 1, tzinfo=UTC) - datetime(2000, 1, 1, tzinfo=UTC)) // timedelta(
    microseconds=1
)


@dataclass(frozen=True)
class HistoryStep(Step):
    """Versions of rows; of each key any number, one after the other, none at the same instant.

    `operation` holds INSERT, UPDATE, REPLACE, COMES for a version that begins at `at` and is current `until`
    another instant, where it `ends_deleted` or not; and, where `is_first` of its key in the step,
    DELETE, LEAVES, GONE for what the destination has and now ends. `old_key` is filled where rows take
    another key and are not wholly known: the destination's row of that key ends, and has the rest.
    """

    is_first: Mask
    at: Index
    until: Index
    ends_deleted: Mask
    # The instants with which the changes of the step begin and end.
    first_at: int
    last_at: int


def versions(changes: TableChanges, key: Sequence[int]) -> list[HistoryStep]:
    """The steps that have the effect of the changes, one after the other.

    Raises:
        DecodeError: an UPDATE or DELETE does not say which row it means.
    """
    after = fill_from_before(changes)
    if not key:
        return _keyless(changes, after)
    everything = np.arange(len(changes))
    if bool((changes.operation == INSERT).all()):
        return [_chained(changes, after, key, everything, None)]
    moves = key_changes(changes, after, key)
    return [
        _moved(changes, after, key, span) if is_move else _chained(changes, after, key, span, moves)
        for span, is_move in spans(changes, after, key, moves)
    ]


def _step(
    operation: Operations,
    images: Sequence[Cells],
    is_first: Mask,
    at: Index,
    until: Index,
    ends_deleted: Mask,
    change_at: Index,
    old_key: tuple[Cells, ...] = (),
) -> HistoryStep:
    group, named = unchanged_groups(images, len(operation))
    is_whole = (operation == INSERT) | (operation == REPLACE) | (operation == COMES)
    if not old_key and bool((is_whole & (group != 0)).any()):
        raise DecodeError("an INSERT lacks values of its row")
    return HistoryStep(
        operation=operation,
        columns=tuple(images),
        old_key=old_key,
        copies=np.ones(len(operation), np.int64),
        unchanged_group=group,
        unchanged_columns=named,
        is_first=is_first,
        at=at,
        until=until,
        ends_deleted=ends_deleted,
        first_at=int(change_at[0]),
        last_at=int(change_at[-1]),
    )


def _moved(
    changes: TableChanges, after: Sequence[Cells], key: Sequence[int], rows: Index
) -> HistoryStep:
    at = changes.positions.committed_at[rows]
    count = len(rows)
    return _step(
        np.full(count, COMES, np.uint8),
        [cells.take(rows) for cells in after],
        np.ones(count, bool),
        at,
        np.full(count, STILL, np.int64),
        np.zeros(count, bool),
        at,
        tuple(changes.before[column].take(rows) for column in key),
    )


def _chained(
    changes: TableChanges,
    after: Sequence[Cells],
    key: Sequence[int],
    span: Index,
    moves: Mask | None,
) -> HistoryStep:
    operation, images, rows = in_order(changes, after, span, moves)
    change_at = changes.positions.committed_at[rows]
    count = len(operation)
    order, begins_key = in_key_order(images, key, count)
    if bool(begins_key.all()):
        still, no = np.full(count, STILL, np.int64), np.zeros(count, bool)
        return _step(operation, images, ~no, change_at, still, no, change_at)
    at = _never_back(change_at[order], begins_key)
    chain = _Chain(operation[order], at, begins_key)
    images = [
        newest_known(cells, order, chain.is_end, chain.key_firsts, chain.lasts) for cells in images
    ]
    kept = np.flatnonzero(chain.is_kept)
    # Back into the order of arrival, so that places in the slice ascend again.
    kept = kept[np.argsort(order[chain.lasts[kept]], kind="stable")]
    return _step(
        chain.net[kept],
        [cells.take(kept) for cells in images],
        chain.is_first[kept],
        chain.at[kept],
        chain.until[kept],
        chain.ends_deleted[kept],
        change_at,
    )


class _Chain:
    """Changes sorted by key, then in order; taken together where key and instant are the same."""

    def __init__(self, operation: Operations, at: Index, begins_key: Mask) -> None:
        begins = begins_key | is_new(at)
        firsts = np.flatnonzero(begins)
        self.lasts = np.append(firsts[1:], len(operation)) - 1
        self.is_first = begins_key[firsts]
        self.key_firsts = np.maximum.accumulate(np.where(self.is_first, firsts, 0))
        self.at = at[firsts]
        self.is_end = (operation == DELETE) | (operation == LEAVES)
        is_begin = (operation == INSERT) | (operation == COMES)
        first, last = operation[firsts], operation[self.lasts]
        another = is_another_row(self.is_end, is_begin, firsts, self.lasts)
        came = is_begin[firsts]
        ends = self.is_end[self.lasts]
        self.net: Operations = np.where(another, REPLACE, UPDATE).astype(np.uint8)
        self.net = np.where(came, first, self.net)
        self.net = np.where(ends, np.where(came, np.uint8(GONE), last), self.net)
        # What follows within the key ends what went before.
        follows = np.append(~self.is_first[1:], False)
        self.until = np.where(follows, np.append(self.at[1:], STILL), STILL)
        deletes = (self.net == DELETE) | (self.net == GONE)
        self.ends_deleted = follows & np.append(deletes[1:], False)
        # What came and went is as if it had not been: what follows meets what the destination has.
        is_real = (self.net != GONE) | ~follows
        before = np.cumsum(is_real) - is_real
        key_begins = np.maximum.accumulate(np.where(self.is_first, np.arange(len(firsts)), 0))
        self.is_first = before == before[key_begins]
        self.is_kept = is_real & (~ends | self.is_first)


def _never_back(at: Index, begins: Mask) -> Index:
    """The running maximum of each run."""
    if not bool(((at[1:] < at[:-1]) & ~begins[1:]).any()):
        return at
    # Ranks instead of instants, so that each run's lie above those of the runs before.
    instants, rank = np.unique(at, return_inverse=True)
    above = (np.cumsum(begins) - 1) * len(instants)
    found = np.maximum.accumulate(rank.reshape(-1) + above) - above
    return np.asarray(instants[found], np.int64)


def _keyless(changes: TableChanges, after: Sequence[Cells]) -> list[HistoryStep]:
    table = changes.relation.table
    is_insert = changes.operation == INSERT
    if not bool((changes.has_full_before | is_insert).all()):
        raise DecodeError(f"{table}: a change lacks the old row")
    span = np.arange(len(changes))
    operation, images, rows = in_order(changes, after, span, changes.operation == UPDATE)
    change_at = changes.positions.committed_at[rows]
    count = len(operation)
    if bool(is_insert.all()):
        still, no = np.full(count, STILL, np.int64), np.zeros(count, bool)
        return [_step(operation, images, ~no, change_at, still, no, change_at)]
    if any(bool(cells.is_unchanged.any()) for cells in images):
        raise DecodeError(f"{table}: a change lacks a part of its row")
    identity = row_numbers(images, count)
    order = np.argsort(identity, kind="stable")
    at = np.empty(count, np.int64)
    at[order] = _never_back(change_at[order], is_new(identity[order]))
    begin, end = _pairs(identity, order, (operation == INSERT) | (operation == COMES))
    until, ends_deleted = np.full(count, STILL, np.int64), np.zeros(count, bool)
    until[begin], ends_deleted[begin] = at[end], operation[end] == DELETE
    is_kept = until != at  # a row that came and went in one instant never was
    is_kept[end] = False
    kept = np.flatnonzero(is_kept)
    if len(kept) == 0:
        return []
    return [
        _step(
            operation[kept],
            [cells.take(kept) for cells in images],
            np.ones(len(kept), bool),
            at[kept],
            until[kept],
            ends_deleted[kept],
            change_at,
        )
    ]


def _pairs(identity: Index, order: Index, is_begin: Mask) -> tuple[Index, Index]:
    """Rows that begin, and those that end them: of equal ones the last that came goes first."""
    step = np.where(is_begin[order], 1, -1)
    depth = np.cumsum(step)
    first = is_new(identity[order])
    before = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    depth -= (depth - step)[before]
    # A row begins and ends at the same depth, and at each depth those of equal rows take turns.
    level = np.where(step > 0, depth, depth + 1)
    turns = order[np.lexsort((np.arange(len(order)), level, identity[order]))]
    level_of = np.empty(len(order), np.int64)
    level_of[order] = level
    this, following = turns[:-1], turns[1:]
    is_pair = (
        (identity[this] == identity[following])
        & (level_of[this] == level_of[following])
        & is_begin[this]
        & ~is_begin[following]
    )
    return this[is_pair], following[is_pair]
