"""Ranges as a search server has them: the same values, whatever the bounds are."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from penstock.sinks.search.ranges import range_column

INT4, INT8, TS, TSTZ, DATE = 3904, 3926, 3908, 3910, 3912


def ranges(oid: int, *texts: str | None, kind: Any = None) -> list[Any]:
    given = [None if text is None else text.encode() for text in texts]
    found = range_column(oid, pa.array(given, kind or pa.binary())).to_pylist()
    return [None if each is None else json.loads(each) for each in found]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_range_of_whole_numbers_has_the_bounds_that_it_has(kind: Any) -> None:
    found = ranges(INT4, "[1,5)", "(,5)", "[5,)", "(,)", None, kind=kind)
    assert found == [{"gte": 1, "lt": 5}, {"lt": 5}, {"gte": 5}, {}, None]
    (found,) = ranges(INT8, "[-9223372036854775808,9223372036854775807)", kind=kind)
    assert found == {"gte": -9223372036854775808, "lt": 9223372036854775807}
    assert ranges(INT4, kind=kind) == []


def test_range_that_holds_nothing_that_can_be_searched_for_is_null() -> None:
    assert ranges(INT4, "empty", "(,-2147483648)") == [None, None]
    assert ranges(DATE, "empty", "[infinity,)", "(,-infinity)") == [None, None, None]


def test_infinity_is_no_bound() -> None:
    found = ranges(DATE, "[2024-02-29,infinity)", "[-infinity,2024-02-29)")
    assert found == [{"gte": "2024-02-29"}, {"lt": "2024-02-29"}]
    assert ranges(TSTZ, '["2024-02-29 10:00:00+00",infinity]') == [
        {"gte": "2024-02-29T10:00:00+00:00"}
    ]


def test_year_of_another_length_is_as_iso_8601_has_it() -> None:
    found = ranges(DATE, '["0044-03-15 BC",10000-01-01)', '["0001-03-15 BC",)')
    assert found == [{"gte": "-0043-03-15", "lt": "+10000-01-01"}, {"gte": "0000-03-15"}]
    (found,) = ranges(TSTZ, '(,"0044-03-15 10:00:00+00 BC")')
    assert found == {"lt": "-0043-03-15T10:00:00+00:00"}


def test_exclusive_bound_below_a_millisecond_is_the_microsecond_beside_it() -> None:
    day = "2024-02-29"
    found = ranges(
        TS,
        f'["{day} 10:00:00","{day} 11:00:00.5")',
        f'("{day} 10:00:00.0001","{day} 10:00:00.0009")',
        f'["{day} 10:00:00.0001","{day} 10:00:00.0009"]',
        f'("{day} 10:00:00.000999","{day} 10:00:00.001")',
        f'("{day} 10:00:00.999999","{day} 10:00:01.000001")',
    )
    assert found == [
        {"gte": f"{day}T10:00:00", "lt": f"{day}T11:00:00.5"},
        {"gte": f"{day}T10:00:00.000101", "lte": f"{day}T10:00:00.000899"},
        {"gte": f"{day}T10:00:00.0001", "lte": f"{day}T10:00:00.0009"},
        # Cut off and one millisecond on, which is what the server makes of it, is right here.
        {"gt": f"{day}T10:00:00.000999", "lt": f"{day}T10:00:00.001"},
        {"gt": f"{day}T10:00:00.999999", "lte": f"{day}T10:00:01.000000"},
    ]


def test_text_that_is_no_range_is_left_to_the_server_to_refuse() -> None:
    assert ranges(INT4, "hidden", "[1,2)") == ["hidden", {"gte": 1, "lt": 2}]
