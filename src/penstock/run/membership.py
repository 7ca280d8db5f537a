"""Keep the publication in step with the tables that match, while capture runs."""

from __future__ import annotations

import logging
import threading
import time
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.lsn import ZERO
from penstock.retry import is_temporary
from penstock.source.catalogmark import read_catalog_mark
from penstock.source.connect import connect_source
from penstock.source.options import Tracking
from penstock.source.partitions import read_partitions
from penstock.source.schemalog import (
    acknowledge_versions,
    last_lsn,
    trim_versions,
    write_versions,
)
from penstock.source.server import current_lsn, emit_mark
from penstock.source.slot import check_slot, slot_state, slot_warning
from penstock.source.subscription import update_membership
from penstock.source.tracking.install import broken_tracking, has_log
from penstock.state.reports import MembershipReport
from penstock.table import name_tables
from penstock.timing import timing

if TYPE_CHECKING:
    import psycopg

    from penstock.lsn import Lsn
    from penstock.run.sinkreports import SinkReports
    from penstock.schema.past_shapes import PastShapes
    from penstock.source.catalogmark import CatalogMark
    from penstock.source.options import SourceOptions
    from penstock.source.subscription import Subscription
    from penstock.state.wire import Wire
    from penstock.table import TableName, TableRules

    Connection = psycopg.Connection[Any]

_log = logging.getLogger(__name__)

# So many polls may find the catalog as it was before all of it is read nevertheless: what roles may
# do, and whether a partition came with rows, leaves no mark.
_POLLS_BETWEEN_FULL_READS = 15
_POLLS_BETWEEN_TRIGGER_CHECKS = 5  # the source's triggers are checked every so many


