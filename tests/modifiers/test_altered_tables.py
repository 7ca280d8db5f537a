"""A table that is renamed or altered keeps what rules did to it, or stops: nothing comes bare."""

from __future__ import annotations

import pytest

from fix_rules import chain, document
from fix_transform import SALT, read_transform, shape_of
from penstock.config import pipeline_from_document
from penstock.errors import RuleUnfit
from penstock.lsn import Lsn
from penstock.modifiers.chain import Chain
from penstock.modifiers.rule import Rule
from penstock.schema.mark import CHANGE, Mark
from penstock.schema.past_shapes import PastShapes
from penstock.schema.shape import SchemaChange, SequenceShape, TableShape, TypeShape, as_content

COLUMNS = {"id": "int8", "email": "text", "phone": "text"}
USERS = shape_of("users", COLUMNS, key=["id"])
CUSTOMERS = USERS.model_copy(update={"name": "customers"})
MASK = {"with": "masking"}


@pytest.fixture(autouse=True)
def _salt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SALT", SALT)


def masks(table: str, **columns: object) -> dict[str, object]:
    return {"transform": {"table": table, "columns": columns}}


def of_file(tmp_path, text: str) -> Chain:
    (tmp_path / "masking.yml").write_text(text)
    options = read_transform("transform: {rules_file: masking.yml}", directory=tmp_path)
    return Chain((Rule("transform", options),))


def test_rule_for_any_table_does_not_stand_for_the_one_that_is_lost_with_a_name(tmp_path):
    rules = of_file(
        tmp_path,
        "tables:\n"
        "  public.users: {id: keep, email: {with: email}}\n"
        '  "*.*": {"*phone*": {with: phone_number}}\n',
    )

    with pytest.raises(RuleUnfit, match=r"called public\.customers .*transform of column email"):
        rules.require_fit(CUSTOMERS, USERS)


def test_rules_of_the_new_name_have_to_be_for_the_same_columns():
    rules = chain(masks("users", email=MASK), masks("customers", phone=MASK))

    with pytest.raises(RuleUnfit, match="transform of column email"):
        rules.require_fit(CUSTOMERS, USERS)


@pytest.mark.parametrize(
    "rules",
    [
        [masks("*.*", email=MASK)],
        [masks("users", email=MASK), masks("customers", email={"with": "hash"})],
        [masks("users", email=MASK), masks("customers", email="keep")],
        [masks("users", email=MASK), {"route": {"table": "customers", "drop": ["email"]}}],
        [masks("users", email=MASK), {"filter": {"tables": {"exclude": ["customers"]}}}],
        [{"filter": {"table": "*.*", "where": "id > 1"}}],
        [{"filter": {"table": t, "where": "id > 1"}} for t in ("users", "customers")],
        [{"route": {"table": t, "drop": ["email"]}} for t in ("users", "customers")],
        [{"transform": {"table": "*.*", "set": {"email": "upper(email)"}}}],
        [{"inject": {}}],
    ],
)
def test_table_is_renamed_where_what_was_done_is_done_or_decided_anew(rules):
    chain(*rules).require_fit(CUSTOMERS, USERS)


@pytest.mark.parametrize(
    ("rules", "lost"),
    [
        ([masks("users", email={"with": "hash"}), masks("*.*", email=MASK)], "column email"),
        ([masks("users", email=MASK), masks("*.*", email="keep")], "column email"),
        (
            [masks("users", email=MASK), {"transform": {"set": {"email": "lower(email)"}}}],
            "column email",
        ),
        (
            [
                {"transform": {"table": "users", "coverage": "strict", "columns": {"*": "keep"}}},
                masks("*.*", phone=MASK),
            ],
            "coverage",
        ),
        (
            [
                {"filter": {"table": "users", "where": "id > 1"}},
                {"filter": {"table": "*.*", "where": "email IS NOT NULL"}},
            ],
            "filter",
        ),
        (
            [
                {"route": {"table": "users", "drop": ["email"]}},
                {"route": {"table": "customers", "columns": {"phone": "tel"}}},
            ],
            "route of column email",
        ),
        ([{"transform": {"table": "users", "set": {"email": "upper(email)"}}}], "column email"),
    ],
)
def test_table_is_not_renamed_where_something_is_lost(rules, lost):
    with pytest.raises(RuleUnfit, match=rf"from here on.*{lost}") as caught:
        chain(*rules).require_fit(CUSTOMERS, USERS)

    assert "add rules for public.customers" in caught.value.do


def partition(**columns: str):
    """A table that was a partition of users, whose columns are in an order of their own."""
    return shape_of("users_2023", columns or {"email": "text", "id": "int8", "phone": "text"})


