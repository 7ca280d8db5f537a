"""Names in rules that no table, and no column, has: each family finds them, of all sources together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fix_rules import document, shape
from penstock.config import pipeline_from_document
from penstock.run.rules import find_rules, lost_findings, rule_findings
from penstock.schema.sequences import FoundSequences
from penstock.sinks.chosen import ChosenTables

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.findings import Finding
    from penstock.schema.shape import TableShape

ORDERS = shape("orders", {"id": "int8", "secret": "text", "email": "text"})
USERS = shape("users", {"id": "int8", "name": "text"}).model_copy(update={"id": 16500})
WHERE = {"column": "id", "operator": "gt", "value": "1"}


def found(*rules: dict[str, Any], tables: tuple[TableShape, ...] = (ORDERS, USERS)):
    pipeline = pipeline_from_document(document(*rules), "shop")
    shapes = {each.table: each for each in tables}
    return list(lost_findings(pipeline, "lines", [shapes])), list(
        rule_findings(pipeline, "lines", shapes)
    )


@pytest.mark.parametrize(
    "rule",
    [
        {"filter": {"table": "ordres", "where": WHERE}},
        {"filter": {"table": "ordres", "where": "id > 1"}},
        {"filter": {"table": "ordres", "rows": "none"}},
        {"filter": {"tables": {"exclude": ["public.ordres"]}}},
        {"filter": {"tables": {"include": ["public.ordres", "users"]}}},
        {"filter": {"tables": {"schema_only": ["public.ordres"]}}},
        {"route": {"table": "ordres", "drop": ["secret"]}},
        {"route": {"table": "ordres", "target": "crm.orders"}},
        {"inject": {"table": "ordres"}},
        {"transform": {"table": "ordres", "set": {"total": "1"}}},
        {"transform": {"table": "ordres", "column": "email", "with": "masking"}},
    ],
)
def test_table_that_is_named_and_not_followed_is_an_error_that_knows_the_nearest(rule) -> None:
    [one], others = found(rule)

    assert (one.severity, one.code) == ("error", "PEN-701")
    assert "not followed" in one.what
    assert one.place.startswith("shop modifiers.0.")
    assert one.place.endswith("public.ordres")
    assert one.do == "write public.orders"
    assert others == []


@pytest.mark.parametrize(
    ("rule", "what", "advice"),
    [
        ({"filter": {"table": "sale.*", "rows": "none"}}, "no table", "public.*"),
        ({"filter": {"tables": {"exclude": ["*.ordres"]}}}, "no table", "write *.orders"),
        ({"route": {"table": "*.*", "drop": ["secrt"]}}, "no table has a column secrt", "write secret"),
        ({"route": {"table": "public.*", "columns": {"nam": "x"}}}, "no table has a column nam", "write name"),
        ({"transform": {"column": "*mail_*", "with": "masking"}}, "no column fits *mail_*", "email"),
        ({"transform": {"table": "publik.*", "column": "email", "with": "masking"}}, "no table", "write public.*"),
    ],
)  # fmt: skip
def test_pattern_that_is_for_nothing_is_a_warning(rule, what, advice) -> None:
    [one], others = found(rule)

    assert (one.severity, one.code) == ("warning", "PEN-701")
    assert what in one.what
    assert advice in one.do
    assert others == []


@pytest.mark.parametrize(
    "rule",
    [
        {"filter": {"tables": {"include": ["*.*"], "schema_only": ["users"]}}},
        {"route": {"table": "*.*", "drop": ["secret"], "columns": {"name": "called"}}},
        {"inject": {}},
        {"transform": {"table": "*.*", "column": "*mail*", "with": "masking"}},
    ],
)
def test_rule_that_is_for_something_is_no_finding(rule) -> None:
    assert found(rule) == ([], [])


def test_source_without_tables_lacks_what_is_named() -> None:
    [one], _ = found({"inject": {"table": "orders"}}, {"inject": {}}, tables=())

    assert one.do == "take it out"


def two_sources(*rules: dict[str, Any], state: Path) -> list[Finding]:
    whole = document(*rules) | {"state": str(state)}
    del whole["source"]
    whole["sources"] = {
        name: {"url": f"postgresql://u@h/{name}", "tables": ["*.*"]} for name in ("eu", "us")
    }
    choices = {
        name: ChosenTables([each.table], [], [each], {}, FoundSequences())
        for name, each in (("eu", ORDERS), ("us", USERS))
    }
    return list(find_rules(pipeline_from_document(whole, "shop"), choices))


def test_table_is_lost_only_where_no_source_follows_it(tmp_path: Path) -> None:
    [one] = two_sources(
        {"transform": {"table": "orders", "column": "email", "with": "masking"}},
        {"transform": {"table": "users", "column": "name", "with": "masking"}},
        {"route": {"table": "*.*", "drop": ["secret"]}},
        {"inject": {"table": "user"}},
        state=tmp_path,
    )

    assert one.place == "shop modifiers.3.inject public.user"


def test_rule_that_does_not_fit_hides_no_finding_behind_it_and_makes_none_up() -> None:
    lost, findings = found(
        {"route": {"table": "orders", "drop": ["secrt"]}},
        {"filter": {"table": "orders", "where": {"column": "idd", "operator": "eq", "value": "1"}}},
        {"transform": {"table": "orders", "column": "email", "with": "masking"}},
        {"transform": {"table": "orders", "column": "id", "with": "masking"}},
    )

    assert lost == []
    assert [each.place.split()[1] for each in findings] == [
        "modifiers.0.route",
        "modifiers.1.filter",
        "modifiers.3.transform.column",
    ]
