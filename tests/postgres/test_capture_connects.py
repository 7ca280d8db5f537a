"""Capture connects again: a slot or a server that changed meanwhile is refused, by name. No Spark."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from fix_postgres import create_database, only_new
from fix_wait import wait_until
from penstock import errors
from penstock.log.files.segment import list_segments
from penstock.log.files.writer import last_commit
from penstock.lsn import Lsn
from penstock.pipeline import state_of, wire_of
from penstock.state.reports import CaptureReport, DeliveryReport

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_capture import Capturing
    from fix_postgres import Database, MakeServer
    from fix_proxy import Proxy

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"
ROWS = "INSERT INTO t SELECT g, repeat('x', 50) FROM generate_series(%s::int, %s::int) g"
SLOT = "SELECT slot_name FROM pg_replication_slots WHERE database = %s"


def advance(source: Database, slot: str) -> None:
    """As soon as the server has noticed that nobody reads from it any more."""
    wait_until(
        lambda: source.query(
            "SELECT FROM pg_replication_slots WHERE slot_name = %s AND NOT active", slot
        ),
        what=f"slot {slot} to be free",
    )
    source.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", slot)


def recreate(source: Database, slot: str) -> None:
    source.execute("SELECT pg_drop_replication_slot(%s)", slot)
    source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot)


def drop(source: Database, slot: str) -> None:
    source.execute("SELECT pg_drop_replication_slot(%s)", slot)


def make_another(source: Database, slot: str) -> None:
    source.execute("SELECT pg_drop_replication_slot(%s)", slot)
    source.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", slot)


def make_physical(source: Database, slot: str) -> None:
    source.execute("SELECT pg_drop_replication_slot(%s)", slot)
    source.execute("SELECT pg_create_physical_replication_slot(%s)", slot)


CHANGES: dict[str, tuple[Callable[[Database, str], None], type[errors.PenstockError]]] = {
    "advanced": (advance, errors.SlotMoved),
    "re-created": (recreate, errors.SlotMoved),
    "re-created for another plugin": (make_another, errors.SlotMoved),
    "re-created as a physical one": (make_physical, errors.SlotMoved),
    "dropped": (drop, errors.SlotMissing),
}


@pytest.mark.parametrize(
    "acknowledge", ["delivered", pytest.param("logged", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("how", CHANGES)
def test_slot_that_changed_while_capture_was_away_is_refused(
    source: Database,
    proxy: Proxy,
    capture_of: Callable[..., Capturing],
    how: str,
    acknowledge: str,
) -> None:
    change, error = CHANGES[how]
    source.execute(TABLE)
    capturing = capture_of(proxy.url(source), acknowledge)
    source.execute(ROWS, 1, 10)
    capturing.catch_up()
    slot = source.value(SLOT, source.name)
    before = capturing.durable_lsn

    proxy.refuse()
    wait_until(lambda: not source.query(f"{SLOT} AND active", source.name), what="it to be cut off")
    source.execute(ROWS, 11, 110)
    change(source, slot)
    proxy.heal()

    reported = capturing.ends_with(error)
    assert slot in reported
    assert "Do: penstock teardown, then init" in reported
    assert capturing.durable_lsn == before
    assert source.value("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), %s) > 0", str(before))


def _behind_its_slot(
    source: Database, capture_of: Callable[..., Capturing], acknowledge: str
) -> tuple[Capturing, Lsn]:
    """Capture that was stopped before somebody advanced its slot; and where its log ends."""
    source.execute(TABLE)
    capturing = capture_of(source.url, acknowledge)
    source.execute(ROWS, 1, 10)
    capturing.catch_up()
    capturing.stop()
    source.execute(ROWS, 11, 110)
    advance(source, source.value(SLOT, source.name))
    return capturing, capturing.durable_lsn


@pytest.mark.parametrize("acknowledge", ["delivered", "logged"])
@only_new
def test_slot_that_was_advanced_while_nobody_captured_is_refused_at_the_start(
    source: Database, capture_of: Callable[..., Capturing], acknowledge: str
) -> None:
    capturing, before = _behind_its_slot(source, capture_of, acknowledge)

    capturing.start()

    capturing.ends_with(errors.SlotMoved)
    assert capturing.durable_lsn == before


@pytest.mark.parametrize("acknowledge", ["delivered", "logged"])
@only_new
def test_slot_that_was_advanced_is_refused_while_somebody_else_delivers(
    source: Database, capture_of: Callable[..., Capturing], acknowledge: str
) -> None:
    capturing, before = _behind_its_slot(source, capture_of, acknowledge)

    with state_of(capturing.file).lock("deliver"):
        capturing.start()
        # Until its sink is open it may have more than the log; it has not.
        say(capturing, state_of(capturing.file).run_of("deliver"), before)
        capturing.ends_with(errors.SlotMoved)

    assert capturing.durable_lsn == before


@only_new
def test_slot_that_somebody_moved_within_what_the_log_has_is_followed_on(
    source: Database, proxy: Proxy, capture_of: Callable[..., Capturing]
) -> None:
    source.execute(TABLE)
    capturing = capture_of(proxy.url(source))
    source.execute(ROWS, 1, 10)
    capturing.catch_up()
    slot = source.value(SLOT, source.name)

    proxy.refuse()
    wait_until(lambda: not source.query(f"{SLOT} AND active", source.name), what="it to be cut off")
    end = capturing.durable_lsn
    source.execute("SELECT pg_replication_slot_advance(%s, %s)", slot, str(end))
    source.execute(ROWS, 11, 110)
    proxy.heal()

    capturing.catch_up()


def copy(data: Path, to: Path) -> None:
    shutil.rmtree(to, ignore_errors=True)
    # With owners, for the server runs as another user.
    subprocess.run(["cp", "-a", str(data), str(to)], check=True)


# What is written once the snapshot is back: its WAL ends before what was received, or after.
GROWTH = {
    "none": "SELECT 1",
    "less": "INSERT INTO t SELECT g FROM generate_series(10001, 10100) g",
    "more": "INSERT INTO t SELECT g, repeat('x', 50) FROM generate_series(10001, 15000) g",
    "more, in one row": "INSERT INTO t SELECT 10001, string_agg(md5(g::text), '')"
    " FROM generate_series(1, 30000) g",
    "more, in rows of a table that is not followed": "CREATE TABLE other AS"
    " SELECT g, repeat('x', 50) FROM generate_series(1, 5000) g",
}


@pytest.mark.parametrize(
    ("growth", "when", "acknowledge"),
    [
        ("more", "running", "delivered"),
        ("less", "stopped", "delivered"),
        *(
            pytest.param(growth, when, acknowledge, marks=pytest.mark.long)
            for growth in GROWTH
            for when in ("running", "stopped")
            for acknowledge in ("delivered", "logged")
        ),
    ],
)
def test_source_restored_from_a_snapshot_of_its_disk_is_refused(
    make_server: MakeServer,
    make_proxy: Callable[[int], Proxy],
    capture_of: Callable[..., Capturing],
    growth: str,
    when: str,
    acknowledge: str,
) -> None:
    source = create_database(make_server(), "source")
    server, proxy = source.server, make_proxy(source.server.port)
    source.execute(TABLE)
    capturing = capture_of(proxy.url(source), acknowledge, tables=("public.t",))
    source.execute(ROWS, 1, 10)
    capturing.catch_up()
    snapshot = server.data_dir.parent / "snapshot"
    server.stop("fast")
    copy(server.data_dir, snapshot)
    server.start()
    source.execute(ROWS, 11, 2000)
    capturing.catch_up()

    if when == "stopped":
        capturing.stop()
    proxy.refuse()
    server.stop("fast")
    copy(snapshot, server.data_dir)
    server.start()
    source.execute(GROWTH[growth])
    proxy.heal()
    if when == "stopped":
        capturing.start()

    reported = capturing.ends_with(errors.SourceRestored)
    assert "PEN-223" in reported
    assert "Do: " in reported


def lose_commits(capturing: Capturing) -> None:
    """Have sinks that have all, until the log holds nothing but marks."""
    log = capturing.file.state / "log"
    with state_of(capturing.file).lock("deliver"):
        run_id = state_of(capturing.file).run_of("deliver")

        def holds_none() -> bool:
            say(capturing, run_id, capturing.durable_lsn)
            with suppress(FileNotFoundError):  # it is deleted at this moment
                return last_commit(list_segments(log)) is None
            return False

        wait_until(holds_none, what="the segments with commits to go")


def test_source_restored_is_refused_though_the_log_holds_no_commit_any_more(
    make_server: MakeServer,
    capture_of: Callable[..., Capturing],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.log.files.writer.SEGMENT_BYTES", 100)  # each slice fills one
    source = create_database(make_server(), "source")
    server = source.server
    source.execute(TABLE)
    capturing = capture_of(source.url, tables=("public.t",))
    source.execute(ROWS, 1, 10)
    capturing.catch_up()
    snapshot = server.data_dir.parent / "snapshot"
    server.stop("fast")
    copy(server.data_dir, snapshot)
    server.start()
    source.execute(ROWS, 11, 2000)
    capturing.catch_up()
    lose_commits(capturing)
    capturing.stop()
    capturing.start()
    lose_commits(capturing)
    capturing.stop()
    # Once more without any commit: what is known comes from a report alone, and is reported on.
    capturing.start()
    capturing.stop()

    server.stop("fast")
    copy(snapshot, server.data_dir)
    server.start()
    before = capturing.durable_lsn
    source.execute(GROWTH["more"])
    is_grown = source.value("SELECT pg_current_wal_lsn() > %s::pg_lsn", str(before))
    capturing.start()

    capturing.ends_with(errors.SourceRestored)
    assert is_grown
    assert capturing.durable_lsn == before


@pytest.mark.parametrize("mode", [pytest.param("fast", marks=pytest.mark.long), "immediate"])
@pytest.mark.parametrize(
    "acknowledge", [pytest.param("delivered", marks=pytest.mark.long), "logged"]
)
def test_server_that_was_restarted_is_followed_on(
    make_server: MakeServer,
    capture_of: Callable[..., Capturing],
    mode: Any,
    acknowledge: str,
) -> None:
    source = create_database(make_server(), "source")
    source.execute(TABLE)
    capturing = capture_of(source.url, acknowledge)
    for number in range(3):
        source.execute(ROWS, 100 * number + 1, 100 * number + 50)
        capturing.catch_up()

        source.server.restart(mode)
        source.execute(ROWS, 100 * number + 51, 100 * number + 100)

        capturing.catch_up()
    capturing.stop()
    source.server.restart(mode)
    capturing.start()
    source.execute(ROWS, 1001, 1010)
    capturing.catch_up()


# Both are streamed, and Postgres 15 and later leaves them out when it sends what has committed.
EMPTY = {
    "rows of another table": "INSERT INTO other SELECT g FROM generate_series(1, 20000) g",
    "rows that were rolled back": "SAVEPOINT s; INSERT INTO t SELECT g FROM generate_series(10001, 30000) g;"
    " ROLLBACK TO s; INSERT INTO other SELECT g FROM generate_series(1, 20000) g",
}


@pytest.mark.parametrize("what", EMPTY)
def test_server_that_crashed_after_a_streamed_transaction_without_rows_is_followed_on(
    make_server: MakeServer, capture_of: Callable[..., Capturing], what: str
) -> None:
    source = create_database(make_server(), "source")
    source.execute("ALTER SYSTEM SET logical_decoding_work_mem = '64kB'")
    source.server.restart("fast")
    source.execute(TABLE)
    source.execute("CREATE TABLE other (id int)")
    capturing = capture_of(source.url, tables=("public.t",))
    source.execute(ROWS, 1, 10)
    capturing.catch_up()
    with source.connect(autocommit=False) as connection:
        connection.execute(EMPTY[what])
        connection.commit()
    # No mark, which would be a later commit.
    end = Lsn(source.value("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"))
    wait_until(lambda: capturing.durable_lsn >= end, what="the transaction to be in the log")
    capturing.stop()

    source.server.restart("immediate")
    source.execute(ROWS, 11, 20)
    capturing.start()

    capturing.catch_up()


@only_new
def test_another_server_behind_the_address_is_refused_while_running(
    source: Database, proxy: Proxy, capture_of: Callable[..., Capturing], make_server: MakeServer
) -> None:
    source.execute(TABLE)
    capturing = capture_of(proxy.url(source))
    capturing.catch_up()
    other = make_server()
    type(source)(other, "postgres").execute(f'CREATE DATABASE "{source.name}"')

    proxy.refuse()
    proxy.server = ("127.0.0.1", other.port)
    proxy.heal()

    assert "system identifier" in capturing.ends_with(errors.OtherCluster)


# What the sinks are said to have.


def say(capturing: Capturing, run_id: str | None, lsn: Lsn) -> None:
    """Leave a sink's report, as a run leaves it."""
    report = DeliveryReport(run=run_id, delivered_lsn=lsn, safe_lsn=lsn)
    wire_of(capturing.file).publish(report, "target")


