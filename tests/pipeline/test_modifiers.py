"""Rules of the pipeline file hold in the stream, in copies, and where tables change their shape."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fix_event_sinks import visible
from fix_pipeline import INITIAL, rows, table_error, wait_for_state
from fix_postgres import only_new

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
