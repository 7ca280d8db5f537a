"""Rules of the pipeline file hold in the stream, in copies, and where tables change their shape."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fix_event_sinks import visible
from fix_pipeline import INITIAL, pipeline_document, rows, table_error, wait_for_state
from fix_postgres import only_new
from fix_wait import wait_until
from penstock.run.preview import preview
from penstock.run.requests import resync_tables
from penstock.run.rules import find_rules

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]

pytestmark = only_new

PAID = {
    "filter": {"table": "orders", "where": {"column": "total", "operator": "gte", "value": 100}}
}


def documents(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for each in visible(path) for line in each.read_text().splitlines()]


def printed(command: Any) -> str:
    return command.process.stdout.read().decode()


def test_rows_of_a_filter_are_copied_and_followed_as_they_move_in_and_out(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TYPE size AS ENUM ('small', 'big', 'huge');"
        "CREATE TABLE orders (id int PRIMARY KEY, total numeric, size size, note text);"
        "CREATE TABLE lines (id int PRIMARY KEY, order_id int REFERENCES orders);"
        "CREATE TABLE audit (id int PRIMARY KEY); CREATE TABLE secrets (id int PRIMARY KEY);"
        "INSERT INTO orders SELECT n, n, 'small', 'n' FROM generate_series(1, 200) n;"
        "INSERT INTO lines SELECT n, n FROM generate_series(10, 50) n;"
        "INSERT INTO audit VALUES (1); INSERT INTO secrets VALUES (1)"
    )
    sized = {"column": "size", "operator": "lt", "value": "huge"}
    pipeline = make_pipeline(
        source,
        target,
        source_options=INITIAL,
        modifiers=[
            PAID,
            {"filter": {"table": "orders", "where": sized}},
            {"filter": {"table": "audit", "rows": "none"}},
            {"filter": {"tables": {"exclude": ["secrets"]}}},
        ],
    )
    pipeline.catch_up()
    assert len(rows(target, "orders")) == 101
    source.execute(
        "INSERT INTO orders VALUES (300, 99.99, 'small'), (301, 100, 'small'), (302, 500, 'huge')"
    )
    source.execute("UPDATE orders SET total = 1000 WHERE id = 1")
    source.execute("UPDATE orders SET total = 0 WHERE id = 150")
    source.execute("UPDATE orders SET size = 'huge' WHERE id = 151")
    source.execute("DELETE FROM orders WHERE id IN (2, 152)")
    source.execute("INSERT INTO audit VALUES (2); INSERT INTO secrets VALUES (2)")
    source.execute("ALTER TABLE audit ADD COLUMN extra int")
    pipeline.catch_up()

    wanted = source.query("SELECT * FROM orders WHERE total >= 100 AND size < 'huge' ORDER BY id")
    assert target.query("SELECT * FROM orders ORDER BY id") == wanted
    assert target.query("SELECT id, extra FROM audit") == []
    assert target.query("SELECT to_regclass('public.secrets')::text") == [(None,)]
    assert len(rows(target, "lines")) == 41, "no foreign key leads to a table that lacks rows"


def test_rule_of_a_column_that_is_renamed_stops_the_table_alone(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, total numeric);"
        "CREATE TABLE books (id int PRIMARY KEY)"
    )
    pipeline = make_pipeline(source, target, source_options=INITIAL, modifiers=[PAID])
    pipeline.catch_up()
    source.execute("INSERT INTO orders VALUES (1, 500)")
    source.execute("ALTER TABLE orders RENAME COLUMN total TO amount")
    source.execute("INSERT INTO orders VALUES (2, 5)")
    source.execute("INSERT INTO books VALUES (1)")
    wait_for_state(target, "orders", "failed")
    pipeline.catch_up()

    assert len(rows(target, "books")) == 1
    assert "column total is not there" in table_error(target, "orders")
    assert target.query("SELECT id FROM orders") == [(1,)], (
        "nothing passes that the rule does not know"
    )

    pipeline.stop()
    again = {
        "filter": {
            "table": "orders",
            "where": {"column": "amount", "operator": "gte", "value": 100},
        }
    }
    pipeline = make_pipeline(source, target, source_options=INITIAL, modifiers=[again])
    source.execute("INSERT INTO orders VALUES (3, 700)")
    wait_for_state(target, "orders", "streaming")
    pipeline.catch_up()
    assert target.query("SELECT id, amount FROM orders ORDER BY id") == [(1, 500), (3, 700)]


MASKED = {"with": "literal", "literal": "x"}
_TO_SEVEN = {"with": "regex", "pattern": "^.*$", "replace": "7"}
_DIGITS = ("'1'", "'22'", "'333'")
# The rule before and after, what is done at the source, and what is there in the end; and the values that are inserted.
EDITED = {
    "mask of a dropped column": (
        {"columns": {"name": MASKED}},
        "DROP COLUMN name, ADD COLUMN other text",
        {"columns": {"other": MASKED}},
        "SELECT t::text FROM orders t ORDER BY id",
        [("(1,)",), ("(2,x)",), ("(3,x)",)],
    ),
    "mask of a retyped column": (
        {"column": "name", **_TO_SEVEN},
        "ALTER COLUMN name TYPE int USING name::int",
        {"column": "name", "with": "literal", "literal": "8"},
        "SELECT id, name FROM orders ORDER BY id",
        [
            (1, 8),
            (2, 8),
            (3, 8),
        ],  # what USING makes of masked values nobody knows: it is copied again
        _DIGITS,
    ),
    "sql of a renamed column": (
        {"set": {"size": "length(name)"}},
        "RENAME COLUMN name TO title",
        {"set": {"size": "length(title)"}},
        "SELECT id, title, size FROM orders ORDER BY id",
        [(1, "one", 3), (2, "two+", 4), (3, "three", 5)],
    ),
    "mask of a renamed column": (
        {"column": "name", **MASKED},
        "RENAME COLUMN name TO title",
        {"column": "title", **MASKED},
        "SELECT id, title FROM orders ORDER BY id",
        [(1, "x"), (2, "x"), (3, "x")],
    ),
    "strict, a column that comes": (
        {"coverage": "strict", "columns": {"id": "keep", "name": "keep"}},
        "ADD COLUMN more text DEFAULT 'secret'",
        {"coverage": "strict", "columns": {"id": "keep", "name": "keep", "more": MASKED}},
        "SELECT id, name, more FROM orders WHERE id > 1 ORDER BY id",
        [(2, "two+", "x"), (3, "three", "x")],
    ),
}


@pytest.mark.parametrize("case", EDITED)
def test_rule_that_is_edited_after_a_migration_stopped_its_table_lets_it_go_on(
    source: Database, target: Database, make_pipeline: Make, case: str
) -> None:
    before, alter, after, query, wanted, *more = EDITED[case]
    one, two, three = more[0] if more else ("'one'", "'two+'", "'three'")
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, name text)")
    rule = {"transform": {"table": "orders", **before}}
    pipeline = make_pipeline(source, target, source_options=INITIAL, modifiers=[rule])
    pipeline.catch_up()
    source.execute(f"INSERT INTO orders VALUES (1, {one})")
    source.execute(f"ALTER TABLE orders {alter}")
    source.execute(f"INSERT INTO orders VALUES (2, {two})")
    wait_for_state(target, "orders", "failed")
    pipeline.catch_up()
    pipeline.stop()

    rule = {"transform": {"table": "orders", **after}}
    pipeline = make_pipeline(source, target, source_options=INITIAL, modifiers=[rule])
    source.execute(f"INSERT INTO orders VALUES (3, {three})")
    wait_for_state(target, "orders", "streaming")
    pipeline.catch_up()
    wait_until(lambda: target.query(query) == wanted, what=f"the rows to be {wanted}")


def test_documents_of_a_table_go_on_once_the_rule_is_edited_that_a_migration_stopped(
    source: Database, make_pipeline: Make, tmp_path: Path
) -> None:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, name text)")
    sink = {"kind": "file", "path": str(tmp_path / "out")}

    def start(column: str) -> RunningPipeline:
        rule = {"transform": {"table": "orders", "column": column, **MASKED}}
        return make_pipeline(source, sink=sink, source_options=INITIAL, modifiers=[rule])

    pipeline = start("name")
    pipeline.catch_up()
    source.execute("INSERT INTO orders VALUES (1, 'one')")
    source.execute("ALTER TABLE orders RENAME COLUMN name TO title")
    source.execute("INSERT INTO orders VALUES (2, 'two')")
    wait_until(lambda: pipeline.deliveries[0].stopped_tables, what="the table to stop")
    pipeline.stop()

    pipeline = start("title")
    pipeline.catch_up()
    pipeline.stop()
    found = documents(tmp_path / "out")
    renamed = [each["difference"] for each in found if each["op"] == "schema"][-1]
    assert [(each["before"], each["after"]) for each in renamed] == [("name", "title")]
    inserts = [each["after"] for each in found if each["op"] == "insert"]
    assert inserts == [{"id": 1, "name": "x"}, {"id": 2, "title": "x"}]


def test_documents_follow_the_rules_of_their_own_sink(
    source: Database, make_pipeline: Make, tmp_path: Path
) -> None:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, total int)")
    source.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    source.execute("INSERT INTO orders VALUES (1, 1), (2, 200)")
    rule = {"filter": {"table": "orders", "where": "total >= 100 AND id <> 7", "sinks": ["target"]}}
    pipeline = make_pipeline(
        source,
        sink={"kind": "file", "path": str(tmp_path / "out")},
        source_options=INITIAL,
        modifiers=[rule],
    )
    pipeline.catch_up()
    source.execute("UPDATE orders SET total = 300 WHERE id = 1")
    source.execute("UPDATE orders SET total = 3 WHERE id = 2")
    source.execute("INSERT INTO orders VALUES (7, 700), (8, 8)")
    pipeline.catch_up()
    pipeline.stop()

    found = [(each["op"], each["after"], each["before"]) for each in documents(tmp_path / "out")]
    assert found == [
        ("read", {"id": 2, "total": 200}, None),
        ("insert", {"id": 1, "total": 300}, None),
        ("delete", None, {"id": 2, "total": 200}),
    ]


def test_edited_rule_is_reported_until_the_table_is_copied_again(
    source: Database, target: Database, make_pipeline: Make, caplog: Any
) -> None:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, total int)")
    source.execute("INSERT INTO orders VALUES (1, 50), (2, 200)")
    pipeline = make_pipeline(source, target, source_options=INITIAL, modifiers=[PAID])
    pipeline.catch_up()
    pipeline.stop()
    assert list(find_rules(pipeline.file, {})) == []

    wider = {
        "filter": {"table": "orders", "where": {"column": "total", "operator": "gte", "value": 10}}
    }
    pipeline = make_pipeline(source, target, source_options=INITIAL, modifiers=[wider])
    pipeline.catch_up()
    [finding] = find_rules(pipeline.file, {})
    assert (finding.code, finding.severity) == ("PEN-704", "warning")
    assert "resync public.orders" in finding.do
    assert "PEN-704" in caplog.text
    assert target.query("SELECT id FROM orders") == [(2,)]

    resync_tables(pipeline.file, ["orders"])
    wait_until(lambda: len(rows(target, "orders")) == 2, what="the table to be copied again")
    pipeline.catch_up()
    wait_until(lambda: not list(find_rules(pipeline.file, {})), what="the warning to go")


@pytest.mark.long
def test_each_start_says_what_of_a_filter_has_no_effect(
    source: Database, target: Database, make_pipeline: Make, caplog: Any
) -> None:
    source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY); CREATE TABLE audit (id int PRIMARY KEY)"
    )
    idle = {"filter": {"tables": {"exclude": ["audit"]}, "operations": ["insert"]}}

    for _ in range(2):
        caplog.clear()
        pipeline = make_pipeline(source, target, source_options=INITIAL, modifiers=[idle])
        pipeline.catch_up()
        pipeline.stop()

        assert caplog.text.count("operations has no effect") == 1


def test_check_prints_chains_and_finds_rules_that_do_not_fit(
    source: Database, target: Database, tmp_path: Path, penstock_command: Callable[..., Any]
) -> None:
    source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, total int); INSERT INTO orders VALUES (1, 5), (2, 500)"
    )
    bad = {
        "filter": {"table": "orders", "where": {"column": "totl", "operator": "gte", "value": 1}}
    }
    moved = {"route": {"table": "orders", "target": "raw.{table}"}}
    document = pipeline_document(source, target, tmp_path)
    path = tmp_path / "shop.yml"
    path.write_text(yaml.safe_dump({**document, "modifiers": [PAID, moved, bad]}, sort_keys=False))

    found = penstock_command("check", str(path))
    assert found.wait() == 1
    assert "PEN-701 " in found.stderr
    assert f"{path}:" in found.stderr
    assert "column totl is not there" in found.stderr

    path.write_text(yaml.safe_dump({**document, "modifiers": [PAID, moved]}, sort_keys=False))
    found = penstock_command("check", str(path))
    assert found.wait() == 0, found.stderr
    [line] = [each for each in printed(found).splitlines() if "filter (" in each]
    assert line.startswith("public.orders: filter (")
    assert " > route to raw.orders (" in line

    found = penstock_command("check", str(path), "--json")
    assert found.wait() == 0, found.stderr
    [chain] = [each for each in json.loads(printed(found)) if each["code"] is None]
    assert (chain["place"], chain["source"], chain["sink"]) == ("public.orders", "test", "target")
    assert line == f"public.orders: {chain['what']}"

    found = penstock_command("modifiers", str(path), "preview", "--table", "orders", "--json")
    assert found.wait() == 0, found.stderr
    assert json.loads(printed(found)) == [
        {"op": "insert", "before": {"id": "1", "total": "5"}, "after": None, "became": "insert"},
        {
            "op": "insert",
            "before": {"id": "2", "total": "500"},
            "after": {"id": "2", "total": "500"},
            "became": "insert",
        },
    ]
    found = penstock_command("modifiers", str(path), "preview", "--table", "orders")
    assert found.wait() == 0, found.stderr
    shown = printed(found)
    assert "2 shown, 1 delivered" in shown
    assert "not delivered" in shown


def test_route_and_injected_ids_reach_documents_in_copies_and_stream(
    source: Database, make_pipeline: Make, tmp_path: Path
) -> None:
    source.execute(
        "CREATE TABLE users (id int PRIMARY KEY, name text, secret text);"
        "CREATE TABLE loose (n int);"
        "INSERT INTO users VALUES (1, 'a', 's')"
    )
    oid = source.value("SELECT 'users'::regclass::oid::int8")
    pipeline = make_pipeline(
        source,
        tables={"include": ["users"]},
        sink={"kind": "file", "path": str(tmp_path / "out")},
        source_options=INITIAL,
        modifiers=[
            {"inject": {}},
            {
                "route": {
                    "table": "users",
                    "target": "crm.customers",
                    "columns": {"id": "customer_id"},
                    "drop": ["secret"],
                }
            },
        ],
    )
    pipeline.catch_up()
    source.execute("UPDATE users SET name = 'b'")
    source.execute("ALTER TABLE users RENAME COLUMN name TO called")
    source.execute("UPDATE users SET called = 'c'")
    pipeline.catch_up()
    preview_rows = preview(pipeline.file, "users", sink=None, rows=5, from_log=True)
    pipeline.stop()

    found = [each for each in documents(tmp_path / "out") if each["op"] != "schema"]
    assert {(each["schema"], each["table"]) for each in documents(tmp_path / "out")} == {
        ("crm", "customers")
    }
    assert [each["after"] for each in found] == [
        {"customer_id": 1, "name": "a"},
        {"customer_id": 1, "name": "b"},
        {"customer_id": 1, "called": "c"},
    ]
    assert [each["metadata"]["identity"] for each in found] == [[f"{oid}-1"]] * 3
    assert [list(each["metadata"]["column_ids"].values()) for each in found] == [
        [f"{oid}-1", f"{oid}-2"]
    ] * 3
    versions = [each["metadata"]["version"] for each in found]
    assert versions == sorted(versions)
    assert len(set(versions)) == 3
    assert [each.after for each in preview_rows][-1] == {"customer_id": "1", "called": "c"}


def test_route_moves_a_table_of_a_postgres_target(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TABLE users (id int PRIMARY KEY, name text UNIQUE, secret text);"
        "CREATE TABLE books (id int PRIMARY KEY);"
        "INSERT INTO users VALUES (1, 'a', 's'); INSERT INTO books VALUES (1)"
    )
    pipeline = make_pipeline(
        source,
        target,
        source_options=INITIAL,
        modifiers=[
            {"route": {"table": "public.*", "target": "raw.{schema}_{table}"}},
            {
                "route": {
                    "table": "users",
                    "target": "crm.customers",
                    "columns": {"id": "customer_id"},
                    "drop": ["secret"],
                }
            },
        ],
    )
    pipeline.catch_up()
    source.execute("INSERT INTO users VALUES (2, 'b', 's'); UPDATE users SET id = 3 WHERE id = 1")
    source.execute("ALTER TABLE users ADD COLUMN age int DEFAULT 7")
    source.execute("INSERT INTO users VALUES (4, 'd', 's'); INSERT INTO books VALUES (2)")
    pipeline.catch_up()

    assert target.query("SELECT customer_id, name, age FROM crm.customers ORDER BY 1") == [
        (2, "b", 7),
        (3, "a", 7),
        (4, "d", 7),
    ]
    assert target.query("SELECT id FROM raw.public_books ORDER BY 1") == [(1,), (2,)]
    columns = target.query(
        "SELECT column_name::text FROM information_schema.columns WHERE table_schema = 'crm' ORDER BY ordinal_position"
    )
    assert columns == [("customer_id",), ("name",), ("age",)]


def test_rows_that_a_filter_left_out_are_no_conflict_and_come_whatever_on_conflict_says(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, total int);"
        "CREATE TABLE kept (id int PRIMARY KEY, total int, note text);"
        "ALTER TABLE kept ALTER note SET STORAGE EXTERNAL;"
        "INSERT INTO orders SELECT n, n FROM generate_series(1, 120) n;"
        "INSERT INTO kept SELECT n, n, repeat('x', 9000) FROM generate_series(1, 3) n"
    )
    large = {"column": "total", "operator": "gte", "value": 100}
    pipeline = make_pipeline(
        source,
        target,
        source_options=INITIAL,
        sink={"on_conflict": "keep"},
        modifiers=[PAID, {"filter": {"table": "kept", "where": large}}],
    )
    pipeline.catch_up()
    source.execute("UPDATE orders SET total = 500 WHERE id = 1")  # comes: it was never there
    source.execute("UPDATE orders SET total = 7 WHERE id = 2")  # was never there, and stays away
    source.execute("DELETE FROM orders WHERE id IN (3, 101)")
    pipeline.catch_up()

    wanted = source.query("SELECT * FROM orders WHERE total >= 100 ORDER BY id")
    assert target.query("SELECT * FROM orders ORDER BY id") == wanted
    missing = "SELECT sum(delete_missing + update_missing) FROM penstock.tables"
    assert target.value(missing) == 0

    # The value that its UPDATE has not sent is nowhere to be had.
    source.execute("UPDATE kept SET total = 500 WHERE id = 2")
    wait_for_state(target, "kept", "failed")
    assert "REPLICA IDENTITY FULL, then penstock tables resync" in table_error(target, "kept")


def test_columns_that_sql_computes_are_copied_followed_and_survive_changes_of_the_table(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, total numeric(10,2), country text, extra int);"
        "INSERT INTO orders VALUES (1, 100, 'de', 1), (2, 5, 'fr', 2)"
    )
    rules = [
        {"filter": {"table": "orders", "where": "total >= 10 OR country = 'fr'"}},
        {
            "transform": {
                "table": "orders",
                "set": {"country": "upper(country)", "vat": "(total * 0.19)::decimal(12,2)"},
            }
        },
    ]
    pipeline = make_pipeline(source, target, source_options=INITIAL, modifiers=rules)
    pipeline.catch_up()
    source.execute("INSERT INTO orders VALUES (3, 50, 'it', 3), (4, 1, 'xx', 4)")
    source.execute("ALTER TABLE orders DROP COLUMN extra")
    source.execute("ALTER TABLE orders ADD COLUMN note text DEFAULT 'n'")
    source.execute("UPDATE orders SET total = 200 WHERE id = 4")
    pipeline.catch_up()

    found = target.query("SELECT id, country, vat, note FROM orders ORDER BY id")
    assert [(each[0], each[1], float(each[2]), each[3]) for each in found] == [
        (1, "DE", 19.0, "n"),
        (2, "FR", 0.95, "n"),
        (3, "IT", 9.5, "n"),
        (4, "XX", 38.0, "n"),
    ]
    kind = target.value(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = 'orders'::regclass AND attname = 'vat'"
    )
    assert kind == "numeric(12,2)"

    source.execute("ALTER TABLE orders ALTER COLUMN total TYPE text")
    source.execute("INSERT INTO orders VALUES (5, '7', 'be')")
    wait_for_state(target, "orders", "failed")
    assert "PEN-701" in table_error(target, "orders"), "text is not multiplied"
