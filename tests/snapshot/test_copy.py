"""Tables are copied, then followed: what was there before and what comes meanwhile both arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fix_pipeline import ALWAYS_COPIED, assert_equal
from fix_postgres import only_new

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]


@only_new
def test_rows_that_were_there_before_arrive_and_later_changes_follow(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.execute("INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 1000) g")
    source.execute("CREATE TABLE empty (id int PRIMARY KEY)")
    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    pipeline.catch_up()
    assert_equal(source, target, "t", "empty")
    assert target.value("SELECT count(*) FROM t") == 1000
    source.execute("UPDATE t SET v = 'w' WHERE id < 10; DELETE FROM t WHERE id > 990")
    source.execute("INSERT INTO empty VALUES (1)")
    pipeline.catch_up()
    assert_equal(source, target, "t", "empty")
