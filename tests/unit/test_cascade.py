"""What a statement means for tables that it has not described."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock.schema.cascade import settle
from penstock.schema.shape import (
    ColumnShape,
    ForeignKeyShape,
    IndexShape,
    TableShape,
    TypeShape,
)
from penstock.schema.wire import read_reported

if TYPE_CHECKING:
    from penstock.schema.shape import SchemaChange

MOOD = TypeShape(id=20001, schema_name="public", name="mood", kind="enum", spelled="public.mood")
MOODS = TypeShape(
    id=20002,
    schema_name="public",
    name="_mood",
    kind="other",
    is_array=True,
    parts=(20001,),
    spelled="public.mood[]",
)


def column(number: int, name: str, kind: str = "integer", type_id: int = 23) -> ColumnShape:
    return ColumnShape(
        id=number, name=name, type=kind, type_id=type_id, type_kind="b", not_null=False
    )


PARENT = TableShape(id=1, schema_name="public", name="parent", columns=(column(1, "id"),))
CHILD = TableShape(
    id=2,
    schema_name="public",
    name="child",
    columns=(column(1, "parent"), column(2, "moods", "public.mood[]", 20002)),
    foreign_keys=(
        ForeignKeyShape(
            id=9,
            name="fk",
            columns=(1,),
            referenced_id=1,
            referenced_schema="public",
            referenced_name="parent",
            referenced_columns=("id",),
            on_update="a",
            on_delete="a",
        ),
    ),
    indexes=(IndexShape(id=7, name="i", is_unique=False, definition="btree (parent)"),),
    types=(MOODS, MOOD),
)
INDEX = {"id": 8, "table_id": 2, "name": "j", "is_unique": True, "numbers": [1], "key_count": 1}


def after(*known: TableShape, now: TableShape | None = None, **reported: Any) -> SchemaChange:
    document = json.dumps({"format": 1, "tag": "ALTER INDEX", **reported})
    return settle(read_reported(document, "test"), {each.id: each for each in known}, lambda _: now)


def dumped(*things: Any) -> list[dict[str, Any]]:
    return [each.model_dump(mode="json") for each in things]


def test_foreign_key_leads_to_the_new_names():
    renamed = PARENT.model_copy(update={"name": "parents", "columns": (column(1, "key"),)})

    _, child = after(PARENT, CHILD, tables=dumped(renamed)).tables

    key = child.foreign_keys[0]
    assert (key.referenced_name, key.referenced_columns) == ("parents", ("key",))
    assert child.model_copy(update={"foreign_keys": CHILD.foreign_keys}) == CHILD


def test_type_with_another_name_is_spelled_so_in_columns():
    moved = {"schema_name": "other", "spelled": "other.mood"}
    types = [MOOD.model_copy(update=moved), MOODS.model_copy(update={"spelled": "other.mood[]"})]

    change = after(PARENT, CHILD, types=dumped(*types))

    [child] = change.tables
    assert [each.type for each in child.columns] == ["integer", "other.mood[]"]
    assert [each.name for each in change.types] == ["mood"], "an array is nobody's own"


def test_index_that_is_reported_alone_is_added_renamed_and_dropped():
    [added] = after(CHILD, indexes=[{**INDEX, "definition": "btree (parent)"}]).tables
    [renamed] = after(CHILD, indexes=[{**INDEX, "id": 7, "name": "k", "is_unique": False}]).tables
    [dropped] = after(CHILD, dropped_indexes=[{"id": 7}]).tables

    assert [each.name for each in added.indexes] == ["i", "j"]
    assert [(each.name, each.definition) for each in renamed.indexes] == [("k", "btree (parent)")]
    assert dropped.indexes == ()


def test_index_whose_table_nobody_had_locked_is_looked_up():
    made = IndexShape(id=8, name="j", is_unique=True, definition="btree (parent)", columns=(1,))
    now = CHILD.model_copy(update={"indexes": (made,), "name": "later"})

    [child] = after(CHILD, now=now, indexes=[INDEX]).tables
    gone = after(CHILD, now=None, indexes=[INDEX])

    assert child.name == "child"
    assert [each.definition for each in child.indexes] == ["btree (parent)"] * 2
    assert gone.tables == ()


def test_index_that_was_made_anew_without_a_word_is_the_one_that_is_altered():
    """As REINDEX CONCURRENTLY does: another id, the same name."""
    anew = {**INDEX, "name": "k", "is_unique": False, "numbers": []}
    made = CHILD.indexes[0].model_copy(update={"id": 8, "name": "k"})
    now = CHILD.model_copy(update={"indexes": (made,)})

    [renamed] = after(CHILD, now=now, indexes=[anew]).tables
    [gone_since] = after(CHILD, now=None, indexes=[anew]).tables
    [dropped] = after(
        CHILD, dropped_indexes=[{"id": 8, "schema_name": "public", "name": "i"}]
    ).tables
    of_another = after(CHILD, dropped_indexes=[{"id": 8, "schema_name": "other", "name": "i"}])
    # It is there itself, and the other is like it.
    there = CHILD.model_copy(update={"indexes": (*CHILD.indexes, made)})
    [with_twin] = after(CHILD, now=there, indexes=[anew]).tables

    assert [(each.id, each.name) for each in renamed.indexes] == [(7, "k")]
    assert gone_since == renamed
    assert dropped.indexes == ()
    assert of_another.tables == ()
    assert [(each.id, each.name) for each in with_twin.indexes] == [(7, "i"), (8, "k")]


def test_table_that_nobody_has_described_is_looked_up():
    assert after(PARENT, now=CHILD, indexes=[INDEX]).tables == (CHILD,)


def test_schema_with_another_name_moves_its_tables():
    moved = {"id": 1, "schema_name": "other", "name": "parent"}

    parent, child = after(PARENT, CHILD, moved_tables=[moved]).tables

    assert (parent.schema_name, child.schema_name) == ("other", "public")
    assert child.foreign_keys[0].referenced_schema == "other"
