"""Cells: one column of many rows, as places in a buffer. Nothing is copied until gathered.

Each column says which buffer its places are in. All that `decode` finds in a slice share the slice's
own bytes; a column that was computed brings its own. Knows no table and no operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.pgoutput import NULL, TEXT, UNCHANGED
from penstock.errors import DecodeError

Index = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

ABSENT = 0  # the row has no such tuple, as an INSERT has no old row

# Arrow counts the bytes of a binary array in 31 bits.
_LARGEST_BYTES = 2**31 - 1


@dataclass(frozen=True)
class Cells:
    """For each row: where in `data` the value's text lies, how long it is, and what it is.

    `kind` is one of TEXT, NULL, UNCHANGED (a TOASTed value that the UPDATE left alone: not NULL, and
    not known here) and ABSENT.
    """

    data: pa.Buffer
    start: Index
    length: Index
    kind: npt.NDArray[np.uint8]

    @classmethod
    def from_arrow(
        cls, values: pa.Array, *, unchanged: Mask | None = None, absent: Mask | None = None
    ) -> Cells:
        """A column of its own: Postgres's text in an Arrow array, strings or binary.

        The array's bytes are not copied. Nulls become NULL, but for the rows of two masks: those whose value
        is `unchanged`, and those that are `absent`. What the array has there does not count.

        Raises:
            DecodeError: the values are longer than 2 GiB together.
        """
        data, offsets = _text_buffers(values)
        is_value = np.asarray(values.is_valid())
        kind = np.where(is_value, np.uint8(TEXT), np.uint8(NULL))
        for mask, mark in ((unchanged, UNCHANGED), (absent, ABSENT)):
            if mask is not None:
                kind[mask] = mark
        # Arrow may have bytes behind a null.
        length = np.where(kind == TEXT, np.diff(offsets), 0)
        return cls(data, offsets[:-1], length, kind)

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, rows: Any) -> Cells:
        """The cells of some rows, in that order."""
        return Cells(self.data, self.start[rows], self.length[rows], self.kind[rows])

    def where(self, mask: Mask, other: Cells) -> Cells:
        """These cells where `mask` holds, the other's elsewhere."""
        kind = np.where(mask, self.kind, other.kind)
        if self.data is not other.data:
            return _own(pc.if_else(pa.array(mask), gather(self), gather(other)), kind)
        return Cells(
            self.data,
            np.where(mask, self.start, other.start),
            np.where(mask, self.length, other.length),
            kind,
        )

    @property
    def is_unchanged(self) -> Mask:
        """Which values an UPDATE left alone without sending them."""
        return np.equal(self.kind, UNCHANGED)

    @property
    def is_value(self) -> Mask:
        """Which cells hold a value that is known and not NULL."""
        return np.equal(self.kind, TEXT)

    @property
    def is_null(self) -> Mask:
        """Which cells are known to be NULL."""
        return np.equal(self.kind, NULL)


def _text_buffers(values: pa.Array) -> tuple[pa.Buffer, Index]:
    """The bytes of an array, and where each value begins, and the last one ends."""
    if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        width: type[np.signedinteger[Any]] = np.int32
    else:
        values, width = values.cast(pa.large_binary()), np.int64
    _, offsets, data = values.buffers()
    if len(values) == 0 or data is None:
        return pa.py_buffer(b""), np.zeros(len(values) + 1, np.int64)
    places = np.frombuffer(offsets, width)[values.offset : values.offset + len(values) + 1]
    if int(places[-1]) > _LARGEST_BYTES:
        raise DecodeError(f"a column of {int(places[-1])} bytes, wanted at most {_LARGEST_BYTES}")
    return data, places.astype(np.int64)


def _own(values: pa.Array, kind: npt.NDArray[np.uint8]) -> Cells:
    """A column of its own whose marks are known."""
    return Cells.from_arrow(values, unchanged=kind == UNCHANGED, absent=kind == ABSENT)


def no_cells(data: pa.Buffer, anchor: Index) -> Cells:
    """Cells of rows that have no such tuple. `anchor` keeps their places in ascending order."""
    count = len(anchor)
    return Cells(data, anchor, np.zeros(count, np.int64), np.full(count, ABSENT, np.uint8))


def concatenate(first: Cells, second: Cells) -> Cells:
    """The rows of both, one after the other."""
    kind = np.concatenate((first.kind, second.kind))
    if first.data is not second.data:
        return _own(pa.concat_arrays([gather(first), gather(second)]), kind)
    return Cells(
        first.data,
        np.concatenate((first.start, second.start)),
        np.concatenate((first.length, second.length)),
        kind,
    )


def gather(cells: Cells) -> pa.Array:
    """The values as an Arrow binary array; whatever is not a value becomes null.

    Arrow does the copying: an array is laid over the buffer whose elements are, in turn, the
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
        pa.binary(), 2 * len(start), [None, pa.py_buffer(offsets), cells.data]
    )
    is_value = cells.is_value
    missing = None if bool(is_value.all()) else ~is_value
    taken = laid_over.take(pa.array(picked, mask=missing))
    if empty is not None and bool((empty & is_value).any()):
        blank = pa.array(empty & is_value)
        taken = pc.if_else(blank, pa.scalar(b"", pa.binary()), taken)
    return taken
