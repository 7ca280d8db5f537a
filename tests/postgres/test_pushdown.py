"""Filters that the source is asked for itself give the same rows as those that the task goes through."""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fix_rules import chain
from penstock.changes.cells import gather
from penstock.changes.copyrows import parse_rows
from penstock.modifiers.copies import ModifiedCopy, modified_copies, relation_of
from penstock.modifiers.filter.spelled import network_address
from penstock.source.shapes import read_named_shapes
from penstock.table import TableName

if TYPE_CHECKING:
    from fix_postgres import Database

T = TableName("public", "things")


@pytest.fixture
def things(source: Database) -> Database:
    source.execute(
        "CREATE TYPE size AS ENUM ('small', 'big', 'huge');"
        "CREATE DOMAIN price AS numeric(12,2); CREATE DOMAIN its_size AS size;"
        "CREATE TABLE things (id int PRIMARY KEY, n numeric, f float8, r real, t text, l text,"
        " c char(6), d date, ts timestamp, tz timestamptz, ti time, u uuid, b bytea, e size, p price, o bool,"
        " j jsonb, s its_size)"
    )
    source.execute(
        "CREATE TYPE pair AS (x int, y int); CREATE EXTENSION IF NOT EXISTS citext SCHEMA public;"
        "ALTER TABLE things ADD a pair, ADD h inet, ADD k cidr, ADD m macaddr, ADD w macaddr8, ADD v interval,"
        " ADD z timetz, ADD x citext, ADD vs interval day to second"
    )
    source.execute(
        "INSERT INTO things VALUES"
        " (1, 'NaN', 'NaN', 0.1, 'a', 'A', 'ab', '2024-01-01', '2024-06-01', '2024-06-01 12:00+02', '23:00',"
        "  'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '\\xff', 'small', 100, true, '{\"x\": 1}', 'big'),"
        " (2, 'Infinity', 'Infinity', 0.2, 'Z', 'a', 'abc', 'infinity', '-infinity', 'infinity', '24:00',"
        "  'b0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '\\x', 'huge', 99.99, false, '{}', 'small'),"
        " (3, 1.10, '-0', 1, 'é''\\{x}', 'b', '', '0044-03-15 BC', '0001-01-01', '1999-12-31 23:59:59.999999+00',"
        "  '00:00', NULL, '\\xfe', 'big', -1, NULL, NULL, NULL),"
        " (4, 0.1000000000000000000000000000000000001, 1e300, -1, '10', NULL, NULL, NULL, NULL, NULL, NULL,"
        "  NULL, NULL, NULL, NULL, NULL, NULL, 'huge')"
    )
    source.execute(
        "UPDATE things SET a = (NULL, NULL), h = '::ffff:1.2.3.4', k = '10.0.0.0/8', m = '08:00:2b:01:02:03',"
        " w = '08:00:2b:01:02:03', v = '1 mon', z = '12:00:00+02', x = 'Ab', vs = '-1 days +02:00' WHERE id = 1;"
        "UPDATE things SET a = (1, NULL), h = '10.1.2.3/8', k = '2001:db8::/32', m = '08:00:2b:01:02:04',"
        " w = '08:00:2b:01:02:03:04:05', v = '30 days', z = '10:00:00+00', x = 'b', vs = '26:00' WHERE id = 2;"
        "UPDATE things SET h = '10.1.2.3', k = '::/96', v = '-1 year -2 mons +3 days -04:05:06.789',"
        " z = '24:00:00-05:30', x = 'AB' WHERE id = 3"
    )
    return source


