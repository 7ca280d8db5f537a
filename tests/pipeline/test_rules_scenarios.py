"""Rules as an outsider writes them, by the command line alone: the scenarios of pg_flo and pgstream, and mistakes."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fix_command import run_penstock
from fix_pipeline import INITIAL, pipeline_document
from fix_postgres import only_new

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from fix_postgres import Database

pytestmark = only_new

ENVIRONMENT = {"PENSTOCK_SALT": "0123456789abcdef0123"}

TABLES = """
CREATE TABLE flo (id int PRIMARY KEY, email text, phone text, age int, ssn text, r float8);
ALTER TABLE flo REPLICA IDENTITY FULL;
CREATE TABLE tenants (id int PRIMARY KEY, tenant_id int, v text);
ALTER TABLE tenants REPLICA IDENTITY FULL;
CREATE TABLE users (id int PRIMARY KEY, username text, secret text);
CREATE TABLE audit (id int PRIMARY KEY, v text);
CREATE SCHEMA app;
CREATE TABLE app.logins (id int PRIMARY KEY, user_email text, at timestamptz);
CREATE TABLE app.mails (id int PRIMARY KEY, contact_email text);
CREATE TABLE orders (id int PRIMARY KEY, total numeric(10, 2), status text, country text);
CREATE TABLE docs (id int PRIMARY KEY, body jsonb);
CREATE TABLE people (id int PRIMARY KEY, name text, email text, secondary_email text, age int,
  purchases int, birth date, gender text, code uuid, seen timestamptz, active bool, score numeric(5, 2), note text);
"""

# As pg_flo's own users write them.
FLO_RULES = """
tables:
  flo:
    - {type: transform, column: email, parameters: {type: mask, mask_char: "*"}, operations: [INSERT, UPDATE, DELETE]}
    - {type: transform, column: phone, parameters: {type: regex, pattern: "^(\\\\d{3})(\\\\d{3})(\\\\d{4})$", replace: "($1) $2-$3"}}
    - {type: transform, column: ssn, parameters: {type: mask, mask_char: X}}
