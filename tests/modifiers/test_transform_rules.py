"""Entries of `transform:` and files of rules: what is read, and what is refused, with line and advice."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from fix_rules import chain, document
from fix_transform import KEY_OF_TESTS, applied, read_transform, shape_of
from penstock.config import pipeline_from_document
from penstock.errors import BadValue, ColumnUncovered, PenstockError, PipelineFileError, UnknownKey
from penstock.modifiers.chain import chain_for
from penstock.modifiers.transform import findings, modifier_for
from penstock.pipeline import wire_of
from penstock.run.rules import RuleWatch, find_rules
from penstock.state.reports import SeenRules
from penstock.table import TableName
from penstock.testing import insert, table, update
from penstock.vault import Vault, using

USERS = table(
    16400, "users", {"id": "int8", "email": "text", "name": "text", "age": "int4"}, key=["id"]
)
ROW = insert(USERS, ["1", "a@b.org", "Ann", "33"])


def after(options, users=USERS, row=ROW):
    [(_, new, _)] = applied(options, users, row)
    return new


@pytest.mark.parametrize(
    ("entry", "error", "found", "advice"),
    [
        ("{}", BadValue, "none of column", "column: NAME"),
        ("x", BadValue, "a mapping", ""),
        ("{column: c}", BadValue, "names one transformer", "with:"),
        ("{column: c, columns: {a: keep}, with: keep}", BadValue, "column and columns", "each"),
        ("{column: c, with: emial}", BadValue, "'emial' is no transformer", "write email"),
        ("{column: c, with: email, name: email}", BadValue, "with and name", ""),
        ("{column: '', with: email}", BadValue, "no name of a column", "pattern"),
        ("{column: c, with: email, domain: x}", UnknownKey, "domain", "exclude_domain"),
        ("{column: c, with: email, on_error: panic}", BadValue, "on_error", "stop"),
        ("{column: c, with: email, operations: [truncate]}", BadValue, "operations", ""),
        ("{column: c, with: email, operations: []}", BadValue, "operations", "insert"),
        ("{column: c, with: email, generator: maybe}", BadValue, "generator", "deterministic"),
        ("{column: c, with: email, table: a.b.c}", PenstockError, "3 parts", "quote"),
        ("{column: c, with: email, coverage: strict}", BadValue, "coverage", "columns"),
        ("{column: c, with: masking, type: face}", BadValue, "type", "password"),
        ("{column: c, with: masking, mask_begin: 1}", BadValue, "type: default", "custom"),
        (
            "{column: c, with: masking, type: custom, mask_begin: 1, unmask_end: 2}",
            BadValue,
            "beside each other",
            "hide",
        ),
        (
            "{column: c, with: masking, type: custom, mask_begin: '5', mask_end: '5'}",
            BadValue,
            "hides no character",
            "begin",
        ),
        ("{column: c, with: masking, type: custom, mask_begin: x}", BadValue, "mask_begin", "40%"),
        ("{column: c, with: mask, mask_char: '**'}", BadValue, "mask_char", "one"),
        ("{column: c, with: mask, keep_first: -1}", BadValue, "keep_first", "0 or more"),
        ("{column: c, with: regex, pattern: '(', replace: x}", BadValue, "RE2", "Syntax"),
        ("{column: c, with: regex, pattern: '(a)', replace: $2}", BadValue, "group 2", "$$"),
        ("{column: c, with: regex, pattern: '(a)', replace: $1x}", BadValue, "group 1x", "${1}"),
        ("{column: c, with: literal}", BadValue, "literal is missing", "add literal"),
        ("{column: c, with: choice, choices: []}", BadValue, "choices", "at least one"),
        ("{column: c, with: integer, min_value: 5, max_value: 1}", BadValue, "below", "5"),
        ("{column: c, with: integer, size: 3}", BadValue, "size", "2"),
        ("{column: c, with: integer, size: 2, max_value: 99999}", BadValue, "2 bytes", "size"),
        ("{column: c, with: float, min_value: 2, max_value: 1}", BadValue, "below", "swap"),
        ("{column: c, with: float, precision: 99}", BadValue, "precision", ""),
        ("{column: c, with: date, min_value: soon}", BadValue, "min_value", "2024-01-31"),
        ("{column: c, with: date, min_value: 2024-02-02, max_value: 2024-01-01}", BadValue, "before", "swap"),
        ("{column: c, with: timestamp, truncate_part: week}", BadValue, "truncate_part", "hour"),
        ("{column: c, with: phone_number, max_length: 3}", BadValue, "below the least", "6"),
        ("{column: c, with: phone_number, prefix: '+123456'}", BadValue, "min_length", "shorter"),
        ("{column: c, with: string, symbols: ''}", BadValue, "symbols", "ASCII"),
        ("{column: c, with: string, min_length: 9, max_length: 3}", BadValue, "below", "9"),
        ("{column: c, with: first_name, gender: robot}", BadValue, "gender", "male"),
        ("{column: c, with: last_name, max_length: 1}", BadValue, "max_length", "3 or more"),
        ("{column: c, with: hash, length: 8}", BadValue, "length", "20"),
        (
            "{column: c, with: email, dynamic_parameters: {replacement_domain: {column: d}}}",
            BadValue,
            "cannot be read from another column",
            "among the parameters",
        ),
        ("{column: c, with: pg_anonymizer}", BadValue, "not offered", "email"),
        ("{columns: {}}", BadValue, "names no column", "columns"),
        ("{columns: {a: 3}}", BadValue, "'3' is no transformer", ""),
        ("{columns: {a: keep}, colums: x}", UnknownKey, "colums", "columns"),
        ("{set: {}}", BadValue, "sets no column", "SQL"),
        ("{rules_file: nowhere.yml}", PipelineFileError, "cannot be read", "file"),
        ("{rules_file: x.yml, table: t}", UnknownKey, "beside rules_file", ""),
    ],
)  # fmt: skip
def test_bad_entry_is_refused_with_its_line_and_advice(entry, error, found, advice, tmp_path):
    with pytest.raises(error) as caught:
        read_transform(f"# a pipeline\ntransform: {entry}", directory=tmp_path)

    assert caught.value.where.startswith("shop.yml:2"), caught.value
    assert found in caught.value.what
    assert advice in caught.value.do


def test_fault_of_one_column_names_its_own_line():
    text = "transform:\n  table: users\n  columns:\n    id: keep\n    email:\n      with: email\n      lenght: 3\n"
    with pytest.raises(UnknownKey, match=r"shop.yml:7: transform.columns.email.lenght"):
        read_transform(text)
    text = text.replace("lenght: 3", "invalid_email_action: explode")
    with pytest.raises(BadValue, match=r"shop.yml:7: transform.columns.email.invalid_email_action"):
        read_transform(text)
    with pytest.raises(BadValue, match=r"shop.yml:6: .*'emial' is no transformer"):
        read_transform(text.replace("with: email", "with: emial"))


def test_salt_is_needed_by_what_draws_and_by_nothing_else():
    with pytest.raises(BadValue, match="email needs a salt") as caught:
        read_transform("transform: {column: c, with: email}", {})
    assert "PENSTOCK_SALT" in caught.value.do
    read_transform("transform: {column: c, with: masking}", {})
    read_transform("transform: {column: c, with: email, salt: '${S}'}", {"S": "x"})


def test_salt_and_key_are_shown_nowhere():
    text = f"transform: {{column: email, with: aes_siv, salt: sesame, key_hex: {KEY_OF_TESTS}}}"
    options = read_transform(text)

    shown = f"{options!r} {options} {options.tables!r}"

    assert "sesame" not in shown
    assert KEY_OF_TESTS not in shown
    with pytest.raises(BadValue) as caught:
        read_transform("transform: {column: c, with: aes_siv, key_hex: open-sesame}")
    assert "sesame" not in str(caught.value)
    with pytest.raises(BadValue) as caught:
        read_transform("transform: {column: c, with: email, salt: [open-sesame]}")
    assert "sesame" not in str(caught.value)


def test_rules_travel_with_their_salt_in_the_vault(tmp_path):
    options = read_transform("transform: {column: email, with: email}")

    with using(Vault(tmp_path)):
        frozen = pickle.dumps(options)
        thawed = pickle.loads(frozen)

    assert b"salt of these tests" not in frozen
    assert after(thawed) == after(options)
    assert after(options)[1] != "a@b.org"


def test_exact_column_goes_before_a_pattern_and_a_pattern_suits_the_type():
    text = "transform: {columns: {'*a*': {with: literal, literal: p}, name: {with: literal, literal: n}}}"

    assert after(read_transform(text)) == ("1", "p", "n", "p")
    suited = read_transform("transform: {column: '*', with: masking}")
    assert after(suited) == ("1", "*" * 7, "***", "33"), "an integer is no text to mask"


def test_rule_for_any_table_is_not_for_those_that_lack_its_column():
    options = read_transform("transform: {columns: {nickname: {with: null}, email: {with: null}}}")

    assert after(options) == ("1", None, "Ann", "33")


OWN = """
coverage: strict
tables:
  public.users:
    id: keep
    email: {with: literal, literal: e}
    name: {with: mask}
    age: keep
  "*.*":
    "*email*": {with: literal, literal: other}
