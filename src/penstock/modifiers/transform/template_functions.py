"""What a template may call: Go's own comparisons, common string functions of sprig's, and masking.

None of them draws, reads a clock, a file or the environment: a template gives the same for the same row.
Each fails with a ValueError that shows no value.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic_core import PydanticCustomError

from penstock.modifiers.transform.masks import Masking, expanded
from penstock.modifiers.transform.pgtypes import type_by_oid
from penstock.modifiers.transform.transformer import Batch

if TYPE_CHECKING:
    from collections.abc import Callable

_TEXT_OID = 25
_LONGEST = 1 << 20  # of `repeat`
_MOST_DIGITS = 1000


def shown(value: Any) -> str:
    """A value as a template prints it; nil as nothing."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{' '.join(map(shown, value))}]"
    return str(value)


def is_true(value: Any) -> bool:
    """As Go has it: false, 0, nil and what is empty are not."""
    return bool(value)


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


def _number(value: Any) -> int | Decimal:
    if isinstance(value, bool) or value is None:
        raise ValueError("a number is wanted")
    try:
        number = value if isinstance(value, int | Decimal) else Decimal(str(value))
    except ArithmeticError:
        raise ValueError("a number is wanted") from None
    if isinstance(number, int):
        return number
    if not number.is_finite() or abs(number.adjusted()) > _MOST_DIGITS:
        raise ValueError("a number of this size cannot be computed with")
    return int(number) if number == number.to_integral_value() and "." not in str(value) else number


def _arithmetic(compute: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def function(first: Any, *others: Any) -> Any:
        result = _number(first)
        for other in others:
            try:
                result = compute(result, _number(other))
            except ArithmeticError:
                raise ValueError("division by zero") from None
        return result

    return function


def _substr(begin: Any, end: Any, text: Any) -> str:
    whole, start, stop = shown(text), int(_number(begin)), int(_number(end))
    return whole[max(start, 0) : stop if 0 <= stop <= len(whole) else len(whole)]


def _trunc(count: Any, text: Any) -> str:
    number, whole = int(_number(count)), shown(text)
    return whole[:number] if number >= 0 else whole[number:]


def _repeat(count: Any, text: Any) -> str:
    number = int(_number(count))
    if number * len(shown(text)) > _LONGEST:
        raise ValueError("repeat gives more than a megabyte")
    return shown(text) * max(number, 0)


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


def _printf(layout: Any, *values: Any) -> str:
    waiting = list(values)

    def one(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        if not waiting:
            raise ValueError("printf has fewer values than places")
        value = waiting.pop(0)
        if match[2] == "d":
            return f"%{match[1]}d" % int(_number(value))
        if match[2] == "f":
            return f"%{match[1]}f" % float(_number(value))
        text = f'"{shown(value)}"' if match[2] == "q" else shown(value)
        return f"%{match[1]}s" % text

    made = re.sub(r"%(-?[0-9]{0,4}(?:\.[0-9]{1,3})?)([sdvqf])|%%", one, shown(layout))
    if waiting:
        raise ValueError("printf has more values than places")
    return made


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


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _split_list(separator: Any, text: Any) -> list[str]:
    whole, between = shown(text), shown(separator)
    return whole.split(between) if between else list(whole)


def _join(separator: Any, value: Any) -> str:
    items = value if isinstance(value, list) else [value]
    if len(items) * len(shown(separator)) > _LONGEST:
        raise ValueError("join gives more than a megabyte")
    return shown(separator).join(shown(one) for one in items if one is not None)


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
    "print": lambda *values: "".join(map(shown, values)),
    "printf": _printf,
    "upper": lambda text: shown(text).upper(),
    "lower": lambda text: shown(text).lower(),
    "title": lambda text: shown(text).title(),
    "trim": lambda text: shown(text).strip(),
    "trimAll": lambda cut, text: shown(text).strip(shown(cut)),
    "trimPrefix": lambda cut, text: shown(text).removeprefix(shown(cut)),
    "trimSuffix": lambda cut, text: shown(text).removesuffix(shown(cut)),
    "trunc": _trunc,
    "substr": _substr,
    "replace": lambda old, new, text: shown(text).replace(shown(old), shown(new)),
    "repeat": _repeat,
    "nospace": lambda text: "".join(shown(text).split()),
    "contains": lambda part, text: shown(part) in shown(text),
    "hasPrefix": lambda part, text: shown(text).startswith(shown(part)),
    "hasSuffix": lambda part, text: shown(text).endswith(shown(part)),
    "cat": lambda *values: " ".join(shown(value) for value in values if value is not None),
    "quote": lambda text: '"' + shown(text).replace("\\", "\\\\").replace('"', '\\"') + '"',
    "squote": lambda text: f"'{shown(text)}'",
    "default": _default,
    "coalesce": lambda *values: next(filter(is_true, values), None),
    "empty": lambda value: not is_true(value),
    "ternary": lambda yes, no, test: yes if is_true(test) else no,
    "int": lambda value: int(_number(value)),
    "toString": shown,
    "add": _arithmetic(lambda a, b: a + b),
    "sub": _arithmetic(lambda a, b: a - b),
    "mul": _arithmetic(lambda a, b: a * b),
    "div": _arithmetic(lambda a, b: a // b),
    "mod": _arithmetic(lambda a, b: a % b),
    "max": _arithmetic(max),
    "min": _arithmetic(min),
    "regexMatch": _regex_match,
    "regexReplaceAll": _regex_replace_all,
    "splitList": _split_list,
    "first": lambda value: next(iter(_listed(value)), None),
    "last": lambda value: next(reversed(_listed(value)), None),
    "join": _join,
    "b64enc": lambda text: base64.b64encode(shown(text).encode()).decode(),
    "b64dec": _b64dec,
    "sha1sum": lambda text: hashlib.sha1(shown(text).encode(), usedforsecurity=False).hexdigest(),
    "sha256sum": lambda text: hashlib.sha256(shown(text).encode()).hexdigest(),
    "masking": masked,
}
