"""What flows from one source to one sink: how far it has come, and what is next.

Take the slices after the sink's own position, run one Spark job over them, commit its receipts.
Whose turn it is, and what becomes of errors, is the loop's to say (penstock.run.deliver).
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.failpoints import fault_point
from penstock.logging import speak_of_batch
from penstock.lsn import Lsn
from penstock.metrics import NOTHING
from penstock.modifiers.binding import Binding
from penstock.retry import BackOff
from penstock.run.ddl_transactions import (
    DdlTransactionReader,
    Stretch,
    cut_at_marks,
    oids_of,
    tables_of,
)
from penstock.run.jobreport import BatchRecorder, JobReport
from penstock.run.rules import RuleWatch
from penstock.run.tables import TableKeeper
from penstock.sinks.sink import Batch, HandingOn
from penstock.sinks.tables import TableState
from penstock.spark.jobs import JobWatch, Span, run_job
from penstock.state.reports import DeliveryReport, TableReport
from penstock.timing import timing

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Collection, Mapping, Sequence

    from penstock.errors import PenstockError
    from penstock.log.contract import Log, LogReader, Slice
    from penstock.metrics import BatchRecord, BatchTrace, Recorder
    from penstock.modifiers.chain import Chain
    from penstock.modifiers.modifier import Modifiers
    from penstock.run.commits import Commits
    from penstock.run.delivered import Requests, WorkingFiles
    from penstock.schema.shape import TableShape
    from penstock.sinks.ddl_transaction import Rows
    from penstock.sinks.sink import Receipt, Sink, Worker
    from penstock.spark.session import Spark
    from penstock.state.wire import Wire
    from penstock.table import TableName


# A batch this large says that there is more to come; the next ones wait, so long, to be so large.
_BACKLOG_BYTES = 2 * 1024 * 1024
_GROW_BYTES = 24 * 1024 * 1024
# What took more times as long as that to come is not waited for.
_MOST_GROWING = 2


@dataclass(frozen=True)
class Feed:
    """What a sink is fed with: the log of one source, and how it is to be read.

    `check_position` is called with what the sink has stored each time it is opened; it compares that
    with the source and returns where to go on from, or raises.

    `modifiers`: what is done to changes before the sink sees them.
    `copies_first`: a table that is not known yet is copied before its changes are applied.
    `pace`: how much less often than a sole source an idle one among many is polled.
    `requests`, `files`: of a sink whose working files other machines do not see.
    """

    source_id: str
    log: Log
    wire: Wire
    ddl_transactions: DdlTransactionReader
    check_position: Callable[[Sink], Lsn]
    modifiers: Modifiers | Binding | None = None
    copies_first: bool = False
    pace: float = 1.0
    requests: Requests | None = None
    files: WorkingFiles | None = None


class Flow:
    """One source at one sink.

    `run_id`: the run that reports; capture believes only one that delivers now.
    `recorder`: who counts batches and traces them.
    """

    def __init__(
        self,
        spark: Spark,
        feed: Feed,
        sink: Sink,
        stop: threading.Event,
        *,
        run_id: str | None = None,
        recorder: Recorder = NOTHING,
    ) -> None:
        self.source_id = feed.source_id
        self.check_position = feed.check_position
        self._log = feed.log
        self._wire = feed.wire
        self._ddl_transactions = feed.ddl_transactions
        self._modifiers = feed.modifiers
        self._copies_first = feed.copies_first
        self._spark = spark
        self._sink = sink
        self._stop = stop
        self._run_id = run_id
        self._batches = BatchRecorder(recorder, feed.source_id, sink)
        self._has_opened = False
        self._batch_number = 0
        self.tables = TableKeeper(
            sink,
            feed.log,
            feed.wire,
            feed.ddl_transactions,
            copies_first=feed.copies_first,
            pace=feed.pace,
            excludes=self._excludes,
            requests=feed.requests,
        )
        self._files = feed.files
        self._rules = RuleWatch(feed.wire, sink, self._chain)
        self._grow_bytes = 0
        self._read_at = 0.0
        self._reported_at = 0.0
        self._has_news = False
        self._committed_at = 0
        self._reader: LogReader | None = None
        self._read_lsn = Lsn(0)
        self._is_held_up = False  # by what the last batch has not delivered
        self._check_seconds = timing().flow_idle_seconds * feed.pace
        self._check_at = 0.0
        self._busy_until = 0.0
        self._failure: BaseException | None = None
        self._failed_batch: tuple[int | None, str | None] = (None, None)
        self.back_off = BackOff()
        self.retry_at = 0.0
        self._is_held = False  # by a person
        self.is_stale = False  # whether it is to be opened anew
        self.is_committing = False
        self.delivered_lsn = Lsn(0)
        self.on_scheduled: Callable[[], None] = lambda: None
        self.error: PenstockError | None = None
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @property
    def name(self) -> str:
        """The sink's name."""
        return self._sink.name

    @property
    def is_open(self) -> bool:
        """Whether the sink is open, and the log is read."""
        return self._reader is not None

    @property
    def stopped_tables(self) -> dict[TableName, str]:
        """Tables that wait for a person to fix something, and why."""
        return {
            name: table.error
            for name, table in self._sink.tables.detached.items()
            if table.state == TableState.FAILED
        }

    def stopped(self) -> dict[TableName, bool]:
        """Tables that have stopped, and whether each needs a copy; from another thread."""
        return {
            name: table.needs_copy
            for name, table in dict(self._sink.tables.detached).items()
            if table.state == TableState.FAILED
        }

    def has_caught_up(self, lsn: Lsn) -> bool:
        """Whether all that can be delivered up to a position is, and all that can be copied.

        Only an open sink knows: one that was closed, to be opened anew, has forgotten its tables.
        Another thread may do both meanwhile; then there is another reader.
        """
        reader = self._reader
        if reader is None or self.delivered_lsn < lsn or not self.tables.is_settled:
            return False
        if isinstance(self._sink, HandingOn) and not self._sink.has_handed_on():
            return False
        return self._reader is reader

    def take_retries(self) -> int:
        """How many attempts the sink has made by itself since it was last asked, to send on what it has."""
        return self._sink.take_retries() if isinstance(self._sink, HandingOn) else 0

    def open(self) -> None:
        """Open the sink and go on from its position. Never during a commit."""
        self.delivered_lsn = self._read_lsn = self.check_position(self._sink)
        self._reader = self._log.reader(self.delivered_lsn)
        self._has_opened = True
        self._rules.compare()
        self._read_files()
        self.report()

    def check_again(self, check_position: Callable[[Sink], Lsn]) -> None:
        """The source was started anew: open the sink anew, at once; from another thread."""
        self.check_position, self.retry_at, self.is_stale = check_position, 0.0, True

    def close(self) -> None:
        """Let go of sink and log. Never during a commit."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._failure = None
        self._sink.close()

    def interrupt(self) -> None:
        """Cancel the batch that is being committed; from another thread."""
        self._sink.interrupt()

    def is_busy(self, now: float) -> bool:
        """Whether changes come, or have just come."""
        return now < self._busy_until

    def is_due(self, now: float) -> bool:
        """Whether a turn could find something to do; cheap, for most flows are idle."""
        return (
            now < self._busy_until
            or now >= self._check_at
            or self._failure is not None
            or self._reader is None
            or self.is_stale
            or self._reader.may_have_news()
        )

    def take_turn(self, commits: Commits, now: float, *, may_grow: bool) -> bool:
        """Deliver what is next; whether there was something.

        Args:
            may_grow: no other flow waits for its turn.
        """
        assert self._reader is not None, "opened first"
        speak_of_batch(None)
        self._check_at = now + self._check_seconds
        self.raise_if_failed()
        group = self.tables.next_group(self.delivered_lsn, now)
        if group or self.tables.is_due(now, is_committing=not commits.is_idle):
            commits.wait()
            self.raise_if_failed()
            self._poll_tables(now)
        self._read_files()
        is_held = self.tables.holds_flow(self.delivered_lsn)
        slices = [] if is_held else self._read(self._reader, may_grow)
        if slices:
            self._busy_until = now + timing().flow_stays_busy_seconds
            for stretch in cut_at_marks(slices):
                if self._stop.is_set():
                    break
                self._read_lsn = self._deliver(stretch, self._read_lsn, commits)
            return True
        if commits.is_idle:
            self._sink.idle()
            if self._has_news:
                self.report()
        return False

    def _read_files(self) -> None:
        if self._files is not None and self._files.refresh():
            self._has_news = True

    def pause(self) -> None:
        """A person holds the sink; called again and again, never during a commit, also before `open`."""
        if not self._is_held:
            self._is_held = True
            if isinstance(self._sink, HandingOn):
                self._sink.pause()

    def resume(self) -> None:
        """Nobody holds the sink; called again and again."""
        if self._is_held:
            self._is_held = False
            if isinstance(self._sink, HandingOn):
                self._sink.resume()

    def rest(self) -> None:
        """Instead of a turn while a person holds the sink: what is due there, and report what is delivered."""
        self._read_files()
        self._sink.idle()
        if self._has_news:
            self.report()

    def raise_if_failed(self) -> None:
        """Raise what ended the last commit."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            speak_of_batch(*self._failed_batch)
            raise failure

    def _deliver(self, stretch: Stretch, after_lsn: Lsn, commits: Commits) -> Lsn:
        """Deliver a stretch, or begin to: its commit may still be under way. Where it ends."""
        if stretch.marks or self._is_held_up:
            commits.wait()
            self.raise_if_failed()
        if stretch.marks:
            self._commit_shapes(stretch, after_lsn)
            return self.delivered_lsn
        batch = self._batch(after_lsn, stretch.slices)
        if unknown := self.tables.unknown(batch.tables - batch.detached):
            commits.wait()
            self.raise_if_failed()
            oids = oids_of(stretch.slices)
            self._sink.tables.schedule_copy({name: oids[name] for name in unknown}, batch.after_lsn)
            self.on_scheduled()
            batch = self._batch(after_lsn, stretch.slices)
        trace = self._batches.begin(batch)
        report = JobReport(_size(stretch.slices), time.time())
        try:
            self._run_job(batch, stretch.slices, report, trace)
            commits.wait()
            self.raise_if_failed()
        except BaseException:
            trace.end(None)
            raise
        self._is_held_up = any(each.holds_up or each.refused for each in report.receipts)
        commits.begin(self._commit, batch, report, trace)
        return batch.end_lsn

    def _commit_shapes(
        self, stretch: Stretch, after_lsn: Lsn, only: set[TableName] | None = None
    ) -> dict[TableName, TableName]:
        """Deliver a transaction in which tables change their shape; what they are called then."""
        self._spark.running()  # waited for now: later, tables are locked at the sink
        batch = self._batch(after_lsn, stretch.slices, only)
        ddl_transaction, slices = self._ddl_transactions.read(stretch)
        span = Span(batch.after_lsn, batch.end_lsn)
        report = JobReport(_size(stretch.slices), time.time())
        receipts: list[tuple[int, list[Receipt]]] = []

        def run(worker: Worker, parts: Sequence[Rows]) -> list[Receipt]:
            wanted = [ref for part in parts for ref in slices[part.number]]
            shapes = self._ddl_transactions.shapes_of(parts[0], ddl_transaction, batch.end_lsn)
            modifiers = self._modifiers_at(parts[0].tables, batch.after_lsn, shapes)
            began = time.perf_counter()
            watch = JobWatch(self._batches.is_counted, trace.traceparent)
            found = run_job(
                self._spark, worker, wanted, span, self._spark.parallel, modifiers, watch
            )
            # The sink begins again where a table cannot follow: what was run then counts.
            first = parts[0].number
            receipts[:] = [*(each for each in receipts if each[0] < first), (first, found)]
            report.receipts = [each for _, several in receipts for each in several]
            report.seconds += time.perf_counter() - began
            return found

        with self._batches.recorded(batch, report, only) as trace:
            names = self._sink.commit_shapes(batch, ddl_transaction, run, only)
        self.tables.poll_soon()
        if only is None:
            self.delivered_lsn = batch.end_lsn
            self._committed_at = batch.committed_at or self._committed_at
        self._has_news = True
        self.on_scheduled()  # some may have to be copied again
        self.report()
        return names

    def _excludes(self, table: TableName) -> bool:
        """Whether the sink is not to have a table."""
        if isinstance(self._modifiers, Binding):
            return self._modifiers.chain.excludes(table)
        return self._modifiers is not None and self._modifiers.excludes(table)

    @property
    def _chain(self) -> Chain | None:
        return self._modifiers.chain if isinstance(self._modifiers, Binding) else None

    def _modifiers_at(
        self,
        tables: Collection[TableName],
        lsn: Lsn,
        shapes: Mapping[TableName, TableShape] | None = None,
    ) -> Modifiers | None:
        """What is done to rows of tables that stand at a position."""
        if isinstance(self._modifiers, Binding):
            return self._modifiers.at(tables, lsn, shapes)
        return self._modifiers

    def _poll_tables(self, now: float) -> None:
        self._rules.note()
        taken = self.tables.requests_taken
        if self.tables.poll(self.delivered_lsn, now):
            self.on_scheduled()
            self.report()  # the log is kept for tables that wait, from here on
        elif self.tables.requests_taken != taken:
            self._has_news = True
        self._catch_up(now)

    def _read(self, reader: LogReader, may_grow: bool) -> list[Slice]:
        """The slices of the next batch.

        In a backlog a batch waits a moment to grow: a job costs the same for one slice as for ten. What took
        several times as long to come, since the last batch was read, would hardly grow meanwhile.
        """
        slices = reader.read(self._sink.batch_bytes)
        size = _size(slices)
        now, grow_seconds = time.monotonic(), timing().flow_grow_seconds
        if not may_grow or now - self._read_at > _MOST_GROWING * grow_seconds:
            grow_seconds = 0.0
        while (
            0 < size < self._grow_bytes
            and time.monotonic() < now + grow_seconds
            and not self._stop.wait(timing().flow_busy_seconds)
        ):
            more = reader.read(self._sink.batch_bytes - size)
            slices += more
            size += _size(more)
        if slices:
            self._read_at = time.monotonic()
        is_backlog = size >= _BACKLOG_BYTES
        self._grow_bytes = min(_GROW_BYTES, self._sink.batch_bytes) if is_backlog else 0
        return slices

    def _batch(
        self, after_lsn: Lsn, slices: Sequence[Slice], only: set[TableName] | None = None
    ) -> Batch:
        self._batch_number += 1
        tables = frozenset(name for name in tables_of(slices) if not self._excludes(name))
        return Batch(
            number=self._batch_number,
            after_lsn=after_lsn,
            end_lsn=slices[-1].head.end_lsn,
            committed_at=max(ref.head.committed_at for ref in slices),
            tables=tables,
            detached=frozenset() if only is not None else tables & self.tables.skipped(after_lsn),
            copies_first=self._copies_first,
        )

    def _run_job(
        self,
        batch: Batch,
        slices: Sequence[Slice],
        report: JobReport,
        trace: BatchTrace,
        only: set[TableName] | None = None,
    ) -> None:
        """Run the job of a batch; what comes of it is in the report."""
        if not batch.tables:
            return  # nothing but commits and marks: only the position moves
        began = time.perf_counter()
        worker = self._sink.worker(batch, only)
        span = Span(batch.after_lsn, batch.end_lsn)
        modifiers = self._modifiers_at(batch.tables, batch.after_lsn)
        report.receipts = run_job(
            self._spark,
            worker,
            slices,
            span,
            self._spark.parallel,
            modifiers,
            JobWatch(self._batches.is_counted, trace.traceparent),
        )
        report.seconds = time.perf_counter() - began
        self.seconds["job"] += report.seconds
        for receipt in report.receipts:
            for part, seconds in receipt.seconds.items():
                self.seconds[part] += seconds

    def _commit(self, batch: Batch, report: JobReport, trace: BatchTrace) -> None:
        """Runs in a thread of its own, one batch at a time."""
        self.is_committing = True
        record: BatchRecord | None = None
        try:
            began, began_at = time.perf_counter(), time.time()
            self._sink.commit(batch, report.receipts)
            took = time.perf_counter() - began
            self.seconds["commit"] += took
            record = self._batches.count(batch, report, began_at, took)
            self.delivered_lsn = batch.end_lsn
            self._committed_at = batch.committed_at or self._committed_at
            self._has_news = True
            self.back_off.succeed()
            self.error = None
            if time.monotonic() - self._reported_at > timing().flow_report_seconds:
                self.report()
        except BaseException as failure:  # noqa: BLE001 - raised in the flow's own turn
            self._failed_batch, self._failure = (batch.number, trace.trace_id), failure
        finally:
            trace.end(record)
            self.is_committing = False

    def _catch_up(self, now: float) -> None:
        """Let tables that are detached catch up, one group after the other, while others may wait."""
        deadline = now + timing().flow_catch_up_seconds
        while group := self.tables.next_group(self.delivered_lsn, time.monotonic()):
            has_moved = self._catch_up_group(group, deadline)
            self.tables.note_tried(group)
            self._has_news = True
            if not has_moved or self._stop.is_set() or time.monotonic() > deadline:
                return

    def _catch_up_group(self, group: set[TableName], deadline: float) -> bool:
        """Deliver what waits for tables that stand at one position, towards where the others are.

        A long way is gone in several turns, so that the others are not held up. The answer:
        whether the log went so far.
        """
        position = min(self._sink.tables.detached[name].delivered_lsn for name in group)
        reader = self._log.reader(position)
        try:
            while position < self.delivered_lsn:
                slices = reader.read(self._sink.batch_bytes)
                if not slices:
                    return False  # the log is being captured anew, after it was deleted
                for stretch in cut_at_marks(slices):
                    if group and position < self.delivered_lsn:
                        position, group = self._catch_up_stretch(group, stretch, position)
                if not group or self._stop.is_set() or time.monotonic() > deadline:
                    break
        finally:
            reader.close()
        if group and position >= self.delivered_lsn:
            fault_point("catch_up.before_join")
            self._sink.tables.attach(group)
            self.on_scheduled()  # the copier makes the foreign keys, once both tables flow
        return True

    def _catch_up_stretch(
        self, group: set[TableName], stretch: Stretch, position: Lsn
    ) -> tuple[Lsn, set[TableName]]:
        """Deliver a stretch to tables that catch up; where they stand, and which still do."""
        # A slice may go on after where the others are, if the log was captured anew.
        end_lsn = min(stretch.slices[-1].head.end_lsn, self.delivered_lsn)
        if stretch.marks:
            names = self._commit_shapes(stretch, position, group)
            group = {names[name] for name in group if name in names}
        else:
            batch = replace(self._batch(position, stretch.slices, group), end_lsn=end_lsn)
            report = JobReport(_size(stretch.slices), time.time())
            with self._batches.recorded(batch, report, group) as trace:
                if group & batch.tables:
                    self._run_job(batch, stretch.slices, report, trace, group)
                self._sink.commit_detached(group, batch, report.receipts)
        detached = self._sink.tables.detached
        return end_lsn, {
            name
            for name in group
            # One that is to be copied again stands there, too.
            if name in detached
            and detached[name].can_catch_up
            and detached[name].delivered_lsn == end_lsn
        }

    def report(self) -> None:
        """Publish how far it is: for capture, which acknowledges it to the slot, and for `status`."""
        self._reported_at = time.monotonic()
        self._has_news = False
        detached = dict(self._sink.tables.detached)
        wanted_lsn = self.tables.safe_lsn
        safe_lsn = self.delivered_lsn if wanted_lsn is None else min(self.delivered_lsn, wanted_lsn)
        report = DeliveryReport(
            run=self._run_id if self._has_opened else None,
            delivered_lsn=self.delivered_lsn,
            safe_lsn=safe_lsn,
            committed_at=self._committed_at,
            changes_delivered=self._sink.change_count,
            tables={
                str(name): TableReport(
                    detached[name].state if name in detached else TableState.STREAMING,
                    (detached[name].error or None) if name in detached else None,
                )
                for name in sorted(set(self._sink.tables.streaming) | set(detached))
            },
            error=str(self.error) if self.error else None,
            seconds=dict(self.seconds),
            requests_taken=self.tables.requests_taken,
            at=time.time(),
            **(self._files.reported if self._files is not None else {}),
        )
        if not self._wire.publish(report, self.name):
            # The disk is full, and what can be deleted there depends on how far this is.
            shorter = replace(report, tables={}, subscriptions={}, copies={})
            self._wire.publish(shorter, self.name)


def _size(slices: Sequence[Slice]) -> int:
    return sum(ref.head.data_bytes for ref in slices)
