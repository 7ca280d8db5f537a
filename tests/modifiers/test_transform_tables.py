"""Rules on changes of a table: new and old rows alike, keys, NULL, TOAST, errors, strict coverage."""

from __future__ import annotations

import json
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fix_changes import examples
from fix_transform import LSN, applied, read_transform, shape_of, transformed
from penstock.errors import ColumnUncovered, RuleUnfit, TransformFailed, ValueNotSent
from penstock.modifiers.chain import Chain
from penstock.modifiers.copies import modified_copies
from penstock.modifiers.rule import Rule
from penstock.modifiers.transform import modifier_for
from penstock.schema.shape import LabelShape, TypeShape
from penstock.testing import UNCHANGED, delete, insert, relation, table, transaction, update
from penstock.testing import changes as decoded
from penstock.vault import Vault, using

USERS = table(16400, "users", {"id": "text", "email": "text", "note": "text"}, key=["id"])
FULL = table(
    16400, "users", {"id": "text", "email": "text", "note": "text"}, key=["id"], identity="f"
)


def masked(value):
    return transformed({"with": "hash"}, value)


def test_key_is_transformed_alike_in_new_rows_old_keys_and_deletes():
    options = read_transform("transform: {table: users, column: id, with: hash}")
    one, two = masked("1"), masked("2")

    assert applied(
        options,
        USERS,
        insert(USERS, ["1", "a", "b"]),
        update(USERS, ["1", "c", "b"]),
        update(USERS, ["2", "c", "b"], key=["1"]),
        delete(USERS, key=["2"]),
    ) == [
        ("I", (one, "a", "b"), None),
        ("U", (one, "c", "b"), None),
        ("U", (two, "c", "b"), (one, None, None)),
        ("D", None, (two, None, None)),
    ]


def test_null_stays_null_and_unchanged_stays_unchanged():
    for name in ("email", "literal, literal: x", "null", "masking"):
        options = read_transform(f"transform: {{table: users, column: email, with: {name}}}")
        [first, second] = applied(
            options,
            USERS,
            insert(USERS, ["1", None, None]),
            update(USERS, ["1", UNCHANGED, "new"]),
        )
        assert first == ("I", ("1", None, None), None)
        assert second == ("U", ("1", UNCHANGED, "new"), None)


def test_old_values_are_transformed_whatever_operations_the_rule_is_for():
    options = read_transform(
        "transform: {table: users, column: email, with: mask, operations: [INSERT]}"
    )
    messages = [
        insert(FULL, ["1", "secret", "b"]),
        update(FULL, ["1", "other", "b"], before=["1", "secret", "b"]),
        delete(FULL, before=["1", "other", "b"]),
    ]

    assert applied(options, FULL, *messages) == [
        ("I", ("1", "s****t", "b"), None),
        ("U", ("1", "other", "b"), ("1", "s****t", "b")),
        ("D", None, ("1", "o***r", "b")),
    ]


def test_rule_on_a_key_for_some_operations_only_stops_the_table():
    options = read_transform(
        "transform: {table: users, column: id, with: hash, operations: [insert]}"
    )
    with pytest.raises(RuleUnfit, match="some operations only"):
        applied(options, USERS, insert(USERS, ["1", "a", "b"]))


@pytest.mark.parametrize("rule", ["hash, generator: random", "template, template: '{{ .GetDynamicValue \"note\" }}'"])  # fmt: skip
def test_key_cannot_be_made_of_more_than_its_value(rule):
    options = read_transform(f"transform: {{table: users, column: id, with: {rule}}}")
    with pytest.raises(RuleUnfit, match=r"public.users.id: .* on a key column"):
        applied(options, USERS, insert(USERS, ["1", "a", "b"]))


def test_random_values_differ_by_row_and_are_the_same_when_a_batch_is_repeated():
    options = read_transform(
        "transform: {table: users, column: email, with: email, generator: random}"
    )
    messages = [insert(USERS, [str(n), "same@x.org", "b"]) for n in range(50)]

    once, again = (applied(options, USERS, *messages) for _ in range(2))

    assert once == again
    assert len({row[1] for _, row, _ in once}) == 50


