"""Cancel whatever runs over some connections, so that no further statement of theirs runs either.

Cancelling alone is not enough: who makes ten indexes notes that one could not be made, and goes on
with the next. So every later statement over such a connection is refused as if the server were going
down, which nobody takes for a fault of what was to be made.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

import psycopg

from penstock.sinks.postgres.expressions.time_limit import note_cancelled
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Iterable

    Connection = psycopg.Connection[Any]

_log = logging.getLogger(__name__)


_cancelled: WeakSet[Connection] = WeakSet()


class _Cursor(psycopg.Cursor[Any]):
    """Runs nothing over a connection that was cancelled."""

    def execute(self, *args: Any, **kwargs: Any) -> Self:
        """Execute, unless it was cancelled."""
        if self.connection in _cancelled:
            raise psycopg.errors.AdminShutdown("cancelled")
        super().execute(*args, **kwargs)
        return self


def cancellable(connection: Connection) -> Connection:
    """Have a connection obey `cancel_all`."""
    connection.cursor_factory = _Cursor
    return connection


def cancel_all(connections: Iterable[Connection]) -> None:
    """Cancel what runs over connections, from another thread, and let nothing more run."""
    all_of_them = list(connections)
    _cancelled.update(all_of_them)
    for connection in all_of_them:
        note_cancelled(connection)
    # All at once: a server that does not answer is waited for, and there may be many.
    threads = [
        threading.Thread(target=_cancel, args=(connection,), name="cancel", daemon=True)
        for connection in all_of_them
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timing().cancel_seconds)


def _cancel(connection: Connection) -> None:
    try:
        connection.cancel_safe(timeout=timing().cancel_seconds)
    except psycopg.Error as error:
        _log.debug("a statement could not be cancelled: %s", type(error).__name__)
