"""Ctrl-C and SIGTERM as an event that loops check."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop(threading.Event):
    """Set by Ctrl-C and SIGTERM.

    While `raises` holds, the signal also raises KeyboardInterrupt: during start-up the program may be
    waiting for a server, and there is nothing yet to bring to a consistent point.
    """

    raises = True

    def take(self) -> None:
        """The signal has come."""
        self.set()
        if self.raises:
            raise KeyboardInterrupt


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """An event that Ctrl-C and SIGTERM set, until the block ends."""
    stop = Stop()
    before = {number: signal.getsignal(number) for number in _STOPPING}
    take_signals(stop)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def take_signals(stop: threading.Event) -> None:
    """Point the signals at the event; again after a library has taken them. Main thread only."""
    if threading.current_thread() is threading.main_thread():
        act = stop.take if isinstance(stop, Stop) else stop.set
        for number in _STOPPING:
            # Under nohup it is ignored from the start, and is to stay so.
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            signal.signal(number, lambda *_: act())