DYNAMIC = (
    "transform: {table: users, column: email, with: template,"
    " template: '{{ .GetValue }}/{{ .GetDynamicValue \"note\" }}'}"
)


def test_other_columns_are_read_as_they_were_before_the_rules():
    text = (
        "transform: {table: users, columns: {note: {with: literal, literal: x}, email: {with: template,"
        " template: '{{ .GetValue }}/{{ .GetDynamicValue \"note\" }}'}}}"
    )
    assert applied(read_transform(text), USERS, insert(USERS, ["1", "a", "b"])) == [
        ("I", ("1", "a/b", "x"), None)
    ]


def test_blanks_that_pad_another_column_are_not_read():
    coded = table(16400, "users", {"id": "text", "code": "bpchar", "phone": "text"}, key=["id"])
    text = "'{{ .GetDynamicValue \"code\" }}-{{ .GetValue }}'"
    options = read_transform(
        f"transform: {{table: users, column: phone, with: template, template: {text}}}"
    )

    [(_, after, _)] = applied(options, coded, insert(coded, ["1", "+1    ", "555"]))

    assert after[2] == "+1-555"


def test_unchanged_value_that_another_column_decides_needs_the_old_row():
    options = read_transform(DYNAMIC)

    with pytest.raises(ValueNotSent, match="REPLICA IDENTITY FULL") as caught:
        applied(options, USERS, update(USERS, ["1", UNCHANGED, "new"]))
    assert "public.users.email at 0/16B3748" in caught.value.where
    with pytest.raises(ValueNotSent):
        applied(options, USERS, update(USERS, ["1", "new", UNCHANGED]))
    both = update(USERS, ["1", UNCHANGED, UNCHANGED])
    assert applied(options, USERS, both) == [("U", ("1", UNCHANGED, UNCHANGED), None)]
    known = update(FULL, ["1", UNCHANGED, "new"], before=["1", "a", "old"])
    assert applied(options, FULL, known) == [("U", ("1", "a/new", "new"), ("1", "a/old", "old"))]


VARCHARS = table(16400, "users", {"id": "int8", "email": "varchar"}, key=["id"])
SHAPE = shape_of("users", {"id": "int8", "email": "varchar(20)"}, key=["id"])


def with_length(users, length):
    from dataclasses import replace

    id_, email = users.columns
    return replace(users, columns=(id_, replace(email, type_modifier=length + 4)))


@pytest.mark.parametrize(
    ("on_error", "result"), [("null", None), ("keep", "Zoë"), ("pass-through", "Zoë")]
)
def test_result_too_long_for_its_column(on_error, result):
    short = with_length(VARCHARS, 5)
    rule = f"with: template, template: '{{{{ repeat 3 .GetValue }}}}', on_error: {on_error}"
    options = read_transform(f"transform: {{table: users, column: email, {rule}}}")
    rows = [insert(short, ["1", "Zoë"]), insert(short, ["2", "é"])]

    assert [row[1] for _, row, _ in applied(options, short, *rows)] == [result, "ééé"]


def test_value_that_fails_stops_the_table_at_its_row_without_showing_it():
    short = with_length(VARCHARS, 5)
    options = read_transform(
        "transform: {table: users, column: email, with: template, template: '{{ repeat 3 .GetValue }}'}"
    )
    with pytest.raises(TransformFailed) as caught:
        applied(options, short, insert(short, ["1", "x"]), insert(short, ["2", "sesame"]))

    assert caught.value.where == "public.users.email at 0/16B3748, row 1 of its transaction"
    assert "longer than the column's 5 characters" in caught.value.what
    assert "sesame" not in str(caught.value)


def test_value_that_is_not_utf8_fails_alone():
    options = read_transform(
        "transform: {table: users, column: email, with: masking, on_error: null}"
    )
    rows = [insert(USERS, ["1", b"\xff\xfe", "b"]), insert(USERS, ["2", "ok", "b"])]

    assert [row[1] for _, row, _ in applied(options, USERS, *rows)] == [None, "**"]


