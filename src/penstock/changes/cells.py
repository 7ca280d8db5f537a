"""Cells: one column of many rows, as places in a slice's bytes. Nothing is copied until gathered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.pgoutput import NULL, TEXT, UNCHANGED

Index = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

ABSENT = 0  # the row has no such tuple, as an INSERT has no old row


@dataclass(frozen=True)
class Cells:
    """For each row: where the value's text lies, how long it is, and what it is.

    `kind` is one of TEXT, NULL, UNCHANGED (a TOASTed value that the UPDATE left alone: not NULL, and
    not known here) and ABSENT.
    """

    start: Index
    length: Index
    kind: npt.NDArray[np.uint8]

    def take(self, rows: Any) -> Cells:
        """The cells of some rows, in that order."""
        return Cells(self.start[rows], self.length[rows], self.kind[rows])

    def where(self, mask: Mask, other: Cells) -> Cells:
        """These cells where `mask` holds, the other's elsewhere."""
        return Cells(
            np.where(mask, self.start, other.start),
            np.where(mask, self.length, other.length),
            np.where(mask, self.kind, other.kind),
        )

    @property
    def is_unchanged(self) -> Mask:
        """Which values an UPDATE left alone without telling them."""
        return np.equal(self.kind, UNCHANGED)

    @property
    def is_value(self) -> Mask:
        """Which cells hold a value that is known and not NULL."""
        return np.equal(self.kind, TEXT)

    @property
    def is_null(self) -> Mask:
        """Which cells are known to be NULL."""
        return np.equal(self.kind, NULL)


def no_cells(anchor: Index) -> Cells:
    """Cells of rows that have no such tuple. `anchor` keeps their places in ascending order."""
    count = len(anchor)
    return Cells(anchor, np.zeros(count, np.int64), np.full(count, ABSENT, np.uint8))


def concatenate(first: Cells, second: Cells) -> Cells:
    """The rows of both, one after the other."""
    return Cells(
        np.concatenate((first.start, second.start)),
        np.concatenate((first.length, second.length)),
        np.concatenate((first.kind, second.kind)),
    )


def gather(data: pa.Buffer, cells: Cells) -> pa.Array:
    """The values as an Arrow binary array; whatever is not a value becomes null.

    Arrow does the copying: an array is laid over the slice's bytes whose elements are, in turn, the
    gap before a value and the value, and every second element is taken. That needs places in
    ascending order, which rows in their own order have; others are sorted first.
    """
    start, length = cells.start, cells.length
    count = len(start)
    if count == 0:
        return pa.array([], pa.binary())
    end = start + length
    if count > 1 and bool((start[1:] < end[:-1]).any()):
        unique, first, inverse = np.unique(start, return_index=True, return_inverse=True)
        start, end = unique, end[first]
        # An empty value may share its place with the beginning of a longer one.
        longest = np.zeros(len(unique), np.int64)
        np.maximum.at(longest, inverse, length)
        end = start + longest
        picked = 2 * inverse + 1
        empty = length == 0
    else:
        picked = np.arange(1, 2 * count, 2, dtype=np.int64)
        empty = None
    offsets = np.empty(2 * len(start) + 1, np.int32)
    offsets[0] = 0
    offsets[1::2] = start
    offsets[2::2] = end
    laid_over = pa.Array.from_buffers(
        pa.binary(), 2 * len(start), [None, pa.py_buffer(offsets), data]
    )
    is_value = cells.is_value
    missing = None if bool(is_value.all()) else ~is_value
    taken = laid_over.take(pa.array(picked, mask=missing))
    if empty is not None and bool((empty & is_value).any()):
        blank = pa.array(empty & is_value)
        taken = pc.if_else(blank, pa.scalar(b"", pa.binary()), taken)
    return taken
