"""Expressions that two servers spell differently."""

from __future__ import annotations

import pytest

from penstock.schema.spelling import is_same_but_for_casts


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("CHECK ((((a >= 1) AND (a <= 9)) AND (b > 0)))", "CHECK (((a >= 1) AND (a <= 9) AND (b > 0)))"),
        (
            "((v)::text = ANY ((ARRAY['a'::character varying, 'b'::character varying])::text[]))",
            "((v)::text = ANY (ARRAY[('a'::character varying)::text, ('b'::character varying)::text]))",
        ),
        ("'1'::numeric(10,2)", "'1'"),
        ("'x'::public.\"odd type\"[]", "'x'"),
        ("(now())::timestamp(3) without time zone", "now()"),
    ],
)  # fmt: skip
def test_parentheses_and_casts_do_not_count(one: str, other: str) -> None:
    assert is_same_but_for_casts(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a > 1", "a >= 1"),
        ("v = 'a (b)'", "v = 'a b'"),
        ("v = 'a::text'", "v = 'a'"),
        ("f(a)", "g(a)"),
        ("a::text AND b", "a::text OR b"),
        ("btree (a) WHERE (b > 0)", "btree (a)"),
    ],
)
def test_anything_else_does(one: str, other: str) -> None:
    assert not is_same_but_for_casts(one, other)
