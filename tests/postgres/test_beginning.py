"""Tables that change between `init` and the first connection of capture. No Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fix_subscription import ALL, rules
from penstock.lsn import Lsn
from penstock.pipeline import state_of
from penstock.schema.mark import CHANGE
from penstock.schema.shape import read_change
from penstock.source.connect import connect_source
from penstock.source.options import Tracking
from penstock.source.subscription import ensure_subscription

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_capture import Capturing
    from fix_postgres import Database

GIVEN = "CREATE TABLE t (id int PRIMARY KEY, a text); CREATE TABLE other (id int PRIMARY KEY)"


def init(source: Database, tracking: Tracking = Tracking.TRIGGERS) -> None:
    with connect_source(source.dsn) as connection:
        ensure_subscription(connection, "test", rules(*ALL), tracking)


def shapes_of(capturing: Capturing, oid: int) -> list[tuple[str, ...] | None]:
    """A table's shapes, by its columns, one after another; None where it was gone."""
    found: list[tuple[str, ...] | None] = []
    for marks in state_of(capturing.file).past_shapes.transactions_after(Lsn(0)):
        for mark in marks:
            if mark.kind != CHANGE:
                continue
            change = read_change(mark.content, "")
            now = [tuple(c.name for c in each.columns) for each in change.tables if each.id == oid]
            now += [None for gone in change.dropped_tables if gone.id == oid]  # type: ignore[misc]
            found += [each for each in now if [each] != found[-1:]]
    return found


def number_of(source: Database, table: str) -> int:
    return int(source.value(f"SELECT '{table}'::regclass::oid::int8"))


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("ALTER TABLE t ADD b int", [("id", "a"), ("id", "a", "b")]),
        ("ALTER TABLE t DROP a", [("id", "a"), ("id",)]),
        ("ALTER TABLE t RENAME a TO b", [("id", "a"), ("id", "b")]),
        ("ALTER TABLE t ADD b int; ALTER TABLE t RENAME TO s", [("id", "a"), ("id", "a", "b")]),
        ("DROP TABLE t", [("id", "a"), None]),
    ],
)
def test_table_that_changes_before_capture_begins_is_known_as_it_was(
    source: Database,
    capture_of: Callable[..., Capturing],
    statement: str,
    expected: list[tuple[str, ...] | None],
):
    source.execute(GIVEN)
    oid = number_of(source, "t")
    init(source)
    source.execute("INSERT INTO t VALUES (1, 'x')")
    source.execute(statement)

    capturing = capture_of(source.url)
    capturing.catch_up()

    assert shapes_of(capturing, oid) == expected


def test_table_that_is_made_before_capture_begins_is_reported_once(
    source: Database, capture_of: Callable[..., Capturing]
):
    source.execute(GIVEN)
    init(source)
    source.execute("CREATE TABLE made (id int PRIMARY KEY)")
    source.execute("ALTER TABLE made ADD b int")

    capturing = capture_of(source.url)
    capturing.catch_up()

    assert shapes_of(capturing, number_of(source, "made")) == [("id",), ("id", "b")]
    assert shapes_of(capturing, number_of(source, "other")) == [("id",)]


def test_table_is_known_as_it_is_where_nothing_in_the_stream_describes_it(
    source: Database, capture_of: Callable[..., Capturing]
):
    source.execute(GIVEN)
    init(source, Tracking.RELATION)
    source.execute("ALTER TABLE t ADD b int")

    capturing = capture_of(source.url, tracking="relation")
    source.execute("INSERT INTO t VALUES (1, 'x', 2)")
    capturing.catch_up()

    assert shapes_of(capturing, number_of(source, "t")) == [("id", "a", "b")]
