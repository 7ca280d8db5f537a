"""Foreign keys that wait for their tables to stream, while the stream brings a change of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest

from fix_follow import clone, shape_of
from fix_postgres import only_new
from fix_wait import wait_until
from penstock.lsn import Lsn
from penstock.sinks.postgres.copy import due_keys as duekeys
from penstock.sinks.postgres.copy.due_keys import make_due_keys
from penstock.sinks.postgres.mapping.table_mapping import TableMappings
from penstock.sinks.postgres.options import PostgresOptions
from penstock.sinks.postgres.state.objects import make_objects
from penstock.sinks.postgres.state.shapes import ShapeStore
from penstock.sinks.postgres.state.tables import TargetTables
from penstock.table import TableName

if TYPE_CHECKING:
    from fix_postgres import Database

pytestmark = only_new

OWNER = ("p", "one")
PARENT, CHILD = TableName("public", "parent"), TableName("public", "child")
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture
def store(source: Database, target: Database) -> ShapeStore:
    """Two tables that stream; the key from one to the other is due."""
    source.execute(
        "CREATE TABLE parent (id int PRIMARY KEY);"
        "CREATE TABLE child (id int PRIMARY KEY, p int REFERENCES parent)"
    )
    clone(source, target)
    target.execute("ALTER TABLE child DROP CONSTRAINT child_p_fkey")
    store = ShapeStore(*OWNER)
    with target.connect() as connection:
        make_objects(connection)
        with connection.cursor() as cursor:
            for table in (PARENT, CHILD):
                store.add(cursor, shape_of(source, table), Lsn(1), table)
    return store


def make_keys(target: Database, store: ShapeStore) -> None:
    table_mappings = TableMappings(PostgresOptions(url=target.url), *OWNER, [OWNER[1]])
    with target.connect() as connection:
        make_due_keys(connection, table_mappings, store, OWNER)


def keys(target: Database) -> list[tuple[str, str, bool]]:
    return target.query(
        "SELECT conname::text, confrelid::regclass::text, convalidated FROM pg_constraint WHERE contype = 'f'"
    )


def due(target: Database) -> list[str]:
    asked = "SELECT table_name FROM penstock.tables WHERE foreign_keys_due ORDER BY 1"
    return [name for (name,) in target.query(asked)]


def test_due_keys_are_made_once_and_hold(target: Database, store: ShapeStore):
    assert due(target) == ["child", "parent"]
    make_keys(target, store)
    assert keys(target) == [("child_p_fkey", "parent", True)]
    assert due(target) == []


def test_key_that_goes_while_it_is_being_made_is_not_made(
    source: Database, target: Database, store: ShapeStore
):
    source.execute("ALTER TABLE child DROP CONSTRAINT child_p_fkey")
    with ThreadPoolExecutor(1) as pool, target.connect(autocommit=False) as delivers:
        # As one who delivers does: lock, read what is there, keep the new shape, commit.
        assert store.shape(delivers, CHILD, lock=True)
        made = pool.submit(make_keys, target, store)
        wait_until(lambda: made.done() or target.query(WAITS) != [(0,)])
        assert not made.done()
        store.keep(delivers, CHILD, shape_of(source, CHILD), Lsn(2))
        delivers.commit()
        made.result()

    assert keys(target) == []
    assert due(target) == ["child"]  # what else it has by now is checked again
    make_keys(target, store)
    assert keys(target) == []
    assert due(target) == []


def test_who_delivers_waits_while_a_key_is_made_and_then_sees_it(
    target: Database, store: ShapeStore
):
    with (
        ThreadPoolExecutor(1) as pool,
        target.connect(autocommit=False) as reader,
        target.connect(autocommit=False) as delivers,
    ):
        reader.execute(
            "LOCK TABLE parent IN ROW EXCLUSIVE MODE"
        )  # the key waits, with the row locked
        made = pool.submit(make_keys, target, store)
        wait_until(lambda: made.done() or target.query(WAITS) != [(0,)])
        delivers.execute("SET lock_timeout = '50ms'")

        def is_kept_waiting() -> bool:
            try:
                with delivers.transaction():
                    store.shape(delivers, CHILD, lock=True)
            except psycopg.errors.LockNotAvailable:
                return True
            return False

        wait_until(is_kept_waiting)
        reader.commit()
        delivers.execute("SET lock_timeout = 0")
        wait_until(lambda: keys(target))
        assert store.shape(delivers, CHILD, lock=True)
        delivers.commit()
        made.result()
    assert keys(target) == [("child_p_fkey", "parent", True)]


def test_key_leads_to_a_table_that_was_renamed_meanwhile(
    source: Database, target: Database, store: ShapeStore
):
    ancestor = TableName("public", "ancestor")
    for side in (source, target):
        side.execute("ALTER TABLE parent RENAME TO ancestor")
    with target.connect() as connection, connection.cursor() as cursor:
        store.rename(cursor, PARENT, ancestor)
        store.keep(cursor, ancestor, shape_of(source, ancestor), Lsn(2))

    make_keys(target, store)

    assert keys(target) == [("child_p_fkey", "ancestor", True)]


def test_key_waits_for_a_table_that_failed_and_holds_up_nobody(target: Database, store: ShapeStore):
    target.execute(
        "UPDATE penstock.tables SET state = 'failed', needs_copy = true WHERE table_name = 'parent'"
    )
    make_keys(target, store)
    assert (keys(target), due(target)) == ([], ["child", "parent"])
    with target.connect() as connection:
        assert TargetTables(*OWNER).keys_due(connection) == []

    target.execute("UPDATE penstock.tables SET state = 'streaming', needs_copy = false")
    with target.connect() as connection:
        assert len(TargetTables(*OWNER).keys_due(connection)) == 2
    make_keys(target, store)
    assert keys(target) == [("child_p_fkey", "parent", True)]
    assert due(target) == []


def test_key_that_the_server_cannot_make_at_all_is_noted(
    target: Database, store: ShapeStore, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> None:
        raise psycopg.errors.InternalError_("could not find tuple")

    monkeypatch.setattr(duekeys, "add_foreign_keys", refuse)
    monkeypatch.setattr(duekeys, "add_small_foreign_keys", refuse)

    make_keys(target, store)

    assert due(target) == []
    asked = "SELECT notes FROM penstock.tables WHERE table_name = 'child'"
    assert target.query(asked) == [("foreign keys: InternalError_ (XX000)",)]


@pytest.mark.long
def test_key_that_rows_do_not_hold_keeps_no_other_away(source: Database, target: Database):
    source.execute(
        "CREATE TABLE parent (id int PRIMARY KEY);"
        + "".join(
            f"CREATE TABLE child_{n} (id int PRIMARY KEY, p int REFERENCES parent);"
            for n in range(60)
        )
    )
    clone(source, target)
    store = ShapeStore(*OWNER)
    with target.connect() as connection:
        make_objects(connection)
        with connection.cursor() as cursor:
            for table in (PARENT, *(TableName("public", f"child_{n}") for n in range(60))):
                store.add(cursor, shape_of(source, table), Lsn(1), table)
    for n in range(60):
        target.execute(f"ALTER TABLE child_{n} DROP CONSTRAINT child_{n}_p_fkey")
    target.execute("INSERT INTO child_7 VALUES (1, 1)")

    make_keys(target, store)

    assert due(target) == []
    assert len(keys(target)) == 60
    assert [name for name, _, is_valid in keys(target) if not is_valid] == ["child_7_p_fkey"]
    asked = "SELECT table_name, notes FROM penstock.tables WHERE notes IS NOT NULL"
    ((name, notes),) = target.query(asked)
    assert (name, "ForeignKeyViolation" in notes) == ("child_7", True)