"""

PEOPLE = {
    "id": "keep",
    "name": {"with": "full_name"},
    "email": {"with": "email", "generator": "deterministic"},
    "secondary_email": {"with": "masking", "type": "email"},
    "age": {"with": "integer", "min_value": 18, "max_value": 75},
    "purchases": {"with": "integer", "min_value": 0, "max_value": 1000},
    "birth": {"with": "date", "min_value": "1990-01-01", "max_value": "2000-12-31"},
    "gender": {"with": "choice", "choices": ["M", "F", "None"]},
    "code": {"with": "uuid"},
    "seen": {
        "with": "timestamp",
        "min_timestamp": "2021-01-01T00:00:00Z",
        "max_timestamp": "2022-01-01T00:00:00Z",
    },
    "active": {"with": "boolean"},
    "score": {"with": "float", "min_value": 1, "max_value": 99, "precision": 2},
    "note": {"with": "literal", "literal": "-"},
}

MODIFIERS: list[dict[str, Any]] = [
    {"filter": {"tables": {"schema_only": ["public.audit"]}}},
    {"filter": {"table": "public.flo", "where": {"column": "age", "operator": "gte", "value": 18}}},
    {"filter": {"table": "public.tenants", "where": {"column": "tenant_id", "operator": "eq", "value": 3}}},
    {"filter": {"table": "public.orders", "where": "total >= 100 AND status IN ('paid', 'shipped') AND lower(country) <> 'xx'"}},
    {"transform": {"rules_file": "flo.yml"}},
    {"transform": {"column": "*_email", "table": "app.*", "with": "email"}},
    {"transform": {"table": "public.people", "coverage": "strict", "columns": PEOPLE}},
    {"transform": {"table": "public.docs", "column": "body", "with": "json", "operations": ["insert", "update"],
                   "parameters": {"operations": [{"operation": "set", "path": "user.name", "value": "x"},
                                                 {"operation": "delete", "path": "card"}]}}},
    {"transform": {"table": "public.orders", "set": {"gross": "total * 1.19", "status": "upper(status)"}}},
    {"route": {"table": "public.users", "target": "public.customers", "columns": {"id": "customer_id", "username": "called"},
               "operations": ["insert", "update"], "drop": ["secret"]}},
    {"route": {"table": "app.*", "target": "raw.{schema}_{table}"}},
    {"inject": {"table": "public.users", "sinks": ["lines"]}},
]  # fmt: skip


def fill(first: int) -> list[str]:
    """Two rows or three of each table, numbered from `first` on."""
    a, b, c = first, first + 1, first + 2
    return [
        (f"INSERT INTO flo VALUES ({a}, 'john.doe@example.com', '1234567890', 25, '123456789', 1.5),"
        f" ({b}, 'kid@example.com', '0987654321', 17, '987654321', 2), ({c}, 'x@y.z', '12', 60, '12', 3)"),
        f"INSERT INTO tenants VALUES ({a}, 3, 'a'), ({b}, 2, 'b'), ({c}, 3, 'c')",
        f"INSERT INTO users VALUES ({a}, 'u{a}', 's'), ({b}, 'u{b}', 's')",
        f"INSERT INTO audit VALUES ({a}, 'raw')",
        f"INSERT INTO app.logins VALUES ({a}, 'ann{a}@x.org', now()), ({b}, 'bob{a}@x.org', now())",
        f"INSERT INTO app.mails VALUES ({a}, 'ann{a}@x.org'), ({b}, NULL)",
        f"INSERT INTO orders VALUES ({a}, 100, 'paid', 'DE'), ({b}, 99.99, 'paid', 'DE'), ({c}, 500, 'shipped', 'XX')",
        f"""INSERT INTO docs VALUES ({a}, '{{"user": {{"name": "n"}}, "card": 1, "big": 12345678901234567890.10}}')""",
        (f"INSERT INTO people SELECT n, 'P' || n, 'p' || n || '@x.org', 'john.doe2@example.com', 5, 5000, '1950-01-01',"
        f" 'q', gen_random_uuid(), now(), true, 0.5, 'secret' FROM generate_series({a}, {a} + 20) n"),
    ]  # fmt: skip


@pytest.fixture
def pipeline(source: Database, target: Database, tmp_path: Path) -> Path:
    source.execute(TABLES)
    document = pipeline_document(source, target, tmp_path, source_options=INITIAL)
    document["sinks"]["lines"] = {"kind": "file", "path": str(tmp_path / "out")}
    document["modifiers"] = MODIFIERS
    (tmp_path / "flo.yml").write_text(FLO_RULES)
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def penstock(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_penstock(*arguments, env={**os.environ, **ENVIRONMENT})


def delivered(path: Path) -> None:
    done = penstock("run", path, "--until-caught-up")
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_scenarios_of_pg_flo_and_pgstream_in_one_pipeline_copied_and_streamed(
    source: Database, target: Database, pipeline: Path
) -> None:
    for statement in fill(1):
        source.execute(statement)
    delivered(pipeline)
    for statement in fill(101):
        source.execute(statement)
    source.execute("UPDATE flo SET age = 18 WHERE id IN (2, 102)")  # moves in
    source.execute("UPDATE tenants SET tenant_id = 9 WHERE id IN (3, 103)")  # moves out
    source.execute("UPDATE orders SET status = 'open' WHERE id = 101")
    source.execute("DELETE FROM users WHERE id IN (1, 101)")  # the route lets no delete through
    source.execute("UPDATE users SET username = 'new' WHERE id IN (2, 102)")
    source.execute("ALTER TABLE audit ADD COLUMN more int")
    source.execute("INSERT INTO audit VALUES (500, 'raw', 1)")
    delivered(pipeline)

    flo = target.query("SELECT id, email, phone, ssn, r FROM flo ORDER BY id")
    john = ("j******************m", "(123) 456-7890", "1XXXXXXX9", 1.5)
    kid = ("k*************m", "(098) 765-4321", "9XXXXXXX1", 2.0)
    short = ("x***z", "12", "12", 3.0)
    assert flo == [(first + n, *row) for first in (1, 101) for n, row in enumerate((john, kid, short))]  # fmt: skip
    assert target.query("SELECT id FROM tenants ORDER BY id") == [(1,), (101,)]
    assert target.query("SELECT * FROM customers ORDER BY 1") == [(1, "u1"), (2, "new"), (101, "u101"), (102, "new")]  # fmt: skip
    assert target.query("SELECT count(*), count(more) FROM audit") == [(0, 0)], "only its shape"
    orders = target.query("SELECT id, status, gross::text FROM orders")
    assert [(row[0], row[1], float(row[2])) for row in orders] == [(1, "PAID", 119.0)]
    assert {row[0] for row in target.query("SELECT body::text FROM docs")} == {
        '{"big": 12345678901234567890.10, "user": {"name": "x"}}'
    }
    assert_joined(source, target)
    assert_people(target)
    assert_documents(pipeline.parent / "out")


def assert_joined(source: Database, target: Database) -> None:
    """Masked alike in two tables, copied or streamed, so that joins find the same rows."""
    join = "SELECT l.id, m.id FROM {} l JOIN {} m ON l.user_email = m.contact_email ORDER BY 1, 2"
    wanted = source.query(join.format("app.logins", "app.mails"))
    assert target.query(join.format("raw.app_logins", "raw.app_mails")) == wanted == [(1, 1), (101, 101)]  # fmt: skip
    assert target.query("SELECT count(*) FROM raw.app_mails WHERE contact_email IS NULL") == [(2,)]
    assert "ann" not in str(target.query("SELECT user_email FROM raw.app_logins"))


def assert_people(target: Database) -> None:
    """The bounds that pgstream's own test of transformers states."""
    found = target.query(
        "SELECT count(*), bool_and(age BETWEEN 18 AND 75), bool_and(purchases BETWEEN 0 AND 1000),"
        " bool_and(birth BETWEEN '1990-01-01' AND '2000-12-31'), bool_and(gender IN ('M', 'F', 'None')),"
        " bool_and(seen >= '2021-01-01Z' AND seen < '2022-01-01T00:00:01Z'), bool_and(score BETWEEN 1 AND 99),"
        " bool_and(note = '-'), bool_and(email LIKE '%@%' AND email NOT LIKE 'p%@x.org'), bool_and(name NOT LIKE 'P_'),"
        " array_agg(DISTINCT secondary_email) FROM people"
    )
    assert found == [(42, *[True] * 9, ["joh****e2@example.com"])]


