"""Dates, times and timestamps as Postgres prints them (DateStyle ISO) -> Arrow. All rows at once; pure.

Arrow reads years of four digits. What else Postgres prints is rare and read one by one: years BC, which are
counted as astronomers do (1 BC is the year 0, in the Gregorian calendar throughout), years from 10000 on,
offsets with seconds. Infinities are no point in time, and do not fit.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.changes.cells import Index

_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
_OFFSET = r"[+-][0-9]{2}(:[0-9]{2})?"
_ANY = re.compile(
    r"(?P<year>[0-9]{4,7})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"
    r"(?: (?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]{1,6}))?)?"
    r"(?P<sign>[+-])?(?:(?P<off_hour>[0-9]{2})(?::(?P<off_minute>[0-9]{2})(?::(?P<off_second>[0-9]{2}))?)?)?"
    r"(?P<era> BC)?"
)
_MICROSECONDS_PER_DAY = 86_400_000_000
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1

_NONE = np.zeros(0, np.int64)


def to_dates(values: pa.Array) -> tuple[pa.Array, Index]:
    """date32, and the rows that do not fit."""
    return _converted(
        values, pa.date32(), f"^{_DATE}$", lambda text: _microseconds(text, days=True)
    )


def to_timestamps(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Index]:
    """timestamp, with a zone or without, and the rows that do not fit."""
    offset = _OFFSET if kind.tz is not None else ""
    return _converted(values, kind, f"^{_DATE} {_CLOCK}{offset}$", _microseconds)


def to_times(values: pa.Array) -> tuple[pa.Array, Index]:
    """time64, and the rows that do not fit: 24:00:00, which is a time in Postgres."""
    # Arrow reads timestamps, but no times.
    dated = pc.binary_join_element_wise(b"1970-01-01 ", values, b"")
    stamps, unfit = _converted(dated, pa.timestamp("us"), f"^{_DATE} {_CLOCK}$", _microseconds)
    return stamps.cast(pa.time64("us")), unfit


def _converted(
    values: pa.Array, kind: pa.DataType, usual: str, read: Callable[[str], int | None]
) -> tuple[pa.Array, Index]:
    try:
        return values.cast(pa.string()).cast(kind), _NONE
    except pa.ArrowInvalid:
        pass  # not all are of the usual form
    is_usual = np.asarray(pc.fill_null(pc.match_substring_regex(values, pattern=usual), False))
    width = np.int32 if kind == pa.date32() else np.int64
    numbers = np.zeros(len(values), np.int64)
    fits = np.zeros(len(values), np.bool_)
    try:
        plain = values.filter(pa.array(is_usual)).cast(pa.string()).cast(kind)
        numbers[is_usual] = np.asarray(plain.view(pa.int32() if width is np.int32 else pa.int64()))
        fits[is_usual] = True
    except pa.ArrowInvalid:
        is_usual[:] = False  # such as February 30, of a column that was computed: all one by one
    is_infinite = np.asarray(
        pc.fill_null(pc.is_in(values, pa.array([b"infinity", b"-infinity"], values.type)), False)
    )
    rest = np.flatnonzero(np.asarray(values.is_valid()) & ~is_usual & ~is_infinite)
    for row in rest.tolist():
        number = read(values[row].as_py().decode("ascii", "replace"))
        if number is not None:
            numbers[row], fits[row] = number, True
    is_valid = np.asarray(values.is_valid())
    array = pa.array(numbers.astype(width), mask=~fits).view(kind)
    return array, np.flatnonzero(is_valid & ~fits)


def _microseconds(text: str, *, days: bool = False) -> int | None:
    """Microseconds, or days, since 1970; None where it is none or out of range."""
    match = _ANY.fullmatch(text)
    if match is None:
        return None
    found = {
        name: int(part) for name, part in match.groupdict(default="0").items() if part.isdigit()
    }
    year = 1 - found["year"] if match["era"] else found["year"]
    day = _days(year, found["month"], found["day"])
    if day is None or found["hour"] > 23 or found["minute"] > 59 or found["second"] > 59:
        return None
    if days:
        return day if match["hour"] is None and abs(day) < 2**31 else None
    clock = (found["hour"] * 60 + found["minute"]) * 60 + found["second"]
    offset = (found["off_hour"] * 60 + found["off_minute"]) * 60 + found["off_second"]
    clock += offset if match["sign"] == "-" else -offset
    fraction = int((match["fraction"] or "0").ljust(6, "0"))
    number = day * _MICROSECONDS_PER_DAY + clock * 1_000_000 + fraction
    return number if _SMALLEST <= number <= _LARGEST else None


def _days(year: int, month: int, day: int) -> int | None:
    """Days since 1970 in the Gregorian calendar: numpy knows years before 1 and after 9999."""
    if not 1 <= month <= 12 or day < 1:
        return None
    first = np.datetime64(f"{year:+05d}-{month:02d}", "M").astype("datetime64[D]")
    following = (first.astype("datetime64[M]") + 1).astype("datetime64[D]")
    found = first + (day - 1)
    return int(found.astype(np.int64)) if found < following else None
