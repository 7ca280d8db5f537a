"""SQL over the columns of a row: filters and computed columns, typed, the same in stream and copy."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from pydantic_core import PydanticCustomError

from fix_changes import plain
from fix_rules import modified, shape
from penstock.errors import ExpressionFails, RuleUnfit, ValueNotSent
from penstock.modifiers.copies import relation_of
from penstock.modifiers.sql import set_columns
from penstock.sql.expression import Expression
from penstock.sql.text import SqlText, connect, read_expression, read_strangers_expression
from penstock.testing import UNCHANGED, changes, delete, insert, relation, transaction, update

LSN = 0x16B3748
COLUMNS = {
    "id": "int8",
    "total": "numeric",
    "status": "text",
    "country": "varchar",
    "placed": "timestamptz",
    "ok": "bool",
    "doc": "jsonb",
    "size": "size",
}
SHAPE = shape("orders", COLUMNS)
FULL = shape("orders", COLUMNS, identity="f")
TABLE = relation_of(SHAPE)


def row(number: int = 1, **values: Any) -> list[Any]:
    given = {"id": str(number), **values}
    return [given.get(name) for name in COLUMNS]


def passing(text: str, *given: list[Any]) -> list[int]:
    rule = {"filter": {"table": "orders", "where": text}}
    pieces = changes([relation(TABLE), *transaction(LSN, *(insert(TABLE, each) for each in given))])
    return [int(each.after[0]) for each in plain(modified([rule], SHAPE, pieces))]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("total >= 100 AND status IN ('paid','shipped') AND lower(country) <> 'xx'", [1]),
        ("total = 99.990", [2]),
        ("ok", [1]),
        ("NOT ok", [2]),
        ("placed < TIMESTAMPTZ '2024-06-01 12:00:00+02'", [2]),
        ("doc->>'k' = 'v'", [1]),
        ("size = 'big'", [1]),
        ("status IS NULL", [3]),
        ("status <> 'x' OR status IS NULL -- a comment", [1, 2, 3]),
        ("Total > 0", [1, 2]),
        ("true", [1, 2, 3]),
    ],
)
def test_sql_keeps_the_rows_for_which_it_is_true(text, wanted) -> None:
    rows = [
        row(1, total="100.00", status="paid", country="DE", placed="2024-06-01 11:00:00+00", ok="t", doc='{"k": "v"}', size="big"),
        row(2, total="99.99", status="paid", country="xx", placed="2024-06-01 09:59:59.999999+00", ok="f"),
        row(3),
    ]  # fmt: skip

    assert passing(text, *rows) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("lower(v) <> 'xx'", [1, 3]),
        ("v = 'ab'", [1]),
        ("length(v) = 2", [1, 2]),
        ("v || 'x' = 'abx'", [1]),
        ("v = ''", [3]),
    ],
)
def test_blanks_that_pad_a_value_are_no_part_of_it_in_sql_as_in_postgres(text, wanted) -> None:
    described = shape("codes", {"id": "int8", "v": "bpchar"})
    rule = {"filter": {"table": "codes", "where": text}}
    table = relation_of(described)
    rows = [["1", "ab    "], ["2", "XX    "], ["3", "      "], ["4", None]]
    messages = [insert(table, each) for each in rows]

    pieces = changes([relation(table), *transaction(LSN, *messages)])

    assert [int(each.after[0]) for each in plain(modified([rule], described, pieces))] == wanted
    [(_, after, _)] = apply_set({"w": "v || '.'"}, described, messages[0])
    assert after[2] == b"ab."


def test_citext_is_compared_without_case_in_sql_and_keeps_it() -> None:
    described = shape("people", {"id": "int8", "Name": "citext"})
    table = relation_of(described)
    messages = [insert(table, [str(n), name]) for n, name in enumerate(["Ab", "x", None], start=1)]
    pieces = changes([relation(table), *transaction(LSN, *messages)])

    for text in ("\"Name\" = 'aB'", "\"Name\" IN ('AB')", "\"Name\" LIKE 'a%'", "\"Name\" < 'B'"):
        rule = {"filter": {"table": "people", "where": text}}
        assert [each.after[0] for each in plain(modified([rule], described, pieces))] == [b"1"]
    [(_, after, _)] = apply_set({"w": "\"Name\" || '!'"}, described, messages[0])
    assert after[2] == b"Ab!"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("amount > 1", "the SQL names column amount"),
        ("total + 1", "the SQL gives DECIMAL"),
        ("no_such_function(total) > 1", "does not suit the columns"),
        ("placed > 5", "does not suit the columns"),
        ("id > 'abc'", "Could not convert string 'abc'"),
        ("placed > 'yesterday'", "yesterday"),
        ("placed::date > '2024-13-01'", "2024-13-01"),
        ("id IN (1, 'x')", "Could not convert string 'x'"),
    ],
)
def test_sql_that_does_not_fit_the_table_is_an_error_of_the_rule(text, what) -> None:
    with pytest.raises(RuleUnfit) as caught:
        passing(text, row())

    assert what in caught.value.what


@pytest.mark.parametrize(
    ("name", "text"),
    [("id", "'abc'"), ("small", "'100000'"), ("small", "100000"), ("u", "'x'")],
)
def test_constant_that_cannot_be_of_the_columns_type_is_an_error_of_the_rule(name, text) -> None:
    described = shape("items", {"id": "int8", "small": "int2", "u": "uuid"}, key=())

    with pytest.raises(RuleUnfit, match="does not suit the columns"):
        set_columns({name: text}, described.table).with_shape(described)


@pytest.mark.parametrize(
    "text",
    [
        "coalesce(status, 'x')::int > 0",  # of a column that has no NULL
        "status::date > placed::date",  # of one whose texts are dates
        "status > '1' AND total > '1.5' AND size = 'big' AND doc->>'k' > '0'",
    ],
)
def test_sql_that_suits_some_rows_is_no_error_of_the_rule(text) -> None:
    passing(text)


def test_sql_that_fails_for_a_row_stops_without_showing_it() -> None:
    with pytest.raises(ExpressionFails) as caught:
        passing("status::int > 1", row(status="a secret"))

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("unnest(string_split(status, ',')) = 'a'", "unnest(), which gives several rows"),
        ("string_split(status, ',').unnest() = 'a'", "unnest(), which gives several rows"),
        ("generate_subscripts(string_split(status, ','), 1) > 1", "gives several rows"),
        ("regexp_split_to_table(status, ',') = 'a'", "gives several rows"),
        ("list_transform([1], lambda x : unnest([x, x])) = [1]", "gives several rows"),
        ("json_group_array(status) = '[]'", "looks at several rows"),
        ("geomean(id) > 1", "looks at several rows"),
        ("pg_get_viewdef(id) = 'x'", "reads more than the row"),
        ("age(placed) > INTERVAL 1 DAY", "is not the same when a batch is repeated"),
        ("placed < ago(INTERVAL 1 DAY)", "is not the same when a batch is repeated"),
        ("pg_sleep(1) IS NULL", "is not the same when a batch is repeated"),
    ],
)
def test_sql_that_is_not_of_one_row_or_not_repeatable_is_refused(text, why) -> None:
    for read in (read_expression, read_strangers_expression):
        with pytest.raises(PydanticCustomError) as caught:
            read(text)
        assert why in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "age(placed, placed) = INTERVAL 0 DAY",
        "len(generate_series(1, 3)) = 3",
        "split_part(status, ',', 1) = 'paid'",
        "nullif(status, 'x') = 'paid'",
        "list_sum([id, 1]) > 1",
    ],
)
def test_function_that_gives_one_answer_for_a_row_passes(text) -> None:
    assert passing(text, row(1, status="paid", placed="2024-06-01 11:00:00+00")) == [1]


def test_sql_that_gives_other_than_one_answer_for_each_row_stops() -> None:
    """Whatever the parser let through: no row may get the answer of another."""
    expression = Expression.of(SqlText("unnest(string_split(status, ','))", ("status",)), SHAPE)

    with pytest.raises(ExpressionFails, match="3 answers for 2 rows"):
        expression.compute({"status": pa.array([b"a,b", b"c"])}, 2)


@pytest.mark.parametrize("value", ["NaN", "1" * 40, "0.1234567890123456789"])
def test_number_that_sql_cannot_hold_exactly_stops(value) -> None:
    with pytest.raises(ExpressionFails):
        passing("total > 1", row(total=value))


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "COPY (SELECT 1) TO '/tmp/penstock-test'",
        "ATTACH '/tmp/penstock-test.db'",
        "SET enable_external_access = true",
        "SET threads = 4",
        "INSTALL httpfs",
    ],
)
def test_database_of_expressions_reads_no_file_and_takes_no_setting(statement) -> None:
    with pytest.raises(Exception, match=r"Permission|configuration"):
        connect().execute(statement)


def apply_set(given: dict[str, str], described, *messages: bytes):
    bound = set_columns(given, described.table).with_shape(described)
    bound = pickle.loads(pickle.dumps(bound))
    [piece] = changes([relation(relation_of(described)), *transaction(LSN, *messages)])
    found = plain([bound.apply(piece)])
    assert bound.modified_relation(piece.relation) == relation_of(bound.modified_shape(described))
    return [(each.operation, each.after, each.before) for each in found]


def test_set_changes_columns_and_adds_new_ones_with_their_types() -> None:
    given = {
        "country": "upper(country)",
        "vat": "total * 0.19",
        "label": "status || '-' || id",
        "seen": "placed + INTERVAL 1 DAY",
        "is_ok": "ok",
    }

    [(_, after, _)] = apply_set(
        given,
        SHAPE,
        insert(TABLE, row(1, total="100", status="paid", country="de", placed="2024-06-01 10:00:00+00", ok="t")),
    )  # fmt: skip

    assert after[3] == b"DE"
    assert float(after[8]) == 19.0
    assert after[9] == b"paid-1"
    assert after[10].startswith(b"2024-06-02 10:00:00")
    assert after[10].endswith(b"+00")
    assert after[11] == b"t"
    seen = set_columns(given, SHAPE.table).modified_shape(SHAPE)
    assert [column.type for column in seen.columns[9:]] == [
        "text",
        "timestamp with time zone",
        "boolean",
    ]
    assert all(column.id < 0 for column in seen.columns[8:])


def test_set_computes_old_rows_and_leaves_unchanged_values_alone() -> None:
    given = {"id": "id + 100", "twice": "status || status"}
    full = relation_of(FULL)

    found = apply_set(
        given,
        SHAPE,
        update(TABLE, row(2, status=UNCHANGED), key=["1"]),
        delete(TABLE, key=["2"]),
    )
    assert found[0][1][0] == b"102"
    assert found[0][1][8] is UNCHANGED
    assert found[0][2][0] == b"101"
    assert found[0][2][8] is None
    assert found[1][2][0] == b"102"

    found = apply_set(
        given, FULL, update(full, row(1, status=UNCHANGED), before=row(1, status="a"))
    )
    assert found[0][1][8] == b"aa"
    assert found[0][2][8] == b"aa"


def test_set_that_needs_a_value_that_was_not_sent_stops() -> None:
    with pytest.raises(ValueNotSent):
        apply_set(
            {"x": "status || country"}, SHAPE, update(TABLE, row(1, status=UNCHANGED, country="d"))
        )


def test_set_of_a_key_from_other_columns_is_refused() -> None:
    with pytest.raises(RuleUnfit, match="part of the key"):
        apply_set({"id": "id + length(status)"}, SHAPE, insert(TABLE, row(1)))


def test_expressions_are_read_by_many_threads_at_once() -> None:
    texts = [f"upper(name) = 'X{number}'" for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(read_expression, texts))

    assert [each.columns for each in found] == [("name",)] * len(texts)
