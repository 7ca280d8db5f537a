"""Net effect: the last change per key wins, field by field.

What is left of a table's changes in one slice is a list of steps, to be carried out in order; within
a step every key occurs once, so a step is one DELETE, one UPDATE and one INSERT over a set. Pure.

- An unchanged TOAST value is taken from the newest earlier change of the slice that carries it, or from
  the old row where the UPDATE sent that; else it stays unknown, and the destination keeps its own.
- A row that goes and comes again is a REPLACE: another row at the same key, wholly known. An UPDATE would
  say that the destination has the old one, and what it does when it has not is no concern of a new row.
- A row that comes and goes is GONE: taken away if the destination has one of that key, which the INSERT
  would have replaced, and not missed if it has not.
- A key change is a DELETE of the old key and an INSERT of the new one. Where the new row is not wholly
  known it is a MOVE, in a step of its own, since the missing values live in the row at the old key.
- Without a key, a row is known by its whole content, and what counts is how many more or fewer of
  equal rows there are in the end. Order does not matter then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from penstock.changes.cells import ABSENT, Cells, Index, Mask, concatenate, gather
from penstock.changes.pgoutput import DELETE, INSERT, UPDATE
from penstock.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.changes.decode import TableChanges

MOVE = b"M"[0]
REPLACE = b"R"[0]
GONE = b"G"[0]
# The two halves of a key change.
LEAVES = b"C"[0]
COMES = b"N"[0]


@dataclass(frozen=True)
class Step:
    """Rows to be applied as one set. Every key occurs once; among MOVEs, once as old and as new.

    `operation` holds INSERT, UPDATE, DELETE, REPLACE, GONE or MOVE. Cells of a DELETE hold the key (or the
    whole row, where there is no key); `old_key` is filled for MOVE only. `copies` is how many equal rows a
    keyless DELETE takes away. `unchanged_group` points into `unchanged_columns`: which columns of
    an UPDATE are not known and must keep their value; group 0 is none.
    """

    operation: npt.NDArray[np.uint8]
    columns: tuple[Cells, ...]
    old_key: tuple[Cells, ...]
    copies: Index
    unchanged_group: Index
    unchanged_columns: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.operation)

    def count(self, operation: int) -> int:
        """How many rows have this operation."""
        return int((self.operation == operation).sum())


def compact(changes: TableChanges, key: Sequence[int]) -> list[Step]:
    """The steps that have the same effect as the changes.

    Args:
        changes: all changes of one table in a slice.
        key: which columns identify a row; empty when the table has no key.

    Raises:
        DecodeError: an UPDATE or DELETE does not say which row it means.
    """
    after = fill_from_before(changes)
    if not key:
        return _compact_keyless(changes, after)
    is_insert = changes.operation == INSERT
    if bool(is_insert.all()):
        return _compact_span(changes, after, key, np.arange(len(changes)), None)

    moves = key_changes(changes, after, key)
    steps: list[Step] = []
    for span, is_move in spans(changes, after, key, moves):
        if is_move:
            steps.append(_move_step(changes, after, key, span))
        else:
            steps += _compact_span(changes, after, key, span, moves)
    return steps


def spans(
    changes: TableChanges, after: Sequence[Cells], key: Sequence[int], moves: Mask
) -> Iterator[tuple[Index, bool]]:
    """Changes in runs, and whether a run is of key changes whose new rows are not wholly known."""
    unknown = np.zeros(len(changes), bool)
    for cells in after:
        unknown |= cells.is_unchanged
    begin = 0
    for run in _move_runs(np.flatnonzero(moves & unknown), changes, after, key):
        if run[0] > begin:
            yield np.arange(begin, run[0]), False
        yield np.array(run), True
        begin = run[-1] + 1
    if begin < len(changes):
        yield np.arange(begin, len(changes)), False


def fill_from_before(changes: TableChanges) -> tuple[Cells, ...]:
    """The new rows, with unchanged values taken from the old row where the UPDATE sent it."""
    if not bool((changes.before[0].kind != ABSENT).any() if changes.before else False):
        return changes.after
    filled = []
    for new, old in zip(changes.after, changes.before, strict=True):
        # Only a full old row says that a value is NULL; a key-only one says NULL for all the rest.
        known = old.is_value | (old.is_null & changes.has_full_before)
        usable = new.is_unchanged & known
        filled.append(old.where(usable, new) if bool(usable.any()) else new)
    return tuple(filled)


def key_changes(changes: TableChanges, after: Sequence[Cells], key: Sequence[int]) -> Mask:
    """Which rows are an UPDATE that gives the row another key."""
    changed = np.zeros(len(changes), bool)
    with_before = np.flatnonzero(
        (changes.operation == UPDATE) & (changes.before[key[0]].kind != ABSENT)
    )
    for column in key if len(with_before) else ():
        old = gather(changes.before[column].take(with_before))
        new = gather(after[column].take(with_before))
        same = pc.fill_null(pc.equal(old, new), False)
        changed[with_before] |= ~np.asarray(same)
    return changed


def _move_runs(
    partial_moves: Index, changes: TableChanges, after: Sequence[Cells], key: Sequence[int]
) -> list[list[int]]:
    """Neighbouring moves that can happen at the same moment, so that one step can hold them.

    A key may be taken that another move of the run has left, but no row may move twice.
    """
    runs: list[list[int]] = []
    taken: set[tuple[object, ...]] = set()
    if len(partial_moves) == 0:
        return runs
    old = _tuples([changes.before[column].take(partial_moves) for column in key])
    new = _tuples([after[column].take(partial_moves) for column in key])
    for number, row in enumerate(partial_moves.tolist()):
        if not runs or row != runs[-1][-1] + 1 or taken & {old[number], new[number]}:
            runs.append([])
            taken = set()
        runs[-1].append(row)
        taken.add(new[number])
    return runs


def _tuples(columns: Sequence[Cells]) -> list[tuple[object, ...]]:
    return list(zip(*(gather(cells).to_pylist() for cells in columns), strict=True))


def _move_step(
    changes: TableChanges, after: Sequence[Cells], key: Sequence[int], rows: Index
) -> Step:
    columns = tuple(cells.take(rows) for cells in after)
    group, named = unchanged_groups(columns, len(rows))
    return Step(
        operation=np.full(len(rows), MOVE, np.uint8),
        columns=columns,
        old_key=tuple(changes.before[column].take(rows) for column in key),
        copies=np.ones(len(rows), np.int64),
        unchanged_group=group,
        unchanged_columns=named,
    )


def in_order(
    changes: TableChanges, after: Sequence[Cells], span: Index, moves: Mask | None
) -> tuple[npt.NDArray[np.uint8], list[Cells], Index]:
    """Rows as they came, a key change as two: the old key LEAVES before the new one COMES.

    The last of the three says which change each is of.
    """
    operation = changes.operation[span]
    if moves is None or bool((operation == INSERT).all()):
        return operation, [cells.take(span) for cells in after], span
    old_keys_of = span[moves[span]]
    rows = np.concatenate((span, old_keys_of))
    is_old = np.concatenate((operation == DELETE, np.ones(len(old_keys_of), bool)))
    images = [
        changes.before[column].take(rows).where(is_old, after[column].take(rows))
        for column in range(len(after))
    ]
    became = np.where(moves[span], COMES, operation).astype(np.uint8)
    operation = np.concatenate((became, np.full(len(old_keys_of), LEAVES, np.uint8)))
    order = np.lexsort((~is_old, rows))
    return operation[order], [cells.take(order) for cells in images], rows[order]


def _compact_span(
    changes: TableChanges,
    after: Sequence[Cells],
    key: Sequence[int],
    span: Index,
    moves: Mask | None,
) -> list[Step]:
    operation, images, _ = in_order(changes, after, span, moves)
    if moves is not None:
        operation = np.where(operation == LEAVES, DELETE, operation)
        operation = np.where(operation == COMES, INSERT, operation).astype(np.uint8)
    step = _net(operation, images, key)
    return [step] if len(step) else []


def _net(operation: npt.NDArray[np.uint8], images: list[Cells], key: Sequence[int]) -> Step:
    """One row per key from rows in order."""
    count = len(operation)
    order, is_first = in_key_order(images, key, count)
    if bool(is_first.all()):
        return _step(operation, images)

    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], count) - 1
    is_end = operation[order] == DELETE
    images = [newest_known(cells, order, is_end, firsts, lasts) for cells in images]
    first_operation = operation[order[firsts]]
    last_operation = operation[order[lasts]]
    net = np.where(
        last_operation == DELETE,
        np.where(first_operation == INSERT, GONE, DELETE),
        np.where(first_operation == INSERT, INSERT, UPDATE),
    ).astype(np.uint8)
    is_begin = operation[order] == INSERT
    net[(net == UPDATE) & is_another_row(is_end, is_begin, firsts, lasts)] = REPLACE
    # Back into the order of arrival, so that places in the slice ascend again.
    arrival = np.argsort(order[lasts], kind="stable")
    return _step(net[arrival], [cells.take(arrival) for cells in images])


def is_another_row(is_end: Mask, is_begin: Mask, firsts: Index, lasts: Index) -> Mask:
    """Which spans of rows have, in the end, a row that began after the former one had ended."""
    if not bool(is_end.any()):
        return np.zeros(len(firsts), bool)
    place = np.arange(len(is_end))
    gone = np.maximum.accumulate(np.where(is_end, place, -1))[lasts]
    come = np.maximum.accumulate(np.where(is_begin, place, -1))[lasts]
    another: Mask = (gone >= firsts) & (come > gone)
    return another


def newest_known(cells: Cells, order: Index, is_end: Mask, firsts: Index, lasts: Index) -> Cells:
    """The last cell of each span, or where that is unchanged the newest before it that is known.

    `order` sorts the rows by their key, and `firsts` is where that of each span begins. Never from before
    the end of a row (`is_end`, in that order): what comes after is another row.
    """
    final = order[lasts]
    if not bool(cells.is_unchanged[final].any()):
        return cells.take(final)
    place = np.arange(len(order))
    newest = np.maximum.accumulate(np.where(~cells.is_unchanged[order], place, -1))
    barrier = np.maximum.accumulate(np.where(is_end, place, -1))
    found = newest[lasts]
    usable = (found >= firsts) & (found > barrier[lasts])
    return cells.take(order[np.where(usable, found, lasts)])


def _step(operation: npt.NDArray[np.uint8], images: Sequence[Cells]) -> Step:
    group, named = unchanged_groups(images, len(operation))
    if bool((((operation == INSERT) | (operation == REPLACE)) & (group != 0)).any()):
        raise DecodeError("an INSERT lacks values of its row")
    return Step(
        operation=operation,
        columns=tuple(images),
        old_key=(),
        copies=np.ones(len(operation), np.int64),
        unchanged_group=group,
        unchanged_columns=named,
    )


def unchanged_groups(
    images: Sequence[Cells], count: int
) -> tuple[Index, tuple[tuple[int, ...], ...]]:
    """Which rows leave which columns alone, as small numbers; 0 is none."""
    holding = [column for column, cells in enumerate(images) if bool(cells.is_unchanged.any())]
    if not holding:
        return np.zeros(count, np.int64), ((),)
    flags = np.stack([images[column].is_unchanged for column in holding], axis=1)
    patterns, group = np.unique(flags, axis=0, return_inverse=True)
    named = [tuple(holding[i] for i in np.flatnonzero(pattern)) for pattern in patterns]
    if () not in named:
        return group.reshape(-1) + 1, ((), *named)
    # np.unique sorts, so the pattern without any flag comes first.
    return group.reshape(-1), tuple(named)


def in_key_order(images: Sequence[Cells], key: Sequence[int], count: int) -> tuple[Index, Mask]:
    """Rows in the order of their keys, those of one key as they came; and where each key begins.

    Raises:
        DecodeError: a row lacks its key.
    """
    for column in key:
        if not bool(images[column].is_value.all()):
            raise DecodeError("a change lacks the key of its row")
    numbers = row_numbers([images[column] for column in key], count)
    order = np.argsort(numbers, kind="stable")
    return order, is_new(numbers[order])


def is_new(numbers: Index) -> Mask:
    """Where a number differs from the one before it."""
    new = np.ones(len(numbers), bool)
    np.not_equal(numbers[1:], numbers[:-1], out=new[1:])
    return new


def row_numbers(columns: Sequence[Cells], count: int) -> Index:
    """A number per row, equal where all the columns are equal."""
    identity: Index | None = None
    for cells in columns:
        encoded = gather(cells).dictionary_encode(null_encoding="encode")
        number = np.asarray(encoded.indices).astype(np.int64)
        if identity is None:
            identity = number
        else:
            combined = identity * (len(encoded.dictionary) + 1) + number
            identity = np.unique(combined, return_inverse=True)[1].reshape(-1)
    # Rows of a table without columns are all equal.
    return np.zeros(count, np.int64) if identity is None else identity


def _compact_keyless(changes: TableChanges, after: Sequence[Cells]) -> list[Step]:
    if bool((changes.operation == INSERT).all()):
        return [_step(changes.operation, after)]
    if not bool((changes.has_full_before | (changes.operation == INSERT)).all()):
        raise DecodeError(f"{changes.relation.table}: a change lacks the old row")
    gone = np.flatnonzero(changes.operation != INSERT)
    come = np.flatnonzero(changes.operation != DELETE)
    images = [
        concatenate(old.take(gone), new.take(come))
        for old, new in zip(changes.before, after, strict=True)
    ]
    if any(bool(cells.is_unchanged.any()) for cells in images):
        raise DecodeError(f"{changes.relation.table}: a change lacks a part of its row")
    identity = row_numbers(images, len(gone) + len(come))
    sign = np.concatenate((np.full(len(gone), -1), np.full(len(come), 1)))
    _, first, number = np.unique(identity, return_index=True, return_inverse=True)
    balance = np.bincount(number.reshape(-1), weights=sign).astype(np.int64)
    fewer, more = np.flatnonzero(balance < 0), np.flatnonzero(balance > 0)
    rows = np.concatenate((first[fewer], np.repeat(first[more], balance[more])))
    if len(rows) == 0:
        return []
    added = len(rows) - len(fewer)
    return [
        Step(
            operation=np.array([DELETE] * len(fewer) + [INSERT] * added, np.uint8),
            columns=tuple(cells.take(rows) for cells in images),
            old_key=(),
            copies=np.concatenate((-balance[fewer], np.ones(added, np.int64))),
            unchanged_group=np.zeros(len(rows), np.int64),
            unchanged_columns=((),),
        )
    ]
