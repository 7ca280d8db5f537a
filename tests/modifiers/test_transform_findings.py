"""What `check` says of rules against the catalog, before a value is touched."""

from __future__ import annotations

import pytest

from fix_transform import read_transform, shape_of
from penstock.errors import ColumnUncovered, RuleUnfit
from penstock.modifiers.rule import Rule
from penstock.modifiers.torn_keys import torn_keys
from penstock.modifiers.transform import findings, lost
from penstock.schema.shape import (
    ConstraintShape,
    ForeignKeyShape,
    IndexShape,
    LabelShape,
    TableShape,
    TypeShape,
)

USERS = shape_of(
    "users",
    {
        "id": "int8",
        "email": "varchar(40)",
        "name": "varchar(5)",
        "age": "int2",
        "born": "date",
        "paid": "numeric",
        "doc": "jsonb",
        "login": "text",
        "loud": "generated text",
        "is_on": "bool",
    },
    key=["id"],
    unique=["login"],
    not_null=["email"],
)


def found(entry, *shapes, severity="error"):
    options = read_transform(f"transform: {entry}")
    tables = {shape.table: shape for shape in shapes or (USERS,)}
    said = [*lost(options, tables.values()), *findings(options, tables)]
    return [one for one in said if one.severity == severity]


@pytest.mark.parametrize(
    ("entry", "what", "advice"),
    [
        ("{table: users, column: mail, with: email}", "wants a column mail", "write email"),
        ("{table: usres, column: email, with: email}", "not followed", "public.users"),
        ("{table: users, column: age, with: email}", "does not take", "another transformer"),
        ("{table: users, column: is_on, with: integer}", "(boolean)", "another"),
        ("{table: users, column: doc, with: masking}", "(json)", "another"),
        ("{table: users, column: name, with: email}", "28 characters, the column holds 5", "on_error"),
        ("{table: users, column: name, with: uuid}", "36 characters", "shorter"),
        ("{table: users, column: name, with: literal, literal: anonymous}", "9 characters", "literal"),
        ("{table: users, column: name, with: full_name}", "the column holds 5", "max_length"),
        ("{table: users, column: name, with: masking, type: id}", "up to 11", ""),
        ("{table: users, column: email, with: 'null'}", "NOT NULL", "literal"),
        ("{table: users, column: login, with: masking}", "users_login_key is unique", "hash"),
        ("{table: users, column: login, with: literal, literal: x}", "is unique", "allow_collisions"),
        ("{table: users, column: login, with: regex, pattern: a, replace: b}", "unique", "hash"),
        ("{table: users, column: id, with: integer}", "users_pkey is unique", "allow_collisions"),
        (
            "{table: users, column: id, with: integer, allow_collisions: true, generator: random}",
            "key column",
            "deterministic",
        ),
        (
            "{table: users, column: id, with: integer, allow_collisions: true, operations: [insert]}",
            "some operations only",
            "operations",
        ),
        (
            "{table: users, column: id, allow_collisions: true, with: template, template: '{{ .GetDynamicValue \"age\" }}'}",
            "reads other columns",
            "value alone",
        ),
        ("{table: users, column: login, with: email, preserve_length: true}", "unique", "hash"),
        ("{table: users, column: login, with: email, max_length: 20}", "unique", "hash"),
        ("{table: users, column: name, with: email, preserve_length: true}", "13 characters", "shorter"),
        ("{table: users, column: age, with: integer, max_value: 99999}", "beyond", "within -32768"),
        ("{table: users, column: age, with: unix_timestamp}", "beyond the column's type", "within"),
        ("{table: users, column: loud, with: masking}", "generated", "take the rule out"),
        (
            "{table: users, column: email, with: template, template: '{{ .GetDynamicValue \"nam\" }}'}",
            "wants a column nam",
            "write name",
        ),
    ],
)  # fmt: skip
def test_rule_that_does_not_fit_the_table(entry, what, advice):
    [one] = found(entry)

    assert isinstance(one.error, RuleUnfit)
    assert what in one.what
    assert advice in one.do
    assert one.place.startswith("public.us")


