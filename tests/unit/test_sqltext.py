"""Text of expressions, constraints and indexes, as servers spell it and as nobody may."""

from __future__ import annotations

import pytest

from penstock.sinks.postgres.expressions.sql_text import (
    UnreadableTextError,
    expressions_of_constraint,
    expressions_of_index,
    is_constant,
    is_name,
    is_type,
    qualified_names,
    require_expression,
)


@pytest.mark.parametrize(
    "text",
    ["1", "(-1)", "'-1'::integer", "0.5", "true", "NULL::character varying", "'x''y'::text",
     "'{}'::jsonb", "ARRAY[]::text[]", "'a'::character varying(3)", "'12:00'::time without time zone",
     "'-infinity'::timestamptz", "'x'::\"char\""],
)  # fmt: skip
def test_constants_are_known_by_their_text(text: str) -> None:
    assert is_constant(text)


@pytest.mark.parametrize(
    "text",
    ["now()", "'x'::public.d", "'a' || 'b'", "1; 2", "'a'::text::integer", "'x'::text(f())", "a",
     "'a' 'b'", "1 + 1", "E'\\'' || f() || ''", "'x'::text DEFAULT f()"],
)  # fmt: skip
def test_what_is_no_constant_is_not_taken_for_one(text: str) -> None:
    assert not is_constant(text)


@pytest.mark.parametrize(
    "text",
    ["a + 1", "lower((b)::text)", "'a)'::text", "'it''s (;'", '"odd )" > 1', "E'\\')' || b",
     "ARRAY[1, 2]", "(a)[1]", "(data ->> 'x'::text)", "a - '-1'::integer", "U&'\\0041'"],
)  # fmt: skip
def test_expressions_are_in_balance(text: str) -> None:
    require_expression(text)


@pytest.mark.parametrize(
    "text",
    ["", " ", "1) AS x, (2", "1; DROP TABLE t", "a -- b", "a /* b */", "$$x$$", "'open", '"open', "(a]",
     "((a)", "a)", "E'\\'", "a; --", "1 /*", "$1",
     "x'1'::text'", "a'b'", "1'a'", '"a""', "'a''"],
)  # fmt: skip
def test_text_that_could_break_out_is_refused(text: str) -> None:
    with pytest.raises(UnreadableTextError):
        require_expression(text)


@pytest.mark.parametrize(
    ("definition", "wanted"),
    [
        ("CHECK ((a > 0))", ["(a > 0)"]),
        ("CHECK ((a > 0)) NO INHERIT NOT VALID", ["(a > 0)"]),
        ("CHECK ((a > 0)) NOT ENFORCED", ["(a > 0)"]),
        ("UNIQUE (a, b)", []),
        ("UNIQUE NULLS NOT DISTINCT (a) INCLUDE (b) DEFERRABLE INITIALLY DEFERRED", []),
        ("PRIMARY KEY (id, valid_at WITHOUT OVERLAPS)", []),
        (
            "EXCLUDE USING gist (room WITH =, tsrange(a, b) WITH &&) WHERE ((x > 0)) DEFERRABLE",
            ["tsrange(a, b)", "((x > 0))"],
        ),
        ("EXCLUDE USING gist (c public.ops WITH OPERATOR(public.&&))", []),
    ],
)
def test_expressions_of_constraints_are_found(definition: str, wanted: list[str]) -> None:
    assert expressions_of_constraint(definition) == wanted


@pytest.mark.parametrize(
    "definition",
    ["CHECK ((a > 0)), ADD COLUMN x int DEFAULT f()", "CHECK (a) REFERENCES x", "FOREIGN KEY (a)",
     "UNIQUE (a), DROP COLUMN b", "CHECK", "CHECK a", "CHECK (a) (f())", "EXCLUDE (a WITH =)",
     "CHECK (a); DROP TABLE t", "PRIMARY KEY (a) -- x", ""],
)  # fmt: skip
def test_definitions_that_no_server_gives_are_refused(definition: str) -> None:
    with pytest.raises(UnreadableTextError):
        expressions_of_constraint(definition)


@pytest.mark.parametrize(
    ("definition", "wanted"),
    [
        ("btree (a)", []),
        ('btree (a DESC NULLS LAST, b COLLATE "C" text_pattern_ops)', []),
        ("btree (lower(b) text_pattern_ops, ((a + 1)) DESC)", ["lower(b)", "((a + 1))"]),
        ("gist (b public.gist_trgm_ops (siglen='32'))", []),
        ('btree ("odd ( name", public.f(a))', ["public.f(a)"]),
        ("btree (COALESCE(a, 1)) INCLUDE (c) WITH (fillfactor='70') WHERE (a > 0) AND b",
         ["COALESCE(a, 1)", "(a > 0) AND b"]),
        ("btree (a) WHERE f(a)", ["f(a)"]),
    ],
)  # fmt: skip
def test_expressions_of_indexes_are_found(definition: str, wanted: list[str]) -> None:
    assert expressions_of_index(definition) == wanted


@pytest.mark.parametrize("definition", ["", "btree", "(a)", "btree (a,)", "btree (a) WHERE"])
def test_indexes_that_no_server_gives_are_refused(definition: str) -> None:
    with pytest.raises(UnreadableTextError):
        expressions_of_index(definition)


def test_names_with_a_schema_are_found_outside_of_strings() -> None:
    found = qualified_names("""'{a.b}'::ev.od[] || "Odd"."x""y"('c.d'::text) || t.*""")
    assert found == {("ev", "od"), ("Odd", 'x"y')}


@pytest.mark.parametrize(
    "text",
    ["integer", "double precision", "character varying(3)[]", "timestamp(3) with time zone", '"char"',
     "numeric(10,-2)", "interval year to month", "interval second(3)", "bit varying(5)", "ev.e", "ev.e[]",
     '"Odd ""one"."t y(p;e"', "public.geometry(Point,4326)", "time without time zone", "public.vector(3)"],
)  # fmt: skip
def test_types_are_known(text: str) -> None:
    assert is_type(text)


@pytest.mark.parametrize(
    "text",
    ["", "integer DEFAULT f()", "integer, x text", "integer NOT NULL", "int CHECK (true)", "text; DROP TABLE t",
     "int) INHERITS (x", "ev.f(g())", "text COLLATE x", "a.b.c", "int GENERATED ALWAYS AS (f()) STORED",
     "text -- x", "(int)", "int[(SELECT 1)]"],
)  # fmt: skip
def test_what_is_more_than_a_type_is_not_taken_for_one(text: str) -> None:
    assert not is_type(text)


def test_names_of_collations_are_known() -> None:
    assert all(map(is_name, ['"C"', 'pg_catalog."default"', 'public."odd ""one"', "ucs_basic"]))
    assert not any(map(is_name, ["", '"C" DEFAULT f()', "a.b.c", "x NOT NULL", "x, y int", "f()"]))
