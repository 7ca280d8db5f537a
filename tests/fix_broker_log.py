"""Logs on brokers, for pipelines whose halves share no disk."""

from __future__ import annotations

import threading
import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from fix_wait import wait_until
from penstock.config import pipeline_from_document
from penstock.pipeline import build_sinks, top_wire_of
from penstock.run.capture_process import run_capture
from penstock.run.deliver import Delivery
from penstock.run.deliveries import build_copier, build_flow
from penstock.run.sources import mark_now
from penstock.run.start import start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.run.flow import Flow
    from penstock.spark.session import Spark


def kafka_log(servers: str, **more: Any) -> dict[str, Any]:
    """What `log:` says, with topics that no other test has."""
    own = uuid.uuid4().hex[:10]
    names = {"topic": f"log-{own}.{{source}}", "state_topic": f"state-{own}"}
    return {"kind": "kafka", "servers": servers, **names, **more}


def nats_log(url: str, **more: Any) -> dict[str, Any]:
    """The same on NATS."""
    own = uuid.uuid4().hex[:10]
    names = {"stream": f"log-{own}-{{source}}", "bucket": f"state-{own}"}
    return {"kind": "nats", "url": url, **names, **more}


@pytest.fixture(params=["kafka", "nats"])
def broker_log(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What `log:` says of a log on each kind of broker."""
    if request.param == "kafka":
        return kafka_log(request.getfixturevalue("kafka").servers)
    return nats_log(request.getfixturevalue("nats_server").url)


class CaptureHalf:
    """`penstock capture` in a thread, with a state directory of its own."""

    def __init__(self, document: dict[str, Any], directory: Path) -> None:
        self.file = pipeline_from_document({**document, "state": str(directory)}, "test")
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread()

    def start(self) -> CaptureHalf:
        self._stop.clear()
        self.failure = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def _run(self) -> None:
        try:
            run_capture(self.file, self._stop)
        except BaseException as error:  # noqa: BLE001 - asserted on by the test
            self.failure = error

    def wait_for_end(self) -> BaseException | None:
        wait_until(lambda: not self._thread.is_alive(), 60, "capture to end")
        return self.failure

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "capture does not stop"


class DeliverHalf:
    """`penstock deliver` in threads, with a state directory of its own; `sinks`: to which."""

    def __init__(
        self,
        document: dict[str, Any],
        directory: Path,
        spark: Spark,
        sinks: tuple[str, ...] = (),
    ) -> None:
        file = pipeline_from_document({**document, "state": str(directory)}, "test")
        self.file = file.only(sinks) if sinks else file
        self._spark = spark
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._locks = ExitStack()
        self.flows: list[Flow] = []
        self.failures: list[BaseException] = []
        self._wake: list[Callable[[], None]] = []

    def start(self) -> DeliverHalf:
        started = start(self.file)
        self._locks.enter_context(top_wire_of(self.file).hold_delivery(self.file.sinks))
        self.flows = [
            build_flow(self.file, started, sink, self._spark, self._stop)
            for sink in build_sinks(self.file)
        ]
        copiers = [build_copier(self.file, flow, self._spark, self._stop) for flow in self.flows]
        loops = [Delivery(flow.name, self._stop, [flow]) for flow in self.flows]
        self._wake = [copier.wake for copier in copiers]
        for job in (*(loop.run for loop in loops), *(copier.run for copier in copiers)):
            self._threads.append(threading.Thread(target=self._guard, args=(job,)))
            self._threads[-1].start()
        return self

    def _guard(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - asserted on by the test
            self.failures.append(error)

    def catch_up(self, deadline_seconds: float = 90) -> None:
        lsn = mark_now(self.file)
        wait_until(
            lambda: (
                self.failures
                or all(flow.has_caught_up(lsn) and flow.is_open for flow in self.flows)
            ),
            deadline_seconds,
            what=f"delivery up to {lsn}",
        )
        if self.failures:
            raise self.failures[0]

    def stop(self) -> None:
        self._stop.set()
        for wake in self._wake:
            wake()
        for thread in self._threads:
            thread.join(40)
        self._locks.close()
        assert not any(thread.is_alive() for thread in self._threads), "a loop does not stop"


@pytest.fixture
def halves(spark: Spark, tmp_path: Path) -> Iterator[Callable[..., CaptureHalf | DeliverHalf]]:
    """Start halves of pipelines, each in a directory of its own; all are stopped when the test ends."""
    made: list[CaptureHalf | DeliverHalf] = []

    def begin(which: str, document: dict[str, Any], *sinks: str) -> CaptureHalf | DeliverHalf:
        directory = tmp_path / f"{which}-{len(made)}"
        half = (
            CaptureHalf(document, directory)
            if which == "capture"
            else DeliverHalf(document, directory, spark, sinks)
        )
        half.start()
        made.append(half)
        return half

    yield begin
    for half in reversed(made):
        half.stop()
