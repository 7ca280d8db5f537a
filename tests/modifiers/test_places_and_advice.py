"""What errors of rules say: the line of what is wrong, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fix_rules import document, shape
from fix_transform import SALT
from penstock.config import pipeline_from_document, read_pipeline
from penstock.errors import ModifierError, PenstockError, PipelineFileError
from penstock.modifiers.chain import chain_for
from penstock.modifiers.places import located
from penstock.run.rules import lost_findings, rule_findings
from penstock.testing import changes, insert, relation, table, transaction

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.config import PipelineFile
    from penstock.findings import Finding

USERS = shape("users", {"id": "int8", "email": "text", "born": "date", "name": "text"})
PIPELINE = """name: test
source: {url: postgresql://u@h/d, tables: ["*.*"]}
sinks: {lines: {kind: stdout}}
modifiers:
"""


def written(text: str, directory: Path) -> PipelineFile:
    (directory / "shop.yml").write_text(PIPELINE + text)
    return read_pipeline(directory / "shop.yml", {})


def said(pipeline: PipelineFile) -> list[Finding]:
    lost = lost_findings(pipeline, "lines", [{USERS.table: USERS}])
    return [*lost, *rule_findings(pipeline, "lines", {USERS.table: USERS})]


def test_finding_about_a_column_names_the_line_of_its_rule(tmp_path: Path) -> None:
    pipeline = written(
        "- transform:\n    table: users\n    coverage: strict\n    columns:\n      id: keep\n      born: {with: masking}\n"
        "      nam: keep\n",
        tmp_path,
    )

    found = sorted(each.place for each in said(pipeline))

    file = tmp_path / "shop.yml"
    assert found == [
        f"{file}:10 public.users.born",
        f"{file}:11 public.users",
        f"{file}:6 public.users",
    ]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            "tables:\n  users:\n    email: {with: masking}\n    born: {with: masking}\n  gone: {a: keep}\n",
            {4: "public.users.born", 5: "public.gone", 2: "public.users"},
        ),
        (
            "coverage: strict\ntables:\n  other.*: {a: keep}\n  '*.*':\n    '*mail_': {with: masking}\n",
            {3: "other.*", 5: "*.*", 4: "public.users"},
        ),
        (
            "transformations:\n  table_transformers:\n    - table: users\n      column_transformers:\n        nope: {name: masking}\n",
            {5: "public.users", 3: "public.users"},
        ),
        (
            "tables:\n  users:\n    - {type: transform, column: email, parameters: {type: mask}}\n    - {type: transform, column: born, parameters: {type: mask}}\n",
            {4: "public.users.born", 2: "public.users"},
        ),
    ],
)
def test_finding_about_a_rules_file_names_its_line(text, lines, tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(text)
    pipeline = written("- transform: {rules_file: rules.yml}\n", tmp_path)

    found = {each.place for each in said(pipeline)}

    entry, file = f"{tmp_path}/shop.yml:5", f"{tmp_path}/rules.yml"
    assert found == {f"{entry} {file}:{line} {what}" for line, what in lines.items()}


def test_row_that_a_rule_cannot_be_applied_to_names_the_line_of_the_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_SALT", SALT)
    pipeline = written(
        "- transform:\n    table: users\n    columns:\n      id: keep\n      email: {with: email, invalid_email_action: reject}\n",
        tmp_path,
    )
    one = chain_for(pipeline.modifiers, "lines")
    assert one is not None
    users = table(16400, "users", {"id": "int8", "email": "text"}, key=["id"])
    [piece] = changes([relation(users), *transaction(1, insert(users, ["1", "none"]))])

    with pytest.raises(ModifierError) as caught:
        one.of(USERS.table).apply(piece)

    assert caught.value.where.startswith(f"{tmp_path}/shop.yml:9 public.users.email at ")


@pytest.mark.parametrize(
    ("place", "where", "found"),
    [
        ("shop.yml:1", "public.t", "shop.yml:1 public.t"),
        ("shop.yml:1", "", "shop.yml:1"),
        ("shop.yml:1", "shop.yml:12 public.t", "shop.yml:12 public.t"),
        ("shop.yml:1", "rules.yml:2 public.t", "shop.yml:1 rules.yml:2 public.t"),
        ("shop.yml:1", "shop.yml:1 rules.yml:2 public.t", "shop.yml:1 rules.yml:2 public.t"),
        ("shop modifiers.0", "shop modifiers.0.columns t", "shop modifiers.0.columns t"),
        ("", "public.t", "public.t"),
    ],
)
def test_place_of_the_entry_stands_before_one_of_another_file(place, where, found) -> None:
    assert located(place, where) == found


def where_of(kind: str, value: Any, **more: Any) -> dict[str, Any]:
    return {"filter": {"table": "t", "where": {"column": kind, "value": value, **more}}}


@pytest.mark.parametrize(
    ("rule", "what", "advice"),
    [
        (where_of("a", "x"), "operator is missing, wanted one of eq, ne", "write operator: eq"),
        (
            {"filter": {"table": "t", "where": {"all": [{"column": "a", "operator": "eq", "value": "1"}, {"column": "b"}]}}},
            "operator is missing",
            "write operator: eq",
        ),
        (
            {"route": {"table": "t", "drop": ["a"], "columns": {"a": "b"}}},
            "drop: column a stands under columns, too",
            "take it out of one of the two",
        ),
        ({"filter": {"table": "t", "where": "a >"}}, "it ends where more is wanted", "fix it"),
        ({"filter": {"table": "t", "where": "lower("}}, "it ends where more is wanted", "fix it"),
        ({"filter": {"table": "t", "where": "a = b c"}}, 'near "c", at character 7', "fix it"),
        ({"filter": {"table": "t", "where": "ü = 'ß' c"}}, 'near "c", at character 9', "fix it"),
        ({"filter": {"table": "t", "where": "a =\n b c"}}, 'near "c", at line 2, character 4', "fix it"),
        ({"transform": {"table": "t", "set": {"a": "b c"}}}, 'near "c", at character 3', "fix it"),
    ],
)  # fmt: skip
def test_rule_that_cannot_be_read_says_what_was_written_and_what_to_write(
    rule, what, advice
) -> None:
    with pytest.raises(PipelineFileError) as caught:
        pipeline_from_document(document(rule), "shop.yml")

    assert what in caught.value.what
    assert " AS " not in caught.value.what
    assert advice in caught.value.do


@pytest.mark.parametrize(
    ("kind", "value", "advice"),
    [
        ("timestamptz", "2023-01-31 10:00:00", "add a time zone"),
        ("timestamptz", "2023-01-31", "add a time zone"),
        ("timestamptz", "soon", "write one that can"),
        ("bool", "yes", "write true"),
        ("bool", "0", "write false"),
        ("bool", "perhaps", "write true or false"),
        ("size", "medium", "small, big, huge"),
    ],
)
def test_value_that_cannot_be_of_its_type_says_what_to_write(kind, value, advice) -> None:
    described = shape("t", {"id": "int8", "v": kind})
    rule = where_of("v", value, operator="eq")
    pipeline = pipeline_from_document(document(rule), "shop.yml")

    [one] = rule_findings(pipeline, "lines", {described.table: described})

    assert isinstance(one.error, PenstockError)
    assert one.do.endswith(advice) or advice in one.do
    assert value not in one.do