@pytest.mark.parametrize(
    "entry",
    [
        "{table: users, column: email, with: email}",
        "{table: users, column: login, with: hash}",
        "{table: users, column: login, with: neosync_email}",
        "{table: users, column: email, with: email, preserve_length: true, max_length: 40}",
        "{table: users, column: login, with: 'null'}",
        "{table: users, column: login, with: hash, on_error: null}",
        "{table: users, column: login, with: uuid}",
        "{table: users, column: login, with: email}",
        "{table: users, column: login, with: masking, allow_collisions: true}",
        "{table: users, column: id, with: integer, allow_collisions: true}",
        "{table: users, column: name, with: first_name, max_length: 5}",
        "{table: users, column: name, with: string}",
        "{table: users, column: name, with: uuid, on_error: null}",
        "{table: users, column: age, with: integer}",
        "{table: users, column: paid, with: float}",
        "{table: users, column: born, with: date}",
        "{table: users, column: '*', with: keep}",
        "{table: users, column: nickname, with: hash, when_missing: skip}",
    ],
)
def test_rule_that_fits(entry):
    assert found(entry) == []


def test_numeric_has_its_limits():
    shape = shape_of("prices", {"id": "int8", "price": "numeric"}, key=["id"])
    price = shape.columns[1].model_copy(update={"type_modifier": 4 + ((6 << 16) | 2)})
    shape = shape.model_copy(update={"columns": (shape.columns[0], price)})

    [one] = found("{table: prices, column: price, with: float, max_value: 10000}", shape)

    assert "numeric(6,2)" in one.what
    assert (
        found(
            "{table: prices, column: price, with: float, min_value: 0, max_value: 9999.99}", shape
        )
        == []
    )


def test_unique_index_on_an_expression_counts():
    lower = IndexShape(id=7, name="users_lower_login", is_unique=True, definition="", used=(2,))
    shape = shape_of("users", {"id": "int8", "email": "text"}, key=["id"], indexes=(lower,))

    [one] = found("{table: users, column: email, with: masking}", shape)

    assert "users_lower_login" in one.what


def one_null(*, index: bool):
    """users, whose login may be NULL once."""
    if index:
        more = {"indexes": (IndexShape(id=7, name="one_null", is_unique=True, columns=(2,),
                definition="btree (login) NULLS NOT DISTINCT"),)}  # fmt: skip
    else:
        more = {"constraints": (ConstraintShape(id=7, name="one_null", kind="u", columns=(2,),
                definition="UNIQUE NULLS NOT DISTINCT (login)"),)}  # fmt: skip
    return shape_of("users", {"id": "int8", "login": "text"}, key=["id"], **more)


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize(
    ("rule", "advice"),
    [
        ("with: 'null'", "hash"),
        ("with: hash, on_error: null", "on_error"),
        ("with: email, invalid_email_action: null", "reject"),
    ],
)
def test_null_where_only_one_may_be_is_refused(index, rule, advice):
    shape = one_null(index=index)

    [one] = found(f"{{table: users, column: login, {rule}}}", shape)

    assert "one_null is UNIQUE NULLS NOT DISTINCT" in one.what
    assert advice in one.do
    assert found(f"{{table: users, column: login, {rule}, allow_collisions: true}}", shape) == []
    assert found("{table: users, column: login, with: hash}", shape) == []


@pytest.mark.parametrize("index", [True, False])
def test_null_where_only_one_may_be_beside_other_columns_is_a_warning(index):
    words = "NULLS NOT DISTINCT"
    if index:
        several = IndexShape(id=7, name="one_null", is_unique=True, columns=(1, 2), used=(1, 2),
            definition=f"btree (id, login) {words}")  # fmt: skip
        more = {"indexes": (several,)}
    else:
        unique = ConstraintShape(id=7, name="one_null", kind="u", columns=(1, 2), used=(1, 2),
            definition=f"UNIQUE {words} (id, login)")  # fmt: skip
        more = {"constraints": (unique,)}
    shape = shape_of("users", {"id": "int8", "login": "text"}, key=["id"], **more)
    options = "{table: users, column: login, with: email, invalid_email_action: null}"

    [one] = findings(read_transform(f"transform: {options}"), {shape.table: shape})

    assert one.severity == "warning"
    assert "one_null is UNIQUE NULLS NOT DISTINCT with other columns" in one.what
    assert "reject" in one.do


