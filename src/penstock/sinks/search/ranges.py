"""Ranges as Postgres prints them -> ranges of a search server, all rows at once. Pure.

    [1,5)                                    {"gte":1,"lt":5}
    (,5)                                     {"lt":5}: a side without a bound is left out, and so is one that reaches to infinity
    ["2024-02-29 01:02:03","…")              {"gte":"2024-02-29T01:02:03","lt":"…"}
    empty, [infinity,), (,-infinity]         null: there is no value in it that can be searched for
    ["0044-03-15 BC",10000-01-01)            {"gte":"-0043-03-15","lt":"+10000-01-01"}: ISO 8601's years of other lengths

The server counts milliseconds and cuts off what is smaller, also of a bound. Of an exclusive one it would cut too much: it
refuses (10:00:00.0001,10:00:00.0009), since nothing is between. Such a bound is the microsecond beside it, inclusive:
{"gte":"…00.000101","lte":"…00.000899"}, the same values of Postgres.

numrange is not here: the only range of the server for numbers with digits after the point rounds them, and two bounds that
are one after rounding are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.encoded import one_column
from penstock.changes.jsonvalues import json_column

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.changes.cells import Mask

_TEXT = 25
# Bounds of these types have no quotes, commas or brackets in them.
_RANGE = r'^(?P<open>[\[(])"?(?P<lower>[^",]*)"?,"?(?P<upper>[^",]*)"?(?P<close>[\])])$'
_USUAL_YEAR = r"^[0-9]{4}-[^B]*$"
# Postgres prints no zero at the end of a fraction.
_FINE = r"\.[0-9]{4,6}"
_FRACTION = re.compile(r"\.([0-9]{4,6})")


@dataclass(frozen=True)
class RangeType:
    """What a type of range is at the server."""

    mapping: dict[str, Any]
    element: int  # the type of its bounds
    # An upper bound below which there is nothing. Of whole numbers the server would go on at the other end.
    bottom: bytes

    @property
    def has_times(self) -> bool:
        """Whether bounds are dates or instants."""
        return self.bottom == b"-infinity"


_DATES = {"type": "date_range", "format": "strict_date_optional_time"}
RANGES = {
    3904: RangeType({"type": "integer_range"}, 23, b"-2147483648"),
    3926: RangeType({"type": "long_range"}, 20, b"-9223372036854775808"),
    3908: RangeType(_DATES, 1114, b"-infinity"),
    3910: RangeType(_DATES, 1184, b"-infinity"),
    3912: RangeType(_DATES, 1082, b"-infinity"),
}


def range_column(oid: int, values: pa.Array) -> pa.Array:
    """A column of ranges as JSON, null where it is NULL or holds nothing; what is no range is a string, for the server to refuse."""
    kind = RANGES[oid]
    found = pc.extract_regex(values, pattern=_RANGE)
    opened, lower, upper, closed = (pc.struct_field(found, place) for place in range(4))
    is_empty = _is(values, b"empty") | _is(lower, b"infinity") | _is(upper, kind.bottom)
    below, has_lower = _side(
        kind, lower, _is(lower, b"", b"-infinity"), _is(opened, b"("), (b'"gte":', b'"gt":'), _above
    )
    above, has_upper = _side(
        kind, upper, _is(upper, b"", b"infinity"), _is(closed, b")"), (b'"lte":', b'"lt":'), _below
    )
    comma = _either(has_lower & has_upper, b",", b"", values.type)
    whole = pc.binary_join_element_wise(*_alike(b"{", below, comma, above, b"}", b""))
    if found.null_count > values.null_count:
        text = json_column(_TEXT, values)
        rest = one_column([text.prefix, text.values, text.suffix], len(values))
        whole = pc.if_else(found.is_valid(), *_alike(whole, rest))
    is_null = is_empty | ~np.asarray(values.is_valid())
    return pc.if_else(pa.array(is_null), pa.scalar(None, whole.type), whole)


def _side(
    kind: RangeType,
    texts: pa.Array,
    is_open: Mask,
    is_exclusive: Mask,
    marks: tuple[bytes, bytes],
    beside: Callable[[str], str | None],
) -> tuple[pa.Array, Mask]:
    """One side of each range, empty where it has no bound; and which have one."""
    has_bound = ~is_open & np.asarray(texts.is_valid())
    if kind.has_times:
        texts, is_exclusive = _of_server(texts, has_bound, is_exclusive, beside)
    encoded = json_column(kind.element, texts)
    value = one_column([encoded.prefix, encoded.values, encoded.suffix], len(texts))
    mark = _either(is_exclusive, marks[1], marks[0], value.type)
    written = pc.binary_join_element_wise(mark, value, pa.scalar(b"", value.type))
    return pc.if_else(pa.array(has_bound), written, pa.scalar(b"", value.type)), has_bound


def _of_server(
    texts: pa.Array, has_bound: Mask, is_exclusive: Mask, beside: Callable[[str], str | None]
) -> tuple[pa.Array, Mask]:
    """Bounds that the server reads as they are meant, and which of them are exclusive."""
    is_small = _matches(texts, _FINE) & is_exclusive
    is_odd = has_bound & (is_small | ~_matches(texts, _USUAL_YEAR))
    rows = np.flatnonzero(is_odd)
    if not len(rows):
        return texts, is_exclusive
    # One at a time: hardly any column has such bounds, and none many.
    is_exclusive = is_exclusive.copy()
    spelled = []
    for row in rows.tolist():
        text = _with_year(texts[row].as_py().decode())
        if is_exclusive[row] and (other := beside(text)) is not None:
            text, is_exclusive[row] = other, False
        spelled.append(text.encode())
    return pc.replace_with_mask(
        texts, pa.array(is_odd), pa.array(spelled, texts.type)
    ), is_exclusive


def _with_year(text: str) -> str:
    """A date or an instant with its year as ISO 8601 counts: the one before the year 1 is 0."""
    year, dash, rest = text.partition("-")
    if rest.endswith(" BC"):
        number = 1 - int(year)
        return f"{'-' if number else ''}{-number:04}{dash}{rest.removesuffix(' BC')}"
    return f"+{text}" if len(year) > 4 else text


def _below(text: str) -> str | None:
    """The microsecond before an instant that is no whole millisecond."""
    found = _FRACTION.search(text)
    if found is None:
        return None
    return _FRACTION.sub(f".{int(found[1].ljust(6, '0')) - 1:06}", text)


def _above(text: str) -> str | None:
    """The microsecond after an instant, where it is in the same millisecond."""
    found = _FRACTION.search(text)
    if found is None:
        return None
    microseconds = int(found[1].ljust(6, "0")) + 1
    return None if microseconds % 1000 == 0 else _FRACTION.sub(f".{microseconds:06}", text)


def _is(texts: pa.Array, *wanted: bytes) -> Mask:
    found = pc.is_in(texts, pa.array(wanted, texts.type))
    return np.asarray(found)


def _matches(texts: pa.Array, pattern: str) -> Mask:
    found = pc.match_substring_regex(texts, pattern=pattern)
    return np.asarray(pc.fill_null(found, False))


def _either(mask: Mask, yes: bytes, no: bytes, kind: pa.DataType) -> pa.Array:
    return pc.if_else(pa.array(mask), pa.scalar(yes, kind), pa.scalar(no, kind))


def _alike(*parts: bytes | pa.Array) -> list[Any]:
    """Parts with one type: a column of many bytes has a larger one."""
    columns = [part for part in parts if not isinstance(part, bytes)]
    is_large = any(pa.types.is_large_binary(each.type) for each in columns)
    kind = pa.large_binary() if is_large else pa.binary()
    return [pa.scalar(part, kind) if isinstance(part, bytes) else part.cast(kind) for part in parts]
