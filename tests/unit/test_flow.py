"""A flow runs the next job while a batch is committed, unless something of that batch is not delivered."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import SinkError, SinkLoginRefused
from penstock.lsn import Lsn
from penstock.metrics import Recorder
from penstock.retry import BackOff
from penstock.run.commits import Commits
from penstock.run.deliver import Delivery
from penstock.run.flow import Feed, Flow
from penstock.sinks.sink import Batch, Receipt
from penstock.timing import Timing


class Scripted(Flow):
    """Its jobs and commits only say that they ran; a commit ends when it is allowed to, or a moment later."""

    def __init__(self, receipt: Receipt) -> None:
        nothing: Any = None
        sink: Any = SimpleNamespace(name="s", tables=SimpleNamespace(detached={}, streaming=()))
        wire: Any = SimpleNamespace(latest=lambda *_: None)
        feed = Feed("a", nothing, wire, nothing, nothing)
        super().__init__(nothing, feed, sink, threading.Event())
        self.steps: list[str] = []
        self.may_commit = threading.Event()
        self._receipt = receipt

    def _batch(self, after_lsn: Lsn, slices: Any, only: Any = None) -> Batch:
        self._batch_number += 1
        return Batch(self._batch_number, after_lsn, Lsn(after_lsn + 1), 0, frozenset())

    def _run_job(
        self, batch: Batch, slices: Any, report: Any, trace: Any, only: Any = None
    ) -> None:
        self.steps.append(f"job {batch.number}")
        report.receipts = [self._receipt]
        if batch.number == 2:
            self.may_commit.set()

    def _commit(self, batch: Batch, report: Any, trace: Any) -> None:
        if batch.number == 1:
            self.may_commit.wait(0.3)
        self.steps.append(f"commit {batch.number}")


@pytest.mark.parametrize("holds_up", [False, True])
def test_job_waits_for_the_commit_of_a_batch_that_is_not_delivered_whole(holds_up):
    flow = Scripted(Receipt(0, holds_up=holds_up))
    commits = Commits("s")
    stretch: Any = SimpleNamespace(marks=(), slices=())
    for number in range(2):
        flow._deliver(stretch, Lsn(number), commits)
    commits.close()
    overlapped = ["job 1", "job 2", "commit 1", "commit 2"]
    one_by_one = ["job 1", "commit 1", "job 2", "commit 2"]
    assert flow.steps == (one_by_one if holds_up else overlapped)


def test_what_a_sink_tries_again_by_itself_is_counted() -> None:
    told: list[str] = []

    class Listening(Recorder):
        is_on = True

        def retry(self, sink: str) -> None:
            told.append(sink)

    class Retrying:
        def pause(self) -> None: ...

        def resume(self) -> None: ...

        def has_handed_on(self) -> bool:
            return True

        def take_retries(self) -> int:
            return 3

    flow = Scripted(Receipt(0))
    flow._sink = Retrying()  # type: ignore[assignment]
    delivery = Delivery("hooks", threading.Event(), recorder=Listening())
    delivery.flows = [flow]
    delivery._count_retries()

    assert told == ["hooks"] * 3


def test_error_is_told_once_for_as_long_as_it_stays_the_same() -> None:
    told: list[tuple[str, str]] = []

    class Listening(Recorder):
        def error(self, part: str, text: str) -> None:
            told.append((part, text))

    delivery = Delivery("warehouse", threading.Event(), recorder=Listening())
    flow: Any = SimpleNamespace(
        error=None, report=lambda: None, close=lambda: None, back_off=BackOff(1.0, 2.0)
    )
    away, busy = SinkError("away", "sink warehouse", ""), SinkError("busy", "sink warehouse", "")
    for error in (away, away, busy):
        delivery._fail(flow, error)
    flow.error = None  # a batch has been delivered
    delivery._fail(flow, away)
    wrong = SinkLoginRefused("wrong password", "sink warehouse", "")
    with pytest.raises(SinkLoginRefused):
        delivery._fail(flow, wrong)

    assert told == [("sink warehouse", str(each)) for each in (away, busy, away, wrong)]


class Opening:
    """A flow that only says what is done with it."""

    def __init__(self, is_open: bool) -> None:
        self.source_id, self.is_open, self.is_stale, self.is_committing = "a", is_open, False, False
        self.retry_at = 0.0
        self.steps: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def step(*_: Any, **__: Any) -> Any:
            self.steps.append(name)
            if name in ("open", "close"):
                self.is_open = name == "open"
            return False

        return step


def test_paused_loop_holds_each_flow_before_it_opens_it_and_takes_no_turn() -> None:
    """Also while another cannot be opened: its source may be away for long."""
    stop = threading.Event()
    is_paused = [True] * 3 + [False] * 2

    def pause() -> bool:
        if len(is_paused) == 1:
            stop.set()
        return is_paused.pop(0)

    stream, closed, away = Opening(True), Opening(False), Opening(False)
    away.retry_at = float("inf")
    flows: Any = [stream, closed, away]
    Delivery("s", stop, flows, is_alone=False, is_paused=pause).run()

    def without_questions(flow: Opening) -> list[str]:
        asked = ("raise_if_failed", "is_busy", "is_due", "report", "close")
        return [each for each in flow.steps if each not in asked]

    held = ["pause"] * 3
    assert without_questions(stream) == ["pause", "rest"] * 3 + ["resume"] * 2
    assert (
        without_questions(closed)
        == ["pause", "open", "pause", "rest", "pause", "rest"] + ["resume"] * 2
    )
    assert without_questions(away) == held + ["resume"] * 2


def test_flow_that_rests_lets_its_sink_do_what_is_due_and_holds_it_once() -> None:
    done: list[str] = []

    def noting(name: str) -> Any:
        return lambda: done.append(name)

    flow = Scripted(Receipt(0))
    names = ("pause", "resume", "idle", "has_handed_on", "take_retries")
    flow._sink = SimpleNamespace(**{name: noting(name) for name in names})  # type: ignore[assignment]
    for step in (flow.pause, flow.pause, flow.rest, flow.resume, flow.resume):
        step()
    assert done == ["pause", "idle", "resume"]


class Arriving:
    """A log in which a slice of so many bytes lies at each look."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = list(sizes)

    def read(self, most_bytes: int) -> list[Any]:
        size = self.sizes.pop(0) if self.sizes else 0
        return [SimpleNamespace(head=SimpleNamespace(data_bytes=size))] if size else []


@pytest.mark.parametrize(
    ("since_last", "may_grow", "count"),
    [(0.0, True, 3), (60.0, True, 1), (0.0, False, 1)],
    ids=["it comes fast", "it took long to come", "others wait"],
)
def test_batch_of_a_backlog_waits_for_more_only_where_more_comes(
    monkeypatch, since_last, may_grow, count
):
    monkeypatch.setattr("penstock.run.flow.timing", lambda: Timing(flow_grow_seconds=20.0))
    flow = Scripted(Receipt(0))
    flow._sink = SimpleNamespace(batch_bytes=30 << 20)  # type: ignore[assignment]
    before: Any = Arriving(10 << 20)
    assert len(flow._read(before, may_grow=True)) == 1
    flow._read_at = time.monotonic() - since_last
    log: Any = Arriving(10 << 20, 10 << 20, 10 << 20, 10 << 20)
    assert len(flow._read(log, may_grow)) == count