def test_function_of_the_users_that_gives_too_few_values_stops_the_table():
    for function, what in (
        ("short", "gave 1 values, wanted an array of 2"),
        ("broken", "RuntimeError"),
    ):
        options = read_transform(
            f"transform: {{table: users, column: email, python: test_transform_documents.{function}}}"
        )
        rows = [insert(USERS, ["1", "sesame", "b"]), insert(USERS, ["2", "x", "b"])]
        with pytest.raises(TransformFailed, match=what) as caught:
            applied(options, USERS, *rows)
        assert "sesame" not in str(caught.value)


# Migrations while rules apply.

STRICT = read_transform(
    "transform: {table: users, coverage: strict, columns: {id: keep, email: {with: email}, note: keep}}"
)


def test_covered_table_passes():
    [(_, row, _)] = applied(STRICT, USERS, insert(USERS, ["1", "a@b", "n"]))

    assert row[0::2] == ("1", "n")
    assert row[1].endswith("@example.com")


@pytest.mark.parametrize(
    ("columns", "error", "advice"),
    [
        ({"id": "text", "email": "text", "note": "text", "phone": "text"}, ColumnUncovered, "phone: {with"),
        ({"id": "text", "email": "text", "remark": "text"}, RuleUnfit, "when_missing: skip"),
        ({"id": "text", "note": "text"}, RuleUnfit, "was dropped, take its rule out"),
        ({"id": "text", "email": "int4", "note": "text"}, RuleUnfit, "another transformer"),
    ],
)  # fmt: skip
def test_migration_that_the_rules_do_not_cover_stops_before_a_value_passes(columns, error, advice):
    changed = table(16400, "users", columns, key=["id"])
    shape = shape_of("users", columns, key=["id"])
    modifier = modifier_for(STRICT, changed.table)
    row = insert(changed, ["7"] * len(columns))

    for fails in (
        lambda: modifier.modified_relation(changed),
        lambda: modifier.modified_shape(shape),
        lambda: applied(STRICT, changed, row),
    ):
        with pytest.raises(error, match=r"public.users") as caught:
            fails()
        assert advice in caught.value.do


def test_renamed_column_without_strict_coverage_stops_too():
    """A rule that is for nobody any more is a leak."""
    options = read_transform("transform: {table: users, column: email, with: email}")
    renamed = table(16400, "users", {"id": "text", "mail": "text"}, key=["id"])

    with pytest.raises(RuleUnfit, match="wants a column email"):
        applied(options, renamed, insert(renamed, ["1", "secret"]))


def test_both_names_of_a_renamed_column_can_have_rules():
    options = read_transform(
        "transform: {table: users, when_missing: skip, columns: {email: {with: null}, mail: {with: null}}}"
    )
    renamed = table(16400, "users", {"id": "text", "mail": "text"}, key=["id"])

    assert applied(options, renamed, insert(renamed, ["1", "x"])) == [("I", ("1", None), None)]
    assert applied(options, USERS, insert(USERS, ["1", "x", "n"])) == [
        ("I", ("1", None, "n"), None)
    ]


def test_retyped_column_of_a_rule_that_takes_both_types_goes_on():
    options = read_transform(
        "transform: {table: users, column: email, with: literal, literal: '7'}"
    )
    retyped = table(16400, "users", {"id": "text", "email": "int4"}, key=["id"])

    assert applied(options, retyped, insert(retyped, ["1", "2"])) == [("I", ("1", "7"), None)]


def test_generated_column_needs_no_rule():
    columns = {"id": "text", "email": "text", "note": "text", "upper": "generated text"}
    shape = shape_of("users", columns, key=["id"])

    assert modifier_for(STRICT, USERS.table).modified_shape(shape) is shape


def test_types_of_users_are_known_from_the_catalog():
    """A pattern is for a domain over text, and not for an enum, also where tasks know but an oid."""
    typed = table(16400, "users", {"id": "int8", "email_a": 90001, "email_b": 90002}, key=["id"])
    shape = shape_of(
        "users",
        {"id": "int8", "email_a": "address", "email_b": "mood"},
        key=["id"],
        oids={"address": 90001, "mood": 90002},
        types=(
            TypeShape(id=90001, schema_name="public", name="address", kind="domain", base="text"),
            TypeShape(
                id=90002,
                schema_name="public",
                name="mood",
                kind="enum",
                labels=(LabelShape(id=1, name="sad"),),
            ),
        ),
    )
    options = read_transform("transform: {table: users, column: 'email*', with: masking}")
    row = insert(typed, ["1", "abc", "sad"])

    assert applied(options, typed, row, shape=shape) == [("I", ("1", "***", "sad"), None)]
    assert applied(options, typed, row) == [("I", ("1", "***", "***"), None)], "mask, do not pass"