CONDITIONS: list[tuple[str, str, Any]] = [
    ("n", "gt", "0.1"),
    ("n", "eq", "NaN"),
    ("n", "lte", "1.1"),
    ("n", "in", ["1.1", "Infinity"]),
    ("f", "gte", "0"),
    ("f", "eq", "0"),
    ("f", "lt", "NaN"),
    ("r", "eq", "0.1"),
    ("r", "between", ["0.1", "0.2"]),
    ("t", "gt", "Z"),
    ("t", "eq", "a"),
    ("t", "ne", "a"),
    ("t", "lt", "9"),
    ("t", "eq", "é'\\{x}"),
    ("t", "contains", "'\\{"),
    ("t", "starts_with", "1"),
    ("t", "matches", "^[a-z]$"),
    ("l", "eq", "a"),
    ("l", "gte", "a"),
    ("c", "eq", "ab"),
    ("c", "eq", ""),
    ("c", "gt", "ab"),
    ("d", "lt", "2024-06-01"),
    ("d", "eq", "infinity"),
    ("ts", "gte", "0001-01-01 00:00:00"),
    ("tz", "eq", "2024-06-01T10:00:00Z"),
    ("tz", "lt", "2000-01-01 00:00:00+00"),
    ("ti", "gt", "23:00"),
    ("u", "lte", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"),
    ("b", "lt", "\\xFF"),
    ("e", "gt", "small"),
    ("e", "contains", "g"),
    ("s", "gte", "big"),
    ("p", "gte", "100"),
    ("o", "eq", "true"),
    ("j", "contains", "x"),
    ("e", "is_null", None),
    ("a", "is_null", None),
    ("h", "eq", "::FFFF:102:304"),
    ("h", "in", ["10.1.2.3/32", "10.1.2.3/8"]),
    ("k", "eq", "10.0.0.0/8"),
    ("k", "ne", "2001:0db8::/32"),
    ("m", "eq", "08002B010203"),
    ("w", "in", ["08:00:2b:01:02:03", "08-00-2b-01-02-03-04-05"]),
    ("v", "eq", "30 days"),
    ("v", "eq", "-14 months 3 days -04:05:06.789"),
    ("v", "gt", "29 days 23:59:59.999999"),
    ("v", "lt", "infinity"),
    ("vs", "lte", "-22 hours"),
    ("z", "eq", "12:00+02"),
    ("z", "in", ["10:00Z", "24:00:00-05:30"]),
    ("x", "eq", "aB"),
    ("x", "in", ["AB", "B"]),
    ("x", "gt", "A"),
    ("x", "contains", "B"),
    ("x", "starts_with", "a"),
    ("x", "matches", "^AB$"),
]


@pytest.mark.parametrize(("column", "operator", "value"), CONDITIONS)
@pytest.mark.parametrize("is_inverted", [False, True])
def test_source_and_task_agree_on_every_row(
    things: Database, column: str, operator: str, value: Any, is_inverted: bool
) -> None:
    _require_agreement(things, column, operator, value, is_inverted=is_inverted)


@pytest.mark.parametrize("operator", ["contains", "starts_with"])
@pytest.mark.parametrize("column", ["e", "s"])
@pytest.mark.parametrize("is_inverted", [False, True])
def test_a_cast_that_the_owner_of_a_type_has_made_is_not_called(
    things: Database, column: str, operator: str, is_inverted: bool
) -> None:
    things.execute(
        "CREATE FUNCTION spy(size) RETURNS text LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'called'; END $$; CREATE CAST (size AS text) WITH FUNCTION spy(size)"
    )

    _require_agreement(things, column, operator, "b", is_inverted=is_inverted)


def _require_agreement(
    things: Database, column: str, operator: str, value: Any, *, is_inverted: bool
) -> None:
    condition = {"column": column, "operator": operator}
    if value is not None:
        condition["value"] = value
    where = {"not": condition} if is_inverted else condition
    made = chain({"filter": {"table": "things", "where": where}})
    with things.connect() as connection:
        connection.execute("SET TimeZone = 'Asia/Tokyo'; SET search_path = ''")
        shape = read_named_shapes(connection, [T])[T]
        copies, unfit = modified_copies(made, {T: shape}, 0)
        assert not unfit
        pushed = copies[T].condition or "true"
        asked = connection.execute(
            f"SELECT id FROM public.things WHERE {pushed} ORDER BY id"  # type: ignore[arg-type]
        ).fetchall()
    with things.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        copy = ModifiedCopy(made.of(T).with_shape(shape), relation_of(shape), (), 0)
        listed = ", ".join(f'"{name}"' for name in copy.source_columns)
        with (
            connection.cursor() as cursor,
            cursor.copy(f"COPY things ({listed}) TO STDOUT") as rows,
        ):
            lines = copy.begin(("id",)).rows([bytes(row) for row in rows])
    found = gather(parse_rows(b"".join(lines), 1).cells[0]).to_pylist()
    own = sorted(int(each) for each in found)

    if copies[T].is_whole:
        assert own == [each for (each,) in asked]
    else:
        assert set(own) <= {each for (each,) in asked}
    assert (
        copies[T].is_whole
        or operator == "matches"
        or column == "c"
        or "é" in str(value)
        or column in ("s", "x")
        or value == "infinity"
    )


ADDRESSES = st.integers(0, 2**128 - 1).map(IPv6Address) | st.lists(
    st.sampled_from([0, 1, 0xFFFF, 0x102]), min_size=8, max_size=8
).map(lambda words: IPv6Address(b"".join(word.to_bytes(2) for word in words)))


@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(ADDRESSES, min_size=300, max_size=300))
def test_addresses_are_spelled_as_postgres_spells_them(
    source: Database, addresses: list[IPv6Address]
) -> None:
    texts = [each.exploded for each in addresses]
    with source.connect() as connection:
        asked = connection.execute("SELECT inet(t)::text FROM unnest(%s::text[]) t", [texts])
        wanted = [each for (each,) in asked.fetchall()]

    assert [f"{network_address(each, 'inet')}/128" for each in texts] == wanted


def test_citext_is_equal_without_case_as_postgres_says(things: Database) -> None:
    made = chain({"filter": {"table": "things", "where": "x = 'ab' OR x = 'B'"}})
    with things.connect() as connection:
        shape = read_named_shapes(connection, [T])[T]

    matcher = made.of(T).with_shape(shape).links[0].modifier.matcher
    values = pa.array([b"Ab", b"b", b"AB", None, b"c"])

    assert matcher.matches({"x": values}, 5).to_pylist() == [True, True, True, None, False]
