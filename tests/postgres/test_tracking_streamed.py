"""Changes of tables within transactions that the server sends before they end, parts of them rolled back."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from fix_listener import Listener
from penstock.lsn import Lsn
from penstock.schema.mark import CHANGE
from penstock.schema.shape import REFRESH, read_change
from penstock.source.options import Tracking

if TYPE_CHECKING:
    from pathlib import Path

    from fix_postgres import Database


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
        for marks in listener.past_shapes.transactions_after(Lsn(0))
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
def test_change_in_a_savepoint_that_is_kept_is_reported(
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
