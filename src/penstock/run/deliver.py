"""Loop 2: the log is delivered to one sink. One such loop, in one thread, per sink.

Take the slices after the sink's own position, run one Spark job over them, commit its receipts,
repeat. While batch n commits, the job of batch n + 1 already runs.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.errors import PenstockError, RunError
from penstock.log.reader import LogReader
from penstock.lsn import Lsn
from penstock.run.retry import BackOff, mends_with_time
from penstock.sinks.sink import Batch
from penstock.spark.jobs import Span, run_job
from penstock.table import TableName

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from pyspark import SparkContext

    from penstock.log.segment import SliceRef
    from penstock.run.state import StateDirectory
    from penstock.sinks.sink import Receipt, Sink

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
    ) -> None:
        self._context = context
        self._sink = sink
        self._state = state
        self._check_position = check_position
        self._stop = stop
        self._parallel = int(context.defaultParallelism)
        self._batch_number = 0
        self._tables: set[TableName] = set()
        self._table_waits: dict[TableName, tuple[float, BackOff]] = {}
        self._grow_bytes = 0
        self._tried: set[TableName] = set()
        self._reported_at = 0.0
        self._has_news = False
        self._committed_at = 0
        self.delivered_lsn = Lsn(0)
        self.error: PenstockError | None = None
        self.seconds: dict[str, float] = {}

    @property
    def name(self) -> str:
        """The sink's name."""
        return self._sink.name

    @property
    def stopped_tables(self) -> dict[TableName, str]:
        """Tables that wait, and why."""
        return {table: stopped.error for table, stopped in self._sink.stopped.items()}

    def has_caught_up(self, lsn: Lsn) -> bool:
        """Whether all that can be delivered up to a position is; stopped tables were tried again."""
        return self.delivered_lsn >= lsn and self._tried.issuperset(self._sink.stopped)

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
        committing: Future[None] | None = None
        read_lsn = self.delivered_lsn
        busy_until = 0.0
        pool = ThreadPoolExecutor(1, thread_name_prefix=f"commit {self.name}")
        try:
            while not self._stop.is_set():
                if committing is not None and committing.done():
                    committing.result()
                    committing = None
                    back_off.succeed()
                    self.error = None
                now = time.monotonic()
                if self._is_table_due(now):
                    if committing is not None:
                        committing.result()
                        committing = None
                    self._catch_up(now)
                slices = self._read(reader)
                if slices:
                    busy_until = now + _BUSY_FOR_SECONDS
                    batch = self._batch(read_lsn, slices)
                    receipts = self._run_job(batch, slices)
                    if committing is not None:
                        committing.result()
                    committing = pool.submit(self._commit, batch, receipts)
                    read_lsn = batch.end_lsn
                    continue
                if committing is None:
                    self._sink.idle()
                    if self._has_news:
                        self._report()
                self._stop.wait(_BUSY_WAIT_SECONDS if now < busy_until else _IDLE_WAIT_SECONDS)
            if committing is not None:
                committing.result()
        finally:
            pool.shutdown(wait=True)
            reader.close()

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

    def _batch(self, after_lsn: Lsn, slices: Sequence[SliceRef]) -> Batch:
        self._batch_number += 1
        tables = frozenset(
            TableName(schema, name)
            for ref in slices
            for _, schema, name in ref.head.meta.get("relations", ())
        )
        self._tables |= tables
        return Batch(
            number=self._batch_number,
            after_lsn=after_lsn,
            end_lsn=slices[-1].head.end_lsn,
            committed_at=max(ref.head.committed_at for ref in slices),
            tables=tables,
        )

    def _run_job(
        self, batch: Batch, slices: Sequence[SliceRef], only: TableName | None = None
    ) -> list[Receipt]:
        if not batch.tables:
            return []  # nothing but commits and marks: only the position moves
        began = time.perf_counter()
        worker = self._sink.worker(batch, None if only is None else {only})
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

    def _is_table_due(self, now: float) -> bool:
        """Whether a stopped table is to be tried again, also while others flow."""
        for table in list(self._sink.stopped):
            self._table_waits.setdefault(table, (now + 1.0, BackOff(1.0, 30.0)))
        return any(
            now >= due
            for table, (due, _) in self._table_waits.items()
            if table in self._sink.stopped
        )

    def _catch_up(self, now: float) -> None:
        """Try the stopped tables again whose turn it is."""
        for table in list(self._sink.stopped):
            due, back_off = self._table_waits.get(table, (now + 1.0, BackOff(1.0, 30.0)))
            if now < due or self._stop.is_set():
                continue
            try:
                self._catch_up_table(table)
                del self._table_waits[table]
            except PenstockError as error:
                if mends_with_time(error):
                    raise
                self._tried.add(table)
                self._sink.restate_failure(table, error)
                self._table_waits[table] = (
                    time.monotonic() + back_off.next_seconds(),
                    back_off,
                )
            self._has_news = True

    def _catch_up_table(self, table: TableName) -> None:
        """Deliver what waits for one table, up to where the others are."""
        position = self._sink.stopped[table].delivered_lsn
        reader = LogReader(self._state.log, position)
        try:
            while position < self.delivered_lsn and not self._stop.is_set():
                slices = reader.read(self._sink.batch_bytes)
                if not slices:
                    raise RunError(
                        f"the log ends at {position}, wanted {self.delivered_lsn}",
                        str(table),
                        "nothing; the slot sends the rest again",
                    )
                # A slice may go on after where the others are, if the log was captured anew.
                batch = self._batch(position, slices)
                batch = replace(batch, end_lsn=min(batch.end_lsn, self.delivered_lsn))
                receipts = self._run_job(batch, slices, table) if table in batch.tables else []
                self._sink.commit_table(table, batch, receipts)
                position = batch.end_lsn
        finally:
            reader.close()
        if position >= self.delivered_lsn:
            self._sink.resume_table(table)

    def _report(self) -> None:
        self._reported_at = time.monotonic()
        self._has_news = False
        stopped = dict(self._sink.stopped)
        safe_lsn = min([self.delivered_lsn, *(table.delivered_lsn for table in stopped.values())])
        self._state.write_report(
            f"sinks/{self.name}",
            {
                "delivered_lsn": str(self.delivered_lsn),
                "safe_lsn": str(safe_lsn),
                "committed_at": self._committed_at,
                "changes_delivered": self._sink.change_count,
                "tables": {
                    str(table): {
                        "state": "failed" if table in stopped else "streaming",
                        "error": stopped[table].error if table in stopped else None,
                    }
                    for table in sorted(self._tables | set(stopped))
                },
                "error": str(self.error) if self.error else None,
                "seconds": self.seconds,
                "at": time.time(),
            },
        )


def _size(slices: Sequence[SliceRef]) -> int:
    return sum(ref.head.data_bytes for ref in slices)
