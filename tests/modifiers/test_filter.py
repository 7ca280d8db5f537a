"""A filter compares values as what their columns are, and turns UPDATEs into what they are at the sink."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from fix_changes import plain
from fix_rules import chain, document, modified, shape
from penstock.config import pipeline_from_document
from penstock.errors import ModifierError, PipelineFileError, RuleUnfit, ValueNotSent
from penstock.modifiers.copies import relation_of
from penstock.modifiers.filter.comparison import compare
from penstock.modifiers.filter.rows import NoRows
from penstock.modifiers.filter.where import read_where
from penstock.modifiers.modifier import modify
from penstock.run.rules import idle_findings, rule_findings
from penstock.sql.column_types import ColumnType, Family
from penstock.table import TableName
from penstock.testing import UNCHANGED, changes, delete, insert, relation, transaction, update

LSN = 0x16B3748


def filtered(where: Any, kind: str, values: list[str | None], **more: Any) -> list[str | None]:
    """Which values of a column pass."""
    described = shape("t", {"id": "int8", "v": kind})
    pieces = changes(
        [
            relation(relation_of(described)),
            *transaction(
                LSN,
                *(insert(relation_of(described), [str(n), v]) for n, v in enumerate(values)),
            ),
        ]
    )
    rule = {"filter": {"table": "t", "where": where, **more}}
    found = plain(modified([rule], described, pieces))
    return [None if each.after[1] is None else each.after[1].decode() for each in found]


def where(operator: str, value: Any = None, **more: Any) -> dict[str, Any]:
    given = {"column": "v", "operator": operator, **more}
    return given if value is None else {**given, "value": value}


@pytest.mark.parametrize(
    ("kind", "condition", "values", "wanted"),
    [
        ("int4", where("gte", "18"), ["9", "18", "100", None], ["18", "100"]),
        ("int8", where("lt", 0), ["-9223372036854775808", "0", "9"], ["-9223372036854775808"]),
        ("int8", where("eq", "9007199254740993"), ["9007199254740992", "9007199254740993"], ["9007199254740993"]),
        ("numeric", where("eq", "1.10"), ["1.1", "1.100", "1.1000000000000000000000000000000001"], ["1.1", "1.100"]),
        ("numeric", where("gt", "0.1"), ["0.1", "0.10000000000000000000001", "NaN", "Infinity", "-Infinity"], ["0.10000000000000000000001", "NaN", "Infinity"]),
        ("numeric", where("lte", "1e50"), ["9" * 50, "1" + "0" * 50, "1" + "0" * 51], ["9" * 50, "1" + "0" * 50]),
        ("numeric", where("eq", "NaN"), ["NaN", "1"], ["NaN"]),
        ("price", where("gte", "100"), ["99.99", "100.00", "1000.00"], ["100.00", "1000.00"]),
        ("float8", where("gt", "1e308"), ["1e309", "NaN", "Infinity", "1"] [1:], ["NaN", "Infinity"]),
        ("float8", where("eq", "0"), ["-0", "0", "1e-300"], ["-0", "0"]),
        ("float4", where("eq", "0.1"), ["0.1", "0.2"], ["0.1"]),
        ("float8", where("lt", "-1"), ["-Infinity", "-1.5", "-1", "NaN"], ["-Infinity", "-1.5"]),
        ("text", where("gt", "Z"), ["a", "Z", "z", "é"], ["a", "z", "é"]),
        ("text", where("lt", "10"), ["9", "1", "10"], ["1"]),
        ("text", where("eq", "true"), ["true", "t"], ["true"]),
        ("text", where("eq", "ABC", ignore_case=True), ["abc", "Abc", "x"], ["abc", "Abc"]),
        ("varchar", where("in", ["a", "b"]), ["a", "b", "c", None], ["a", "b"]),
        ("bpchar", where("eq", "ab"), ["ab    ", "abc   "], ["ab    "]),
        ("bpchar", where("matches", "^ab$"), ["ab    ", "abc   "], ["ab    "]),
        ("bpchar", where("contains", " "), ["ab    ", "a c   "], ["a c   "]),
        ("bool", where("eq", "true"), ["t", "f", None], ["t"]),
        ("bool", where("ne", True), ["t", "f", None], ["f"]),
        ("date", where("between", ["2024-01-01", "2024-12-31"]), ["2023-12-31", "2024-01-01", "2024-12-31", "infinity"], ["2024-01-01", "2024-12-31"]),
        ("date", where("lt", "0001-01-01"), ["0044-03-15 BC", "-infinity", "2024-01-01"], ["0044-03-15 BC", "-infinity"]),
        ("date", where("eq", "infinity"), ["infinity", "-infinity"], ["infinity"]),
        ("timestamptz", where("eq", "2024-06-01T12:00:00+02:00"), ["2024-06-01 10:00:00+00", "2024-06-01 12:00:00+00"], ["2024-06-01 10:00:00+00"]),
        ("timestamptz", where("gte", "2024-06-01 00:00:00+00"), ["2024-06-01 00:30:00+01", "2024-06-01 00:00:00.000001+00", "12024-01-01 00:00:00+00"], ["2024-06-01 00:00:00.000001+00", "12024-01-01 00:00:00+00"]),
        ("timestamp", where("lt", "2024-06-01"), ["2024-05-31 23:59:59.999999", "2024-06-01 00:00:00"], ["2024-05-31 23:59:59.999999"]),
        ("time", where("gt", "23:00"), ["22:00:00", "23:00:00.1", "24:00:00"], ["23:00:00.1", "24:00:00"]),
        ("uuid", where("eq", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"), ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "b0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"], ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
        ("bytea", where("lt", "\\xFF"), ["\\xfe", "\\xff", "\\x"], ["\\xfe", "\\x"]),
        ("size", where("gt", "small"), ["small", "big", "huge", None], ["big", "huge"]),
        ("its_size", where("lte", "big"), ["small", "big", "huge"], ["small", "big"]),
        ("text", where("is_null"), ["a", None], [None]),
        ("text", {"not": where("is_null")}, ["a", None], ["a"]),
        ("text", {"not": where("eq", "a")}, ["a", "b", None], ["b"]),
        ("text", {"any": [where("eq", "a"), where("is_null")]}, ["a", "b", None], ["a", None]),
        ("int4", {"all": [where("gt", 1), where("lt", 3)]}, ["1", "2", "3"], ["2"]),
        ("text", where("contains", "John"), ["john doe", "John Doe"], ["John Doe"]),
        ("text", where("starts_with", "a"), ["ab", "ba"], ["ab"]),
        ("text", where("matches", "^a.c$"), ["abc", "abcd"], ["abc"]),
        ("citext", where("eq", "ÄB"), ["äb", "Äb", "ab", None], ["äb", "Äb"]),
        ("citext", where("in", ["AB", "x"]), ["ab", "X", "y"], ["ab", "X"]),
        ("citext", where("ne", "ab"), ["AB", "c"], ["c"]),
        ("citext", where("gt", "B"), ["a", "c", "C", "b"], ["c", "C"]),
        ("citext", where("contains", "B"), ["ab", "AB", "c"], ["ab", "AB"]),
        ("citext", where("starts_with", "A"), ["ab", "ba"], ["ab"]),
        ("citext", where("matches", "^A.$"), ["ab", "abc"], ["ab"]),
        ("interval", where("eq", "1 month"), ["1 mon", "30 days", "29 days 24:00:00", "31 days"], ["1 mon", "30 days", "29 days 24:00:00"]),
        ("interval", where("lt", "0 sec"), ["-1 days +23:59:59", "-00:00:00.1", "00:00:00", "-infinity"], ["-1 days +23:59:59", "-00:00:00.1", "-infinity"]),
        ("inet", where("in", ["10.0.0.1/32", "::ffff:1.2.3.4", "2001:DB8:0:0::1"]), ["10.0.0.1", "10.0.0.1/8", "::ffff:1.2.3.4", "2001:db8::1"], ["10.0.0.1", "::ffff:1.2.3.4", "2001:db8::1"]),
        ("cidr", where("eq", "10.0.0.1/32"), ["10.0.0.1/32", "10.0.0.0/8"], ["10.0.0.1/32"]),
        ("macaddr", where("ne", "08002B010203"), ["08:00:2b:01:02:03", "08:00:2b:01:02:04"], ["08:00:2b:01:02:04"]),
        ("timetz", where("eq", "12:00+02:00"), ["12:00:00+02", "10:00:00+00"], ["12:00:00+02"]),
        ("jsonb", where("contains", '"x"'), ['{"x": 1}', '{"y": 1}'], ['{"x": 1}']),
    ],
)  # fmt: skip
def test_rows_are_compared_by_the_type_of_the_column(kind, condition, values, wanted) -> None:
    assert filtered(condition, kind, values) == wanted


@pytest.mark.parametrize(
    ("kind", "condition", "values", "wanted"),
    [
        ("text", where("eq", "Electronics"), ["Electronics", "electronics", None], ["Electronics"]),
        ("text", where("contains", "John"), ["john doe", None], []),
        ("text", where("lt", "1000.00"), ["999.99", "1000", None], ["1000"]),
        ("numeric", where("lt", "1000.00"), ["999.99", "1000.00", None], ["999.99"]),
        ("timestamptz", where("eq", "2024-06-01T12:00:00Z"), ["2024-06-01 14:00:00+02", None], ["2024-06-01 14:00:00+02"]),
        *(("int4", where(operator, 0), [None], []) for operator in ("eq", "ne", "lt", "lte", "gt", "gte")),
        ("text", where("ne", "a"), [None, "b"], ["b"]),
        # Otherwise than with pg_flo, which goes by the look of the rule's value.
        ("text", where("eq", "true"), ["true"], ["true"]),
        ("text", where("ne", "1"), ["a"], ["a"]),
    ],
)  # fmt: skip
def test_values_of_pg_flos_tests_are_compared_as_its_users_know_it(
    kind, condition, values, wanted
) -> None:
    assert filtered(condition, kind, values) == wanted


@pytest.mark.parametrize(
    ("kind", "condition", "what"),
    [
        ("int4", where("eq", "1.5"), "column v: a value that cannot be an integer"),
        ("int4", where("eq", "2147483648"), "cannot be an integer"),
        ("numeric", where("gt", "many"), "cannot be a numeric"),
        ("float8", where("gt", "1e999"), "cannot be a double precision"),
        ("float4", where("lt", "1e39"), "cannot be a real"),
        ("float8", where("gt", "1e-400"), "cannot be a double precision"),
        ("bool", where("eq", "yes"), "cannot be a boolean"),
        ("bool", where("lt", "true"), "operator lt on column v of type boolean"),
        ("date", where("eq", "2024-02-30"), "cannot be a date"),
        ("timestamptz", where("eq", "2024-01-01 00:00:00"), "cannot be a timestamp with time zone"),
        ("timestamp", where("eq", "2024-01-01 00:00:00Z"), "cannot be a timestamp without"),
        ("uuid", where("eq", "x"), "cannot be an uuid"),
        ("bytea", where("eq", "abc"), "cannot be a bytea"),
        ("size", where("eq", "tiny"), "cannot be a public.size"),
        ("json", where("eq", "{}"), "operator eq on column v of type json"),
        ("jsonb", where("in", ["{}"]), "operator in on column v of type jsonb"),
        ("money", where("eq", "1"), "operator eq on column v of type money"),
        ("interval", where("gt", "soon"), "cannot be an interval"),
        ("inet", where("eq", "10.0.0.300"), "cannot be an inet"),
        ("inet", where("gt", "10.0.0.3"), "operator gt on column v of type inet"),
        ("cidr", where("eq", "10.0.0.1/8"), "cannot be a cidr"),
        ("int4", where("contains", "1"), "operator contains on column v of type integer"),
        ("text", where("matches", "("), "no regular expression"),
        ("int4", where("eq", "1", ignore_case="true"), "to ignore case"),
        ("text", {"column": "w", "operator": "eq", "value": "1"}, "column w is not there"),
    ],
)
def test_rule_that_cannot_be_asked_of_the_column_is_an_error_of_the_rule(
    kind, condition, what
) -> None:
    with pytest.raises(RuleUnfit) as caught:
        filtered(condition, kind, ["1"])

    assert what in caught.value.what
    assert caught.value.do


@pytest.mark.parametrize("condition", [where("eq", "1"), "v > '1'"])
def test_column_that_the_source_computes_is_said_to_be_one(condition) -> None:
    described = shape("t", {"id": "int8", "v": "text"})
    generated = described.columns[1].model_copy(update={"generated": "s", "expression": "id + 1"})
    described = described.model_copy(update={"columns": (described.columns[0], generated)})

    with pytest.raises(RuleUnfit, match="column v is generated") as caught:
        chain({"filter": {"table": "t", "where": condition}}).of(described.table).with_shape(
            described
        )

    assert "id + 1" in caught.value.do


SHAPE = shape("orders", {"id": "int8", "total": "int4", "note": "text"})
FULL = shape("orders", {"id": "int8", "total": "int4", "note": "text"}, identity="f")
RULE = {
    "filter": {"table": "orders", "where": {"column": "total", "operator": "gte", "value": 100}}
}


def moved(described, *messages: bytes, rule: Any = RULE) -> list[Any]:
    pieces = changes([relation(relation_of(described)), *transaction(LSN, *messages)])
    found = plain(modified([rule], described, pieces))
    return [(each.operation, texts(each.after), texts(each.before)) for each in found]


def texts(row: Any) -> Any:
    return row and tuple(each.decode() if isinstance(each, bytes) else each for each in row)


def test_update_with_the_old_row_moves_rows_in_and_out() -> None:
    table = relation_of(FULL)
    low, high, more = ["1", "5", "a"], ["1", "100", "a"], ["1", "200", "b"]

    found = moved(
        FULL,
        update(table, high, before=low),
        update(table, more, before=high),
        update(table, low, before=more),
        update(table, low, before=low),
        delete(table, before=low),
        delete(table, before=high),
    )

    assert found == [
        ("I", tuple(high), None),
        ("U", tuple(more), tuple(high)),
        ("D", None, tuple(more)),
        ("D", None, tuple(high)),
    ]


def test_update_without_the_old_row_stays_an_update_or_becomes_a_delete() -> None:
    table = relation_of(SHAPE)

    found = moved(
        SHAPE,
        update(table, ["1", "100", UNCHANGED]),
        update(table, ["1", "5", UNCHANGED]),
        update(table, ["3", "5", "x"], key=["2"]),
        update(table, ["4", "500", "x"], key=["3"]),
        delete(table, key=["9"]),
    )

    assert found == [
        ("U", ("1", "100", UNCHANGED), None),
        ("D", None, ("1", None, None)),
        ("D", None, ("2", None, None)),
        ("U", ("4", "500", "x"), ("3", None, None)),
        ("D", None, ("9", None, None)),
    ]


def test_rule_of_the_key_alone_knows_what_the_old_row_was() -> None:
    table = relation_of(SHAPE)
    rule = {
        "filter": {"table": "orders", "where": {"column": "id", "operator": "lt", "value": "10"}}
    }

    found = moved(
        SHAPE,
        update(table, ["1", "5", UNCHANGED]),
        update(table, ["11", "5", UNCHANGED]),
        update(table, ["2", "5", "a"], key=["12"]),
        update(table, ["13", "5", "a"], key=["2"]),
        delete(table, key=["14"]),
        delete(table, key=["3"]),
        rule=rule,
    )

    assert found == [
        ("U", ("1", "5", UNCHANGED), None),
        ("I", ("2", "5", "a"), None),
        ("D", None, ("2", None, None)),
        ("D", None, ("3", None, None)),
    ]


def test_value_that_the_update_left_alone_is_needed_and_stops_the_table() -> None:
    table = relation_of(SHAPE)
    rule = {
        "filter": {"table": "orders", "where": {"column": "note", "operator": "eq", "value": "x"}}
    }

    with pytest.raises(ValueNotSent) as caught:
        moved(SHAPE, update(table, ["1", "100", UNCHANGED]), rule=rule)
    assert "REPLICA IDENTITY FULL" in caught.value.do
    assert "test" in caught.value.where

    full = relation_of(FULL)
    found = moved(FULL, update(full, ["1", "7", UNCHANGED], before=["1", "5", "x"]), rule=rule)
    assert [each[0] for each in found] == ["U"], "the old row has it"


def test_row_that_moves_in_needs_all_its_values() -> None:
    table = relation_of(SHAPE)
    rule = {
        "filter": {"table": "orders", "where": {"column": "id", "operator": "lt", "value": "10"}}
    }

    with pytest.raises(ValueNotSent):
        moved(SHAPE, update(table, ["2", "5", UNCHANGED], key=["12"]), rule=rule)


def test_rule_looks_at_the_operations_that_it_names() -> None:
    table = relation_of(FULL)
    rule = {"filter": {**RULE["filter"], "operations": ["INSERT"]}}

    found = moved(
        FULL,
        insert(table, ["1", "5", "a"]),
        insert(table, ["2", "500", "a"]),
        update(table, ["3", "5", "a"], before=["3", "600", "a"]),
        delete(table, before=["4", "5", "a"]),
        rule=rule,
    )

    assert [each[0] for each in found] == ["I", "U", "D"]


def test_tables_that_stop_are_reported_and_others_go_on() -> None:
    other = shape("other", {"id": "int8"})
    bound = chain(
        {"filter": {"table": "orders", "where": {"column": "gone", "operator": "is_null"}}}
    )
    bound = bound.bound({SHAPE.table: SHAPE})
    refused: dict[TableName, ModifierError] = {}
    first, second = relation_of(SHAPE), relation_of(other.model_copy(update={"id": 2}))
    stream = [
        relation(first),
        relation(second),
        *transaction(LSN, insert(first, ["1", "1", "a"]), insert(second, ["1"])),
    ]

    found = modify(pickle.loads(pickle.dumps(bound)), changes(stream), refused)

    assert [each.relation.table.name for each in found] == ["other"]
    assert list(refused) == [SHAPE.table]


@pytest.mark.parametrize(
    ("given", "table", "excluded", "has_rows"),
    [
        ({"include": ["s.*"]}, "s.a", False, True),
        ({"include": ["s.*"]}, "public.a", True, True),
        ({"include": ["*.t"]}, "x.t", False, True),
        ({"include": ["*"]}, "public.a", False, True),
        ({"exclude": ["public.audit"]}, "public.audit", True, True),
        ({"exclude": ["public.audit"]}, "public.a", False, True),
        ({"include": ["public.*"], "schema_only": ["public.log"]}, "public.log", False, False),
        ({"include": ["public.log"], "schema_only": ["public.*"]}, "public.log", False, True),
        ({"include": ["public.log"], "schema_only": ["public.*"]}, "public.b", False, False),
        ({"exclude": ["public.log"], "schema_only": ["public.*"]}, "public.log", True, True),
        ({"schema_only": ["public.log"]}, "public.a", False, True),
    ],
)
def test_tables_are_chosen_as_pgstream_chooses_them(given, table, excluded, has_rows) -> None:
    made = chain({"filter": {"tables": given}})
    name = TableName(*table.split("."))

    assert made.excludes(name) is excluded
    assert made.of(name).lacks_rows is not has_rows


def test_rule_holds_for_the_sinks_that_it_names() -> None:
    sinks = {"lines": {"kind": "stdout"}, "other": {"kind": "stdout"}}
    rule = {"filter": {"tables": {"exclude": ["public.audit"]}, "sinks": ["lines"]}}
    pipeline = pipeline_from_document(document(rule, sinks=sinks), "test")

    assert [each.is_for("lines") for each in pipeline.modifiers] == [True]
    assert [each.is_for("other") for each in pipeline.modifiers] == [False]


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        ({"filter": {"tables": {"include": ["a"], "exclude": ["b"]}}}, "tables.exclude: stands beside include"),
        ({"filter": {"tables": {}}}, "wanted include, exclude or schema_only"),
        ({"filter": {"tables": {"include": ["a.b.c"]}}}, "3 parts"),
        ({"filter": {"tables": {"include": ["a*"]}}}, "* inside a part"),
        ({"filter": {"where": {"column": "a", "operator": "is_null"}}}, "wanted a filter with table:"),
        ({"filter": {"table": "t"}}, "one of where: and rows: none"),
        ({"filter": {"table": "t", "rows": "none", "where": "a = 1"}}, "one of where: and rows: none"),
        ({"filter": {"table": "t", "rows": "some"}}, "modifiers[0].filter.rows is 'some'"),
        ({"filter": {"table": "t", "where": {"operator": "eq", "value": 1}}}, "a condition with a column"),
        ({"filter": {"table": "t", "where": {"column": "a", "operator": "=", "value": 1}}}, "'=' is no operator"),
        ({"filter": {"table": "t", "where": {"column": "a", "operator": "eq"}}}, "a value; is_null asks for NULL"),
        ({"filter": {"table": "t", "where": {"column": "a", "operator": "in", "value": []}}}, "at least one value"),
        ({"filter": {"table": "t", "where": {"column": "a", "operator": "between", "value": [1]}}}, "two values"),
        ({"filter": {"table": "t", "where": {"column": "a", "op": "eq", "value": 1}}}, "where.op is not a known key"),
        ({"filter": {"table": "t", "where": {"all": []}}}, "at least one condition"),
        ({"filter": {"table": "t", "where": {"all": [{"column": "a", "operator": "is_null"}], "column": "b"}}}, "stands beside all"),
        ({"filter": {"table": "t", "where": "a ="}}, "SQL that does not parse"),
        ({"filter": {"table": "t", "where": "a = (SELECT 1)"}}, "a query inside the expression"),
        ({"filter": {"table": "t", "where": "random() > 0.5"}}, "not the same when a batch is repeated"),
        ({"filter": {"table": "t", "where": "sum(a) > 1"}}, "looks at several rows"),
        ({"filter": {"table": "t", "where": "a > 1) OR (1=1"} }, None),
        ({"filter": {"table": "t", "where": "a), (b"}}, "more than one expression"),
        ({"filter": {"table": "t", "where": "a = 1", "operations": ["merge"]}}, "operations[0] is 'merge'"),
        ({"filter": {"table": "t", "where": "a = 1", "operations": []}}, "insert, update, delete"),
        ({"filter": {"table": "t", "where": "a = 1", "sinks": ["nowhere"]}}, "'nowhere' is no sink"),
        ({"filtr": {}}, "modifiers[0].filtr is not a known key"),
        ({"filter": {"table": "t", "rows": "none"}, "route": {}}, None),
        ("filter", "modifiers[0] is 'filter', wanted a mapping"),
    ],
)  # fmt: skip
def test_bad_rule_is_named_with_its_place(rule, what) -> None:
    if what is None and "filter" in rule and len(rule) == 1:
        pipeline_from_document(document(rule), "test")
        return
    with pytest.raises(PipelineFileError) as caught:
        pipeline_from_document(document(rule), "shop.yml")

    assert what is None or what in caught.value.what
    assert "shop.yml" in caught.value.where
    assert caught.value.do


@pytest.mark.parametrize(
    "rule",
    [
        {"table": "t", "rows": "none", "operations": ["insert"]},
        {"tables": {"schema_only": ["t"]}, "operations": ["delete", "update"]},
    ],
)
def test_operations_without_a_condition_are_read_and_reported_as_having_no_effect(rule) -> None:
    described = shape("t", {"id": "int8"})
    pipeline = pipeline_from_document(document({"filter": rule}), "shop.yml")

    [one] = rule_findings(pipeline, "lines", {described.table: described})
    [idle] = idle_findings(pipeline)

    assert str(one.error) == str(idle.error)
    assert one.severity == "warning"
    assert "operations has no effect" in one.what
    assert "shop.yml" in one.place
    assert pipeline.modifiers[0].modifier_for(described.table) == NoRows()


def test_operations_that_say_what_holds_anyway_are_not_reported() -> None:
    rule = {"table": "t", "rows": "none", "operations": ["insert", "update", "delete"]}
    pipeline = pipeline_from_document(document({"filter": rule}), "shop.yml")

    assert list(idle_findings(pipeline)) == []


@pytest.mark.parametrize(
    "value",
    [
        "12345678901234567.1234567890123456789",
        "99999999999999999999.99999999999999999",
        "0.00000000000000000000000000000000000001",
        "1" * 200 + "." + "1" * 200,
    ],
)
def test_number_of_a_rule_may_have_any_number_of_digits(value) -> None:
    numbers = shape("orders", {"id": "int8", "total": "numeric"})
    table = relation_of(numbers)

    def passing(operator: str, *totals: str) -> list[bytes]:
        where = {"column": "total", "operator": operator, "value": value}
        rule = {"filter": {"table": "orders", "where": where}}
        messages = [insert(table, [str(n), total]) for n, total in enumerate(totals)]
        pieces = changes([relation(table), *transaction(1, *messages)])
        return [each.after[0] for each in plain(modified([rule], numbers, pieces))]

    assert passing("eq", value, value + "1") == [b"0"]
    assert passing("lt", "0", "-1.5") == [b"0", b"1"]


def test_case_of_column_and_rule_is_ignored_by_the_same_tables() -> None:
    values = pa.array(["İZMİR".encode(), "ΟΔΟΣ".encode(), b"x"])
    for text, wanted in (("İZMİR", [True, False, False]), ("ΟΔΟΣ", [False, True, False])):
        condition = read_where(
            {"column": "c", "operator": "eq", "value": text, "ignore_case": True}
        )
        kind = ColumnType(Family.TEXT, "text", "text")
        assert compare(condition, values, kind).to_pylist() == wanted


def test_table_that_is_renamed_away_from_its_rules_is_refused() -> None:
    made = chain(RULE, {"filter": {"table": "kept", "rows": "none"}})
    renamed = SHAPE.model_copy(update={"name": "purchases"})

    made.require_fit(SHAPE, SHAPE)
    with pytest.raises(RuleUnfit, match=r"called public\.purchases from here on"):
        made.require_fit(renamed, SHAPE)
    made.require_fit(renamed.model_copy(update={"name": "kept"}), SHAPE)
    made.require_fit(renamed, SHAPE.model_copy(update={"name": "other"}))
