"""Keep the publication in step with the tables that match, while capture runs."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.run.retry import mends_with_time
from penstock.source.connect import connect_source
from penstock.source.subscription import update_membership

if TYPE_CHECKING:
    from penstock.run.state import StateDirectory
    from penstock.source.options import SourceOptions
    from penstock.source.subscription import Subscription

_log = logging.getLogger(__name__)

_INTERVAL_SECONDS = 2.0


class MembershipWatch:
    """A thread that looks at the catalog now and then.

    Each look has a connection of its own: one that stayed open would hold up a smart shutdown of
    the server.
    """

    def __init__(
        self, source: SourceOptions, subscription: Subscription, state: StateDirectory
    ) -> None:
        self._source = source
        self._subscription = subscription
        self._state = state
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="membership", daemon=True)
        self._failure: PenstockError | None = None
        self._told: set[str] = set()

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End the watch."""
        self._stop.set()
        self._thread.join(timeout=15)

    def raise_if_failed(self) -> None:
        """Raise what the watch has found that only a person can mend."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        while True:
            try:
                self._look()
            except PenstockError as error:
                # A server that is away is capture's own concern, and it says so.
                if not mends_with_time(error):
                    self._failure = error
            if self._stop.wait(_INTERVAL_SECONDS):
                return

    def _look(self) -> None:
        with connect_source(self._source.url, "penstock membership") as connection:
            change = update_membership(connection, self._subscription, self._source.tables)
        for table in change.added:
            _log.info("%s appeared and is followed from now on", table)
        for table in change.removed:
            _log.info("%s is no longer followed", table)
        left_out = {str(entry.table): entry.reason for entry in change.left_out}
        for name, reason in left_out.items():
            if name not in self._told:
                self._told.add(name)
                _log.warning("%s is left out: %s", name, reason)
        self._state.write_report(
            "tables",
            {
                "published": {str(table): change.oids[table] for table in change.published},
                "left_out": left_out,
                "at": time.time(),
            },
        )
