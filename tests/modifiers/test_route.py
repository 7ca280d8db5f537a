"""Routes: other names for tables and columns, for every kind of sink."""

from __future__ import annotations

from typing import Any

import pytest

from fix_changes import plain
from fix_rules import chain, document, modified, shape
from penstock.changes.decode import TableTruncated
from penstock.changes.documents import documents as make_documents
from penstock.config import pipeline_from_document
from penstock.errors import BadValue, PipelineFileError, RuleUnfit
from penstock.modifiers.copies import relation_of
from penstock.modifiers.route import routes_of
from penstock.sinks.documents.routed import routed
from penstock.table import TableName
from penstock.testing import changes, delete, insert, relation, transaction, truncate, update

LSN = 0x16B3748
USERS = shape("users", {"id": "int8", "name": "text", "secret": "text"})


def stream(described=USERS, *messages: bytes):
    return changes([relation(relation_of(described)), *transaction(LSN, *messages)])


def test_columns_are_renamed_and_dropped_and_operations_left_out() -> None:
    rule = {
        "route": {
            "table": "users",
            "columns": {"id": "customer_id"},
            "drop": ["secret"],
            "operations": ["insert", "update"],
        }
    }
    table = relation_of(USERS)

    found = plain(
        modified(
            [rule],
            USERS,
            stream(
                USERS,
                insert(table, ["1", "a", "s"]),
                update(table, ["2", "b", "s"], key=["1"]),
                delete(table, key=["2"]),
            ),
        )
    )

    assert [(each.operation, each.columns, each.after) for each in found] == [
        ("I", ("customer_id", "name"), (b"1", b"a")),
        ("U", ("customer_id", "name"), (b"2", b"b")),
    ]
    seen = chain(rule).modified_shape(USERS)
    assert [column.name for column in seen.columns] == ["customer_id", "name"]
    assert seen.primary_key is not None
    assert seen.primary_key.definition == 'PRIMARY KEY ("customer_id")'


def test_rule_after_a_route_goes_by_the_new_names() -> None:
    rules = [
        {"route": {"table": "users", "columns": {"name": "called"}}},
        {
            "filter": {
                "table": "users",
                "where": {"column": "called", "operator": "eq", "value": "a"},
            }
        },
    ]
    table = relation_of(USERS)

    found = plain(
        modified(
            rules,
            USERS,
            stream(USERS, insert(table, ["1", "a", "s"]), insert(table, ["2", "b", "s"])),
        )
    )

    assert [each.after for each in found] == [(b"1", b"a", b"s")]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"columns": {"nobody": "x"}}, "column nobody is not there"),
        ({"columns": {"name": "id"}}, "two columns would be called id"),
        ({"drop": ["id"]}, "part of the key"),
    ],
)
def test_route_that_does_not_fit_the_table_is_an_error(options, what) -> None:
    with pytest.raises(RuleUnfit) as caught:
        chain({"route": {"table": "users", **options}}).modified_shape(USERS)

    assert what in caught.value.what


def test_targets_are_filled_in_and_one_that_is_named_weighs_more() -> None:
    pipeline = pipeline_from_document(
        document(
            {"route": {"table": "public.*", "target": "raw.{schema}_{table}"}},
            {"route": {"table": "users", "target": "crm.customers"}},
        ),
        "test",
    )
    routes = routes_of(pipeline.modifiers, "lines")

    assert routes.of(TableName("public", "users")) == TableName("crm", "customers")
    assert routes.of(TableName("public", "{schema}")) == TableName("raw", "public_{schema}")
    assert routes.of(TableName("other", "users")) is None


