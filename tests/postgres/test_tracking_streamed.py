"""Changes of tables within transactions that the server sends before they end, parts of them rolled back."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import pytest

from fix_subscription import ALL, rules
from penstock.changes.pgoutput import STREAM_START
from penstock.log.writer import LogWriter
from penstock.lsn import Lsn
from penstock.schema.history import SchemaHistory
from penstock.schema.mark import CHANGE
from penstock.schema.shape import REFRESH, read_change
from penstock.source.assemble import Assembler
from penstock.source.connect import connect_source
from penstock.source.notes import Notes
from penstock.source.options import Tracking
from penstock.source.shapes import read_published_shapes, read_shape_now
from penstock.source.stream import InProgress, SlotStream
from penstock.source.subscription import ensure_subscription
from penstock.source.tracking import read_seal

if TYPE_CHECKING:
    from pathlib import Path

    from fix_postgres import Database
    from penstock.schema.shape import TableShape


class Listener:
    """Follows a source into a log, as capture does; without a thread."""

    def __init__(self, source: Database, tracking: Tracking, directory: Path) -> None:
        self.source = source
        self.streamed = 0
        with connect_source(source.dsn) as connection:
            subscription = ensure_subscription(connection, "shop", rules(*ALL), tracking)
            seal = read_seal(connection)
            shapes = read_published_shapes(connection, subscription.publications)
        self._writer = LogWriter(directory / "log")
        self._writer.open(Lsn(0))
        self.history = SchemaHistory(directory / "schema.jsonl")
        self.history.open_for_writing()
        notes = Notes(self.history, Lsn(0), self.now, seal)
        notes._known.update({shape.id: shape for shape in shapes})
        self._assembler = Assembler(self._writer, notes)
        self._subscription = subscription
        self._stream = self._open(InProgress.STREAMED)

    def now(self, oid: int) -> TableShape | None:
        with connect_source(self.source.dsn) as connection:
            return read_shape_now(connection, oid)

    def add(self, message: memoryview) -> None:
        self.streamed += message[0] == STREAM_START
        self._assembler.add(message)

    def receive_streamed(self) -> None:
        """Until the server has sent more of what is open."""
        wanted, deadline = self.streamed + 1, time.monotonic() + 30
        while self.streamed < wanted:
            assert time.monotonic() < deadline, "the server did not stream"
            self._stream.receive(self, 0.05)

    def receive_all(self) -> None:
        end = Lsn.parse(self.source.value("SELECT pg_current_wal_lsn()::text"))
        self.source.execute("SELECT pg_logical_emit_message(false, 'test', '')")
        deadline = time.monotonic() + 30
        while self._assembler.received_lsn < end:
            assert time.monotonic() < deadline, "the commit did not come"
            self._stream.receive(self, 0.05)
        self._assembler.seal()

    def close(self) -> None:
        self._stream.close()
        self._assembler.discard()
        self.history.close()
        self._writer.close()

    def _open(self, in_progress: InProgress) -> SlotStream:
        slot, publications = self._subscription.slot, self._subscription.publications
        stream = SlotStream(self.source.dsn, slot, publications, in_progress)
        stream.connect()
        stream.start(Lsn(0))
        return stream


@pytest.fixture
def small_memory(source: Database) -> Database:
    source.execute(f"ALTER DATABASE \"{source.name}\" SET logical_decoding_work_mem = '64kB'")
    source.execute("CREATE TABLE t (id int PRIMARY KEY, keep text, n numeric DEFAULT 1.25)")
    source.execute("INSERT INTO t SELECT g, 'k' || g FROM generate_series(1, 10) g")
    return source


_MANY = "INSERT INTO t (id) SELECT g FROM generate_series({0}, {0} + 2000) g"
MANY = _MANY.format


def changed(listener: Listener) -> list[list[str]]:
    """The columns of t after each change that was taken."""
    return [
        [column.name for column in shape.columns]
        for marks in listener.history.transactions_after(Lsn(0))
        for mark in marks
        if mark.kind == CHANGE and (change := read_change(mark.content, "")).tag != REFRESH
        for shape in change.tables
    ]


STREAM = "stream"
_BLOCK = (
    "DO $$BEGIN BEGIN {}; INSERT INTO t (id) SELECT g FROM generate_series(10000, 13000) g;"
    " RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN NULL; END; END$$"
)
UNDONE = {
    "drop": "ALTER TABLE t DROP COLUMN keep",
    "type": "ALTER TABLE t ALTER n TYPE int",
    "add": "ALTER TABLE t ADD more int",
    "rename": "ALTER TABLE t RENAME keep TO kept",
}
# {} is what is rolled back; STREAM waits until the server has sent what there is so far.
COURSES = {
    "after the first block": [
        MANY(100), "SAVEPOINT s1", "{}", "SAVEPOINT s2", MANY(10000), STREAM, MANY(20000), STREAM,
        "ROLLBACK TO s1", "INSERT INTO t (id) VALUES (-1)",
    ],
    "before the first block": [
        "SAVEPOINT s1", "{}", "ROLLBACK TO s1", MANY(100), STREAM,
        "INSERT INTO t (id) VALUES (-1)",
    ],
    "released": [
        MANY(100), "SAVEPOINT s0", "SAVEPOINT s1", "{}", MANY(10000), STREAM, "RELEASE s1",
        MANY(20000), STREAM, "ROLLBACK TO s0", MANY(30000), STREAM,
    ],
    "nested": [
        MANY(100), "SAVEPOINT s0", MANY(10000), STREAM, "SAVEPOINT s1", "SAVEPOINT s2", "{}",
        "SAVEPOINT s3", MANY(20000), STREAM, "ROLLBACK TO s1", MANY(30000), STREAM, "RELEASE s0",
    ],
    "without rows of its own": [
        MANY(100), STREAM, "SAVEPOINT s1", "{}", MANY(10000), STREAM, "ROLLBACK TO s1",
    ],
    "within a block": [
        MANY(100), STREAM,
        _BLOCK,
        MANY(20000), STREAM,
    ],
}  # fmt: skip


def run(listener: Listener, course: list[str], statement: str) -> None:
    with listener.source.connect(autocommit=False) as connection:
        for step in course:
            if step == STREAM:
                listener.receive_streamed()
            else:
                connection.execute(step.replace("{}", statement))
        connection.commit()
    listener.receive_all()


QUICK = [
    ("drop", "after the first block", Tracking.TRIGGERS),
    ("add", "released", Tracking.RELATION),
]


@pytest.mark.parametrize(
    ("kind", "course", "tracking"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.long)
        for case in itertools.product(UNDONE, COURSES, (Tracking.TRIGGERS, Tracking.RELATION))
    ],
)
def test_change_in_a_savepoint_that_is_rolled_back_never_was(
    small_memory: Database, tmp_path: Path, kind: str, course: str, tracking: Tracking
):
    listener = Listener(small_memory, tracking, tmp_path)
    try:
        run(listener, COURSES[course], UNDONE[kind])
    finally:
        listener.close()

    assert listener.streamed
    assert changed(listener) == []


@pytest.mark.parametrize("tracking", [Tracking.TRIGGERS, Tracking.RELATION])
def test_change_in_a_savepoint_that_is_kept_is_told(
    small_memory: Database, tmp_path: Path, tracking: Tracking
):
    course = [
        *(MANY(100), "SAVEPOINT s0", "SAVEPOINT s1", "ALTER TABLE t ADD gone int", MANY(3000)),
        *(STREAM, "ROLLBACK TO s1", "{}", MANY(6000), STREAM, "RELEASE s1", MANY(9000), STREAM),
        *("SAVEPOINT s2", "DELETE FROM t WHERE id > 9000", "ROLLBACK TO s2", "RELEASE s0"),
    ]
    listener = Listener(small_memory, tracking, tmp_path)
    try:
        run(listener, course, "ALTER TABLE t ADD more int")
    finally:
        listener.close()

    assert changed(listener) == [["id", "keep", "n", "more"]]