def test_copied_rows_are_transformed_as_streamed_ones():
    options = read_transform(
        "transform: {table: users, columns: {id: {with: hash}, email: {with: email}}}"
    )
    shape = shape_of("users", {"id": "text", "email": "text"}, key=["id"])
    users = table(16400, "users", {"id": "text", "email": "text"}, key=["id"])

    chain = Chain((Rule("transform", options),)).bound({shape.table: shape})
    copies, _ = modified_copies(chain, {shape.table: shape}, LSN)
    [copy] = copies.values()
    lines = copy.begin(("id", "email")).rows([b"1\ta@b\n", b"2\t\\N\n"])

    streamed = applied(options, users, insert(users, ["1", "a@b"]), insert(users, ["2", None]))
    wanted = ["\t".join("\\N" if v is None else v for v in row) for _, row, _ in streamed]
    assert b"".join(lines).decode().splitlines() == wanted


def test_modifier_travels_and_does_the_same(tmp_path):
    modifier = modifier_for(STRICT, USERS.table)
    pieces = decoded([relation(USERS), *transaction(LSN, insert(USERS, ["1", "a@b", "n"]))])

    with using(Vault(tmp_path)):
        thawed = pickle.loads(pickle.dumps(modifier))

    assert thawed == modifier
    assert thawed.apply(pieces[0]).after[1].data == modifier.apply(pieces[0]).after[1].data


# Random rules and changes against a model that goes row by row.

_RULES = {
    "hash": {"with": "hash"},
    "masking": {"with": "masking"},
    "mask": {"with": "mask", "keep_first": 2},
    "custom": {"with": "masking", "type": "custom", "mask_begin": "25%", "mask_end": "75%"},
    "name": {"with": "masking", "type": "name"},
    "email mask": {"with": "masking", "type": "email"},
    "tel": {"with": "masking", "type": "tel"},
    "upper": {"with": "template", "template": "{{ upper .GetValue }}"},
    "email": {"with": "email"},
    "string": {"with": "string"},
    "literal": {"with": "literal", "literal": "x"},
    "null": {"with": "null"},
}


def _overlay(text, begin, end, stars):
    return text[:begin] + stars + text[end:]


def _masked_name(text):
    def word(one):
        if len(one) < 2:
            return "**" if one else ""
        return _overlay(one, 1, 2 if len(one) < 4 else 3, "**")

    return " ".join(map(word, text.split(" ")))


def _masked_email(text):
    box, at, domain = text.partition("@")
    return _overlay(box, 3, 7, "****") + at + domain if text else ""


def _masked_tel(text):
    digits = re.sub(r"[ ()-]", "", text)
    if len(digits) == 10:
        return f"({digits[:2]}){digits[2:6]}-****"
    if len(digits) == 8:
        return f"{digits[:4]}-****"
    return digits[:-4] + "*" * min(4, len(digits)) if text else ""


def _custom(text):
    begin, end = len(text) * 25 // 100, len(text) * 75 // 100
    return text[:begin] + "*" * (end - begin) + text[end:]


_MODELS = {
    "masking": lambda text: "*" * len(text),
    "mask": lambda text: text if len(text) <= 3 else text[:2] + "*" * (len(text) - 3) + text[-1],
    "custom": _custom,
    "name": _masked_name,
    "email mask": _masked_email,
    "tel": _masked_tel,
    "upper": str.upper,
    "literal": lambda _: "x",
    "null": lambda _: None,
}
_TEXT = st.text(alphabet="ab@ -()1+2é\u20acZ\U0001f600", max_size=14)


def _model(name, value):
    if value is None or value is UNCHANGED:
        return value
    if name in _MODELS:
        return _MODELS[name](value)
    return transformed(_RULES[name], value)


