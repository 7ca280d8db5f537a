"""A row sink, written against public names alone: rows of tables in a SQLite database. It keeps the contract."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pytest

from penstock.changes.copyrows import parse_rows
from penstock.changes.envelope import Origin
from penstock.modifiers.inject import Injection, InjectOptions
from penstock.schema.shape import ColumnShape, ConstraintShape, TableShape
from penstock.sink import (
    DocumentsRefused,
    LocalPath,
    RowChanges,
    RowKind,
    RowSink,
    SecondInstance,
    SinkOptions,
    TableAltered,
    TableEmptied,
    TableName,
    Unfit,
)
from penstock.sinks.documents.format import CopiedAt
from penstock.sinks.documents.parked import Holds
from penstock.sinks.rows.format import RowFormat
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

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.sink import SinkPlace, TableChange


class RowsOptions(SinkOptions):
    kind: Literal["sqlite_rows"] = "sqlite_rows"
    path: LocalPath


class RowsInSqlite(RowSink):
    """Tables under their own names, in one database; SQLite gives columns no types."""

    stores_state = True
    passes_with_time = (sqlite3.OperationalError,)

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database: sqlite3.Connection | None = None
        self._lock: int | None = None

    def open(self) -> str | None:
        self.close()
        self._lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SecondInstance("another delivers", str(self._path), "stop it") from None
        self._database = sqlite3.connect(self._path, isolation_level=None)
        self._database.execute("CREATE TABLE IF NOT EXISTS state (state TEXT)")
        row = self._database.execute("SELECT state FROM state").fetchone()
        return row[0] if row else None

    def apply(self, changes: Iterator[TableChange], state: str | None) -> None:
        assert self._database is not None
        self._database.execute("BEGIN")
        try:
            for change in changes:
                if isinstance(change, RowChanges):
                    self._apply_rows(change)
                elif isinstance(change, TableEmptied) and self._has(change.table):
                    self._database.execute(f'DELETE FROM "{change.table.name}"')
            self._database.execute("DELETE FROM state")
            self._database.execute("INSERT INTO state VALUES (?)", (state,))
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    def _has(self, name: TableName) -> bool:
        assert self._database is not None
        found = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        return self._database.execute(found, (name.name,)).fetchone() is not None

    def _apply_rows(self, change: RowChanges) -> None:
        assert self._database is not None
        names = change.net.rows.schema.names
        key = ", ".join(f'"{name}"' for name in change.key_columns)
        columns = ", ".join(f'"{name}"' for name in names)
        self._database.execute(
            f'CREATE TABLE IF NOT EXISTS "{change.table.name}" ({columns}, PRIMARY KEY ({key}))'
        )
        refused: dict[str, str] = {}
        net = change.net
        old_keys = net.old_keys.to_pylist() if net.old_keys is not None else [None] * len(net)
        rows = zip(
            net.op.to_pylist(),
            net.rows.to_pylist(),
            net.unchanged.to_pylist(),
            old_keys,
            change.ids.to_pylist(),
            strict=True,
        )
        for op, row, unchanged, old_key, one in rows:
            try:
                self._apply_row(change, op, row, unchanged, old_key)
            except sqlite3.IntegrityError:
                refused[one] = "a constraint"
        if refused:
            raise DocumentsRefused(refused)

    def _apply_row(
        self,
        change: RowChanges,
        op: str,
        row: dict[str, Any],
        unchanged: list[str],
        old_key: dict[str, Any] | None,
    ) -> None:
        assert self._database is not None
        name = change.table.name
        key = old_key or {column: row[column] for column in change.key_columns}
        where = " AND ".join(f'"{column}" = ?' for column in key)
        known = {column: value for column, value in row.items() if column not in unchanged}
        if op in ("insert", "replace") or (op == "update" and not unchanged):
            marks = ", ".join("?" * len(row))
            statement = f'INSERT OR REPLACE INTO "{name}" VALUES ({marks})'
            self._database.execute(statement, list(row.values()))
        elif op in ("update", "move"):
            assigned = ", ".join(f'"{column}" = ?' for column in known)
            statement = f'UPDATE "{name}" SET {assigned} WHERE {where}'
            self._database.execute(statement, [*known.values(), *key.values()])
        else:
            self._database.execute(f'DELETE FROM "{name}" WHERE {where}', list(key.values()))

    def forget(self) -> list[str]:
        if not self._path.exists():
            return []
        self.open()
        assert self._database is not None
        found = self._database.execute("DELETE FROM state").rowcount
        self.close()
        return [f"position in {self._path}"] if found else []

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class RowsKind(RowKind[RowsOptions]):
    name = "sqlite_rows"
    options = RowsOptions

    def sink(self, place: SinkPlace[RowsOptions]) -> RowsInSqlite:
        return RowsInSqlite(place.options.path)


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


# --- what a row sink is given ----------------------------------------------------------------

ITEMS = table(16400, "items", {"id": "int8", "on": "date", "note": "text"}, key=["id"])
ORIGIN = Origin("shop", "shop")


class _Noting(RowSink):
    """Notes what it is given."""

    def __init__(self) -> None:
        self.given: list[TableChange] = []

    def open(self) -> None: ...

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
