"""What differs between two pictures, without any server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.schema.difference import (
    as_json,
    compare_sequences,
    compare_tables,
    compare_types,
    describe_difference,
)
from penstock.schema.shape import (
    ColumnShape,
    ConstraintShape,
    FieldShape,
    ForeignKeyShape,
    IndexShape,
    LabelShape,
    SequenceShape,
    TableShape,
    TypeShape,
)
from penstock.schema.unsent import leaves_rows_behind
from penstock.sinks.postgres.ddl.alter_types import is_wider


def column(number: int, name: str, **given: Any) -> ColumnShape:
    return ColumnShape.model_validate(
        {
            "id": number,
            "name": name,
            "type": "integer",
            "type_id": 23,
            "type_kind": "b",
            "not_null": False,
            **given,
        }
    )


KEY = ConstraintShape(
    id=50, name="t_pkey", kind="p", definition="PRIMARY KEY (id)", columns=(1,), used=(1,)
)
CHECK = ConstraintShape(
    id=51, name="positive", kind="c", definition="CHECK ((a > 0))", columns=(2,), used=(2,)
)
INDEX = IndexShape(
    id=60, name="i", is_unique=False, definition="btree (a)", columns=(2,), used=(2,)
)
FOREIGN = ForeignKeyShape(
    id=70,
    name="f",
    columns=(2,),
    referenced_id=9,
    referenced_schema="public",
    referenced_name="p",
    referenced_columns=("id",),
    on_update="a",
    on_delete="a",
)
TABLE = TableShape(
    id=1,
    schema_name="public",
    name="t",
    columns=(column(1, "id", not_null=True), column(2, "a", default="3")),
    constraints=(CHECK, KEY),
    indexes=(INDEX,),
    foreign_keys=(FOREIGN,),
)
SEQUENCE = SequenceShape(
    id=5,
    schema_name="public",
    name="s",
    type="bigint",
    start=1,
    increment=1,
    minimum=1,
    maximum=99,
    cache=1,
    cycles=False,
)
MOOD = TypeShape(
    id=20000,
    schema_name="public",
    name="mood",
    kind="enum",
    labels=(LabelShape(id=1, name="sad"), LabelShape(id=2, name="ok")),
)


def reported(after: TableShape, before: TableShape = TABLE) -> list[tuple[str, str]]:
    found = compare_tables(before, after)
    for each in found:
        json.dumps(as_json(each))
    return [(each.op, describe_difference(each)) for each in found]


def with_columns(*columns: ColumnShape) -> TableShape:
    return TABLE.model_copy(update={"columns": columns})


def with_parts(**parts: Any) -> TableShape:
    return TABLE.model_copy(update=parts)


def test_nothing_differs_by_what_is_not_shape():
    moved = column(2, "a", default="3", missing="3")

    after = with_parts(filenode=7, born_in=("p",), columns=(TABLE.columns[0], moved))

    assert compare_tables(TABLE, after) == ()
    assert compare_tables(None, None) == ()


def test_tables_come_go_and_are_renamed():
    (created,), (dropped,) = compare_tables(None, TABLE), compare_tables(TABLE, None)

    assert (created.op, describe_difference(created)) == ("create_table", "table public.t created")
    assert created.after["primary_key"] == ["id"]
    assert (dropped.op, describe_difference(dropped)) == ("drop_table", "table public.t dropped")
    assert reported(with_parts(name="u", schema_name="s")) == [
        ("rename_table", "table public.t renamed to s.u")
    ]


@pytest.mark.parametrize(
    ("given", "op", "line"),
    [
        ({"name": "b"}, "rename_column", "column a renamed to b"),
        (
            {"type": "bigint", "type_id": 20},
            "column_type",
            "column a: type was integer, is bigint",
        ),
        ({"default": None}, "column_default", "column a: default was 3, is none"),
        ({"not_null": True}, "column_not_null", "column a: NOT NULL"),
        ({"identity": "a"}, "column_identity", "column a: identity was none, is always"),
        ({"expression": "(id * 2)"}, "column_generated", "column a: expression was none, is (id * 2)"),
        ({"collation": "x.y"}, "column_collation", "column a: collation was none, is x.y"),
        ({"comment": "secret"}, "column_comment", "column a: another comment"),
    ],
)  # fmt: skip
def test_column_differs(given: dict[str, Any], op: str, line: str):
    after = with_columns(TABLE.columns[0], column(2, **{"name": "a", "default": "3", **given}))

    assert reported(after) == [(op, line)]


def test_column_that_was_made_again_is_another_one():
    after = with_columns(TABLE.columns[0], column(3, "a", default="3", not_null=True))

    assert reported(after)[:2] == [
        ("drop_column", "column a dropped"),
        ("add_column", "column a added: integer DEFAULT 3 NOT NULL"),
    ]


def test_columns_without_ids_are_reported_by_name():
    before = with_columns(column(0, "id"), column(0, "a"))
    after = with_columns(column(0, "id"), column(0, "b"))

    assert [op for op, _ in reported(after, before)] == ["drop_column", "add_column"]


def test_what_follows_from_a_rename_is_no_difference():
    after = with_parts(
        columns=(TABLE.columns[0], column(2, 'x"y', default="3")),
        constraints=(CHECK.model_copy(update={"definition": 'CHECK (("x""y" > 0))'}), KEY),
        indexes=(INDEX.model_copy(update={"definition": 'btree ("x""y")'}),),
    )

    assert [op for op, _ in reported(after)] == ["rename_column"]


def test_type_that_was_renamed_is_no_other_type():
    before = with_columns(column(1, "m", type="public.mood[]", type_id=20001))
    after = with_columns(column(1, "m", type="other.humour[]", type_id=20001))
    modified = with_columns(column(1, "m", type="public.mood(3)[]", type_id=20001))

    assert compare_tables(before, after) == ()
    assert [op for op, _ in reported(modified, before)] == ["column_type"]


def test_what_a_type_is_besides_its_values_is_a_difference():
    words = TypeShape(id=20000, schema_name="public", name="words", kind="domain", base="text")
    spoken = TypeShape(
        id=20001,
        schema_name="public",
        name="spoken",
        kind="composite",
        fields=(FieldShape(id=1, name="a", type="text"),),
    )
    collated = words.model_copy(
        update={"collation": "x.y", "not_null": True, "default": "'secret'"}
    )
    field = spoken.fields[0].model_copy(update={"collation": "x.y"})

    (of_domain,) = compare_types(words, collated)
    (of_composite,) = compare_types(spoken, spoken.model_copy(update={"fields": (field,)}))

    assert of_domain.before == {"kind": "domain", "base": "text"}
    assert of_domain.after == {
        "kind": "domain",
        "base": "text",
        "collation": "x.y",
        "not_null": True,
    }
    assert of_composite.before["fields"] == [{"name": "a", "type": "text"}]
    assert of_composite.after["fields"] == [{"name": "a", "type": "text", "collation": "x.y"}]


def test_parts_come_go_and_change():
    other = {"id": 99, "name": "n"}
    after = with_parts(
        constraints=(CHECK.model_copy(update=other),),
        indexes=(INDEX.model_copy(update={"id": 99, "is_unique": True}),),
        foreign_keys=(FOREIGN.model_copy(update={"name": "g", "on_delete": "c"}),),
        replica_identity="f",
        comment="x",
    )

    assert reported(after) == [
        ("table_comment", "table public.t: another comment"),
        ("primary_key", "primary key was (id), is none"),
        ("drop_constraint", "constraint positive dropped"),
        ("add_constraint", "constraint n added: CHECK ((a > 0))"),
        ("change_index", "index i changed"),
        ("rename_foreign_key", "foreign key f renamed to g"),
        ("change_foreign_key", "foreign key g changed"),
        ("replica_identity", "replica identity was default, is full"),
    ]


def test_part_that_postgres_made_anew_is_the_same():
    after = with_parts(
        constraints=(CHECK, KEY.model_copy(update={"id": 98})),
        indexes=(INDEX.model_copy(update={"id": 99}),),
    )

    assert compare_tables(TABLE, after) == ()


def test_labels_come_and_are_renamed():
    labels = (
        LabelShape(id=3, name="first"),
        LabelShape(id=1, name="blue"),
        LabelShape(id=2, name="ok"),
        LabelShape(id=4, name="last"),
    )
    after = MOOD.model_copy(update={"labels": labels, "name": "humour"})

    assert [(each.op, describe_difference(each)) for each in compare_types(MOOD, after)] == [
        ("rename_type", "type public.mood renamed to public.humour"),
        ("add_label", "label 'first' added to type public.humour before 'blue'"),
        ("rename_label", "label 'sad' of type public.humour renamed to 'blue'"),
        ("add_label", "label 'last' added to type public.humour after 'ok'"),
    ]
    assert [describe_difference(each) for each in compare_types(None, MOOD)] == [
        "type public.mood created"
    ]
    assert [describe_difference(each) for each in compare_types(MOOD, None)] == [
        "type public.mood dropped"
    ]


def test_sequences_differ():
    after = SEQUENCE.model_copy(update={"name": "r", "increment": 2})

    assert [describe_difference(each) for each in compare_sequences(SEQUENCE, after)] == [
        "sequence public.s renamed to public.r",
        "sequence public.r changed",
    ]
    assert [describe_difference(each) for each in compare_sequences(None, after)] == [
        "sequence public.r created"
    ]


def test_json_has_stable_keys():
    (found,) = compare_tables(TABLE, with_columns(TABLE.columns[0], column(2, "b", default="3")))

    assert as_json(found) == {
        "op": "rename_column",
        "kind": "table",
        "schema": "public",
        "name": "t",
        "part": "b",
        "before": "a",
        "after": "b",
    }


@pytest.mark.parametrize(
    ("before", "after", "wider"),
    [
        ("smallint", "bigint", True),
        ("bigint", "integer", False),
        ("integer", "numeric", True),
        ("integer", "numeric(10,2)", False),
        ("real", "double precision", True),
        ("bigint", "double precision", False),
        ("character varying(5)", "character varying(6)", True),
        ("character varying(6)", "character varying(5)", False),
        ("character varying", "character varying(5)", False),
        ("character varying(5)", "character varying", True),
        ("character(3)", "text", True),
        ("character(3)", "character(4)", False),
        ("text", "character varying", True),
        ("numeric(10,2)", "numeric(12,2)", True),
        ("numeric(10,2)", "numeric(12,6)", False),
        ("numeric(10,2)", "numeric", True),
        ("date", "timestamp without time zone", True),
        ("date", "timestamp with time zone", False),
        ("timestamp(3) without time zone", "timestamp without time zone", True),
        ("timestamp(3) without time zone", "timestamp(1) without time zone", False),
        ("integer[]", "bigint[]", True),
        ("integer[]", "bigint", False),
        ("public.mood", "text", True),
        ("public.mood", "public.humour", False),
    ],
)  # fmt: skip
def test_type_holds_all_that_another_does(before: str, after: str, wider: bool):
    assert is_wider(before, after) is wider


DOMAIN = TypeShape(
    id=20001, schema_name="public", name="d", kind="domain", base="integer", default="4"
)


@pytest.mark.parametrize(
    ("given", "is_behind"),
    [
        ({}, False),
        ({"default": "3"}, True),
        ({"missing": "3"}, True),  # whose default went with the same statement
        ({"has_hidden_default": True}, True),  # a rule modifies it
        ({"identity": "a"}, True),
        ({"sequence": SEQUENCE}, True),
        ({"type_kind": "d", "type_id": DOMAIN.id}, True),
        ({"type_kind": "d", "type_id": 20002}, False),
        ({"generated": "s", "expression": "1"}, False),
    ],
    ids=str,
)
def test_column_with_a_value_leaves_rows_behind(given, is_behind):
    added = column(3, "b", **given)
    after = with_parts(columns=(*TABLE.columns, added), types=(DOMAIN,))

    [difference] = compare_tables(TABLE, after)

    assert leaves_rows_behind(difference) is is_behind
    assert "is_filled" not in as_json(difference)


def test_what_makes_other_values_of_rows_leaves_them_behind():
    computed = column(2, "a", generated="s", expression="1")
    before = with_columns(TABLE.columns[0], computed)
    changes = {
        "type": (TABLE, with_columns(TABLE.columns[0], column(2, "a", default="3", type="text"))),
        "key": (TABLE, with_parts(constraints=(CHECK,))),
        "identity": (TABLE, with_parts(replica_identity="n")),
        "no longer computed": (before, with_columns(TABLE.columns[0], column(2, "a"))),
    }
    others = {
        "name": with_columns(TABLE.columns[0], column(2, "z", default="3")),
        "default": with_columns(TABLE.columns[0], column(2, "a", default="4")),
        "gone": with_columns(TABLE.columns[0]),
        "full": with_parts(replica_identity="f"),
    }

    behind = {
        name: any(map(leaves_rows_behind, compare_tables(*pair))) for name, pair in changes.items()
    }
    told = {
        name: any(map(leaves_rows_behind, compare_tables(TABLE, after)))
        for name, after in others.items()
    }

    assert behind == dict.fromkeys(changes, True)
    assert told == dict.fromkeys(others, False)
