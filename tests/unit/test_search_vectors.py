"""Vectors of pgvector's as fields and values of documents: what servers with k-NN are sent."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fix_rules import modified, shape
from penstock.modifiers.copies import relation_of
from penstock.schema.shape import ColumnShape, TypeShape
from penstock.sinks.search.mapping import Mapper, conflicts
from penstock.sinks.search.options import SearchOptions
from penstock.sinks.search.rows import RowWriter, identified
from penstock.testing import UNCHANGED, changes, insert, relation, table, transaction, update

VECTOR_OID = 71000
T = table(16400, "t", {"at": VECTOR_OID, "id": "int8", "note": "text"}, key=["id"])


def of(relation_: Any, type_name: str = "vector", dimensions: int = 3) -> Any:
    columns = tuple(
        replace(each, id=number, type_name=type_name, type_modifier=dimensions)
        if each.type_oid == VECTOR_OID
        else replace(each, id=number)
        for number, each in enumerate(relation_.columns, start=1)
    )
    return replace(relation_, columns=columns)


def mapper(**options: Any) -> Mapper:
    return Mapper.of(SearchOptions.model_validate({"url": "http://127.0.0.1:1", **options}))


def fields(relation_: Any, engine: str = "opensearch", **options: Any) -> dict[str, Any]:
    return mapper(**options).properties(relation_, engine)["at"]


def test_field_is_that_of_the_engine_with_the_declared_dimensions():
    assert fields(of(T)) == {"type": "knn_vector", "dimension": 3}
    assert fields(of(T), "elasticsearch") == {"type": "dense_vector", "dims": 3}
    assert fields(of(T, "halfvec", 2000))["dimension"] == 2000
    assert fields(of(T), vector_as="text")["type"] == "keyword"
    assert fields(of(T, dimensions=-1))["type"] == "keyword", "each row may have others"
    assert fields(of(T, "mood"))["type"] == "keyword"


def test_other_dimensions_are_another_field():
    has, wanted = ({"at": fields(of(T, dimensions=size))} for size in (3, 4))
    assert conflicts(has, wanted) == ["at"]
    has, wanted = ({"at": fields(of(T, dimensions=size), "elasticsearch")} for size in (3, 4))
    assert conflicts(has, wanted) == ["at"]


def test_type_and_dimensions_come_with_the_rule_that_brings_ids():
    described = shape("t", {"id": "int8", "note": "text"})
    column = ColumnShape(
        id=3,
        name="at",
        type="public.vector(3)",
        type_id=VECTOR_OID,
        type_kind="b",
        type_modifier=3,
        not_null=False,
    )
    kind = TypeShape(id=VECTOR_OID, schema_name="public", name="vector", kind="other")
    described = described.model_copy(
        update={"columns": (*described.columns, column), "types": (kind,)}
    )
    known = relation_of(described)
    stream = [relation(known), *transaction(0x5000, insert(known, ["1", "n", "[1,2,3]"]))]

    (piece,) = modified([{"inject": {}}], described, changes(stream))

    assert [each.type_name for each in piece.relation.columns] == ["", "", "vector"]
    assert fields(piece.relation) == {"type": "knn_vector", "dimension": 3}


def documents(*rows: bytes, **options: Any) -> list[dict[str, Any]]:
    (piece,) = changes([relation(T), *transaction(0x5000, *rows)])
    marked = replace(of(piece.relation), injected=None)
    piece = replace(piece, relation=marked)
    known = identified(marked)
    assert known is not None
    batches = RowWriter(known, mapper(**options), "shop", T.table).changes(piece)
    return [json.loads(text) for batch in batches for text in batch.column("value").to_pylist()]


def test_values_are_arrays_of_numbers_and_null_is_no_field():
    rows = [insert(T, ["[1,-2.5,3e-05]", "1", "x"]), insert(T, [None, "2", "x"])]
    first, second = documents(*rows)
    assert first["at"] == [1, -2.5, 3e-05]
    assert ("at" in second, second["id"]) == (False, 2)
    first, second = documents(*rows, vector_as="text")
    assert (first["at"], second["at"]) == ("[1,-2.5,3e-05]", None)


def test_update_without_a_value_that_was_not_sent():
    found = documents(update(T, [None, "1", UNCHANGED]), update(T, ["[1,2,3]", "2", UNCHANGED]))
    assert ["at" in each for each in found] == [False, True]


@pytest.mark.parametrize("value", ['[1,2]} {"x":1', "[a]", "", "[1;2]", "{1,2}"])
def test_what_is_no_vector_is_a_string_that_the_server_refuses_alone(value: str):
    (found,) = documents(insert(T, [value, "1", "x"]))
    assert found["at"] == value