@pytest.mark.parametrize(
    ("rules", "lost"),
    [
        ([masks("users", email=MASK)], "transform of column email"),
        ([masks("users", email=MASK), masks("*.*", id="keep", phone=MASK)], "column email"),
        ([masks("users", email=MASK), masks("users_2023", phone=MASK)], "column email"),
        ([{"filter": {"table": "users", "where": "id > 1"}}], "filter"),
        ([{"route": {"table": "users", "drop": ["phone"]}}], "route of column phone"),
    ],
)
def test_partition_is_not_detached_where_something_is_lost(rules, lost):
    with pytest.raises(RuleUnfit, match=rf"partition of public\.users until.*{lost}") as caught:
        chain(*rules).require_kept_by_part(USERS, partition())

    assert "add rules for public.users_2023" in caught.value.do


@pytest.mark.parametrize(
    "rules",
    [
        [masks("*.*", email=MASK)],
        [masks("users", email=MASK), masks("users_2023", email="keep")],
        [masks("users", email=MASK), {"route": {"table": "users_2023", "drop": ["email"]}}],
        [masks("users", email=MASK), {"filter": {"tables": {"exclude": ["users_2023"]}}}],
        [{"route": {"table": "users", "target": "crm.customers"}}],
        [{"inject": {}}],
    ],
)
def test_partition_is_detached_where_what_was_done_is_done_or_decided_anew(rules):
    chain(*rules).require_kept_by_part(USERS, partition())


def test_table_that_the_stream_first_reports_with_the_one_it_leaves_was_a_partition_of_that(
    tmp_path,
):
    root = USERS.model_copy(update={"kind": "p", "id": 7})
    part, other = (partition().model_copy(update={"id": number}) for number in (8, 9))

    def mark(number: int, tag: str, *tables: TableShape) -> Mark:
        content = as_content(SchemaChange(format=1, tag=tag, tables=tables))
        return Mark(Lsn(number), Lsn(number), 0, 1, 0, 0, CHANGE, content)

    past_shapes = PastShapes(tmp_path / "shapes")
    past_shapes.open_for_writing()
    past_shapes.append([mark(1, "REFRESH", root)])
    past_shapes.append([mark(2, "CREATE TABLE", other)])
    assert past_shapes.former_roots() == {}
    past_shapes.append([mark(3, "ALTER TABLE", root, part)])
    past_shapes.append([mark(4, "ALTER TABLE", root, other)])

    assert {number: each.id for number, each in past_shapes.former_roots().items()} == {8: 7}
    past_shapes.close()


def altered(**columns: str):
    """The columns of users as they are after a statement; their ids are those by place."""
    return shape_of("users", columns, key=["id"])


@pytest.mark.parametrize(
    ("after", "column"),
    [
        (altered(id="int8", email="jsonb", phone="text"), "email"),
        (altered(id="int8", contact="text", phone="text"), "contact"),
    ],
    ids=["retyped", "renamed"],
)
def test_column_that_a_pattern_is_for_no_longer_stops_the_table(after, column):
    rules = chain({"transform": {"column": "*email*", **MASK}})

    with pytest.raises(
        RuleUnfit, match=f"not done any more: transform of column {column}"
    ) as caught:
        rules.require_fit(after, USERS)

    assert "names the column as it is now; keep is one" in caught.value.do


def test_column_that_another_rule_is_for_now_goes_on():
    pattern = {"transform": {"column": "*email*", **MASK}}
    retyped = altered(id="int8", email="jsonb", phone="text")
    wiped = {"transform": {"column": "*email*", "with": "null"}}

    chain({"transform": {"table": "users", "column": "email", "with": "keep"}}, wiped).require_fit(
        retyped, USERS
    )
    chain(pattern, masks("users", email="keep")).require_fit(retyped, USERS)
    chain(pattern, masks("users", email={"with": "null"})).require_fit(retyped, USERS)
    chain(pattern).require_fit(altered(id="int8", e="text", email_2="text"), altered(id="int8"))
    chain(pattern).require_fit(altered(id="int8"), USERS)


def test_check_warns_of_a_text_that_a_pattern_is_not_for_by_its_type():
    rules = pipeline_from_document(
        document({"transform": {"column": "*email*", **MASK}}), "test"
    ).modifiers
    shape = altered(id="int8", email="text", old_email="jsonb", email_count="int4")

    found = list(rules[0].findings({shape.table: shape}))

    assert [(each.severity, each.place.split()[-1]) for each in found] == [
        ("warning", "public.users.old_email")
    ]
    assert "its values pass as they are" in found[0].what


