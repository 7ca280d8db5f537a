"""Arrays as Postgres prints them -> their elements, all rows at once. Pure.

    {1,2,NULL}   {"a b","say \\"no\\"",plain}   {}        [0:1]={5,6}   {{1,2},{3,4}}

Of one dimension, with elements counted from 1: the others are not split up.
https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.cells import Cells
from penstock.changes.copyrows import escaping
from penstock.changes.pgoutput import NULL, TEXT
from penstock.changes.textcolumns import raw_bytes

if TYPE_CHECKING:
    from penstock.changes.cells import Index, Mask

    Codes = npt.NDArray[np.uint8]

_OPEN, _CLOSE, _COMMA, _QUOTE = b'{},"'


@dataclass(frozen=True)
class ArrayElements:
    """The elements of all arrays, one after another; those of row r are from offsets[r] to offsets[r+1].

    `unfit`: rows whose array has more than one dimension, or bounds of its own; they have no elements here.
    """

    elements: Cells
    offsets: Index
    unfit: Index


def split_arrays(values: pa.Array) -> ArrayElements:
    """The elements of a column of arrays; null arrays have none."""
    lengths = np.asarray(pc.fill_null(pc.binary_length(values), 0)).astype(np.int64)
    ends = np.cumsum(lengths)
    codes = np.frombuffer(raw_bytes(values), np.uint8)
    escapes = escaping(codes)
    structure = _structure(codes, escapes)
    is_valid = np.asarray(values.is_valid())
    is_flat = is_valid & _are_flat(codes, structure, ends - lengths, ends)

    owner = np.searchsorted(ends, structure, side="right")
    kept = is_flat[owner]
    structure, owner = structure[kept], owner[kept]
    begins = codes[structure] != _CLOSE
    # Between the braces of an array without elements there is nothing, which is no element.
    begins &= lengths[owner] > 2
    at = np.flatnonzero(begins)
    counts = np.bincount(owner[at], minlength=len(values))
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    elements = _elements(codes, escapes, structure[at] + 1, structure[at + 1])
    return ArrayElements(elements, offsets, np.flatnonzero(is_valid & ~is_flat))


def _structure(codes: Codes, escapes: Index) -> Index:
    """Braces and commas that are not part of an element."""
    is_plain = np.ones(len(codes) + 1, np.bool_)
    is_plain[escapes + 1] = False
    is_plain = is_plain[:-1]
    # Each array has an even number of quotes, so one count serves all of them.
    is_outside = np.cumsum((codes == _QUOTE) & is_plain) % 2 == 0
    is_mark = (codes == _OPEN) | (codes == _CLOSE) | (codes == _COMMA)
    return np.flatnonzero(is_mark & is_outside & is_plain)


def _are_flat(codes: Codes, structure: Index, starts: Index, ends: Index) -> Mask:
    """Which arrays have braces at their very beginning and end, and no others."""
    marks = codes[structure]
    counted = [
        np.concatenate(([0], np.cumsum(marks == brace, dtype=np.int64)))
        for brace in (_OPEN, _CLOSE)
    ]
    first, last = np.searchsorted(structure, starts), np.searchsorted(structure, ends)
    are_flat: Mask = ends - starts >= 2
    for count in counted:
        are_flat &= count[last] - count[first] == 1
    inside = np.flatnonzero(are_flat)
    are_flat[inside] = (codes[starts[inside]] == _OPEN) & (codes[ends[inside] - 1] == _CLOSE)
    return are_flat


def _elements(codes: Codes, escapes: Index, starts: Index, ends: Index) -> Cells:
    if len(starts) == 0:
        return Cells.from_arrow(pa.array([], pa.binary()))
    # A place is always there: a brace follows.
    is_quoted = codes[starts] == _QUOTE
    starts, ends = starts + is_quoted, ends - is_quoted
    is_null = ~is_quoted & (ends - starts == 4)
    at = starts[is_null]
    is_null[is_null] = np.all(
        codes[at[:, None] + np.arange(4)] == np.frombuffer(b"NULL", np.uint8), axis=1
    )
    if len(escapes):
        kept = np.ones(len(codes), np.bool_)
        kept[escapes] = False
        codes = codes[kept]
        starts = starts - np.searchsorted(escapes, starts)
        ends = ends - np.searchsorted(escapes, ends)
    length = np.where(is_null, 0, ends - starts)
    kind = np.where(is_null, np.uint8(NULL), np.uint8(TEXT))
    return Cells(pa.py_buffer(np.ascontiguousarray(codes)), starts, length, kind)
