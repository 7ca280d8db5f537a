"""Each transformer: the values that pgstream's and pg_flo's own tests state, and what it promises."""

from __future__ import annotations

import base64
import datetime as dt
import re
import uuid

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from fix_transform import read_transform, run_batch, transformed
from penstock.errors import BadValue
from penstock.modifiers.transform.people import names
from penstock.modifiers.transform.registry import ALIASES, TRANSFORMERS

KEY_HEX = bytes(range(64)).hex()


@pytest.mark.parametrize(
    ("rule", "value", "result"),
    [
        ({"type": "password"}, "aVeryStrongPassword123", "************"),
        ({"type": "name"}, "John Doe", "J**n D**e"),
        ({"type": "name"}, "A Bo  Zoë Renée", "** B**  Z**ë R**ée"),
        ({"type": "address"}, "123 Main St, Anytown, USA", "123 Ma******"),
        ({"type": "address"}, "Main 1", "******"),
        ({"type": "email"}, "john.doe@example.com", "joh****e@example.com"),
        ({"type": "email"}, "testing@xata.io", "tes****@xata.io"),
        ({"type": "email"}, "ab@x.io", "ab****@x.io"),
        ({"type": "email"}, "@x.io", "****@x.io"),
        ({"type": "email"}, "jürgen.müller@x.io", "jür****müller@x.io"),
        ({"type": "email"}, "no address", "no ****ess"),
        ({"type": "mobile"}, "1234567890", "1234***890"),
        ({"type": "tel"}, "+1-23-456-789", "(+1)2345-****"),
        ({"type": "tel"}, "2345 6789", "2345-****"),
        ({"type": "tel"}, "+49 170 1234567", "+49170123****"),
        ({"type": "id"}, "123456789", "123456****"),
        ({"type": "credit_card"}, "4111-1111-1111-1111", "4111-1******11-1111"),
        (
            {"type": "url"},
            "http://admin:mysecretpassword@localhost:1234/uri",
            "http://admin:xxxxx@localhost:1234/uri",
        ),
        ({"type": "url"}, "https://u:p@ss@host/x@y", "https://u:xxxxx@host/x@y"),
        ({"type": "url"}, "https://host:80/x@y", "https://host:80/x@y"),
        ({"type": "url"}, "//u:p@h", "//u:xxxxx@h"),
        ({"type": "url"}, "jdbc:postgresql://u:p@h/d", "jdbc:postgresql://u:xxxxx@h/d"),
        ({"type": "url"}, "u:secret@host/db", "u:xxxxx@host/db"),
        (
            {"type": "url"},
            "redis://:p@h, see amqp://u:p@h/",
            "redis://:xxxxx@h, see amqp://u:xxxxx@h/",
        ),
        ({"type": "url"}, "u@host:80/x?t=1:2&m=a@b", "u@host:80/x?t=1:2&m=a@b"),
        ({"type": "url"}, "smtp://ada@shop.org:p@h", "smtp://ada@shop.org:xxxxx@h"),
        ({"type": "url"}, "ftp://u:p/w?#@h/d", "ftp://u:xxxxx@h/d"),
        ({"type": "url"}, "ftp://ada@shop.org:1p#w@h", "ftp://ada@shop.org:xxxxx@h"),
        ({"type": "url"}, "amqp://a:1,b:2/x@y, //u:p@h", "amqp://a:1,b:2/x@y, //u:xxxxx@h"),
        ({"type": "url"}, "http://[::1]:80/x@y", "http://[::1]:80/x@y"),
        ({}, "Sensitive Data", "*" * 14),
        ({"type": "default"}, "Zoë", "***"),
        ({"type": "custom"}, "Sensitive Data", "*" * 14),
        (
            {"type": "custom", "mask_begin": "4", "mask_end": "400%"},
            "Sensitive Data",
            "Sens**********",
        ),
        (
            {"type": "custom", "unmask_begin": "78%", "unmask_end": "-4%"},
            "Sensitive Data",
            "Sensitive ****",
        ),
        ({"type": "custom", "mask_begin": "1", "mask_end": "2"}, "Zoë", "Z*ë"),
        ({"type": "custom", "unmask_begin": 2}, "Zoë", "**ë"),
    ],
)
def test_masking(rule, value, result):
    assert transformed({"with": "masking", **rule}, value) == result
    assert transformed({"with": "masking", **rule}, "") == ""