def test_check_warns_of_whatever_may_hold_words_that_a_pattern_is_not_for_by_its_type():
    rules = pipeline_from_document(document({"transform": {"column": "*", **MASK}}), "test")
    columns = {
        "id": "int8",
        "t": "text",
        "x": "xml",
        "v": "tsvector",
        "ip": "inet",
        "iv": "interval",
    }
    oids = {"xml": 142, "tsvector": 3614, "inet": 869, "interval": 1186}
    shape = shape_of("users", columns, key=["id"], oids=oids)

    found = rules.modifiers[0].findings({shape.table: shape})

    warned = [each.place.split()[-1] for each in found if each.severity == "warning"]
    assert warned == [f"public.users.{name}" for name in ("x", "v", "ip")]


# What rows hold that are older than a column (ADD COLUMN … DEFAULT) comes with the shape, not with a row.


def with_default(name: str, missing: str | None = "c4n4ry", default: str = "'c4n4ry'::text"):
    """users, to which a column was added with a default."""
    shape = altered(id="int8", email="text", **{name: "text"})
    *others, last = shape.columns
    added = last.model_copy(update={"missing": missing, "default": default})
    return shape.model_copy(update={"columns": (*others, added)})


def seen(rule: dict[str, object], shape=None):
    """The last column as the sink sees it."""
    return chain({"transform": rule}).modified_shape(shape or with_default("note")).columns[-1]


@pytest.mark.parametrize(
    ("rule", "missing"),
    [
        ({"column": "note", "with": "masking"}, "******"),
        ({"column": "note", "with": "null"}, None),
        ({"table": "users", "set": {"note": "upper(note)"}}, "C4N4RY"),
        ({"table": "users", "set": {"note": "'x'"}}, "x"),
    ],
)
def test_value_of_rows_older_than_a_column_is_modified_as_theirs_would_be(rule, missing):
    column = seen(rule)

    assert (column.missing, column.has_hidden_missing) == (missing, False)
    assert (column.default, column.has_hidden_default) == (None, True)


@pytest.mark.parametrize(
    ("rule", "is_hidden"),
    [
        ({"column": "note", "with": "masking"}, True),
        ({"table": "users", "set": {"note": "'x'"}}, True),
        ({"column": "email", "with": "masking"}, False),
        ({"column": "note", "with": "masking", "operations": ["update"]}, False),
    ],
)
def test_default_of_a_domain_is_hidden_like_that_of_a_column(rule, is_hidden):
    word = TypeShape(
        id=20001, schema_name="public", name="word", kind="domain", base="text", default="'c4n4ry'"
    )
    words = TypeShape(
        id=20002, schema_name="public", name="words", kind="domain", base="word", parts=(20001,)
    )
    *others, last = with_default("note").columns
    last = last.model_copy(update={"type": "words", "type_id": 20002, "type_kind": "d"})
    shape = with_default("note").model_copy(
        update={"columns": (*others, last), "types": (word, words)}
    )

    found, _ = chain({"transform": rule}).modified_shape(shape).types

    assert (found.default is None, found.has_hidden_default) == (is_hidden, is_hidden)


@pytest.mark.parametrize(
    "rule",
    [
        {"column": "note", "with": "hash", "generator": "random"},
        {
            "column": "note",
            "with": "template",
            "template": '{{ .GetValue }}{{ .GetDynamicValue "email" }}',
        },
        {"column": "note", "with": "email", "invalid_email_action": "reject"},
        {"table": "users", "set": {"note": "note || email"}},
        {"table": "users", "set": {"note": "note::int"}},
    ],
)
def test_value_of_older_rows_that_only_a_row_decides_is_hidden(rule):
    """A copy brings it."""
    column = seen(rule)

    assert (column.missing, column.has_hidden_missing) == (None, True)
    assert "c4n4ry" not in str(column)


@pytest.mark.parametrize(
    "rule",
    [
        {"table": "users", "columns": {"note": "keep", "email": MASK}},
        {"column": "note", "operations": ["update"], **MASK},
        {"table": "users", "set": {"email": "upper(note)"}},
    ],
)
def test_column_that_is_delivered_as_it_is_keeps_its_default(rule):
    shape = with_default("note")

    assert seen(rule, shape) == shape.columns[-1]


def test_default_that_counts_stays():
    """It names a sequence, and holds no value."""
    counted = {"start": 1, "increment": 1, "minimum": 1, "maximum": 9, "cache": 1, "cycles": False}
    sequence = SequenceShape(id=5, schema_name="public", name="s", type="bigint", **counted)
    shape = with_default("note", None, "nextval('public.s'::regclass)")
    *others, last = shape.columns
    shape = shape.model_copy(
        update={"columns": (*others, last.model_copy(update={"sequence": sequence}))}
    )

    assert seen({"column": "note", **MASK}, shape) == shape.columns[-1]
