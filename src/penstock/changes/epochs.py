"""Postgres's dates, times and intervals -> numbers, and times with a zone -> ISO 8601 in UTC. All rows at once; pure.

The numbers are Debezium's: days since 1970, and milli- or microseconds, by the precision that the column declares. They
hold all of Postgres's values but timestamps after the year 294247, which `unfit` names:

    infinity, -infinity    as a date 2147483647 and -2147483648, which no date has; as a timestamp what the JDBC driver has
    24:00:00               the microseconds of a day
    a month in an interval 365.25 / 12 days
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.typedtimes import to_dates, to_times, to_timestamps

if TYPE_CHECKING:
    from penstock.changes.cells import Mask

DATE, TIME, TIMESTAMP, TIMESTAMPTZ, INTERVAL, TIMETZ = 1082, 1083, 1114, 1184, 1186, 1266

_DATE_INFINITIES = {b"infinity": 2**31 - 1, b"-infinity": -(2**31)}
_TIMESTAMP_INFINITIES = {
    b"infinity": 9_223_372_036_825_200_000,
    b"-infinity": -9_223_372_036_832_400_000,
}
_MILLISECONDS_UP_TO = 3
_MOST_PLACES = 6
_DAY = 86_400_000_000
_MONTH = 2_629_800_000_000

# Parts with signs of their own: `-1 years -2 mons +3 days -04:05:06.7`.
_INTERVAL = (
    r"^(?:(?P<years>[+-]?\d+) years? ?)?(?:(?P<months>[+-]?\d+) mons? ?)?(?:(?P<days>[+-]?\d+) days? ?)?"
    r"(?:(?P<sign>[+-]?)(?P<hours>\d+):(?P<minutes>\d\d):(?P<seconds>\d\d)(?:\.(?P<fraction>\d+))?)?$"
)
_TIMETZ = re.compile(
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?P<fraction>\.\d+)?"
    r"(?P<sign>[+-])(?P<off_hour>\d\d)(?::(?P<off_minute>\d\d)(?::(?P<off_second>\d\d))?)?"
)
_USUAL_UTC = r"^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8}(\.[0-9]{1,6})?\+00$"
_YEARS = re.compile(r"(?P<year>\d+)(?P<rest>-\d\d-\d\d[ T].*?)(?P<era> BC)?")


@dataclass(frozen=True)
class Epochs:
    """The numbers, null where the column is; and which values have none."""

    values: pa.Array  # int64
    unfit: Mask


def precision_of(type_modifier: int) -> int:
    """How many digits a column's seconds have."""
    return _MOST_PLACES if type_modifier < 0 else type_modifier


def is_in_milliseconds(type_oid: int, type_modifier: int) -> bool:
    """Whether a time or timestamp of that type is counted in milliseconds."""
    return type_oid in (TIME, TIMESTAMP) and precision_of(type_modifier) <= _MILLISECONDS_UP_TO


