"""What a template may call: Go's own comparisons, common string functions of sprig's, and masking.

None of them draws, reads a clock, a file or the environment: a template gives the same for the same row.
Each fails with a ValueError that shows no value.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
import re
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic_core import PydanticCustomError

from penstock.modifiers.transform.masks import Masking, expanded
from penstock.modifiers.transform.pgtypes import type_by_oid
from penstock.modifiers.transform.template_dates import date, to_date, unix_epoch
from penstock.modifiers.transform.template_values import (
    LONGEST,
    is_true,
    listed,
    number,
    shown,
    shown_float,
    whole_number,
)
from penstock.modifiers.transform.template_words import (
    abbrev,
    camelcase,
    has,
    indent,
    index,
    initials,
    kebabcase,
    printed,
    quote,
    quoted,
    regex_find,
    regex_find_all,
    slice_of,
    snakecase,
    split,
    squote,
    swapcase,
    title,
    to_json,
    to_raw_json,
    uniq,
    untitle,
    wrap,
)
from penstock.modifiers.transform.transformer import Batch

if TYPE_CHECKING:
    from collections.abc import Callable

_TEXT_OID = 25
_MOST_DIGITS = 1000
_SIXTEEN = Decimal("1e-16")


def _comparable(a: Any, b: Any) -> None:
    def sort(one: Any) -> str:
        if isinstance(one, bool):
            return "a boolean"
        if isinstance(one, list):
            raise ValueError("incompatible types for comparison: a list has no order")  # noqa: TRY004
        return "a number" if isinstance(one, int | float | Decimal) else "text"

    if a is not None and b is not None and sort(a) != sort(b):
        raise ValueError(f"incompatible types for comparison: {sort(a)} and {sort(b)}")


def _equal(a: Any, *others: Any) -> bool:
    for other in others:
        _comparable(a, other)
    return any(a == other for other in others)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def function(a: Any, b: Any) -> bool:
        _comparable(a, b)
        if a is None or b is None:
            raise ValueError("incompatible types for comparison: nil has no order")
        return compare(a, b)

    return function


def _quotient(a: int | Decimal, b: int | Decimal) -> int | Decimal:
    """Cut towards 0, as Go divides."""
    if isinstance(a, int) and isinstance(b, int):
        whole = abs(a) // abs(b)
        return whole if (a < 0) == (b < 0) else -whole
    return a // b  # of decimals Python cuts, too


def _remainder(a: int | Decimal, b: int | Decimal) -> int | Decimal:
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) % abs(b) * (-1 if a < 0 else 1)
    return a % b


def _float(value: Any) -> float:
    return float(number(value))


def _in_decimals(compute: Callable[[Decimal, Decimal], Decimal]) -> Callable[..., float]:
    """Of floats, as sprig's addf and so on: exact but for a quotient, which has 16 decimals."""

    def function(first: Any, *others: Any) -> float:
        with localcontext(prec=_MOST_DIGITS, rounding=ROUND_HALF_UP):
            result = Decimal(repr(_float(first)))
            for other in others:
                try:
                    result = compute(result, Decimal(repr(_float(other))))
                except ArithmeticError:
                    raise ValueError("division by zero") from None
            return float(result)

    return function


def _round(value: Any, places: Any, up_from: Any = 0.5) -> float:
    power = 10.0 ** whole_number(places)
    moved = _float(value) * power
    # As sprig has it: of a negative number the part behind the point is below any limit.
    is_up = math.modf(moved)[0] >= _float(up_from)
    return float(math.ceil(moved) if is_up else math.floor(moved)) / power


def _atoi(text: Any) -> int:
    if not re.fullmatch("[+-]?[0-9]{1,19}", shown(text)):
        raise ValueError("atoi: a whole number is wanted")
    return int(shown(text))


