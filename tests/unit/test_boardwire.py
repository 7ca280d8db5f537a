"""Reports through a broker that goes away and comes back."""

from __future__ import annotations

import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest

from fix_wait import wait_until
from penstock.config import pipeline_from_document
from penstock.embedded.ports import free_port
from penstock.errors import LogUnreachable
from penstock.log.nats.board import NatsBoard
from penstock.log.nats.options import NatsLogOptions
from penstock.lsn import Lsn
from penstock.pipeline import state_of, top_wire_of
from penstock.run.capture_process import take_role
from penstock.run.pauses import PauseWatch, set_pause
from penstock.run.status import read_status
from penstock.state.boardwire import BoardWire
from penstock.state.directory import StateDirectory
from penstock.state.reports import DeliveryReport, Failure, MembershipReport, Pause
from penstock.state.wire import FileWire

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_nats import NatsServer

SINKS = ("warehouse",)


class Machine:
    """A process that sees a board, and a state directory of its own."""

    def __init__(self, server: NatsServer, bucket: str, directory: Path) -> None:
        options = NatsLogOptions.model_validate({"url": server.url, "timeout": 2})
        self.board: Any = NatsBoard(options, bucket, bucket)
        self.state = StateDirectory(directory, "shop")
        self.state.claim()
        self.files = FileWire(self.state)
        self.wire = BoardWire(self.board, self.files, self.state, "shop", "capture/shop", SINKS)


@pytest.fixture
def machine(
    own_nats: NatsServer, tmp_path: Path, use_timing: Callable[..., None]
) -> Callable[[str], Machine]:
    use_timing(board_rest_seconds=0.2, board_report_seconds=1.0, pause_poll_seconds=0.0)
    bucket = f"state-{uuid.uuid4().hex}"
    return lambda name: Machine(own_nats, bucket, tmp_path / name)


def test_run_of_a_role_that_is_held_here_is_known_while_the_broker_is_away(
    own_nats: NatsServer, machine: Callable[[str], Machine]
):
    """A sink that is opened then would report of no run, and capture would never believe it."""
    one, other = machine("one"), machine("other")
    with one.wire.hold_delivery(SINKS):
        run = one.wire.delivering_run("warehouse")
        assert run is not None
        assert other.wire.delivering_run("warehouse") == run

        own_nats.kill()
        assert not one.wire.publish(DeliveryReport(), "warehouse")

        assert one.wire.delivering_run("warehouse") == run
        assert one.wire.delivering_run() == run
        # Another process of the same machine, which has not read the board yet.
        near = BoardWire(machine("near").board, one.files, one.state, "shop", "capture/shop", SINKS)
        assert near.delivering_run("warehouse") == run
    assert near.delivering_run("warehouse") is None


def test_what_others_have_reported_counts_while_the_broker_is_away(
    own_nats: NatsServer, machine: Callable[[str], Machine]
):
    """Not what lies here since this machine did their work."""
    one, other = machine("one"), machine("other")
    one.files.publish(MembershipReport(published={"public.former": 1}, at=1.0))
    other.wire.publish(MembershipReport(published={"public.t": 2}, at=2.0))
    other.wire.publish(Pause(7.0), "warehouse")
    is_paused = PauseWatch(one.wire, "warehouse")
    assert is_paused()
    assert one.wire.latest(MembershipReport).published == {"public.t": 2}

    own_nats.kill()
    one.wire.publish(DeliveryReport(changes_delivered=3), "warehouse")

    for _ in range(2):
        assert one.wire.latest(MembershipReport).published == {"public.t": 2}
        assert one.wire.published_at(MembershipReport) > 0
        assert is_paused()
        assert one.wire.latest(DeliveryReport, "warehouse").changes_delivered == 3
        with pytest.raises(LogUnreachable):
            one.board.get("x")
    own_nats.start()
    wait_until(lambda: other.wire.withdraw(Pause, "warehouse"), what="the broker to be back")
    wait_until(lambda: not is_paused(), what="the sink to go on")


