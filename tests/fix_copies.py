"""Copy tables into sinks of documents: without Spark and without a server, or beside a writer."""

from __future__ import annotations

import os
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fix_documents import parse
from fix_event_sinks import ORDERS, START, batch_of, file_place, open_sink, visible
from penstock.log.files.reader import FilesReader
from penstock.lsn import Lsn
from penstock.schema.shape import ColumnShape, ConstraintShape, TableShape
from penstock.sinks.copying import Copy, CopyOrder
from penstock.sinks.documents.workspace import copying_of
from penstock.sinks.file.kind import FileKind
from penstock.spark.jobs import Span, run_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from fix_postgres import Database
    from penstock.sinks.documents.copying import DocumentCopying
    from penstock.sinks.sink import Sink

# After the second transaction of `write_transactions`: what the copy shows goes up to there.
SNAPSHOT_LSN = Lsn(START + 0x208)


def file_copying(directory: Path) -> DocumentCopying:
    """The copying half of `file_sink`."""
    return copying_of(FileKind(), file_place(directory))


def order_of(range_count: int, *, identity: str = "d") -> CopyOrder:
    """The table `orders`, in so many ranges."""
    columns = tuple(
        ColumnShape(
            id=number,
            name=column.name,
            type="",
            type_id=column.type_oid,
            type_kind="b",
            not_null=False,
        )
        for number, column in enumerate(ORDERS.columns, 1)
    )
    key = ConstraintShape(
        id=2, name="orders_pkey", kind="p", definition="PRIMARY KEY (id)", columns=(1,), used=(1,)
    )
    shape = TableShape(
        id=ORDERS.oid,
        schema_name=ORDERS.table.schema,
        name=ORDERS.table.name,
        replica_identity=identity,
        columns=columns,
        constraints=(key,),
    )
    structure: Any = None  # of no concern to documents
    return CopyOrder(ORDERS.table, shape, structure, range_count)


def copied_rows(number: int) -> list[bytes]:
    """The rows of one range as COPY sends them."""
    return [b"%d\tread %d\n" % (100 * number + row, row) for row in range(4)]


def wanted_reads(range_count: int) -> list[tuple[int, str]]:
    """What the documents of a copy say, in order."""
    return [
        (100 * number + row, f"read {row}") for number in range(range_count) for row in range(4)
    ]


def copy(copying: DocumentCopying, copy_id: str, range_count: int, lsn: Lsn = SNAPSHOT_LSN) -> None:
    """Copy the table, the last range first; finish it."""
    order, snapshot = order_of(range_count), Copy(copy_id, lsn)
    assert copying.claim()
    writers, _ = copying.begin(snapshot, [order])
    for number in reversed(range(range_count)):
        into = pickle.loads(pickle.dumps(writers[ORDERS.table])).begin(number)
        into.write(copied_rows(number))
        into.finish()
    assert copying.arrived(snapshot)[ORDERS.table].ranges == frozenset(range(range_count))
    assert copying.finish([order], snapshot) == {}


def copies_in(directory: Path) -> list[str]:
    """What lies in the directory of copies."""
    return sorted(path.name for path in (directory / ".copies").iterdir())


def flow(sink: Sink, log: Path, position: Lsn) -> Lsn:
    """Deliver what the sink lacks, a batch for each slice."""
    reader = FilesReader(log, position)
    try:
        while slices := reader.read(1):
            batch = batch_of(position, slices)
            sink.commit(batch, [_run(sink, batch, slices, None)])
            position = batch.end_lsn
    finally:
        reader.close()
    return position


def catch_up(sink: Sink, log: Path, position: Lsn) -> None:
    """Let the table catch up, a slice at a time, and join."""
    tables = {ORDERS.table}
    at = sink.tables.detached[ORDERS.table].delivered_lsn
    reader = FilesReader(log, at)
    try:
        while at < position:
            slices = reader.read(1)
            batch = batch_of(at, slices)
            sink.commit_detached(tables, batch, [_run(sink, batch, slices, tables)])
            at = batch.end_lsn
    finally:
        reader.close()
    sink.tables.attach(tables)