def epochs(type_oid: int, type_modifier: int, values: pa.Array) -> Epochs:
    """A column of dates, times, timestamps or intervals as numbers."""
    if type_oid == DATE:
        dates, unfit = to_dates(values)
        return _with_special(
            values, dates.view(pa.int32()).cast(pa.int64()), unfit, _DATE_INFINITIES
        )
    if type_oid == INTERVAL:
        return _intervals(values)
    if type_oid == TIME:
        times, unfit = to_times(values)
        found = _with_special(values, times.view(pa.int64()), unfit, {b"24:00:00": _DAY})
    else:
        stamps, unfit = to_timestamps(values, pa.timestamp("us"))
        found = _with_special(values, stamps.view(pa.int64()), unfit, _TIMESTAMP_INFINITIES)
    if not is_in_milliseconds(type_oid, type_modifier):
        return found
    is_special = pc.is_in(values, pa.array(list(_TIMESTAMP_INFINITIES), values.type))
    numbers = np.asarray(pc.fill_null(found.values, 0))
    shorter = pa.array(numbers // 1000, mask=~np.asarray(found.values.is_valid()))
    return Epochs(pc.if_else(is_special, found.values, shorter), found.unfit)


def _with_special(
    values: pa.Array, numbers: pa.Array, unfit: np.ndarray, special: dict[bytes, int]
) -> Epochs:
    """The numbers, with those of values that Arrow has no form for."""
    is_unfit = np.zeros(len(values), np.bool_)
    is_unfit[unfit] = True
    if len(unfit):
        for text, number in special.items():
            is_it = pc.fill_null(pc.equal(values, pa.scalar(text, values.type)), False)
            numbers = pc.if_else(is_it, pa.scalar(number, pa.int64()), numbers)
            is_unfit &= ~np.asarray(is_it)
    return Epochs(numbers, is_unfit)


def _intervals(values: pa.Array) -> Epochs:
    parts = pc.extract_regex(values.cast(pa.string()), pattern=_INTERVAL)
    is_valid = np.asarray(values.is_valid())
    is_unfit = is_valid & ~np.asarray(parts.is_valid())
    clock = sum(
        _whole(parts, name) * size
        for name, size in (("hours", 3600_000_000), ("minutes", 60_000_000), ("seconds", 1_000_000))
    )
    fraction = pc.utf8_rpad(pc.fill_null(pc.struct_field(parts, "fraction"), ""), 6, "0")
    clock = clock + np.asarray(fraction.cast(pa.int64()))
    is_negative = pc.fill_null(pc.equal(pc.struct_field(parts, "sign"), "-"), False)
    clock = np.where(np.asarray(is_negative), -clock, clock)
    months = _whole(parts, "years") * 12 + _whole(parts, "months")
    days = _whole(parts, "days")
    # Approximately, to see what 64 bits do not hold: 178 million years of months.
    about = months.astype(np.float64) * _MONTH + days.astype(np.float64) * _DAY + clock
    is_unfit |= np.abs(about) >= 2.0**63
    with np.errstate(over="ignore"):
        total = months * _MONTH + days * _DAY + clock
    return Epochs(pa.array(total, mask=~is_valid | is_unfit), is_unfit)


def _whole(parts: pa.Array, name: str) -> np.ndarray:
    text = pc.fill_null(pc.struct_field(parts, name), "")
    # Arrow reads no plus sign.
    text = pc.replace_substring(text, "+", "")
    return np.asarray(pc.if_else(pc.equal(text, ""), "0", text).cast(pa.int64())).astype(np.int64)


def zoned_texts(type_oid: int, type_modifier: int, values: pa.Array) -> pa.Array:
    """Timestamps or times with a zone, as ISO 8601 in UTC."""
    if type_oid == TIMETZ:
        return utc_clock_texts(values)
    return utc_texts(type_modifier, values)


def utc_texts(type_modifier: int, values: pa.Array) -> pa.Array:
    """Timestamps with a zone, as Postgres prints them in UTC, as ISO 8601 with Z; infinities stay.

    The seconds have as many digits as the column declares.
    """
    width = precision_of(type_modifier)
    is_usual = pc.match_substring_regex(values, pattern=_USUAL_UTC)
    if pc.all(is_usual).as_py() is not False:
        return _usual_utc(values, width)
    made = _usual_utc(
        pc.if_else(is_usual, values, pa.scalar(b"1970-01-01 00:00:00+00", values.type)), width
    )
    rest = np.flatnonzero(np.asarray(pc.fill_null(pc.invert(is_usual), False)))
    spelled = pa.array([_spelled(values[int(row)].as_py(), width) for row in rest], pa.binary())
    mask = np.zeros(len(values), np.bool_)
    mask[rest] = True
    places = np.cumsum(mask) - 1
    return pc.if_else(pa.array(mask), spelled.take(pa.array(np.maximum(places, 0))), made)


def _usual_utc(values: pa.Array, width: int) -> pa.Array:
    """`2020-01-02 03:04:05[.6]+00`."""
    body = pc.binary_slice(values, 0, -3)
    divided = pc.replace_substring(body, pattern=b" ", replacement=b"T", max_replacements=1)
    if width == 0:
        return _ended(divided)
    padded = pc.utf8_rpad(
        pc.if_else(
            pc.equal(pc.binary_length(divided), 19),
            pc.binary_join_element_wise(
                divided, pa.scalar(b".", divided.type), pa.scalar(b"", divided.type)
            ),
            divided,
        ).cast(pa.string()),
        20 + width,
        "0",
    )
    return _ended(padded.cast(pa.binary()))


def _ended(values: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(
        values.cast(pa.binary()), pa.scalar(b"Z", pa.binary()), pa.scalar(b"", pa.binary())
    )


def _spelled(value: bytes, width: int) -> bytes:
    """Rare ones: years of five digits and BC. Infinities, and what is no timestamp, stay."""
    text = value.decode("utf-8", "surrogateescape")
    match = _YEARS.fullmatch(text)
    if match is None or not match["rest"].endswith("+00"):
        return value
    number = 1 - int(match["year"]) if match["era"] else int(match["year"])
    # As Java prints years: four digits at least, a sign where there are more.
    year = f"{number:04d}" if 0 <= number <= 9999 else f"{number:+05d}"
    day, _, clock = match["rest"].removesuffix("+00").partition(" ")
    seconds, _, fraction = clock.partition(".")
    digits = f".{fraction.ljust(width, '0')}" if width else ""
    return f"{year}{day}T{seconds}{digits}Z".encode()


def utc_clock_texts(values: pa.Array) -> pa.Array:
    """Times with a zone as `HH:MM:SS[.ffffff]Z`, at UTC."""
    # 24:00:00 is said to be midnight, whatever its offset, as Java reads it.
    at_utc = pc.match_substring_regex(values, pattern=r"^([01][0-9]|2[0-3]):.*\+00$")
    if pc.all(at_utc).as_py() is not False:
        return _ended(pc.binary_slice(values, 0, -3))
    # Their offset is part of the value: each may have another.
    encoded = values.dictionary_encode()
    texts = [_clock(text) for text in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.binary()).take(encoded.indices)


def _clock(value: bytes) -> bytes:
    match = _TIMETZ.fullmatch(value.decode("ascii", "replace"))
    if match is None:
        return value
    found = {name: int(text) for name, text in match.groupdict("0").items() if text.isdigit()}
    seconds = (found["hour"] * 60 + found["minute"]) * 60 + found["second"]
    offset = (found["off_hour"] * 60 + found["off_minute"]) * 60 + found["off_second"]
    seconds = (seconds + (offset if match["sign"] == "-" else -offset)) % 86400
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02d}:{minute:02d}:{second:02d}{match['fraction'] or ''}Z".encode()


def digits_of(epochs_: pa.Array) -> pa.Array:
    """Numbers as decimal text; nulls stay."""
    return epochs_.cast(pa.string()).cast(pa.binary())
