"""Which type a column has at the target, and whether one type holds all that another does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from penstock.sinks.postgres.ddl.create import type_exists
from penstock.sinks.postgres.expressions.node_tree import FIRST_USER_OID

if TYPE_CHECKING:
    import psycopg

    from penstock.schema.shape import ColumnShape, TypeShape

    Connection = psycopg.Connection[Any]

_SPELLED = re.compile(
    r"^(?P<name>[^(\[]+?)(?:\((?P<sizes>[\d, -]+)\))?(?P<rest>[^(\[]*?)(?P<array>(\[\])*)$"
)

_ORDER = (
    ("smallint", "integer", "bigint", "numeric"),
    ("real", "double precision"),
    ("date", "timestamp without time zone"),
)
_TEXTS = ("character varying", "character", "text")
# Types that are text, and types whose text is spelled as a setting says: DateStyle, IntervalStyle,
# bytea_output, extra_float_digits, lc_monetary, xmloption.
_SPELLED_OUT = ("text", "character", "citext", '"char"', "name")
_BY_SETTING = ("date", "time", "interval", "bytea", "real", "double", "money", "xml", "tstz", "tsr")

_INSTANT = "timestamp with time zone"
_LOCAL = "timestamp without time zone"


def kind_of(connection: Connection, column: ColumnShape, types: tuple[TypeShape, ...]) -> str:
    """The column's type, or text where the target lacks it and it is not ours to make.

    `types` are those that will have been made by then.
    """
    if column.type_id < FIRST_USER_OID or _can_be_made(column.type_id, types):
        return column.type
    return column.type if type_exists(connection, column.type) else "text"


def _can_be_made(number: int, types: tuple[TypeShape, ...]) -> bool:
    if number < FIRST_USER_OID:
        return True
    found = next((each for each in types if each.id == number), None)
    if found is None or (not found.is_array and (found.extension or found.kind == "other")):
        return False
    return all(_can_be_made(part, types) for part in found.parts)


def is_wider(before: str, after: str) -> bool:
    """Whether every value of one type is also one of the other, and means the same."""
    if after in (before, "text"):
        return True
    old, new = _SPELLED.match(before), _SPELLED.match(after)
    if old is None or new is None or old["array"] != new["array"]:
        return False
    old_name, new_name = (f"{each['name']}{each['rest']}" for each in (old, new))
    old_sizes, new_sizes = _sizes(old), _sizes(new)
    if old_name == new_name:
        return _is_larger(old_name, old_sizes, new_sizes)
    if old_name in _TEXTS and new_name == "character varying":
        return not new_sizes or (bool(old_sizes) and new_sizes[0] >= old_sizes[0])
    return _comes_later(old_name, new_name) and not new_sizes


def _comes_later(old_name: str, new_name: str) -> bool:
    """Whether the one type holds all values of the other, by their order."""
    for names in _ORDER:
        if old_name in names and new_name in names:
            return names.index(new_name) > names.index(old_name)
    return False


def _sizes(spelled: re.Match[str]) -> tuple[int, ...]:
    return tuple(int(size) for size in (spelled["sizes"] or "").split(",") if size.strip())


def _is_larger(name: str, old: tuple[int, ...], new: tuple[int, ...]) -> bool:
    if not new:
        return True
    if not old or len(old) != len(new):
        return False
    if name == "numeric":
        # Both sides of the point.
        return new[1] >= old[1] and new[0] - new[1] >= old[0] - old[1]
    return new[0] >= old[0] and name != "character"


def depends_on_session(before: str, after: str) -> bool:
    """Whether what a cast gives depends on the settings of who runs it: time zone, DateStyle, …"""
    instants = [
        name.startswith("timestamp") and "with time zone" in name for name in (before, after)
    ]
    if instants[0] != instants[1]:
        return True
    texts = [name.startswith(_SPELLED_OUT) for name in (before, after)]
    return texts[0] != texts[1] and any(name.startswith(_BY_SETTING) for name in (before, after))


def is_shift(before: str, after: str) -> bool:
    """Whether the one is a point in time, and the other the same without its zone."""
    names = {re.sub(r"\(\d+\)", "", each) for each in (before, after)}
    return names == {_INSTANT, _LOCAL}
