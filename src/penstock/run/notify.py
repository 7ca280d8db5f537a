"""What systemd is told of a unit with `Type=notify`: that it is ready, that it lives, that it stops.

Does nothing where there is no systemd that asks (NOTIFY_SOCKET, WATCHDOG_USEC: sd_notify(3)).
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Twice within the time that the watchdog allows, as sd_watchdog_enabled(3) advises.
_SHARE = 0.5


class Notify:
    """The socket of systemd. From one thread."""

    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        limit = os.environ.get("WATCHDOG_USEC", "")
        is_ours = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.beat_seconds = int(limit) / 1_000_000 * _SHARE if limit.isdigit() and is_ours else None
        self._beat_at = 0.0
        self._is_ready = False

    def ready(self) -> None:
        """The first sink is open, or the source is followed. Once."""
        if not self._is_ready:
            self._is_ready = True
            self._send("READY=1")

    def beat(self) -> None:
        """The loop that watches over everything goes round; cheap, called every 100 ms."""
        if self.beat_seconds is None:
            return
        now = time.monotonic()
        if now >= self._beat_at:
            self._beat_at = now + self.beat_seconds
            self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """The run ends, which may take its time."""
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        # Nobody need be told that systemd is gone.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
            sending.sendto(text.encode(), address)


@contextmanager
def notified_by_a_thread(is_alive: Callable[[], bool]) -> Iterator[Notify]:
    """For a command whose main thread may wait for a server: another one says that the process lives.

    Args:
        is_alive: whether what the command does goes on; the watchdog hears nothing while it does not.
    """
    notify, ended = Notify(), threading.Event()
    thread = None
    if (seconds := notify.beat_seconds) is not None:

        def keep_beating() -> None:
            while not ended.wait(seconds):
                if is_alive():
                    notify.beat()

        thread = threading.Thread(target=keep_beating, name="watchdog", daemon=True)
        thread.start()
    try:
        yield notify
    finally:
        ended.set()
        notify.stopping()
        if thread is not None:
            thread.join()
