"""Types of columns that became wider: which changes leave every document, and its field, as they are. Pure.

smallint → integer → bigint                      the same digits
varchar(n) → varchar of more, or of any → text   the same text; not of char(n), which pads
numeric(p,s) → more digits before the point      more behind it would be written
time, timestamp, timestamptz with more digits    the server prints no zeros at the end
varbit(n) → more bits
and arrays of these; as long as the field is the same
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from penstock.changes.pgoutput import Column

if TYPE_CHECKING:
    from penstock.sinks.search.mapping import Mapper

# By Postgres's names, without modifiers: each type with those of which it holds every value, spelled alike.
_WIDER = {
    "integer": ("smallint",),
    "bigint": ("smallint", "integer"),
    "numeric": ("numeric",),
    "character varying": ("character varying", "text"),
    "text": ("character varying",),
    "bit varying": ("bit varying",),
    "time without time zone": ("time without time zone",),
    "time with time zone": ("time with time zone",),
    "timestamp without time zone": ("timestamp without time zone",),
    "timestamp with time zone": ("timestamp with time zone",),
}
_OIDS = {"smallint": 21, "integer": 23, "bigint": 20, "numeric": 1700}
_OIDS |= {"character varying": 1043, "text": 25, "bit varying": 1562}
_OIDS |= {"time without time zone": 1083, "time with time zone": 1266}
_OIDS |= {"timestamp without time zone": 1114, "timestamp with time zone": 1184}
_SPELLED = re.compile(r"([a-z ]+?)(?:\(([0-9]+)(?:,([0-9]+))?\))?((?: [a-z ]+)?)((?:\[\])*)")


def keeps_documents(before: str, after: str, mapper: Mapper) -> bool:
    """Whether documents are the same under both types of a column, where the statement computed no values of its own."""
    one, other = _SPELLED.fullmatch(before), _SPELLED.fullmatch(after)
    if one is None or other is None or one[5] != other[5]:
        return False
    old, new = one[1] + one[4], other[1] + other[4]
    if old not in _WIDER.get(new, ()) or _size(one[2]) > _size(other[2]):
        return False
    if new == "numeric" and other[2] is not None and one[3] != other[3]:
        return False
    return _field(old, one, mapper) == _field(new, other, mapper)


def _size(text: str | None) -> float:
    return float("inf") if text is None else int(text)


def _field(name: str, spelled: re.Match[str], mapper: Mapper) -> object:
    modifier = -1
    if name == "numeric" and spelled[2] is not None:
        modifier = (int(spelled[2]) << 16 | int(spelled[3] or 0)) + 4
    # These types are searched alike by all servers.
    return mapper.type_of(Column(name, _OIDS[name], modifier, in_identity=False), "opensearch")