def test_random_on_a_table_without_a_key_is_refused():
    shape = shape_of("log", {"line": "text"}, replica_identity="f")

    [one] = found("{table: log, column: line, with: hash, generator: random}", shape)

    assert "without a key" in one.what


def test_pattern_on_a_type_that_nobody_knows_is_refused():
    range_type = TypeShape(id=90001, schema_name="public", name="span", kind="range", base="int")
    shape = shape_of("t", {"id": "int8", "email_span": "span"}, key=["id"], oids={"span": 90001})

    [one] = found("{column: '*email*', with: masking}", shape)
    assert "email_span" in one.place
    known = shape.model_copy(update={"types": (range_type,)})
    assert found("{column: '*email*', with: masking}", known) == []


def test_domain_is_what_it_is_made_over():
    domain = TypeShape(
        id=90001, schema_name="public", name="code", kind="domain", base="character varying(5)"
    )
    shape = shape_of(
        "t", {"id": "int8", "c": "code"}, key=["id"], oids={"code": 90001}, types=(domain,)
    )

    [one] = found("{table: t, column: c, with: uuid}", shape)
    assert "36 characters" in one.what
    assert found("{table: t, column: c, with: string}", shape) == []


def test_strict_coverage_names_every_column_without_a_rule():
    [one] = found("{table: users, coverage: strict, columns: {id: keep, '*a*': keep}}")

    assert isinstance(one.error, ColumnUncovered)
    assert "born, doc, login, is_on" in one.what
    assert "born: {with: masking}, or born: keep" in one.do


def test_rules_file_reports_text_without_a_rule(tmp_path):
    (tmp_path / "rules.yml").write_text("tables:\n  users:\n    email: {with: email}\n")
    options = read_transform("transform: {rules_file: rules.yml}", directory=tmp_path)
    other = shape_of("notes", {"id": "int8", "body": "text"}, key=["id"], oid=16500)

    reported = list(findings(options, {USERS.table: USERS, other.table: other}))

    assert {one.severity for one in reported} == {"warning"}
    assert sorted((one.place.split()[-1], one.what.split(":")[0]) for one in reported) == [
        ("public.notes", "no rule covers body"),
        ("public.users", "no rule covers name, doc, login"),
    ]


# What may be personal data and is no text for Postgres, and what is none whatever it holds.
BARE = {"t": "text", "x": "xml", "v": "tsvector", "ja": "jsonb[]", "na": "name[]", "ip": "inet", "net": "cidr",
        "mac": "macaddr", "a": "address", "ca": "citext[]", "g": "words"}  # fmt: skip
HARMLESS = {"iv": "interval", "at": "time", "r": "int4range", "p": "point", "ns": "int4[]", "b": "bit",
            "on": "bool", "m": "mood", "ma": "mood[]", "mr": "mood_range", "bits": "bit[]"}  # fmt: skip
OIDS = {"xml": 142, "tsvector": 3614, "jsonb[]": 3807, "name[]": 1003, "inet": 869, "cidr": 650, "macaddr": 829,
        "address": 90001, "citext": 90002, "citext[]": 90003, "words": 90009, "interval": 1186, "time": 1083,
        "int4range": 3904, "point": 600, "int4[]": 1007, "bit": 1560, "bit[]": 1561, "mood": 90004,
        "mood[]": 90005, "mood_range": 90006}  # fmt: skip


def own_type(number: int, name: str, kind: str = "other", **more) -> TypeShape:
    return TypeShape(id=number, schema_name="public", name=name, kind=kind, **more)


OWN = (
    own_type(90001, "address", "composite", parts=(25,)),
    own_type(90002, "citext", extension="citext"),
    own_type(90003, "_citext", is_array=True, parts=(90002,)),
    own_type(90004, "mood", "enum", labels=(LabelShape(id=1, name="sad"),)),
    own_type(90005, "_mood", is_array=True, parts=(90004,)),
    own_type(90006, "mood_range", "range", parts=(90004,)),
    own_type(90009, "words", "range", parts=(25,)),
)


