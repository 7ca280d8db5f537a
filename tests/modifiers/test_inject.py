"""inject: stable ids, what identifies a row, and a version, as pgstream's injector adds them."""

from __future__ import annotations

import json

import pytest

from fix_rules import chain, modified, shape
from penstock.changes.documents import documents
from penstock.modifiers.copies import relation_of
from penstock.modifiers.inject import InjectOptions, RowOptions, findings, identity_of
from penstock.schema.shape import ConstraintShape, IndexShape
from penstock.testing import changes, delete, insert, relation, transaction

LSN = 0x16B3748
COLUMNS = {"a": "int8", "b": "text", "c": "int8"}


def unique(*columns: int) -> ConstraintShape:
    return ConstraintShape(id=9, name="u", kind="u", definition="UNIQUE", columns=columns)


def index(*columns: int, where: str = "") -> IndexShape:
    return IndexShape(
        id=8, name="i", is_unique=True, definition=f"btree (x){where}", columns=columns
    )


def keyless(*not_null: str, constraints=(), indexes=()):
    described = shape("t", COLUMNS, key=())
    columns = tuple(
        each.model_copy(update={"not_null": each.name in not_null}) for each in described.columns
    )
    return described.model_copy(
        update={"columns": columns, "constraints": tuple(constraints), "indexes": tuple(indexes)}
    )


@pytest.mark.parametrize(
    ("described", "wanted"),
    [
        (shape("t", COLUMNS, key=("a",)), (1,)),
        (shape("t", COLUMNS, key=("c", "a")), (1, 3)),
        (keyless("b", "c", constraints=[unique(3), unique(2)]), (2,)),
        (keyless("c", constraints=[unique(2)], indexes=[index(3)]), (3,)),
        (keyless("a", constraints=[unique(2)]), ()),
        (keyless("a", "b", constraints=[unique(1, 2)]), ()),
        (keyless("a", indexes=[index(1, where=" WHERE (a > 0)")]), ()),
        (keyless(), ()),
    ],
)
def test_identity_is_the_primary_key_or_the_first_column_that_is_unique_and_not_null(
    described, wanted
) -> None:
    assert identity_of(described) == wanted


def test_deferrable_key_identifies_no_row_where_documents_are_rows() -> None:
    key = ConstraintShape(
        id=7, name="p", kind="p", definition="PRIMARY KEY", columns=(1,), is_deferrable=True
    )
    late = unique(2).model_copy(update={"is_deferrable": True})
    described = keyless("a", "b", "c", constraints=[key, late], indexes=[index(3)])
    assert identity_of(described) == (1,)
    assert identity_of(described, deferrable=False) == (3,)
    without = described.model_copy(update={"indexes": ()})
    assert identity_of(without, deferrable=False) == ()
    (found,) = findings(RowOptions(), {without.table: without})
    assert "a primary key that is deferrable" in str(found.error)
    assert list(findings(InjectOptions(), {without.table: without})) == []


def test_documents_carry_what_was_asked_for() -> None:
    described = shape("t", COLUMNS, key=("a",))
    table = relation_of(described)
    stream = [
        relation(table),
        *transaction(LSN, insert(table, ["1", "x", None]), delete(table, key=["1"])),
    ]

    found = documents(modified([{"inject": {}}], described, changes(stream)), "shop")
    metadata = [json.loads(value)["metadata"] for value in found.column("value").to_pylist()]
    assert [each["table_id"] for each in metadata] == ["16400", "16400"]
    assert metadata[0]["column_ids"] == {"a": "16400-1", "b": "16400-2", "c": "16400-3"}
    assert metadata[0]["identity"] == ["16400-1"]
    assert metadata[0]["version"] < metadata[1]["version"]

    rule = {"inject": {"identity": False, "version": False, "column_ids": False}}
    found = documents(modified([rule], described, changes(stream)), "shop")
    assert json.loads(found.column("value")[0].as_py())["metadata"] == {"table_id": "16400"}


def test_rows_that_nothing_identifies_are_no_documents_and_check_says_so() -> None:
    described = keyless()
    table = relation_of(described)
    stream = [relation(table), *transaction(LSN, insert(table, ["1", "x", None]))]

    assert len(documents(modified([{"inject": {}}], described, changes(stream)), "shop")) == 0

    [rule] = chain({"inject": {}}).rules
    [finding] = rule.findings({described.table: described})
    assert finding.severity == "warning"
    assert "nothing identifies its rows" in finding.what
