"""A copy that cannot go on: its table waits and says why, the others go on, and it recovers by itself."""

from __future__ import annotations

import json
import shutil
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
from fix_postgres import only_15, only_new
from fix_subscription import follower
from fix_wait import wait_until
from penstock.errors import SourceError
from penstock.source.exported import ExportedSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database, TwoServers

    Make = Callable[..., RunningPipeline]
    Small = Callable[[int], None]


def fill(source: Database, table: str, count: int = 2000) -> None:
    source.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)")
    source.execute(
        f"INSERT INTO {table} SELECT g, repeat('v', 50) || g FROM generate_series(1, {count}) g"
    )


def wait_for_ranges(target: Database, count: int) -> None:
    """Wait until a copy is in its middle."""
    wait_until(
        lambda: (
            table_state(target, "t") == "copying"
            and target.value("SELECT count(*) FROM penstock.ranges") >= count
        ),
        60,
        what=f"{count} ranges to arrive",
    )


def failure_of(target: Database, table: str) -> str:
    """Why the copy of a table has failed; between two attempts, since one more clears it."""
    wait_for_state(target, table, "failed")
    return wait_until(lambda: table_error(target, table), what=f"the error of {table}")


def try_now(target: Database) -> None:
    """Do not wait for the next attempt's time to come."""
    target.execute("UPDATE penstock.tables SET retry_at = now() WHERE state = 'failed'")


def copy_id(target: Database, table: str = "t") -> str:
    found: str = target.value("SELECT copy_id FROM penstock.tables WHERE table_name = %s", table)
    return found


def end_backend(database: Database, application: str) -> int:
    """Terminate the sessions of a name in a database; how many there were."""
    ended: int = database.value(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE datname = %s AND application_name = %s",
        database.name,
        application,
    )
    return ended


REFUSALS = {
    "unique": ("v text UNIQUE", "UPDATE t SET v = 'v3' WHERE id = 77", "DROP CONSTRAINT t_v_key"),
    "check": (
        "v text CONSTRAINT not_bad CHECK (v <> 'bad')",
        "UPDATE t SET v = 'bad' WHERE id = 77",
        "DROP CONSTRAINT not_bad",
    ),
    "narrow": (
        "v varchar(4)",
        "UPDATE t SET v = 'hidden' WHERE id = 77",
        "ALTER v TYPE varchar(90)",
    ),
    "not null": ("v text NOT NULL", "UPDATE t SET v = NULL WHERE id = 77", "ALTER v DROP NOT NULL"),
}


@pytest.mark.parametrize("kind", REFUSALS)
@only_new
def test_refused_row_is_named_by_its_key_and_stops_its_table_alone_until_the_target_is_fixed(
    source: Database, target: Database, make_pipeline: Make, kind: str
) -> None:
    column, spoil, fix = REFUSALS[kind]
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.execute("INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 200) g")
    source.execute(spoil)
    fill(source, "other")
    target.execute(f"CREATE TABLE t (id int PRIMARY KEY, {column})")

    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    pipeline.catch_up()
    error = failure_of(target, "t")
    assert "PEN-506" in error
    assert "key (id=77)" in error
    assert "hidden" not in error
    assert "bad'" not in error
    assert rows(target, "t") == []
    source.execute("INSERT INTO t VALUES (1000, 'x'); DELETE FROM t WHERE id = 5")
    source.execute("DELETE FROM other WHERE id < 100")
    pipeline.catch_up()
    assert_equal(source, target, "other")
    assert table_state(target, "t") != "streaming"

    target.execute(f"ALTER TABLE t {fix}")
    if kind != "unique":  # that one waits for its turn
        try_now(target)
    wait_for_state(target, "t", "streaming")
    source.execute("INSERT INTO t VALUES (1001, 'y')")
    pipeline.catch_up()

    assert_equal(source, target, "t", "other")
    assert table_error(target, "t") == ""


