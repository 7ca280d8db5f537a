"""Streaming into a Postgres target, end to end, on real servers and real Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fix_pipeline import assert_equal, rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]


def test_inserts_updates_and_deletes_arrive(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline = make_pipeline(source, target)

    source.execute("INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 100) g")
    source.execute("UPDATE t SET v = v || E' \\\\ \\t \\n \\r' WHERE id % 3 = 0")
    source.execute("DELETE FROM t WHERE id % 5 = 0")
    source.execute("UPDATE t SET v = NULL WHERE id % 7 = 0")
    pipeline.catch_up()

    assert_equal(source, target, "t")


def test_unchanged_toast_keeps_value(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, n int, big text, other text)")
    source.execute("ALTER TABLE t ALTER big SET STORAGE EXTERNAL, ALTER other SET STORAGE EXTERNAL")
    pipeline = make_pipeline(source, target)

    source.execute(
        "INSERT INTO t SELECT g, 0, repeat(md5(g::text), 300), repeat('o', 9000)"
        " FROM generate_series(1, 20) g"
    )
    pipeline.catch_up()
    source.execute("UPDATE t SET n = id")
    pipeline.catch_up()
    with source.connect(autocommit=False) as connection:
        connection.execute("UPDATE t SET big = repeat('new', 3000) WHERE id = 1")
        connection.execute("UPDATE t SET n = n + 1 WHERE id <= 2")
        connection.execute("UPDATE t SET id = id + 100 WHERE id IN (1, 3)")
        connection.execute("UPDATE t SET other = 'short' WHERE id = 103")
        connection.execute("DELETE FROM t WHERE id = 4")
        connection.execute("INSERT INTO t VALUES (4, 4, 'fresh', 'fresh')")
        connection.execute("UPDATE t SET n = 5 WHERE id = 4")
        connection.commit()
    pipeline.catch_up()

    assert_equal(source, target, "t")


def test_keys_and_unique_values_may_swap(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, big text)")
    source.execute("ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    target.execute("CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, big text)")
    pipeline = make_pipeline(source, target)

    source.execute("INSERT INTO t SELECT g, g, repeat(g::text, 4000) FROM generate_series(1, 10) g")
    pipeline.catch_up()
    with source.connect(autocommit=False) as connection:
        for statement in (
            "UPDATE t SET u = -1 WHERE id = 1",
            "UPDATE t SET u = 1 WHERE id = 2",
            "UPDATE t SET u = 2 WHERE id = 1",
            "UPDATE t SET id = -1 WHERE id = 3",
            "UPDATE t SET id = 3 WHERE id = 4",
            "UPDATE t SET id = 4 WHERE id = -1",
        ):
            connection.execute(statement)
        connection.commit()
    pipeline.catch_up()

    assert_equal(source, target, "t")
    assert not pipeline.deliveries[0].stopped_tables


def test_table_without_key_is_matched_by_whole_rows(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (a int, b text, c json)")
    source.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    pipeline = make_pipeline(source, target)

    source.execute("INSERT INTO t SELECT g % 3, NULL, '{\"a\": 1}' FROM generate_series(1, 12) g")
    pipeline.catch_up()
    source.execute("DELETE FROM t WHERE ctid = (SELECT min(ctid) FROM t)")
    source.execute("UPDATE t SET b = 'x' WHERE ctid = (SELECT max(ctid) FROM t)")
    pipeline.catch_up()
    source.execute("UPDATE t SET b = 'y' WHERE a = 1")
    source.execute("DELETE FROM t WHERE a = 0")
    pipeline.catch_up()

    assert_equal(source, target, "t")


def test_truncate_takes_effect_between_the_changes_around_it(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE p (id int PRIMARY KEY)")
    source.execute("CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p)")
    pipeline = make_pipeline(source, target)

    source.execute("INSERT INTO p SELECT generate_series(1, 5)")
    source.execute("INSERT INTO c SELECT g, g FROM generate_series(1, 5) g")
    with source.connect(autocommit=False) as connection:
        connection.execute("INSERT INTO p VALUES (6)")
        connection.execute("TRUNCATE p CASCADE")
        connection.execute("INSERT INTO p VALUES (1), (7)")
        connection.commit()
    pipeline.catch_up()

    assert rows(target, "p") == [("(1)",), ("(7)",)]
    assert rows(target, "c") == []


def test_large_streamed_transaction_with_rolled_back_parts_arrives_whole(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline = make_pipeline(source, target)

    with source.connect(autocommit=False) as connection:
        connection.execute("SET logical_decoding_work_mem = '64kB'")
        connection.execute(
            "INSERT INTO t SELECT g, repeat('a', 500) FROM generate_series(1, 40000) g"
        )
        connection.execute("SAVEPOINT s")
        connection.execute(
            "INSERT INTO t SELECT g, repeat('b', 500) FROM generate_series(50001, 150000) g"
        )
        connection.execute("UPDATE t SET v = 'never'")
        connection.execute("ROLLBACK TO s")
        connection.execute(
            "INSERT INTO t SELECT g, repeat('c', 500) FROM generate_series(200001, 300000) g"
        )
        source.execute("INSERT INTO t VALUES (-1, 'meanwhile')")
        pipeline.catch_up()
        assert target.value("SELECT count(*) FROM t") == 1
        connection.commit()
    pipeline.catch_up()

    checksum = "SELECT count(*), sum(id), sum(hashtext(v)) FROM t"
    assert target.query(checksum) == source.query(checksum)


def test_prepared_transaction_arrives_at_commit_prepared(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    pipeline = make_pipeline(source, target)
    source.execute("INSERT INTO t VALUES (0)")

    for number in (1, 2):
        with source.connect(autocommit=False) as connection:
            connection.execute(f"INSERT INTO t VALUES ({number})")
            connection.execute(f"PREPARE TRANSACTION 'p{number}'")
    pipeline.catch_up()
    before = rows(target, "t")
    source.execute("COMMIT PREPARED 'p1'")
    source.execute("ROLLBACK PREPARED 'p2'")
    pipeline.catch_up()

    assert before == [("(0)",)]
    assert rows(target, "t") == [("(0)",), ("(1)",)]


def test_refused_row_stops_its_table_names_the_key_and_goes_on_when_fixed(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE bad (id int PRIMARY KEY, n int)")
    source.execute("CREATE TABLE good (id int PRIMARY KEY, n int)")
    target.execute("CREATE TABLE bad (id int PRIMARY KEY, n int CHECK (n <> 13))")
    pipeline = make_pipeline(source, target)

    source.execute("INSERT INTO bad SELECT g, g FROM generate_series(1, 12) g")
    with source.connect(autocommit=False) as connection:
        connection.execute("INSERT INTO bad SELECT g, g FROM generate_series(13, 20) g")
        connection.execute("INSERT INTO good VALUES (1, 1)")
        connection.commit()
    source.execute("DELETE FROM bad WHERE id = 2")
    source.execute("INSERT INTO good VALUES (2, 2)")
    pipeline.catch_up()

    delivery = pipeline.deliveries[0]
    reported = {str(table): error for table, error in delivery.stopped_tables.items()}
    assert list(reported) == ["public.bad"]
    assert "id=13" in reported["public.bad"]
    assert_equal(source, target, "good")

    target.execute("ALTER TABLE bad DROP CONSTRAINT bad_n_check")
    from fix_wait import wait_until

    wait_until(lambda: not delivery.stopped_tables, what="the table to catch up")
    source.execute("INSERT INTO bad VALUES (100, 100)")
    pipeline.catch_up()
    assert_equal(source, target, "bad", "good")


def test_table_that_appears_and_matches_is_followed(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    from fix_wait import wait_until

    pipeline = make_pipeline(source, target, tables=("public.*",))
    source.execute("CREATE TABLE late (id int PRIMARY KEY)")

    published: Any = lambda: source.query(  # noqa: E731
        "SELECT 1 FROM pg_publication_tables WHERE tablename = 'late'"
    )
    wait_until(published, what="the new table to be published")
    source.execute("INSERT INTO late VALUES (1)")
    pipeline.catch_up()

    assert_equal(source, target, "late")


def test_partitions_arrive_under_their_root(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TABLE p (id int, k int, v text, PRIMARY KEY (id, k)) PARTITION BY LIST (k)"
    )
    source.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)")
    source.execute("CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2)")
    pipeline = make_pipeline(source, target)

    source.execute("INSERT INTO p SELECT g, 1 + g % 2, 'v' FROM generate_series(1, 10) g")
    source.execute("UPDATE p SET k = 3 - k WHERE id <= 3")
    source.execute("DELETE FROM p WHERE id = 10")
    pipeline.catch_up()

    assert_equal(source, target, "p")
    assert target.value("SELECT to_regclass('p1')") is None
