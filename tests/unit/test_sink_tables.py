"""The life of a table at a sink, over a store that is a dictionary: what is known after each step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.lsn import Lsn
from penstock.sinks.tables import DetachedTable, SinkTables, Standing, TableState
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

A, B, C = (TableName("public", name) for name in "abc")
HERE, LATER = Lsn(100), Lsn(200)


class DictStore:
    """Keeps how tables stand in a dictionary; counts how often it was read."""

    def __init__(self) -> None:
        self.tables: dict[TableName, DetachedTable | None] = {}  # None: it streams
        self.asked: dict[TableName, int] = {}
        self.notes: list[tuple[TableName, str]] = []
        self.has_news = True
        self.refuses_to_attach: set[TableName] = set()
        self.read_count = 0

    def read(self) -> Standing:
        self.read_count += 1
        detached = {name: each for name, each in self.tables.items() if each is not None}
        return Standing(self.tables.keys() - detached.keys(), detached)

    def poll(self) -> bool:
        return self.has_news

    def schedule(self, tables: Mapping[TableName, int], lsn: Lsn, *, is_new: bool) -> None:
        for table, oid in tables.items():
            self.tables[table] = DetachedTable(
                TableState.PENDING, lsn, needs_copy=True, oid=oid if is_new else oid or 7
            )

    def retry(self, tables: Collection[TableName], lsn: Lsn) -> None:
        self.schedule(dict.fromkeys(tables, 9), lsn, is_new=True)

    def rename(self, table: TableName, name: TableName, lsn: Lsn) -> None:
        del self.tables[table]
        self.schedule({name: 1}, lsn, is_new=True)

    def remove(self, tables: Collection[TableName]) -> None:
        for table in tables:
            self.tables[table] = DetachedTable(TableState.REMOVED, Lsn(0))

    def attach(self, tables: Collection[TableName]) -> Collection[TableName]:
        attached = [table for table in tables if table not in self.refuses_to_attach]
        self.tables |= dict.fromkeys(attached)
        return attached

    def note(self, table: TableName, text: str) -> None:
        self.notes.append((table, text))

    def requested(self) -> Mapping[TableName, int]:
        return dict(self.asked)

    def answered(self) -> None:
        self.asked.clear()

    def due_again(self) -> Collection[TableName]:
        return [
            name
            for name, each in self.tables.items()
            if each is not None and each.state == TableState.FAILED and each.needs_copy
        ]


@pytest.fixture
def store() -> DictStore:
    return DictStore()


@pytest.fixture
def tables(store: DictStore) -> SinkTables:
    return SinkTables(store)


def test_table_goes_from_its_copy_to_the_stream(store: DictStore, tables: SinkTables):
    tables.schedule_copy({A: 1}, HERE)
    assert tables.detached[A] == DetachedTable(TableState.PENDING, HERE, needs_copy=True, oid=1)
    assert tables.streaming == set()

    store.tables[A] = DetachedTable(TableState.CATCHING_UP, HERE, oid=1)  # the copier is done
    tables.refresh(HERE)
    tables.move([A], LATER)
    assert tables.detached[A].delivered_lsn == LATER
    tables.attach([A])

    assert (tables.streaming, tables.detached) == ({A}, {})


def test_table_that_has_stopped_at_its_last_row_does_not_stream(
    store: DictStore, tables: SinkTables
):
    store.tables = {A: DetachedTable(TableState.CATCHING_UP, HERE), B: None}
    store.tables[C] = replace(store.tables[A], state=TableState.FAILED)
    store.refuses_to_attach = {C}
    tables.read()

    tables.attach([A, C])

    assert tables.streaming == {A, B}
    assert set(tables.detached) == {C}


def test_what_is_asked_for_and_what_is_due_begins_again_once(store: DictStore, tables: SinkTables):
    failed = DetachedTable(TableState.FAILED, HERE, "no room", needs_copy=True, oid=3)
    store.tables = {A: None, B: failed, C: failed}
    store.asked = {A: 1, B: 2}

    tables.refresh(LATER)

    assert {name: each.oid for name, each in tables.detached.items()} == {A: 1, B: 2, C: 9}
    assert {each.state for each in tables.detached.values()} == {TableState.PENDING}
    assert store.asked == {}
    tables.refresh(LATER)
    assert {name: each.oid for name, each in tables.detached.items()} == {A: 1, B: 2, C: 9}


def test_nothing_is_read_while_nothing_is_new(store: DictStore, tables: SinkTables):
    tables.refresh(HERE)
    before, store.has_news = store.read_count, False
    store.asked = {A: 1}

    tables.refresh(HERE)

    assert store.read_count == before
    assert tables.detached == {}


def test_table_that_stops_is_reported_once_for_each_reason(
    store: DictStore, tables: SinkTables, caplog: pytest.LogCaptureFixture
):
    store.tables = {A: None, B: None}
    tables.read()

    for error in ("no room", "no room", "no table"):
        tables.stop({A: DetachedTable(TableState.FAILED, HERE, error)})

    assert (tables.streaming, set(tables.detached)) == ({B}, {A})
    assert [record.getMessage() for record in caplog.records] == [
        "public.a stops, the other tables go on: no room",
        "public.a stops, the other tables go on: no table",
    ]


def test_renamed_and_removed_tables_are_known_as_they_are_stored(
    store: DictStore, tables: SinkTables
):
    tables.schedule_copy({A: 1, C: 2}, HERE)

    tables.rename(A, B, LATER)
    tables.remove([C])
    tables.note(B, "partition p was dropped")

    assert set(tables.detached) == {B, C}
    assert tables.detached[B].delivered_lsn == LATER
    assert tables.detached[C].state == TableState.REMOVED
    assert store.notes == [(B, "partition p was dropped")]
