"""What docs/howto promises, from end to end, by the commands that it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import yaml

from fix_command import run_penstock
from fix_pipeline import INITIAL, assert_equal, row_count, rows, table_error, wait_for_state
from fix_postgres import only_new
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_pipeline import Command, RunningPipeline
    from fix_postgres import Database, MakeDatabase
    from penstock.embedded.postgres import EmbeddedPostgres

    Make = Callable[..., RunningPipeline]
    Begin = Callable[..., Command]

HOWTO = Path(__file__).parents[2] / "docs" / "howto"


def block(page: str, language: str, holding: str) -> str:
    """The one block of a page that holds a text, without the indentation of a list."""
    text = (HOWTO / page).read_text()
    blocks = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", text, re.M | re.S)
    [found] = [(indent, body) for indent, body in blocks if holding in body]
    return re.sub(rf"^{found[0]}", "", found[1], flags=re.M)


def write(tmp_path: Path, text: str, **urls: str) -> Path:
    """The pipeline file of a page, with its variables replaced."""
    for name, url in urls.items():
        text = text.replace(f"${{{name}}}", url)
    document: dict[str, Any] = yaml.safe_load(text)
    path = tmp_path / f"{document['name']}.yml"
    path.write_text(yaml.safe_dump({**document, "state": str(tmp_path / "state")}))
    return path


@pytest.mark.long
def test_database_moves_to_another_major_version(
    pg_15: EmbeddedPostgres,
    pg_new: EmbeddedPostgres,
    make_database: MakeDatabase,
    penstock_command: Begin,
    tmp_path: Path,
) -> None:
    old, new = make_database(pg_15, "old"), make_database(pg_new, "shop")
    old.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ok');"
        "CREATE TABLE customer (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, m mood);"
        "CREATE TABLE bill (id serial PRIMARY KEY, customer bigint REFERENCES customer, total numeric);"
        "INSERT INTO customer (m) SELECT 'ok' FROM generate_series(1, 500);"
        "INSERT INTO bill (customer, total) SELECT n, n FROM generate_series(1, 500) n"
    )
    path = write(
        tmp_path, block("upgrade-postgres.md", "yaml", "upgrade"), OLD_URL=old.url, NEW_URL=new.url
    )
    running = penstock_command("run", str(path))
    wait_for_state(new, "bill", "streaming")
    old.execute(
        "ALTER TABLE customer ADD COLUMN since date DEFAULT '2020-02-02';"
        "INSERT INTO customer (m) VALUES ('sad')"
    )

    # The cut-over.
    old.execute(f"ALTER DATABASE {old.name} SET default_transaction_read_only = on")
    assert running.terminate() == 0, running.stderr
    ended = run_penstock("run", str(path), "--until-caught-up")
    assert ended.returncode == 0, ended.stderr
    synced = run_penstock("sync-sequences", str(path))
    assert synced.returncode == 0, synced.stderr

    assert_equal(old, new, "customer", "bill")
    assert new.query("INSERT INTO customer (m) VALUES ('ok') RETURNING id, since::text") == [
        (502, "2020-02-02")
    ]
    assert new.query("INSERT INTO bill (customer) VALUES (502) RETURNING id") == [(501,)]
    gone = run_penstock("teardown", str(path))
    assert gone.returncode == 0, gone.stderr
    assert old.query("SELECT 1 FROM pg_replication_slots WHERE database = current_database()") == []
    for side in (old, new):
        assert side.query("SELECT 1 FROM pg_namespace WHERE nspname = 'penstock'") == []


@only_new
def test_warehouse_has_other_partitions_than_its_source(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TABLE orders (id bigint, ordered_at timestamptz, total numeric, PRIMARY KEY (id,"
        " ordered_at)) PARTITION BY HASH (id);"
        "CREATE TABLE orders_0 PARTITION OF orders FOR VALUES WITH (MODULUS 4, REMAINDER 0);"
        "CREATE TABLE orders_1 PARTITION OF orders FOR VALUES WITH (MODULUS 4, REMAINDER 1);"
        "CREATE TABLE orders_2 PARTITION OF orders FOR VALUES WITH (MODULUS 4, REMAINDER 2);"
        "CREATE TABLE orders_3 PARTITION OF orders FOR VALUES WITH (MODULUS 4, REMAINDER 3);"
        "INSERT INTO orders SELECT n, '2025-06-01', n FROM generate_series(1, 40) n"
    )
    target.execute(block("consolidate.md", "sql", "PARTITION BY RANGE"))
    pipeline = make_pipeline(
        source, target, sink={"source_id_column": "tenant"}, source_options=INITIAL
    )
    source.execute(
        "INSERT INTO orders SELECT n, '2026-06-01', n FROM generate_series(41, 60) n;"
        "UPDATE orders SET ordered_at = '2026-02-02' WHERE id <= 10; DELETE FROM orders WHERE id = 20;"
        "UPDATE orders SET total = 0 WHERE id > 55"
    )
    pipeline.catch_up()

    def expect() -> None:
        wanted = source.query("SELECT 'test', id, ordered_at, total FROM orders ORDER BY id")
        assert target.query("SELECT * FROM orders ORDER BY id") == wanted

    expect()
    assert target.value("SELECT count(*) FROM orders_2026") == 30
    # A row that fits no partition waits for one.
    source.execute("INSERT INTO orders VALUES (99, '2027-01-01', 1)")
    pipeline.catch_up()
    wait_for_state(target, "orders", "failed")
    assert "orders" in table_error(target, "orders")
    target.execute(
        "CREATE TABLE orders_2027 PARTITION OF orders FOR VALUES FROM ('2027-01-01') TO ('2028-01-01')"
    )
    wait_for_state(target, "orders", "streaming")
    pipeline.catch_up()
    expect()
    assert rows(target, "orders_2027") != []


@pytest.mark.long
def test_tenants_of_one_schema_are_brought_together(
    pg_15: EmbeddedPostgres,
    pg_new: EmbeddedPostgres,
    make_database: MakeDatabase,
    penstock_command: Begin,
    tmp_path: Path,
) -> None:
    warehouse = make_database(pg_new, "warehouse")
    ids = ["acme", "globex", "hooli", "initech", "umbrella", "7"]
    tenants = {
        each: make_database((pg_15, pg_new)[number % 2], f"tenant_{number}")
        for number, each in enumerate(ids)
    }
    for number, tenant in enumerate(tenants.values()):
        tenant.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, v text UNIQUE);"
            "CREATE TABLE line (o int REFERENCES orders ON UPDATE CASCADE, n int, PRIMARY KEY (o, n));"
            f"INSERT INTO orders SELECT n, 'v' || n FROM generate_series(1, {10 + number}) n;"
            "INSERT INTO line SELECT id, 1 FROM orders"
        )
    document: dict[str, Any] = yaml.safe_load(block("consolidate.md", "yaml", "source_id_column"))
    document["sources"] = {
        each: {"url": tenant.url, "tables": ["public.*"]} for each, tenant in tenants.items()
    }
    document["sinks"]["dw"]["url"] = warehouse.url
    path = write(tmp_path, yaml.safe_dump(document))
    running = penstock_command("run", str(path))

    def is_equal(table: str, columns: str) -> bool:
        for each, tenant in tenants.items():
            wanted = tenant.query(f"SELECT {columns} FROM {table} ORDER BY {columns}")
            query = f"SELECT {columns} FROM {table} WHERE tenant = %s ORDER BY {columns}"
            try:
                if warehouse.query(query, each) != wanted:
                    return False
            except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
                return False
        return True

    def wait_until_equal(**columns: str) -> None:
        for table, names in columns.items():
            wait_until(lambda: is_equal(table, names), 90, what=f"{table} of all tenants")  # noqa: B023

    wait_until_equal(orders="id, v", line="o, n")
    for tenant in tenants.values():
        tenant.execute(
            "UPDATE orders SET v = 'new' WHERE id = 1; UPDATE orders SET id = 500 WHERE id = 10"
            if tenant is not tenants["acme"]
            else "TRUNCATE orders CASCADE; INSERT INTO orders VALUES (1, 'anew')"
        )
    wait_until_equal(orders="id, v", line="o, n")

    # A migration reaches one tenant after the other, and one of them differs.
    for tenant in list(tenants.values())[:4]:
        tenant.execute(
            "ALTER TABLE orders ADD COLUMN w int DEFAULT 3; INSERT INTO orders VALUES (900)"
        )
    tenants["acme"].execute(
        "ALTER TABLE orders RENAME v TO value; UPDATE orders SET value = 'r' WHERE id = 1"
    )
    tenants["globex"].execute("ALTER TABLE orders DROP COLUMN v")
    wait_until(
        lambda: (
            warehouse.query("SELECT v FROM orders WHERE tenant = 'acme' AND id = 1") == [("r",)]
        ),
        90,
        what="the values under their new name",
    )
    for tenant in list(tenants.values())[4:]:
        tenant.execute(
            "ALTER TABLE orders ADD COLUMN w int DEFAULT 3; INSERT INTO orders VALUES (901)"
        )
    wait_until_equal(orders="id, w", line="o, n")
    wanted = tenants["hooli"].query("SELECT id, v FROM orders ORDER BY id")
    query = "SELECT id, v FROM orders WHERE tenant = 'hooli' ORDER BY id"
    assert warehouse.query(query) == wanted
    assert running.terminate() == 0, running.stderr

    gone = run_penstock("teardown", str(path), "--source", "globex")
    assert gone.returncode == 0, gone.stderr
    assert tenants["globex"].query("SELECT 1 FROM pg_publication") == []
    assert tenants["hooli"].query("SELECT 1 FROM pg_publication") != []
    assert warehouse.value("SELECT count(*) > 0 FROM orders WHERE tenant = 'globex'") is True
    assert run_penstock("teardown", str(path)).returncode == 0
    assert warehouse.query("SELECT 1 FROM pg_namespace WHERE nspname = 'penstock'") == []


@pytest.mark.long
def test_services_share_a_warehouse_each_in_tables_of_its_own(
    pg_new: EmbeddedPostgres, make_database: MakeDatabase, penstock_command: Begin, tmp_path: Path
) -> None:
    shop, stock, warehouse = (make_database(pg_new, name) for name in ("shop", "stock", "dw"))
    shop.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, total numeric); INSERT INTO orders VALUES (1, 10);"
        "CREATE TABLE users (id int PRIMARY KEY, name text, email text, password text);"
        "INSERT INTO users VALUES (1, 'a', 'a@b', 'secret'); CREATE TABLE rest (id int PRIMARY KEY)"
    )
    stock.execute(
        "CREATE TABLE item (id int PRIMARY KEY); INSERT INTO item VALUES (1);"
        "CREATE TABLE place (id int PRIMARY KEY, v text); CREATE TABLE hidden (id int PRIMARY KEY)"
    )
    path = write(
        tmp_path,
        block("consolidate.md", "yaml", "STOCK_URL"),
        SHOP_URL=shop.url,
        STOCK_URL=stock.url,
        WAREHOUSE_URL=warehouse.url,
    )
    running = penstock_command("run", str(path))
    wait_for_state(warehouse, "users", "streaming")
    wait_for_state(warehouse, "place", "streaming")
    shop.execute("INSERT INTO rest VALUES (3); UPDATE users SET email = 'new'")
    stock.execute("INSERT INTO place VALUES (4, 'x')")
    wait_until(lambda: rows(warehouse, "place") == [("(4,x)",)], what="the last row of stock")
    wait_until(lambda: rows(warehouse, "rest") == [("(3)",)], what="the last row of shop")

    assert rows(warehouse, "sales.orders") == [("(1,10)",)]
    assert rows(warehouse, "sales.customer") == [("(1,a,new)",)]
    assert rows(warehouse, "stock.item") == [("(1)",)]
    assert warehouse.query("SELECT to_regclass('hidden')::text, to_regclass('users')::text") == [
        (None, None)
    ]
    assert running.terminate() == 0, running.stderr


@pytest.mark.long
def test_tables_of_one_name_are_not_mixed_unless_somebody_says_so(
    pg_new: EmbeddedPostgres, make_database: MakeDatabase, penstock_command: Begin, tmp_path: Path
) -> None:
    eu, us, target = (make_database(pg_new, name) for name in ("eu", "us", "both"))
    for side in (eu, us):
        side.execute(
            f"CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, '{side.name}')"
        )
    us.execute("CREATE TABLE other (id int PRIMARY KEY); INSERT INTO other VALUES (5)")
    document: dict[str, Any] = {
        "name": "both",
        "sources": {
            each: {"url": side.url, "tables": ["public.*"]}
            for each, side in (("eu", eu), ("us", us))
        },
        "sinks": {"target": {"kind": "postgres", "url": target.url}},
    }
    path = write(tmp_path, yaml.safe_dump(document))
    checked = run_penstock("check", str(path))
    assert checked.returncode == 1
    assert (
        "PEN-507 us/public.t: public.t at the target takes the rows of source eu" in checked.stderr
    )

    running = penstock_command("run", str(path))
    wait_until(lambda: rows(target, "other") == [("(5)",)], 60, what="the table that is no rival")
    query = "SELECT source, state FROM penstock.tables WHERE table_name = 't' ORDER BY state"
    wait_until(
        lambda: [state for _, state in target.query(query)] == ["failed", "streaming"],
        90,
        what="one to flow and one to stop",
    )
    first = target.query(query)[1][0]  # whoever was there first
    for side in (eu, us):
        side.execute(f"INSERT INTO t VALUES (2, '{side.name}')")
    name = (eu if first == "eu" else us).name
    wanted = [(f"(1,{name})",), (f"(2,{name})",)]
    wait_until(lambda: rows(target, "t") == wanted, 60, what="the rows of one source alone")
    assert running.terminate() == 0, running.stderr

    document["sinks"]["target"]["tables"] = {"public.t": {"target": "public.t"}}
    path = write(tmp_path, yaml.safe_dump(document))
    assert run_penstock("check", str(path)).returncode == 0
    running = penstock_command("run", str(path))
    query = "SELECT DISTINCT state FROM penstock.tables"
    wait_until(lambda: target.query(query) == [("streaming",)], 90, what="both to flow")
    us.execute("INSERT INTO t VALUES (3, 'us')")
    eu.execute("INSERT INTO t VALUES (4, 'eu')")
    wait_until(lambda: row_count(target, "t") == 4, 60, what="the rows of both")
    assert running.terminate() == 0, running.stderr


@pytest.mark.long
def test_sources_of_one_table_may_differ_and_change_without_harm_to_the_others(
    pg_new: EmbeddedPostgres, make_database: MakeDatabase, tmp_path: Path
) -> None:
    a, b, target = (make_database(pg_new, name) for name in ("a", "b", "shared"))
    a.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, n int); INSERT INTO t VALUES (1, 'a', 1), (2, 'a', 2);"
        "CREATE TABLE gone (id int PRIMARY KEY); INSERT INTO gone VALUES (1)"
    )
    b.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, n bigint, extra text);"
        "INSERT INTO t VALUES (1, 'b', 5000000000, 'of b');"
        "CREATE TABLE gone (id int PRIMARY KEY); INSERT INTO gone VALUES (1)"
    )

    def run(**sources: Database) -> None:
        document = {
            "name": "shared",
            "sources": {
                each: {"url": side.url, "tables": ["public.*"]} for each, side in sources.items()
            },
            "sinks": {"dw": {"kind": "postgres", "url": target.url, "source_id_column": "sid"}},
        }
        done = run_penstock(
            "run", str(write(tmp_path, yaml.safe_dump(document))), "--until-caught-up"
        )
        assert done.returncode == 0, done.stderr

    def assert_as_at(side: Database, sid: str, columns: str) -> None:
        query = f"SELECT {columns} FROM t WHERE sid = %s ORDER BY id"
        assert target.query(query, sid) == side.query(f"SELECT {columns} FROM t ORDER BY id")

    run(a=a)
    run(a=a, b=b)
    assert_as_at(b, "b", "id, v, n, extra")
    assert_as_at(a, "a", "id, v, n")

    a.execute("ALTER TABLE t ADD COLUMN extra text DEFAULT 'y', ADD COLUMN zed int DEFAULT 1")
    run(a=a, b=b)
    b.execute("ALTER TABLE t ADD COLUMN zed int DEFAULT 2")
    b.execute("ALTER TABLE t ADD COLUMN at timestamptz DEFAULT clock_timestamp()")
    run(a=a, b=b)
    assert_as_at(b, "b", "id, v, n, extra, zed, at")
    assert_as_at(a, "a", "id, v, n, extra, zed")

    a.execute("ALTER TABLE t DROP COLUMN extra")
    a.execute("ALTER TABLE t ADD COLUMN extra text")
    run(a=a, b=b)
    assert_as_at(a, "a", "id, v, n, extra, zed")
    assert_as_at(b, "b", "id, v, n, extra, zed, at")

    # What is left of a fleet still has the others' rows.
    a.execute("ALTER TABLE t DROP COLUMN zed; ALTER TABLE t RENAME v TO w; DROP TABLE gone")
    a.execute("UPDATE t SET w = 'renamed'")
    run(a=a)
    assert target.query("SELECT v FROM t WHERE sid = 'a'") == [("renamed",)] * 2
    assert_as_at(b, "b", "id, v, n, extra, zed, at")
    assert target.query("SELECT sid, id FROM gone") == [("b", 1)]


@pytest.mark.long
def test_tenant_that_leaves_takes_nothing_of_the_others_with_it(
    pg_new: EmbeddedPostgres, make_database: MakeDatabase, tmp_path: Path
) -> None:
    warehouse = make_database(pg_new, "warehouse")
    tenants = {each: make_database(pg_new, each) for each in ("acme", "globex", "hooli")}
    for tenant in tenants.values():
        tenant.execute(
            "CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1), (2)"
        )

    def file(*names: str) -> str:
        document = {
            "name": "tenants",
            "sources": {each: {"url": tenants[each].url, "tables": ["public.*"]} for each in names},
            "sinks": {"dw": {"kind": "postgres", "url": warehouse.url, "source_id_column": "sid"}},
        }
        return str(write(tmp_path, yaml.safe_dump(document)))

    def succeed(*arguments: str) -> str:
        done = run_penstock(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    succeed("run", file(*tenants), "--until-caught-up")
    # Only who goes on from its position learns of this: a copy brings no rows that are gone.
    tenants["acme"].execute("DELETE FROM orders WHERE id = 1; INSERT INTO orders VALUES (3)")
    before = "SELECT delivered_lsn FROM penstock.progress WHERE source = 'acme'"
    position = warehouse.value(before)
    succeed("teardown", file(*tenants), "--source", "globex")
    held = "SELECT DISTINCT source FROM penstock.{} ORDER BY 1"
    assert warehouse.query(held.format("progress")) == [("acme",), ("hooli",)]
    assert warehouse.query(held.format("tables")) == [("acme",), ("hooli",)]
    assert warehouse.value(before) == position

    succeed("run", file("acme"), "--until-caught-up")
    rows_of = "SELECT id FROM orders WHERE sid = %s ORDER BY id"
    assert warehouse.query(rows_of, "acme") == [(2,), (3,)]
    assert warehouse.query(rows_of, "globex") == [(1,), (2,)]

    # All of the pipeline goes, also what a source has left that is in the file no more.
    reported = succeed("teardown", file("acme"))
    assert "source hooli is not in the file" in reported
    assert warehouse.query("SELECT 1 FROM pg_namespace WHERE nspname = 'penstock'") == []
    assert warehouse.query(rows_of, "hooli") == [(1,), (2,)]
    succeed("teardown", file("hooli"))
    for tenant in tenants.values():
        query = "SELECT 1 FROM pg_replication_slots WHERE database = current_database()"
        assert tenant.query(query) == []