def _arithmetic(compute: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def function(first: Any, *others: Any) -> Any:
        result = number(first)
        for other in others:
            try:
                result = compute(result, number(other))
            except ArithmeticError:
                raise ValueError("division by zero") from None
        return result

    return function


def _substr(begin: Any, end: Any, text: Any) -> str:
    whole, start, stop = shown(text), int(number(begin)), int(number(end))
    return whole[max(start, 0) : stop if 0 <= stop <= len(whole) else len(whole)]


def _trunc(count: Any, text: Any) -> str:
    size, whole = int(number(count)), shown(text)
    return whole[:size] if size >= 0 else whole[size:]


def _repeat(count: Any, text: Any) -> str:
    times = int(number(count))
    if times * len(shown(text)) > LONGEST:
        raise ValueError("repeat gives more than a megabyte")
    return shown(text) * max(times, 0)


def _b64dec(text: Any) -> str:
    try:
        return base64.b64decode(shown(text), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise ValueError("b64dec: it is not base64 of text") from None


def masked(kind: Any, value: Any) -> str:
    """One value through `masking`."""
    try:
        transformer = Masking.model_validate({"type": shown(kind)})
    except ValueError:
        raise ValueError("masking: there is no such type") from None
    batch = Batch(pa.array([shown(value).encode()], pa.binary()), type_by_oid(_TEXT_OID))
    return str(transformer.apply(batch).cast(pa.string())[0].as_py())


_PLACE = re.compile(r"%([-+# 0]*)([0-9]{0,4})(?:\.([0-9]{0,3}))?([a-zA-Z%])")


def _printf(layout: Any, *values: Any) -> str:
    waiting = list(values)

    def one(match: re.Match[str]) -> str:
        if match[4] == "%":
            return "%"
        if not waiting:
            raise ValueError("printf has fewer values than places")
        return _formatted(match, waiting.pop(0))

    made = _PLACE.sub(one, shown(layout))
    if waiting:
        raise ValueError("printf has more values than places")
    return made


def _formatted(match: re.Match[str], value: Any) -> str:
    flags, width, precision, verb = match.groups()
    exact = "" if precision is None else f".{precision or 0}"
    if verb == "d":
        return f"%{flags}{width}{exact}d" % int(number(value))
    if verb in "fFeEgG" and (exact or verb not in "gG"):
        return f"%{flags}{width}{exact}{verb}" % _float(value)
    text = _written(verb, value, precision, has_mark="#" in flags)
    size = int(width or 0)
    if "-" in flags:
        return text.ljust(size)
    return text.zfill(size) if "0" in flags and verb in "xXobgG" else text.rjust(size)


def _written(verb: str, value: Any, precision: str | None, *, has_mark: bool) -> str:
    """A value as Go writes it, and Python's own formatting does not."""
    if verb in "xXob":
        return _based(value, verb, has_mark=has_mark)
    if verb in "gG":
        return shown_float(_float(value))
    if verb == "s":
        return shown(value)[: int(precision)] if precision else shown(value)
    if verb == "q":
        return quoted(shown(value))
    if verb in "vt":
        return shown(value)
    if verb == "c":
        return chr(int(number(value)))
    raise ValueError(f"printf does not know %{verb}")


def _based(value: Any, verb: str, *, has_mark: bool) -> str:
    """A whole number to another base, or the bytes of a text."""
    if isinstance(value, str) and verb in "xX":
        text, sign = value.encode().hex(), ""
    else:
        whole = int(number(value))
        text, sign = format(abs(whole), verb.lower()), "-" if whole < 0 else ""
    mark = {"x": "0x", "X": "0X", "o": "0", "b": "0b"}[verb] if has_mark else ""
    return sign + mark + (text.upper() if verb == "X" else text)


# RE2's expressions, as everywhere: their time is bounded by the text, whatever it is.
def _regex_match(pattern: Any, text: Any) -> bool:
    try:
        found = pc.match_substring_regex(pa.array([shown(text)]), pattern=shown(pattern))
    except pa.ArrowInvalid:
        raise ValueError("regexMatch: the pattern is none of RE2's") from None
    return bool(found[0].as_py())


def _regex_replace_all(pattern: Any, text: Any, replacement: Any) -> str:
    try:
        wanted = expanded(shown(pattern), shown(replacement))
        made = pc.replace_substring_regex(
            pa.array([shown(text)]), pattern=shown(pattern), replacement=wanted
        )
    except PydanticCustomError:
        raise ValueError("regexReplaceAll: the pattern lacks a group that is named") from None
    except pa.ArrowInvalid:
        raise ValueError("regexReplaceAll: the pattern is none of RE2's") from None
    return str(made[0].as_py())


def _split_list(separator: Any, text: Any) -> list[str]:
    whole, between = shown(text), shown(separator)
    return whole.split(between) if between else list(whole)


def _join(separator: Any, value: Any) -> str:
    items = value if isinstance(value, list) else [value]
    if len(items) * len(shown(separator)) > LONGEST:
        raise ValueError("join gives more than a megabyte")
    return shown(separator).join(shown(one) for one in items if one is not None)


def _replace(old: Any, new: Any, text: Any) -> str:
    before, after, whole = shown(old), shown(new), shown(text)
    if whole.count(before) * len(after) > LONGEST:
        raise ValueError("replace gives more than a megabyte")
    return whole.replace(before, after)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _default(fallback: Any, value: Any = None) -> Any:
    return value if is_true(value) else fallback


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "eq": _equal,
    "ne": lambda a, b: not _equal(a, b),
    "lt": _ordered(lambda a, b: bool(a < b)),
    "le": _ordered(lambda a, b: bool(a <= b)),
    "gt": _ordered(lambda a, b: bool(a > b)),
    "ge": _ordered(lambda a, b: bool(a >= b)),
    "not": lambda value: not is_true(value),
    "len": lambda value: len(value if isinstance(value, list) else shown(value)),
    "print": lambda *values: printed(values),
    "println": lambda *values: " ".join(map(shown, values)) + "\n",
    "printf": _printf,
    "upper": lambda text: shown(text).upper(),
    "lower": lambda text: shown(text).lower(),
    "title": title,
    "untitle": untitle,
    "swapcase": swapcase,
    "snakecase": snakecase,
    "kebabcase": kebabcase,
    "camelcase": camelcase,
    "initials": initials,
    "abbrev": abbrev,
    "wrap": wrap,
    "indent": indent,
    "nindent": lambda spaces, text: "\n" + indent(spaces, text),
    "plural": lambda one, many, count: one if number(count) == 1 else many,
    "trim": lambda text: shown(text).strip(),
    "trimAll": lambda cut, text: shown(text).strip(shown(cut)),
    "trimPrefix": lambda cut, text: shown(text).removeprefix(shown(cut)),
    "trimSuffix": lambda cut, text: shown(text).removesuffix(shown(cut)),
    "trunc": _trunc,
    "substr": _substr,
    "replace": _replace,
    "repeat": _repeat,
    "nospace": lambda text: "".join(shown(text).split()),
    "contains": lambda part, text: shown(part) in shown(text),
    "hasPrefix": lambda part, text: shown(text).startswith(shown(part)),
    "hasSuffix": lambda part, text: shown(text).endswith(shown(part)),
    "cat": lambda *values: " ".join(shown(value) for value in values if value is not None),
    "quote": quote,
    "squote": squote,
    "default": _default,
    "coalesce": lambda *values: next(filter(is_true, values), None),
    "empty": lambda value: not is_true(value),
    "ternary": lambda yes, no, test: yes if is_true(test) else no,
    "int": lambda value: int(number(value)),
    "toString": shown,
    "add": _arithmetic(lambda a, b: a + b),
    "sub": _arithmetic(lambda a, b: a - b),
    "mul": _arithmetic(lambda a, b: a * b),
    "div": _arithmetic(_quotient),
    "mod": _arithmetic(_remainder),
    "add1": lambda value: number(value) + 1,
    "atoi": _atoi,
    "int64": lambda value: int(number(value)),
    "float64": _float,
    "floor": lambda value: float(math.floor(_float(value))),
    "ceil": lambda value: float(math.ceil(_float(value))),
    "round": _round,
    "addf": _in_decimals(lambda a, b: a + b),
    "subf": _in_decimals(lambda a, b: a - b),
    "mulf": _in_decimals(lambda a, b: a * b),
    "divf": _in_decimals(lambda a, b: (a / b).quantize(_SIXTEEN)),
    "isInt": _is_number,
    "isFloat": lambda value: isinstance(value, float | Decimal),
    "isString": lambda value: isinstance(value, str),
    "isBool": lambda value: isinstance(value, bool),
    "isNil": lambda value: value is None,
    "max": _arithmetic(max),
    "min": _arithmetic(min),
    "regexMatch": _regex_match,
    "regexReplaceAll": _regex_replace_all,
    "regexFind": regex_find,
    "regexFindAll": regex_find_all,
    "splitList": _split_list,
    "split": split,
    "list": lambda *values: list(values),
    "index": index,
    "slice": slice_of,
    "uniq": uniq,
    "has": has,
    "rest": lambda value: listed(value)[1:],
    "initial": lambda value: listed(value)[:-1],
    "reverse": lambda value: listed(value)[::-1],
    "append": lambda value, item: [*listed(value), item],
    "prepend": lambda value, item: [item, *listed(value)],
    "compact": lambda value: [item for item in listed(value) if is_true(item)],
    "sortAlpha": lambda value: sorted(map(shown, listed(value))),
    "first": lambda value: next(iter(listed(value)), None),
    "last": lambda value: next(reversed(listed(value)), None),
    "join": _join,
    "b64enc": lambda text: base64.b64encode(shown(text).encode()).decode(),
    "b64dec": _b64dec,
    "sha1sum": lambda text: hashlib.sha1(shown(text).encode(), usedforsecurity=False).hexdigest(),
    "sha256sum": lambda text: hashlib.sha256(shown(text).encode()).hexdigest(),
    "sha512sum": lambda text: hashlib.sha512(shown(text).encode()).hexdigest(),
    "toJson": to_json,
    "toRawJson": to_raw_json,
    "toDate": to_date,
    "date": date,
    "unixEpoch": unix_epoch,
    "masking": masked,
}