def _run(sink: Sink, batch: Any, slices: Sequence[Any], only: Any) -> Any:
    worker = sink.worker(batch, only)
    return run_task(worker, Span(batch.after_lsn, batch.end_lsn), 0, [[ref] for ref in slices])


def drive(sink: Sink, copying: DocumentCopying, log: Path, range_count: int) -> None:
    """Do all that is left to do, from whatever state both are found in: what the loops do, in turn."""
    table = ORDERS.table
    position = open_sink(sink)
    sink.refresh_tables(position)
    if table not in sink.tables.streaming and table not in sink.tables.detached:
        sink.tables.schedule_copy({table: 0}, position)
    copying.open()
    if copying.due():
        copy(copying, os.urandom(4).hex(), range_count)
    if table in sink.tables.detached:
        sink.refresh_tables(position)
    position = flow(sink, log, position)
    if table in sink.tables.detached:
        catch_up(sink, log, position)
    assert sink.tables.streaming == {table}
    assert sink.tables.detached == {}
    copying.due()  # tidies up


def read(directory: Path) -> list[dict[str, Any]]:
    """Every document that is visible, in the order of the files' names."""
    text = b"".join(path.read_bytes() for path in visible(directory))
    return [parse(line) for line in text.split(b"\n")[:-1]]


def replay(documents: list[dict[str, Any]], table: str = "t") -> dict[str, Any]:
    """The rows that the documents lead to, by key; each document must fit to those before it."""
    rows: dict[str, Any] = {}
    for one in documents:
        if one["table"] != table:
            continue
        key = one["key"]["id"].digits
        if one["op"] in ("read", "insert"):
            assert key not in rows, f"{one['op']} of a row that is there"
            rows[key] = one["after"]
        elif one["op"] == "update":
            assert key in rows, "update of a row that is not there"
            rows[key] = one["after"]
        else:
            assert key in rows, "delete of a row that is not there"
            del rows[key]
    return rows


def stands(source: Database, table: str = "t") -> dict[str, Any]:
    """The rows of a table (id, n, pad) as documents have them."""
    found = source.query(
        f"SELECT jsonb_build_object('id', id, 'n', n, 'pad', pad)::text FROM {table}"
    )
    rows = [parse(text) for (text,) in found]
    return {row["id"].digits: row for row in rows}


def make_table(source: Database, table: str = "t", rows: int = 1000) -> None:
    """A table (id, n, pad) with rows in it."""
    source.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, n int, pad text)")
    source.execute(
        f"INSERT INTO {table} SELECT g, 0, repeat('x', 200) FROM generate_series(1, {rows}) g"
    )


class Writer:
    """Changes a table all the time: each row it touches goes through insert, update and delete."""

    def __init__(self, source: Database, table: str = "t") -> None:
        self._source = source
        self._table = table
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.count = 0

    def start(self) -> Writer:
        """Begin."""
        self._thread.start()
        return self

    def _run(self) -> None:
        with self._source.connect() as connection:
            while not self._stop.wait(0.002):
                n = self.count
                connection.execute(f"UPDATE {self._table} SET n = n + 1 WHERE id = {n * 7 % 900}")
                connection.execute(f"DELETE FROM {self._table} WHERE id = {n * 31 % 900}")
                connection.execute(f"INSERT INTO {self._table} VALUES ({n * 31 % 900}, {n}, 'new')")
                self.count += 1

    def stop(self) -> None:
        """End, after a whole round."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()


@pytest.fixture
def writer_of(source: Database) -> Iterator[Callable[..., Writer]]:
    """Start writers; all are stopped when the test ends."""
    made: list[Writer] = []

    def writer_of(table: str = "t") -> Writer:
        made.append(Writer(source, table).start())
        return made[-1]

    yield writer_of
    for writer in made:
        writer.stop()
