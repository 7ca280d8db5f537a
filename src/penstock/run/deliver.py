"""Loop 2: the log is delivered to one sink. One such loop, in one thread, per sink.

Take the slices after the sink's own position, run one Spark job over them, commit its receipts,
repeat. While batch n commits, the job of batch n + 1 already runs.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.errors import PenstockError, RunError
from penstock.failpoints import fault_point
from penstock.log.reader import LogReader
from penstock.lsn import Lsn
from penstock.run.commits import Commits
from penstock.run.passages import PassageReader, Stretch, cut_at_marks, tables_of
from penstock.run.retry import BackOff, mends_with_time
from penstock.run.tables import TableKeeper
from penstock.sinks.sink import Batch
from penstock.sinks.tables import FAILED, STREAMING
from penstock.spark.jobs import Span, run_job

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from pyspark import SparkContext

    from penstock.log.segment import SliceRef
    from penstock.run.state import StateDirectory
    from penstock.sinks.passage import Rows
    from penstock.sinks.sink import Receipt, Sink, Worker
    from penstock.table import TableName

_log = logging.getLogger(__name__)

# How often the log is looked at: often while changes come, seldom while they do not.
_BUSY_WAIT_SECONDS = 0.002
_IDLE_WAIT_SECONDS = 0.03
_BUSY_FOR_SECONDS = 1.0
_REPORT_SECONDS = 0.25

# A batch this large says that there is more to come; the next ones wait, so long, to be so large.
_BACKLOG_BYTES = 2 * 1024 * 1024
_GROW_BYTES = 24 * 1024 * 1024
_GROW_SECONDS = 0.25

# How long tables that catch up may keep the others waiting at a time.
_CATCH_UP_SECONDS = 2.0


class Delivery:
    """Delivers to one sink until told to stop.

    `check_position` is called with what the sink has stored each time it is opened; it compares that
    with the source and returns where to go on from, or raises.
    """

    def __init__(
        self,
        context: SparkContext,
        sink: Sink,
        state: StateDirectory,
        check_position: Callable[[Sink], Lsn],
        stop: threading.Event,
        *,
        passages: PassageReader,
        copies_first: bool = False,
    ) -> None:
        self._context = context
        self._sink = sink
        self._state = state
        self._check_position = check_position
        self._stop = stop
        self._parallel = int(context.defaultParallelism)
        self._batch_number = 0
        self._passages = passages
        self._copies_first = copies_first
        self._tables = TableKeeper(sink, state, passages, copies_first=copies_first)
        self._grow_bytes = 0
        self._reported_at = 0.0
        self._has_news = False
        self._committed_at = 0
        self.delivered_lsn = Lsn(0)
        self.on_enrolled: Callable[[], None] = lambda: None
        self.error: PenstockError | None = None
        self.seconds: dict[str, float] = {}

    @property
    def name(self) -> str:
        """The sink's name."""
        return self._sink.name

    @property
    def stopped_tables(self) -> dict[TableName, str]:
        """Tables that wait for somebody to mend something, and why."""
        return {
            name: table.error for name, table in self._sink.apart.items() if table.state == FAILED
        }

    def has_caught_up(self, lsn: Lsn) -> bool:
        """Whether all that can be delivered up to a position is, and all that can be copied."""
        return self.delivered_lsn >= lsn and self._tables.is_settled

    def has_news_of_tables(self) -> None:
        """A copier has news; from another thread."""
        self._tables.look_soon()

    def run(self) -> None:
        """Deliver until stopped. Faults that time mends are waited out.

        Raises:
            PenstockError: one that a person must mend.
        """
        back_off = BackOff()
        try:
            while not self._stop.is_set():
                try:
                    self.delivered_lsn = self._check_position(self._sink)
                    self._report()
                    self._flow(back_off)
                except PenstockError as error:
                    self.error = error
                    self._report()
                    if not mends_with_time(error):
                        raise
                    wait = back_off.next_seconds()
                    _log.warning(
                        "sink %s: %s (next attempt in %.1f s)",
                        self.name,
                        str(error).splitlines()[0],
                        wait,
                    )
                    self._stop.wait(wait)
        finally:
            self._sink.close()
            self._report()

    def interrupt(self) -> None:
        """Call off the batch that is being committed; from another thread."""
        self._sink.interrupt()

    def _flow(self, back_off: BackOff) -> None:
        reader = LogReader(self._state.log, self.delivered_lsn)
        read_lsn = self.delivered_lsn
        busy_until = 0.0
        commits = Commits(self.name)
        try:
            while not self._stop.is_set():
                if commits.take_end():
                    back_off.succeed()
                    self.error = None
                now = time.monotonic()
                group = self._tables.next_group(self.delivered_lsn, now)
                if group or self._tables.is_due(now):
                    commits.wait()
                    self._look_at_tables(now)
                slices = [] if self._tables.holds_flow else self._read(reader)
                if slices:
                    busy_until = now + _BUSY_FOR_SECONDS
                    for stretch in cut_at_marks(slices):
                        if self._stop.is_set():
                            break
                        read_lsn = self._deliver(stretch, read_lsn, commits)
                    continue
                if commits.is_idle:
                    self._sink.idle()
                    if self._has_news:
                        self._report()
                self._stop.wait(_BUSY_WAIT_SECONDS if now < busy_until else _IDLE_WAIT_SECONDS)
            commits.wait()
        finally:
            commits.close()
            reader.close()

    def _deliver(self, stretch: Stretch, after_lsn: Lsn, commits: Commits) -> Lsn:
        """Deliver a stretch, or begin to: its commit may still be under way. Where it ends."""
        if stretch.marks:
            commits.wait()
            self._commit_shapes(stretch, after_lsn)
            return self.delivered_lsn
        batch = self._batch(after_lsn, stretch.slices)
        if unknown := self._tables.unknown(batch.tables - batch.aside):
            commits.wait()
            self._sink.enrol(unknown, batch.after_lsn)
            self.on_enrolled()
            batch = self._batch(after_lsn, stretch.slices)
        receipts = self._run_job(batch, stretch.slices)
        commits.wait()
        commits.begin(self._commit, batch, receipts)
        return batch.end_lsn

    def _commit_shapes(
        self, stretch: Stretch, after_lsn: Lsn, only: set[TableName] | None = None
    ) -> dict[TableName, TableName]:
        """Deliver a transaction in which tables change their shape; what they are called then."""
        batch = self._batch(after_lsn, stretch.slices, only)
        passage, slices = self._passages.read(stretch)
        span = Span(batch.after_lsn, batch.end_lsn)

        def run(worker: Worker, parts: Sequence[Rows]) -> list[Receipt]:
            wanted = [ref for part in parts for ref in slices[part.number]]
            return run_job(self._context, worker, wanted, span, self._parallel)

        names = self._sink.commit_shapes(batch, passage, run, only)
        self._tables.look_soon()
        if only is None:
            self.delivered_lsn = batch.end_lsn
            self._committed_at = batch.committed_at or self._committed_at
        self._has_news = True
        self.on_enrolled()  # some may have to be copied again
        self._report()
        return names

    def _look_at_tables(self, now: float) -> None:
        if self._tables.look(self.delivered_lsn, now):
            self.on_enrolled()
            self._report()  # the log is kept for tables that wait, from here on
        self._catch_up(now)

    def _read(self, reader: LogReader) -> list[SliceRef]:
        """The slices of the next batch.

        In a backlog a batch waits a moment to grow: a job costs the same for one slice as for ten.
        """
        slices = reader.read(self._sink.batch_bytes)
        size = _size(slices)
        deadline = time.monotonic() + _GROW_SECONDS
        while (
            0 < size < self._grow_bytes
            and time.monotonic() < deadline
            and not self._stop.wait(_BUSY_WAIT_SECONDS)
        ):
            more = reader.read(self._sink.batch_bytes - size)
            slices += more
            size += _size(more)
        is_backlog = size >= _BACKLOG_BYTES
        self._grow_bytes = min(_GROW_BYTES, self._sink.batch_bytes) if is_backlog else 0
        return slices

    def _batch(
        self, after_lsn: Lsn, slices: Sequence[SliceRef], only: set[TableName] | None = None
    ) -> Batch:
        self._batch_number += 1
        tables = tables_of(slices)
        return Batch(
            number=self._batch_number,
            after_lsn=after_lsn,
            end_lsn=slices[-1].head.end_lsn,
            committed_at=max(ref.head.committed_at for ref in slices),
            tables=tables,
            aside=frozenset() if only is not None else tables & self._tables.aside(after_lsn),
            copies_first=self._copies_first,
        )

    def _run_job(
        self, batch: Batch, slices: Sequence[SliceRef], only: set[TableName] | None = None
    ) -> list[Receipt]:
        if not batch.tables:
            return []  # nothing but commits and marks: only the position moves
        began = time.perf_counter()
        worker = self._sink.worker(batch, only)
        span = Span(batch.after_lsn, batch.end_lsn)
        receipts = run_job(self._context, worker, slices, span, self._parallel)
        self._add_seconds("job", time.perf_counter() - began)
        for receipt in receipts:
            for part, seconds in receipt.seconds.items():
                self._add_seconds(part, seconds)
        return receipts

    def _commit(self, batch: Batch, receipts: list[Receipt]) -> None:
        """Runs in a thread of its own, one batch at a time."""
        began = time.perf_counter()
        self._sink.commit(batch, receipts)
        self._add_seconds("commit", time.perf_counter() - began)
        self.delivered_lsn = batch.end_lsn
        self._committed_at = batch.committed_at or self._committed_at
        self._has_news = True
        if time.monotonic() - self._reported_at > _REPORT_SECONDS:
            self._report()

    def _add_seconds(self, part: str, seconds: float) -> None:
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    def _catch_up(self, now: float) -> None:
        """Let tables that are apart catch up, one group after the other, while others may wait."""
        deadline = now + _CATCH_UP_SECONDS
        while group := self._tables.next_group(self.delivered_lsn, time.monotonic()):
            self._catch_up_group(group, deadline)
            self._tables.note_tried(group)
            self._has_news = True
            if self._stop.is_set() or time.monotonic() > deadline:
                return

    def _catch_up_group(self, group: set[TableName], deadline: float) -> None:
        """Deliver what waits for tables that stand at one position, towards where the others are.

        A long way is gone in several turns, so that the others are not held up.
        """
        position = min(self._sink.apart[name].delivered_lsn for name in group)
        reader = LogReader(self._state.log, position)
        try:
            while position < self.delivered_lsn:
                slices = reader.read(self._sink.batch_bytes)
                if not slices:
                    raise RunError(
                        f"the log ends at {position}, wanted {self.delivered_lsn}",
                        ", ".join(map(str, sorted(group))),
                        "nothing; the slot sends the rest again",
                    )
                for stretch in cut_at_marks(slices):
                    if group and position < self.delivered_lsn:
                        position, group = self._catch_up_stretch(group, stretch, position)
                if not group or self._stop.is_set() or time.monotonic() > deadline:
                    break
        finally:
            reader.close()
        if group and position >= self.delivered_lsn:
            fault_point("catch_up.before_join")
            self._sink.join(group)

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
            receipts = self._run_job(batch, stretch.slices, group) if group & batch.tables else []
            self._sink.commit_apart(group, batch, receipts)
        apart = self._sink.apart
        return end_lsn, {
            name for name in group if name in apart and apart[name].delivered_lsn == end_lsn
        }

    def _report(self) -> None:
        self._reported_at = time.monotonic()
        self._has_news = False
        apart = dict(self._sink.apart)
        wanted_lsn = self._tables.safe_lsn
        safe_lsn = self.delivered_lsn if wanted_lsn is None else min(self.delivered_lsn, wanted_lsn)
        self._state.write_report(
            f"sinks/{self.name}",
            {
                "delivered_lsn": str(self.delivered_lsn),
                "safe_lsn": str(safe_lsn),
                "committed_at": self._committed_at,
                "changes_delivered": self._sink.change_count,
                "tables": {
                    str(name): {
                        "state": apart[name].state if name in apart else STREAMING,
                        "error": (apart[name].error or None) if name in apart else None,
                    }
                    for name in sorted(set(self._sink.flowing) | set(apart))
                },
                "error": str(self.error) if self.error else None,
                "seconds": self.seconds,
                "at": time.time(),
            },
        )


def _size(slices: Sequence[SliceRef]) -> int:
    return sum(ref.head.data_bytes for ref in slices)
