"""Whether waiting for a server is in vain, since this process is to stop.

A stop may take 10 s. A server that does not answer is waited for longer, in threads that do not look at the event of a
stop, so such waits are made in steps that ask here. What is done at the end of a run, such as a last report, has a moment
more: a server that is well answers within it.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.timing import timing

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

# Events of runs in this process, and when one was first seen to be set.
_stops: dict[threading.Event, float | None] = {}


@contextmanager
def ends_waits(stop: threading.Event) -> Iterator[None]:
    """From when an event is set, until the block ends, waits for servers are short."""
    _stops[stop] = None
    try:
        yield
    finally:
        _stops.pop(stop, None)


def is_in_vain() -> bool:
    """Whether a wait should end; cheap."""
    for stop, seen_at in list(_stops.items()):
        if not stop.is_set():
            continue
        if seen_at is None:
            _stops[stop] = time.monotonic()
        elif time.monotonic() >= seen_at + timing().broker_stop_seconds:
            return True
    return False