def test_documents_bear_the_names_of_where_they_go() -> None:
    pipeline = pipeline_from_document(
        document({"route": {"table": "users", "target": 'crm."odd name"'}}), "test"
    )
    other = shape("books", {"id": "int8"}).model_copy(update={"id": 2})
    first, second = relation_of(USERS), relation_of(other)
    pieces = changes(
        [
            relation(first),
            relation(second),
            *transaction(
                LSN,
                insert(first, ["1", '"schema":"public","table":"users"', None]),
                insert(second, ["1"]),
            ),
        ]
    )
    batch = make_documents(pieces, "shop")

    found = routed(batch, routes_of(pipeline.modifiers, "lines"))

    assert found.column("schema").to_pylist() == ["crm", "public"]
    assert found.column("table").to_pylist() == ["odd name", "books"]
    values = found.column("value").to_pylist()
    assert '"schema":"crm","table":"odd name"' in values[0]
    assert '\\"schema\\":\\"public\\"' in values[0], "a value of the row stays as it is"
    assert '"schema":"public","table":"books"' in values[1]


POSTGRES = {"kind": "postgres", "url": "postgresql://u@t/d"}


def postgres(rule: dict[str, Any], tables: dict[str, Any]) -> Any:
    sinks = {"target": {**POSTGRES, "tables": tables}}
    rules = document({"route": {**rule, "sinks": ["target"]}}, sinks=sinks)
    return pipeline_from_document(rules, "shop.yml").sinks["target"]


def test_target_of_a_route_is_that_of_the_postgres_sink() -> None:
    options = postgres(
        {"table": "public.*", "target": "raw.{table}"}, {"public.users": {"kind": "history"}}
    )

    rule = options.rule_of(TableName("public", "users"))
    assert rule.kind.value == "history"
    assert str(rule.target) == "raw.{table}"
    assert str(options.rule_of(TableName("public", "books")).target) == "raw.{table}"


@pytest.mark.parametrize(
    ("rule", "tables", "what"),
    [
        ({"table": "users", "target": "a.b"}, {"public.users": {"target": "c.d"}}, "tables.public.users to c.d"),
        ({"table": "users", "columns": {"id": "x"}}, {"public.*": {"columns": ["id"]}}, "names columns"),
        ({"table": "users"}, {}, "wanted a route with target:"),
        ({"target": "a.b"}, {}, "route.table is missing"),
        ({"table": "users", "target": "a.*"}, {}, "wanted one table"),
        ({"table": "users", "drop": ["a"], "columns": {"a": "b"}}, {}, "stands under columns, too"),
        ({"table": "users", "columns": {"a": "c", "b": "c"}}, {}, "each new name is there once"),
    ],
)  # fmt: skip
def test_routes_that_clash_or_say_nothing_are_refused(rule, tables, what) -> None:
    with pytest.raises(PipelineFileError) as caught:
        postgres(rule, tables)

    assert what in caught.value.what
    assert caught.value.do


def test_two_routes_of_one_table_are_refused() -> None:
    rules = [{"route": {"table": "users", "target": each}} for each in ("a.b", "c.d")]

    with pytest.raises(BadValue, match=r"sends public.users to c.d, and the rule at"):
        pipeline_from_document(document(*rules), "shop.yml")


@pytest.mark.parametrize(
    ("operations", "passes"),
    [(["insert", "update"], False), (["insert"], False), (["update", "delete"], True)],
)
def test_truncate_passes_where_deletes_do(operations, passes) -> None:
    """It takes rows away: a target that keeps deleted rows keeps those as well."""
    table = relation_of(USERS)
    rules = [
        {"filter": {"table": "users", "where": "id > 0"}},
        {"route": {"table": "users", "operations": operations}},
    ]
    pieces = stream(USERS, truncate(table), insert(table, ["1", "a", "b"]))

    found = modified(rules, USERS, pieces)

    assert any(isinstance(each, TableTruncated) for each in found) is passes


@pytest.mark.parametrize("target", ["raw.{schema}_{tabel}", "{db}.t", "raw.{}"])
def test_placeholder_of_a_target_that_nothing_stands_for_is_refused(target) -> None:
    with pytest.raises(PipelineFileError, match=r"wanted \{schema\} and \{table\}, and not"):
        pipeline_from_document(
            document({"route": {"table": "public.*", "target": target}}), "shop.yml"
        )