"""
PGSTREAM = """
transformations:
  validation_mode: relaxed
  table_transformers:
    - schema: public
      table: users
      column_transformers:
        email:
          name: email
          parameters: {exclude_domain: nowhere.org, salt: theirs}
        name:
          name: literal_string
          parameters: {literal: n}
        age:
          name: greenmask_integer
          parameters: {min: 18, max: 18}
        id:
"""
FLO = r"""
tables:
  users:
    - {type: transform, column: email, parameters: {type: regex, pattern: "@.*$", replace: "@masked.com"}}
    - {type: transform, column: name, parameters: {type: mask, mask_char: "#"}, operations: [INSERT]}
"""


def from_file(text, tmp_path, environ=None):
    (tmp_path / "rules.yml").write_text(text)
    return read_transform("transform: {rules_file: rules.yml}", environ, tmp_path)


def test_rules_file_of_our_own(tmp_path):
    options = from_file(OWN, tmp_path)

    assert after(options) == ("1", "e", "A*n", "33")
    others = table(16500, "others", {"work_email": "text"}, key=["work_email"])
    assert after(options, others, insert(others, ["x"])) == ("other",)


def test_rules_file_of_pgstream(tmp_path):
    [_, email, name, age] = after(from_file(PGSTREAM, tmp_path))

    assert email.endswith("@example.com")
    assert (name, age) == ("n", "18")


def test_rules_file_of_pg_flo(tmp_path):
    assert after(from_file(FLO, tmp_path)) == ("1", "a@masked.com", "A#n", "33")


def test_rule_of_pg_flo_leaves_a_number_alone(tmp_path):
    text = "tables: {users: [{type: transform, column: age, parameters: {type: regex, pattern: '3', replace: x}}]}"

    assert after(from_file(text, tmp_path)) == ("1", "a@b.org", "Ann", "33")


def test_tables_that_pgstreams_table_level_does_not_name_are_strict(tmp_path):
    options = from_file(PGSTREAM.replace("relaxed", "table_level"), tmp_path)
    others = table(16500, "others", {"a": "text"}, key=["a"])

    after(options)
    with pytest.raises(ColumnUncovered, match="covers a"):
        after(options, others, insert(others, ["x"]))


def test_another_salt_has_another_fingerprint():
    one, two = (
        read_transform("transform: {column: c, with: email}", {"PENSTOCK_SALT": salt}).fingerprint
        for salt in ("first", "second")
    )

    assert one != two
    assert "first" not in one
    assert read_transform("transform: {column: c, with: keep}", {}).fingerprint == ""


@pytest.mark.parametrize(
    ("text", "found", "line"),
    [
        ("tables:\n  users:\n    email: {with: emial}", "'emial' is no transformer", 3),
        ("tables: x", "a mapping", 1),
        ("tables:\n  a.b.c: {x: keep}", "3 parts", 2),
        ("tabels: {}", "tabels", 1),
        ("tables:\n  users: {}", "names no column", 2),
        ("coverage: most\ntables: {users: {a: keep}}", "coverage", 1),
        ("tables:\n  t: {columns: {a: keep}, coverage: most}", "coverage", 2),
        ("tables:\n  users:\n    - {type: filter, column: a, parameters: {}}", "filter", 3),
        ("tables:\n  users:\n    - {type: transform, parameters: {}}", "column", 3),
        ("transformations:\n  table_transformers:\n    - {schema: public}", "table", 3),
        (
            "transformations:\n  validation_mode: odd\n  table_transformers:\n    - table: t\n      column_transformers: {a: keep}",
            "'odd' is no mode",
            4,
        ),
        ("tables: [", "YAML", 1),
    ],
)
def test_bad_rules_file_names_its_own_line(text, found, line, tmp_path):
    with pytest.raises(PipelineFileError) as caught:
        from_file(text, tmp_path)

    assert caught.value.where == "shop.yml:1"
    assert f"rules.yml:{line}" in caught.value.what, caught.value
    assert found in caught.value.what
    assert caught.value.do


def test_salt_of_the_environment_is_part_of_what_a_rule_says(monkeypatch) -> None:
    rule = {"transform": {"table": "users", "column": "email", "with": "email"}}
    digests = set()
    for salt in ("one", "other", "one"):
        monkeypatch.setenv("PENSTOCK_SALT", salt)
        digests.add(chain(rule).digest_of(TableName("public", "users")))

    assert len(digests) == 2


@pytest.mark.parametrize(
    ("rule", "digest"),
    [
        ("with: email", "1ac46384bdc0c6ea"),
        ("name: neosync_email", "f879847d0b2f1e86"),
        ("with: masking, type: email", "3dea19cd824c4e83"),
        ("name: neosync_email, preserve_length: false", "470e8edc7b62e417"),
        ("name: neosync_email, max_length: 60", "9c38333097f4d334"),
    ],
)
def test_rule_that_means_what_it_meant_has_the_digest_that_it_had(rule, digest, monkeypatch):
    monkeypatch.setenv("PENSTOCK_SALT", "one")

    assert digest_of(f"{{table: users, column: email, {rule}}}") == digest


@pytest.mark.parametrize(
    ("rule", "digest"),
    [
        ("preserve_domain: true", "b4f77de6178a76b5"),
        ("preserve_length: true", "2010d74f40263391"),
        ("parameters: {preserve_length: true}", "c44e1f75406717d2"),
        ("max_length: 20", "389f921dcffd8241"),
        ("preserve_domain: true, max_length: 40", "16ff4c9963d13dac"),
    ],
)
def test_rule_whose_results_are_other_ones_since_has_another_digest(rule, digest, monkeypatch):
    monkeypatch.setenv("PENSTOCK_SALT", "one")

    found = digest_of(f"{{table: users, column: email, name: neosync_email, {rule}}}")

    assert found.startswith(digest), "the text is the same"
    assert found != digest


def test_of_a_rules_file_only_tables_whose_results_are_other_ones_have_another_digest(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("PENSTOCK_SALT", "one")
    rules = tmp_path / "rules.yml"
    rules.write_text(
        f"{NEOSYNC}    - {{table: others, column_transformers: {{email: {{name: neosync_email}}}}}}\n"
    )
    one = chain({"transform": {"rules_file": str(rules)}})

    [whole] = {rule.digest for rule in one.rules if rule.digest}

    assert one.digest_of(TableName("public", "others")) == whole
    assert one.digest_of(TableName("public", "users")) != whole


def test_table_that_was_masked_otherwise_before_an_upgrade_is_reported(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("PENSTOCK_SALT", "one")
    rules = [
        {"transform": {"table": "users", "column": "email", "name": "neosync_email", "preserve_length": True}},
        {"transform": {"table": "others", "column": "email", "with": "email"}},
    ]  # fmt: skip
    (tmp_path / "sinks").mkdir()
    whole = document(*rules) | {"state": str(tmp_path)}
    [view] = (pipeline := pipeline_from_document(whole, "test")).each()
    names = {TableName("public", "users"), TableName("public", "others")}
    before = {str(name): text_digest(pipeline, name) for name in names}
    wire_of(view).publish(SeenRules(before), "lines")
    tables = SimpleNamespace(detached={}, streaming=names)
    sink = cast("Any", SimpleNamespace(name="lines", tables=tables))

    RuleWatch(wire_of(view), sink, chain_for(pipeline.modifiers, "lines")).compare()
    [finding] = find_rules(pipeline, {})

    assert (finding.code, finding.severity) == ("PEN-704", "warning")
    assert "resync public.users" in finding.do
    assert "public.others" not in str(finding.error)
    assert "PEN-704" in caplog.text


def digest_of(rule):
    entry = yaml.safe_load(rule)
    return chain({"transform": entry}).digest_of(TableName("public", "users"))


def text_digest(pipeline, table):
    """What was kept of a table by the text of its rules alone."""
    rules = [one for one in pipeline.modifiers if one.modifier_for(table)]
    return "-".join(one.digest for one in rules)


NEOSYNC = """
transformations:
  validation_mode: relaxed
  table_transformers:
    - schema: public
      table: users
      column_transformers:
        email:
          name: neosync_email
          parameters:
            {preserve_length: true, preserve_domain: false, excluded_domains: [x.org], max_length: 60,
             email_type: fullname, invalid_email_action: null, seed: 7}
        name: {name: neosync_fullname, parameters: {preserve_length: true, max_length: 40, seed: 7}}
        first: {name: neosync_firstname, parameters: {max_length: 40, seed: 7}}
        last: {name: neosync_lastname, parameters: {max_length: 40, seed: 7}}
        note: {name: neosync_string, parameters: {preserve_length: true, min_length: 1, max_length: 9, seed: 7}}
