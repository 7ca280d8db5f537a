"""What systemd is told: over a real socket, as sd_notify(3) says."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from fix_pipeline import pipeline_document
from penstock.config import pipeline_from_document
from penstock.pipeline import state_of, wire_of
from penstock.run.capture_process import CaptureSigns
from penstock.run.notify import Notify, notified_by_a_thread
from penstock.state.reports import CaptureReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket that systemd listens on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listening


def test_ready_is_said_once(systemd: socket.socket):
    notify = Notify()
    notify.ready()
    notify.ready()
    notify.stopping()

    assert [systemd.recv(100), systemd.recv(100)] == [b"READY=1", b"STOPPING=1"]


def test_watchdog_is_told_twice_within_its_time(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    notify = Notify()

    notify.beat()
    notify.beat()
    notify.stopping()

    assert notify.beat_seconds == 30
    assert [systemd.recv(100), systemd.recv(100)] == [b"WATCHDOG=1", b"STOPPING=1"]


def test_watchdog_of_another_process_is_not_ours(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    monkeypatch.setenv("WATCHDOG_PID", "1")

    assert Notify().beat_seconds is None


def test_thread_keeps_telling_the_watchdog(systemd: socket.socket, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WATCHDOG_USEC", "40000")

    with notified_by_a_thread(lambda: True) as notify:
        notify.ready()
        said = [systemd.recv(100) for _ in range(4)]

    assert said.count(b"WATCHDOG=1") >= 3
    assert b"READY=1" in said


def test_without_systemd_nothing_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)

    with notified_by_a_thread(lambda: True) as notify:
        notify.ready()
        notify.beat()


def test_watchdog_hears_nothing_of_capture_that_hangs(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WATCHDOG_USEC", "40000")
    asked = threading.Semaphore(0)

    def is_alive() -> bool:
        asked.release()
        return False

    with notified_by_a_thread(is_alive):
        for _ in range(3):
            assert asked.acquire(timeout=10)

    assert systemd.recv(100) == b"STOPPING=1"


def test_capture_lives_while_it_reports_or_waits(tmp_path: Path, use_timing: Callable[..., None]):
    away = "postgresql://127.0.0.1:1/none"
    pipeline = pipeline_from_document(pipeline_document(away, away, tmp_path), "test.yml")
    state_of(pipeline).claim()
    wire = wire_of(pipeline)
    wire.publish(CaptureReport(connected=True, at=time.time() - 600))  # of a predecessor
    signs = CaptureSigns(pipeline)

    assert signs()
    wire.publish(CaptureReport(connected=True, at=time.time()))
    assert signs()
    use_timing(watch_stale_seconds=0.0)
    assert not signs()
    wire.publish(CaptureReport(connected=False, at=time.time()))
    assert signs()
