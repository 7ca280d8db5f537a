"""A table that changes hands or names while it is copied: its copy lets go of it, the others go on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from fix_pipeline import (
    ALWAYS_COPIED,
    assert_equal,
    rows,
    slowly,
    table_error,
    table_state,
    wait_for_state,
)
from fix_postgres import only_new
from fix_wait import wait_until
from penstock.errors import SinkError, TableRewritten
from penstock.lsn import Lsn
from penstock.pipeline import build_copying
from penstock.run.requests import remove_tables
from penstock.sinks.copying import Copy, CopySuperseded, RangeThere
from penstock.sinks.postgres.copy.copy_in import PostgresRangeWriter
from penstock.sinks.postgres.state.objects import make_objects
from penstock.source.copyout import SnapshotReader
from penstock.source.exported import ExportedSnapshot
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]
    Small = Callable[[int], None]

pytestmark = only_new


def fill(source: Database, table: str, count: int) -> None:
    source.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)")
    source.execute(
        f"INSERT INTO {table} SELECT g, repeat('v', 50) || g FROM generate_series(1, {count}) g"
    )


def wait_for_ranges(target: Database, table: str, count: int) -> None:
    """Wait until the copy of a table is in its middle."""
    query = "SELECT count(*) FROM penstock.ranges WHERE table_name = %s"
    wait_until(
        lambda: table_state(target, table) == "copying" and target.value(query, table) >= count,
        60,
        what=f"{count} ranges of {table} to arrive",
    )


def copy_id(target: Database, table: str) -> str | None:
    found: str | None = target.value(
        "SELECT copy_id FROM penstock.tables WHERE table_name = %s", table
    )
    return found


def wait_for_round_to_end(source: Database) -> None:
    """Wait until no snapshot is held any more."""
    query = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'penstock snapshot'"
    )
    wait_until(lambda: source.value(query) == 0, 60, what="the round to end")


@pytest.mark.parametrize(
    "way", ["removed", *(pytest.param(way, marks=pytest.mark.long) for way in ("anew", "dropped"))]
)
def test_table_that_is_removed_or_scheduled_anew_while_it_is_copied_holds_up_no_other(
    source: Database, target: Database, make_pipeline: Make, small_ranges: Small, way: str
) -> None:
    small_ranges(1)
    # Something must flow for the stream to report removals, and a core be left for it.
    fill(source, "first", 10)
    snapshot = {"mode": "initial", "max_rows_per_second": 800, "parallel": 1}
    options = {**ALWAYS_COPIED, "snapshot": snapshot}
    pipeline = make_pipeline(source, target, source_options=options)
    pipeline.catch_up()
    with source.connect(autocommit=False) as connection:
        # The larger one, of fewer rows, is begun later.
        for table, count, size in (("t", 5000, 50), ("z", 400, 1900)):
            connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)")
            connection.execute(
                f"INSERT INTO {table} SELECT g, repeat('v', {size}) FROM generate_series(1, {count}) g"
            )
        connection.commit()
    wait_for_ranges(target, "t", 2)
    before = copy_id(target, "t")

    if way == "removed":
        remove_tables(pipeline.file, ["t"])
    elif way == "anew":  # as scheduling does it
        target.execute("UPDATE penstock.tables SET state = 'pending' WHERE table_name = 't'")
    else:  # as the stream does it when the source has dropped it; it is found again afterwards
        target.execute("DELETE FROM penstock.tables WHERE table_name = 't'; DROP TABLE t")
    wait_for_state(target, "z", "streaming")
    wait_for_round_to_end(source)

    assert_equal(source, target, "z")
    if way == "removed":
        assert table_state(target, "t") == "removed"
        assert len(rows(target, "t")) < 5000
    else:
        wait_for_state(target, "t", "streaming")
        pipeline.catch_up()
        assert_equal(source, target, "t")
        assert copy_id(target, "t") != before


def test_range_arrives_once_though_two_tasks_are_at_it_and_not_at_all_for_another_copy(
    target: Database,
) -> None:
    target.execute("CREATE TABLE t (id int)")
    with target.connect() as connection:
        make_objects(connection)
    target.execute(
        "INSERT INTO penstock.tables (pipeline, source, schema_name, table_name, state, needs_copy,"
        " copy_id) VALUES ('p', 's', 'public', 't', 'copying', true, 'c')"
    )
    table = TableName("public", "t")
    writer = PostgresRangeWriter(
        target.dsn, ("p", "s"), table, "c", table, ("id",), (), ("id",), is_binary=False
    )
    into = writer.begin(0)
    into.write([b"1\n", b"2\n"])
    into.finish()

    with pytest.raises(RangeThere):
        writer.begin(0)
    assert target.query("SELECT number, rows, bytes FROM penstock.ranges") == [(0, 2, 4)]
    for change in ("state = 'pending'", "state = 'copying', copy_id = 'd'"):
        target.execute(f"UPDATE penstock.tables SET {change}")
        with pytest.raises(CopySuperseded):
            writer.begin(1)
    assert target.query("SELECT count(*) FROM t") == [(2,)]


def test_copy_that_has_lost_its_table_to_another_says_nothing_of_it(
    source: Database, target: Database, make_pipeline: Make, small_ranges: Small
) -> None:
    small_ranges(1)
    fill(source, "t", 3000)
    pipeline = make_pipeline(source, target, source_options=slowly(2000))
    wait_for_ranges(target, "t", 2)
    table, before = TableName("public", "t"), copy_id(target, "t")

    late = build_copying(pipeline.file, "target")
    late.open()
    try:
        for copy in (Copy("an earlier one", Lsn(1)), None):  # None: it had not begun yet
            late.fail(table, SinkError("too late", "there"), copy)
        late.begin_again(table, Copy("an earlier one", Lsn(1)))
    finally:
        late.close()

    assert copy_id(target, "t") == before
    assert table_error(target, "t") == ""
    pipeline.catch_up()
    assert_equal(source, target, "t")
    assert copy_id(target, "t") == before


SWAP = """
    ALTER TABLE {0} RENAME TO old_one;
    CREATE TABLE {0} (id int PRIMARY KEY, v text);
    INSERT INTO {0} VALUES (-1, 'of the new one')