"""


def test_parameters_of_pgstreams_neosync_family_are_read(tmp_path):
    columns = dict.fromkeys(("email", "name", "first", "last", "note"), "text")
    users = table(16400, "users", {"id": "int8", **columns}, key=["id"])
    shape = shape_of("users", {"id": "int8", **columns}, key=["id"])
    options = from_file(NEOSYNC, tmp_path)

    rows = [["1", "a@b.org", "Ada Lovelace", "Ada", "Lovelace", "x" * 30], ["2", "none", *"abcd"]]
    [(_, one, _), (_, two, _)] = applied(options, users, *(insert(users, row) for row in rows))
    said = list(findings(options, {shape.table: shape}))

    assert one[1].endswith("@example.com")
    assert len(one[1]) == 13, "as long as it was, but for the letter before the domain"
    assert two[1] is None, "no address, and YAML's null is one of the words"
    assert len(one[5]) == 30
    assert [each.severity for each in said] == ["warning"] * 5
    assert all("seed" in each.what and "has no effect here" in each.what for each in said)
    assert not any("length" in each.what for each in said)


def test_parameter_that_pgstream_does_not_have_is_refused(tmp_path):
    with pytest.raises(PipelineFileError, match="sead"):
        from_file(NEOSYNC.replace("seed: 7}", "sead: 7}", 1), tmp_path)
    with pytest.raises(PipelineFileError, match="seed"):
        read_transform("transform: {table: users, column: email, with: email, seed: 7}")


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        ("with: [email]", "wanted a transformer's name"),
        ("with: {a: b}", "wanted a transformer's name"),
        ("with: 7", "'7' is no transformer"),
        ("python: broken_module.f", "cannot be used: SyntaxError"),
        ("python: failing_module.f", "cannot be used: RuntimeError"),
        ("with: template, template: '{{ " + "(" * 2000 + "1" + ")" * 2000 + " }}'", "too deeply"),
        ("with: template, template: '" + "{{ if 1 }}" * 2000 + "{{ end }}" * 2000 + "'", "too deeply"),
        ("with: unix_timestamp, max_value: 100000000000000000000000000", "goes beyond 8 bytes"),
    ],
)  # fmt: skip
def test_rule_that_cannot_be_read_is_an_error_with_its_line(rule, what, tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("def f(:\n")
    (tmp_path / "failing_module.py").write_text("raise RuntimeError('a secret')\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(PipelineFileError) as caught:
        read_transform(f"transform: {{table: t, column: c, {rule}}}")

    assert what in caught.value.what
    assert caught.value.where == "shop.yml:1"
    assert "secret" not in str(caught.value)


FLO_IN_TURN = r"""
tables:
  users:
    - {type: transform, column: email, parameters: {type: regex, pattern: "@.*$", replace: "@masked.com"}, operations: [INSERT]}
    - {type: transform, column: email, parameters: {type: mask, mask_char: "#", keep_first: 0, keep_last: 0}, operations: [UPDATE]}
    - {type: transform, column: name, parameters: {type: regex, pattern: "A", replace: "Han"}}
    - {type: transform, column: name, parameters: {type: regex, pattern: "H", replace: "J"}}
