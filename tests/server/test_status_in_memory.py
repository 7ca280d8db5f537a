"""The status between two asks of the servers: from reports in the state directory, and what was said before."""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fix_pipeline import pipeline_document
from penstock.changes.pgoutput import EPOCH_2000_UNIX_MICROSECONDS
from penstock.config import pipeline_from_document
from penstock.log.slice import SliceHead, SliceKind
from penstock.lsn import Lsn
from penstock.pipeline import log_of, state_of, wire_of
from penstock.run.status import (
    PipelineStatus,
    SourceStatus,
    _unreceived_since,
    read_status,
    refresh_status,
)
from penstock.run.watched import BOTH, WatchedRun
from penstock.sinks.status import FlowStatus, SinkStatus, TableStatus
from penstock.state.reports import CaptureReport, DeliveryReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.config import PipelineFile


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[PipelineFile]:
    """One that both halves run, by its locks; its servers do not answer."""
    away = "postgresql://127.0.0.1:1/none"
    found = pipeline_from_document(pipeline_document(away, away, tmp_path), "test.yml")
    state_of(found).claim()
    wire = wire_of(found)
    with ExitStack() as stack:
        stack.enter_context(wire.hold_capture())
        stack.enter_context(wire.hold_delivery(found.sinks))
        yield found


def pg_time(unix_seconds: float) -> int:
    return int(unix_seconds * 1_000_000) - EPOCH_2000_UNIX_MICROSECONDS


def captured(pipeline: PipelineFile, lsn: int, at: float) -> None:
    report = CaptureReport(
        slot="s", connected=True, received_lsn=Lsn(lsn), durable_lsn=Lsn(lsn), at=at
    )
    wire_of(pipeline).publish(report)


def delivered(
    pipeline: PipelineFile, lsn: int, at: float, *, changes: int = 0, safe: int | None = None
) -> None:
    report = DeliveryReport(
        run="r",
        delivered_lsn=Lsn(lsn),
        safe_lsn=Lsn(lsn if safe is None else safe),
        committed_at=pg_time(time.time() - 600),
        changes_delivered=changes,
        at=at,
    )
    wire_of(pipeline).publish(report, "target")


def asked(current: int, received: int, **source: float | None) -> PipelineStatus:
    """What servers said a moment ago."""
    flow = FlowStatus(str(Lsn(100)), 0, 0.0, 50)
    table = TableStatus(rows_copied=7, conflicts={"insert_exists": 3})
    sink = SinkStatus(
        str(Lsn(100)), changes_delivered=50, parked=4, sources={"test": flow}, tables={"a.b": table}
    )
    said = SourceStatus(current_lsn=str(Lsn(current)), received_lsn=str(Lsn(received)))
    said = replace(said, **source)  # type: ignore[arg-type]
    now = time.time()
    return PipelineStatus("test", "streaming", {"test": said}, {"target": sink}, asked_at=now)


def test_capture_that_has_hung_shows_as_lag(pipeline: PipelineFile):
    now = time.time()
    delivered(pipeline, 100, now)

    captured(pipeline, 100, now)
    lively = refresh_status(pipeline, asked(900, 100)).sinks["target"]
    captured(pipeline, 100, now - 300)
    hung = refresh_status(pipeline, asked(900, 100)).sinks["target"]

    assert lively.lag_seconds == 0
    assert hung.lag_bytes == 800
    assert hung.lag_seconds == pytest.approx(600, abs=5)


def test_capture_that_does_not_keep_up_shows_as_lag(pipeline: PipelineFile):
    now = time.time()
    captured(pipeline, 100, now)
    delivered(pipeline, 100, now)

    behind = refresh_status(pipeline, asked(900, 100, unreceived_since=now - 300))
    captured(pipeline, 900, now)
    caught_up = refresh_status(pipeline, asked(900, 100, unreceived_since=now - 300))

    assert behind.sinks["target"].lag_seconds == pytest.approx(600, abs=5)
    assert caught_up.sinks["target"].lag_seconds == 0
    assert caught_up.sources["test"].unreceived_since is None