def test_rules_file_reports_every_column_whose_values_may_be_words(tmp_path):
    columns = {"id": "int8", **BARE, **HARMLESS}
    shape = shape_of("t", columns, key=["id"], oids=OIDS, types=OWN)
    (tmp_path / "rules.yml").write_text("tables:\n  t:\n    id: keep\n")
    options = read_transform("transform: {rules_file: rules.yml}", directory=tmp_path)

    [one] = findings(options, {shape.table: shape})

    assert one.what == f"no rule covers {', '.join(BARE)}: their values pass as they are"


def test_rules_file_of_pg_flo_reports_text_without_a_rule(tmp_path):
    text = "tables: {users: [{type: transform, column: email, parameters: {type: mask}}]}"
    (tmp_path / "rules.yml").write_text(text)
    options = read_transform("transform: {rules_file: rules.yml}", directory=tmp_path)
    other = shape_of("notes", {"id": "int8", "body": "text"}, key=["id"], oid=16500)

    reported = list(findings(options, {USERS.table: USERS, other.table: other}))

    assert {one.severity for one in reported} == {"warning"}
    assert sorted((one.place.split()[-1], one.what.split(":")[0]) for one in reported) == [
        ("public.notes", "no rule covers body"),
        ("public.users", "no rule covers name, doc, login"),
    ]


def test_pattern_that_fits_nothing_is_reported():
    [one] = found("{column: '*emial*', with: email}", severity="warning")

    assert "no column fits *emial*" in one.what


def test_null_for_what_fails_is_reported_where_the_column_is_not_null():
    entry = "{table: users, column: email, with: email, on_error: null}"

    [one] = found(entry, severity="warning")

    assert "NOT NULL" in one.what
    assert found(entry) == []


def test_rule_of_pg_flo_leaves_other_types_alone_and_says_so(tmp_path):
    text = "tables: {users: [{type: transform, column: age, parameters: {type: mask}}]}"
    (tmp_path / "rules.yml").write_text(text)
    options = read_transform("transform: {rules_file: rules.yml}", directory=tmp_path)

    one, rest = findings(options, {USERS.table: USERS})

    assert one.severity == rest.severity == "warning"
    assert one.place.endswith("rules.yml:1 public.users.age")
    assert "pass as they are" in one.what
    assert "no rule covers email, name, doc, login" in rest.what


RARER = {
    "price": ("numeric(5,2)", 1700, ((5 << 16) | 2) + 4),
    "cost": ("public.cost", 90002, -1),
    "ratio": ("real", 700, -1),
    "host": ("inet", 869, -1),
    "net": ("cidr", 650, -1),
    "mac": ("macaddr", 829, -1),
    "took": ("interval", 1186, -1),
    "flags": ("bit(3)", 1560, 3),
    "tags": ("text[]", 1009, -1),
    "numbers": ("integer[]", 1007, -1),
    "codes": ("character varying(3)[]", 1015, 7),
    "worth": ("money", 790, -1),
}
COST = TypeShape(id=90002, schema_name="public", name="cost", kind="domain", base="numeric(5,2)")


def items(*types: TypeShape) -> TableShape:
    """A table with columns of types that a name does not say."""
    shape = shape_of("items", dict.fromkeys(("id", *RARER), "int8"), key=["id"], types=types)
    described = (
        each.model_copy(update=dict(zip(("type", "type_id", "type_modifier"), RARER[each.name], strict=True)))
        if each.name in RARER
        else each
        for each in shape.columns
    )  # fmt: skip
    return shape.model_copy(update={"columns": tuple(described)})


