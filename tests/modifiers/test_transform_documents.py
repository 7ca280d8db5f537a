"""template, json, hstore and python: computed with each distinct value."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fix_changes import examples
from fix_transform import applied, read_transform, run_batch, transformed
from penstock.errors import BadValue
from penstock.modifiers.transform.hstore import format_hstore, parse_hstore
from penstock.modifiers.transform.template_functions import FUNCTIONS
from penstock.testing import insert, table

HELLO = '{{- if eq .GetValue "hello" -}} first {{- else -}} second {{- end -}}'
OTHERS = (
    '{{- if eq .GetValue "hello" -}} {{.GetDynamicValue "value1" }} {{- else -}}'
    ' {{.GetDynamicValue "value2" }} {{- end -}}'
)


@pytest.mark.parametrize(
    ("template", "value", "result"),
    [
        ("hello world", "x", "hello world"),
        (HELLO, "hello", "first"),
        (HELLO, "world", "second"),
        ("{{ .GetValue | upper | trunc 3 }}!", "hello", "HEL!"),
        (
            '{{ if contains "@" .GetValue }}mail{{ else if eq .GetValue "" }}empty{{ end }}',
            "",
            "empty",
        ),
        ('{{ $x := lower .GetValue }}{{ printf "%s-%03d" $x 7 }}', "AB", "ab-007"),
        ('{{ masking "email" .GetValue }}', "john.doe@xata.io", "joh****e@xata.io"),
        (r'{{ regexReplaceAll "a(x*)b" .GetValue "${1}W" }}', "-ab-axxb-", "-W-xxW-"),
        (r'{{ regexReplaceAll `\d` .GetValue "#" }}', "a1b22", "a#b##"),
        ('{{ if regexMatch "^[a-z]+@" .GetValue }}yes{{ else }}no{{ end }}', "ab@x", "yes"),
        ('{{ if regexMatch "^[a-z]+@" .GetValue }}yes{{ else }}no{{ end }}', "AB@x", "no"),
        ('{{ splitList "@" .GetValue | first }}', "ab@x.org", "ab"),
        ('{{ splitList "@" .GetValue | last }}', "ab@x.org", "x.org"),
        ('{{ splitList "$" .GetValue | join "-" }}', "a$b$c", "a-b-c"),
        ('{{ splitList "" .GetValue }} {{ splitList "," .GetValue | len }}', "abc", "[a b c] 1"),
        ('{{ join "-" .GetValue }}', "abc", "abc"),
        ('{{ replace "a" "b" .GetValue | quote }}', "aa", '"bb"'),
        ("{{ (len .GetValue) | add 1 }}", "Zoë", "4"),
        ('{{ and (gt (len .GetValue) 2) "long" }}', "abc", "long"),
        ('{{ or "" .GetValue }}', "x", "x"),
        ('{{ ternary "yes" "no" (hasPrefix "a" .GetValue) }}', "abc", "yes"),
        ('{{/* nothing */}}x{{ `raw "}}` }}', "v", 'xraw "}}'),
        ("{{ substr 1 3 .GetValue }}{{ nil }}", "abcd", "bc"),
        ('{{ default "none" .GetValue }}', "", "none"),
        ('{{ trimSuffix ".org" .GetValue }}{{ sha256sum "" | trunc 6 }}', "x.org", "xe3b0c4"),
    ],
)
def test_template(template, value, result):
    assert transformed({"with": "template", "template": template}, value) == result


@pytest.mark.parametrize(
    ("template", "result"),
    [
        # Go cuts towards 0.
        ("div -7 2", "-3"),
        ("div 7 -2", "-3"),
        ("mod -7 2", "-1"),
        ("mod 7 -2", "1"),
        ("atoi `012` | add1", "13"),
        ("float64 `1.50`", "1.5"),
        ("floor 123.9999", "123"),
        ("ceil 123.001", "124"),
        ("round 123.555555 3", "123.556"),
        ("round -1.2 0", "-2"),
        ("round 10.5 0 0.6", "10"),
        ("floor 2.5 | add 1", "3"),
        ("addf 1.5 2 2", "5.5"),
        ("addf 0.1 0.2", "0.3"),
        ("subf 7.5 2 3", "2.5"),
        ("mulf 1.5 2 2", "6"),
        ("divf 10 2 4", "1.25"),
        ("divf 1 3", "0.3333333333333333"),
        ("float64 1000000000000000000000", "1e+21"),
        ("float64 `0.00001`", "1e-05"),
        ("isInt 1", "true"),
        ("isInt `1`", "false"),
        ("isFloat 1.5", "true"),
        ("isString .GetValue", "true"),
        ("abbrev 5 `hello world`", "he..."),
        ("abbrev 3 `hello`", "hello"),
        ("initials `First Try`", "FT"),
        ("snakecase `FirstName`", "first_name"),
        ("snakecase `HTTPServer`", "http_server"),
        ("snakecase `NoHTTPS`", "no_https"),
        ("snakecase `GO PATH`", "go_path"),
        ("kebabcase `GO_PATH`", "go-path"),
        ("camelcase `http_server`", "HttpServer"),
        ("camelcase `_camel_case`", "_CamelCase"),
        ("untitle `Hello World`", "hello world"),
        ("title `hELLO wORLD-x`", "HELLO WORLD-X"),
        ("swapcase `This Is A.Test`", "tHIS iS a.tEST"),
        ("wrap 5 `Hello World and all`", "Hello\nWorld\nand\nall"),
        ("wrap 3 `internationally so`", "internationally\nso"),
        ("indent 2 `a\nb`", "  a\n  b"),
        ("nindent 1 `a`", "\n a"),
        ("plural `one` `many` 1", "one"),
        ("quote `a\nb` nil `c`", '"a\\nb" "c"'),
        ('regexFind "[a-z][1-9]" "abcd1234"', "d1"),
        ('regexFind "x" "abcd1234"', ""),
        ('regexFindAll "[2,4,6,8]" "123456789" -1', "[2 4 6 8]"),
        ('regexFindAll "(a)(b)?" "ab-a" 1', "[ab]"),
        ('(split "$" "foo$bar$baz")._1', "bar"),
        ('split "$" "foo$bar"', "map[_0:foo _1:bar]"),
        ("index (list 1 2 3) 1", "2"),
        ("slice (list 1 2 3 4 5) 1 3", "[2 3]"),
        ("slice .GetValue 1 3", "bc"),
        ("list 1 1 2 `1` | uniq", "[1 2 1]"),
        ("has 4 (list 1 4)", "true"),
        ("rest (list 1 2) | append 3", None),
        ("append (rest (list 1 2)) 3 | reverse", "[3 2]"),
        ("sortAlpha (list `b` `a`) | initial", "[a]"),
        ('toDate "2006-01-02" "2017-12-31" | date "02/01/2006"', "31/12/2017"),
        ('toDate "2006-01-02" "2017-12-31"', "2017-12-31 00:00:00 +0000 UTC"),
        ('toDate "2006-01-02 15:04:05-07:00" "2017-12-31 01:00:00.5+02:00" | date "Jan _2 15:04:05.000"', "Dec 30 23:00:00.500"),
        ('toDate "2006-01-02T15:04:05Z07:00" "2017-12-31T00:00:00Z" | unixEpoch', "1514678400"),
        ("sha512sum `` | trunc 8", "cf83e135"),
        ("toJson (list 1 `<a>` nil true)", '[1,"\\u003ca\\u003e",null,true]'),
        ("toRawJson `<é>`", '"<é>"'),
        ("println `a` 1", "a 1\n"),
        ("print 1 2 `a` 3", "1 2a3"),
        ('printf "%x %X %o %b" 255 `hi` 8 5', "ff 6869 10 101"),
        ('printf "%#x|%6x|%-6x|%06x" 255 255 255 255', "0xff|    ff|ff    |0000ff"),
        ('printf "%+d %05.1f %e %t %c" 7 2.25 1.5 true 65', "+7 002.2 1.500000e+00 true A"),
        ('printf "%q %5s|%-5s|%.2s %v%%" `a"b` `x` `y` `abc` 1.5', '"a\\"b"     x|y    |ab 1.5%'),
    ],
)  # fmt: skip
def test_functions_give_what_go_and_sprig_give(template, result):
    done, batch = run_batch({"with": "template", "template": f"{{{{ {template} }}}}"}, ["abc"])

    assert (None if batch.failed is not None else done[0]) == result


@pytest.mark.parametrize(
    ("template", "result"),
    [
        ("{{ with .GetValue }}<{{ . }}>{{ else }}none{{ end }}", ["<abc>", "none"]),
        ("{{ with $x := upper .GetValue }}{{ $x }}{{ $.GetValue }}{{ end }}", ["ABCabc", ""]),
        ("{{ with split `b` .GetValue }}{{ ._0 }}-{{ ._1 }}{{ end }}", ["a-c", ""]),
        ("{{ if $x := .GetValue }}{{ $x }}!{{ end }}", ["abc!", ""]),
        ("{{ with .GetValue }}{{ with len . }}{{ . }}{{ end }}{{ . }}{{ end }}", ["3abc", ""]),
    ],
)
def test_with_has_its_value_as_the_dot(template, result):
    done = transformed({"with": "template", "template": template}, "abc", "")

    assert done[0] == result[0]
    assert done[1] == result[1] or "split" in template


def test_templates_whose_results_are_other_ones_than_once_are_reported():
    def revision(template):
        [group] = read_transform(
            f"transform: {{column: d, with: template, template: '{template}'}}"
        ).tables
        return group.rules[0].revision

    assert revision("{{ div .GetValue 2 }}") == revision("{{ title .GetValue }}") == 2
    assert revision("{{ upper .GetValue }} div") == 1


def test_template_reads_other_columns():
    rule = {"with": "template", "template": OTHERS}
    done, _ = run_batch(rule, ["hello", "x", "x"], value1=["a", "b", "c"], value2=["d", "e", None])

    assert done == ["a", "e", ""]


def test_template_compares_numbers_as_numbers():
    rule = {"with": "template", "template": "{{ if lt .GetValue 10 }}few{{ else }}many{{ end }}"}

    assert transformed(rule, "9", "10", type_name="int4") == ["few", "many"]


def test_template_that_cannot_compare_fails_the_row_and_no_other():
    rule = {"with": "template", "template": '{{ if eq .GetValue "x" }}a{{ end }}'}
    _, batch = run_batch(rule, ["1", "2"], "int4")

    assert batch.failed.tolist() == [True, True]
    assert batch.reason == "incompatible types for comparison: a number and text"
    rule = {"with": "template", "template": "{{ div 1 .GetValue }}"}
    done, batch = run_batch(rule, ["0", "1"], "int4")
    assert (batch.failed.tolist(), done[1]) == ([True, False], "1")


@pytest.mark.parametrize(
    ("template", "value", "type_name"),
    [
        ("{{ int .GetValue }}", "sesame", "text"),
        ("{{ int .GetValue }}", "1e999999999", "text"),
        ("{{ add 1 .GetValue }}", "9" * 5000, "text"),
        ("{{ if lt .GetValue 1 }}x{{ end }}", "NaN", "numeric"),
        ("{{ repeat 99999999 .GetValue }}", "sesame", "text"),
        ("{{ b64dec .GetValue }}", "sesame!", "text"),
        ("{{ upper .GetValue | int }}", "sesame", "text"),
        ('{{ regexMatch "(" .GetValue }}', "sesame", "text"),
        ('{{ regexReplaceAll .GetValue "x" "y" }}', "sesame(", "text"),
        ('{{ regexReplaceAll "x" .GetValue "$1" }}', "sesame", "text"),
        ("{{ first .GetValue }}", "sesame", "text"),
        ("{{ index .GetValue 1 }}", "sesame", "text"),
        ("{{ atoi .GetValue }}", "sesame", "text"),
        ("{{ floor .GetValue }}", "9" * 500, "text"),
        ("{{ round 1 .GetValue }}", "9999", "text"),
        ("{{ divf 1 0 }}", "sesame", "text"),
        ("{{ toDate `2006` .GetValue }}", "sesame", "text"),
        ("{{ toDate .GetValue `1` }}", "1 01", "text"),
        ("{{ regexFind .GetValue `x` }}", "sesame(", "text"),
        ("{{ indent 9999999 .GetValue }}", "sesame", "text"),
        ("{{ replace `e` (repeat 900000 `x`) .GetValue }}", "sesame", "text"),
        ("{{ printf `%c` 99999999 }}", "sesame", "text"),
        ("{{ (index (list 1) 0)._0 }}", "sesame", "text"),
        ("{{ last .GetValue }}", "sesame", "text"),
        ('{{ if eq (splitList "e" .GetValue) "s" }}x{{ end }}', "sesame", "text"),
        (
            '{{ splitList "" (repeat 2000 .GetValue) | join (repeat 2000 .GetValue) }}',
            "sesame",
            "text",
        ),
    ],
)
def test_value_that_a_template_cannot_take_fails_without_being_shown(template, value, type_name):
    _, batch = run_batch({"with": "template", "template": template}, [value], type_name)

    assert batch.failed.tolist() == [True]
    assert batch.reason
    assert "sesame" not in batch.reason.lower()


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("{{- if eq syntaxerror", "not closed"),
        ("{{ if .GetValue }}x", "an if has no end"),
        ("x{{ end }}", "end without an if"),
        ("{{ range .GetValue }}{{ end }}", "range is not offered"),
        ("{{ randomInt 0 3 }}", "no function randomInt"),
        ('{{ env "HOME" }}', "no function env"),
        ("{{ .Other }}", "there is no .Other"),
        ("{{ . }}", "outside of with"),
        ("{{ with .GetValue }}{{ .GetValue }}{{ end }}", "inside of with"),
        ("{{ $ }}", "ends too early"),
        ("{{ $x }}", r"\$x has no value"),
        ("{{ .GetDynamicValue }}", "lacks the name"),
        ("{{ .GetValue | }}", "ends too early"),
        ("{{ (.GetValue }}", "ends too early"),
        ("{{ .GetValue ~ }}", "cannot be read"),
        ("{{ 1 | 2 }}", "no function"),
        ("{{ .GetValue .GetValue }}", "left over"),
    ],
)
def test_bad_template_is_an_error_of_the_file(template, complaint):
    text = f"transform:\n  column: c\n  with: template\n  template: '{template}'"
    with pytest.raises(BadValue, match=f"shop.yml:4: .*{complaint}") as caught:
        read_transform(text)
    assert caught.value.do


@examples
@given(st.text(max_size=40), st.sampled_from(sorted(FUNCTIONS)))
def test_templates_of_any_text_are_read_or_refused(text, name):
    """Never another error, whatever is between the braces."""
    for template in (f"{{{{ {name} {text} }}}}", f"{{{{ {text} | {name} }}}}", text):
        try:
            read_transform_of(template)
        except BadValue:
            continue


def read_transform_of(template):
    from pydantic import ValidationError

    from penstock.modifiers.transform.documents import Templated

    try:
        return Templated(template=template)
    except ValidationError as error:
        raise BadValue("refused") from error


JSON = (
    '{"user": {"firstname": "john", "lastname": "unknown", "email": "me@gmail.com"}, "residency":'
    ' {"city": "some city", "country": "x"}, "purchases": [{"item": "book", "price": 10.50},'
    ' {"item": "pen", "price": 9007199254740993}]}'
)


def operation(**given):
    return {"operation": "set", **given}


@pytest.mark.parametrize(
    ("operations", "value", "result"),
    [
        (
            [
                operation(path="greeting", value="hello world"),
                {"operation": "delete", "path": "farewell", "error_not_exist": True},
            ],
            '{"greeting":"hello", "farewell":"goodbye"}',
            '{"greeting": "hello world"}',
        ),
        (
            [
                operation(path="0.greeting", value="hello world"),
                operation(path="1.greeting", value="hello again", error_not_exist=True),
                {"operation": "delete", "path": "0.farewell", "error_not_exist": True},
            ],
            '[{"greeting": "hello", "farewell": "goodbye"}]',
            '[{"greeting": "hello world"}, {"greeting": "hello again"}]',
        ),
        (
            [operation(path="missing.key", value_template='"{{ masking "default" .GetValue }}"')],
            '{"a": 1.10}',
            '{"a": 1.10}',
        ),
        ([operation(path="a.b.c", value="x")], "{}", '{"a": {"b": {"c": "x"}}}'),
        ([operation(path="a", value=None)], '{"a": 1}', '{"a": null}'),
        ([operation(path="n", value_template="{{ add .GetValue 1 }}")], '{"n": 41}', '{"n": 42}'),
        ([operation(path="a\\.b", value="x")], '{"a.b": 1}', '{"a.b": "x"}'),
        ([{"operation": "delete", "path": "#.a"}], '[{"a": 1, "b": 2}]', '[{"b": 2}]'),
        (
            [operation(path="a.#.b", value="x")],
            '{"a": [{"b": 1}, {}]}',
            '{"a": [{"b": "x"}, {"b": "x"}]}',
        ),
        ([operation(path="a.#.b", value="x")], '{"a": null, "c": 1}', '{"a": null, "c": 1}'),
        ([operation(path="a.#.b", value="x")], '{"c": 1}', '{"c": 1}'),
        ([operation(path="a.#", value="x")], '{"a": {"#": 1}}', '{"a": {"#": "x"}}'),
        ([{"operation": "delete", "path": "1"}], "[1, 2, 3]", "[1, 3]"),
    ],
)
def test_json(operations, value, result):
    rule = {"with": "json", "operations": operations}

    assert transformed(rule, value, type_name="jsonb") == result


@pytest.mark.parametrize(
    ("path", "value", "result"),
    [
        ("#.n", '[{"n": "ab"}, {"n": "c"}]', '[{"n": "**"}, {"n": "*"}]'),
        ("a.#", '{"a": ["ab", "c"]}', '{"a": ["**", "*"]}'),
        ("#.b.#.n", '[{"b": [{"n": "ab"}]}, {"b": []}]', '[{"b": [{"n": "**"}]}, {"b": []}]'),
        ("#.n", '[{"n": "ab"}, {"m": "c"}, "d", [1]]', '[{"n": "**"}, {"m": "c"}, "d", [1]]'),
        ("#.n", "[]", "[]"),
        ("a.b", '{"a": 5}', '{"a": 5}'),
        ("a.b", '{"a": null}', '{"a": null}'),
        ("5", '["ab"]', '["ab"]'),
    ],
)
def test_json_template_is_run_for_each_entry_of_a_list(path, value, result):
    stars = operation(path=path, value_template='"{{ masking "default" .GetValue }}"')

    assert transformed({"with": "json", "operations": [stars]}, value, type_name="jsonb") == result


def test_json_template_makes_what_an_entry_lacks_where_it_is_asked_to():
    made = operation(path="#.n", value_template='"x"', skip_not_exist=False)
    rule = {"with": "json", "operations": [made]}

    done = transformed(rule, '[{"n": 1}, {"m": 2}]', type_name="jsonb")

    assert done == '[{"n": "x"}, {"m": 2, "n": "x"}]'


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ("30", "30"),
        ("-1.50", "-1.50"),
        ("1e400", "1e400"),
        ("+7", "7"),
        ("true", "true"),
        ("False", "false"),
        ("null", "null"),
        ("'30'", '"30"'),
        ('"true"', '"true"'),
        ("yes", '"yes"'),
        ("0x1F", '"0x1F"'),
        ("2024-01-01", '"2024-01-01"'),
        ("${AGE}", '"30"'),
        ("[1, '1', {n: 2}]", '[1, "1", {"n": 2}]'),
    ],
)
def test_json_is_given_numbers_and_truth_values_that_stand_without_quotes(value, result):
    text = (
        "transform: {table: users, column: doc, with: json,"
        f" operations: [{{operation: set, path: a, value: {value}}}]}}"
    )
    options = read_transform(text, {"AGE": "30"})
    options = pickle.loads(pickle.dumps(options))
    users = table(16400, "users", {"id": "text", "doc": "jsonb"}, key=["id"])

    [(_, after, _)] = applied(options, users, insert(users, ["1", "{}"]))

    assert after[1] == f'{{"a": {result}}}'


def test_json_that_sets_a_number_gives_other_results_than_it_did():
    def revision(value):
        text = f"transform: {{column: d, with: json, operations: [{{operation: set, path: a, value: {value}}}]}}"
        [group] = read_transform(text).tables
        return group.rules[0].revision

    assert [revision(each) for each in ("30", "[{a: true}]", "x", "'30'")] == [2, 2, 1, 1]


def test_json_with_other_columns_lists_and_masks():
    rule = {
        "with": "json",
        "operations": [
            operation(path="purchases.#.item", value="-", error_not_exist=True),
            operation(path="user.lastname", value_template='"{{ .GetDynamicValue "lastname" }}"'),
            operation(path="residency.city", value_template='"{{ masking "default" .GetValue }}"'),
            {"operation": "delete", "path": "residency.country", "error_not_exist": True},
        ],
    }
    [done], _ = run_batch(rule, [JSON], "jsonb", lastname=["doe"])

    assert done == (
        '{"user": {"firstname": "john", "lastname": "doe", "email": "me@gmail.com"}, "residency":'
        ' {"city": "*********"}, "purchases": [{"item": "-", "price": 10.50},'
        ' {"item": "-", "price": 9007199254740993}]}'
    )


@pytest.mark.parametrize(
    ("operations", "value", "reason"),
    [
        (
            [operation(path="a.b", value_template="x", error_not_exist=True)],
            "{}",
            "nothing at a.b",
        ),
        ([{"operation": "delete", "path": "1.a", "error_not_exist": True}], "[{}]", "nothing at"),
        ([operation(path="a", value_template="{{ .GetValue }}")], '{"a": "x y"}', "no JSON"),
        ([operation(path="a", value="x")], "no json", "it is no JSON"),
        ([operation(path="a", value="x")], "[" * 100_000, "it is no JSON"),
        ([operation(path="a.b", value="x")], '{"a": 1}', "neither object nor list"),
        ([operation(path="a", value="x")], "[1]", "key in a list"),
        ([operation(path="a.#.b", value="x")], '{"a": {"b": 1}}', "is no list"),
        ([operation(path="#.b", value="x")], '{"b": 1}', "is no list"),
    ],
)
def test_json_that_cannot_be_done_fails_without_a_value(operations, value, reason):
    _, batch = run_batch({"with": "json", "operations": operations}, [value], "jsonb")

    assert batch.failed.tolist() == [True]
    assert reason in batch.reason


@pytest.mark.parametrize(
    ("operations", "value", "result"),
    [
        ([{"operation": "delete", "key": "a"}], '"a"=>"1", "b"=>"2"', '"b"=>"2"'),
        ([{"operation": "delete", "key": "c"}], '"a"=>"1"', '"a"=>"1"'),
        ([operation(key="a", value="new")], '"a"=>"1", "b"=>"2"', '"a"=>"new", "b"=>"2"'),
        ([operation(key="b", value="2")], '"a"=>"1"', '"a"=>"1", "b"=>"2"'),
        ([operation(key="a", value=None)], '"a"=>"1"', '"a"=>NULL'),
        (
            [
                {"operation": "delete", "key": "key1"},
                operation(key="key2", value="modified"),
                operation(key="email", value_template='{{ masking "email" .GetValue }}'),
                operation(key="key3", value_template="{{ .GetValue }}"),
            ],
            '"key1"=>"value1", "key2"=>"value2", "email"=>"testing@xata.io"',
            '"key2"=>"modified", "email"=>"tes****@xata.io", "key3"=>NULL',
        ),
    ],
)
def test_hstore(operations, value, result):
    rule = {"with": "hstore", "operations": operations}

    assert transformed(rule, value, type_name="hstore") == result


def test_hstore_fails_where_a_key_must_be_and_is_not():
    missing = [{"operation": "delete", "key": "k", "error_not_exist": True}]
    _, batch = run_batch({"with": "hstore", "operations": missing}, ['"a"=>"1"', "x"], "hstore")

    assert batch.failed.tolist() == [True, True]


@examples
@given(st.dictionaries(st.text(), st.none() | st.text()))
def test_hstore_text_is_read_as_it_is_written(pairs):
    assert parse_hstore(format_hstore(pairs)) == pairs


@pytest.mark.parametrize(
    "operations",
    ["[]", "3", "[x]", "[{operation: set, path: a}]", "[{operation: add, path: a, value: x}]",
     "[{path: a, value: x}]", "[{operation: set, value: x}]", "[{operation: set, path: '', value: x}]",
     "[{operation: set, path: a, value: x, value_template: y}]",
     "[{operation: set, path: a, value_template: '{{ x'}]"],
)  # fmt: skip
def test_bad_operations_are_errors_of_the_file(operations):
    text = f"transform:\n  column: c\n  with: json\n  parameters:\n    operations: {operations}"
    with pytest.raises(BadValue, match=r"shop.yml:[345]"):
        read_transform(text)


def shout(values: pa.Array) -> pa.Array:
    return pc.utf8_upper(values)


def short(values: pa.Array) -> pa.Array:
    return values[:1]


def broken(values: pa.Array) -> pa.Array:
    raise RuntimeError(values[0].as_py())


def test_python_function_takes_and_gives_arrays():
    assert transformed({"python": f"{__name__}.shout"}, "a", "ö") == ["A", "Ö"]


@pytest.mark.parametrize("path", ["nowhere.to.be", "json.nothing", "json.__name__", "noname"])
def test_python_function_that_is_not_there_is_an_error_of_the_file(path):
    with pytest.raises(BadValue, match=r"shop.yml:1"):
        read_transform(f"transform: {{column: c, python: {path}}}")