@pytest.mark.parametrize(
    ("rule", "value", "result"),
    [
        ({}, "1234567890123456", "1**************6"),
        ({}, "12", "12"),
        ({}, "joseph@example.com", "j****************m"),
        ({"mask_char": "X"}, "12345678909", "1XXXXXXXXX9"),
        ({"keep_first": 2, "keep_last": 0}, "Zoë!", "Zo**"),
        ({"keep_first": 0, "keep_last": 0}, "Zoë!", "****"),
        ({"keep_first": 3, "keep_last": 3}, "short", "short"),
    ],
)
def test_mask(rule, value, result):
    assert transformed({"with": "mask", **rule}, value) == result


@pytest.mark.parametrize(
    ("pattern", "replace", "value", "result"),
    [
        (r"@.*$", "@masked.com", "user@example.com", "user@masked.com"),
        (r"(\d{3})(\d{3})(\d{4})", "($1) $2-$3", "1234567890", "(123) 456-7890"),
        (r"(?P<a>\w+) (\w+)", "${2} ${a}", "x y", "y x"),
        (r"\((\d)\)[(](x)", "$1$2", "(7)(x", "7x"),
        (r"\d", "$$\\", "a1", "a$\\"),
    ],
)
def test_regex(pattern, replace, value, result):
    assert transformed({"with": "regex", "pattern": pattern, "replace": replace}, value) == result


def test_aes_siv_vector_and_way_back():
    rule = {"with": "aes_siv", "key_hex": KEY_HEX}
    other = {**rule, "associated_data": "public.orders.path"}

    done = transformed(rule, "hello world", "", "hello world")

    assert done[0] == done[2] == "Hc5d96xIxu2ute1RbFuenEftGxw-P__m1Vv_"
    sealed = base64.urlsafe_b64decode(done[1] + "==")
    assert AESSIV(bytes(range(64))).decrypt(sealed, [b""]) == b""
    assert transformed(other, "hello world") != done[0]


def test_email_is_the_same_for_the_same_address_and_another_for_another():
    done = transformed({"with": "email"}, "a@x.org", "b@x.org", "a@y.org", "a@x.org")

    assert done[0] == done[3]
    assert len(set(done)) == 3
    assert all(re.fullmatch(r"[a-z2-7]{16}@example\.com", one) for one in done)


def test_email_keeps_what_is_excluded_and_too_short():
    rule = {"with": "email", "exclude_domain": "test.com", "replacement_domain": "@nondefault.com"}

    done = transformed(rule, "hello@test.com", "hello@not-test.com", "x", "")

    assert done[0] == "hello@test.com"
    assert done[1].endswith("@nondefault.com")
    assert done[2:] == ["x", ""]


def test_email_does_each_of_a_list():
    rule = {"with": "email", "exclude_domain": "excluded.com"}
    alone = transformed(rule, "foo@bar.com")

    assert transformed(rule, "{foo@bar.com,test@excluded.com}") == f"{{{alone},test@excluded.com}}"
    assert transformed(rule, "{foo@bar.com,NULL}", type_name="text[]") == f"{{{alone},NULL}}"


def test_email_does_each_of_an_array_as_postgres_writes_it():
    rule = {"with": "email", "exclude_domain": "kept.org"}
    one, two = transformed(rule, "a,b@x.org", "c@y.org")

    def of(array, type_name="text[]"):
        return transformed(rule, array, type_name=type_name)

    for type_name in ("text[]", "text"):
        assert of('{"a,b@x.org",c@y.org}', type_name) == f"{{{one},{two}}}"
        assert of('{c@y.org,NULL,"NULL",""}', type_name).startswith(f"{{{two},NULL,")
        assert of("{}", type_name) == "{}"
    assert of('{"say \\"no\\", {a}\\\\@kept.org",x,""}') == (
        '{"say \\"no\\", {a}\\\\@kept.org",x,""}'
    )
    assert transformed(rule, "{c@y.org}", "{}", "{c@y.org,c@y.org}", type_name="text[]") == [
        f"{{{two}}}",
        "{}",
        f"{{{two},{two}}}",
    ]


def test_email_fails_an_array_that_is_not_flat():
    arrays = ["[2:3]={a@x.org,b@x.org}", "{a@x.org}", "{{a@x,b@x},{c@x,d@x}}", "{}"]
    done, batch = run_batch({"with": "email"}, arrays, "text[]")

    assert batch.failed.tolist() == [True, False, True, False]
    assert "dimensions" in batch.reason
    assert done[1] == "{" + transformed({"with": "email"}, "a@x.org") + "}"