class MembershipWatch:
    """A thread that polls the catalog; `pace`: how much less often among many sources.

    Each poll has a connection of its own: one that stayed open would hold up a smart shutdown of
    the server.
    """

    def __init__(
        self,
        source: SourceOptions,
        subscription: Subscription,
        past_shapes: PastShapes,
        wire: Wire,
        reports: SinkReports,
        *,
        pace: float = 1.0,
    ) -> None:
        self._source = source
        self._reports = reports
        # The last version that is in the log, and whether it is delivered.
        self._written: tuple[Lsn, bool] | None = None
        self._polls = 0
        # Where the stream was before and after the last poll that found something new.
        self._since_lsn = self._lsn = ZERO
        self._seen: tuple[dict[str, int], dict[int, tuple[int, ...]], TableRules | None] | None
        self._seen = None
        self._mark: CatalogMark | None = None
        self._polls_since = 0
        self._report = MembershipReport()
        self._subscription = subscription
        self._past_shapes = past_shapes
        self._wire = wire
        self._interval_seconds = timing().membership_poll_seconds * pace
        self._stop = threading.Event()
        # In this context, so that its lines name the same source.
        run = partial(copy_context().run, self._run)
        self._thread = threading.Thread(target=run, name="membership", daemon=True)
        self._failure: BaseException | None = None
        self._logged: set[str] = set()
        self._slot_at = 0.0
        self._wal_status: str | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End the watch."""
        self._stop.set()
        self._thread.join(timeout=15)

    def raise_if_failed(self) -> None:
        """Raise what the watch has found that only a person can fix, or what ended it."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._watch()
        except BaseException as error:  # noqa: BLE001 - handed to capture's own thread, which raises it
            self._failure = error

    def _watch(self) -> None:
        while True:
            try:
                self._poll()
            except PenstockError as error:
                # A server that is away is capture's own concern, and it says so.
                if not is_temporary(error):
                    self._failure = error
                elif str(error) not in self._logged:
                    self._logged.add(str(error))
                    _log.info("cannot read the source's tables, trying again: %s", error)
            if self._stop.wait(self._interval_seconds):
                return

    def _poll(self) -> None:
        with connect_source(self._source.url, "penstock membership") as connection:
            mark = read_catalog_mark(connection, self._mark)
            is_known = self._mark is not None and mark.catalog == self._mark.catalog
            if is_known and self._polls_since < _POLLS_BETWEEN_FULL_READS:
                self._mark = mark
                self._polls_since += 1
            else:
                self._mark = None
                is_settled = self._read_catalog(connection)
                self._mark = mark if is_settled else None
                self._polls_since = 0
            self._check_slot(connection)
            self._trim_versions(connection)
        # Also where it says the same: who begins to deliver wants one of now.
        self._wire.publish(replace(self._report, at=time.time()))

    def _read_catalog(self, connection: Connection) -> bool:
        """Read the whole catalog; whether nothing is to be tried again."""
        since_lsn = current_lsn(connection)
        change = update_membership(connection, self._subscription, self._source.tables)
        published = {str(table): change.oids[table] for table in change.published}
        entries = change.entries
        seen = published, entries, change.rules
        # What came and went again between two polls has changed nothing but that.
        if seen != self._seen or change.added or change.removed:
            # Read afterwards: what was seen had committed by then. The mark has an idle
            # stream, too, come so far.
            self._since_lsn, self._lsn = since_lsn, current_lsn(connection)
            emit_mark(self._source.url, "tables")
            self._seen = seen
        left_out = {str(entry.table): entry.reason for entry in change.left_out}
        self._report = MembershipReport(
            published=published,
            entries=entries,
            left_out=left_out,
            delayed=tuple(map(str, change.delayed)),
            partitions=read_partitions(connection, published.values()),
            since_lsn=self._since_lsn,
            lsn=self._lsn,
        )
        if change.added:
            _log.info("%s appeared and is followed from now on", name_tables(change.added))
        if change.removed:
            _log.info("%s is no longer followed", name_tables(change.removed))
        reasons: dict[str, list[TableName]] = {}
        for entry in change.left_out:
            if str(entry.table) not in self._logged:
                self._logged.add(str(entry.table))
                reasons.setdefault(entry.reason, []).append(entry.table)
        for reason, tables in reasons.items():
            _log.warning("%s is left out: %s", name_tables(tables), reason)
        return not change.failed

    def _check_slot(self, connection: Connection) -> None:
        """Warn while there is still time; also while capture waits and has no connection of its own.

        Raises:
            SlotMissing, SlotLost: it is too late.
        """
        now = time.monotonic()
        if now < self._slot_at:
            return
        self._slot_at = now + timing().membership_slot_seconds
        name, place = self._subscription.slot, str(self._source.url)
        slot = slot_state(connection, name)
        check_slot(slot, name, place)
        warning = slot_warning(slot, name, place)
        # Once for each state that it gets into: the bytes differ each time.
        if warning is not None and slot.wal_status != self._wal_status:
            _log.warning("%s", warning)
        self._wal_status = slot.wal_status

    def _trim_versions(self, connection: Connection) -> None:
        """Keep the log of versions, and the past shapes; see that the source's triggers live."""
        delivered = self._reports.safe_lsn()
        if self._source.schema_options.tracking is not Tracking.TRIGGERS:
            self._past_shapes.forget_before(delivered)
            return
        if self._polls % _POLLS_BETWEEN_TRIGGER_CHECKS == 0:
            broken = broken_tracking(connection)
            if broken is not None and str(broken) not in self._logged:
                self._logged.add(str(broken))
                _log.error("%s", broken)
        self._polls += 1
        written = self._write_versions(connection, delivered)
        self._past_shapes.forget_before(min(delivered, written))

    def _write_versions(self, connection: Connection, delivered: Lsn) -> Lsn:
        """Add to the source's log what the stream has reported; up to where all of it is there."""
        past_shapes, name = self._past_shapes, self._subscription.name
        newest = past_shapes.last_version_lsn()
        if (newest, newest < delivered) == self._written:
            return delivered
        if not has_log(connection):
            return delivered  # nobody keeps versions
        if newest > (self._written[0] if self._written else ZERO):
            lsn = last_lsn(connection, name)
            write_versions(connection, name, past_shapes.transactions_after(lsn))
        acknowledge_versions(connection, name, delivered)
        trim_versions(connection, name)
        self._written = newest, newest < delivered
        return delivered