@pytest.mark.parametrize(
    ("column", "bad", "good"),
    [
        ("price", "1000000", "999.994"),
        ("price", "999.995", "-999.99"),
        ("price", "Infinity", "NaN"),
        ("cost", "1000", "1e2"),
        ("ratio", "1e39", "3e38"),
        ("ratio", "1e-60", "0e-60"),
        ("host", "abc", "10.1.2.3/8"),
        ("host", "10.1.2.300", "::1"),
        ("net", "10.1.2.3/8", "10.0.0.0/8"),
        ("mac", "08:00:2b:01:02:zz", "08:00:2b:01:02:03"),
        ("took", "abc", "1 day 02:00:00"),
        ("flags", "1", "101"),
        ("flags", "2", "b101"),
        ("tags", "abc", "{abc,NULL,a b}"),
        ("codes", "{abcd}", '{"abc  ",ab}'),
        ("numbers", "{a}", "{1,-2}"),
    ],
)
def test_fixed_results_have_to_be_of_types_with_limits_and_of_rarer_ones(column, bad, good):
    shape = items(COST)

    for rule in ("literal, literal: '{}'", "choice, choices: ['{}']"):
        entry = f"{{table: items, column: {column}, with: " + rule + "}"
        [one] = found(entry.replace("{}", bad, 1), shape)
        assert "cannot be a" in one.what
        assert found(entry.replace("{}", good, 1), shape) == []
        assert found(entry.replace("{}", good, 1), shape, severity="warning") == []


@pytest.mark.parametrize(
    ("column", "text"),
    [("worth", "12"), ("took", "P1D"), ("tags", "{{a},{b}}"), ("host", "10/8")],
)
def test_fixed_result_that_only_postgres_can_judge_is_a_warning(column, text):
    entry = f"{{table: items, column: {column}, with: literal, literal: '{text}'}}"

    [one] = found(entry, items(COST), severity="warning")

    assert "it is not checked whether the column's type" in one.what
    assert found(entry, items(COST)) == []


def test_parameter_is_not_read_from_a_column_that_the_source_computes():
    parameter = "dynamic_parameters: {prefix: {column: loud}}"

    [one] = found(
        f"{{table: users, column: login, with: phone_number, {parameter}, allow_collisions: true}}"
    )

    assert "column loud is generated" in one.what


def test_drawn_numbers_have_to_fit_a_numeric():
    for column in ("price", "cost"):
        for rule in ("unix_timestamp", "float, min_value: 0, max_value: 999.999, precision: 3"):
            [one] = found(f"{{table: items, column: {column}, with: {rule}}}", items(COST))
            assert "goes beyond" in one.what or "go beyond" in one.what
        for rule in ("unix_timestamp, max_value: 999", "float, min_value: 0, max_value: 999.99"):
            assert found(f"{{table: items, column: {column}, with: {rule}}}", items(COST)) == []


@pytest.mark.parametrize(
    ("column", "bad", "good"),
    [
        ("age", "old", "7"),
        ("age", "40000", "-7"),
        ("paid", "much", "1.50"),
        ("born", "31.12.1999", "1999-12-31"),
        ("doc", "{x", "{}"),
        ("is_on", "maybe", "yes"),
        ("seen", "1999-12-31 10:00", "1999-12-31 10:00:00+01"),
        ("token", "x", "5f0c1b9e-3c1f-4b0e-9a61-0c4d3f9b8a77"),
        ("mood", "angry", "sad"),
    ],
)
def test_fixed_results_have_to_be_of_the_columns_type(column, bad, good):
    mood = TypeShape(
        id=90001,
        schema_name="public",
        name="mood",
        kind="enum",
        labels=(LabelShape(id=1, name="sad"), LabelShape(id=2, name="ok")),
    )
    columns = {"id": "int8", "age": "int2", "paid": "numeric", "born": "date", "doc": "jsonb"}
    columns |= {"is_on": "bool", "seen": "timestamptz", "token": "uuid", "mood": "mood"}
    shape = shape_of("users", columns, key=["id"], oids={"mood": 90001}, types=(mood,))

    for rule in ("literal, literal: '{}'", "choice, choices: ['{}']"):
        entry = f"{{table: users, column: {column}, with: " + rule + "}"
        [one] = found(entry.replace("{}", bad, 1), shape)
        assert one.place == f"public.users.{column}"
        assert "cannot be a" in one.what
        assert found(entry.replace("{}", good, 1), shape) == []


