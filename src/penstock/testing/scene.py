"""Delivers a log to a sink, both halves in one process: what the loops do, without Spark."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock import vault
from penstock.lsn import Lsn
from penstock.schema.describe import structure_of
from penstock.schema.difference import Difference
from penstock.schema.mark import CHANGE, Mark
from penstock.schema.shape import ColumnShape, ConstraintShape, SchemaChange, TableShape
from penstock.sinks.copying import Copy, CopyOrder
from penstock.sinks.ddl_transaction import Rows, ShapeChange, TableDifference
from penstock.sinks.kind import SinkPlace
from penstock.sinks.sink import Batch, SharingWorker
from penstock.spark.jobs import Span, run_task
from penstock.testing.forked import was_killed_at
from penstock.testing.stream import (
    TYPE_OIDS,
    delete,
    insert,
    read_log,
    relation,
    table,
    transaction,
    update,
    write_log,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from penstock.changes.pgoutput import Relation
    from penstock.sink import Options
    from penstock.sinks.describe import WholeSchema
    from penstock.sinks.kind import SinkKind
    from penstock.sinks.sink import Receipt, Sink, Worker
    from penstock.table import TableName

# `orders`, as `Scene.write` and scenes of rows fill it, and others that scenes of rows have beside it.
ORDERS = table(16400, "orders", {"id": "int8", "note": "text"}, key=["id"])
AUDIT = table(16401, "audit", {"id": "int8", "note": "text"}, key=["id"])
LOOSE = table(16402, "loose", {"id": "int8", "note": "text"}, identity="f")
TRIPS = table(16403, "trips", {"id": "int8", "remark": "text"}, key=["id"])
ALTERED_TRIPS = table(16403, "trips", {"id": "int8", "note": "text", "by": "text"}, key=["id"])
FILLED_TRIPS = table(16403, "trips", {"id": "int8", "remark": "text", "note": "text"}, key=["id"])
PURCHASES = table(16400, "purchases", {"id": "int8", "note": "text"}, key=["id"])
START = Lsn(0x1000)
IDENTITY = {"system_identifier": "7", "slot": "penstock_shop_00000000"}


@dataclass(frozen=True)
class Altered:
    """What a statement changes of a table: how it is called after it and was before, and the differences of that."""

    table: TableName
    before: TableName
    differences: tuple[Difference, ...]

    def at(self, lsn: Lsn, end: Lsn, number: int) -> ShapeChange:
        """At its place in a transaction."""
        return ShapeChange(
            Mark(lsn, end, 0, 1, 0, number, CHANGE, ""),
            SchemaChange(format=1),
            followed=(TableDifference(self.table, self.differences),),
            renamed={} if self.before == self.table else {self.before: self.table},
            dropped=frozenset(
                {self.table} if any(each.op == "drop_table" for each in self.differences) else ()
            ),
            created_in_stream=frozenset(
                {self.table} if any(each.op == "create_table" for each in self.differences) else ()
            ),
        )


def renamed(before: Relation, after: Relation) -> Altered:
    """ALTER TABLE … RENAME TO …"""
    names = str(before.table), str(after.table)
    difference = Difference("rename_table", "table", *after.table, "", *names)
    return Altered(after.table, before.table, (difference,))


def dropped(described: Relation) -> Altered:
    """DROP TABLE …"""
    difference = Difference("drop_table", "table", *described.table)
    return Altered(described.table, described.table, (difference,))


def created(described: Relation) -> Altered:
    """CREATE TABLE …, in the stream from the first row on."""
    difference = Difference("create_table", "table", *described.table)
    return Altered(described.table, described.table, (difference,))


def altered_trips() -> Altered:
    """A column of TRIPS gets another name, and one is added."""
    added = {"name": "by", "type": "text", "not_null": False}
    differences = (
        Difference("rename_column", "table", *TRIPS.table, "note", "remark", "note"),
        Difference("add_column", "table", *TRIPS.table, "by", None, added),
    )
    return Altered(TRIPS.table, TRIPS.table, differences)


def filled_trips() -> Altered:
    """A column with a default is added to TRIPS: the rows that are there have it, and are not sent."""
    added = {"name": "note", "type": "text", "not_null": False, "default": "'first'::text"}
    difference = Difference(
        "add_column", "table", *TRIPS.table, "note", None, added, is_filled=True
    )
    return Altered(TRIPS.table, TRIPS.table, (difference,))


def retyped(described: Relation, column: str) -> Altered:
    """ALTER TABLE … ALTER COLUMN … TYPE varchar USING …: rows have other values, and are not sent."""
    types = "text", "character varying"
    difference = Difference("column_type", "table", *described.table, column, *types)
    return Altered(described.table, described.table, (difference,))


# Rows of a part of a transaction, with the table that they are of; or what a statement changes.
Part = tuple["Relation", "Sequence[bytes]"] | Altered


class Scene:
    """One pipeline `shop` with one sink, and a log of transactions for it; or another one, or a source of it."""

    def __init__(
        self,
        kind: SinkKind[Any],
        options: Options,
        directory: Path,
        pipeline: str = "shop",
        source_id: str = "shop",
        source_ids: tuple[str, ...] = ("shop",),
    ) -> None:
        self._kind = kind
        self._log = directory / "log"
        self._state = directory / "state"
        self._written = 0
        self._tables = {ORDERS.table, AUDIT.table}
        self._altering: dict[Lsn, tuple[Part, ...]] = {}
        self.place: SinkPlace[Any] = SinkPlace(
            "under_test", options, pipeline, source_id, source_ids, self._state
        )
        (directory / "vault").mkdir(exist_ok=True)
        self._vault = vault.Vault(directory / "vault")
        self.sink: Sink = self.another()

    def another(self) -> Sink:
        """The driver half as another run has it."""
        return self._kind.build(self.place, _Source())

    def write(self, count: int) -> list[str]:
        """Append transactions to the log; the ids of their documents.

        Transaction n inserts row n, updates it twice and, of a second table, inserts row n; every third
        one deletes the row before.
        """
        ids = []
        for number in range(self._written + 1, self._written + count + 1):
            key = str(number)
            rows = [
                insert(ORDERS, [key, "new"]),
                update(ORDERS, [key, "paid"]),
                insert(AUDIT, [key, "seen"]),
                update(ORDERS, [key, "sent"])
                if number % 3
                else delete(ORDERS, key=[str(number - 1)]),
            ]
            ids += self.write_rows(rows)
        return ids

    def write_rows(self, *transactions: Sequence[bytes]) -> list[str]:
        """Append transactions of these changes to the log; the ids of their documents."""
        ids = []
        for rows in transactions:
            self._written += 1
            lsn = Lsn(START + 0x100 * self._written)
            messages = transaction(lsn, *rows, xid=self._written)
            write_log(self._log, [relation(ORDERS), relation(AUDIT), *messages], START)
            ids += [f"shop:{lsn}:{ordinal}{_suffix(row)}" for ordinal, row in enumerate(rows)]
        return ids

    def add(self, described: Relation, *rows: bytes) -> None:
        """Append a transaction with rows of a table to the log."""
        self._written += 1
        self._tables.add(described.table)
        lsn = Lsn(START + 0x100 * self._written)
        messages = [relation(described), *transaction(lsn, *rows, xid=self._written)]
        write_log(self._log, messages, START)

    def alter(self, *parts: Part) -> Lsn:
        """Deliver what is in the log, and then a transaction in which rows and changes of tables alternate; its end."""
        self.deliver()
        self._written += 1
        lsn = Lsn(START + 0x100 * self._written)
        self._altering[lsn] = parts
        self._tables |= {each[0].table for each in parts if not isinstance(each, Altered)}
        self._commit_altering(lsn, self._position, None)
        return Lsn(lsn + 8)

    def _commit_altering(self, lsn: Lsn, after: Lsn, only: set[TableName] | None) -> None:
        end = Lsn(lsn + 8)
        batch = self._batch(after, end)
        if only is None:
            detached = batch.tables & set(self.sink.tables.detached)
            batch = replace(batch, detached=frozenset(detached))
        slices: dict[int, list[Any]] = {}
        made: list[Rows | ShapeChange] = []
        for number, part in enumerate(self._altering[lsn]):
            # The parts have positions of their own, so that each can be a log of its own.
            at = Lsn(lsn + number)
            if isinstance(part, Altered):
                made.append(part.at(at, end, number))
                continue
            described, rows = part
            log = self._log.with_name(f"altering.{lsn:x}.{number}")
            if not log.exists():
                content = transaction(at, *rows, end_lsn=end)
                write_log(log, [relation(described), *content], START)
            slices[number] = read_log(log, START)
            made.append(Rows(number, frozenset({described.table})))

        def run_job(worker: Any, some: Sequence[Rows]) -> list[Receipt]:
            return self._run_worker(worker, batch, [slices[each.number] for each in some])

        self.sink.commit_shapes(batch, made, run_job, only)

    @property
    def _position(self) -> Lsn:
        stored = self.sink.open()
        assert stored is not None
        return stored.delivered_lsn

    def open(self) -> Lsn:
        """Open the sink as the loop does; where it stands."""
        stored = self.sink.open()
        if stored is None:
            self.sink.begin(IDENTITY, START)
            return START
        assert stored.identity == IDENTITY
        return stored.delivered_lsn

    def deliver(self) -> None:
        """Open the sink, deliver what it lacks, a batch for each transaction; it stays open."""
        position = self.open()
        self.sink.refresh_tables(position)
        for ref in read_log(self._log, position):
            position = self._commit(position, [ref])

    def deliver_at_once(self) -> None:
        """The same as one batch, of three tasks."""
        position = self.open()
        slices = read_log(self._log, position)
        if slices:
            self._commit(position, slices, task_count=3)

    def commit_again(self) -> None:
        """Deliver the whole log from its beginning, as a run does that does not know better."""
        self._commit(START, read_log(self._log, START))

    def copy(self, keys: Sequence[int], lsn: Lsn) -> list[str]:
        """Copy rows of `orders` as of a position, in two ranges, and have them delivered; their ids."""
        self.sink.tables.schedule_copy({ORDERS.table: ORDERS.oid}, self.open())
        rows = [b"%d\tcopied\n" % key for key in keys]
        half = len(rows) // 2
        ranges = rows[:half], rows[half:]
        self.copy_scheduled(ORDERS, ranges, lsn)
        return [
            f"shop:{lsn}:read:1c2d3e4f:{ORDERS.oid}:{number * (1 << 32) + row}"
            for number, some in enumerate(ranges)
            for row in range(len(some))
        ]

    def copy_scheduled(
        self,
        described: Relation,
        ranges: Sequence[Sequence[bytes]],
        lsn: Lsn,
        copy_id: str = "1c2d3e4f",
    ) -> None:
        """Copy rows, as COPY gives them, of a table that waits for it, and have them delivered."""
        position = self.open()
        copying = self._kind.build_copying(self.place)
        copying.open()
        assert copying.claim()
        order, copy = _order(described, len(ranges)), Copy(copy_id, lsn)
        writers, _ = copying.begin(copy, [order])
        for number, rows in enumerate(ranges):
            with vault.using(self._vault):  # as while Spark runs
                writer = pickle.loads(pickle.dumps(writers[described.table]))  # noqa: S301
            into = writer.begin(number)
            into.write(rows)
            into.finish()
        assert copying.finish([order], copy) == {}
        copying.close()
        self.sink.refresh_tables(position)

    def lose_the_state_directory(self) -> None:
        """As after the loss of a disk."""
        if self._state.exists():
            shutil.rmtree(self._state)

    def catch_up(self) -> None:
        """Deliver to tables that have been copied what came since, and let them stream."""
        tables = {name for name, each in self.sink.tables.detached.items() if each.can_catch_up}
        if not tables:
            return
        position = self.sink.tables.detached[min(tables)].delivered_lsn
        end = self._position
        slices = {Lsn(ref.head.end_lsn): ref for ref in read_log(self._log, position)}
        altering = {Lsn(lsn + 8): lsn for lsn in self._altering if lsn > position}
        for end_lsn in sorted({*slices, *altering}):
            if end_lsn > end:
                break
            if end_lsn in altering:
                self._commit_altering(altering[end_lsn], position, tables)
            else:
                ref = slices[end_lsn]
                batch = self._batch(position, end_lsn)
                self.sink.commit_detached(tables, batch, self._run(batch, [[ref]], tables))
            position = end_lsn
            tables = {
                name
                for name, each in self.sink.tables.detached.items()
                if each.can_catch_up and each.delivered_lsn == position
            }
        self.sink.tables.attach(tables)

    def killed_at(self, point: str, passing: int, work: Callable[[], None]) -> bool:
        """Do some work in a process that dies at a fault point; whether it came so far."""
        return was_killed_at(point, passing, work)

    def _commit(self, position: Lsn, slices: Sequence[Any], task_count: int = 1) -> Lsn:
        batch = self._batch(position, slices[-1].head.end_lsn)
        cut = -(-len(slices) // task_count)
        tasks = [slices[begin : begin + cut] for begin in range(0, len(slices), cut)]
        self.sink.commit(batch, self._run(batch, tasks, None))
        return batch.end_lsn

    def _run(self, batch: Batch, tasks: Sequence[Sequence[Any]], only: Any) -> list[Receipt]:
        """The tasks of a batch, the last first, as executors might finish them; their receipts in order, as of a job."""
        return self._run_worker(self.sink.worker(batch, only), batch, tasks)

    def _run_worker(
        self, made: Worker, batch: Batch, tasks: Sequence[Sequence[Any]]
    ) -> list[Receipt]:
        with vault.using(self._vault):  # as while Spark runs
            worker = pickle.loads(pickle.dumps(made))  # noqa: S301
        if isinstance(worker, SharingWorker):
            # Each takes everything, and does its share.
            worker = worker.shared_among(len(tasks))
            tasks = [[ref for slices in tasks for ref in slices]] * len(tasks)
        span = Span(batch.after_lsn, batch.end_lsn)
        receipts = [
            run_task(worker, span, number, [[ref] for ref in slices])
            for number, slices in reversed(list(enumerate(tasks)))
        ]
        # Handed over in the order of the tasks, as a job's are.
        return [pickle.loads(pickle.dumps(receipt)) for receipt in reversed(receipts)]  # noqa: S301

    def _batch(self, after: Lsn, end: Lsn) -> Batch:
        return Batch(1, after, end, 0, frozenset(self._tables))


class _Source:
    """What a sink is told of the source's tables: they are always as they are."""

    def __call__(self, table: TableName, lsn: Lsn) -> TableShape | None:
        """One of those that sinks with tables of their own are given."""
        del lsn
        return next((_shape(each) for each in _TABLES if each.table == table), None)

    def shape(self, table: TableName, lsn: Lsn) -> None:
        """Nobody knows more."""

    def lacks_rows(self, table: TableName) -> bool:
        """Never."""
        del table
        return False

    def name_of(self, oid: int, lsn: Lsn) -> TableName | None:
        """As ever."""
        del lsn
        return next((each.table for each in _TABLES if each.oid == oid), None)

    def schemas(
        self, lsn: Lsn, known: Collection[TableName], only: Collection[str] | None = None
    ) -> dict[str, WholeSchema]:
        """Nobody has looked."""
        del lsn, known, only
        return {}


