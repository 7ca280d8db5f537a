"""Postgres's text becomes typed Arrow columns: exactly, or it is said which rows do not fit."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.changes.cells import Cells
from penstock.changes.typed import Unfit, arrow_type, to_arrow

INF = float("inf")
UTC = dt.UTC


def naive(*parts):
    """A moment without a zone."""
    return dt.datetime(*parts, tzinfo=UTC).replace(tzinfo=None)


def numeric(precision, scale):
    """The type modifier of numeric(precision, scale)."""
    return ((precision << 16) | (scale & 0x7FF)) + 4


def typed(texts, type_oid, modifier=-1, **options):
    raw = [text.encode() if isinstance(text, str) else text for text in texts]
    kind = arrow_type(type_oid, modifier, **options)
    found = to_arrow(Cells.from_arrow(pa.array(raw, pa.binary())), kind)
    assert found.values.type == kind
    found.values.validate(full=True)
    return found


@pytest.mark.parametrize(
    ("oid", "modifier", "kind"),
    [
        (16, -1, pa.bool_()),
        (21, -1, pa.int16()),
        (23, -1, pa.int32()),
        (20, -1, pa.int64()),
        (26, -1, pa.uint32()),
        (700, -1, pa.float32()),
        (701, -1, pa.float64()),
        (1700, numeric(7, 2), pa.decimal128(7, 2)),
        (1700, numeric(38, 38), pa.decimal128(38, 38)),
        (1700, numeric(39, 0), pa.decimal256(39, 0)),
        (1700, numeric(76, 10), pa.decimal256(76, 10)),
        (1700, numeric(77, 10), pa.string()),
        (1700, numeric(1000, 1000), pa.string()),
        (1700, numeric(2, -3), pa.decimal128(5, 0)),
        (1700, numeric(2, 4), pa.decimal128(4, 4)),
        (1700, numeric(70, -7), pa.string()),
        (1700, -1, pa.string()),
        (1082, -1, pa.date32()),
        (1114, 3, pa.timestamp("us")),
        (1184, -1, pa.timestamp("us", "UTC")),
        (1083, -1, pa.time64("us")),
        (1266, -1, pa.string()),  # timetz
        (2950, -1, pa.binary(16)),
        (17, -1, pa.binary()),
        (25, -1, pa.string()),
        (1043, 14, pa.string()),
        (114, -1, pa.string()),
        (3802, -1, pa.string()),
        (790, -1, pa.string()),  # money
        (1186, -1, pa.string()),  # interval
        (16999, -1, pa.string()),  # somebody's own
        (1007, -1, pa.list_(pa.int32())),
        (1231, numeric(5, 1), pa.list_(pa.decimal128(5, 1))),
        (1231, -1, pa.list_(pa.string())),
        (1009, -1, pa.list_(pa.string())),
    ],
)
def test_type_follows_from_what_the_table_declares(oid, modifier, kind):
    assert arrow_type(oid, modifier) == kind


@pytest.mark.parametrize("oid", [1082, 1083, 1114, 1184, 1700, 1007])
def test_types_with_values_that_arrow_lacks_can_be_had_as_text(oid):
    assert arrow_type(oid, numeric(5, 2), unfit=Unfit.TEXT) == pa.string()
    assert typed(["infinity"], oid, unfit=Unfit.TEXT).values.to_pylist() == ["infinity"]


CASES = [
    ("bool", 16, -1, {"t": True, "f": False}),
    ("int2", 21, -1, {"-32768": -32768, "32767": 32767, "0": 0}),
    ("int4", 23, -1, {"-2147483648": -(2**31), "2147483647": 2**31 - 1}),
    ("int8", 20, -1, {"-9223372036854775808": -(2**63), "9223372036854775807": 2**63 - 1}),
    ("oid", 26, -1, {"4294967295": 2**32 - 1}),
    (
        "float4",
        700,
        -1,
        {
            "3.4028235e+38": float(np.float32(3.4028235e38)),
            "1e-45": float(np.float32(1e-45)),
            "0.1": float(np.float32(0.1)),
            "Infinity": INF,
            "-Infinity": -INF,
        },
    ),
    (
        "float8",
        701,
        -1,
        {
            "1.7976931348623157e+308": 1.7976931348623157e308,
            "5e-324": 5e-324,
            "0.1": 0.1,
            "Infinity": INF,
            "-Infinity": -INF,
        },
    ),
    ("numeric", 1700, numeric(7, 2), {"99999.99": Decimal("99999.99"), "-0.01": Decimal("-0.01")}),
    ("numeric", 1700, numeric(38, 0), {"9" * 38: Decimal("9" * 38)}),
    ("numeric", 1700, numeric(76, 0), {"-" + "9" * 76: Decimal("-" + "9" * 76)}),
    ("numeric", 1700, numeric(2, -3), {"99000": Decimal(99000), "-1000": Decimal(-1000)}),
    ("numeric", 1700, numeric(2, 4), {"0.0099": Decimal("0.0099")}),
    (
        "date",
        1082,
        -1,
        {
            "2026-11-15": dt.date(2026, 11, 15),
            "0001-01-01": dt.date(1, 1, 1),
            "9999-12-31": dt.date(9999, 12, 31),
            "2024-02-29": dt.date(2024, 2, 29),
        },
    ),
    (
        "timestamp",
        1114,
        -1,
        {
            "2026-11-15 09:51:49.736833": naive(2026, 11, 15, 9, 51, 49, 736833),
            "2026-11-15 09:51:49.7": naive(2026, 11, 15, 9, 51, 49, 700000),
            "1969-12-31 23:59:59.999999": naive(1969, 12, 31, 23, 59, 59, 999999),
            "0001-01-01 00:00:00": naive(1, 1, 1),
            "9999-12-31 23:59:59.999999": naive(9999, 12, 31, 23, 59, 59, 999999),
        },
    ),
    (
        "timestamptz",
        1184,
        -1,
        {
            "2026-11-15 09:51:49.736833+00": dt.datetime(
                2026, 11, 15, 9, 51, 49, 736833, tzinfo=UTC
            ),
            "2026-11-15 09:51:49+05:30": dt.datetime(2026, 11, 15, 4, 21, 49, tzinfo=UTC),
            "2026-11-15 09:51:49-03": dt.datetime(2026, 11, 15, 12, 51, 49, tzinfo=UTC),
            # Before zones there was local mean time.
            "1890-01-01 00:00:00+00:53:28": dt.datetime(1889, 12, 31, 23, 6, 32, tzinfo=UTC),
        },
    ),
    (
        "time",
        1083,
        -1,
        {
            "00:00:00": dt.time(0),
            "23:59:59.999999": dt.time(23, 59, 59, 999999),
            "09:51:49.7": dt.time(9, 51, 49, 700000),
        },
    ),
    (
        "uuid",
        2950,
        -1,
        {
            str(one): one.bytes
            for one in (uuid.UUID(int=0), uuid.UUID(int=2**128 - 1), uuid.UUID(int=2**100 + 17))
        },
    ),
    ("bytea", 17, -1, {"\\x": b"", "\\x00ff7f": b"\x00\xff\x7f", "\\x0a": b"\n"}),
    ("text", 25, -1, {"": "", "żółć": "żółć", "NULL": "NULL"}),
    ("jsonb", 3802, -1, {'{"a": [1, null]}': '{"a": [1, null]}', "null": "null"}),
    ("interval", 1186, -1, {"1 day 02:03:04": "1 day 02:03:04"}),
    (
        "int4[]",
        1007,
        -1,
        {"{}": [], "{1,NULL,-3}": [1, None, -3], "{2147483647}": [2147483647]},
    ),
    (
        "text[]",
        1009,
        -1,
        {
            "{}": [],
            '{""}': [""],
            "{plain,NULL}": ["plain", None],
            '{"NULL","null"}': ["NULL", "null"],
            r'{"a,b","{c}","say \"no\"","back\\slash",d}': [
                "a,b",
                "{c}",
                'say "no"',
                "back\\slash",
                "d",
            ],
            '{"\\\\","\\""}': ["\\", '"'],
        },
    ),
    (
        "timestamptz[]",
        1185,
        -1,
        {
            '{"2026-11-15 09:51:49+00",NULL}': [
                dt.datetime(2026, 11, 15, 9, 51, 49, tzinfo=UTC),
                None,
            ]
        },
    ),
    ("numeric[]", 1231, numeric(5, 1), {"{1.5,-2.0}": [Decimal("1.5"), Decimal("-2.0")]}),
    ("bytea[]", 1001, -1, {'{"\\\\x00","\\\\xff"}': [b"\x00", b"\xff"]}),
    ("bool[]", 1000, -1, {"{t,f,NULL}": [True, False, None]}),
]


@pytest.mark.parametrize(("name", "oid", "modifier", "cases"), CASES, ids=[c[0] for c in CASES])
def test_text_becomes_the_value_of_its_type(name, oid, modifier, cases):
    """All at once, between nulls; and each alone, where nothing else sets the way."""
    texts = [None, *cases, None]

    found = typed(texts, oid, modifier)

    assert found.values.to_pylist() == [None, *cases.values(), None]
    assert found.unfit.tolist() == []
    for text, value in cases.items():
        assert typed([text], oid, modifier).values.to_pylist() == [value]
    assert typed([], oid, modifier).values.to_pylist() == []
    assert typed([None, None], oid, modifier).values.to_pylist() == [None, None]


def test_nan_is_a_float():
    assert np.isnan(np.asarray(typed(["NaN", "1"], 701).values))[0]
    assert np.isnan(np.asarray(typed(["NaN", "1"], 700).values))[0]


UNFIT = [
    (1700, numeric(5, 2), ["1.00", "NaN", "2.00"]),
    (1700, numeric(5, 2), ["1.00", "1000.00", "2.00"]),
    (1700, numeric(5, 2), ["1.00", "0.001", "2.00"]),
    (1082, -1, ["2026-11-15", "infinity", "2026-11-16"]),
    (1082, -1, ["2026-11-15", "2026-02-30", "2026-11-16"]),
    (1082, -1, ["2026-11-15", "9999999-01-01", "2026-11-16"]),
    (1114, -1, ["2026-11-15 00:00:00", "-infinity", "2026-11-15 00:00:01"]),
    (1114, -1, ["2026-11-15 00:00:00", "294276-12-31 23:59:59.999999", "2026-11-15 00:00:01"]),
    (1184, -1, ["2026-11-15 00:00:00+00", "infinity", "2026-11-15 00:00:01+00"]),
    (1083, -1, ["00:00:00", "24:00:00", "00:00:01"]),
    (23, -1, ["1", "2147483648", "2"]),
    (700, -1, ["1", "1e39", "Infinity"]),
    (16, -1, ["t", "maybe", "f"]),
    (2950, -1, [str(uuid.UUID(int=1)), "nonsense", str(uuid.UUID(int=2))]),
    (17, -1, ["\\x00", "\\x0", "\\x01"]),
    (17, -1, ["\\x00", "\\xzz", "\\x01"]),
    (25, -1, ["a", b"\xff", "b"]),
    (1007, -1, ["{1}", "{{1,2},{3,4}}", "{2}"]),
    (1007, -1, ["{1}", "[0:1]={1,2}", "{2}"]),
    (1007, -1, ["{1}", "{1,2147483648,2}", "{2}"]),
]


@pytest.mark.parametrize(("oid", "modifier", "texts"), UNFIT)
def test_value_that_does_not_fit_is_named_and_its_neighbours_are_converted(oid, modifier, texts):
    found = typed([None, *texts], oid, modifier)

    assert found.unfit.tolist() == [2]
    assert found.values.is_valid().to_pylist() == [False, True, False, True]
    alone = typed([texts[0], texts[2]], oid, modifier).values.to_pylist()
    assert [found.values.to_pylist()[row] for row in (1, 3)] == alone


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("0001-12-31 BC", -719163),  # the day before 0001-01-01
        ("0001-01-01 BC", -719528),  # the year 0
        ("4714-11-24 BC", -2440588),  # Postgres's first day: the Julian day 0
        ("5874897-12-31", 2145042905),  # and its last one
        ("10000-01-01", 2932897),
    ],
)
def test_days_outside_of_four_digit_years_are_counted_in_the_gregorian_calendar(text, days):
    found = typed(["1970-01-01", text], 1082).values

    assert found.view(pa.int32()).to_pylist() == [0, days]


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("4714-11-24 00:00:00 BC", -2440588 * 86_400_000_000),
        ("294246-12-31 23:59:59.999999", 9_223_371_244_799_999_999),
        ("0044-03-15 12:00:00.5 BC", (-735160 * 86400 + 43200) * 1_000_000 + 500_000),
    ],
)
def test_moments_outside_of_four_digit_years_are_counted_too(text, microseconds):
    found = typed(["1970-01-01 00:00:00", text], 1114).values
    zoned = typed(["1970-01-01 00:00:00+00", text.replace(" BC", "+01 BC")], 1184)

    assert found.view(pa.int64()).to_pylist() == [0, microseconds]
    if "BC" in text:
        hour = 3_600_000_000
        assert zoned.values.view(pa.int64()).to_pylist() == [0, microseconds - hour]


def test_enum_is_a_dictionary_of_its_labels():
    found = typed(["sad", "ok", None, "sad"], 90000, enums={90000})

    assert found.values.to_pylist() == ["sad", "ok", None, "sad"]
    assert found.values.dictionary.to_pylist() == ["sad", "ok"]


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)))
def test_any_integers_are_themselves(numbers):
    texts = [None if number is None else str(number) for number in numbers]

    assert typed(texts, 20).values.to_pylist() == numbers


@given(
    st.integers(1, 76).flatmap(
        lambda precision: st.tuples(
            st.just(precision),
            st.integers(0, precision),
            st.lists(st.none() | st.integers(-(10**precision) + 1, 10**precision - 1)),
        )
    )
)
def test_any_decimals_are_themselves(drawn):
    precision, scale, numbers = drawn
    wanted = [
        None if number is None else Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale))
        for number in numbers
    ]
    texts = [None if one is None else format(one, "f") for one in wanted]

    found = typed(texts, 1700, numeric(precision, scale))

    assert found.values.to_pylist() == wanted
    assert found.unfit.tolist() == []


@given(st.lists(st.none() | st.datetimes()), st.integers(-14 * 60, 14 * 60))
def test_any_timestamps_are_themselves(moments, minutes):
    def text(moment):
        whole = moment.isoformat(sep=" ", timespec="seconds")
        return whole + (f".{moment.microsecond:06d}".rstrip("0") if moment.microsecond else "")

    sign, (hours, rest) = "-" if minutes < 0 else "+", divmod(abs(minutes), 60)
    offset = f"{sign}{hours:02d}" + (f":{rest:02d}" if rest else "")
    plain = [None if one is None else text(one) for one in moments]
    zoned = [None if one is None else one + offset for one in plain]
    since = [
        None if one is None else (one - naive(1970, 1, 1)) // dt.timedelta(microseconds=1)
        for one in moments
    ]

    assert typed(plain, 1114).values.view(pa.int64()).to_pylist() == since
    assert typed(zoned, 1184).values.view(pa.int64()).to_pylist() == [
        None if one is None else one - minutes * 60_000_000 for one in since
    ]


@given(st.lists(st.none() | st.lists(st.none() | st.text(), max_size=4), max_size=6))
def test_any_arrays_of_text_are_themselves(arrays):
    """Quoted throughout; what Postgres leaves unquoted is in the cases above."""

    def element(text):
        if text is None:
            return "NULL"
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    clean = [
        None
        if one is None
        else [None if text is None else text.encode(errors="replace").decode() for text in one]
        for one in arrays
    ]
    texts = [None if one is None else "{" + ",".join(map(element, one)) + "}" for one in clean]

    assert typed(texts, 1009).values.to_pylist() == clean