CONFIRMED = (
    "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE database = %s"
)


@only_new
def test_slot_is_told_only_what_a_sink_that_was_opened_in_this_run_has_reported(
    source: Database, capture_of: Callable[..., Capturing]
) -> None:
    source.execute(TABLE)
    capturing = capture_of(source.url)
    source.execute(ROWS, 1, 10)
    capturing.catch_up()
    capturing.stop()
    first = source.value(CONFIRMED, source.name)
    say(capturing, "the run before", capturing.durable_lsn)

    capturing.start()
    source.execute(ROWS, 11, 20)
    capturing.catch_up()
    reported_at = wire_of(capturing.file).published_at(CaptureReport)
    wait_until(
        lambda: wire_of(capturing.file).published_at(CaptureReport) > reported_at + 1,
        what="capture to acknowledge what it may",
    )
    before_opened = source.value(CONFIRMED, source.name)
    with state_of(capturing.file).lock("deliver"):
        # Opened by now, and it has less than it once said.
        opened_at = Lsn(first + 8)
        say(capturing, state_of(capturing.file).run_of("deliver"), opened_at)
        wait_until(lambda: source.value(CONFIRMED, source.name) > first, what="the slot to move")
        after_opened = source.value(CONFIRMED, source.name)

    assert before_opened == first
    assert after_opened == opened_at


@only_new
def test_log_is_kept_until_a_sink_that_was_opened_in_this_run_has_reported(
    source: Database, capture_of: Callable[..., Capturing], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.log.files.writer.SEGMENT_BYTES", 10_000)
    source.execute(TABLE)
    capturing = capture_of(source.url)
    log = capturing.file.state / "log"
    for number in range(5):
        source.execute(ROWS, 1000 * number + 1, 1000 * number + 1000)
        capturing.catch_up()
    capturing.stop()
    segments = sorted(log.glob("*.segment"))
    say(capturing, "the run before", capturing.durable_lsn)

    capturing.start()
    source.execute(ROWS, 10_001, 10_010)
    capturing.catch_up()
    reported_at = wire_of(capturing.file).published_at(CaptureReport)
    wait_until(
        lambda: wire_of(capturing.file).published_at(CaptureReport) > reported_at + 1,
        what="capture to delete what it may",
    )
    kept = sorted(log.glob("*.segment"))
    with state_of(capturing.file).lock("deliver"):
        say(capturing, state_of(capturing.file).run_of("deliver"), capturing.durable_lsn)
        wait_until(lambda: not segments[0].exists(), what="the first segment to go")

    assert kept[: len(segments)] == segments
    assert len(segments) > 3
