"""What ended a run, and what may end it, is seen in `status`. No Spark."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from fix_postgres import create_database, only_new
from fix_wait import wait_until
from penstock import errors
from penstock.run.status import read_status
from penstock.source.slot import SlotState, slot_warning

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_capture import Capturing
    from fix_postgres import Database, MakeServer
    from fix_proxy import Proxy
    from penstock.run.status import PipelineStatus, SourceStatus

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"
SLOT = "SELECT slot_name FROM pg_replication_slots WHERE database = %s"


def status_of(capturing: Capturing) -> tuple[PipelineStatus, SourceStatus]:
    found = read_status(capturing.file)
    return found, found.sources["test"]


@only_new
def test_error_that_ended_capture_stays_until_it_starts_well(
    source: Database, proxy: Proxy, capture_of: Callable[..., Capturing], make_server: MakeServer
) -> None:
    source.execute(TABLE)
    capturing = capture_of(proxy.url(source))
    capturing.catch_up()
    before, _ = status_of(capturing)
    other = make_server()
    type(source)(other, "postgres").execute(f'CREATE DATABASE "{source.name}"')
    proxy.refuse()
    proxy.server = ("127.0.0.1", other.port)
    proxy.heal()
    capturing.ends_with(errors.OtherCluster)

    proxy.server = ("127.0.0.1", source.server.port)
    failed, at_source = status_of(capturing)
    capturing.start()
    capturing.catch_up()
    wait_until(lambda: status_of(capturing)[0].error is None, what="the error to be gone")
    running, now_at_source = status_of(capturing)
    capturing.stop()
    stopped, _ = status_of(capturing)

    assert (before.error, before.phase) == (None, "stopped")  # for nobody delivers
    assert failed.phase == "failed"
    assert "PEN-209" in (failed.error or "")
    assert "Do: " in (at_source.error or "")
    assert now_at_source.error is None
    assert (running.phase, stopped.phase, stopped.error) == ("stopped", "stopped", None)


@only_new
def test_error_that_kept_capture_from_starting_is_seen(
    source: Database, capture_of: Callable[..., Capturing]
) -> None:
    source.execute(TABLE)
    capturing = capture_of(source.url)
    capturing.catch_up()
    capturing.stop()
    source.execute("INSERT INTO t VALUES (1)")
    free = wait_until(lambda: source.query(f"{SLOT} AND NOT active", source.name), what="the slot")
    source.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", free[0][0])

    capturing.start()
    capturing.ends_with(errors.SlotMoved)
    found, at_source = status_of(capturing)

    assert found.phase == "failed"
    assert "PEN-208" in (at_source.error or "")


@only_new
def test_second_process_that_is_refused_says_nothing_of_the_first(
    source: Database, capture_of: Callable[..., Capturing], use_timing: Callable[..., None]
) -> None:
    use_timing(state_lock_patience_seconds=0.1)
    source.execute(TABLE)
    first = capture_of(source.url)
    first.catch_up()

    second = capture_of(source.url)
    second.ends_with(errors.SecondInstance)

    assert status_of(first)[0].error is None


def write_wal(source: Database, megabytes: int) -> None:
    """WAL that is not for us, so that nothing moves the slot."""
    with source.connect() as connection:
        for _ in range(megabytes):
            connection.execute(
                "SELECT pg_logical_emit_message(false, 'other', repeat('x', 1000000))"
            )


@pytest.mark.parametrize("version", ["new", pytest.param("15", marks=pytest.mark.long)])
def test_slot_that_is_behind_is_warned_of_and_a_lost_one_is_an_error(
    make_server: MakeServer,
    capture_of: Callable[..., Capturing],
    use_timing: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    version: str,
) -> None:
    use_timing(membership_slot_seconds=0.0)
    limits = {"max_wal_size": "32MB", "min_wal_size": "32MB", "max_slot_wal_keep_size": "100MB"}
    source = create_database(make_server(version, limits), "source")
    source.execute(TABLE)
    capturing = capture_of(source.url)
    capturing.catch_up()
    fresh = status_of(capturing)[1]

    with caplog.at_level(logging.WARNING):
        write_wal(source, 60)
        wait_until(lambda: "extended" in caplog.text, what="the log to warn")
    extended = status_of(capturing)[1]
    capturing.stop()
    write_wal(source, 120)
    source.execute("CHECKPOINT")
    whole, lost = status_of(capturing)
    capturing.start()
    capturing.ends_with(errors.SlotLost)

    assert (fresh.warning, fresh.error, fresh.wal_status) == (None, None, "reserved")
    assert "wal_status extended" in (extended.warning or "")
    assert extended.error is None
    assert lost.wal_status == "lost"
    assert "PEN-215" in (lost.error or "")
    assert whole.phase == "failed"


@pytest.mark.parametrize(
    ("state", "wanted"),
    [
        (SlotState(exists=True, wal_status="reserved"), None),
        (SlotState(exists=True, wal_status="lost"), None),  # an error, not a warning
        (SlotState(exists=False), None),
        (SlotState(exists=True, wal_status="extended", retained_bytes=7), "keeps 7 bytes"),
        (SlotState(exists=True, wal_status="extended", safe_wal_size=9), "after 9 more"),
        (SlotState(exists=True, wal_status="unreserved"), "at the next checkpoint"),
    ],
)
def test_each_state_of_wal_has_its_warning(state: SlotState, wanted: str | None) -> None:
    found = slot_warning(state, "s", "here")

    assert (found is None) == (wanted is None)
    assert (wanted or "") in str(found)
