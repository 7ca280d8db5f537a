"""A copied range goes through the modifier that its table has; others are passed on as they are."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle

import fix_modifiers
from fix_event_sinks import visible
from fix_modifiers import ShoutingOrders
from fix_pipeline import ALWAYS_COPIED
from fix_postgres import only_new
from penstock.modifiers.copies import modified_copies
from penstock.run import deliveries
from penstock.run.flow import Feed
from penstock.sinks.copying import RangeRefused
from penstock.snapshot.copier import Copier
from penstock.snapshot.ranges import PageRange
from penstock.snapshot.task import CopyWork, copy_ranges
from penstock.source.shapes import read_named_shapes
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

ORDERS, BOOKS = TableName("public", "orders"), TableName("public", "books")


@dataclass
class Writer:
    """A sink's executor half that keeps what it is given; refuses the line that holds some text."""

    columns: tuple[str, ...]
    is_binary: bool
    literals: tuple[tuple[str, str], ...] = ()
    refuses: bytes | None = None
    written: list[bytes] = field(default_factory=list)
    ended: str = ""

    def begin(self, number: int) -> Writer:
        return self

    def write(self, rows) -> None:
        # Text comes as lines, some or many at once.
        whole = b"".join(rows)
        self.written += [whole] if self.is_binary else whole.splitlines(keepends=True)

    def finish(self) -> None:
        for line, row in enumerate(self.written):
            if self.refuses is not None and self.refuses in row:
                raise RangeRefused("no", "do", line)
        self.ended = "finished"

    def abort(self) -> None:
        self.ended = "aborted"


@pytest.fixture
def snapshot(source: Database) -> Iterator[str]:
    """Two tables with the same rows, and a snapshot that shows them."""
    for name in ("orders", "books"):
        source.execute(f"CREATE TABLE {name} (id int8 PRIMARY KEY, note text)")
        source.execute(
            f"INSERT INTO {name} VALUES (1, E'a\\tb'), (90, 'x'), (2, NULL), (91, 'x'), (3, 'refused')"
        )
    with source.connect() as connection, connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        yield connection.execute("SELECT pg_export_snapshot()").fetchone()[0]


def copy(source: Database, snapshot: str, writers: dict[TableName, Writer]):
    with source.connect() as connection:
        shapes = read_named_shapes(connection, list(writers))
    keys = dict.fromkeys(writers, ("id",))
    modified, _ = modified_copies(ShoutingOrders(), shapes, 0x1000)
    work = CopyWork(source.dsn, snapshot, writers, keys, None, modified)
    ranges = [PageRange(table, 0, table, 0, None, 8192) for table in writers]
    return list(copy_ranges(work, iter([ranges])))


def modified(part: Any, *args: Any, **options: Any) -> Any:
    return part(*args, **{**options, "modifiers": ShoutingOrders()})


@only_new
def test_rows_of_a_table_that_is_modified_arrive_as_the_modifier_made_them(
    source: Database, snapshot: str
) -> None:
    orders = Writer(("id", "shout", "region"), is_binary=False, literals=(("text", "shop"),))
    books = Writer(("id", "note"), is_binary=True)

    assert copy(source, snapshot, {ORDERS: orders, BOOKS: books}) == []

    assert orders.written == [
        b"1\tA\\tB\teu\tshop\n",
        b"2\t\\N\teu\tshop\n",
        b"3\tREFUSED\teu\tshop\n",
    ]
    assert orders.ended == books.ended == "finished"
    assert books.written[0].startswith(b"PGCOPY\n"), "nobody reads its values: they stay binary"


@only_new
def test_row_that_the_sink_refuses_is_named_by_its_own_key_though_others_were_dropped(
    source: Database, snapshot: str
) -> None:
    orders = Writer(("id", "shout"), is_binary=False, refuses=b"REFUSED")

    [failure] = copy(source, snapshot, {ORDERS: orders})

    assert failure.where == "public.orders key (id=3)"


@only_new
def test_table_is_let_go_of_before_the_next_one_is_waited_for(
    source: Database, snapshot: str
) -> None:
    # Else a user who has locked the next one, and alters this one, meets a deadlock.
    held = []

    class Asking(Writer):
        def begin(self, number: int) -> Writer:
            locks = (
                "SELECT relation::regclass::text FROM pg_locks WHERE relation = 'books'::regclass"
            )
            held.append(source.query(locks))
            return self

    books = Writer(("id", "note"), is_binary=True)
    orders = Asking(("id", "shout"), is_binary=False)

    assert copy(source, snapshot, {BOOKS: books, ORDERS: orders}) == []

    assert held == [[]]
    assert books.ended == orders.ended == "finished"


@only_new
def test_pipeline_delivers_copied_rows_and_changes_as_the_modifier_made_them(
    source: Database,
    make_pipeline: Callable[..., RunningPipeline],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Executors do not see the tests' own modules.
    cloudpickle.register_pickle_by_value(fix_modifiers)
    for part in (Feed, Copier):
        monkeypatch.setattr(deliveries, part.__name__, partial(modified, part))
    source.execute("CREATE TABLE orders (id int8 PRIMARY KEY, note text)")
    source.execute("INSERT INTO orders VALUES (1, 'a'), (90, 'x')")
    sink = {"kind": "file", "path": str(tmp_path / "out")}

    pipeline = make_pipeline(source, sink=sink, source_options=ALWAYS_COPIED)
    pipeline.catch_up()
    source.execute("INSERT INTO orders VALUES (2, 'b'), (91, 'x')")
    source.execute("UPDATE orders SET note = 'gone' WHERE id = 1")
    pipeline.catch_up()
    pipeline.stop()

    lines = [
        json.loads(line)
        for path in visible(tmp_path / "out")
        for line in path.read_text().splitlines()
    ]
    assert [(one["op"], one["key"], one["after"]) for one in lines if one["op"] != "schema"] == [
        ("read", {"id": 1}, {"id": 1, "shout": "A", "region": "eu"}),
        ("insert", {"id": 2}, {"id": 2, "shout": "B", "region": "eu"}),
        ("delete", {"id": 1}, None),
    ]
