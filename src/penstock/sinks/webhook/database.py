"""The database of a webhook sink: SQLite, one file below the state directory, claimed for one pipeline and source.

A connection is used by one thread. The process that delivers has two; commands and the API have their own.

Where `log.encrypt` is asked for, rows are frames (`encryption.py`): documents that wait, and those that are parked.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock.encryption import FRAME_MAGIC, NO_KEYS, NotAuthentic
from penstock.errors import PositionMissing, SinkPrivilegeMissing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.encryption import Encryptor, Keyring
    from penstock.sinks.kind import SinkPlace

_FORMAT = "1"

_TABLES = """
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outbox (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    bytes INTEGER NOT NULL,
    commit_lsn INTEGER NOT NULL,
    documents BLOB NOT NULL,
    types TEXT);
CREATE TABLE IF NOT EXISTS subscriptions (
    id TEXT PRIMARY KEY,
    is_fixed INTEGER NOT NULL,
    wanted TEXT NOT NULL,
    secrets TEXT NOT NULL DEFAULT '[]',
    created_at TEXT NOT NULL,
    from_lsn TEXT,
    epoch INTEGER NOT NULL DEFAULT 1,
    state TEXT NOT NULL DEFAULT 'active',
    seq INTEGER NOT NULL,
    row INTEGER NOT NULL DEFAULT 0,
    delivered_lsn TEXT,
    delivered INTEGER NOT NULL DEFAULT 0,
    failing_since REAL,
    error TEXT,
    lost_after_lsn TEXT,
    lost_to_lsn TEXT,
    held_until REAL);
CREATE TABLE IF NOT EXISTS parked (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    subscription TEXT NOT NULL REFERENCES subscriptions (id) ON DELETE CASCADE,
    document TEXT NOT NULL,
    id TEXT NOT NULL,
    reason TEXT,
    parked_at TEXT NOT NULL,
    request TEXT);
CREATE INDEX IF NOT EXISTS parked_of ON parked (subscription, number);
"""

_ADDED = {
    "outbox": {"types": "TEXT"},
    "subscriptions": {"lost_after_lsn": "TEXT", "lost_to_lsn": "TEXT", "held_until": "REAL"},
}


def database_of(place: SinkPlace[Any]) -> Path:
    """Where the database of a sink lies."""
    return place.state / "sinks" / f"{place.name}.webhook.db"


class Database:
    """One connection. Any method may raise `sqlite3.Error`."""

    def __init__(self, path: Path, owner: tuple[str, str], keyring: Keyring = NO_KEYS) -> None:
        self.path = path
        self._owner = "/".join(owner)
        self._keyring = keyring
        self._database: sqlite3.Connection | None = None

    @property
    def _db(self) -> sqlite3.Connection:
        assert self._database is not None, "opened first"
        return self._database

    def open(self, *, is_durable: bool = True, patience_seconds: float = 10.0) -> None:
        """Connect; make the database where it is missing.

        Args:
            is_durable: what is committed outlasts a crash of the machine; else of the process alone.
            patience_seconds: how long another's transaction is waited for.

        Raises:
            SinkPrivilegeMissing: it is another pipeline's or source's.
            PositionMissing: it is damaged, or of another version.
        """
        self.close()
        # SQLite would have it readable for others, where the umask says so. Rows and secrets are in it.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._database = sqlite3.connect(
            self.path, timeout=patience_seconds, isolation_level=None, check_same_thread=False
        )
        try:
            self._db.executescript(_TABLES)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            raise self._damaged() from None
        self._db.execute(f"PRAGMA synchronous = {'FULL' if is_durable else 'NORMAL'}")
        self._db.execute("PRAGMA foreign_keys = ON")
        if not is_durable:
            # Who is durable moves pages from SQLite's log to the database, which takes an fsync.
            self._db.execute("PRAGMA wal_autocheckpoint = 0")
        with self._transaction():
            self._check_owner()
            self._add_columns()

    def create(self) -> None:
        """Have the database there."""
        self.open()
        self.close()

    def _check_owner(self) -> None:
        found = dict(self._db.execute("SELECT name, value FROM meta"))
        if not found:
            known = {"format": _FORMAT, "owner": self._owner}
            self._db.executemany("INSERT INTO meta VALUES (?, ?)", known.items())
        elif found.get("format") != _FORMAT:
            raise self._damaged()
        elif found.get("owner") != self._owner:
            raise SinkPrivilegeMissing(
                f"what is there belongs to pipeline and source {found.get('owner')},"
                f" wanted {self._owner}",
                str(self.path),
                "choose a state directory of its own for each pipeline",
            )

    def _add_columns(self) -> None:
        """What databases of earlier versions do not have."""
        for table, columns in _ADDED.items():
            known = {row[1] for row in self._db.execute(f"PRAGMA table_info({table})")}
            for name, kind in columns.items():
                if name not in known:
                    self._db.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")

    def _damaged(self) -> PositionMissing:
        return PositionMissing(
            "the sink's database is damaged, or of another version",
            str(self.path),
            "put it back from a backup, or begin anew: penstock teardown, then run",
        )

    @cached_property
    def _encryptor(self) -> Encryptor | None:
        return self._keyring.encryptor()

    def _sealed(self, plain: bytes) -> bytes:
        """Bytes as they are stored."""
        return plain if self._encryptor is None else self._encryptor.frame(plain)

    def _plain(self, stored: bytes) -> bytes:
        """What was stored, now or before encryption was asked for.

        Raises:
            LogKeyMissing: it is encrypted with a key that is not given.
            PositionMissing: it is not what was stored.
        """
        if not stored.startswith(FRAME_MAGIC):
            return stored
        try:
            return self._keyring.unframe(stored, str(self.path))
        except NotAuthentic:
            raise self._damaged() from None

    def require_keys(self) -> None:
        """See that the oldest of what is stored can be read: its key is the first that is taken out.

        Raises:
            LogKeyMissing: it cannot.
        """
        for query in (
            "SELECT documents FROM outbox ORDER BY seq LIMIT 1",
            "SELECT document FROM parked ORDER BY number LIMIT 1",
        ):
            for (stored,) in self._db.execute(query).fetchall():
                self._plain(as_bytes(stored))

    def set_patience(self, seconds: float) -> None:
        """How long another's transaction is waited for, before `sqlite3.OperationalError`."""
        self._db.execute(f"PRAGMA busy_timeout = {int(1000 * seconds)}")

    def close(self) -> None:
        """Let go of the connection."""
        if self._database is not None:
            self._database.close()
            self._database = None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _meta(self, name: str) -> str | None:
        row = self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def _set_meta(self, name: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    @property
    def state(self) -> str | None:
        """What penstock stored last."""
        return self._meta("state")

    @property
    def published(self) -> int:
        """The last entry of the outbox that counts."""
        return int(self._meta("published") or 0)

    @property
    def revision(self) -> int:
        """Another one whenever subscriptions were changed by others than deliveries."""
        return int(self._meta("revision") or 0)

    def _bump(self) -> None:
        self._set_meta("revision", str(self.revision + 1))

    @property
    def delivered_lsn(self) -> str | None:
        """The sink's own position."""
        state = self.state
        return None if state is None else str(json.loads(state)["delivered_lsn"])


def as_bytes(stored: bytes | str) -> bytes:
    """A document that is not encrypted is stored as text where it is parked."""
    return stored.encode() if isinstance(stored, str) else stored
