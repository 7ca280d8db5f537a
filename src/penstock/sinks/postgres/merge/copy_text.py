"""Arrow columns -> COPY text, all rows at once. Pure.

https://www.postgresql.org/docs/current/sql-copy.html, "Text Format"
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from penstock.changes.copyrows import ESCAPES, copy_lines
from penstock.changes.textcolumns import raw_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa


def copy_text(columns: Sequence[pa.Array]) -> memoryview:
    """One line per row; nulls become \\N.

    Args:
        columns: binary arrays of one length, at least one.
    """
    return raw_bytes(copy_lines(columns, len(columns[0])))


def cell_text(value: str | None) -> bytes:
    """One value of a line; None is NULL."""
    if value is None:
        return b"\\N"
    raw = value.encode()
    for plain, escaped in ESCAPES:
        raw = raw.replace(plain, escaped)
    return raw


_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_PLAIN = {escaped[1:]: plain for plain, escaped in ESCAPES}


def plain_text(cell: bytes) -> str:
    """One value of a line, as a person reads it."""
    if cell == b"\\N":
        return "NULL"
    return _ESCAPED.sub(lambda match: _PLAIN[match[1]], cell).decode("utf-8", "replace")
