"""Types as `format_type` spells them -> oid and modifier, as the server sends them: for what lies below a domain. Pure.

Only types that formats write in a way of their own; all others are their text.
"""

from __future__ import annotations

import re

from penstock.changes.typed import ELEMENTS

_SPELLED = re.compile(
    r"(?:pg_catalog\.)?(?P<name>[a-z ]+?)(?:\((?P<first>\d+)(?:,(?P<second>-?\d+))?\))?(?P<rest> with(?:out)? time zone)?(?P<array>(?:\[\])?)"
)
_OIDS = {
    "boolean": 16,
    "bytea": 17,
    "bigint": 20,
    "smallint": 21,
    "integer": 23,
    "oid": 26,
    "json": 114,
    "real": 700,
    "double precision": 701,
    "money": 790,
    "date": 1082,
    "time without time zone": 1083,
    "timestamp without time zone": 1114,
    "timestamp with time zone": 1184,
    "interval": 1186,
    "time with time zone": 1266,
    "bit": 1560,
    "bit varying": 1562,
    "numeric": 1700,
    "uuid": 2950,
    "jsonb": 3802,
}
_ARRAYS = {element: array for array, element in ELEMENTS.items()}
_NUMERIC = 1700


def spelled_type(text: str) -> tuple[int, int] | None:
    """Oid and modifier of a type; None of one that is its text."""
    match = _SPELLED.fullmatch(text)
    if match is None:
        return None
    oid = _OIDS.get(match["name"].strip() + (match["rest"] or ""))
    if oid is not None and match["array"]:
        oid = _ARRAYS.get(oid)
    if oid is None:
        return None
    if match["first"] is None:
        return oid, -1
    first, second = int(match["first"]), int(match["second"] or 0)
    if _NUMERIC in (oid, ELEMENTS.get(oid)):
        return oid, 4 + ((first << 16) | (second & 0x7FF))
    return oid, first
