"""Whether a text of the file can be a value of a column's type, as Postgres reads it: yes, no, or nobody knows here."""

from __future__ import annotations

import ipaddress
import json
import re
from decimal import MAX_PREC, ROUND_HALF_UP, Context, Decimal
from typing import TYPE_CHECKING

from penstock.errors import RuleUnfit
from penstock.modifiers.filter.comparison import article, is_read, read_value
from penstock.sql.column_types import ColumnType, Family

if TYPE_CHECKING:
    from collections.abc import Callable

_EXACT = Context(prec=MAX_PREC, rounding=ROUND_HALF_UP)
_MOST_DIGITS = 1000  # of a numeric with a precision
_UNITS = "years?|mons?|months?|weeks?|days?|hours?|mins?|minutes?|secs?|seconds?|y|w|d|h|m|s"
_INTERVAL = re.compile(
    rf"\s*(?:[+-]?\d+(?:\.\d+)?\s*(?:{_UNITS})(?:\s+|$))*(?:[+-]?\d{{1,9}}:[0-5]?\d(?::[0-5]?\d(?:\.\d+)?)?)?\s*",
    re.IGNORECASE,
)
_MAC = re.compile(r"(?i)[0-9a-f]{2}([:-])(?:[0-9a-f]{2}\1){4}[0-9a-f]{2}|[0-9a-f]{12}")
_MAC_8 = re.compile(r"(?i)[0-9a-f]{2}([:-])(?:[0-9a-f]{2}\1){6}[0-9a-f]{2}|[0-9a-f]{16}")
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
    if is_read(kind):
        read_value(text, kind)
        if kind.family is Family.NUMERIC:
            _check_precision(text, kind)
        return True
    if (element := kind.element) is not None:
        return _is_known_array(text, element)
    name = kind.name.partition(" ")[0] if kind.name.startswith("interval") else kind.name
    check = _CHECKS.get(name)
    return check(text, kind) if check is not None else False


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
    address, slash, bits = text.strip().partition("/")
    if set(text.strip()) <= set("0123456789./") and address.count(".") < 3:
        return False  # shortened: 10/8
    if "%" in text or (slash and not re.fullmatch("0|[1-9][0-9]{0,2}", bits)):
        raise ValueError
    if any(re.fullmatch("0[0-9]+", part) for part in address.split(".")):
        return False
    if kind.name == "cidr":
        ipaddress.ip_network(text.strip())
    else:
        ipaddress.ip_interface(text.strip())
    return True


def _is_mac(text: str, kind: ColumnType) -> bool:
    known = (_MAC, _MAC_8) if kind.name == "macaddr8" else (_MAC,)
    if any(each.fullmatch(text.strip()) for each in known):
        return True
    if not re.fullmatch(r"(?i)[0-9a-f:.\s-]+", text):
        raise ValueError
    return False


def _is_interval(text: str, kind: ColumnType) -> bool:
    if not re.search("[0-9]", text):
        if text.strip().lower() in ("infinity", "-infinity", "+infinity"):
            return False  # from Postgres 17 on
        raise ValueError
    # One of certain fields alone, interval day to second, cuts the others off.
    return _INTERVAL.fullmatch(text) is not None and kind.name == "interval"


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
    "macaddr": _is_mac,
    "macaddr8": _is_mac,
    "interval": _is_interval,
    "bit": _is_bits,
    "bit varying": _is_bits,
}
