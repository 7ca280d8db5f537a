"""Which changes of a column's type leave documents of a search sink as they are, and which indexes serve on."""

from __future__ import annotations

import pytest

from penstock.sinks.search.mapping import Mapper, conflicts, missing
from penstock.sinks.search.options import SearchOptions
from penstock.sinks.search.widening import keeps_documents
from penstock.testing import table


def keeps(before: str, after: str, **options: str) -> bool:
    given = {"url": "http://127.0.0.1:1", **options}
    return keeps_documents(before, after, Mapper.of(SearchOptions.model_validate(given)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("smallint", "integer"),
        ("smallint", "bigint"),
        ("integer", "bigint"),
        ("integer[]", "bigint[]"),
        ("character varying(10)", "character varying(20)"),
        ("character varying(10)", "character varying"),
        ("character varying(10)", "text"),
        ("character varying", "text"),
        ("text", "character varying"),
        ("text[]", "character varying[]"),
        ("numeric(8,2)", "numeric(12,2)"),
        ("numeric(20,2)", "numeric"),
        ("timestamp(3) with time zone", "timestamp with time zone"),
        ("timestamp(3) without time zone", "timestamp(6) without time zone"),
        ("bit varying(3)", "bit varying(4)"),
    ],
)
def test_wider_type_keeps_documents(before: str, after: str) -> None:
    assert keeps(before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("bigint", "integer"),
        ("integer", "numeric"),
        ("integer", "oid"),
        ("integer", "text"),
        ("integer", "bigint[]"),
        ("character varying(20)", "character varying(10)"),
        ("text", "character varying(10)"),
        ("character(3)", "character(4)"),
        ("character(3)", "text"),
        ("character varying(3)", "character(3)"),
        ("numeric(8,2)", "numeric(8,3)"),  # 1.50 becomes 1.500
        ("numeric(8,2)", "numeric(9,3)"),
        ("numeric(8,2)", "numeric"),  # another field
        ("numeric(15,2)", "numeric(16,2)"),  # another field
        ("numeric", "numeric(8,2)"),
        ("numeric(3,-2)", "numeric(4,-2)"),
        ("real", "double precision"),  # 0.1 becomes 0.10000000149011612
        ("timestamp(3) with time zone", "timestamp(2) with time zone"),
        ("timestamp without time zone", "timestamp with time zone"),
        ("date", "timestamp without time zone"),
        ("json", "jsonb"),
        ("public.integer", "bigint"),
        ('"integer"', "bigint"),
    ],
)
def test_other_type_does_not(before: str, after: str) -> None:
    assert not keeps(before, after)


def test_field_is_what_the_options_say() -> None:
    assert keeps("numeric(8,2)", "numeric", numeric_as="keyword")
    assert keeps("numeric(15,2)", "numeric(16,2)", numeric_as="double")
    assert not keeps("numeric(8,2)", "numeric(9,3)", numeric_as="keyword")


def test_index_of_an_earlier_state_in_which_bytea_is_binary_serves_on() -> None:
    mapper = Mapper.of(SearchOptions.model_validate({"url": "http://127.0.0.1:1"}))
    wanted, texts = (
        mapper.properties(table(1, "t", {"id": 17, "a": kind, "b": "text"}), "opensearch")
        for kind in (17, "text")
    )
    has = {**wanted, "a": {"type": "binary"}}
    assert wanted["a"]["type"] == "keyword"
    assert (conflicts(has, wanted), missing(has, wanted)) == ([], {})
    assert conflicts(has, texts) == ["a"]
    assert conflicts(texts, {**wanted, "a": {"type": "long"}}) == ["a"]