def foreign_key() -> ForeignKeyShape:
    return ForeignKeyShape(
        id=8,
        name="orders_user_fkey",
        columns=(2,),
        referenced_id=16400,
        referenced_schema="public",
        referenced_name="users",
        referenced_columns=("id",),
        on_update="a",
        on_delete="a",
    )


def torn(entries, *shapes):
    rules = [Rule("transform", read_transform(f"transform: {entry}")) for entry in entries]
    return list(torn_keys(rules, {shape.table: shape for shape in shapes}))


def test_foreign_key_whose_ends_are_not_transformed_alike_is_reported():
    key = foreign_key()
    orders = shape_of(
        "orders", {"id": "int8", "user_id": "text"}, key=["id"], oid=16500, foreign_keys=(key,)
    )
    users = shape_of("users", {"id": "text"}, key=["id"])

    [one] = torn(["{table: users, column: id, with: hash}"], users, orders)
    assert (one.place, one.severity) == ("public.orders.user_id", "warning")
    [one] = torn(["{table: users, set: {id: upper(id)}}"], users, orders)
    assert one.place == "public.orders.user_id"
    alike = "{columns: {user_id: {with: hash}, id: {with: hash}}}"
    assert torn([alike], users, orders) == []
    each = [
        "{table: users, column: id, with: hash}",
        "{table: orders, column: user_id, with: hash}",
    ]
    assert torn(each, users, orders) == [], "by all entries together"


def test_foreign_key_whose_ends_get_other_numbers_by_their_types_is_reported():
    key = foreign_key()
    orders = shape_of(
        "orders", {"id": "int8", "user_id": "int4"}, key=["id"], oid=16500, foreign_keys=(key,)
    )
    users = shape_of("users", {"id": "int2"}, key=["id"])
    rule = "{columns: {id: {with: integer}, user_id: {with: integer}}, allow_collisions: true}"

    [one] = torn([rule], users, orders)
    assert "limits" in one.do
    assert (
        torn([rule.replace("integer", "integer, max_value: 9, min_value: 1")], users, orders) == []
    )


def test_check_constraint_on_a_transformed_column_is_reported():
    check = ConstraintShape(id=9, name="users_email_check", kind="c", definition="", used=(2,))
    shape = shape_of("users", {"id": "int8", "email": "text"}, key=["id"], constraints=(check,))

    [one] = found("{table: users, column: email, with: email}", shape, severity="warning")

    assert "users_email_check" in one.what


def test_longest_results_are_what_they_are_said_to_be():
    """Of every transformer that says so: no result is longer, at any length of value."""
    from fix_transform import run_batch
    from penstock.modifiers.transform.rules import read_rule

    rules = [{"with": name} for name in ("email", "phone_number", "string", "hash", "uuid", "first_name",
             "last_name", "full_name", "mask", "date", "unix_timestamp")]  # fmt: skip
    rules += [{"with": "masking", "type": kind} for kind in ("default", "password", "name", "address",
              "email", "mobile", "tel", "id", "credit_card", "url")]  # fmt: skip
    rules += [
        {"with": "aes_siv", "key_hex": "00" * 64},
        {"with": "full_name", "preserve_length": True},
    ]
    for rule in rules:
        for length in (1, 2, 5, 8, 10, 30):
            values = ["x" * length, "a b " * (length // 4) + "a" * (length % 4), "1" * length]
            values.append(("http://a:@b/" + "c" * 30)[:length])
            done, _ = run_batch(rule, values)
            transformer = read_rule("c", rule, {"environ": {"PENSTOCK_SALT": "x"}}).transformer
            assert max(map(len, done)) <= transformer.longest(length), (rule, length, done)


def test_rule_for_some_operations_on_a_table_without_a_key_is_refused():
    """An UPDATE would put the value as it was, and the next one not find the row by the masked one."""
    keyless = shape_of("users", {"email": "text"}, replica_identity="f")
    entry = "{table: users, column: email, with: masking"

    [one] = found(entry + ", operations: [insert]}", keyless)
    assert "some operations only" in one.what
    assert found(entry + "}", keyless) == []
