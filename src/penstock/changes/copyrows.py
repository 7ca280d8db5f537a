"""Rows in COPY's text form -> cells, and columns -> such rows, all at once. Pure: no socket, no file.

    value TAB value TAB value LF        \\N is NULL; \\\\ \\b \\f \\n \\r \\t \\v stand for one byte each

Whatever a value holds, a tab or a line feed in these bytes is never part of it: COPY escapes them.
https://www.postgresql.org/docs/current/sql-copy.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.cells import Cells, Index, Mask, gather
from penstock.changes.pgoutput import NULL, TEXT
from penstock.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Sequence

_TAB, _LINE_FEED, _BACKSLASH = b"\t\n\\"
_NULL_LETTER = b"N"[0]

# What a byte means after a backslash; any other one means itself.
_MEANING = np.arange(256, dtype=np.uint8)
_MEANING[np.frombuffer(b"bfnrtv", np.uint8)] = np.frombuffer(b"\b\f\n\r\t\v", np.uint8)


# What is written with one; the backslash first: the others bring backslashes of their own.
ESCAPES = ((b"\\", b"\\\\"), (b"\t", b"\\t"), (b"\n", b"\\n"), (b"\r", b"\\r"))
_LARGEST_JOINED = 1 << 30


@dataclass(frozen=True)
class CopiedRows:
    """Some rows of one table, in the order in which they came."""

    cells: tuple[Cells, ...]  # one per column
    count: int
    raw: pa.Buffer  # as they came, and where each value begins and ends there, row by row
    starts: Index
    ends: Index

    def __len__(self) -> int:
        return self.count

    def text_of(self, first: int, last: int) -> pa.Array:
        """What stands from one column to another, tabs and escapes included: as COPY takes it again."""
        across = max(len(self.cells), 1)
        begin, end = self.starts[first::across], self.ends[last::across]
        kind = np.full(self.count, TEXT, np.uint8)
        return gather(Cells(self.raw, begin, end - begin, kind))


def parse_rows(raw: bytes, width: int) -> CopiedRows:
    """Find the values of rows of so many columns.

    Raises:
        DecodeError: these bytes are not whole rows of that width.
    """
    codes = np.frombuffer(raw, np.uint8)
    # The two are neighbours, and what is below them wraps around.
    ends = np.flatnonzero(codes - np.uint8(_TAB) <= _LINE_FEED - _TAB)
    across = max(width, 1)  # a table without columns has rows too, and each is an empty line
    count, rest = divmod(len(ends), across)
    marks = codes[ends[: count * across]].reshape(count, across)
    if (
        rest
        or (len(codes) and codes[-1] != _LINE_FEED)
        or bool((marks[:, -1] != _LINE_FEED).any())
        or bool((marks[:, :-1] != _TAB).any())
    ):
        raise DecodeError(f"what COPY sent are not rows of {width} columns")
    starts = np.empty_like(ends)
    starts[:1] = 0
    starts[1:] = ends[:-1] + 1
    data = pa.py_buffer(raw)
    as_they_came = (data, starts, ends)
    if b"\\" in raw:
        is_null = _nulls(codes, starts, ends)
        codes, starts, ends = _unescape(codes, starts, ends)
        length = np.where(is_null, 0, ends - starts)
        kind = np.where(is_null, np.uint8(NULL), np.uint8(TEXT)).astype(np.uint8)
        data = pa.py_buffer(codes)
    else:
        length = ends - starts
        kind = np.full(len(ends), TEXT, np.uint8)
    cells = tuple(
        Cells(data, starts[place::across], length[place::across], kind[place::across])
        for place in range(width)
    )
    return CopiedRows(cells, count, *as_they_came)


def _nulls(codes: npt.NDArray[np.uint8], starts: Index, ends: Index) -> Mask:
    # Two bytes are also what an escaped tab has, but its second one is another letter; a value that
    # reads \N comes as \\N.
    found: Mask = np.equal(ends - starts, 2)
    at = starts[found]
    found[found] = (codes[at] == _BACKSLASH) & (codes[at + 1] == _NULL_LETTER)
    return found


def escaping(codes: npt.NDArray[np.uint8]) -> Index:
    """Where a backslash stands before what it escapes."""
    slashes = np.flatnonzero(codes == _BACKSLASH)
    if len(slashes) == 0:
        return slashes
    # In a run of backslashes every second one is meant, and an odd one out escapes what follows.
    begins_run = np.ones(len(slashes), np.bool_)
    begins_run[1:] = np.diff(slashes) != 1
    first = slashes[begins_run][np.cumsum(begins_run) - 1]
    is_first_of_two: Mask = (slashes - first) % 2 == 0
    return slashes[is_first_of_two]


def _unescape(
    codes: npt.NDArray[np.uint8], starts: Index, ends: Index
) -> tuple[npt.NDArray[np.uint8], Index, Index]:
    """Take the backslashes out that stand before what they escape."""
    escapes = escaping(codes)
    if len(escapes) == 0:
        return codes, starts, ends
    meant = codes.copy()
    meant[escapes + 1] = _MEANING[codes[escapes + 1]]
    kept = np.ones(len(codes), np.bool_)
    kept[escapes] = False
    return (
        meant[kept],
        starts - np.searchsorted(escapes, starts),
        ends - np.searchsorted(escapes, ends),
    )


def copy_lines(columns: Sequence[pa.Array], count: int) -> pa.Array:
    """Rows as COPY takes them, an Arrow binary array of one line each; nulls become \\N.

    Args:
        columns: binary arrays of so many rows.
    """
    return join_lines([escape(column) for column in columns], count)


def join_lines(columns: Sequence[pa.Array], count: int) -> pa.Array:
    """The same of texts that are escaped already."""
    size = sum(column.nbytes for column in columns)
    kind = pa.binary() if size < _LARGEST_JOINED else pa.large_binary()
    tab, newline = pa.scalar(b"\t", kind), pa.scalar(b"\n", kind)
    if not columns:
        return pa.repeat(newline, count)
    parts: list[pa.Array | pa.Scalar] = []
    for place, column in enumerate(columns):
        parts.append(column if column.type == kind else column.cast(kind))
        parts.append(newline if place == len(columns) - 1 else tab)
    return pc.binary_join_element_wise(
        *parts, pa.scalar(b"", kind), null_handling="replace", null_replacement=b"\\N"
    )


def escape(column: pa.Array) -> pa.Array:
    """Values as COPY takes them."""
    values = column.buffers()[2] if len(column) else None
    if values is None:
        return column
    # Most columns need nothing, and a check is far cheaper than replacing.
    raw = values.to_pybytes()
    for plain, escaped in ESCAPES:
        if plain in raw:
            column = pc.replace_substring(column, pattern=plain, replacement=escaped)
    return column
