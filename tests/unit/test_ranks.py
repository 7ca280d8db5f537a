"""Parents rank lower than what leads to them, however many tables there are."""

from __future__ import annotations

from itertools import product

from penstock.sinks.postgres.mapping.target import rank_tables
from penstock.table import TableName


def name(text: str) -> TableName:
    return TableName("public", text)


def test_chain_of_many_tables_is_ranked():
    ranks = rank_tables((name(f"t{n}"), name(f"t{n - 1}")) for n in range(1, 3000))

    assert [ranks[name(f"t{n}")] for n in range(3000)] == list(range(3000))


def test_many_ways_to_one_parent_are_not_gone_one_by_one():
    layers = range(1, 60)
    ranks = rank_tables(
        (name(f"{side}{n}"), name(f"{above}{n - 1}"))
        for n, side, above in product(layers, "ab", "ab")
    )

    assert {ranks[name(f"{side}59")] for side in "ab"} == {59}


def test_circle_has_a_first_table_and_those_beside_it_keep_their_order():
    pairs = [("a", "b"), ("b", "c"), ("c", "a"), ("child", "b"), ("a", "root")]

    ranks = rank_tables((name(child), name(parent)) for child, parent in pairs)

    assert set(ranks) == {name(each) for each in ("a", "b", "c", "child", "root")}
    assert ranks[name("root")] == 0 < ranks[name("a")]
    assert ranks[name("child")] > ranks[name("b")]


def test_nothing_refers_to_anything():
    assert rank_tables([]) == {}