"""


def test_rules_of_pg_flo_for_one_column_run_in_their_order(tmp_path):
    options = from_file(FLO_IN_TURN, tmp_path)

    [(_, new, _), (_, moved, _)] = applied(
        options, USERS, ROW, update(USERS, ["1", "a@b.org", "Ann", "33"])
    )

    assert new == ("1", "a@masked.com", "Jannn", "33")
    assert moved == ("1", "#" * 7, "Jannn", "33")


def test_default_goes_through_all_rules_of_pg_flo(tmp_path):
    options = from_file(FLO_IN_TURN, tmp_path)
    shape = shape_of("users", {"id": "int8", "name": "text", "email": "text", "age": "int4"})
    name = shape.columns[1].model_copy(update={"missing": "Ann", "default": "'Ann'"})
    shape = shape.model_copy(update={"columns": (shape.columns[0], name, *shape.columns[2:])})
    modifier = modifier_for(options, shape.table)
    assert modifier is not None

    seen = modifier.modified_shape(shape).columns[1]

    assert (seen.missing, seen.default) == ("Jannn", None)


def test_rules_of_pg_flo_that_were_dropped_once_are_other_rules_now(tmp_path):
    rules = tmp_path / "rules.yml"
    rules.write_text(
        FLO_IN_TURN + "  others:\n    - {type: transform, column: a, parameters: {type: mask}}\n"
    )
    one = chain({"transform": {"rules_file": str(rules)}})
    [whole] = {rule.digest for rule in one.rules if rule.digest}

    assert one.digest_of(TableName("public", "others")) == whole
    assert one.digest_of(TableName("public", "users")) == f"{whole}~2"


@pytest.mark.parametrize(
    ("text", "found", "advice", "line"),
    [
        ("tables:\n  t:\n    coverag: strict\n    columns: {a: keep}", "t.coverag is not a known key", "write coverage", 3),
        ("tables:\n  t:\n    coverage: strict\n    a: keep", "t.coverage: stands among the columns", "columns: {…}", 3),
        ("tables:\n  t:\n    on_error: null\n    a: keep", "t.on_error: stands among", "columns: {…}", 3),
        ("tables:\n  t:\n    columns: {a: keep}\n    email: {with: masking}", "t.email is not a known key", "", 4),
        ("tables:\n  t:\n    columns: {a: keep}\n    on_error: panic", "on_error", "stop", 4),
        (
            "transformations:\n  table_transformers:\n    - table: t\n      validation_mod: strict\n      column_transformers: {a: {name: noop}}",
            "validation_mod is not a known key",
            "write validation_mode",
            4,
        ),
        ("transformations:\n  table_transformers:\n    - table: t", "names no column", "write column_transformers: {", 3),
        (
            "tables:\n  t:\n    - type: transform\n      column: a\n      operation: [insert]\n      parameters: {type: mask}",
            "operation is not a known key",
            "write operations",
            5,
        ),
        ("tables:\n  t:\n    - {type: transform, column: a, parameters: {mask_char: x}}", "names no type", "type: mask", 3),
        ("tables:\n  t:\n    - {type: transform, column: a, parameters: x}", "parameters", "mapping", 3),
    ],
)  # fmt: skip
def test_key_of_a_table_that_nobody_reads_is_refused(text, found, advice, line, tmp_path):
    with pytest.raises(PipelineFileError) as caught:
        from_file(text, tmp_path)

    assert f"rules.yml:{line}" in caught.value.what, caught.value
    assert found in caught.value.what
    assert advice in caught.value.do


def test_column_called_columns_has_its_rule_and_so_have_those_beside_it(tmp_path):
    text = "tables: {t: {columns: {with: literal, literal: x}, email: {with: literal, literal: e}}}"
    t = table(16500, "t", {"columns": "text", "email": "text"}, key=["columns"])

    assert after(from_file(text, tmp_path), t, insert(t, ["a", "b"])) == ("x", "e")


def test_salt_and_on_error_of_a_table_hold_for_its_columns(tmp_path):
    text = """
