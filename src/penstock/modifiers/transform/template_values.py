"""Values of templates: how they print, what counts as true, and numbers."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

LONGEST = 1 << 20  # of what one function makes
_MOST_DIGITS = 1000
_SMALL, _LARGE = -4, 21  # exponents beyond which Go writes a float with one


def shown(value: Any) -> str:
    """A value as a template prints it; nil as nothing."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{' '.join(map(shown, value))}]"
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{shown(value[key])}' for key in sorted(value))}]"
    if isinstance(value, datetime):
        return _shown_moment(value)
    return shown_float(value) if isinstance(value, float) else str(value)


def _shown_moment(value: datetime) -> str:
    fraction = f".{value.microsecond:06d}".rstrip("0") if value.microsecond else ""
    zone = value.strftime("%z")
    name = "UTC" if zone == "+0000" else zone
    return f"{value.replace(microsecond=0, tzinfo=None).isoformat(' ')}{fraction} {zone} {name}"


def shown_float(value: float) -> str:
    """As Go prints a float64: the fewest digits, and an exponent only where it is far from 1."""
    digits = Decimal(repr(value))
    if value == 0:
        return "-0" if str(value).startswith("-") else "0"
    if _SMALL <= digits.adjusted() < _LARGE:
        return f"{digits.normalize():f}"
    mantissa, _, exponent = f"{digits.normalize():e}".partition("e")
    return f"{mantissa}e{exponent[0]}{exponent[1:]:0>2}"


def is_true(value: Any) -> bool:
    """As Go has it: false, 0, nil and what is empty are not."""
    return bool(value)


def number(value: Any) -> int | Decimal:
    """A number, or text that is one."""
    if isinstance(value, bool) or value is None:
        raise ValueError("a number is wanted")
    if isinstance(value, float) and value.is_integer():
        return int(value)
    try:
        found = value if isinstance(value, int | Decimal) else Decimal(str(value))
    except ArithmeticError:
        raise ValueError("a number is wanted") from None
    if isinstance(found, int):
        return found
    if not found.is_finite() or abs(found.adjusted()) > _MOST_DIGITS:
        raise ValueError("a number of this size cannot be computed with")
    return int(found) if found == found.to_integral_value() and "." not in str(value) else found


def whole_number(value: Any) -> int:
    """The same, cut to what stands before the point."""
    return int(number(value))


def listed(value: Any) -> list[Any]:
    """A list; nothing else is one."""
    if not isinstance(value, list):
        raise TypeError
    return value