@examples
@given(
    st.sampled_from(sorted(_RULES)),
    st.sampled_from(sorted(set(_RULES) - {"null"})),
    st.lists(
        st.tuples(
            st.sampled_from("IUKD"),
            _TEXT,
            st.none() | _TEXT | st.just(UNCHANGED),
            st.none() | _TEXT,
        ),
        min_size=1,
        max_size=12,
    ),
    st.booleans(),
)
def test_random_rules_and_changes_agree_with_a_model_of_rows(rule, key_rule, changes, is_full):
    options = rules_for(rule, key_rule)
    users = FULL if is_full else USERS
    messages, wanted, copied = [], [], []
    for kind, key, email, note in changes:
        value = None if email is UNCHANGED and kind == "I" else email
        new = (_model(key_rule, key), _model(rule, value), note)
        old_key = key + "old" if kind == "K" else key
        old = [old_key, note, "old"] if is_full else [old_key]
        seen = (
            _model(key_rule, old_key),
            *((_model(rule, note), "old") if is_full else (None, None)),
        )
        sent = {"before": old} if is_full else {"key": old}
        if kind == "I":
            messages.append(insert(users, [key, value, note]))
            wanted.append(("I", new, None))
            copied.append(([key, value, note], new))
        elif kind == "U" and not is_full:
            messages.append(update(users, [key, value, note]))
            wanted.append(("U", new, None))
        elif kind in "UK":
            messages.append(update(users, [key, value, note], **sent))
            wanted.append(("U", new, seen))
        else:
            messages.append(delete(users, **sent))
            wanted.append(("D", None, seen))

    assert applied(options, users, *messages) == wanted
    identity = "f" if is_full else "d"
    assert copied_through(options, [row for row, _ in copied], identity) == [
        new for _, new in copied
    ]


def rules_for(rule, key_rule):
    columns = {"id": _RULES[key_rule], "email": _RULES[rule]}
    return read_transform(f"transform: {json.dumps({'table': 'users', 'columns': columns})}")


def copied_through(options, rows, identity):
    """The same rows as a copy brings them."""
    columns = {"id": "text", "email": "text", "note": "text"}
    shape = shape_of("users", columns, key=["id"], replica_identity=identity)
    chain = Chain((Rule("transform", options),)).bound({shape.table: shape})
    copies, _ = modified_copies(chain, {shape.table: shape}, LSN)
    lines = [
        ("\t".join("\\N" if each is None else each for each in row) + "\n").encode() for row in rows
    ]
    found = copies[shape.table].begin(tuple(columns)).rows(lines)
    texts = b"".join(found).decode().split("\n")[:-1]
    return [tuple(None if each == "\\N" else each for each in text.split("\t")) for text in texts]


# Values that Postgres has for equal get equal results, whatever the types of their columns.


def hashed(type_name: str, value: str, shape=None, rule: str = "hash") -> str:
    users = table(16400, "users", {"id": "int8", "email": type_name}, key=["id"])
    options = read_transform(f"transform: {{table: users, column: email, with: {rule}}}")
    [(_, row, _)] = applied(options, users, insert(users, ["1", value]), shape=shape)
    return row[1]


@pytest.mark.parametrize("rule", ["hash", "string", "masking", "email"])
def test_blanks_that_pad_a_char_do_not_count(rule):
    assert hashed("bpchar", "ab   ", rule=rule) == hashed("text", "ab", rule=rule)
    assert hashed("text", "ab   ", rule=rule) != hashed("text", "ab", rule=rule)


def test_case_does_not_count_in_a_citext():
    citext = TypeShape(
        id=90001, schema_name="public", name="citext", kind="other", extension="citext"
    )
    shape = shape_of(
        "users",
        {"id": "int8", "email": "citext"},
        key=["id"],
        oids={"citext": 90001},
        types=(citext,),
    )
    lower, upper = (hashed(90001, value, shape) for value in ("zoë", "ZOË"))

    assert lower == upper == hashed("text", "zoë")
    assert hashed(90001, "Ab", shape, "mask, keep_first: 2, keep_last: 0") == "Ab"
