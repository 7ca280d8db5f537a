"""What to write in place of a value that a column's type does not read, where that can be guessed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from penstock.sql.column_types import Family

if TYPE_CHECKING:
    from penstock.sql.column_types import ColumnType

# What Postgres takes for a truth value, too.
_TRUE = ("yes", "y", "on", "1")
_FALSE = ("no", "n", "off", "0")
_WITHOUT_ZONE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)?")


def advice(text: str, kind: ColumnType) -> str:
    """What to do; "" where nobody knows."""
    written = text.strip()
    if kind.family is Family.BOOL:
        meant = {**dict.fromkeys(_TRUE, "true"), **dict.fromkeys(_FALSE, "false")}
        return f"write {meant.get(written.lower(), 'true or false')}"
    if kind.family is Family.TIMESTAMPTZ and _WITHOUT_ZONE.fullmatch(written):
        return "add a time zone: 2024-01-31 10:00:00+00"
    if kind.family is Family.ENUM:
        return f"write one of its labels: {', '.join(kind.labels)}"
    return ""
