"""Loop 1: a slot is followed into the log. No Spark here, and no JVM: a pause of one must never delay
an acknowledgement."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.disk import unwritable
from penstock.errors import (
    DecodingFailed,
    DiskFull,
    LogError,
    LogFull,
    LogUnreachable,
    PenstockError,
    SecondInstance,
    SourceError,
)
from penstock.failpoints import fault_point
from penstock.log.contract import LastCommit
from penstock.lsn import ZERO, Lsn
from penstock.retry import BackOff, is_temporary, slow_back_off
from penstock.schema.mark import CHANGE, Mark
from penstock.schema.shape import FORMAT, REFRESH, SchemaChange, as_content
from penstock.source.assemble import Assembler
from penstock.source.beginning import read_first_shapes
from penstock.source.connect import connect_source
from penstock.source.identity import check_reach, compare_answering
from penstock.source.last_commit import require_commit
from penstock.source.notes import Notes
from penstock.source.options import Acknowledge, Tracking
from penstock.source.schemalog import numbered_versions
from penstock.source.shapes import read_shape_now
from penstock.source.slot import SlotState, check_slot, slot_state, wait_until_free
from penstock.source.stream import InProgress, SlotStream
from penstock.source.tracking.install import read_seal
from penstock.state.reports import CaptureReport
from penstock.timing import timing

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    import psycopg

    from penstock.config import PipelineFile
    from penstock.log.contract import Log
    from penstock.run.membership import MembershipWatch
    from penstock.run.sinkreports import SinkReports
    from penstock.run.start import Origin
    from penstock.schema.past_shapes import PastShapes
    from penstock.schema.shape import TableShape
    from penstock.source.identity import Answering
    from penstock.state.directory import StateDirectory
    from penstock.state.wire import Wire

    Connection = psycopg.Connection[Any]

_log = logging.getLogger(__name__)

# After a disk was full, so much must be free before capture goes on, or all be delivered.
_ROOM_BYTES = 16 * 1024 * 1024


class Capture:
    """Follows one slot until stopped."""

    def __init__(
        self,
        pipeline: PipelineFile,
        state: StateDirectory,
        log: Log,
        wire: Wire,
        past_shapes: PastShapes,
        reports: SinkReports,
        origin: Origin,
        stop: threading.Event,
    ) -> None:
        self._source = pipeline.source
        self._retain_bytes = pipeline.log.retain_bytes
        self._reports = reports
        self._state = state
        self._wire = wire
        self._subscription = origin.subscription
        self._identity = origin.identity
        self._start_lsn = origin.start_lsn
        before = wire.latest(CaptureReport)
        self._server_started_at = before.server_started_at if before is not None else None
        # The last one that a run before has seen: a log that was emptied up to marks holds none.
        self._kept_commit = _commit_of(before)
        self._reported_commit: LastCommit | None = None
        self._stop = stop
        self._log = log
        self._writer = log.writer()
        self._acknowledged_lsn = Lsn(0)
        self._received_lsn = Lsn(0)
        self._transaction_count = 0
        self._connected = False
        self._error: PenstockError | None = None
        self._log_is_full = False
        self._disk_is_full = False
        self._log_is_away = False
        self._risk: PenstockError | None = None
        self._risk_at = 0.0
        self._full_back_off = slow_back_off()
        self._full_lsn = ZERO  # how far the log went when the disk was last full
        self._in_progress = InProgress.STREAMED
        self._past_shapes = past_shapes
        self._wait_seconds = min(
            pipeline.paced(timing().capture_wait_seconds), timing().capture_longest_stop_seconds
        )
        self._beat_seconds = max(
            pipeline.source.heartbeat_seconds, pipeline.paced(timing().capture_paced_beat_seconds)
        )
        self.on_connected: Callable[[], None] = lambda: None
        self._seen: tuple[object, ...] = ()
        self._report_at = 0.0

    def run(self, watch: MembershipWatch) -> None:
        """Capture until stopped. Faults that pass with time are waited out.

        Raises:
            PenstockError: one that a person must fix.
        """
        self._open()
        if self._writer.torn_bytes:
            _log.warning("cut %d bytes of a torn slice off the log", self._writer.torn_bytes)
        self._received_lsn = self._writer.durable_lsn
        back_off = BackOff()
        try:
            while not self._stop.is_set():
                try:
                    if self._log_is_away:
                        self._writer.restart()
                        self._log_is_away = False
                        _log.info("the log can be reached again, capture goes on")
                    if self._disk_is_full:
                        self._wait_for_disk(watch)
                    elif self._log_is_full:
                        self._wait_for_room(watch)
                    self._follow(watch, back_off)
                except (OSError, PenstockError) as raised:
                    self._recover(raised, back_off)
        finally:
            self._connected = False
            self._writer.close()
            # The last words of a process whose disk may be gone, or its role.
            with suppress(OSError, LogError, SecondInstance):
                self._report()
            self._past_shapes.close()

    def _recover(self, raised: OSError | PenstockError, back_off: BackOff) -> None:
        """Wait until it is worth trying again.

        Raises:
            PenstockError: a person must fix it.
        """
        error = unwritable(raised, self._state.path) if isinstance(raised, OSError) else raised
        self._error = error
        self._report()
        if isinstance(error, DecodingFailed):
            # Walsenders of all versions so far can fail at decoding a transaction that
            # is still open and rolls back DDL in a savepoint. After its commit they can.
            self._in_progress = InProgress.WITHHELD
        if not is_temporary(error):
            raise error
        if isinstance(error, LogUnreachable):
            self._log_is_away = True
        if isinstance(error, DiskFull):
            self._disk_is_full = True
            _log.warning("%s", str(error).splitlines()[0])
            return
        wait = back_off.next_seconds()
        _log.warning("%s (next attempt in %.1f s)", str(error).splitlines()[0], wait)
        self._stop.wait(wait)

    def _open(self) -> None:
        """Open log and past shapes; where there is no room for even that, or no broker, wait.

        Raises:
            SlotMoved: see `_require_reach`.
        """
        while not self._stop.is_set():
            try:
                self._require_reach()
                self._writer.open(self._start_lsn)
                self._past_shapes.open_for_writing()
            except (DiskFull, LogUnreachable) as error:
                if self._error is None:
                    _log.warning("%s", str(error).splitlines()[0])
                self._error = error
                self._report()
                self._stop.wait(timing().capture_status_seconds)
            else:
                self._error = None
                return

    def _wait_for_disk(self, watch: MembershipWatch) -> None:
        """Let the sinks go on and delete what they have got, until there is room to go on.

        The connection is closed meanwhile: a server whose walsender waits for us could not shut down.
        """
        if self._writer.durable_lsn > self._full_lsn:
            self._full_back_off.succeed()  # else the same transaction did not fit once more
        self._full_lsn = self._writer.durable_lsn
        again_at = time.monotonic() + self._full_back_off.next_seconds()
        self._writer.restart()
        is_cut = False
        while not self._stop.is_set():
            watch.raise_if_failed()
            with suppress(DiskFull):
                if not is_cut:
                    self._writer.cut()
                    is_cut = True
                if self._last_commit != self._reported_commit:
                    self._report()
                self._writer.discard_before(self._reports.safe_lsn())
            self._report()
            has_room = self._writer.free_bytes() > _ROOM_BYTES or self._has_nothing_to_free()
            if is_cut and has_room and time.monotonic() >= again_at:
                _log.info("there is room on the disk again, capture goes on")
                self._disk_is_full = False
                return
            self._stop.wait(timing().capture_status_seconds)

    def _has_nothing_to_free(self) -> bool:
        """Whether every sink has all there is, so that what is free is all there will be."""
        return self._reports.safe_lsn() >= self._writer.durable_lsn

    def _require_reach(self) -> None:
        """See that nothing is missing between where the log ends and where the slot stands.

        An older state of the log may have been put back, while the sinks have what it lacks: they are
        waited for where somebody delivers, who opens them and refuses where they do not.

        Raises:
            SlotMoved: the slot was advanced or re-created while nobody captured.
        """
        logged = self._log.span()
        if not logged.end_lsn:
            return  # a new log begins where the slot stands, which is for the sinks to judge
        slot = SlotState(exists=True, confirmed_flush_lsn=self._start_lsn)
        while logged.end_lsn < self._start_lsn and not self._stop.is_set():
            opened_lsn = self._reports.opened_lsn()
            if opened_lsn is not None and opened_lsn >= self._start_lsn:
                return
            # Who has opened them before does not compare them with the slot again.
            if opened_lsn is not None or not self._reports.is_delivering():
                check_slot(slot, self._subscription.slot, self._place, logged.end_lsn)
            self._stop.wait(self._wait_seconds)

    def _follow(self, watch: MembershipWatch, back_off: BackOff) -> None:
        """One connection, from start to end."""
        stream = SlotStream(
            self._source.url,
            self._subscription.slot,
            self._subscription.publications,
            self._in_progress,
        )
        assembler: Assembler | None = None
        self._writer.flush()  # of the connection before
        try:
            found = self._identify(stream)
            # Before anything is streamed, so that tables are known as they are where the stream begins.
            assembler = Assembler(self._writer, self._notes())
            self._begin(stream, found)
            self._connected, self._error = True, None
            self.on_connected()
            back_off.succeed()
            _log.info(
                "following slot %s from %s", self._subscription.slot, self._writer.durable_lsn
            )
            self._pump(stream, assembler, watch)
        finally:
            self._connected = False
            if assembler is not None:
                assembler.discard()
            stream.close()

    def _identify(self, stream: SlotStream) -> Answering:
        """Connect to a server that is what it was, whatever happened while nobody was connected.

        Raises:
            OtherCluster: another cluster, timeline or database answers.
            SourceRestored: the server does not have what was received from it.
        """
        found = stream.connect()
        compare_answering(self._identity, found, self._place)
        wanted_lsn = max(self._writer.durable_lsn, self._reports.once_delivered_lsn())
        check_reach(found, wanted_lsn, self._place)
        return found

    def _begin(self, stream: SlotStream, found: Answering) -> None:
        """Stream, from a slot that is what it was.

        Raises:
            SourceRestored: the server does not have what was received from it.
            SlotMissing, SlotLost, SlotMoved: the slot does not have what comes next.
        """
        with connect_source(self._source.url, "penstock slot") as connection:
            slot = self._check_slot(connection)
            if found.started_at != self._server_started_at:
                self._require_last_commit(slot)
                wait_until_free(
                    connection, [self._subscription.slot], timing().capture_free_seconds
                )
            stream.start(self._writer.durable_lsn)
            # From here on nobody else can move it.
            slot = self._check_slot(connection)
            if not slot.active:
                what = "the slot is not active at the server that answers, wanted it to be streamed"
                raise SourceError(what, self._place, "let one server answer at the url")
        self._server_started_at = found.started_at
        confirmed_lsn = slot.confirmed_flush_lsn or ZERO
        if ZERO < self._acknowledged_lsn < confirmed_lsn:
            _log.warning(
                "slot %s stands at %s, and only %s was acknowledged: somebody else moved it; the log"
                " still has what lies between",
                self._subscription.slot,
                confirmed_lsn,
                self._acknowledged_lsn,
            )
        self._acknowledged_lsn = max(self._acknowledged_lsn, confirmed_lsn)

    def _check_slot(self, connection: Connection) -> SlotState:
        slot = slot_state(connection, self._subscription.slot)
        check_slot(slot, self._subscription.slot, self._place, self._writer.durable_lsn)
        return slot

    def _require_last_commit(self, slot: SlotState) -> None:
        """See that a server that was started anew still has what it has sent, where that can be seen.

        Raises:
            SourceRestored: it was put back to an earlier state, and has gone on since.
        """
        last, confirmed_lsn = self._last_commit, slot.confirmed_flush_lsn
        if last is None or confirmed_lsn is None or confirmed_lsn >= self._writer.durable_lsn:
            return
        if last.commit_lsn >= self._writer.durable_lsn:
            return  # it is reported, and an older state of the log was put back
        stream = SlotStream(
            self._source.url,
            self._subscription.slot,
            self._subscription.publications,
            InProgress.WITHHELD,
        )
        try:
            stream.connect()
            require_commit(
                stream, last, confirmed_lsn, self._writer.durable_lsn, self._place, self._stop
            )
        finally:
            stream.close()

    @property
    def _last_commit(self) -> LastCommit | None:
        """The last commit that was received; None: not known."""
        return self._writer.last_commit or self._kept_commit

    @property
    def _place(self) -> str:
        return str(self._source.url)

    def _notes(self) -> Notes | None:
        """Who recognises changes of tables in the stream; None where they are not tracked."""
        if self._source.schema_options.tracking is Tracking.OFF:
            return None
        with connect_source(self._source.url, "penstock shapes") as connection:
            seal = read_seal(connection)
            numbered = numbered_versions(connection, self._subscription.name)
            if self._past_shapes.is_empty:
                # What the stream reports from here on is compared with the shapes of tables where it begins.
                start = self._writer.durable_lsn
                tables = read_first_shapes(connection, self._subscription, start, seal)
                change = SchemaChange(format=FORMAT, tag=REFRESH, tables=tuple(tables))
                lsn = Lsn(max(0, start - 1))
                self._past_shapes.append([Mark(lsn, lsn, 0, 0, 0, 0, CHANGE, as_content(change))])
        return Notes(
            self._past_shapes,
            self._writer.durable_lsn,
            self._look_up,
            seal,
            self._source.tables.chooses,
            numbered,
        )

    def _look_up(self, oid: int) -> TableShape | None:
        with connect_source(self._source.url, "penstock shapes") as connection:
            return read_shape_now(connection, oid)

    def _pump(self, stream: SlotStream, assembler: Assembler, watch: MembershipWatch) -> None:
        next_status = next_beat = self._report_at = room_at = time.monotonic()
        asked_at: int | None = None  # how many keepalives had come when we asked for one
        while not self._stop.is_set():
            watch.raise_if_failed()
            if not self._log_is_full:
                room_at = time.monotonic()
                self._receive(stream, assembler)
            else:
                self._stop.wait(self._wait_seconds)
            now = time.monotonic()
            if now >= room_at + timing().capture_full_seconds:
                return  # a server whose walsender waits for us could not shut down
            if now >= next_beat:
                next_beat = now + self._beat_seconds
                asked_at = stream.keepalive_count
                stream.acknowledge(
                    assembler.received_lsn, self._acknowledged_lsn, request_reply=True
                )
            is_answered = asked_at is not None and stream.keepalive_count > asked_at
            if is_answered and not assembler.in_transaction:
                asked_at = None
                # Everything before a keepalive has been sent: all that committed up to its LSN is
                # here, and what is still open will commit after it.
                self._advance_idle(stream, assembler)
            if now >= next_status or stream.reply_due:
                next_status = now + timing().capture_status_seconds
                if self._has_news(now) or stream.reply_due:
                    self._acknowledge(stream, assembler)
        self._acknowledge(stream, assembler)

    def _receive(self, stream: SlotStream, assembler: Assembler) -> None:
        wait = timing().capture_quiet_seconds if assembler.has_whole else self._wait_seconds
        count = stream.receive(assembler, wait)
        self._received_lsn = assembler.received_lsn
        if assembler.has_whole and (
            count == 0 or assembler.waiting_seconds > timing().capture_longest_wait_seconds
        ):
            fault_point("capture.before_seal")
            assembler.seal()
            fault_point("capture.after_seal")

    def _advance_idle(self, stream: SlotStream, assembler: Assembler) -> None:
        if stream.server_end_lsn > self._writer.durable_lsn and not assembler.has_whole:
            assembler.mark(stream.server_end_lsn)

    def _has_news(self, now: float) -> bool:
        """Whether there is something to report; an idle source costs no more than this check."""
        sinks = self._reports.published_at()
        found = (self._received_lsn, self._writer.durable_lsn, self._log_is_full, sinks)
        if found == self._seen and not self._log_is_full and now < self._report_at:
            return False
        self._seen, self._report_at = found, now + timing().capture_quiet_status_seconds
        return True

    def _acknowledge(self, stream: SlotStream, assembler: Assembler) -> None:
        """Acknowledge what is safe, forget what every sink has, report."""
        self._acknowledged_lsn = max(self._acknowledged_lsn, self._safe_lsn())
        stream.acknowledge(assembler.received_lsn, self._acknowledged_lsn, request_reply=False)
        fault_point("capture.after_acknowledge")
        self._transaction_count = assembler.transaction_count
        self._make_room(may_cut=not assembler.has_open_parts)
        self._watch_risk()
        self._report()

    def _make_room(self, *, may_cut: bool) -> None:
        """Forget what every sink has; `may_cut`: the newest segment, too."""
        delivered_lsn = self._reports.safe_lsn()
        has_all = delivered_lsn >= self._writer.durable_lsn
        if has_all and may_cut and self._writer.size_bytes() >= self._retain_bytes:
            self._writer.end_segment()
        if self._last_commit != self._reported_commit:
            self._report()  # before the log may lose it
        self._writer.discard_before(delivered_lsn)
        self._watch_size(has_all=has_all)

    def _wait_for_room(self, watch: MembershipWatch) -> None:
        while not self._stop.is_set():
            watch.raise_if_failed()
            self._make_room(may_cut=True)
            self._report()
            if not self._log_is_full:
                return
            self._stop.wait(timing().capture_status_seconds)

    def _safe_lsn(self) -> Lsn:
        if self._source.acknowledge is Acknowledge.LOGGED:
            return self._writer.durable_lsn
        # A sink may be ahead of a log that was deleted; what we do not hold is not ours to confirm.
        return min(self._reports.safe_lsn(), self._writer.durable_lsn)

    def _watch_size(self, *, has_all: bool) -> None:
        """See whether the sinks must catch up first; where they have all, only a commit frees more."""
        size = self._writer.size_bytes()
        is_full = size >= self._retain_bytes and not has_all
        was_full, self._log_is_full = self._log_is_full, is_full
        if self._log_is_full and not was_full:
            self._error = LogFull(
                f"the log holds {size} bytes, at most {self._retain_bytes} are allowed; capture "
                "waits for the sinks, and the source keeps its WAL meanwhile",
                self._log.place,
                "fix the sink or table that is behind (penstock status), or raise log.retain_bytes",
            )
            _log.warning("%s", str(self._error).splitlines()[0])
        elif was_full and not self._log_is_full:
            self._error = None

    def _watch_risk(self) -> None:
        """Say in time what may delete what a sink still needs; seldom, for a broker is asked."""
        now = time.monotonic()
        if now < self._risk_at:
            return
        self._risk_at = now + timing().log_risk_seconds
        before, self._risk = self._risk, self._writer.risk(self._reports.safe_lsn())
        if self._risk is not None and before is None:  # figures differ each time
            _log.warning("%s", self._risk)

    def _report(self) -> None:
        last = self._last_commit
        is_published = self._wire.publish(
            CaptureReport(
                slot=self._subscription.slot,
                connected=self._connected,
                received_lsn=self._received_lsn,
                durable_lsn=self._writer.durable_lsn,
                acknowledged_lsn=self._acknowledged_lsn,
                last_commit_lsn=last.commit_lsn if last is not None else None,
                last_committed_at=last.committed_at if last is not None else None,
                last_commit_may_be_skipped=last is not None and last.may_be_skipped,
                server_started_at=self._server_started_at,
                transactions=self._transaction_count,
                log_bytes=self._writer.size_bytes(),
                error=str(self._error) if self._error else None,
                warning=str(self._risk) if self._risk else None,
                at=time.time(),
            )
        )
        if is_published:
            self._reported_commit = last


def _commit_of(report: CaptureReport | None) -> LastCommit | None:
    """The last commit that a report knows of."""
    if report is None or report.last_commit_lsn is None or report.last_committed_at is None:
        return None
    return LastCommit(
        report.last_commit_lsn, report.last_committed_at, report.last_commit_may_be_skipped
    )