on_error: stop
salt: one
tables:
  users: {salt: other, on_error: keep, columns: {email: {with: email}, name: {with: hash, on_error: null}}}
  others: {columns: {email: {with: email}}}
"""
    [users, others, _] = from_file(text, tmp_path).tables

    assert [rule.options.on_error.value for rule in users.rules] == ["keep", "null"]
    assert users.rules[0].salt != others.rules[0].salt
    assert others.rules[0].options.on_error.value == "stop"


@pytest.mark.parametrize("name", ["integer", "greenmask_integer"])
@pytest.mark.parametrize("limits", ["min: 18, max: 18", "min_value: 18, max_value: 18"])
def test_limits_have_both_names_whatever_the_transformer_is_called(name, limits):
    for written in (limits, f"parameters: {{{limits}}}"):
        options = read_transform(f"transform: {{column: age, with: {name}, {written}}}")
        assert after(options)[3] == "18"


def test_limits_of_a_float_have_both_names():
    read_transform("transform: {column: age, with: float, min: 1, max: 2}")
    with pytest.raises(BadValue, match="min: stands beside min_value"):
        read_transform("transform: {column: age, with: float, min: 1, min_value: 2}")


def test_salt_among_the_parameters_is_that_of_the_rule():
    beside = read_transform("transform: {column: email, with: email, salt: one}")
    below = read_transform("transform: {column: email, with: email, parameters: {salt: one}}")

    assert (
        after(below)
        == after(beside)
        != after(read_transform("transform: {column: email, with: email}"))
    )
    assert below.fingerprint == beside.fingerprint
    with pytest.raises(BadValue, match="salt: stands among") as caught:
        read_transform(
            "transform: {column: email, with: email, salt: sesame, parameters: {salt: sesame}}"
        )
    assert "sesame" not in str(caught.value)


def test_variable_of_a_rules_file_is_part_of_what_its_rules_say(tmp_path, monkeypatch):
    rules = tmp_path / "rules.yml"
    rules.write_text("tables: {users: {email: {with: aes_siv, key_hex: '${KEY}'}}}")
    digests = set()
    for key in (KEY_OF_TESTS, KEY_OF_TESTS[::-1], KEY_OF_TESTS):
        monkeypatch.setenv("KEY", key)
        one = chain({"transform": {"rules_file": str(rules)}})
        digests.add(one.digest_of(TableName("public", "users")))

    assert len(digests) == 2


def test_fingerprint_of_a_file_without_variables_is_that_of_its_salts(tmp_path):
    text = "salt: ${PENSTOCK_SALT}\ntables: {users: {email: {with: email}}}"

    with_variable = from_file(text, tmp_path).fingerprint

    assert (
        with_variable == from_file("tables: {users: {email: {with: email}}}", tmp_path).fingerprint
    )
    assert "-" not in with_variable


@pytest.mark.parametrize("pattern", ["*email*", "*EMAIL*", "*Email"])
def test_pattern_is_for_columns_of_any_case_and_a_name_for_its_own(pattern):
    users = table(16400, "users", {"id": "int8", "userEmail": "text", "EMAIL": "text"}, key=["id"])
    row = insert(users, ["1", "a", "b"])

    assert after(
        read_transform(f"transform: {{column: '{pattern}', with: 'null'}}"), users, row
    ) == ("1", None, None)
    assert after(read_transform("transform: {column: email, with: 'null'}"), users, row) == (
        "1",
        "a",
        "b",
    )


def test_pattern_that_keeps_is_for_columns_of_its_case_alone():
    users = table(16400, "users", {"id": "int8", "userID": "text"}, key=["id"])
    options = read_transform("transform: {columns: {'*id*': keep, '*': {with: 'null'}}}")

    assert after(options, users, insert(users, ["1", "a"])) == ("1", None)
