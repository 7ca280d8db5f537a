"""Whether a text of the file can be a value of a column's type, as Postgres reads it: yes, no, or nobody knows here."""

from __future__ import annotations

import json
import re
from decimal import MAX_PREC, ROUND_HALF_UP, Context, Decimal
from typing import TYPE_CHECKING

from penstock.errors import RuleUnfit
from penstock.modifiers.filter.comparison import article, is_read, read_value
from penstock.modifiers.filter.spelled import (
    interval_length,
    mac_address,
    network_address,
    time_with_zone,
)
from penstock.sql.column_types import ColumnType, Family

if TYPE_CHECKING:
    from collections.abc import Callable

_EXACT = Context(prec=MAX_PREC, rounding=ROUND_HALF_UP)
_MOST_DIGITS = 1000  # of a numeric with a precision
_ITEM = r'(?:"((?:[^"\\]|\\.)*)"|([^"\\{},]*))'
_FLAT_ARRAY = re.compile(rf"(?s)\s*\{{(?:\s*\}}|{_ITEM}(?:,{_ITEM})*\}})\s*")


def require_value(text: str, kind: ColumnType) -> bool:
    """See that a text can be a value of a type. False where only Postgres knows.

    Raises:
        RuleUnfit: it cannot.
    """
    try:
        return _is_known(text, kind)
    except (ValueError, RuleUnfit):
        what = f"a value that cannot be {article(kind.spelled)}"
        raise RuleUnfit(what, "", "write one that can") from None


def _is_known(text: str, kind: ColumnType) -> bool:
    if (element := kind.element) is not None:
        return _is_known_array(text, element)
    check = _CHECKS.get("interval" if kind.family is Family.INTERVAL else kind.name)
    if check is not None:
        return check(text, kind)
    if not is_read(kind):
        return False
    read_value(text, kind)
    if kind.family is Family.NUMERIC:
        _check_precision(text, kind)
    return True


def _check_precision(text: str, kind: ColumnType) -> None:
    """Postgres rounds to the scale, and then wants no more digits than there are."""
    value = Decimal(text.strip())
    if len(kind.modifier) != 2 or value.is_nan():
        return
    precision, scale = kind.modifier
    if value.is_infinite() or value.adjusted() > _MOST_DIGITS:
        raise ValueError
    if value and value.adjusted() >= -scale - 1:
        value = value.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
        if value and value.adjusted() >= precision - scale:
            raise ValueError


def _is_json(text: str, kind: ColumnType) -> bool:
    json.loads(text, parse_constant=_refuse)
    # Text with \\u0000 is json, and no jsonb.
    return not (kind.name == "jsonb" and "u0000" in text)


def _refuse(name: str) -> None:
    raise ValueError(name)


def _is_inet(text: str, kind: ColumnType) -> bool:
    parts = text.strip().partition("/")[0].split(".")
    is_shortened = set(text.strip()) <= set("0123456789./") and len(parts) < 4
    if is_shortened or any(re.fullmatch("0[0-9]+", part) for part in parts):
        return False  # 10/8, or 010.1.2.3
    network_address(text, kind.name)
    return True


def _is_mac(text: str, kind: ColumnType) -> bool:
    try:
        mac_address(text, kind.name)
    except ValueError:
        if not re.fullmatch(r"(?i)[0-9a-f:.\s-]+", text):
            raise
        return False
    return True


def _is_interval(text: str, _: ColumnType) -> bool:
    if not re.search("[0-9]", text):
        if text.strip().lower() in ("infinity", "-infinity", "+infinity"):
            return False  # from Postgres 17 on
        raise ValueError
    try:
        interval_length(text)
    except ValueError:
        return False  # it has many forms
    return True


def _is_time_with_zone(text: str, _: ColumnType) -> bool:
    try:
        time_with_zone(text)
    except ValueError:
        return False  # it has many forms
    return True


def _is_bits(text: str, kind: ColumnType) -> bool:
    if text[:1] in ("x", "X"):
        if not re.fullmatch("[0-9a-fA-F]*", text[1:]):
            raise ValueError
        count = 4 * len(text[1:])
    else:
        digits = text.removeprefix("b").removeprefix("B") if text[:1] in ("b", "B") else text
        if not re.fullmatch("[01]*", digits):
            raise ValueError
        count = len(digits)
    size = kind.modifier[0] if kind.modifier else None
    if kind.name == "bit" and count != (size or 1):
        raise ValueError
    if kind.name == "bit varying" and size is not None and count > size:
        raise ValueError
    return True


def _is_known_array(text: str, element: ColumnType) -> bool:
    if text.lstrip()[:1] not in ("{", "[") or text.rstrip()[-1:] != "}":
        raise ValueError
    if _FLAT_ARRAY.fullmatch(text) is None:
        return False  # of several dimensions, or with bounds, or none
    inner = text.strip()[1:-1]
    known = [
        _is_known_element(quoted, bare, element)
        for quoted, bare in (
            re.findall(rf"(?s)(?:^|,){_ITEM}(?=,|$)", inner) if inner.strip() else ()
        )
    ]
    return all(known)


def _is_known_element(quoted: str, bare: str, element: ColumnType) -> bool:
    if bare.strip().lower() == "null":
        return True
    if not quoted and not bare.strip():
        return False  # "" is text, and nothing at all is an error
    text = re.sub(r"(?s)\\(.)", r"\1", quoted) if quoted else bare.strip()
    is_short = element.family in (Family.TEXT, Family.PADDED) and element.modifier
    # Blanks beyond the length are cut off.
    if is_short and len(text.rstrip(" ")) > element.modifier[0]:
        raise ValueError
    return _is_known(text, element)


_CHECKS: dict[str, Callable[[str, ColumnType], bool]] = {
    "json": _is_json,
    "jsonb": _is_json,
    "inet": _is_inet,
    "cidr": _is_inet,
    "time with time zone": _is_time_with_zone,
    "macaddr": _is_mac,
    "macaddr8": _is_mac,
    "interval": _is_interval,
    "bit": _is_bits,
    "bit varying": _is_bits,
}