_TABLES = (ORDERS, AUDIT, LOOSE)


def _suffix(row: bytes) -> str:
    """What the id of a change ends with: a TRUNCATE may be of several tables."""
    return f":truncate:{ORDERS.oid}" if row.startswith(b"T") else ""


def table_of(place: int) -> str:
    """The table of a change, by its place among all that `Scene.write` has written."""
    return "audit" if place % 4 == 2 else "orders"


def rows_left(count: int) -> dict[tuple[str, int], int]:
    """What is there after so many changes of `Scene.write`: by table and id, the place of the row's last change."""
    last: dict[tuple[str, int], int] = {}
    for place in range(count):
        number, step = place // 4 + 1, place % 4
        if step == 3 and not number % 3:
            last.pop(("orders", number - 1), None)
        else:
            last[table_of(place), number] = place
    return last


def written_rows(count: int, table: str) -> dict[int, str]:
    """What a table has then: the notes of its ids."""
    notes = ("new", "paid", "seen", "sent")
    return {
        key: notes[place % 4] for (name, key), place in rows_left(count).items() if name == table
    }


def _shape(relation: Relation) -> TableShape:
    types = {TYPE_OIDS["int8"]: "bigint", TYPE_OIDS["text"]: "text"}
    columns = tuple(
        ColumnShape(
            id=number,
            name=column.name,
            type=types[column.type_oid],
            type_id=column.type_oid,
            type_kind="b",
            not_null=column.in_identity and relation.replica_identity != "f",
        )
        for number, column in enumerate(relation.columns, 1)
    )
    key = ConstraintShape(
        id=relation.oid + 1000,
        name=f"{relation.table.name}_pkey",
        kind="p",
        definition="PRIMARY KEY (id)",
        columns=(1,),
        used=(1,),
    )
    return TableShape(
        id=relation.oid,
        schema_name=relation.table.schema,
        name=relation.table.name,
        replica_identity=relation.replica_identity,
        columns=columns,
        constraints=() if relation.replica_identity == "f" else (key,),
    )


def _order(described: Relation, range_count: int) -> CopyOrder:
    shape = _shape(described)
    return CopyOrder(described.table, shape, structure_of(shape), range_count, as_text=True)
