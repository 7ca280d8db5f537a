"""Names of tables, and the rules that choose them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadTableRule
from penstock.table import TableName, TableRule, TableRules

ORDERS = TableName("public", "orders")
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


def rules(*texts: str) -> tuple[TableRule, ...]:
    return tuple(TableRule.parse(text) for text in texts)


@pytest.mark.parametrize(
    ("text", "schema", "name"),
    [
        ("orders", "public", "orders"),
        ("sales.orders", "sales", "orders"),
        ("public.*", "public", None),
        ("*.orders", None, "orders"),
        ("*.*", None, None),
        ("*", "public", None),
        (" sales.orders ", "sales", "orders"),
        ("Sales.Orders", "Sales", "Orders"),
        ('"odd.name"."x y"', "odd.name", "x y"),
        ('"odd.name".orders', "odd.name", "orders"),
        ('sales."*"', "sales", "*"),
        ('"say ""hi"""', "public", 'say "hi"'),
        ("käse.größe", "käse", "größe"),
    ],
)
def test_rule_reads_one_or_two_parts(text, schema, name):
    assert TableRule.parse(text) == TableRule(schema, name)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a.b.c", "has 3 parts"),
        ("a.b.c.d", "has 4 parts"),
        ("", "has an empty part"),
        (".orders", "has an empty part"),
        ("public.", "has an empty part"),
        ("a..b", "has an empty part"),
        ('public.""', "has an empty part"),
        ('"orders', "has an open quote"),
        ('public."a""', "has an open quote"),
        ("public.or*", "has * inside a part"),
        ("*s.orders", "has * inside a part"),
        ('"a"b', "goes on after a quote"),
    ],
)
def test_rule_that_cannot_name_tables_is_refused(text, what):
    with pytest.raises(BadTableRule, match=what.replace("*", r"\*")) as caught:
        TableRule.parse(text)

    assert caught.value.do


@given(NAMES, NAMES)
def test_printed_name_reads_back_as_the_rule_for_that_table_alone(schema, name):
    table = TableName(schema, name)

    rule = TableRule.parse(str(table))

    assert rule == TableRule(schema, name)
    assert rule.is_outright
    assert rule.matches(table)
    assert TableRule.parse(str(rule)) == rule


@given(st.text())
def test_any_text_is_a_rule_or_a_bad_table_rule(text):
    try:
        rule = TableRule.parse(text)
    except BadTableRule:
        return
    assert TableRule.parse(str(rule)) == rule


def test_name_is_printed_with_quotes_only_where_they_are_needed():
    assert str(ORDERS) == "public.orders"
    assert str(TableName("Sales", "größe")) == "Sales.größe"
    assert str(TableName("odd.name", 'a"b')) == '"odd.name"."a""b"'
    assert str(TableName("public", "*")) == 'public."*"'
    assert str(TableRule(None, "*")) == '*."*"'


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("orders", True),
        ("public.*", True),
        ("*.orders", True),
        ("*.*", True),
        ("sales.*", False),
        ("*.order", False),
        ('public."*"', False),
        ("PUBLIC.orders", False),
    ],
)
def test_rule_matches_whole_parts(text, chosen):
    assert TableRule.parse(text).matches(ORDERS) is chosen


def test_exclude_wins_over_include():
    both = TableRules(include=rules("public.*"), exclude=rules("*.audit"))

    assert both.chooses(ORDERS)
    assert not both.chooses(TableName("public", "audit"))
    assert not both.chooses(TableName("sales", "orders"))


def test_exclude_alone_chooses_everything_else():
    only_exclude = TableRules(include=(), exclude=rules("audit"))

    assert only_exclude.chooses(TableName("sales", "audit"))
    assert not only_exclude.chooses(TableName("public", "audit"))


def test_wildcard_does_not_name_a_table_outright():
    chosen = TableRules(include=rules("public.*", "sales.orders"))

    assert chosen.names_outright(TableName("sales", "orders"))
    assert not chosen.names_outright(ORDERS)


def test_insert_only_takes_wildcards():
    chosen = TableRules(include=rules("*.*"), insert_only=rules("logs.*"))

    assert chosen.takes_inserts_only(TableName("logs", "visits"))
    assert not chosen.takes_inserts_only(ORDERS)