def test_board_that_was_read_in_part_is_not_taken_for_all_of_it(
    machine: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch
):
    one, other = machine("one"), machine("other")
    other.wire.publish(Pause(7.0), "warehouse")

    with monkeypatch.context() as patching:

        def cut(_: Any) -> None:
            raise LogUnreachable("no answer")

        patching.setattr(NatsBoard, "_catch_up", cut)
        assert one.wire.latest(Pause, "warehouse") is None
        assert not one.board.is_known

    time.sleep(0.2)  # the broker is left alone for so long
    assert one.wire.latest(Pause, "warehouse") == Pause(7.0)


def test_what_ended_a_half_is_forgotten_also_where_the_broker_was_away_a_moment_ago(
    own_nats: NatsServer, machine: Callable[[str], Machine], use_timing: Callable[..., None]
):
    one, other = machine("one"), machine("other")
    one.wire.publish(Failure("PEN-308"), "capture")
    own_nats.kill()
    use_timing(board_rest_seconds=60.0)
    assert not one.wire.publish(DeliveryReport(), "warehouse")
    own_nats.start()

    wait_until(lambda: one.wire.withdraw(Failure, "capture"), what="the broker to be back")

    wait_until(lambda: other.wire.latest(Failure, "capture") is None)


def test_pause_that_nobody_hears_of_is_an_error(own_nats: NatsServer, tmp_path: Path):
    own = uuid.uuid4().hex
    log = {"kind": "nats", "url": own_nats.url, "bucket": f"state-{own}", "timeout": 2}
    document = {
        "name": "shop",
        "state": str(tmp_path / "state"),
        "source": {"url": "postgresql://u@localhost/d", "tables": ["public.t"]},
        "log": log,
        "sinks": {"out": {"kind": "stdout"}},
    }
    file = pipeline_from_document(document, "test")
    set_pause(file, "out", is_paused=True)
    own_nats.kill()

    for is_paused in (True, False):
        with pytest.raises(LogUnreachable, match="could not be posted"):
            set_pause(file, "out", is_paused=is_paused)

    own_nats.start()
    wait_until(lambda: cast("Any", top_wire_of(file)).withdraw(Pause, "out"))
    assert "goes on" in set_pause(file, "out", is_paused=False)


def test_status_does_not_wait_for_a_broker_that_is_away_at_each_question(
    tmp_path: Path, use_timing: Callable[..., None]
):
    use_timing(log_read_seconds=2.0)
    servers = f"127.0.0.1:{free_port()}"
    sinks = {name: {"kind": "file", "path": str(tmp_path / name)} for name in ("x", "y")}
    sources = {
        name: {"url": f"postgresql://u@127.0.0.1:1/{name}", "tables": ["public.t"]}
        for name in ("a", "b", "c")
    }
    document = {
        "name": f"shop_{uuid.uuid4().hex[:8]}",
        "state": str(tmp_path / "state"),
        "sources": sources,
        "log": {"kind": "kafka", "servers": servers, "timeout": 2},
        "sinks": sinks,
    }
    file = pipeline_from_document(document, "test")
    for view in file.each():
        state_of(view).claim()
        for sink in sinks:
            report = DeliveryReport(delivered_lsn=Lsn(8), safe_lsn=Lsn(8))
            FileWire(state_of(view)).publish(report, sink)
    began = time.monotonic()

    status = read_status(file)

    assert time.monotonic() - began < 16
    assert status.sinks["x"].sources["b"].delivered_lsn == "0/8"


def test_who_delivers_waits_for_a_broker_that_is_away_at_the_start(
    own_nats: NatsServer, machine: Callable[[str], Machine], caplog: pytest.LogCaptureFixture
):
    one, stop = machine("one"), threading.Event()
    hold = partial(one.wire.hold_delivery, SINKS)
    own_nats.kill()
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        taking = pool.submit(take_role, stack, hold, stop)
        wait_until(lambda: "PEN-307" in caplog.text or taking.done(), what="it to be said")
        own_nats.start()
        assert taking.result(30)
        assert one.wire.delivering_run("warehouse")
    stop.set()
    assert not take_role(stack, hold, stop)
