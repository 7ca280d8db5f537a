"""Values of Postgres's types as it prints them, and what Debezium makes of each: said once more, in plain Python."""

from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from penstock.changes.pgoutput import Column

# Many types, each with few examples of many values.
examples = settings(derandomize=True, deadline=None, database=None, max_examples=20)

NUMERIC_12_3 = 4 + (12 << 16) + 3
INT64 = st.integers(-(2**63), 2**63 - 1)
_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)


def unscaled(number: Decimal) -> bytes:
    """Two's complement, as short as can be."""
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    whole = int("".join(map(str, digits))) * (-1 if sign else 1) * 10 ** max(exponent, 0)
    return whole.to_bytes((whole + (whole < 0)).bit_length() // 8 + 1, "big", signed=True)


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _days(year: int, month: int, day: int) -> int:
    return int(np.datetime64(f"{year:+05d}-{month:02d}-{day:02d}", "D").astype(np.int64))


def _shown(year: int, rest: str) -> str:
    """As Postgres prints years: 1 BC is the year 0."""
    return f"{year:04d}{rest}" if year > 0 else f"{1 - year:04d}{rest} BC"


@st.composite
def dates(draw: Any) -> tuple[str, int]:
    if (special := draw(st.sampled_from(["", "", "", "infinity", "-infinity"]))) != "":
        return special, 2**31 - 1 if special == "infinity" else -(2**31)
    year, month, day = (
        draw(st.integers(-4712, 20000)),
        draw(st.integers(1, 12)),
        draw(st.integers(1, 28)),
    )
    return _shown(year, f"-{month:02d}-{day:02d}"), _days(year, month, day)


@st.composite
def clocks(draw: Any, places: int = 6) -> tuple[str, int]:
    """The text of a time of day, and its microseconds."""
    seconds = draw(st.integers(0, 86399))
    fraction = draw(st.integers(0, 10**places - 1)) * 10 ** (6 - places)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    if fraction:
        text += f".{fraction:06d}".rstrip("0")
    return text, seconds * 1_000_000 + fraction


@st.composite
def timestamps(draw: Any, places: int = 6) -> tuple[str, int]:
    if (special := draw(st.sampled_from(["", "", "", "infinity", "-infinity"]))) != "":
        return special, 9223372036825200000 if special == "infinity" else -9223372036832400000
    year, month, day = (
        draw(st.integers(-4712, 20000)),
        draw(st.integers(1, 12)),
        draw(st.integers(1, 28)),
    )
    clock, micros = draw(clocks(places))
    number = _days(year, month, day) * 86_400_000_000 + micros
    if places <= 3:
        number //= 1000
    return _shown(year, f"-{month:02d}-{day:02d} {clock}"), number


@st.composite
def zoned(draw: Any) -> tuple[str, str]:
    if (special := draw(st.sampled_from(["", "", "", "infinity", "-infinity"]))) != "":
        return special, special
    year, month, day = (
        draw(st.integers(-4712, 20000)),
        draw(st.integers(1, 12)),
        draw(st.integers(1, 28)),
    )
    clock, micros = draw(clocks())
    date = f"-{month:02d}-{day:02d}"
    shown = f"{year:04d}" if 0 <= year <= 9999 else f"{year:+05d}"
    wanted = f"{shown}{date}T{clock.partition('.')[0]}.{micros % 1_000_000:06d}Z"
    era = "" if year > 0 else " BC"
    return f"{year if year > 0 else 1 - year:04d}{date} {clock}+00{era}", wanted


@st.composite
def zoned_clocks(draw: Any) -> tuple[str, str]:
    clock, _ = draw(clocks())
    sign, hours, minutes = (
        draw(st.sampled_from("+-")),
        draw(st.integers(0, 15)),
        draw(st.sampled_from([0, 30])),
    )
    offset = dt.timedelta(hours=hours, minutes=minutes) * (-1 if sign == "-" else 1)
    text = f"{clock}{sign}{hours:02d}" + (f":{minutes:02d}" if minutes else "")
    whole, point, fraction = clock.partition(".")
    at = dt.datetime.fromisoformat(f"2000-01-02T{whole}") - offset
    return text, f"{at:%H:%M:%S}{point}{fraction}Z"


@st.composite
def intervals(draw: Any) -> tuple[str, int]:
    years, months, days = (draw(st.integers(-200, 200)) for _ in range(3))
    months %= 12
    clock, micros = draw(clocks())
    is_negative = draw(st.booleans()) and micros > 0
    parts = [f"{years} year{'s' * (years != 1)}"] if years else []
    parts += [f"{months} mon{'s' * (months != 1)}"] if months else []
    parts += (
        [f"{'+' if days > 0 and years < 0 else ''}{days} day{'s' * (days != 1)}"] if days else []
    )
    if micros or not parts:
        parts.append(("-" if is_negative else "") + clock)
    total = (years * 12 + months) * 2_629_800_000_000 + days * 86_400_000_000
    return " ".join(parts), total + (-micros if is_negative else micros)


def _numerics(places: int, digits: int) -> Any:
    return st.decimals(
        -(10**digits) + 1, 10**digits - 1, allow_nan=False, allow_infinity=False, places=places
    ).map(lambda number: f"{number:f}")


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _pairs(texts: Any, of: Any) -> Any:
    return texts.map(lambda text: (text, of(text)))


def _float(text: str) -> Any:
    return text if text in ("NaN", "Infinity", "-Infinity") else float(text)


_FLOATS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["NaN", "Infinity", "-Infinity", "-0"]),
)


