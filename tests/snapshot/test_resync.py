"""Tables are copied again on request: the target becomes equal, and who reads it never sees half."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]
    Small = Callable[[int], None]


def fill(source: Database, table: str, count: int) -> None:
    source.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)")
    source.execute(
        f"INSERT INTO {table} SELECT g, repeat('v', 60) || g FROM generate_series(1, {count}) g"
    )


def ask(target: Database, *tables: str) -> None:
    """Ask for tables to be copied again."""
    target.execute(
        "UPDATE penstock.tables SET request = 'resync' WHERE table_name = ANY (%s)", list(tables)
    )


def wait_for_resync(target: Database, *tables: str, deadline_seconds: float = 60) -> None:
    """Wait until the request is taken and the tables stream again."""
    query = (
        "SELECT bool_and(request IS NULL AND state = 'streaming') FROM penstock.tables"
        " WHERE table_name = ANY (%s)"
    )
    wait_until(
        lambda: target.value(query, list(tables)),
        deadline_seconds,
        what=f"{tables} to stream again",
    )


def damage(target: Database, table: str = "t") -> None:
    """What an operator's accident does."""
    target.execute(f"DELETE FROM {table} WHERE id % 3 = 0")
    target.execute(f"UPDATE {table} SET v = 'wrong' WHERE id % 3 = 1")
    target.execute(f"INSERT INTO {table} SELECT -g, 'never there' FROM generate_series(1, 50) g")


@pytest.fixture
def in_thread() -> Iterator[Callable[[Callable[[threading.Event], None]], list[BaseException]]]:
    """Runs loops in threads until the test ends; what they raise is kept."""
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def begin(loop: Callable[[threading.Event], None]) -> list[BaseException]:
        failures: list[BaseException] = []

        def guarded() -> None:
            try:
                loop(stop)
            except BaseException as error:  # noqa: BLE001 - asserted on by the test
                failures.append(error)

        threads.append(threading.Thread(target=guarded))
        threads[-1].start()
        return failures

    yield begin
    stop.set()
    for thread in threads:
        thread.join()


def test_damaged_table_is_equal_again_after_a_resync_and_follows_on(
    source: Database, target: Database, make_pipeline: Make, small_ranges: Small
) -> None:
    small_ranges(1)
    fill(source, "t", 2000)
    fill(source, "u", 100)
    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    pipeline.catch_up()
    damage(target)

    ask(target, "t")
    source.execute("DELETE FROM t WHERE id < 10; INSERT INTO t VALUES (9000, 'meanwhile')")
    wait_for_resync(target, "t")
    source.execute("UPDATE t SET v = 'after' WHERE id BETWEEN 100 AND 200")
    pipeline.catch_up()

    assert_equal(source, target, "t", "u")
    shadows = (
        "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
        " WHERE nspname = 'penstock' AND relname LIKE 'copy\\_%'"
    )
    assert target.query(shadows) == []


@pytest.mark.long
@only_new
def test_reader_sees_a_table_whole_at_all_times_while_it_is_copied_again_and_others_stream(
    source: Database,
    target: Database,
    make_pipeline: Make,
    small_ranges: Small,
    in_thread: Callable[[Callable[[threading.Event], None]], list[BaseException]],
) -> None:
    small_ranges(1)
    source.execute("CREATE TABLE t (id int PRIMARY KEY, money int NOT NULL, pad text)")
    source.execute("INSERT INTO t SELECT g, 100, repeat('x', 100) FROM generate_series(1, 2000) g")
    source.execute("CREATE TABLE beat (id bigserial PRIMARY KEY)")
    pipeline = make_pipeline(source, target, source_options=slowly(700))
    pipeline.catch_up()
    seen: list[Any] = []
    beats: list[str] = []

    def write(stop: threading.Event) -> None:
        with source.connect(autocommit=False) as connection:
            number = 0
            while not stop.wait(0.005):
                number += 1
                one, other = 1 + number * 7 % 2000, 1 + number * 13 % 2000
                connection.execute("UPDATE t SET money = money - 3 WHERE id = %s", (one,))
                connection.execute("UPDATE t SET money = money + 3 WHERE id = %s", (other,))
                connection.execute("UPDATE t SET id = -id WHERE id = %s", (one,))
                connection.execute("UPDATE t SET id = -id WHERE id = %s", (-one,))
                connection.execute("INSERT INTO beat DEFAULT VALUES")
                connection.commit()

    def watch(stop: threading.Event) -> None:
        with target.connect() as connection:
            while not stop.wait(0.002):
                row = connection.execute("SELECT sum(money), count(*), min(id) FROM t").fetchone()
                if row != (200_000, 2000, 1):
                    seen.append(row)

    writing, watching = in_thread(write), in_thread(watch)
    for _ in range(2):
        ask(target, "t")
        wait_for_state(target, "t", "copying")
        mark = target.value("SELECT count(*) FROM beat")
        both = (
            "SELECT (SELECT count(*) FROM beat), state FROM penstock.tables WHERE table_name = 't'"
        )

        def flows_meanwhile() -> str:
            [(count, state)] = target.query(both)  # noqa: B023
            if state == "copying" and count > mark:  # noqa: B023
                return "flows"
            return "" if state in ("pending", "copying") else "over"

        beats.append(wait_until(flows_meanwhile, what="the other table to flow meanwhile"))
        wait_for_resync(target, "t")
    pipeline.catch_up()

    assert (writing, watching) == ([], [])
    assert seen == []
    assert beats == ["flows", "flows"]


