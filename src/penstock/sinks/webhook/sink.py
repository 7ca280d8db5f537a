"""Documents into an outbox, and from there to each receiver by itself.

What `deliver` stores is durable, with the state, in one transaction (`store`). Deliveries run beside it (`dispatch`); it
waits for those that keep up, so that a position that moves means that they have it. For a receiver that does not answer
the outbox is kept, up to `retain_bytes`.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import time
from typing import TYPE_CHECKING

from penstock.errors import DestinationRefuses, LogKeyMissing, LogKeyUnusable, SecondInstance
from penstock.failpoints import fault_point
from penstock.findings import Finding
from penstock.sinks.documents.contract import DocumentSink
from penstock.sinks.durable import make_directory
from penstock.sinks.webhook.database import database_of
from penstock.sinks.webhook.dispatch import Dispatcher
from penstock.sinks.webhook.leaving import describe_loss
from penstock.sinks.webhook.parked import opened
from penstock.sinks.webhook.receivers import problem_with
from penstock.sinks.webhook.store import store_of
from penstock.sinks.webhook.wants import as_stored, fixed_of
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from penstock.sinks.kind import SinkPlace
    from penstock.sinks.webhook.options import WebhookOptions

_log = logging.getLogger(__name__)


class WebhookSink(DocumentSink):
    """Delivers to everybody who has subscribed."""

    stores_state = True
    batch_bytes = 2 * 1024 * 1024

    passes_with_time = (sqlite3.OperationalError,)  # locked by another, or the disk is full
    needs_a_person = (sqlite3.DatabaseError,)  # damaged

    def __init__(self, place: SinkPlace[WebhookOptions]) -> None:
        self._options = place.options
        self._where = f"sink {place.name}"
        self._path = database_of(place)
        self._origin = f"/penstock/{place.pipeline}/{place.source_id}"
        self._place = place
        self._store = store_of(place)
        self._dispatcher: Dispatcher | None = None
        self._lock: int | None = None
        self._prune_at = 0.0
        self._is_paused = False
        self._retries = 0  # only deliveries add to it, and those of one dispatcher at a time
        self._reported_retries = 0

    def open(self) -> str | None:
        """Claim the database, remove what was not published, go on with deliveries."""
        self._end()
        make_directory(self._path.parent)
        self._claim()
        self._store.open()
        self._store.require_keys()
        self._store.recover()
        self._set_fixed()
        self._dispatcher = Dispatcher(
            store_of(self._place),
            self._options,
            self._origin,
            self._count_retry,
            is_paused=self._is_paused,
        )
        self._dispatcher.start()
        self._dispatcher.publish(self._store.published, is_first=True)
        return self._store.state

    def _set_fixed(self) -> None:
        wanted = {made: as_stored(each) for made, each in fixed_of(self._options).items()}
        for kept in self._store.leaving(wanted):
            if (lost := describe_loss(self._store, kept)) is not None:
                _log.error(
                    "%s: subscription %s is not in urls: any more; %s will not be delivered",
                    self._where,
                    kept.id,
                    lost,
                )
        self._store.set_fixed(wanted)

    def deliver(self, documents: Iterator[pa.RecordBatch], state: str | None) -> None:
        """Store the documents and the state; wait for receivers that keep up."""
        assert self._dispatcher is not None, "opened first"
        published = self._store.append(documents, state)
        fault_point("webhook.after_commit")
        self._dispatcher.publish(published)
        self._prune()

    def idle(self) -> None:
        """Delete what everybody has."""
        self._prune()

    def _prune(self) -> None:
        now = time.monotonic()
        if now < self._prune_at or not self._store.outbox_bytes:
            return
        self._prune_at = now + timing().webhook_prune_seconds
        for id_ in self._store.prune(self._options.retain_bytes):
            _log.error(
                "%s: subscription %s has lost documents: retain_bytes was reached", self._where, id_
            )

    def has_handed_on(self) -> bool:
        """Whether all receivers that do not fail have what was delivered."""
        dispatcher = self._dispatcher
        return dispatcher is not None and dispatcher.has_handed_on()

    def pause(self) -> None:
        """Have no request set out."""
        self._is_paused = True
        if self._dispatcher is not None:
            self._dispatcher.pause()

    def resume(self) -> None:
        """Have requests set out again."""
        self._is_paused = False
        if self._dispatcher is not None:
            self._dispatcher.resume()

    def take_retries(self) -> int:
        """How often receivers that fail were asked again."""
        reported, self._reported_retries = self._reported_retries, self._retries
        return self._reported_retries - reported

    def _count_retry(self) -> None:
        self._retries += 1

    def interrupt(self) -> None:
        """End a wait for receivers."""
        if self._dispatcher is not None:
            self._dispatcher.give_up()

    def check(self) -> Iterator[Finding]:
        """Whether the receivers of the file may be connected to, and what waits can be read. Sends nothing."""
        for each in self._options.urls:
            if (problem := problem_with(each.url, self._options.addresses)) is not None:
                yield Finding(DestinationRefuses(problem.what, self._where, problem.do))
        try:
            with opened(self._place) as store:
                if store is not None:
                    store.require_keys()
        except (LogKeyMissing, LogKeyUnusable) as error:
            yield Finding(error)

    def forget(self) -> list[str]:
        """Remove the database."""
        if not self._path.exists():
            return []
        self._claim()
        self._path.unlink()
        for suffix in ("-wal", "-shm", ".lock"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        self.close()
        return [f"subscriptions and what waits for them in {self._path}"]

    def close(self) -> None:
        """Let go of everything; requests under way have a moment to be answered."""
        self._end()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def explain(self, error: Exception) -> str:
        """SQLite's words hold no values."""
        return f"SQLite says: {error}"

    def _end(self) -> None:
        dispatcher, self._dispatcher = self._dispatcher, None
        if dispatcher is not None:
            dispatcher.stop()
        self._store.close()

    def _claim(self) -> None:
        if self._lock is not None:
            return
        lock = os.open(
            self._path.with_name(self._path.name + ".lock"),
            os.O_RDWR | os.O_CREAT | os.O_CLOEXEC,
            0o600,
        )
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise SecondInstance(
                "another process already delivers from there", str(self._path), "stop it first"
            ) from None
        self._lock = lock