def _arrays(elements: Any) -> Any:
    """Of one dimension, of pairs."""

    def made(pairs: list[Any]) -> tuple[str, list[Any]]:
        texts = ["NULL" if each is None else _quoted(each[0]) for each in pairs]
        return "{" + ",".join(texts) + "}", [None if each is None else each[1] for each in pairs]

    return st.lists(st.one_of(st.none(), elements), max_size=4).map(made)


def variable(text: str) -> dict[str, Any]:
    # As Java's `stripTrailingZeros` and `setScale(0)` do.
    number = Decimal(text.rstrip("0").rstrip(".") or "0") if "." in text else Decimal(text)
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    return {"scale": -exponent, "value": b64(unscaled(number))}


# Of each type: oid, modifier, pairs of Postgres's text and of what Debezium's JSON has.
DEBEZIUM: dict[str, tuple[int, int, Any]] = {
    "bool": (16, -1, st.sampled_from([("t", True), ("f", False)])),
    "int2": (21, -1, _pairs(st.integers(-(2**15), 2**15 - 1).map(str), int)),
    "int4": (23, -1, _pairs(st.integers(-(2**31), 2**31 - 1).map(str), int)),
    "int8": (20, -1, _pairs(INT64.map(str), int)),
    "oid": (26, -1, _pairs(st.integers(0, 2**32 - 1).map(str), int)),
    "float8": (701, -1, _pairs(_FLOATS, _float)),
    "numeric": (
        1700,
        -1,
        _pairs(st.one_of(_numerics(2, 9), _numerics(20, 25), _numerics(0, 60)), variable),
    ),
    "numeric(12,3)": (
        1700,
        NUMERIC_12_3,
        _pairs(_numerics(3, 9), lambda text: b64(unscaled(Decimal(text)))),
    ),
    "date": (1082, -1, dates()),
    "time": (1083, -1, st.one_of(clocks(), st.just(("24:00:00", 86_400_000_000)))),
    "time(3)": (1083, 3, clocks(3).map(lambda pair: (pair[0], pair[1] // 1000))),
    "timestamp": (1114, -1, timestamps()),
    "timestamp(3)": (1114, 3, timestamps(3)),
    "timestamptz": (1184, -1, zoned()),
    "timetz": (1266, -1, st.one_of(zoned_clocks(), st.just(("24:00:00+00", "00:00:00Z")))),
    "interval": (1186, -1, intervals()),
    "bytea": (17, -1, st.binary(max_size=9).map(lambda raw: ("\\x" + raw.hex(), b64(raw)))),
    "text": (25, -1, _TEXT.map(lambda text: (text, text))),
    "uuid": (2950, -1, st.uuids().map(lambda each: (str(each), str(each)))),
    "jsonb": (
        3802,
        -1,
        st.dictionaries(_TEXT, INT64, max_size=2).map(json.dumps).map(lambda t: (t, t)),
    ),
    "inet": (869, -1, st.ip_addresses().map(lambda each: (str(each), str(each)))),
    "bit(1)": (1560, 1, st.sampled_from([("1", True), ("0", False)])),
    "int4[]": (1007, -1, _arrays(_pairs(st.integers(-(2**31), 2**31 - 1).map(str), int))),
    "text[]": (1009, -1, _arrays(_TEXT.map(lambda text: (text, text)))),
    "timestamp[]": (1115, -1, _arrays(timestamps())),
    "timestamptz[]": (1185, -1, _arrays(zoned())),
    "numeric[]": (1231, -1, _arrays(_pairs(_numerics(2, 9), variable))),
}


def column(name: str, kind: str) -> Column:
    """A column of one of these types."""
    oid, modifier, _ = DEBEZIUM[kind]
    return Column(name, oid, modifier, False)
