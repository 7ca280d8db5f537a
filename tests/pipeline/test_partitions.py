"""Partitions that come with rows or go with theirs: no change reports it, so penstock does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fix_pipeline import INITIAL, assert_equal, wait_for_state
from fix_wait import wait_until
from penstock.source.partitions import read_partitions

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]

TABLES = """
CREATE TABLE p (id int, d date, PRIMARY KEY (id, d)) PARTITION BY RANGE (d);
CREATE TABLE p24 PARTITION OF p FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
INSERT INTO p VALUES (1, '2024-02-02')
"""
IDS = "SELECT id FROM p ORDER BY id"
NOTES = "SELECT coalesce(notes, '') FROM penstock.tables WHERE table_name = 'p'"
CAME = "partition public.{} was attached with rows, which no change reports"
WENT = "partition public.{} was detached or dropped, its rows stay at the target"
FIX = "penstock tables PIPELINE.yml resync public.p makes both sides equal"


def wait_for_notes(target: Database, *lines: str) -> None:
    wait_until(lambda: target.value(NOTES).split("\n") == list(lines), what=f"the notes {lines}")


def resync(target: Database) -> None:
    target.execute("UPDATE penstock.tables SET request = 'resync' WHERE table_name = 'p'")
    wait_until(lambda: not target.value(NOTES), what="a copy that takes the notes away")
    wait_for_state(target, "p", "streaming")


def test_partition_attached_with_rows_is_reported_until_a_resync_brings_them(
    source: Database, target: Database, make_pipeline: Make
):
    source.execute(TABLES)
    pipeline = make_pipeline(source, target, tables=("public.p",), source_options=INITIAL)
    wait_for_state(target, "p", "streaming")

    source.execute(
        "CREATE TABLE p25 (LIKE p INCLUDING ALL); INSERT INTO p25 VALUES (5, '2025-05-05')"
    )
    source.execute(
        "ALTER TABLE p ATTACH PARTITION p25 FOR VALUES FROM ('2025-01-01') TO ('2026-01-01')"
    )
    wait_for_notes(target, CAME.format("p25"), FIX)
    source.execute("INSERT INTO p VALUES (6, '2025-06-06')")
    pipeline.catch_up()
    assert target.query(IDS) == [(1,), (6,)]

    resync(target)
    pipeline.catch_up()
    assert_equal(source, target, "p")


def test_partition_that_goes_is_reported_also_when_it_went_while_stopped(
    source: Database, target: Database, make_pipeline: Make
):
    source.execute(
        TABLES + ";CREATE TABLE p25 PARTITION OF p FOR VALUES FROM ('2025-01-01') TO ('2026-01-01')"
    )
    pipeline = make_pipeline(source, target, tables=("public.p",), source_options=INITIAL)
    wait_for_state(target, "p", "streaming")
    source.execute("ALTER TABLE p DETACH PARTITION p24")
    wait_for_notes(target, WENT.format("p24"), FIX)

    pipeline.stop()
    source.execute("DROP TABLE p25")
    pipeline.start()
    wait_for_notes(target, WENT.format("p24"), FIX, WENT.format("p25"), FIX)
    assert target.query(IDS) == [(1,)]

    resync(target)
    assert_equal(source, target, "p")


def test_partitions_that_are_made_as_such_are_none_of_it(
    source: Database, target: Database, make_pipeline: Make
):
    source.execute(TABLES)
    pipeline = make_pipeline(source, target, tables=("public.p",), source_options=INITIAL)
    wait_for_state(target, "p", "streaming")
    source.execute(
        "CREATE TABLE p25 PARTITION OF p FOR VALUES FROM ('2025-01-01') TO ('2026-01-01')"
        " PARTITION BY RANGE (d);"
        "CREATE TABLE p25a PARTITION OF p25 FOR VALUES FROM ('2025-01-01') TO ('2025-07-01');"
        "INSERT INTO p VALUES (2, '2025-02-02')"
    )
    # One that comes with rows right after: once it is reported, the others have been polled, too.
    source.execute("CREATE TABLE p26 (LIKE p INCLUDING ALL) PARTITION BY RANGE (d)")
    source.execute(
        "CREATE TABLE p26a PARTITION OF p26 FOR VALUES FROM ('2026-01-01') TO ('2026-07-01');"
        "INSERT INTO p26 VALUES (3, '2026-02-02')"
    )
    source.execute(
        "ALTER TABLE p ATTACH PARTITION p26 FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')"
    )
    wait_for_notes(target, CAME.format("p26a"), FIX)
    pipeline.catch_up()
    assert target.query(IDS) == [(1,), (2,)]


def test_empty_table_that_is_attached_is_none_of_it(source: Database):
    source.execute(TABLES)
    source.execute("CREATE TABLE p25 (LIKE p INCLUDING ALL)")
    source.execute(
        "ALTER TABLE p ATTACH PARTITION p25 FOR VALUES FROM ('2025-01-01') TO ('2026-01-01')"
    )
    root = source.value("SELECT 'p'::regclass::oid::int8")
    plain = source.value("SELECT 'p24'::regclass::oid::int8")
    with source.connect() as connection:
        found = read_partitions(connection, [root, plain])
    assert list(found) == [root]
    assert [tuple(each) for each in found[root].values()] == [
        ("public.p24", False),
        ("public.p25", False),
    ]


def test_partition_that_came_and_went_at_once_is_reported(
    source: Database, target: Database, make_pipeline: Make
):
    source.execute(TABLES)
    pipeline = make_pipeline(source, target, tables=("public.p",), source_options=INITIAL)
    wait_for_state(target, "p", "streaming")
    wait_until(
        lambda: list(pipeline.file.state.rglob("*.partitions*")),
        what="the partitions to be known",
    )

    source.execute(
        "CREATE TABLE p26 PARTITION OF p FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');"
        "INSERT INTO p VALUES (9, '2026-02-02'); ALTER TABLE p DETACH PARTITION p26"
    )

    wait_for_notes(target, WENT.format("p26"), FIX)
    pipeline.catch_up()
    assert target.query(IDS) == [(1,), (9,)]
    resync(target)
    assert_equal(source, target, "p")


def test_partition_that_one_transaction_makes_fills_and_attaches_is_reported(
    source: Database, target: Database, make_pipeline: Make
):
    source.execute(TABLES)
    pipeline = make_pipeline(source, target, tables=("public.*",), source_options=INITIAL)
    wait_for_state(target, "p", "streaming")
    wait_until(
        lambda: list(pipeline.file.state.rglob("*.partitions*")),
        what="the partitions to be known",
    )

    source.execute(
        "BEGIN; CREATE TABLE p25 (LIKE p INCLUDING ALL); INSERT INTO p25 VALUES (5, '2025-05-05');"
        "ALTER TABLE p ATTACH PARTITION p25 FOR VALUES FROM ('2025-01-01') TO ('2026-01-01'); COMMIT"
    )
    source.execute(
        "BEGIN; CREATE TABLE p26 (LIKE p INCLUDING ALL) PARTITION BY RANGE (d);"
        "CREATE TABLE p26a PARTITION OF p26 FOR VALUES FROM ('2026-01-01') TO ('2026-07-01');"
        "CREATE TABLE p26b PARTITION OF p26 FOR VALUES FROM ('2026-07-01') TO ('2027-01-01');"
        "INSERT INTO p26 VALUES (6, '2026-02-02');"
        "ALTER TABLE p ATTACH PARTITION p26 FOR VALUES FROM ('2026-01-01') TO ('2027-01-01'); COMMIT"
    )
    source.execute("INSERT INTO p VALUES (7, '2025-07-07'), (8, '2026-08-08')")

    wait_until(
        lambda: (
            set(target.value(NOTES).split("\n")) == {CAME.format("p25"), CAME.format("p26a"), FIX}
        ),
        what="both to be noted",
    )
    pipeline.catch_up()
    assert target.query(IDS) == [(1,), (7,), (8,)]
    assert target.query("SELECT id FROM p25") == [(5,)]  # as it was until it was attached
    resync(target)
    pipeline.catch_up()
    assert_equal(source, target, "p")
