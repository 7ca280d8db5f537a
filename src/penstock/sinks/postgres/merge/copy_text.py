"""Arrow columns -> COPY text, all rows at once. Pure.

https://www.postgresql.org/docs/current/sql-copy.html, "Text Format"
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

# The backslash first: the others bring backslashes of their own.
_ESCAPES = ((b"\\", b"\\\\"), (b"\t", b"\\t"), (b"\n", b"\\n"), (b"\r", b"\\r"))
_LARGEST_JOINED = 1 << 30


def copy_text(columns: Sequence[pa.Array]) -> memoryview:
    """One line per row; nulls become \\N.

    Args:
        columns: binary arrays of one length.
    """
    size = sum(column.nbytes for column in columns)
    kind = pa.binary() if size < _LARGEST_JOINED else pa.large_binary()
    parts: list[pa.Array | pa.Scalar] = []
    tab, newline = pa.scalar(b"\t", kind), pa.scalar(b"\n", kind)
    for place, column in enumerate(columns):
        escaped = _escape(column)
        parts.append(escaped if kind == pa.binary() else escaped.cast(kind))
        parts.append(newline if place == len(columns) - 1 else tab)
    joined = pc.binary_join_element_wise(
        *parts, pa.scalar(b"", kind), null_handling="replace", null_replacement=b"\\N"
    )
    if len(joined) == 0:
        return memoryview(b"")
    return memoryview(joined.buffers()[2])[: _end(joined)]


def _end(joined: pa.Array) -> int:
    """Where the last line ends: Arrow's buffers may be longer than what they hold."""
    return int(pc.sum(pc.binary_length(joined)).as_py())


def _escape(column: pa.Array) -> pa.Array:
    values = column.buffers()[2] if len(column) else None
    if values is None:
        return column
    # Most columns need nothing, and looking is far cheaper than replacing.
    raw = values.to_pybytes()
    for plain, escaped in _ESCAPES:
        if plain in raw:
            column = pc.replace_substring(column, pattern=plain, replacement=escaped)
    return column


_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_PLAIN = {escaped[1:]: plain for plain, escaped in _ESCAPES}


def plain_text(cell: bytes) -> str:
    """One value of a line, as a person reads it."""
    if cell == b"\\N":
        return "NULL"
    return _ESCAPED.sub(lambda match: _PLAIN[match[1]], cell).decode("utf-8", "replace")