def test_email_takes_text_in_braces_that_is_no_list_for_one_value():
    """Nothing of it is left bare, and it does not disturb the others."""
    values = ['{a"b@x.org}', "{a@x.org}", "{{a@x.org},{b@x.org}}", r"{a\}", "{", "b@x.org"]
    done = transformed({"with": "email"}, *values)

    for value, one in zip(values, done, strict=True):
        pattern = r"\{[a-z2-7]{16}@example\.com\}" if value == "{a@x.org}" else r"[a-z2-7]{16}@.*"
        assert re.fullmatch(pattern, one) or one == "{", value
    assert done[-1] == transformed({"with": "email"}, "b@x.org")


def test_email_of_a_list_looks_at_what_is_no_address_one_by_one():
    lists = ["{none,a@x.org}", "{a@x.org}"]
    for type_name in ("text", "text[]"):
        rule = {"with": "email", "invalid_email_action": "null"}
        done, _ = run_batch(rule, lists, type_name)
        assert done[0] == "{NULL," + done[1][1:]
        rule = {"with": "email", "invalid_email_action": "reject"}
        _, batch = run_batch(
            rule, [*lists, "b@x.org"][: 3 if type_name == "text" else 2], type_name
        )
        assert batch.failed.tolist()[:2] == [True, False]


def test_email_keeps_the_length_where_asked():
    rule = {"with": "email", "preserve_length": True}
    values = ["john.doe.the.third@example.org", "jo@shop.example.org", "a@b.c"]
    done = transformed(rule, *values)

    assert [len(one) for one in done] == [30, 19, 13], "one letter before the domain at least"
    assert all(one.endswith("@example.com") for one in done)
    assert done == transformed(rule, *values)
    done = transformed({**rule, "preserve_domain": True}, *values, "Zoë@müller.de")
    assert [len(one) for one in done] == [30, 19, 5, 13]
    assert [one.partition("@")[2] for one in done] == ["example.org", "shop.example.org", "b.c", "müller.de"]  # fmt: skip
    done = transformed({**rule, "max_length": 16}, *values)
    assert [len(one) for one in done] == [16, 16, 13]


@pytest.mark.parametrize(
    ("value", "domain"),
    [
        ("ada@shop.org", "shop.org"),
        ("zoë@müller.de ", "müller.de"),
        ("ada@shop.org, bob.doe@home.org", "home.org"),
        ("ada@shop.org;bob.doe", "example.com"),
        ("ada@shop.org (home: 555-1234)", "example.com"),
        ("Ada <ada@shop.org>", "example.com"),
        ("ada@", "example.com"),
        ("ada@shop.org\nbob", "example.com"),
    ],
)
@pytest.mark.parametrize("more", [{}, {"preserve_length": True}])
def test_email_keeps_a_domain_and_nothing_that_stands_behind_it(value, domain, more):
    done = transformed({"with": "email", "preserve_domain": True, **more}, value)

    assert done.partition("@")[2] == domain
    assert re.fullmatch("[a-z2-7]+", done.partition("@")[0])


def test_email_is_no_longer_than_asked():
    rule = {"with": "email", "max_length": 20}
    done = transformed(rule, "john.doe@example.org", "a@b.c")

    assert [len(one) for one in done] == [20, 20]
    rule = {"with": "email", "max_length": 30, "preserve_domain": True}
    done, batch = run_batch(rule, ["a@shop.org", "a@" + "x" * 20])
    assert done[0].endswith("@shop.org")
    assert batch.failed.tolist() == [False, True]
    assert "max_length" in batch.reason
    with pytest.raises(BadValue, match=r"max_length: is 12, and @example\.com has 12 characters"):
        read_transform("transform: {table: t, column: c, with: email, max_length: 12}")


@pytest.mark.parametrize(
    ("action", "result"), [("passthrough", "no address"), ("null", None), ("generate", "@example")]
)
def test_email_of_what_is_none(action, result):
    done, _ = run_batch({"with": "email", "invalid_email_action": action}, ["no address"])

    assert result in done[0] if result == "@example" else done == [result]


def test_email_rejects_what_is_none_where_asked():
    _, batch = run_batch({"with": "neosync_email"}, ["no address", "a@b"])

    assert batch.failed.tolist() == [True, False]
    assert "address" in batch.reason


def test_phone_number_has_prefix_and_length():
    rule = {"with": "phone_number", "prefix": "+49", "min_length": 8, "max_length": 9}
    done = transformed(rule, *map(str, range(200)))

    assert all(re.fullmatch(r"\+49\d{5,6}", one) for one in done)
    assert {len(one) for one in done} == {8, 9}


