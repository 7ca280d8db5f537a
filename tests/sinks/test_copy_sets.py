"""Many tables are made room for and finished in sets; one that is refused fails alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from fix_postgres import only_new
from fix_wait import wait_until
from penstock.errors import SinkError
from penstock.lsn import Lsn
from penstock.sinks.copying import Copy, CopyOrder
from penstock.sinks.postgres.copy import copy_in as copyin
from penstock.sinks.postgres.copy.copying import TOGETHER, PostgresCopying
from penstock.sinks.postgres.mapping.table_mapping import TableMappings
from penstock.sinks.postgres.options import PostgresOptions
from penstock.sinks.postgres.state.objects import make_objects
from penstock.sinks.postgres.state.tables import TargetTables
from penstock.source.shapes import read_named_shapes
from penstock.source.structure import structures_of
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fix_postgres import Database

pytestmark = only_new

COPY = Copy("c", Lsn(64))
STATES = "SELECT state, count(*) FROM penstock.tables GROUP BY 1 ORDER BY 1"
# Each of them is written by its set's transaction.
TRANSACTIONS = "SELECT count(DISTINCT xmin::text) FROM penstock.tables WHERE state = %s"
KEYS = (
    "SELECT count(*) FROM pg_constraint WHERE contype = 'p' AND connamespace = 'shop'::regnamespace"
)


def make_tables(source: Database, count: int) -> list[CopyOrder]:
    source.execute("CREATE SCHEMA shop")
    source.execute(
        "".join(
            f"CREATE TABLE shop.t{n} (id int PRIMARY KEY, v text DEFAULT 'x');"
            f"CREATE INDEX t{n}_v ON shop.t{n} (v);"
            for n in range(count)
        )
    )
    names = [TableName("shop", f"t{n}") for n in range(count)]
    with source.connect() as connection:
        shapes = read_named_shapes(connection, names)
        structures = structures_of(connection, shapes.values())
    return [CopyOrder(name, shape, structures[name], 1) for name, shape in shapes.items()]


@pytest.fixture
def copying(target: Database) -> Iterator[PostgresCopying]:
    options = PostgresOptions(url=target.url)
    with target.connect() as connection:
        make_objects(connection)
    made = PostgresCopying(TableMappings(options, "p", "s", ["s"]), "p")
    made.open()
    assert made.claim()
    yield made
    made.close()
    # Ranges are written here in this process, which is no executor that ends.
    for connection in copyin._connections.values():
        connection.close()
    copyin._connections.clear()


def schedule_copy(target: Database, orders: list[CopyOrder]) -> None:
    with target.connect() as connection:
        tables = {order.table: 0 for order in orders}
        TargetTables("p", "s").schedule(connection, tables, Lsn(8), is_new=True)


def send(copying: PostgresCopying, orders: list[CopyOrder], rows: dict[str, bytes]) -> None:
    """Make room, and send the same rows to every table but some."""
    writers, failures = copying.begin(COPY, orders)
    assert failures == {}
    for table, writer in writers.items():
        assert isinstance(writer.is_binary, bool)
        into = type(writer)(**{**vars(writer), "is_binary": False}).begin(0)
        into.write([rows.get(table.name, b"1\ta\n2\tb\n")])
        into.finish()


def test_tables_are_created_and_finished_in_sets(
    source: Database, target: Database, copying: PostgresCopying
):
    orders = make_tables(source, 2 * TOGETHER + 10)
    schedule_copy(target, orders)
    begun: list[int] = []

    writers, failures = copying.begin(COPY, orders, begun.append)

    assert (len(writers), failures) == (len(orders), {})
    assert begun == [TOGETHER, 2 * TOGETHER, len(orders)]
    assert target.query(STATES) == [("copying", len(orders))]
    assert target.value(TRANSACTIONS, "copying") == 3

    target.execute(
        "INSERT INTO penstock.ranges SELECT pipeline, source, schema_name, table_name, copy_id, 0, 0, 0"
        " FROM penstock.tables"
    )
    assert copying.finish(orders, COPY) == {}

    assert target.query(STATES) == [("catching_up", len(orders))]
    assert target.value(TRANSACTIONS, "catching_up") == 1
    assert target.value(KEYS) == len(orders)
    assert target.value("SELECT count(*) FROM penstock.ranges") == 0


def test_table_that_is_in_the_way_or_refused_fails_alone(
    source: Database, target: Database, copying: PostgresCopying
):
    orders = make_tables(source, 12)
    schedule_copy(target, orders)
    target.execute("CREATE SCHEMA shop; CREATE VIEW shop.t3 AS SELECT 1 AS id")

    writers, failures = copying.begin(COPY, orders)

    assert [str(table) for table in failures] == ["shop.t3"]
    assert isinstance(failures[TableName("shop", "t3")], SinkError)
    assert len(writers) == 11
    made = "SELECT count(*) FROM penstock.tables WHERE made_by_us"
    assert target.value(made) == 11


def test_key_that_rows_refuse_fails_its_table_alone(
    source: Database, target: Database, copying: PostgresCopying
):
    orders = make_tables(source, 12)
    schedule_copy(target, orders)
    send(copying, orders, {"t5": b"1\ta\n1\tb\n"})

    failures = copying.finish(orders, COPY)

    assert [str(table) for table in failures] == ["shop.t5"]
    assert target.query(STATES) == [("catching_up", 11), ("copying", 1)]
    assert target.value(TRANSACTIONS, "catching_up") == 1
    assert target.value(KEYS) == 11
    rows = "SELECT DISTINCT rows_copied FROM penstock.tables WHERE state = 'catching_up'"
    assert target.query(rows) == [(2,)]


def test_index_that_is_refused_is_noted_and_keeps_no_table_away(
    source: Database, target: Database, copying: PostgresCopying
):
    orders = make_tables(source, 4)
    source.execute("DROP INDEX shop.t2_v; CREATE UNIQUE INDEX t2_v ON shop.t2 (v)")
    with source.connect() as connection:
        shapes = read_named_shapes(connection, [order.table for order in orders])
        structures = structures_of(connection, shapes.values())
    orders = [CopyOrder(name, shape, structures[name], 1) for name, shape in shapes.items()]
    schedule_copy(target, orders)
    send(copying, orders, {"t2": b"1\ta\n2\ta\n"})

    assert copying.finish(orders, COPY) == {}

    assert target.query(STATES) == [("catching_up", 4)]
    noted = "SELECT table_name, notes LIKE 'index t2_v: UniqueViolation%%' FROM penstock.tables WHERE notes IS NOT NULL"
    assert target.query(noted) == [("t2", True)]


def test_table_that_somebody_holds_is_begun_on_its_own_and_keeps_no_other_waiting(
    source: Database, target: Database, copying: PostgresCopying
):
    orders = make_tables(source, 6)
    schedule_copy(target, orders)
    held = "SELECT FROM penstock.tables WHERE table_name = 't4' FOR UPDATE"
    copied = "SELECT count(*) FROM penstock.tables WHERE state = 'copying'"
    with ThreadPoolExecutor(1) as pool, target.connect(autocommit=False) as another:
        another.execute(held)
        begun = pool.submit(copying.begin, COPY, orders)
        wait_until(lambda: target.value(copied) == 5, what="the other tables to be begun")
        another.rollback()
        writers, failures = begun.result(30)

    assert (len(writers), failures) == (6, {})
    assert target.value(copied) == 6