@pytest.mark.long
@only_new
def test_table_whose_copy_fails_does_not_keep_the_log_for_the_others(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    fill(source, "t", 10)
    fill(source, "other", 10)
    target.execute("CREATE TABLE t (id int PRIMARY KEY CHECK (id < 5), v text)")
    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    pipeline.catch_up()
    assert "PEN-506" in failure_of(target, "t")
    source.execute("INSERT INTO other VALUES (1000, 'x')")
    pipeline.catch_up()
    report = pipeline.file.state / "sinks" / "target.json"

    def is_let_go() -> bool:
        reported = json.loads(report.read_text())
        return reported["tables"]["public.t"]["state"] == "failed" and (
            reported["safe_lsn"] == reported["delivered_lsn"]
        )

    # The next copy of the table will be of a later moment than all that waits in the log.
    wait_until(is_let_go, what="the log to be let go of")


@pytest.mark.long
@only_15
def test_refused_row_that_is_fixed_at_the_source_lets_its_table_be_copied(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.execute("INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 200) g")
    source.execute("UPDATE t SET v = 'too long' WHERE id = 77")
    target.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(4))")
    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    pipeline.catch_up()
    assert "key (id=77)" in failure_of(target, "t")

    source.execute("UPDATE t SET v = 'fits' WHERE id = 77")
    try_now(target)
    wait_for_state(target, "t", "streaming")
    pipeline.catch_up()

    assert_equal(source, target, "t")


@pytest.mark.long
@only_new
def test_table_that_the_role_may_not_read_is_copied_once_it_may(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    login = follower(source)
    for table in ("t", "other"):
        fill(source, table)
        source.execute(f"ALTER TABLE {table} OWNER TO follower")
    source.execute("REVOKE SELECT ON t FROM follower")

    pipeline = make_pipeline(login.url, target, source_options=ALWAYS_COPIED)
    pipeline.catch_up()
    error = failure_of(target, "t")
    assert "PEN-219" in error
    assert 'GRANT SELECT ON public.t TO "follower"' in error
    assert_equal(source, target, "other")

    source.execute("GRANT SELECT ON t TO follower")
    try_now(target)
    wait_for_state(target, "t", "streaming")
    pipeline.catch_up()

    assert_equal(source, target, "t", "other")


@only_new
def test_row_security_at_the_source_fails_the_table_and_does_not_copy_half_of_it(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    login = follower(source)
    for table in ("t", "other"):
        fill(source, table)
        source.execute(f"ALTER TABLE {table} OWNER TO follower")
    source.execute(
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY; ALTER TABLE t FORCE ROW LEVEL SECURITY"
    )
    source.execute("CREATE POLICY half ON t USING (id % 2 = 0)")

    pipeline = make_pipeline(login.url, target, source_options=ALWAYS_COPIED)
    pipeline.catch_up()
    error = failure_of(target, "t")
    assert "PEN-219" in error
    assert "row-level security" in error
    assert rows(target, "t") == []
    assert_equal(source, target, "other")

    source.execute("ALTER TABLE t DISABLE ROW LEVEL SECURITY")
    try_now(target)
    wait_for_state(target, "t", "streaming")
    pipeline.catch_up()

    assert_equal(source, target, "t", "other")


@only_new
def test_table_that_is_locked_before_its_copy_begins_keeps_no_other_from_theirs(
    source: Database, target: Database, make_pipeline: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.source.shapes._PATIENCE", "SET LOCAL lock_timeout = '200ms'")
    for table in ("t", "other"):
        fill(source, table, 10)
    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    for table in ("t", "other"):
        wait_for_state(target, table, "streaming")
    before = copy_id(target, "other")
    with source.connect(autocommit=False) as connection:
        take = ExportedSnapshot.take

        def take_and_lock(*args: Any) -> ExportedSnapshot:
            snapshot = take(*args)
            connection.execute("LOCK TABLE t")
            return snapshot

        monkeypatch.setattr(ExportedSnapshot, "take", take_and_lock)
        target.execute("UPDATE penstock.tables SET request = 'resync'")

        assert "public.t is locked against readers by session" in failure_of(target, "t")
        wait_until(lambda: copy_id(target, "other") != before, what="the other copy")
        wait_for_state(target, "other", "streaming")
        monkeypatch.setattr(ExportedSnapshot, "take", take)
    try_now(target)
    wait_for_state(target, "t", "streaming")
    pipeline.catch_up()

    assert_equal(source, target, "t", "other")


@pytest.mark.long
@only_new
def test_table_that_is_locked_fails_by_itself_after_a_while_and_is_copied_later(
    source: Database, target: Database, make_pipeline: Make, small_ranges: Small
) -> None:
    small_ranges(1)
    fill(source, "t", 2000)
    fill(source, "locked", 5000)  # larger, and so begun later
    pipeline = make_pipeline(source, target, source_options=slowly(2000))
    wait_for_ranges(target, 2)
    with source.connect(autocommit=False) as connection:
        connection.execute("LOCK TABLE locked IN ACCESS EXCLUSIVE MODE")

        wait_for_state(target, "t", "streaming")
        error = failure_of(target, "locked")
        assert "PEN-219" in error
        assert "lock" in error
        source.execute("DELETE FROM t WHERE id < 100")
        wait_until(lambda: rows(target, "t") == rows(source, "t"), what="t to flow meanwhile")
        connection.execute("INSERT INTO locked VALUES (9999, 'of the one who locks')")
        connection.commit()
    try_now(target)
    wait_for_state(target, "locked", "streaming")
    pipeline.catch_up()

    assert_equal(source, target, "t", "locked")


@only_new
def test_copy_begins_again_when_the_snapshot_is_lost_in_its_middle(
    source: Database, target: Database, make_pipeline: Make, small_ranges: Small
) -> None:
    small_ranges(1)
    fill(source, "t", 4000)
    pipeline = make_pipeline(source, target, source_options=slowly(3000))
    wait_for_ranges(target, 3)
    before = copy_id(target)
    source.execute("UPDATE t SET v = 'later' WHERE id % 10 = 0; DELETE FROM t WHERE id % 10 = 1")

    assert end_backend(source, "penstock snapshot") == 1
    source.execute("INSERT INTO t SELECT g, 'after' FROM generate_series(5001, 5100) g")
    # Those that have adopted the snapshot keep it; the ones to come need it anew.
    end_backend(source, "penstock copy")
    pipeline.catch_up(120)

    assert_equal(source, target, "t")
    assert copy_id(target) != before


@pytest.mark.long
@pytest.mark.parametrize("side", [pytest.param("source"), "target"])
@only_new
def test_copy_goes_on_where_it_was_when_the_sessions_that_copy_are_ended(
    source: Database, target: Database, make_pipeline: Make, small_ranges: Small, side: str
) -> None:
    small_ranges(1)
    fill(source, "t", 4000)
    pipeline = make_pipeline(source, target, source_options=slowly(4000))
    for count in (2, 8):
        wait_for_ranges(target, count)
        before = copy_id(target)
        ended = wait_until(
            lambda: end_backend(source if side == "source" else target, "penstock copy"),
            what="a session that copies",
        )
        assert ended >= 1
    pipeline.catch_up(120)

    assert_equal(source, target, "t")
    assert copy_id(target) == before, "what had arrived was copied again"


@pytest.mark.parametrize("mode", ["immediate", pytest.param("fast", marks=pytest.mark.long)])
@pytest.mark.parametrize("side", [pytest.param("source", marks=pytest.mark.long), "target"])
def test_copy_survives_a_restart_of_either_server(
    two_servers: TwoServers,
    make_pipeline: Make,
    small_ranges: Small,
    side: str,
    mode: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source, target = two_servers
    small_ranges(1)
    fill(source, "t", 4000)
    fill(source, "u", 300)
    pipeline = make_pipeline(source, target, source_options=slowly(2500))
    wait_for_ranges(target, 6)
    source.execute("DELETE FROM t WHERE id % 7 = 0")

    (source if side == "source" else target).server.restart(mode)
    source.execute("UPDATE t SET v = 'later' WHERE id % 10 = 0")
    pipeline.catch_up(120)

    assert_equal(source, target, "t", "u")
    assert "is not copied" not in caplog.text


@pytest.mark.long
@only_new
def test_copy_that_could_not_begin_because_a_server_was_away_is_not_taken_for_the_end_of_it(
    source: Database, target: Database, make_pipeline: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(source, "t", 100)
    take, refused = ExportedSnapshot.take, iter(range(2))

    def take_later(*args: Any) -> ExportedSnapshot:
        if next(refused, None) is not None:
            raise SourceError("the server is starting up", "source", "nothing")
        return take(*args)

    monkeypatch.setattr(ExportedSnapshot, "take", take_later)
    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    wait_for_state(target, "t", "failed")
    pipeline.catch_up()

    assert_equal(source, target, "t")


@only_new
def test_stop_in_the_middle_with_the_state_directory_deleted_loses_nothing(
    source: Database, target: Database, make_pipeline: Make, small_ranges: Small
) -> None:
    small_ranges(1)
    fill(source, "t", 4000)
    fill(source, "u", 100)
    pipeline = make_pipeline(source, target, source_options=slowly(2500))
    wait_for_ranges(target, 6)
    source.execute("DELETE FROM t WHERE id % 7 = 0; UPDATE u SET v = 'w'")
    pipeline.stop()
    assert table_state(target, "t") == "copying"
    shutil.rmtree(pipeline.file.state)
    source.execute("UPDATE t SET v = 'later' WHERE id % 10 = 0; DELETE FROM u WHERE id = 1")

    pipeline.start()
    pipeline.catch_up(120)

    assert_equal(source, target, "t", "u")


FOREIGN = "INSERT INTO t VALUES (1, 'foreign'), (2, 'foreign'), (-1, 'foreign')"


@pytest.mark.parametrize("conflict", ["replace", "keep"])
@only_new
def test_rows_that_were_at_the_target_are_replaced_or_kept_as_on_conflict_says(
    source: Database, target: Database, make_pipeline: Make, small_ranges: Small, conflict: str
) -> None:
    small_ranges(1)
    fill(source, "t")
    target.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    target.execute(FOREIGN)

    pipeline = make_pipeline(
        source, target, source_options=ALWAYS_COPIED, sink={"on_conflict": conflict, "adopt": True}
    )
    pipeline.catch_up()

    expected = {int(key): v for key, v in source.query("SELECT id, v FROM t")} | {-1: "foreign"}
    if conflict == "keep":
        expected |= {1: "foreign", 2: "foreign"}
    assert dict(target.query("SELECT id, v FROM t")) == expected
    source.execute("INSERT INTO t VALUES (9000, 'x'); DELETE FROM t WHERE id = 3")
    pipeline.catch_up()
    expected = {**expected, 9000: "x"}
    del expected[3]
    assert dict(target.query("SELECT id, v FROM t")) == expected
    shadows = "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = 'penstock' AND relname LIKE 'copy\\_%'"
    assert target.query(shadows) == []


@pytest.mark.long
@only_new
def test_rows_in_the_way_stop_the_table_when_on_conflict_is_stop_until_they_are_gone(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    fill(source, "t")
    fill(source, "other")
    for table in ("t", "other"):
        target.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)")
    target.execute(FOREIGN)
    target.execute("INSERT INTO other VALUES (-1, 'in nobody''s way')")

    pipeline = make_pipeline(
        source, target, source_options=ALWAYS_COPIED, sink={"on_conflict": "stop", "adopt": True}
    )
    pipeline.catch_up()
    assert "PEN-507" in failure_of(target, "t")
    assert target.value("SELECT count(*) FROM t") == 3
    assert target.value("SELECT count(*) FROM other") == 2001

    target.execute("DELETE FROM t WHERE id > 0")
    try_now(target)
    wait_for_state(target, "t", "streaming")
    pipeline.catch_up()

    assert target.value("SELECT count(*) FROM t") == 2001
    assert dict(target.query("SELECT id, v FROM t WHERE id > 0")) == dict(
        source.query("SELECT id, v FROM t")
    )


@pytest.mark.long
@only_new
def test_rows_without_a_key_at_the_target_stop_the_table_when_on_conflict_is_stop(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (v text); ALTER TABLE t REPLICA IDENTITY FULL")
    source.execute("INSERT INTO t VALUES ('a'), ('a'), ('b')")
    target.execute("CREATE TABLE t (v text); INSERT INTO t VALUES ('z')")

    pipeline = make_pipeline(
        source, target, source_options=ALWAYS_COPIED, sink={"on_conflict": "stop", "adopt": True}
    )
    pipeline.catch_up()
    assert "PEN-507" in failure_of(target, "t")
    assert rows(target, "t") == [("(z)",)]

    target.execute("TRUNCATE t")
    try_now(target)
    wait_for_state(target, "t", "streaming")
    pipeline.catch_up()

    assert_equal(source, target, "t")


@pytest.mark.long
@pytest.mark.parametrize("is_empty", [True, False])
@only_new
def test_target_table_that_is_dropped_during_the_copy_is_made_again(
    source: Database,
    target: Database,
    make_pipeline: Make,
    small_ranges: Small,
    is_empty: bool,
) -> None:
    small_ranges(1)
    fill(source, "t", 4000)
    fill(source, "other", 200)
    if not is_empty:  # then rows go into a shadow table
        target.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'x')")
    pipeline = make_pipeline(source, target, source_options=slowly(3000), sink={"adopt": True})
    wait_for_ranges(target, 4)

    target.execute("DROP TABLE t")
    source.execute("DELETE FROM t WHERE id < 10")
    wait_for_state(target, "t", "streaming")
    pipeline.catch_up()

    assert_equal(source, target, "t", "other")
    key = "SELECT conname FROM pg_constraint WHERE conrelid = 't'::regclass AND contype = 'p'"
    assert target.query(key) == source.query(key)


@pytest.mark.long
@only_new
def test_missing_table_is_not_made_when_create_tables_is_false_and_copied_once_it_is_there(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    fill(source, "t")
    pipeline = make_pipeline(
        source, target, source_options=ALWAYS_COPIED, sink={"create_tables": False}
    )
    pipeline.catch_up()
    assert "PEN-505" in failure_of(target, "t")

    target.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    try_now(target)
    wait_for_state(target, "t", "streaming")
    pipeline.catch_up()

    assert_equal(source, target, "t")


@pytest.mark.long
@only_new
def test_error_that_nobody_expects_stops_its_table_alone(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    fill(source, "t", 100)
    fill(source, "other", 5000)
    target.execute(
        """
        CREATE TABLE t (id int PRIMARY KEY, v text);
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'broken' USING ERRCODE = 'XX000'; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION refuse();
        ALTER TABLE t ENABLE ALWAYS TRIGGER refuse;
        """
    )
    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    pipeline.catch_up()

    assert failure_of(target, "t")
    assert table_state(target, "other") == "streaming"
    assert_equal(source, target, "other")


@pytest.mark.long
@pytest.mark.parametrize(
    ("side", "setting"),
    [
        ("source", "transaction_timeout"),
        pytest.param("target", "statement_timeout", marks=pytest.mark.long),
        pytest.param("target", "idle_in_transaction_session_timeout", marks=pytest.mark.long),
        pytest.param("target", "transaction_timeout", marks=pytest.mark.long),
        pytest.param("source", "statement_timeout", marks=pytest.mark.long),
        pytest.param("source", "idle_in_transaction_session_timeout", marks=pytest.mark.long),
    ],
)
@only_new
def test_time_limits_of_an_administrator_do_not_end_a_copy(
    source: Database,
    target: Database,
    make_pipeline: Make,
    small_ranges: Small,
    side: str,
    setting: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    small_ranges(15)
    fill(source, "t", 4000)
    database = source if side == "source" else target
    database.execute(f"ALTER DATABASE \"{database.name}\" SET {setting} = '700ms'")

    pipeline = make_pipeline(source, target, source_options=slowly(1600))
    wait_for_state(target, "t", "streaming", deadline_seconds=25)
    pipeline.catch_up()

    assert_equal(source, target, "t")
    assert "is not copied" not in caplog.text
    assert "next attempt" not in caplog.text
