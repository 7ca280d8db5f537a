"""Columns of text made by numpy, all rows at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

Bytes = npt.NDArray[np.uint8]
Counts = npt.NDArray[np.int64]


def laid_out(data: Bytes, lengths: Counts) -> pa.Array:
    """Bytes of all rows, one row after another, as a binary array."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


def of_width(matrix: Bytes) -> pa.Array:
    """Rows that all have the same number of bytes."""
    rows, width = matrix.shape
    return laid_out(matrix.reshape(-1), np.full(rows, width, np.int64))


def first_of(matrix: Bytes, lengths: Counts) -> pa.Array:
    """Of each row of bytes the first so many."""
    return laid_out(matrix[np.arange(matrix.shape[1]) < lengths[:, None]], lengths)


def chosen(table: Sequence[str], places: Any) -> pa.Array:
    """Entries of a table, by place."""
    return pa.array([one.encode() for one in table], pa.binary()).take(pa.array(places))


def bytes_and_lengths(values: pa.Array) -> tuple[Bytes, Counts]:
    """The bytes of a string or binary array without nulls, and how many each row has."""
    _, offsets, data = values.buffers()
    if len(values) == 0 or data is None:
        return np.zeros(0, np.uint8), np.zeros(len(values), np.int64)
    places = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    return np.frombuffer(data, np.uint8)[int(places[0]) : int(places[-1])], np.diff(places).astype(
        np.int64
    )


def starred(values: pa.Array, begin: Counts, end: Counts, star: str) -> pa.Array:
    """Text whose characters from `begin` to `end`, which are counts of characters, are stars.

    `end` is at most the number of characters; where it is not after `begin` nothing is hidden.
    """
    data, lengths = bytes_and_lengths(values)
    if len(data) == 0:
        return values.cast(pa.binary())
    starts = np.cumsum(lengths) - lengths
    some = end > begin
    begin, end = np.where(some, begin, 0), np.where(some, end, 0)
    is_ascii = int(data.max()) < 0x80
    if is_ascii:
        first, last = starts + begin, starts + end
    else:
        # Where each character begins, and which one is the first of a row.
        begins_character = (data & 0xC0) != 0x80
        places = np.concatenate((np.flatnonzero(begins_character), [len(data)]))
        of_row = np.searchsorted(places, starts)
        first, last = (
            places[np.minimum(of_row + count, len(places) - 1)] for count in (begin, end)
        )
    # Of each row: what is shown, hidden, shown. Far quicker than to count byte by byte.
    runs = np.stack((first - starts, last - first, starts + lengths - last), axis=1).reshape(-1)
    hidden = np.repeat(np.tile(np.array([False, True, False]), len(lengths)), runs)
    shown = np.where(hidden, np.uint8(ord(star)), data)
    if is_ascii:
        return laid_out(shown, lengths)
    kept = ~hidden | begins_character
    total = np.concatenate(([0], np.cumsum(kept)))
    return laid_out(shown[kept], total[starts + lengths] - total[starts])
