"""A penstock sink: every change as a row of a SQLite database.

Documents and penstock's state are written in one transaction, so that nothing is lost and nothing
doubled, whatever is killed when.
"""

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pyarrow as pa

from penstock.sink import (
    DocumentKind,
    DocumentSink,
    DocumentsRefused,
    Finding,
    LocalPath,
    SecondInstance,
    SinkOptions,
    SinkPlace,
    SinkPrivilegeMissing,
)

_TABLES = """
CREATE TABLE IF NOT EXISTS documents (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, op TEXT NOT NULL,
    "schema" TEXT NOT NULL, "table" TEXT NOT NULL, "key" TEXT, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS penstock_state (
    pipeline TEXT, source TEXT, state TEXT NOT NULL, PRIMARY KEY (pipeline, source));
"""
# The same document again is skipped; another one with its id is refused, by NOT NULL.
_INSERT = """
INSERT INTO documents (id, op, "schema", "table", "key", value) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET id = CASE value WHEN excluded.value THEN id END
"""
_STORE = "INSERT OR REPLACE INTO penstock_state VALUES (?, ?, ?)"
_STORED = "SELECT state FROM penstock_state WHERE pipeline = ? AND source = ?"
_FORGET = "DELETE FROM penstock_state WHERE pipeline = ? AND source = ?"


class SqliteOptions(SinkOptions):
    """What a person may say in the pipeline file."""

    kind: Literal["sqlite"] = "sqlite"
    path: LocalPath


class SqliteSink(DocumentSink):
    """Delivers to one database file."""

    stores_state = True
    passes_with_time = (sqlite3.OperationalError,)  # locked, or the disk is full
    needs_a_person = (sqlite3.DatabaseError,)  # no database, or a damaged one

    def __init__(self, path: Path, owner: tuple[str, str]) -> None:
        self._path = path
        self._owner = owner
        self._database: sqlite3.Connection | None = None
        self._lock: int | None = None

    def open(self) -> str | None:
        self.close()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._claim()
        self._database = sqlite3.connect(self._path, check_same_thread=False)
        self._database.executescript(_TABLES)
        row = self._database.execute(_STORED, self._owner).fetchone()
        return row[0] if row else None

    def deliver(self, documents: Iterator[pa.RecordBatch], state: str | None) -> None:
        refused: dict[str, str] = {}
        with self._database as transaction:  # committed, or rolled back with any exception
            for batch in documents:
                columns = (
                    batch.column(name).to_pylist()
                    for name in ("id", "op", "schema", "table", "key", "value")
                )
                for row in zip(*columns, strict=True):
                    try:
                        transaction.execute(_INSERT, row)
                    except sqlite3.IntegrityError as error:  # a CHECK or a trigger of the user's
                        refused[row[0]] = str(error)
            if refused:
                raise DocumentsRefused(refused)
            transaction.execute(_STORE, (*self._owner, state))

    def check(self) -> Iterator[Finding]:
        nearest = next(each for each in self._path.parents if each.exists())
        if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
            yield Finding(
                SinkPrivilegeMissing(
                    "not a directory that penstock may write to",
                    str(nearest),
                    "choose another path",
                )
            )

    def forget(self) -> list[str]:
        if not self._path.exists():
            return []
        self.open()
        with self._database as transaction:
            found = transaction.execute(_FORGET, self._owner).rowcount
        self.close()
        self._lock_path.unlink(missing_ok=True)
        return [f"position in {self._path}"] if found else []

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def explain(self, error: Exception) -> str:
        return f"SQLite says: {error}"

    @property
    def _lock_path(self) -> Path:
        # Of this pipeline and source: others may share the database, each with its own state.
        return self._path.with_name(".".join((self._path.name, *self._owner, "lock")))

    def _claim(self) -> None:
        self._lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SecondInstance(
                "another process delivers there", str(self._path), "stop it first"
            ) from None


class SqliteKind(DocumentKind[SqliteOptions]):
    """`kind: sqlite`."""

    name = "sqlite"
    options = SqliteOptions

    def sink(self, place: SinkPlace[SqliteOptions]) -> SqliteSink:
        return SqliteSink(place.options.path, (place.pipeline, place.source_id))