def test_phone_number_takes_its_prefix_from_another_column():
    rule = {"with": "phone_number", "dynamic_parameters": {"prefix": {"column": "code"}}}
    done, batch = run_batch(rule, ["1", "2", "3"], code=["+1", None, "+12345678"])

    assert done[0].startswith("+1")
    assert re.fullmatch(r"\d{6,10}", done[1])
    assert batch.failed.tolist() == [False, False, True]


def test_string_keeps_the_number_of_characters():
    done = transformed({"with": "string"}, "Zoë", "", "x" * 100)

    assert [len(one) for one in done] == [3, 0, 100]
    assert all(re.fullmatch("[a-zA-Z]*", one) for one in done)


def test_string_of_other_symbols_and_lengths():
    rule = {"with": "string", "symbols": "01", "min_length": 2, "max_length": 4}
    done = transformed(rule, *map(str, range(100)))

    assert {len(one) for one in done} == {2, 3, 4}
    assert set("".join(done)) == {"0", "1"}


def test_hash_and_uuid_have_their_form():
    assert re.fullmatch("[0-9a-f]{32}", transformed({"with": "hash"}, "x"))
    assert re.fullmatch("[0-9a-f]{20}", transformed({"with": "hash", "length": 20}, "x"))
    assert re.fullmatch(r"\\x[0-9a-f]{32}", transformed({"with": "hash"}, "x", type_name="bytea"))
    made = transformed({"with": "uuid"}, "x", type_name="uuid")
    assert uuid.UUID(made).version == 4


def test_names_are_of_the_lists():
    values = [str(number) for number in range(300)]

    assert set(transformed({"with": "last_name"}, *values)) <= set(names("last"))
    for gender in ("Male", "female", "Any"):
        done = transformed({"with": "first_name", "gender": gender}, *values)
        assert set(done) <= set(names(gender.lower()))
    first, last = zip(
        *(one.split() for one in transformed({"with": "full_name"}, *values)), strict=True
    )
    assert set(first) <= set(names("any"))
    assert set(last) <= set(names("last"))
    assert len(set(last)) > 100


def test_first_name_takes_its_gender_from_another_column():
    rule = {"with": "first_name", "dynamic_parameters": {"gender": {"column": "sex"}}}
    done, _ = run_batch(
        rule, list("abcdefgh"), sex=["Male", "M", "female", "F", None, "x", "", "f"]
    )

    assert {done[0], done[1]} <= set(names("male"))
    assert {done[2], done[3], done[7]} <= set(names("female"))


def test_names_keep_their_length_where_asked():
    for rule in ("first_name", "last_name", "full_name"):
        done = transformed(
            {"with": rule, "preserve_length": True}, "Jo Li", "x" * 40, "Alexander X"
        )
        assert [len(one) for one in done] == [5, 40, 11]


def test_names_fit_their_greatest_length():
    values = [str(number) for number in range(500)]
    for rule, most in (("first_name", 4), ("last_name", 5), ("full_name", 9)):
        assert max(map(len, transformed({"with": rule, "max_length": most}, *values))) <= most


def test_boolean_and_choice_draw_all_that_there_is():
    values = [str(number) for number in range(100)]

    assert set(transformed({"with": "boolean"}, *values, type_name="bool")) == {"t", "f"}
    rule = {"with": "choice", "choices": ["M", "F", "None"]}
    assert set(transformed(rule, *values)) == {"M", "F", "None"}


def test_integer_stays_between_its_limits():
    values = [str(number) for number in range(1000)]
    rule = {"with": "integer", "min_value": 18, "max_value": 75}

    done = [int(one) for one in transformed(rule, *values, type_name="int4")]

    assert (min(done), max(done)) == (18, 75)
    small = [int(one) for one in transformed({"with": "integer"}, *values, type_name="int2")]
    assert min(small) >= -(2**15)
    assert max(small) < 2**15


@pytest.mark.parametrize("precision", [0, 1, 2, 6])
def test_float_has_its_decimals_and_limits(precision):
    rule = {"with": "float", "min_value": "-1.5", "max_value": "1000", "precision": precision}
    done = transformed(rule, *map(str, range(500)), type_name="numeric")

    assert all(re.fullmatch(rf"-?\d+(\.\d{{{precision}}})?", one) for one in done)
    assert all(-1.5 <= float(one) <= 1000 for one in done)


def test_float_of_all_numbers():
    done = transformed({"with": "float"}, *map(str, range(100)), type_name="float8")

    assert all(abs(float(one)) <= 3.4e38 for one in done)