def assert_documents(directory: Path) -> None:
    lines = [line for each in directory.glob("*.jsonl") for line in each.read_text().splitlines()]
    documents = [json.loads(line) for line in lines]
    of_users = [one for one in documents if one["table"] == "customers" and one["op"] != "schema"]
    assert {one["op"] for one in of_users} == {"read", "insert", "update"}
    assert all(set(one["after"]) == {"customer_id", "called"} for one in of_users)
    assert all("metadata" in one for one in of_users)
    assert {one["schema"] for one in documents if "logins" in one["table"]} == {"raw"}
    assert not [one for one in documents if one["table"] == "audit" and one["op"] != "schema"]
    text = "\n".join(lines)
    assert not re.search(r"john\.doe@|1234567890\"|123456789\"|\"secret\"|ann1@|raw\"\}", text)


def test_check_and_preview_show_what_the_rules_do_and_write_nothing(
    source: Database, pipeline: Path
) -> None:
    for statement in fill(1):
        source.execute(statement)

    checked = penstock("check", pipeline)
    shown = penstock("modifiers", pipeline, "preview", "--table", "public.flo", "--json")
    as_text = penstock("modifiers", pipeline, "preview", "--table", "public.orders")
    unknown = penstock("modifiers", pipeline, "preview", "--table", "public.nothing")

    assert checked.returncode == 0, checked.stdout + checked.stderr
    said = checked.stdout + checked.stderr
    for table in ("public.flo", "public.orders", "app.logins"):
        assert re.search(rf"{table}.*(filter|transform|route)", said), said
    assert [each["after"] and each["after"]["phone"] for each in json.loads(shown.stdout)] == ["(123) 456-7890", None, "12"]  # fmt: skip
    assert "3 shown, 1 delivered" in as_text.stdout
    assert unknown.returncode != 0
    assert "PEN-" in unknown.stderr
    assert "Traceback" not in unknown.stderr
    assert not (pipeline.parent / "test-state").exists()
    assert not (pipeline.parent / "out").exists()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"filter": {"table": "public.flo", "where": {"column": "aeg", "operator": "gte", "value": 18}}}, "aeg"),
    ({"filter": {"table": "public.flo", "where": {"column": "age", "operator": "gte", "value": "adult"}}}, "integer"),
    ({"filter": {"table": "public.flo", "where": {"column": "age", "operator": "bigger", "value": 1}}}, "bigger"),
    ({"filter": {"table": "public.flo", "where": "age >= AND 3"}}, "modifiers"),
    ({"filter": {"table": "public.flo", "where": "age >= (SELECT max(x) FROM read_csv('/etc/passwd'))"}}, "modifiers"),
    ({"filter": {"table": "public.flo", "where": "nope = 1"}}, "nope"),
    ({"filter": {"tables": {"include": ["public.a"], "exclude": ["public.b"]}}}, "include"),
    ({"transform": {"table": "public.flo", "column": "email", "with": "emial"}}, "email"),
    ({"transform": {"table": "public.flo", "column": "email", "with": "email", "lenght": 3}}, "lenght"),
    ({"transform": {"table": "public.flo", "column": "age", "with": "email"}}, "age"),
    ({"transform": {"table": "public.flo", "column": "id", "with": "literal", "literal": 7}}, "allow_collisions"),
    ({"transform": {"table": "public.flo", "column": "email", "with": "shuffle"}}, "shuffle"),
    ({"transform": {"table": "public.flo", "coverage": "strict", "columns": {"id": "keep"}}}, "email"),
    ({"transform": {"table": "public.flo", "set": {"x": "nope + 1"}}}, "nope"),
    ({"transform": {"rules_file": "nothing.yml"}}, "nothing.yml"),
    ({"route": {"table": "public.flo", "target": "public.tenants"}}, "tenants"),
    ({"route": {"table": "public.flo", "drop": ["id"]}}, "id"),
    ({"routes": {"table": "public.flo"}}, "route"),
]  # fmt: skip


@pytest.mark.long
def test_every_mistake_is_found_by_check_with_its_line_before_anything_is_made(
    source: Database, pipeline: Path
) -> None:
    document = yaml.safe_load(pipeline.read_text())
    missed = []
    for rule, wanted in WRONG:
        pipeline.write_text(yaml.safe_dump({**document, "modifiers": [rule]}, sort_keys=False))
        done = penstock("check", pipeline)
        said = done.stdout + done.stderr
        is_found = (
            done.returncode != 0
            and wanted in said
            and re.search(r"test\.yml:\d+|nothing\.yml", said)
            and "PEN-" in said
            and "Traceback" not in said
        )
        if not is_found:
            missed.append((rule, done.returncode, said))

    assert not missed, "\n\n".join(f"{rule}: {code}\n{said}" for rule, code, said in missed)
    assert not (pipeline.parent / "test-state").exists()
