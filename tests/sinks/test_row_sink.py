"""A row sink, written against public names alone: rows of tables in a SQLite database. It keeps the contract."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from dataclasses import replace
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pytest

from fix_copies import copy
from fix_event_sinks import open_sink, place_of
from fix_rules import chain, shape
from penstock.changes import rowrecords
from penstock.changes.copyrows import parse_rows
from penstock.changes.envelope import Origin
from penstock.errors import DestinationRefuses, SchemaChangeRefused
from penstock.lsn import Lsn
from penstock.modifiers.copies import relation_of
from penstock.modifiers.inject import Injection, InjectOptions
from penstock.modifiers.modifier import modify
from penstock.options import OnRefused
from penstock.schema.shape import ColumnShape, ConstraintShape, TableShape
from penstock.sink import (
    DocumentsRefused,
    LocalPath,
    RowChanges,
    RowKind,
    RowSink,
    SecondInstance,
    SinkError,
    SinkOptions,
    TableAltered,
    TableEmptied,
    TableName,
    Unfit,
)
from penstock.sinks.chosen import ChosenTables
from penstock.sinks.documents.ddl import schema_documents
from penstock.sinks.documents.driver import DocumentDriver
from penstock.sinks.documents.format import CopiedAt
from penstock.sinks.documents.parked import Holds
from penstock.sinks.documents.parts import value_bytes
from penstock.sinks.documents.position import KeptTable
from penstock.sinks.documents.routed import RoutedSink
from penstock.sinks.documents.tasks import Outcome
from penstock.sinks.documents.workspace import copying_of
from penstock.sinks.registry import GROUP, sink_kinds
from penstock.sinks.rows.format import RowFormat
from penstock.sinks.tables import TableState
from penstock.table import Route, Routes, TableRule
from penstock.testing import (
    UNCHANGED,
    RowSinkContract,
    changes,
    delete,
    insert,
    relation,
    table,
    transaction,
    truncate,
    update,
)
from penstock.testing.scene import (
    AUDIT,
    ORDERS,
    PURCHASES,
    TRIPS,
    created,
    dropped,
    filled_trips,
    renamed,
    retyped,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from penstock.sink import NetBatch, SinkPlace, TableChange


class RowsOptions(SinkOptions):
    kind: Literal["sqlite_rows"] = "sqlite_rows"
    path: LocalPath


_STATE = """
CREATE TABLE IF NOT EXISTS penstock_state (
    pipeline TEXT, source TEXT, state TEXT NOT NULL, PRIMARY KEY (pipeline, source))