def test_date_lies_between_two_days():
    rule = {"with": "date", "min_value": "1990-01-01", "max_value": "2000-12-31"}
    days = [
        dt.date.fromisoformat(one)
        for one in transformed(rule, *map(str, range(500)), type_name="date")
    ]

    assert dt.date(1990, 1, 1) <= min(days) < max(days) <= dt.date(2000, 12, 31)
    assert re.fullmatch(r"\S+ 00:00:00\+00", transformed(rule, "x", type_name="timestamptz"))


def test_timestamp_is_cut_to_its_part():
    rule = {
        "with": "greenmask_utc_timestamp",
        "min_timestamp": "2021-01-01T00:00:00Z",
        "max_timestamp": "2022-01-01T00:00:00+01:00",
    }
    full = transformed(rule, *map(str, range(300)), type_name="timestamptz")
    moments = [dt.datetime.fromisoformat(one) for one in full]
    assert {one.year for one in moments} == {2021}

    hours = transformed({**rule, "truncate_part": "hour"}, *"abc", type_name="timestamp")
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:00:00", one) for one in hours)
    years = transformed({**rule, "truncate_part": "year"}, *"abc", type_name="date")
    assert set(years) == {"2021-01-01"}


def test_unix_timestamp_takes_numbers_and_moments():
    for low, high in (
        ("1600000000", "1600000010"),
        ("2020-09-13T12:26:40Z", "2020-09-13T12:26:50Z"),
    ):
        rule = {"with": "unix_timestamp", "min_value": low, "max_value": high}
        done = [int(one) for one in transformed(rule, *map(str, range(100)), type_name="int8")]
        assert set(done) == set(range(1600000000, 1600000011))


def test_literal_and_null_are_the_same_for_all():
    assert transformed({"with": "literal", "literal": "x"}, "a", "") == ["x", "x"]
    assert transformed({"with": "null"}, "a", "") == [None, None]
    assert transformed({"with": None}, "a") is None, "YAML's null is the transformer null"


DRAWING = {
    "string": "text",
    "email": "text",
    "phone_number": "text",
    "hash": "text",
    "uuid": "uuid",
    "boolean": "bool",
    "date": "date",
    "first_name": "text",
    "last_name": "text",
    "full_name": "text",
    "float": "numeric",
    "integer": "int4",
    "unix_timestamp": "int8",
    "timestamp": "timestamptz",
    "choice": "text",
}


@pytest.mark.parametrize("name", DRAWING)
def test_draws_are_the_same_for_the_same_value_and_salt(name):
    more = {"choices": list("abcdefgh")} if name == "choice" else {}
    rule, values = {"with": name, **more}, [f"value {number % 50}" for number in range(100)]

    once = transformed(rule, *values, type_name=DRAWING[name])

    assert once == transformed(rule, *values, type_name=DRAWING[name])
    assert once[:50] == once[50:]
    assert once == [transformed(rule, value, type_name=DRAWING[name]) for value in values]
    assert once != transformed(rule, *values, type_name=DRAWING[name], salt="another")
    random = transformed({**rule, "generator": "random"}, *values, type_name=DRAWING[name])
    assert random[:50] != random[50:], "rows differ even where values are equal"


def test_every_transformer_is_known_to_be_drawing_or_not():
    plain = {"aes_siv", "hstore", "json", "keep", "literal", "mask", "masking", "null"}

    assert {*DRAWING, *plain, "python", "regex", "template"} == set(TRANSFORMERS)


@pytest.mark.parametrize("name", [name for name in ALIASES if name])
def test_names_of_pgstream_are_taken(name):
    more = {
        "encrypted_aes_siv": f"key_hex: {KEY_HEX}",
        "greenmask_choice": "choices: [a, b]",
        "literal_string": "literal: x",
        "greenmask_integer": "min: 1\n    max: 9",
    }.get(name, "")

    read_transform(f"transform:\n  column: c\n  with: {name}\n  parameters:\n    {more}")


def test_shuffle_says_why_it_is_not_offered():
    with pytest.raises(BadValue, match=r"shop.yml:1: .*shuffle is not offered: .*stream") as caught:
        read_transform("transform: {column: c, with: shuffle}")
    assert "hash" in caught.value.do


@pytest.mark.parametrize(
    ("given", "wanted"), [(True, "t"), ("yes", "t"), ("Off", "f"), ("0", "f"), ("t", "t")]
)
def test_fixed_booleans_are_spelled_as_postgres_spells_them(given, wanted):
    """Documents are made of that."""
    assert transformed({"with": "literal", "literal": given}, "f", type_name="bool") == wanted
    assert transformed({"with": "choice", "choices": [given]}, "f", type_name="bool") == wanted