@pytest.mark.long
@only_new
def test_resync_lets_go_of_a_table_that_had_stopped_on_a_row(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    fill(source, "t", 500)
    fill(source, "u", 500)
    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    pipeline.catch_up()
    target.execute("ALTER TABLE t ADD CONSTRAINT not_bad CHECK (v <> 'bad')")
    source.execute("UPDATE t SET v = 'bad' WHERE id = 7")
    wait_for_state(target, "t", "failed")
    source.execute("UPDATE t SET v = 'good' WHERE id = 7; DELETE FROM t WHERE id = 8")

    # The bad row lies in the log and stays there; a copy shows what is there now.
    ask(target, "t")
    wait_for_resync(target, "t")
    pipeline.catch_up()

    assert_equal(source, target, "t", "u")
    assert table_error(target, "t") == ""


@pytest.mark.long
@only_new
def test_resync_of_a_table_whose_copy_failed_is_tried_at_once(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    fill(source, "t", 500)
    target.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(3))")
    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    pipeline.catch_up()
    wait_for_state(target, "t", "failed")
    target.execute("ALTER TABLE t ALTER v TYPE text")
    # Its own next attempt is far away.
    target.execute("UPDATE penstock.tables SET retry_at = now() + interval '1 day'")

    ask(target, "t")
    wait_for_resync(target, "t", deadline_seconds=20)
    pipeline.catch_up()

    assert_equal(source, target, "t")


@pytest.mark.long
@pytest.mark.parametrize("identity", ["full", "insert_only"])
@only_new
def test_table_without_a_key_is_equal_again_after_a_resync(
    source: Database, target: Database, make_pipeline: Make, identity: str
) -> None:
    source.execute("CREATE TABLE t (n int, v text)")
    options = {**ALWAYS_COPIED, "insert_only": ["public.t"] if identity == "insert_only" else []}
    if identity == "full":
        source.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    source.execute("INSERT INTO t SELECT g % 5, 'v' FROM generate_series(1, 500) g")
    pipeline = make_pipeline(source, target, source_options=options)
    pipeline.catch_up()
    target.execute("DELETE FROM t WHERE n = 1; INSERT INTO t VALUES (77, 'never there')")
    source.execute("DELETE FROM t WHERE n = 2")

    ask(target, "t")
    source.execute("INSERT INTO t VALUES (3, 'meanwhile')")
    wait_for_resync(target, "t")
    pipeline.catch_up()

    assert_equal(source, target, "t")


@pytest.mark.long
@only_new
def test_resync_that_is_asked_of_a_stopped_pipeline_happens_at_the_next_start(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    fill(source, "t", 500)
    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    pipeline.catch_up()
    pipeline.stop()
    damage(target)
    source.execute("DELETE FROM t WHERE id > 400")
    ask(target, "t")

    pipeline.start()
    pipeline.catch_up()

    wait_for_resync(target, "t")
    assert_equal(source, target, "t")


@pytest.mark.long
@only_new
def test_resync_works_where_tables_are_not_copied_before_they_are_followed(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    fill(source, "t", 500)
    pipeline = make_pipeline(source, target)
    source.execute("INSERT INTO t VALUES (1000, 'streamed')")
    pipeline.catch_up()
    assert target.value("SELECT count(*) FROM t") == 1

    ask(target, "t")
    wait_for_resync(target, "t")
    source.execute("DELETE FROM t WHERE id = 1")
    pipeline.catch_up()

    assert_equal(source, target, "t")


@pytest.mark.long
@only_new
def test_resync_that_is_asked_during_a_resync_is_another_one(
    source: Database, target: Database, make_pipeline: Make, small_ranges: Small
) -> None:
    small_ranges(1)
    fill(source, "t", 2000)
    pipeline = make_pipeline(source, target, source_options=slowly(1500))
    pipeline.catch_up()
    copies = "SELECT copy_id FROM penstock.tables WHERE table_name = 't'"
    ask(target, "t")
    wait_for_state(target, "t", "copying")
    first = target.value(copies)
    damage(target)

    ask(target, "t")
    wait_for_resync(target, "t")
    pipeline.catch_up()

    assert_equal(source, target, "t")
    assert target.value(copies) != first


@only_new
def test_resync_makes_a_table_again_that_was_dropped_at_the_target(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    fill(source, "t", 500)
    source.execute("CREATE INDEX t_v ON t (v)")
    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    pipeline.catch_up()
    target.execute("DROP TABLE t")
    source.execute("DELETE FROM t WHERE id < 10")
    wait_for_state(target, "t", "failed")

    ask(target, "t")
    wait_for_resync(target, "t")
    source.execute("UPDATE t SET v = 'after' WHERE id = 100")
    pipeline.catch_up()

    assert_equal(source, target, "t")
    indexes = "SELECT indexname FROM pg_indexes WHERE tablename = 't' ORDER BY 1"
    assert target.query(indexes) == source.query(indexes)


@pytest.mark.long
@only_new
def test_resync_swaps_values_that_are_unique(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, place int UNIQUE)")
    source.execute("INSERT INTO t SELECT g, g FROM generate_series(1, 100) g")
    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    pipeline.catch_up()
    target.execute("BEGIN; UPDATE t SET place = -place; UPDATE t SET place = 101 - id; COMMIT")
    assert target.value("SELECT place FROM t WHERE id = 1") == 100

    ask(target, "t")
    wait_for_resync(target, "t")
    pipeline.catch_up()

    assert_equal(source, target, "t")


@pytest.mark.long
@only_new
def test_resync_fixes_the_spelling_of_a_key(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id numeric PRIMARY KEY, v text)")
    source.execute("INSERT INTO t VALUES (1.0, 'a'), (2.00, 'b')")
    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    pipeline.catch_up()
    target.execute("UPDATE t SET id = 1.000 WHERE id = 1")

    ask(target, "t")
    wait_for_resync(target, "t")

    assert_equal(source, target, "t")


@pytest.mark.long
@only_new
def test_resync_removes_doubled_rows_of_a_target_that_has_no_key(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    fill(source, "t", 100)
    target.execute("CREATE TABLE t (id int, v text)")
    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    pipeline.catch_up()
    target.execute("INSERT INTO t SELECT * FROM t WHERE id < 50")

    ask(target, "t")
    wait_for_resync(target, "t")

    assert_equal(source, target, "t")


@pytest.mark.long
@only_new
def test_resync_keeps_what_the_target_has_beside_the_source(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    fill(source, "t", 100)
    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    pipeline.catch_up()
    target.execute("ALTER TABLE t ADD COLUMN own text; UPDATE t SET own = 'o' || id")
    target.execute("CREATE VIEW reads AS SELECT count(*) AS n FROM t")
    target.execute("UPDATE t SET v = 'wrong' WHERE id % 2 = 0; DELETE FROM t WHERE id = 5")

    ask(target, "t")
    wait_for_resync(target, "t")
    pipeline.catch_up()

    query = "SELECT id, v FROM t ORDER BY id"
    assert target.query(query) == source.query(query)
    assert target.value("SELECT count(*) FROM t WHERE own = 'o' || id") == 99
    assert target.value("SELECT n FROM reads") == 100


@pytest.mark.long
@only_new
def test_resync_of_tables_that_refer_to_each_other_keeps_the_references(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    fill(source, "t", 300)
    source.execute("CREATE TABLE u (id int PRIMARY KEY, t int REFERENCES t ON DELETE CASCADE)")
    source.execute("INSERT INTO u SELECT g, g FROM generate_series(1, 300) g")
    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    pipeline.catch_up()
    key = "SELECT 1 FROM pg_constraint WHERE conname = 'u_t_fkey' AND convalidated"
    wait_until(lambda: target.query(key), what="the foreign key")
    target.execute("DELETE FROM t WHERE id < 50; INSERT INTO t VALUES (-1, 'x')")
    target.execute("INSERT INTO u VALUES (-1, -1)")
    assert target.value("SELECT count(*) FROM u") == 252

    ask(target, "t", "u")
    wait_for_resync(target, "t", "u")
    source.execute("DELETE FROM t WHERE id = 100")
    pipeline.catch_up()

    assert_equal(source, target, "t", "u")
    assert target.query(key)


@only_new
def test_tables_that_are_added_and_taken_out_of_the_file_between_runs_are_copied_and_left(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    for table in ("a", "b", "c"):
        fill(source, table, 300)
    first = make_pipeline(
        source, target, tables=("public.a", "public.b"), source_options=ALWAYS_COPIED
    )
    first.catch_up()
    assert_equal(source, target, "a", "b")
    assert target.value("SELECT to_regclass('c')") is None
    first.stop()

    second = make_pipeline(
        source, target, tables=("public.a", "public.c"), source_options=ALWAYS_COPIED
    )
    source.execute("DELETE FROM a WHERE id < 10; UPDATE c SET v = 'w' WHERE id < 10")
    second.catch_up()
    kept = rows(target, "b")
    source.execute("DELETE FROM b WHERE id < 100; UPDATE b SET v = 'unseen' WHERE id > 250")
    second.catch_up()
    assert_equal(source, target, "a", "c")
    assert rows(target, "b") == kept
    assert table_state(target, "b") == "removed"
    second.stop()

    third = make_pipeline(source, target, tables=("public.*",), source_options=ALWAYS_COPIED)
    third.catch_up()
    source.execute("UPDATE b SET v = 'seen' WHERE id = 200")
    third.catch_up()

    assert_equal(source, target, "a", "b", "c")
    assert table_state(target, "b") == "streaming"