"""


class RowsInSqlite(RowSink):
    """Tables under their own names, in one database; SQLite gives columns no types."""

    passes_with_time = (sqlite3.OperationalError,)

    def __init__(self, path: Path, owner: tuple[str, str]) -> None:
        self._path = path
        self._owner = (
            owner  # pipeline and source: others may share the database, each with its own tables
        )
        self._database: sqlite3.Connection | None = None
        self._lock: int | None = None

    def open(self) -> str | None:
        self.close()
        lock = ".".join((str(self._path), *self._owner, "lock"))
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SecondInstance("another delivers", str(self._path), "stop it") from None
        self._database = sqlite3.connect(self._path, isolation_level=None)
        self._database.execute(_STATE)
        found = "SELECT state FROM penstock_state WHERE pipeline = ? AND source = ?"
        row = self._database.execute(found, self._owner).fetchone()
        return row[0] if row else None

    def apply(self, changes: Iterator[TableChange], state: str | None) -> None:
        assert self._database is not None
        self._database.execute("BEGIN")
        try:
            for change in changes:
                if isinstance(change, RowChanges):
                    self._apply_rows(change)
                elif isinstance(change, TableAltered):
                    self._alter(change)
                elif change.id is None:  # a copy: it brings its own columns
                    self._database.execute(f'DROP TABLE IF EXISTS "{change.table.name}"')
                elif self._has(change.table):
                    self._database.execute(f'DELETE FROM "{change.table.name}"')
            store = "INSERT OR REPLACE INTO penstock_state VALUES (?, ?, ?)"
            self._database.execute(store, (*self._owner, state))
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    def _has(self, name: TableName) -> bool:
        assert self._database is not None
        found = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        return self._database.execute(found, (name.name,)).fetchone() is not None

    def _alter(self, change: TableAltered) -> None:
        """Follow what concerns columns and names. A table that is not here has nothing to follow."""
        assert self._database is not None
        former, name = change.former.name, change.table.name
        if not self._has(change.former):
            return
        if former != name:
            self._database.execute(f'ALTER TABLE "{former}" RENAME TO "{name}"')
        for each in change.differences:
            match each["op"]:
                case "rename_column":
                    what = f'RENAME COLUMN "{each["before"]}" TO "{each["after"]}"'
                case "add_column":
                    what = f'ADD COLUMN "{each["part"]}"'
                case "drop_column":
                    what = f'DROP COLUMN "{each["part"]}"'
                case "drop_table":
                    self._database.execute(f'DROP TABLE "{name}"')
                    return
                case _:
                    continue
            self._database.execute(f'ALTER TABLE "{name}" {what}')

    def _apply_rows(self, change: RowChanges) -> None:
        assert self._database is not None
        names = change.net.rows.schema.names
        columns = ", ".join(f'"{name}"' for name in names)
        if change.key_columns:
            key = ", ".join(f'"{name}"' for name in change.key_columns)
            columns += f", PRIMARY KEY ({key})"
        self._database.execute(f'CREATE TABLE IF NOT EXISTS "{change.table.name}" ({columns})')
        net = change.net
        # Rows that move may take keys that others of them leave: all are taken away before any is put back.
        moved = {} if net.old_keys is None else self._taken(change.table, net.old_keys.to_pylist())
        refused: dict[str, str] = {}
        for number, (op, row, unchanged, copies) in enumerate(self._rows_of(net)):
            given = {name: value for name, value in row.items() if name not in unchanged}
            key = {name: row[name] for name in change.key_columns}
            try:
                if op in ("delete", "gone"):
                    self._delete(change.table, key or row, copies)
                elif op == "move":
                    self._put(change.table, moved.get(number, {}) | given)
                elif op == "update" and unchanged:
                    self._update(change.table, given, key)
                else:
                    self._put(change.table, given)
            except sqlite3.IntegrityError:
                refused[change.ids[number].as_py()] = "a constraint"
        if refused:
            raise DocumentsRefused(refused)

    def _rows_of(self, net: NetBatch) -> Iterator[tuple[str, dict[str, Any], list[str], int]]:
        yield from zip(
            net.op.to_pylist(),
            net.rows.to_pylist(),
            net.unchanged.to_pylist(),
            net.copies.to_pylist(),
            strict=True,
        )

    def _taken(self, table: TableName, keys: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """The rows of these keys, by place, which are not there any more."""
        assert self._database is not None
        found = {}
        for number, key in enumerate(keys):
            cursor = self._database.execute(
                f'SELECT * FROM "{table.name}" WHERE {_equal(key)}', list(key.values())
            )
            if (row := cursor.fetchone()) is not None:
                names = [each[0] for each in cursor.description]
                found[number] = dict(zip(names, row, strict=True))
        for key in keys:
            self._delete(table, key, 1)
        return found

    def _put(self, table: TableName, row: dict[str, Any]) -> None:
        assert self._database is not None
        names = ", ".join(f'"{name}"' for name in row)
        marks = ", ".join("?" * len(row))
        statement = f'INSERT OR REPLACE INTO "{table.name}" ({names}) VALUES ({marks})'
        self._database.execute(statement, list(row.values()))

    def _update(self, table: TableName, given: dict[str, Any], key: dict[str, Any]) -> None:
        assert self._database is not None
        assigned = ", ".join(f'"{name}" = ?' for name in given)
        statement = f'UPDATE "{table.name}" SET {assigned} WHERE {_equal(key)}'
        self._database.execute(statement, [*given.values(), *key.values()])

    def _delete(self, table: TableName, known: dict[str, Any], copies: int) -> None:
        assert self._database is not None
        some = f'SELECT rowid FROM "{table.name}" WHERE {_equal(known)} LIMIT {copies}'
        statement = f'DELETE FROM "{table.name}" WHERE rowid IN ({some})'
        self._database.execute(statement, list(known.values()))

    def forget(self) -> list[str]:
        if not self._path.exists():
            return []
        self.open()
        assert self._database is not None
        forget = "DELETE FROM penstock_state WHERE pipeline = ? AND source = ?"
        found = self._database.execute(forget, self._owner).rowcount
        self.close()
        return [f"position in {self._path}"] if found else []

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _equal(row: dict[str, Any]) -> str:
    return " AND ".join(f'"{name}" IS ?' for name in row)


class RowsKind(RowKind[RowsOptions]):
    name = "sqlite_rows"
    options = RowsOptions

    def sink(self, place: SinkPlace[RowsOptions]) -> RowsInSqlite:
        return RowsInSqlite(place.options.path, (place.pipeline, place.source_id))


class TestRowsInSqlite(RowSinkContract):
    def kind(self) -> RowsKind:
        return RowsKind()

    def options(self, directory: Path) -> RowsOptions:
        return RowsOptions(path=directory / "rows.db")

    def rows(self, options: RowsOptions, table: str) -> list[tuple[int, str]]:
        with sqlite3.connect(options.path) as database:
            found = "SELECT 1 FROM sqlite_master WHERE name = ?"
            if database.execute(found, (table,)).fetchone() is None:
                return []
            return database.execute(f"SELECT id, note FROM {table}").fetchall()

    def refuse(self, options: RowsOptions, key: int) -> bool:
        with sqlite3.connect(options.path) as database:
            database.execute(
                f"CREATE TABLE orders (id PRIMARY KEY CONSTRAINT unwanted CHECK (id <> {key}), note)"
            )
        return True

    def accept(self, options: RowsOptions) -> None:
        with sqlite3.connect(options.path) as database:
            database.executescript(
                "CREATE TABLE free (id PRIMARY KEY, note); INSERT INTO free SELECT * FROM orders;"
                "DROP TABLE orders; ALTER TABLE free RENAME TO orders"
            )


class _Broken(RowsInSqlite):
    """Ignores something of what it is given."""

    ignored = ""

    def apply(self, changes: Iterator[TableChange], state: str | None) -> None:
        super().apply((each for each in changes if not self._ignores(each)), state)

    def _ignores(self, change: TableChange) -> bool:
        if isinstance(change, TableEmptied):
            return self.ignored == "truncate" and change.id is not None
        return self.ignored == "altered" and isinstance(change, TableAltered)

    def _rows_of(self, net: NetBatch) -> Iterator[tuple[str, dict[str, Any], list[str], int]]:
        for op, row, unchanged, copies in super()._rows_of(net):
            if op != self.ignored:
                yield (
                    op,
                    row,
                    [] if self.ignored == "unchanged" else unchanged,
                    9 if self.ignored == "copies" else copies,
                )

    def open(self) -> str | None:
        found = super().open()
        return None if self.ignored == "state" else found


class _BrokenKind(RowsKind):
    def __init__(self, ignored: str) -> None:
        self._ignored = ignored

    def sink(self, place: SinkPlace[RowsOptions]) -> RowsInSqlite:
        owner = ("a", "a") if self._ignored == "owner" else (place.pipeline, place.source_id)
        made = _Broken(place.options.path, owner)
        made.ignored = self._ignored
        return made


@pytest.mark.parametrize(
    ("ignored", "scene"),
    [
        ("truncate", "test_truncate_takes_what_was_before_it"),
        ("move", "test_row_that_gets_another_key_keeps_its_values"),
        ("replace", "test_row_that_takes_the_place_of_another_is_that_row"),
        ("unchanged", "test_value_that_is_not_sent_stays"),
        ("copies", "test_rows_of_a_table_without_a_key_are_counted"),
        ("altered", "test_columns_follow_changes_of_their_table"),
        ("altered", "test_rows_follow_their_table_to_another_name"),
        ("altered", "test_table_of_which_something_is_parked_stops_before_it_is_renamed"),
        ("altered", "test_table_that_waits_for_a_copy_is_renamed_as_well"),
        ("state", "test_kill_once_rows_are_there_doubles_nothing"),
        ("state", "test_state_is_where_the_rows_are"),
        ("owner", "test_two_pipelines_at_one_destination_leave_each_other_alone"),
    ],
)
def test_sink_that_ignores_what_it_is_given_is_found_out(
    ignored: str, scene: str, tmp_path: Path
) -> None:
    suite = TestRowsInSqlite()
    suite.kind = lambda: _BrokenKind(ignored)  # type: ignore[method-assign]

    with pytest.raises((AssertionError, SinkError)):
        getattr(suite, scene)(tmp_path)


# --- on its way ------------------------------------------------------------------------------


def test_refusal_in_the_transaction_that_renames_its_table_stops_the_table(tmp_path: Path) -> None:
    suite = TestRowsInSqlite()
    scene, options = suite._scene(tmp_path, OnRefused.PARK)
    suite.refuse(options, 2)
    scene.write(1)
    scene.alter(
        (ORDERS, [insert(ORDERS, ["2", "b"])]),
        renamed(ORDERS, PURCHASES),
        (PURCHASES, [update(PURCHASES, ["2", "late"])]),
    )
    assert suite.kind().parked(scene.place) == []
    [(name, stopped)] = scene.sink.tables.detached.items()
    assert (str(name), "not parked" in stopped.error) == ("public.orders", True)
    assert suite.rows(options, "purchases") == []

    suite.accept(options)
    scene.catch_up()
    scene.sink.close()

    assert sorted(suite.rows(options, "purchases")) == [(1, "sent"), (2, "late")]
    assert suite.rows(options, "orders") == []


def test_table_that_catches_up_is_copied_again_where_its_rows_are_left_behind(
    tmp_path: Path,
) -> None:
    suite = TestRowsInSqlite()
    scene, options = suite._scene(tmp_path)
    suite.refuse(options, 2)
    scene.write(2)
    end = scene.alter(retyped(ORDERS, "note"), (ORDERS, [insert(ORDERS, ["7", "new"])]))
    scene.write(1)
    scene.deliver()
    [(name, stopped)] = scene.sink.tables.detached.items()
    assert (name, stopped.can_catch_up) == (ORDERS.table, True)

    suite.accept(options)
    scene.catch_up()
    [(name, waits)] = scene.sink.tables.detached.items()
    assert (name, waits.needs_copy, waits.delivered_lsn) == (ORDERS.table, True, end)
    scene.copy_scheduled(ORDERS, [[b"7\tcopied\n"]], end)
    scene.catch_up()
    scene.sink.close()

    assert sorted(suite.rows(options, "orders")) == [(4, "sent"), (7, "copied")]
    assert scene.sink.tables.detached == {}


@pytest.mark.parametrize("has_rows", [True, False])
def test_table_that_came_with_the_transaction_is_copied_only_where_it_had_rows(
    has_rows: bool, tmp_path: Path
) -> None:
    scene, _ = TestRowsInSqlite()._scene(tmp_path)
    scene.deliver()
    rows = [(TRIPS, [insert(TRIPS, ["1", "a"])])] if has_rows else []

    scene.alter(created(TRIPS), *rows, filled_trips())
    scene.sink.close()

    assert set(scene.sink.tables.detached) == ({TRIPS.table} if has_rows else set())


def test_table_that_nobody_copies_is_named_where_its_rows_are_left_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scene, _ = TestRowsInSqlite()._scene(tmp_path)

    scene.alter(filled_trips())
    scene.sink.close()

    assert "public.trips: its rows hold what the source has not sent" in caplog.text


def test_table_that_is_dropped_before_its_copy_is_gone(tmp_path: Path) -> None:
    suite = TestRowsInSqlite()
    scene, options = suite._scene(tmp_path)
    scene.write(2)
    scene.deliver()
    scene.sink.tables.schedule_copy({ORDERS.table: ORDERS.oid}, scene.open())

    scene.alter(dropped(ORDERS))
    scene.sink.close()

    assert suite.rows(options, "orders") == []
    assert sorted(suite.rows(options, "audit")) == [(1, "seen"), (2, "seen")]


BETWEEN = replace(ORDERS, table=TableName("public", "between"))
ORDERS_OF_AUDIT = replace(AUDIT, table=ORDERS.table)
AUDIT_OF_ORDERS = replace(ORDERS, table=AUDIT.table)
EXCHANGED = (
    renamed(ORDERS, BETWEEN),
    renamed(AUDIT, ORDERS_OF_AUDIT),
    renamed(BETWEEN, AUDIT_OF_ORDERS),
    (AUDIT_OF_ORDERS, [insert(AUDIT_OF_ORDERS, ["8", "an order"])]),
    (ORDERS_OF_AUDIT, [insert(ORDERS_OF_AUDIT, ["9", "an audit"])]),
)
NEW_ORDERS = replace(ORDERS, oid=16500)
NEW_PURCHASES = replace(PURCHASES, oid=16500)
OLD_ORDERS = replace(ORDERS, table=TableName("public", "orders_old"))


def _keep(scene: Any, tables: Mapping[TableName, KeptTable]) -> None:
    """Have the sink know these tables."""
    scene.open()
    sink = scene.sink
    sink._keeper.record(sink._keeper.stored.with_tables(tables))
    sink.tables.read()


def _copies_first(scene: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    known = scene._batch
    monkeypatch.setattr(
        scene, "_batch", lambda after, end: replace(known(after, end), copies_first=True)
    )


STREAMS = KeptTable(TableState.STREAMING)


@pytest.mark.parametrize("on_refused", OnRefused)
@pytest.mark.parametrize("are_known", [True, False])
@pytest.mark.parametrize(
    "parts",
    [
        # What has come with the transaction gets another name, beside nothing or in the place of another one.
        [
            created(NEW_ORDERS),
            (NEW_ORDERS, [insert(NEW_ORDERS, ["2", "new"])]),
            renamed(NEW_ORDERS, NEW_PURCHASES),
        ],
        [
            dropped(ORDERS),
            created(NEW_ORDERS),
            (NEW_ORDERS, [insert(NEW_ORDERS, ["2", "new"])]),
            renamed(NEW_ORDERS, NEW_PURCHASES),
        ],
        [
            dropped(ORDERS),
            created(NEW_ORDERS),
            (NEW_ORDERS, [insert(NEW_ORDERS, ["2", "new"])]),
        ],
        [
            renamed(ORDERS, OLD_ORDERS),
            created(NEW_ORDERS),
            (NEW_ORDERS, [insert(NEW_ORDERS, ["2", "new"])]),
        ],
        # Tables exchange names, or hand them on.
        [(ORDERS, [insert(ORDERS, ["2", "new"])]), *EXCHANGED],
        [
            (ORDERS, [insert(ORDERS, ["2", "new"])]),
            renamed(ORDERS, OLD_ORDERS),
            renamed(AUDIT, ORDERS_OF_AUDIT),
        ],
    ],
    ids=["comes", "comes_instead", "comes_anew", "comes_after", "exchange", "hand_on"],
)
def test_refusal_where_names_are_of_several_tables_moves_nothing(
    parts: list[Any], are_known: bool, on_refused: OnRefused, tmp_path: Path
) -> None:
    suite = TestRowsInSqlite()
    scene, options = suite._scene(tmp_path, on_refused)
    position = scene.open()
    if are_known:
        there = {AUDIT.table} if parts[0] == created(NEW_ORDERS) else {AUDIT.table, ORDERS.table}
        _keep(scene, dict.fromkeys(there, STREAMS))
    tables = scene.sink.tables.streaming
    refusing = _refusing(scene.sink._sink)

    with pytest.raises(SchemaChangeRefused, match="one of them cannot go on"):
        scene.alter(*parts)

    assert refusing.calls
    assert scene.open() == position
    assert (scene.sink.tables.streaming, scene.sink.tables.detached) == (tables, {})
    assert suite.kind().parked(scene.place) == []
    refusing.undo()
    [lsn] = scene._altering
    scene._commit_altering(lsn, position, None)
    scene.sink.close()
    with sqlite3.connect(options.path) as database:
        rows = [
            row
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if name != "penstock_state"
            for row in database.execute(f'SELECT id, note FROM "{name}"').fetchall()
        ]
    assert rows.count((2, "new")) == 1


def test_tables_that_exchange_names_wait_for_what_is_parked(tmp_path: Path) -> None:
    suite = TestRowsInSqlite()
    scene, options = suite._scene(tmp_path, OnRefused.PARK)
    suite.refuse(options, 2)
    scene.write(2)
    with pytest.raises(SchemaChangeRefused, match="rows of it are parked"):
        scene.alter(*EXCHANGED)
    [lsn] = scene._altering
    position = scene.open()
    assert sorted(suite.rows(options, "audit")) == [(1, "seen"), (2, "seen")]

    suite.accept(options)
    suite._retry(scene)
    scene._commit_altering(lsn, position, None)
    scene.sink.close()

    assert scene.sink.tables.detached == {}
    assert sorted(suite.rows(options, "orders")) == [(1, "seen"), (2, "seen"), (9, "an audit")]
    assert sorted(suite.rows(options, "audit")) == [(1, "sent"), (2, "sent"), (8, "an order")]


@pytest.mark.parametrize("other", [TableState.STREAMING, TableState.FAILED])
@pytest.mark.parametrize("state", [TableState.FAILED, TableState.CATCHING_UP])
def test_name_of_a_table_that_has_yet_to_come_so_far_is_not_given_to_another(
    state: TableState, other: TableState, tmp_path: Path
) -> None:
    suite = TestRowsInSqlite()
    scene, options = suite._scene(tmp_path)
    scene.write(1)
    scene.deliver()
    position = scene.open()
    behind = KeptTable(state, position, error="PEN-516 no" if state == TableState.FAILED else "")
    beside = STREAMS if other == TableState.STREAMING else KeptTable(other, position, error="no")
    _keep(scene, {ORDERS.table: behind, AUDIT.table: beside})
    between = [renamed(ORDERS, OLD_ORDERS), renamed(AUDIT, ORDERS_OF_AUDIT)]

    with pytest.raises(SinkError, match="yet to come so far"):
        scene.alter(*between)

    assert scene.open() == position
    assert scene.sink._keeper.stored.tables == {ORDERS.table: behind, AUDIT.table: beside}
    [lsn] = scene._altering
    _keep(scene, {ORDERS.table: STREAMS, AUDIT.table: STREAMS})
    scene._commit_altering(lsn, position, None)
    assert sorted(suite.rows(options, "orders_old")) == [(1, "sent")]
    assert sorted(suite.rows(options, "orders")) == [(1, "seen")]
    scene.sink.close()


@pytest.mark.parametrize("kept", [{}, {AUDIT.table: KeptTable(TableState.REMOVED)}])
def test_table_that_the_sink_does_not_have_is_not_made_to_stop(
    kept: dict[TableName, KeptTable], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = TestRowsInSqlite()
    scene, options = suite._scene(tmp_path, OnRefused.PARK)
    suite.refuse(options, 2)
    scene.write(2)
    scene.deliver()
    _copies_first(scene, monkeypatch)
    _keep(scene, {ORDERS.table: STREAMS, **kept})
    position = scene.open()

    with pytest.raises(SchemaChangeRefused, match="rows of it are parked"):
        scene.alter(renamed(ORDERS, OLD_ORDERS), renamed(AUDIT, ORDERS_OF_AUDIT))

    assert scene.open() == position
    tables = scene.sink._keeper.stored.tables
    assert tables == {ORDERS.table: STREAMS, **kept}
    scene.sink.close()


def test_table_that_is_followed_no_more_stays_so_where_another_stops_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = TestRowsInSqlite()
    scene, options = suite._scene(tmp_path, OnRefused.PARK)
    suite.refuse(options, 2)
    scene.write(2)
    scene.deliver()
    _copies_first(scene, monkeypatch)
    removed = KeptTable(TableState.REMOVED)
    _keep(scene, {ORDERS.table: STREAMS, PURCHASES.table: removed})

    scene.alter(renamed(ORDERS, PURCHASES))

    tables = scene.sink._keeper.stored.tables
    assert tables[PURCHASES.table] == removed
    assert tables[ORDERS.table].state == TableState.FAILED
    scene.sink.close()


def test_parked_rows_of_a_table_that_nobody_knows_revive_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = TestRowsInSqlite()
    scene, options = suite._scene(tmp_path, OnRefused.PARK)
    suite.refuse(options, 2)
    scene.write(2)
    scene.deliver()
    _copies_first(scene, monkeypatch)
    _keep(scene, {AUDIT.table: STREAMS})

    scene.alter(dropped(ORDERS))

    assert set(scene.sink._keeper.stored.tables) == {AUDIT.table}
    scene.sink.close()


@pytest.mark.parametrize("parts", [[renamed(ORDERS, PURCHASES)], [dropped(ORDERS)]])
def test_table_that_waits_for_its_copy_is_followed_although_something_of_it_is_parked(
    parts: list[Any], tmp_path: Path
) -> None:
    suite = TestRowsInSqlite()
    scene, options = suite._scene(tmp_path, OnRefused.PARK)
    suite.refuse(options, 2)
    scene.write(2)
    scene.deliver()
    assert suite.kind().parked(scene.place)
    scene.sink.tables.schedule_copy({ORDERS.table: ORDERS.oid}, scene.open())

    scene.alter(*parts)

    assert suite.kind().parked(scene.place) == []
    assert suite.rows(options, "orders") == []
    assert ORDERS.table not in scene.sink.tables.detached
    scene.sink.close()


class _refusing:  # noqa: N801 - reads as what it does
    """Have a sink refuse row 2 of any table."""

    def __init__(self, sink: Any) -> None:
        self.calls = 0
        self._sink = sink
        self._apply = sink.apply
        sink.apply = self._refuse

    def _refuse(self, changes: Iterator[TableChange], state: str | None) -> None:
        given = list(changes)
        for change in given:
            if isinstance(change, RowChanges):
                ids = [
                    change.ids[place].as_py()
                    for place, row in enumerate(change.net.rows.to_pylist())
                    if row.get("id") == 2
                ]
                if ids:
                    self.calls += 1
                    raise DocumentsRefused(dict.fromkeys(ids, "no"))
        self._apply(iter(given), state)

    def undo(self) -> None:
        self._sink.apply = self._apply


def test_what_a_truncate_has_done_away_with_is_not_parked_when_it_comes_by_again(
    place: SinkPlace[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = DocumentDriver(RowsKind(), place)
    open_sink(sink)
    left = {"schema": "public", "table": "orders", "commit_lsn": 1, "ordinal": 0, "id": "gone"}
    receipt = SimpleNamespace(content=Outcome([left], {"gone": "no"}, left=["emptied"]))
    monkeypatch.setattr(
        sink._sink, "emptied", lambda left: {ORDERS.table: (2, 0)} if left else {}, raising=False
    )
    parked: list[Any] = []
    monkeypatch.setattr(sink._parked, "append", lambda rows, reasons: parked.extend(rows))

    for _ in range(2):  # with the rows of a transaction that changes tables, and at its end
        sink._take_outcomes([receipt])

    assert parked == []
    sink.close()


def test_routed_sink_is_told_of_tables_by_the_names_that_they_have_there() -> None:
    sink = _Noting()
    routes = Routes((Route(TableRule("public", "t"), TableName("shop", "t")),))
    one = RoutedSink(sink, routes)
    change = renamed(ITEMS, replace(ITEMS, table=TableName("public", "t")))
    part = change.at(Lsn(0x1000), Lsn(0x1008), 0)
    [document] = RowFormat().shape_changes(schema_documents(part, "shop", ()))

    one.end_copies({TableName("public", "t"): "1c2d3e4f"})
    one.deliver(iter([document]), "state")

    [altered] = sink.given
    assert isinstance(altered, TableAltered)
    assert (altered.table, altered.former) == (TableName("shop", "t"), ITEMS.table)
    assert altered.differences[0]["after"] == "shop.t"
    assert sink.ended == {TableName("shop", "t"): "1c2d3e4f"}


# --- what a row sink is given ----------------------------------------------------------------

ITEMS = table(16400, "items", {"id": "int8", "on": "date", "note": "text"}, key=["id"])
ORIGIN = Origin("shop", "shop")


class _Noting(RowSink):
    """Notes what it is given."""

    def __init__(self) -> None:
        self.given: list[TableChange] = []
        self.ended: Mapping[TableName, str] = {}

    def open(self) -> None: ...

    def end_copies(self, copies: Mapping[TableName, str]) -> None:
        self.ended = copies

    def apply(self, changes: Iterator[TableChange], state: str | None) -> None:
        self.given += changes


def _records(*rows: bytes, described: Any = ITEMS) -> Any:
    pieces = changes([relation(described), *transaction(0x1000, *rows)])
    return RowFormat().documents(pieces, ORIGIN)


def _given(*batches: Any, sink: _Noting | None = None) -> list[TableChange]:
    sink = sink or _Noting()
    sink.deliver(iter(batches), "state")
    return sink.given


def test_rows_come_typed_and_reduced_to_their_net_effect() -> None:
    [change] = _given(
        _records(
            insert(ITEMS, ["1", "2026-11-15", "a"]),
            update(ITEMS, ["1", "2026-11-16", "b\n\t"]),
            update(ITEMS, ["2", None, UNCHANGED]),
            delete(ITEMS, key=["3"]),
        )
    )

    assert isinstance(change, RowChanges)
    assert (change.table, change.key_columns) == (ITEMS.table, ("id",))
    assert change.net.op.to_pylist() == ["insert", "update", "delete"]
    assert [str(row["on"]) for row in change.net.rows.to_pylist()] == ["2026-11-16", "None", "None"]
    assert change.net.rows.column("note").to_pylist() == ["b\n\t", None, None]
    assert change.net.unchanged.to_pylist() == [[], ["note"], []]
    assert change.ids.to_pylist() == ["shop:0/1000:0", "shop:0/1000:2", "shop:0/1000:3"]


def test_row_that_leaves_its_key_is_refused_by_the_change_that_moved_it() -> None:
    [change] = _given(
        _records(
            insert(ITEMS, ["8", None, "x"]),
            update(ITEMS, ["2", None, "y"], key=["1"]),
        )
    )

    assert isinstance(change, RowChanges)
    by_key = dict(zip(change.net.keys.to_pylist(), change.ids.to_pylist(), strict=True))
    assert by_key == {
        '{"id":8}': "shop:0/1000:0",
        '{"id":1}': "shop:0/1000:1",
        '{"id":2}': "shop:0/1000:1",
    }


def test_what_comes_behind_a_parked_move_waits_for_both_keys() -> None:
    [moved] = _records(update(ITEMS, ["2", None, UNCHANGED], key=["1"])).to_pylist()
    others = _records(*(update(ITEMS, [key, None, "z"]) for key in ("1", "2", "3"))).to_pylist()
    holds = Holds()

    holds.add(moved)

    assert [holds.waits(each) for each in others] == [True, True, False]


def test_row_that_moves_without_all_its_values_has_its_old_key() -> None:
    [change] = _given(_records(update(ITEMS, ["2", None, UNCHANGED], key=["1"])))

    assert isinstance(change, RowChanges)
    assert change.net.op.to_pylist() == ["move"]
    assert change.net.old_keys is not None
    assert change.net.old_keys.to_pylist() == [{"id": 1}]


@pytest.fixture
def implied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """What becomes of a table by the rules that a row sink has without a word in the file."""
    entry = EntryPoint(RowsKind.name, f"{__name__}:RowsKind", GROUP)
    monkeypatch.setattr("penstock.config.KINDS", sink_kinds(lambda: [entry]))

    def implied(described: TableShape, *rules: dict[str, Any]) -> Any:
        sinks = {"rows": {"kind": RowsKind.name, "path": str(tmp_path / "rows.db")}}
        return chain(*rules, sink="rows", sinks=sinks).bound({described.table: described})

    return implied


@pytest.mark.parametrize("rules", [[], [{"inject": {}}]], ids=["implied", "injected"])
def test_rows_that_nothing_identifies_are_given_under_the_rules_of_a_row_sink(
    implied: Callable[..., Any], rules: list[dict[str, Any]]
) -> None:
    described = shape("t", {"a": "int8", "b": "text"}, key=())
    known = relation_of(described)
    rows = [insert(known, ["1", "x"]), insert(known, ["1", "x"])]
    pieces = modify(implied(described, *rules), changes([relation(known), *transaction(1, *rows)]))
    [piece] = pieces
    at = CopiedAt(0x1000, 0, "1c2d3e4f")

    streamed = RowFormat().documents(pieces, ORIGIN)
    copied = RowFormat().copied(piece.relation, parse_rows(b"1\tx\n1\tx\n", 2), ORIGIN, at)

    assert piece.relation.injected is not None
    for records in (streamed, copied):
        [change] = _given(records)
        assert isinstance(change, RowChanges)
        assert (len(change.net), change.key_columns) == (2, ())


def test_primary_key_identifies_rows_also_with_replica_identity_full(
    implied: Callable[..., Any],
) -> None:
    described = shape("t", {"a": "int8", "b": "text"}, key=("a",), identity="f")
    known = relation_of(described)
    rows = [insert(known, ["1", "x"]), update(known, ["1", "y"], before=["1", "x"])]
    pieces = modify(implied(described), changes([relation(known), *transaction(1, *rows)]))

    [change] = _given(RowFormat().documents(pieces, ORIGIN))

    assert isinstance(change, RowChanges)
    assert change.key_columns == ("a",)
    assert change.net.rows.to_pylist() == [{"a": 1, "b": "y"}]


def test_class_that_does_not_store_the_state_is_no_row_sink() -> None:
    with pytest.raises(TypeError, match="stores the state"):
        type("Forgetful", (RowsInSqlite,), {"stores_state": False})


def test_keys_of_a_run_are_read_once_and_only_where_a_row_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[bytes] = []

    def former_key(record_key: bytes) -> str:
        read.append(record_key)
        return known(record_key)

    known = rowrecords.former_key
    monkeypatch.setattr(rowrecords, "former_key", former_key)
    rows = []
    for number in range(0, 300, 3):
        rows += [
            update(ITEMS, [str(number + 1), None, UNCHANGED], key=[str(number)]),
            insert(ITEMS, [str(number), None, "z"]),
        ]

    given = _given(_records(*rows))
    assert (len(given), read) == (200, [])
    found = [change.ids.to_pylist() for change in given if isinstance(change, RowChanges)]

    assert len(read) == 100  # those that move
    # The first record of a key, be it one that left it.
    assert found == [[f"shop:0/1000:{place - place % 2}"] for place in range(200)]


def test_values_that_their_types_cannot_hold_are_refused_together() -> None:
    other = replace(ITEMS, oid=16409, table=TableName("public", "other"))
    sink = _Noting()
    batches = [
        _records(insert(ITEMS, ["1", "infinity", "a"]), insert(ITEMS, ["2", None, "b"])),
        _records(
            insert(other, ["3", None, "c"]), insert(other, ["4", "-infinity", "d"]), described=other
        ),
    ]

    with pytest.raises(DocumentsRefused) as raised:
        _given(*batches, sink=sink)

    assert sorted(raised.value.reasons) == ["shop:0/1000:0", "shop:0/1000:1"]
    assert sink.given == []


def test_step_of_a_copy_is_measured_with_what_describes_its_rows() -> None:
    records = _records(*(insert(ITEMS, [str(number), None, "a"]) for number in range(10)))
    described = len(relation(ITEMS)) + 1

    held = sum(map(len, records.column("value").to_pylist())) + 10 * described

    assert value_bytes(records) == held + 10
    assert value_bytes(records.slice(5)) == sum(
        len(each) + described + 1 for each in records.column("value").to_pylist()[5:]
    )


def test_rows_of_a_table_without_a_key_are_counted() -> None:
    loose = table(16401, "loose", {"note": "text"}, identity="f")

    [change] = _given(
        _records(
            insert(loose, ["a"]),
            *(delete(loose, before=["b"]) for _ in range(2)),
            update(loose, ["c"], before=["a"]),
            described=loose,
        )
    )

    assert isinstance(change, RowChanges)
    assert change.key_columns == ()
    found = zip(change.net.op.to_pylist(), change.net.copies.to_pylist(), strict=True)
    assert sorted(found) == [("delete", 2), ("insert", 1)]


def test_enum_is_a_dictionary_of_its_labels_where_the_catalog_is_known() -> None:
    moods = table(16402, "moods", {"id": "int8", "mood": 90000}, key=["id"])
    columns = (
        ColumnShape(id=1, name="id", type="bigint", type_id=20, type_kind="b", not_null=True),
        ColumnShape(id=2, name="mood", type="mood", type_id=90000, type_kind="e", not_null=False),
    )
    key = ConstraintShape(
        id=1, kind="p", name="moods_pkey", columns=(1,), used=(1,), definition="PRIMARY KEY (id)"
    )
    shape = TableShape(
        id=16402, schema_name="public", name="moods", columns=columns, constraints=(key,)
    )
    known = Injection(InjectOptions()).with_shape(shape)
    pieces = changes([relation(moods), *transaction(0x1000, insert(moods, ["1", "sad"]))])
    at = CopiedAt(0x2000, 0, "1c2d3e4f")

    [[from_log], [copied], [unknown]] = (
        _given(batch)
        for batch in (
            RowFormat().documents([known.apply(each) for each in pieces], ORIGIN),
            RowFormat().copied(
                known.modified_relation(moods), parse_rows(b"2\tok\n", 2), ORIGIN, at
            ),
            RowFormat().documents(pieces, ORIGIN),
        )
    )

    labels = pa.dictionary(pa.int32(), pa.string())
    for change, label in ((from_log, "sad"), (copied, "ok")):
        assert isinstance(change, RowChanges)
        assert change.net.rows.schema.field("mood").type == labels
        assert change.net.rows.column("mood").to_pylist() == [label]
        assert change.key_columns == ("id",)
    assert isinstance(unknown, RowChanges)
    assert unknown.net.rows.schema.field("mood").type == pa.string()


def test_truncate_stands_between_what_was_before_and_after_it() -> None:
    first, emptied, last = _given(
        _records(insert(ITEMS, ["1", None, "a"]), truncate(ITEMS), insert(ITEMS, ["2", None, "b"]))
    )

    assert emptied == TableEmptied(ITEMS.table, "shop:0/1000:1:truncate:16400")
    assert isinstance(first, RowChanges)
    assert isinstance(last, RowChanges)
    assert first.net.rows.column("id").to_pylist() == [1]
    assert last.net.rows.column("id").to_pylist() == [2]


def test_columns_that_change_within_a_batch_come_one_after_the_other() -> None:
    wider = table(
        16400, "items", {"id": "int8", "on": "date", "note": "text", "n": "int4"}, key=["id"]
    )
    pieces = changes(
        [
            relation(ITEMS),
            *transaction(0x1000, insert(ITEMS, ["1", None, "a"])),
            relation(wider),
            *transaction(0x2000, insert(wider, ["2", None, "b", "7"])),
        ]
    )

    first, last = _given(RowFormat().documents(pieces, ORIGIN))

    assert isinstance(first, RowChanges)
    assert isinstance(last, RowChanges)
    assert [each.net.rows.num_columns for each in (first, last)] == [3, 4]
    assert last.net.rows.column("n").to_pylist() == [7]


def test_value_that_its_type_cannot_hold_is_refused_unless_it_is_to_be_text() -> None:
    batch = _records(insert(ITEMS, ["1", "infinity", "a"]), insert(ITEMS, ["2", None, "b"]))
    as_text = _Noting()
    as_text.unfit = Unfit.TEXT  # type: ignore[misc]

    with pytest.raises(DocumentsRefused) as raised:
        _given(batch)
    [change] = _given(batch, sink=as_text)

    assert raised.value.reasons == {
        "shop:0/1000:0": "column on has a value that its Arrow type has not"
    }
    assert isinstance(change, RowChanges)
    assert change.net.rows.column("on").to_pylist() == ["infinity", None]


def test_change_of_a_table_comes_with_its_differences() -> None:
    from penstock.changes.documents import document

    value = {
        "id": "shop:0/1000:0:schema:1:public.items",
        "op": "schema",
        "schema": "public",
        "table": "items",
        "commit_lsn": "0/1000",
        "ordinal": 0,
        "difference": [{"kind": "add_column"}],
    }
    [batch] = RowFormat().shape_changes([document(value, 0)])

    assert _given(batch) == [TableAltered(ITEMS.table, value["id"], [{"kind": "add_column"}])]


def test_table_whose_copy_begins_is_emptied_first() -> None:
    sink = _Noting()
    other = replace(ITEMS, table=TableName("public", "other"))

    sink.begin_copies({other.table: "1c2d3e4f"})
    _given(sink=sink)
    _given(sink=sink)

    assert sink.given == [TableEmptied(other.table)]


# --- tables that go to one -------------------------------------------------------------------

OTHER = TableName("public", "other")
TO_ONE = Routes(
    tuple(
        Route(TableRule.parse(str(each)), TableName("x", "all")) for each in (ORDERS.table, OTHER)
    )
)


@pytest.fixture
def place(tmp_path: Path) -> SinkPlace[Any]:
    return place_of("rows", RowsOptions(path=tmp_path / "rows.db"), tmp_path / "state")


def test_tables_that_go_to_one_are_refused_by_check_and_at_the_start(place: SinkPlace[Any]) -> None:
    routed = replace(place, routes=TO_ONE)
    chosen = ChosenTables([ORDERS.table, OTHER, TableName("public", "third")], [], [], {}, ([], []))

    [found] = RowsKind().check({"shop": routed}, {"shop": chosen})
    [refused] = RowsKind().occupied(routed, chosen.followed)

    assert (found.code, found.severity) == ("PEN-517", "error")
    assert "public.orders, public.other would all be x.all" in found.error.what
    assert str(refused.error) == str(found.error)
    assert list(RowsKind().check({"shop": place}, {"shop": chosen})) == []


def test_copy_of_a_table_whose_place_another_one_has_does_not_begin(place: SinkPlace[Any]) -> None:
    routed = replace(place, routes=TO_ONE)
    sink = DocumentDriver(RowsKind(), routed)
    position = open_sink(sink)
    sink.tables.schedule_copy({ORDERS.table: 0, OTHER: 0}, position)
    copying = copying_of(RowsKind(), routed)
    copy(copying, "c", 2)

    sink.refresh_tables(position)

    assert "would all be x.all" in sink.tables.detached[ORDERS.table].error
    assert TestRowsInSqlite().rows(place.options, "all") == []
    sink.close()
    copying.close()


def test_tables_that_were_routed_to_one_since_the_last_run_are_refused(
    place: SinkPlace[Any],
) -> None:
    sink = DocumentDriver(RowsKind(), place)
    open_sink(sink)
    both = dict.fromkeys((ORDERS.table, OTHER), KeptTable(TableState.STREAMING))
    sink._keeper.record(sink._keeper.stored.with_tables(both))
    sink.close()

    with pytest.raises(DestinationRefuses, match=r"would all be x\.all"):
        DocumentDriver(RowsKind(), replace(place, routes=TO_ONE)).open()


# --- several sources -------------------------------------------------------------------------


def test_several_sources_are_refused_unless_their_rows_are_kept_apart(
    place: SinkPlace[Any],
) -> None:
    class Apart(RowsKind):
        keeps_sources_apart = True

    class OfItsOwn(RowsKind):
        def of_source(self, options: RowsOptions, source_id: str) -> RowsOptions:
            return options.model_copy(update={"path": options.path.with_name(source_id)})

    places = {
        each: replace(place, source_id=each, source_ids=("eu", "us")) for each in ("eu", "us")
    }

    [found] = RowsKind().check(places, {})
    with pytest.raises(DestinationRefuses, match="does not keep their rows apart"):
        RowsKind().build(places["us"], None)

    assert (found.code, found.severity) == ("PEN-517", "error")
    for kind in (Apart(), OfItsOwn()):
        assert list(kind.check(places, {})) == []
        kind.build(places["us"], None)
    assert list(RowsKind().check({"shop": place}, {})) == []
