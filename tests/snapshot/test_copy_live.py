"""Tables that are written to while they are copied: what was there and what came both arrive, once."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import pytest
from test_property import Writer, ddl, make_tables

from fix_pipeline import ALWAYS_COPIED, assert_equal, rows, slowly, table_state, wait_for_state
from fix_postgres import only_15, only_new
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import psycopg

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]
    Small = Callable[[int], None]


def wait_for_copy(target: Database, table: str = "t", ranges: int = 1) -> None:
    """Wait until the copy of a table is in its middle."""
    count = "SELECT count(*) FROM penstock.ranges WHERE table_name = %s"
    wait_until(
        lambda: table_state(target, table) == "copying" and target.value(count, table) >= ranges,
        60,
        what=f"{ranges} ranges of {table} to arrive",
    )


def random_copy(
    source: Database,
    target: Database,
    make_pipeline: Make,
    directory: Path,
    seed: int,
) -> None:
    """Random tables with rows, random work while they are copied, a stop in the middle or not."""
    dice = random.Random(seed)
    tables = make_tables(dice)
    work = dice.choice(("64kB", "64MB"))
    source.execute(f"ALTER DATABASE \"{source.name}\" SET logical_decoding_work_mem = '{work}'")
    with (directory / "sql.txt").open("w") as log:
        for table in tables:
            for statement in ddl(table):
                log.write(f"{statement};\n")
                source.execute(statement)
        writer = Writer(dice, tables, log, sizes=(7, 60, 300))
        with source.connect(autocommit=False) as one, source.connect(autocommit=False) as other:
            for connection in (one, other):
                connection.execute("SET lock_timeout = '30ms'")
                connection.commit()
            for _ in range(12):
                writer.transaction(one)
            pipeline = make_pipeline(
                source, target, source_options=slowly(dice.choice((800, 3000)))
            )
            if dice.random() < 0.5:
                for _ in range(4):
                    writer.transaction(one, other)
                pipeline.stop()
                writer.transaction(one, other)
                pipeline.start()
            most = 150
            # The writer's numbers must stay integers of the tables' columns.
            while (
                most
                and writer.number < 1500
                and not all(table_state(target, t.name) == "streaming" for t in tables)
            ):
                writer.transaction(one, other) if dice.random() < 0.4 else writer.transaction(one)
                most -= 1
        log.flush()
        pipeline.catch_up(120)
        assert not pipeline.deliveries[0].stopped_tables, f"seed {seed}"
        for table in tables:
            there, here = rows(target, table.name), rows(source, table.name)
            assert there == here, f"seed {seed}: {table} differs"


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3, 4))]
)
@only_new
def test_random_work_on_random_tables_while_they_are_copied_ends_equal(
    source: Database,
    target: Database,
    make_pipeline: Make,
    small_ranges: Small,
    tmp_path: Path,
    seed: int,
) -> None:
    small_ranges(1)
    random_copy(source, target, make_pipeline, tmp_path, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", [101])
@only_15
def test_random_work_on_random_tables_while_they_are_copied_ends_equal_on_15(
    source: Database,
    target: Database,
    make_pipeline: Make,
    small_ranges: Small,
    tmp_path: Path,
    seed: int,
) -> None:
    small_ranges(1)
    random_copy(source, target, make_pipeline, tmp_path, seed)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(1001, 1021))
def test_much_random_work_on_random_tables_while_they_are_copied_ends_equal(
    source: Database,
    target: Database,
    make_pipeline: Make,
    small_ranges: Small,
    tmp_path: Path,
    seed: int,
) -> None:
    small_ranges(1)
    random_copy(source, target, make_pipeline, tmp_path, seed)


class Movers:
    """Threads that move money between rows, by new rows, new keys and rewritten rows, all the time."""

    TOTAL = 3000 * 100

    def __init__(self, source: Database, thread_count: int) -> None:
        self._source = source
        self._stop = threading.Event()
        self.counts = [0] * thread_count
        self.failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._guard, args=(number,)) for number in range(thread_count)
        ]

    def open(self) -> None:
        self._source.execute(
            "CREATE TABLE t (id bigint PRIMARY KEY, money int NOT NULL, pad text)"
            " WITH (autovacuum_enabled = false, fillfactor = 100)"
        )
        self._source.execute(
            "INSERT INTO t SELECT g, 100, repeat('x', 100) FROM generate_series(1, 3000) g"
        )

    def __enter__(self) -> Movers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _guard(self, number: int) -> None:
        try:
            with self._source.connect(autocommit=False) as connection:
                self._move(number, connection)
        except BaseException as error:  # noqa: BLE001 - asserted on by the test
            self.failures.append(error)

    def _move(self, number: int, connection: psycopg.Connection[Any]) -> None:
        dice = random.Random(number)
        while not self._stop.wait(0.003):
            n = self.counts[number]
            fresh = 10_000 + number * 10_000_000 + n
            some = connection.execute(
                "SELECT id FROM t WHERE id %% 4 = %s ORDER BY random() LIMIT 4 FOR UPDATE SKIP LOCKED",
                (number,),
            ).fetchall()
            if len(some) < 4:
                connection.rollback()
                continue
            one, two, three, four = (key for (key,) in some)
            # Rewritten, and so moved to another page: from behind the copy to before it, or back.
            connection.execute("UPDATE t SET money = money - 7 WHERE id = %s", (one,))
            connection.execute("SAVEPOINT s")
            connection.execute(
                "UPDATE t SET money = 0, pad = 'never' WHERE id = ANY (%s)",
                ([key for (key,) in some],),
            )
            connection.execute("DELETE FROM t WHERE id = %s", (four,))
            connection.execute("ROLLBACK TO s")
            connection.execute(
                "UPDATE t SET money = money + 7, pad = repeat('y', %s) WHERE id = %s",
                (dice.randint(0, 1500), two),
            )
            # Another key; the last digit stays, so that movers keep to rows of their own.
            connection.execute("UPDATE t SET id = %s WHERE id = %s", (fresh * 4 + number, three))
            connection.execute(
                "WITH gone AS (DELETE FROM t WHERE id = %s RETURNING money)"
                " INSERT INTO t SELECT %s, money, 'new' FROM gone",
                (four, (fresh + 5_000_000_000) * 4 + number),
            )
            connection.rollback() if n % 13 == 12 else connection.commit()
            self.counts[number] += 1


@pytest.mark.long
@only_new
def test_moved_rows_are_there_once_and_their_total_is_kept_at_all_times_after_the_copy(
    source: Database, target: Database, make_pipeline: Make, small_ranges: Small
) -> None:
    small_ranges(1)
    movers = Movers(source, 3)
    movers.open()
    torn: list[Any] = []
    seen = 0
    with movers:
        wait_until(lambda: min(movers.counts) > 30, what="the movers to begin")
        pipeline = make_pipeline(source, target, source_options=slowly(1500))
        wait_for_copy(target, ranges=5)
        mark = list(movers.counts)
        with target.connect() as watcher:

            def poll() -> bool:
                nonlocal seen
                # The state comes first: what streams at the first poll is whole at the second.
                streams = table_state(target, "t") == "streaming"
                row = watcher.execute(
                    "SELECT sum(money), count(*), count(DISTINCT id) FROM t"
                ).fetchone()
                if streams:
                    seen += 1
                    if row != (Movers.TOTAL, 3000, 3000):
                        torn.append(row)
                return seen > 100

            wait_until(poll, 120, what="the table to stream, and polls of it")
        assert all(now > then for now, then in zip(movers.counts, mark, strict=True))
    pipeline.catch_up()

    assert movers.failures == []
    assert torn == []
    assert_equal(source, target, "t")
    assert target.value("SELECT sum(money) FROM t") == Movers.TOTAL


@pytest.fixture
def busy(source: Database) -> Iterator[Callable[[str], psycopg.Connection[Any]]]:
    """Opens sessions with a transaction under way; closed after the test."""
    opened: list[psycopg.Connection[Any]] = []

    def begin(statement: str) -> psycopg.Connection[Any]:
        opened.append(source.connect(autocommit=False))
        opened[-1].execute(statement)
        return opened[-1]

    yield begin
    for connection in opened:
        connection.close()


def fill(source: Database, table: str, count: int) -> None:
    source.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)")
    source.execute(
        f"INSERT INTO {table} SELECT g, repeat('v', 60) || g FROM generate_series(1, {count}) g"
    )


@pytest.mark.long
def test_large_transactions_that_are_open_before_during_and_after_the_copy_arrive_once(
    source: Database,
    target: Database,
    make_pipeline: Make,
    small_ranges: Small,
    busy: Callable[[str], psycopg.Connection[Any]],
) -> None:
    small_ranges(1)
    # Large enough to be sent in pieces, before it is known whether they commit.
    source.execute(f"ALTER DATABASE \"{source.name}\" SET logical_decoding_work_mem = '64kB'")
    pipeline = make_pipeline(source, target, source_options=slowly(1500))
    pipeline.catch_up()
    fill(source, "t", 3000)
    early = busy("UPDATE t SET v = 'early' || id WHERE id <= 2000")
    wait_for_state(target, "t", "pending")
    early.commit()  # a snapshot waits for whoever is open when it is asked for

    wait_for_copy(target, ranges=2)
    across = busy("INSERT INTO t SELECT g, 'across' FROM generate_series(4001, 6000) g")
    undone = busy("DELETE FROM t WHERE id > 2700")
    during = busy("UPDATE t SET v = 'during', id = -id WHERE id BETWEEN 2001 AND 2400")
    during.commit()
    undone.rollback()
    assert table_state(target, "t") == "copying"
    wait_for_state(target, "t", "streaming")
    across.execute("UPDATE t SET v = 'across, too' WHERE id < 100")
    across.commit()
    pipeline.catch_up()

    assert_equal(source, target, "t")
    assert target.value("SELECT count(*) FROM t") == 5000


@pytest.mark.long
@only_new
def test_copy_waits_for_open_transactions_says_so_and_takes_what_they_did(
    source: Database,
    target: Database,
    make_pipeline: Make,
    busy: Callable[[str], psycopg.Connection[Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(source, "t", 500)
    fill(source, "u", 500)
    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    pipeline.catch_up()
    assert_equal(source, target, "t", "u")

    held = busy("UPDATE t SET v = 'held' WHERE id < 100")
    fill(source, "w", 500)
    with caplog.at_level("WARNING"):
        wait_until(lambda: "the copy waits for 1 open transactions" in caplog.text, 30)
    assert table_state(target, "w") == "pending"
    source.execute("UPDATE w SET v = 'meanwhile' WHERE id < 10; DELETE FROM u WHERE id < 10")
    wait_until(lambda: rows(target, "u") == rows(source, "u"), what="u to flow meanwhile")
    held.commit()
    pipeline.catch_up()

    assert_equal(source, target, "t", "u", "w")


def test_prepared_transactions_across_the_snapshot_arrive_once(
    source: Database, target: Database, make_pipeline: Make, small_ranges: Small
) -> None:
    small_ranges(1)
    fill(source, "t", 2000)
    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    pipeline.catch_up()

    fill(source, "u", 2000)
    for number in range(2):
        with source.connect(autocommit=False) as connection:
            connection.execute(f"UPDATE u SET v = 'p{number}' WHERE id % 5 = {number}")
            connection.execute(f"INSERT INTO t VALUES ({3000 + number}, 'p')")
            connection.execute(f"PREPARE TRANSACTION 'p{number}{source.name}'")
    wait_for_state(target, "u", "pending")
    for number, end in enumerate(("COMMIT", "ROLLBACK")):
        source.execute(f"{end} PREPARED 'p{number}{source.name}'")
    pipeline.catch_up(120)

    assert_equal(source, target, "t", "u")
    assert target.value("SELECT count(*) FROM u WHERE v = 'p0'") == 400


@pytest.mark.long
@only_new
def test_prepared_transaction_after_the_snapshot_arrives_when_it_is_committed(
    source: Database, target: Database, make_pipeline: Make, small_ranges: Small
) -> None:
    small_ranges(1)
    fill(source, "t", 3000)
    pipeline = make_pipeline(source, target, source_options=slowly(2500))
    wait_for_copy(target, ranges=2)
    with source.connect(autocommit=False) as connection:
        connection.execute("UPDATE t SET id = id + 100000 WHERE id % 3 = 0")
        connection.execute(f"PREPARE TRANSACTION 'p{source.name}'")
    wait_for_state(target, "t", "streaming")
    assert target.value("SELECT count(*) FROM t WHERE id > 100000") == 0

    source.execute(f"COMMIT PREPARED 'p{source.name}'")
    pipeline.catch_up()

    assert_equal(source, target, "t")


@pytest.mark.parametrize("then", [pytest.param("nothing", marks=pytest.mark.long), "insert"])
def test_truncate_during_the_copy_leaves_only_what_came_after_it(
    source: Database, target: Database, make_pipeline: Make, small_ranges: Small, then: str
) -> None:
    small_ranges(1)
    fill(source, "t", 3000)
    fill(source, "u", 200)
    pipeline = make_pipeline(source, target, source_options=slowly(2500))
    wait_for_copy(target, ranges=2)

    # A reader of the snapshot holds a lock until the copy is over: TRUNCATE waits for it.
    source.execute("TRUNCATE t, u")
    if then == "insert":
        source.execute("INSERT INTO t SELECT g, 'again' FROM generate_series(1, 100) g")
    pipeline.catch_up(120)

    assert_equal(source, target, "t", "u")
    assert target.value("SELECT count(*) FROM t") == (100 if then == "insert" else 0)


@pytest.mark.long
@only_new
def test_truncate_before_the_table_is_read_takes_the_rows_that_the_snapshot_showed(
    source: Database, target: Database, make_pipeline: Make, small_ranges: Small
) -> None:
    small_ranges(1)
    fill(source, "t", 2000)
    fill(source, "z", 3000)  # larger, and so read later
    pipeline = make_pipeline(source, target, source_options=slowly(1500))
    wait_for_copy(target, ranges=2)

    source.execute("TRUNCATE z")
    source.execute("INSERT INTO z SELECT g, 'again' FROM generate_series(1, 50) g")
    pipeline.catch_up(120)

    assert_equal(source, target, "t", "z")


@pytest.mark.long
@only_new
def test_many_tables_of_several_schemas_are_copied_while_they_are_written_to(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    names = [f"s{number % 5}.t{number}" for number in range(120)]
    with source.connect(autocommit=False) as connection:
        for number in range(5):
            connection.execute(f"CREATE SCHEMA s{number}")
        for number, name in enumerate(names):
            connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
            connection.execute(
                f"INSERT INTO {name} SELECT g, 'v' FROM generate_series(1, {number * 7}) g"
            )
        connection.commit()
    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    for name in names[::3]:
        source.execute(
            f"INSERT INTO {name} VALUES (-1, 'new'); DELETE FROM {name} WHERE id % 5 = 0"
        )
    pipeline.catch_up(180)

    assert_equal(source, target, *names)
    states = target.query("SELECT state, count(*) FROM penstock.tables GROUP BY 1")
    assert states == [("streaming", 120)]


@only_new
def test_tables_that_come_go_and_are_renamed_during_a_copy_end_as_at_the_source(
    source: Database, target: Database, make_pipeline: Make, small_ranges: Small
) -> None:
    small_ranges(1)
    fill(source, "t", 3000)
    for table, count in (("dropped", 4000), ("renamed", 4100), ("kept", 100)):
        fill(source, table, count)
    pipeline = make_pipeline(source, target, source_options=slowly(2000))
    wait_for_copy(target, ranges=2)

    fill(source, "born", 300)
    source.execute("INSERT INTO born VALUES (1000, 'later')")
    source.execute("DROP TABLE dropped")
    source.execute("ALTER TABLE renamed RENAME TO other_name")
    source.execute("UPDATE other_name SET v = 'renamed' WHERE id < 100")
    wait_for_state(target, "born", "streaming")
    wait_for_state(target, "other_name", "streaming")
    # The stream may have reported the rename before the catalog was polled: then the name is nobody's.
    for gone in ("dropped", "renamed"):
        wait_until(
            lambda: table_state(target, gone) in ("removed", None),  # noqa: B023
            60,
            what=f"{gone} to be followed no more",
        )
    pipeline.catch_up(120)

    assert_equal(source, target, "t", "kept", "born", "other_name")


@pytest.mark.long
@only_new
def test_second_table_is_copied_while_the_first_streams_and_never_holds_it_up(
    source: Database, target: Database, make_pipeline: Make, small_ranges: Small
) -> None:
    small_ranges(1)
    fill(source, "t", 500)
    pipeline = make_pipeline(source, target, source_options=slowly(1500))
    pipeline.catch_up()

    fill(source, "u", 9000)
    wait_for_copy(target, "u", ranges=2)
    flowed = 0
    for number in range(3):
        source.execute(
            f"INSERT INTO t VALUES ({1000 + number}, 'x'); DELETE FROM u WHERE id = {number}"
        )
        wait_until(lambda: rows(target, "t") == rows(source, "t"), 10, what="t to flow")
        flowed += table_state(target, "u") == "copying"
    assert flowed > 0, "u was copied before t could be seen to flow"
    pipeline.catch_up(120)

    assert_equal(source, target, "t", "u")


@only_new
def test_table_that_is_dropped_and_made_again_at_once_is_copied_again(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    fill(source, "t", 500)
    fill(source, "u", 500)
    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    pipeline.catch_up()

    with source.connect(autocommit=False) as connection:
        connection.execute("DROP TABLE t")
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        connection.execute("INSERT INTO t SELECT g, 'second life' FROM generate_series(1, 50) g")
        connection.commit()
    published = "SELECT 1 FROM pg_publication_tables WHERE tablename = 't'"
    wait_until(lambda: source.query(published), what="t to be published again")
    source.execute("INSERT INTO t VALUES (999, 'after')")
    pipeline.catch_up()
    copied = "SELECT 1 FROM t WHERE id = 50 AND v = 'second life'"
    wait_until(lambda: target.query(copied), what="t to be copied again")
    pipeline.catch_up()

    assert_equal(source, target, "t", "u")


REWRITES = {
    "type": "ALTER TABLE z ALTER n TYPE bigint",
    "default": "ALTER TABLE z ADD extra float8 DEFAULT random()",
    "vacuum": "VACUUM FULL z",
    "cluster": "CLUSTER z USING z_pkey",
}


@pytest.mark.parametrize(
    "kind",
    [
        "type",
        *(pytest.param(kind, marks=pytest.mark.long) for kind in ("default", "vacuum", "cluster")),
    ],
)
@only_new
def test_table_that_is_rewritten_between_the_snapshot_and_its_turn_loses_no_row(
    source: Database, target: Database, make_pipeline: Make, small_ranges: Small, kind: str
) -> None:
    small_ranges(1)
    fill(source, "t", 2000)
    source.execute("CREATE TABLE z (id int PRIMARY KEY, n int, v text)")
    source.execute("INSERT INTO z SELECT g, g, repeat('z', 60) FROM generate_series(1, 3000) g")
    pipeline = make_pipeline(source, target, source_options=slowly(1500))
    wait_for_copy(target, ranges=2)
    assert table_state(target, "z") == "copying"

    # Not within a transaction: z is larger than t, and so nobody reads it yet.
    source.execute(REWRITES[kind])
    wait_for_state(target, "z", "streaming")
    pipeline.catch_up(120)

    query = "SELECT id, n, v FROM z ORDER BY id"
    assert target.query(query) == source.query(query)


@pytest.mark.long
@only_new
def test_table_that_is_rewritten_between_two_attempts_at_its_ranges_loses_and_doubles_no_row(
    source: Database, target: Database, make_pipeline: Make, small_ranges: Small
) -> None:
    small_ranges(1)
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text) WITH (autovacuum_enabled = false)")
    source.execute("INSERT INTO t SELECT g, repeat('v', 60) FROM generate_series(1, 8000) g")
    # Pages at the front are half empty: whoever writes the table anew moves every other row.
    source.execute("DELETE FROM t WHERE id < 3000 AND id % 2 = 0")
    pipeline = make_pipeline(source, target, source_options=slowly(3000))
    wait_for_copy(target, ranges=6)
    rewriter = threading.Thread(target=source.execute, args=("VACUUM FULL t",))
    rewriter.start()
    waiting = "SELECT 1 FROM pg_locks WHERE relation = 't'::regclass AND NOT granted"
    wait_until(lambda: source.query(waiting), what="VACUUM FULL to wait for the readers")

    target.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'penstock copy'"
    )
    rewriter.join(60)
    assert table_state(target, "t") != "streaming", "the copy was over too soon"
    wait_for_state(target, "t", "streaming")
    pipeline.catch_up()

    assert_equal(source, target, "t")
