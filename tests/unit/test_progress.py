"""What is said of a copy that is under way."""

from __future__ import annotations

from penstock.cli.progress import stage_of
from penstock.snapshot.round import RoundProgress


def test_tables_that_are_being_created_are_counted():
    stage = stage_of([RoundProgress(table_count=1000, tables_begun=350)])

    assert str(stage) == "making room: for 350 of 1,000 tables"
    assert (stage.done, stage.total) == (350, 1000)


def test_rows_are_reported_with_the_time_that_their_transfer_takes():
    under_way = RoundProgress(
        table_count=10,
        tables_begun=10,
        tables_done=3,
        row_count=12_345,
        bytes_total=40_000_000,
        bytes_done=10_000_000,
        is_prepared=True,
        transfer_seconds=2.0,
    )

    assert str(stage_of([under_way])) == (
        "copying 3/10 tables, 12,345 rows: 25% of 40.0 MB, 5.0 MB/s, about 6 s left"
    )


def test_time_left_is_not_guessed_from_the_first_few_rows():
    begun = RoundProgress(
        table_count=2,
        tables_done=1,
        row_count=4,
        bytes_total=164_000_000,
        bytes_done=185,
        is_prepared=True,
        transfer_seconds=5.0,
    )

    assert str(stage_of([begun])) == "copying 1/2 tables, 4 rows: 0% of 164.0 MB, 0.0 MB/s"


def test_rows_that_are_there_wait_for_keys_and_indexes():
    whole = RoundProgress(
        table_count=1000,
        tables_done=585,
        tables_failed=1,
        row_count=100_000,
        bytes_total=8_200_000,
        bytes_done=8_200_000,
        is_prepared=True,
        transfer_seconds=9.0,
    )

    stage = stage_of([whole])

    assert str(stage) == (
        "copying 586/1,000 tables, 100,000 rows: all 8.2 MB are there, making keys and indexes"
    )
    assert (stage.done, stage.total) == (586, 1000)


def test_tables_without_rows_are_no_division_by_nothing():
    empty = RoundProgress(table_count=2, tables_begun=2, is_prepared=True)

    assert str(stage_of([empty])).endswith("all 0.0 MB are there, making keys and indexes")


def test_foreign_keys_are_counted_once_tables_stream():
    assert str(stage_of([RoundProgress(keys_due=900, keys_made=25)])) == (
        "making foreign keys: of 25 of 900 tables"
    )
