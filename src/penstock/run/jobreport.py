"""What came of the job of one batch, for its commit and for those who watch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.metrics import BatchRecord, TaskRecord

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.sinks.sink import Batch, Receipt
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
