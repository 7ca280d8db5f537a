"""Values of every type become the JSON that the interface promises."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_changes import examples
from fix_documents import Number, parsed_lines
from penstock.changes import jsonvalues
from penstock.testing import TYPE_OIDS, insert, table


def values(kind, *texts):
    """The values in `after`, of a column of this type."""
    described = table(1, "t", {"v": kind})
    rows = [insert(described, [text]) for text in texts]
    return [found["after"]["v"] for found in parsed_lines(described, *rows)]


def value(kind, text):
    (found,) = values(kind, text)
    return found


NOT_JSON = [kind for kind in TYPE_OIDS if not kind.startswith("json")]
NUMBERS = ["int2", "int4", "int8", "oid", "numeric", "float4", "float8"]


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_keep_every_digit(kind):
    assert value(kind, "-42") == Number("-42")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("numeric", "123456789012345678901234567890.1200"),
        ("numeric", "0.000000000000000000000000000001"),
        ("float8", "-0"),
        ("float8", "1e+20"),
        ("float8", "1.7976931348623157e+308"),
        ("float4", "1e-45"),
    ],
)
def test_numbers_with_fractions_and_exponents_stay_as_postgres_prints_them(kind, text):
    assert value(kind, text) == Number(text)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("kind", ["numeric", "float4", "float8"])
def test_number_that_json_lacks_is_a_string(kind, text):
    assert value(kind, text) == text


@pytest.mark.parametrize(
    ("kind", "text", "wanted"),
    [
        ("bool", "t", True),
        ("bool", "f", False),
        ("bytea", "\\x00ff10", "AP8Q"),
        ("bytea", "\\x", ""),
        ("date", "2026-11-15", "2026-11-15"),
        ("date", "infinity", "infinity"),
        ("date", "0044-03-15 BC", "0044-03-15 BC"),
        ("time", "24:00:00", "24:00:00"),
        ("timetz", "12:34:56.7+00", "12:34:56.7+00:00"),
        ("timetz", "12:34:56-03:30", "12:34:56-03:30"),
        ("timestamp", "2026-11-15 12:34:56.789", "2026-11-15T12:34:56.789"),
        ("timestamp", "294276-12-31 23:59:59", "294276-12-31T23:59:59"),
        ("timestamp", "-infinity", "-infinity"),
        ("timestamptz", "2026-11-15 12:34:56.789+00", "2026-11-15T12:34:56.789+00:00"),
        ("timestamptz", "2026-11-15 12:34:56-03", "2026-11-15T12:34:56-03:00"),
        ("timestamptz", "2026-11-15 12:34:56+05:30", "2026-11-15T12:34:56+05:30"),
        ("timestamptz", "infinity", "infinity"),
        ("timestamptz", "0044-03-15 12:00:00+00 BC", "0044-03-15 12:00:00+00 BC"),
        (
            "json",
            '{"b": [1.50,\r\n\t"a\\nb"]}',
            {"b": [Number("1.50"), b"a\\nb".decode("unicode_escape")]},
        ),
        ("jsonb", "null", None),
        ("jsonb", "12345678901234567890.10", Number("12345678901234567890.10")),
        ("interval", "1 mon 2 days 03:04:05", "1 mon 2 days 03:04:05"),
        ("int4[]", "{1,NULL,3}", "{1,NULL,3}"),
        ("text[]", '{"a\\"b","c\\\\d"}', '{"a\\"b","c\\\\d"}'),
        ("uuid", "0b5f1b1e-7c5e-4e7b-8a2a-1f5f2c1d3e4f", "0b5f1b1e-7c5e-4e7b-8a2a-1f5f2c1d3e4f"),
        ("money", "$1,234.50", "$1,234.50"),
        (99999, "an enum's label", "an enum's label"),
        ("text", "", ""),
    ],
)
def test_value_of_a_type_looks_as_promised(kind, text, wanted):
    assert value(kind, text) == wanted


def test_every_type_keeps_null_and_value_distinct_in_one_column():
    samples = {"bool": "t", "bytea": "\\x01", "numeric": "NaN", "text": "x", "json": "[]"}
    samples |= {"timestamp": "2026-01-01 00:00:00", "timestamptz": "2026-01-01 00:00:00+00"}
    described = table(1, "t", {kind: kind for kind in samples})
    rows = [list(samples.values()), [None] * len(samples), list(samples.values())]

    found = [
        one["after"] for one in parsed_lines(described, *(insert(described, row) for row in rows))
    ]

    assert found[0] == found[2] == {kind: value(kind, text) for kind, text in samples.items()}
    assert found[1] == dict.fromkeys(samples)


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        ("timestamptz", ["2026-01-01 00:00:00+00", "infinity", "0044-03-15 12:00:00+00 BC"]),
        ("timestamp", ["2026-01-01 00:00:00", "infinity", "0044-03-15 12:00:00 BC"]),
        ("numeric", ["1", "NaN", "2.50"]),
        ("bool", ["t", "f", "masked"]),
        ("bytea", ["\\x00", "\\xzz", 'quo"ted']),
    ],
)
def test_odd_values_do_not_change_their_neighbours(kind, texts):
    assert values(kind, *texts) == [value(kind, text) for text in texts]


def test_text_with_every_control_character_stays_on_one_line_and_comes_back_whole():
    text = "".join(map(chr, range(1, 0x20))) + '\\"/\x7f\u2028żółć😀'

    assert value("text", text) == text


def test_bytes_that_are_not_utf8_can_be_recovered():
    assert value("text", b"a\xff\\b\xc3").encode(errors="surrogateescape") == b"a\xff\\b\xc3"


def test_character_cut_between_two_values_is_not_fixed():
    assert values("text", b"\xc3", b"\xa9") == ["\udcc3", "\udca9"]


@settings(examples, max_examples=200)
@given(st.sampled_from(NOT_JSON), st.lists(st.one_of(st.none(), st.binary()), min_size=1))
def test_any_bytes_in_any_column_give_sound_lines(kind, texts):
    found = values(kind, *texts)

    assert len(found) == len(texts)
    if kind == "text":
        raw = [None if one is None else one.encode(errors="surrogateescape") for one in found]
        assert raw == texts


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("text", 'a"\\\n'),
        ("bool", "t"),
        ("bool", "masked"),
        ("bytea", "\\x00ff10"),
        ("numeric", "NaN"),
        ("json", "[\n]"),
        ("timestamptz", "2026-11-15 12:34:56-03"),
        ("timestamp", "0044-03-15 12:00:00 BC"),
    ],
)
def test_value_in_a_column_too_large_for_31_bits_is_the_same(kind, text, monkeypatch):
    wanted = values(kind, text, None)

    monkeypatch.setattr(jsonvalues, "_ROOMY", 0)

    assert values(kind, text, None) == wanted