"""


@pytest.mark.parametrize("name", ["z", '"Od d"."Z""z"'])
def test_table_that_got_the_name_of_one_under_the_snapshot_is_not_read_for_it(
    source: Database, name: str
) -> None:
    source.execute('CREATE SCHEMA "Od d"')
    fill(source, name, 100)
    table = TableName("public", "z") if name == "z" else TableName("Od d", 'Z"z')
    snapshot = ExportedSnapshot.take(source.dsn, threading.Event())
    try:
        for is_swapped in (False, True):
            if is_swapped:
                source.execute(SWAP.format(name))
            reader = SnapshotReader(source.dsn, snapshot.name)
            found = reader.blocks(table, ("id",), (0, None), is_binary=False)
            try:
                if is_swapped:
                    with pytest.raises(
                        TableRewritten, match="another table or column has its name"
                    ):
                        list(found)
                else:
                    assert sum(map(len, found)) == 100
            finally:
                reader.close()
    finally:
        snapshot.close()


EVIL = """
    CREATE FUNCTION evil() RETURNS int LANGUAGE plpgsql AS $$BEGIN
        RAISE EXCEPTION 'evil ran as %', current_user;
    END$$;
    {0}
"""
VIEW = "DROP TABLE t; CREATE VIEW t AS SELECT '(0,1)'::tid AS ctid, evil() AS id"


@pytest.mark.parametrize("knows_setting", [True, False])
def test_view_that_got_the_name_of_a_table_is_not_read(
    source: Database, monkeypatch: pytest.MonkeyPatch, knows_setting: bool
) -> None:
    fill(source, "t", 10)
    if not knows_setting:  # as of a server before August 2024
        monkeypatch.setattr("penstock.source.connect._SETTINGS_TO_COPY", "SET lock_timeout = '10s'")
    snapshot = ExportedSnapshot.take(source.dsn, threading.Event())
    try:
        source.execute(EVIL.format(VIEW))
        reader = SnapshotReader(source.dsn, snapshot.name)
        try:
            found = reader.blocks(TableName("public", "t"), ("id",), (0, 1), is_binary=False)
            with pytest.raises(TableRewritten, match="another table or column has its name"):
                list(found)
        finally:
            reader.close()
    finally:
        snapshot.close()


def test_refused_row_is_named_without_a_cast_of_its_type(source: Database) -> None:
    source.execute("CREATE TYPE mood AS ENUM ('ok'); CREATE TABLE t (m mood PRIMARY KEY)")
    source.execute(
        EVIL.format("").replace("evil()", "evil(mood)").replace("RETURNS int", "RETURNS text")
        + "; CREATE CAST (mood AS text) WITH FUNCTION evil(mood); INSERT INTO t VALUES ('ok')"
    )
    snapshot = ExportedSnapshot.take(source.dsn, threading.Event())
    try:
        reader = SnapshotReader(source.dsn, snapshot.name)
        try:
            assert reader.key_at(TableName("public", "t"), ("m",), (0, None), 0) == ("ok",)
        finally:
            reader.close()
    finally:
        snapshot.close()


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        (
            "ALTER TABLE t RENAME v TO x; ALTER TABLE t RENAME w TO v; ALTER TABLE t RENAME x TO w",
            False,
        ),
        ("ALTER TABLE t RENAME v TO x; ALTER TABLE t ADD v text DEFAULT 'new'", False),
        ("ALTER TABLE t DROP v; ALTER TABLE t ADD v text", False),
        ("ALTER TABLE t ADD x text; ALTER TABLE t ALTER v SET NOT NULL", True),
        ('ALTER TABLE t RENAME other TO "o.t""her"', True),
    ],
)
def test_column_that_got_the_name_of_one_under_the_snapshot_is_not_read_for_it(
    source: Database, change: str, is_same: bool
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text, w text, other text)")
    source.execute("INSERT INTO t VALUES (1, 'v', 'w', 'o')")
    snapshot = ExportedSnapshot.take(source.dsn, threading.Event())
    try:
        source.execute(change)
        reader = SnapshotReader(source.dsn, snapshot.name)
        columns = ("id", "v", "w")
        found = reader.blocks(TableName("public", "t"), columns, (0, None), is_binary=False)
        try:
            if is_same:
                assert [bytes(row) for block in found for row in block] == [b"1\tv\tw\n"]
            else:
                with pytest.raises(TableRewritten, match="another table or column has its name"):
                    list(found)
        finally:
            reader.close()
    finally:
        snapshot.close()


@pytest.mark.long
def test_tables_that_swap_names_between_the_snapshot_and_their_turn_end_as_at_the_source(
    source: Database, target: Database, make_pipeline: Make, small_ranges: Small
) -> None:
    small_ranges(1)
    fill(source, "t", 2000)
    fill(source, "z", 3000)
    options = {**slowly(1500), "schema": {"tracking": "triggers"}}
    pipeline = make_pipeline(source, target, source_options=options)
    wait_for_ranges(target, "t", 2)
    assert table_state(target, "z") == "copying"

    # Not within a range: z is larger than t, and so nobody reads it yet.
    with source.connect(autocommit=False) as connection:
        connection.execute(SWAP.format("z"))
        connection.commit()
    for table in ("z", "old_one"):
        wait_for_state(target, table, "streaming", deadline_seconds=90)
    pipeline.catch_up(120)

    assert_equal(source, target, "t", "z", "old_one")