def test_capture_is_behind_since_a_position_was_seen_that_has_not_come():
    def at(current: int, received: int) -> SourceStatus:
        return SourceStatus(current_lsn=str(Lsn(current)), received_lsn=str(Lsn(received)))

    first = replace(at(500, 100), unreceived_since=10.0)

    assert _unreceived_since(at(500, 100), SourceStatus(), 10.0) == 10.0
    assert _unreceived_since(at(900, 400), first, 40.0) == 10.0  # still not what was seen first
    assert _unreceived_since(at(900, 600), first, 40.0) == 40.0
    assert _unreceived_since(at(900, 900), first, 40.0) is None


def test_counts_and_positions_do_not_go_back_to_an_older_report(pipeline: PipelineFile):
    before = asked(100, 100)
    captured(pipeline, 100, time.time())

    delivered(pipeline, 40, before.asked_at - 5, changes=20)
    older = refresh_status(pipeline, before).sinks["target"]
    delivered(pipeline, 200, before.asked_at + 5, changes=80)
    newer = refresh_status(pipeline, before).sinks["target"]

    assert (older.changes_delivered, older.delivered_lsn) == (50, str(Lsn(100)))
    assert older.sources["test"].changes_delivered == 50
    assert (newer.changes_delivered, newer.delivered_lsn) == (80, str(Lsn(200)))


def test_what_a_target_said_counts_while_it_does_not_answer(pipeline: PipelineFile):
    before = asked(100, 100)
    captured(pipeline, 100, time.time())
    delivered(pipeline, 40, before.asked_at - 5, changes=20)

    found = read_status(pipeline, before).sinks["target"]

    assert "PEN-" in (found.error or "")
    assert (found.parked, found.changes_delivered) == (4, 50)
    assert found.tables["a.b"].conflicts == {"insert_exists": 3}


def test_log_age_is_that_of_what_is_kept_for_a_stopped_table(pipeline: PipelineFile):
    now = time.time()
    captured(pipeline, 100, now)
    writer = log_of(pipeline).writer()
    writer.open(Lsn(10))
    meta = {"relations": {"1": "x"}}
    for end, age in ((50, 3000), (100, 1)):
        lsn = Lsn(end)
        head = SliceHead(SliceKind.WHOLE, lsn, lsn, lsn, committed_at=pg_time(now - age), meta=meta)
        writer.append(head, b"x", np.array([1], np.uint32))
    writer.flush()
    writer.close()
    delivered(pipeline, 100, now, safe=10)

    found = refresh_status(pipeline, asked(100, 100)).sinks["target"]

    assert found.lag_seconds == 0
    assert found.sources["test"].log_age_seconds == pytest.approx(3000, abs=5)


def test_servers_are_asked_often_only_while_there_is_something_to_see(pipeline: PipelineFile):
    run = WatchedRun(pipeline, BOTH)
    now = time.monotonic()
    idle = run.asking_seconds(now)

    run.hurry()
    seen = run.asking_seconds(now)
    run.pause("target", is_paused=True)
    acted = run.asking_seconds(now)

    assert idle > seen > acted
    assert run.asking_seconds(now + 3600) == idle


def test_defect_of_the_status_is_logged_once_and_counted_and_the_status_goes_on(
    pipeline: PipelineFile,
    use_timing: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
):
    use_timing(watch_seconds=0.01)
    run = WatchedRun(pipeline, BOTH)
    told: list[tuple[str, str]] = []
    run.on_error = lambda part, text: told.append((part, text))
    turns = itertools.count(1)
    fails_at = {2, 3, 5}
    is_done = threading.Event()

    def take(_: object) -> None:
        turn = next(turns)
        if turn == 7:
            is_done.set()
        if turn in fails_at:
            raise KeyError("a defect")

    run.on_snapshot = take
    run.start()
    assert is_done.wait(30)
    run.stop()

    said = [each for each in caplog.records if "please report it" in each.getMessage()]
    assert len(said) == 1
    assert said[0].exc_info is not None
    assert [part for part, _ in told] == ["status", "status"]
    assert all(text.startswith("PEN-900 an unexpected KeyError") for _, text in told)
