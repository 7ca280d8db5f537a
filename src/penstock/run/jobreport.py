"""What came of the job of one batch, for its commit and for those who watch; and how they are told of batches."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from penstock.logging import speak_of_batch
from penstock.metrics import BatchRecord, TaskRecord

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from penstock.metrics import BatchTrace, Recorder
    from penstock.sinks.sink import Batch, Receipt, Sink
    from penstock.table import TableName


@dataclass
class JobReport:
    """A job that has run, or none: then there are no receipts."""

    size_bytes: int
    began_at: float  # seconds since 1970
    seconds: float = 0.0
    receipts: list[Receipt] = field(default_factory=list)

    def record(
        self,
        source: str,
        sink: str,
        batch: Batch,
        commit_began_at: float,
        commit_seconds: float,
        only: Collection[TableName] | None = None,
    ) -> BatchRecord:
        """The batch as it is counted. Rows of tables that it skipped are counted when they catch up."""
        rows: dict[tuple[str, str], int] = {}
        read: dict[str, int] = {}
        for receipt in self.receipts:
            for (table, operation), count in receipt.rows.items():
                if table not in batch.detached and (only is None or table in only):
                    key = (str(table), operation)
                    rows[key] = rows.get(key, 0) + count
            for operation, size in receipt.read_bytes.items():
                read[operation] = read.get(operation, 0) + size
        return BatchRecord(
            source=source,
            sink=sink,
            number=batch.number,
            size_bytes=self.size_bytes,
            change_count=sum(rows.values()),
            began_at=self.began_at,
            job_seconds=self.seconds,
            commit_began_at=commit_began_at,
            commit_seconds=commit_seconds,
            has_job=bool(self.receipts),
            rows=rows,
            read_bytes=read,
            tasks=[
                TaskRecord(each.began_at, each.seconds, each.change_count) for each in self.receipts
            ],
        )


class BatchRecorder:
    """Traces and counts the batches of one source at one sink, where somebody watches."""

    def __init__(self, recorder: Recorder, source_id: str, sink: Sink) -> None:
        self._recorder = recorder
        self._source_id = source_id
        self._sink = sink

    @property
    def is_counted(self) -> bool:
        """Whether tasks are to count rows."""
        return self._recorder.is_on

    def begin(self, batch: Batch) -> BatchTrace:
        """A batch begins, in this thread: lines of the log name it from here on."""
        trace = self._recorder.begin(self._source_id, self._sink.name, batch.number)
        speak_of_batch(batch.number, trace.trace_id)
        return trace

    @contextmanager
    def recorded(
        self, batch: Batch, report: JobReport, only: Collection[TableName] | None
    ) -> Iterator[BatchTrace]:
        """A batch whose job runs, and that is committed, inside."""
        trace = self.begin(batch)
        record: BatchRecord | None = None
        began, began_at = time.perf_counter(), time.time()
        try:
            yield trace
            seconds = time.perf_counter() - began - report.seconds
            record = self.count(batch, report, began_at + report.seconds, seconds, only)
        finally:
            trace.end(record)

    def count(
        self,
        batch: Batch,
        report: JobReport,
        commit_began_at: float,
        commit_seconds: float,
        only: Collection[TableName] | None = None,
    ) -> BatchRecord | None:
        """A batch has been committed. Rows of tables that stopped in it are counted when they catch up."""
        if not self._recorder.is_on:
            return None
        stopped = {
            name
            for name, table in dict(self._sink.tables.detached).items()
            if table.delivered_lsn < batch.end_lsn
        }
        record = report.record(
            self._source_id,
            self._sink.name,
            replace(batch, detached=batch.detached | stopped),
            commit_began_at,
            commit_seconds,
            only,
        )
        self._recorder.batch(record)
        return record
