"""A transaction that changes shapes as documents: those of its rows, and between them its own.

    {"id", "op": "schema", "schema", "table", "commit_lsn", "ordinal", "xid", "committed_at", "source",
     "key": null, "before": null, "after": null, "unchanged": [], "version", "difference": [{…}, …]}

`table` is what the table is called from there on. `version` is null where the source has no triggers
that count versions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from penstock.changes.documents import document
from penstock.changes.textcolumns import utc_times
from penstock.schema.difference import as_json
from penstock.sinks.ddl_transaction import Rows
from penstock.sinks.documents.format import JSON_FORMAT
from penstock.sinks.documents.tasks import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    import pyarrow as pa

    from penstock.sinks.ddl_transaction import DdlTransaction, RunJob, ShapeChange
    from penstock.sinks.documents.format import DocumentFormat
    from penstock.sinks.sink import Batch, Receipt, Worker
    from penstock.table import TableName


class DdlDocuments:
    """The documents of a transaction that changes shapes: what receipts stand for, and its own.

    `names` says what the tables that take part were called before, and are called now; `created_in_stream` are
    those that came with it, `unknown` those that must be copied before their rows are delivered.
    """

    def __init__(
        self,
        batch: Batch,
        taking_part: Collection[TableName],
        is_group: bool,
        source: str,
        form: DocumentFormat = JSON_FORMAT,
    ) -> None:
        self.taking_part = frozenset(taking_part)
        self.names = {table: table for table in taking_part}
        self.content: list[list[Receipt] | pa.RecordBatch] = []
        self.count = 0
        self.created_in_stream: set[TableName] = set()
        self.unknown: dict[TableName, int] = {}  # with their oids
        # Where tasks have delivered the rows before: documents of changes go at once, in their place.
        self.on_own: Callable[[list[pa.RecordBatch]], None] | None = None
        self._batch = batch
        self._is_group = is_group
        self._source = source
        self._format = form
        self._detached = set(batch.detached)

    def run(
        self,
        ddl_transaction: DdlTransaction,
        worker_of: Callable[[Batch, Collection[TableName] | None], Worker],
        run_job: RunJob,
    ) -> None:
        """Go through it, part by part."""
        for part in ddl_transaction:
            if isinstance(part, Rows):
                detached = frozenset(self._detached | self._unlisted(part))
                batch = replace(self._batch, tables=part.tables, detached=detached)
                only = set(self.names.values()) - self._detached if self._is_group else None
                receipts = run_job(worker_of(batch, only), [part])
                self._detached |= _stopped_by_tasks(receipts)
                self.content.append(receipts)
                self.count += sum(receipt.change_count for receipt in receipts)
            else:
                self._describe(part)

    def _unlisted(self, part: Rows) -> set[TableName]:
        """Those of the tables that nobody knows, and that are to be copied first."""
        if self._is_group or not self._batch.copies_first:
            return set()
        found = (
            set(part.tables) - self._detached - set(self.names.values()) - self.created_in_stream
        )
        self.unknown |= {table: part.oids.get(table, 0) for table in found}
        return found

    def _describe(self, part: ShapeChange) -> None:
        self.created_in_stream = {
            part.renamed.get(table, table) for table in self.created_in_stream
        } - part.dropped
        if not self._is_group:
            self.created_in_stream |= (
                part.created_in_stream - set(self.names.values()) - self._detached
            )
        before = set(self.names.values())
        self._detached = {part.renamed.get(table, table) for table in self._detached}
        self.unknown = {
            part.renamed.get(table, table): oid
            for table, oid in self.unknown.items()
            if table not in part.dropped
        }
        self.names = {
            began_as: part.renamed.get(now, now)
            for began_as, now in self.names.items()
            if now not in part.dropped
        }
        skipped = self._detached
        if self._is_group:
            own = before | set(self.names.values())
            skipped = {each.table for each in part.followed} - (own - self._detached)
        found = self._format.shape_changes(schema_documents(part, self._source, skipped))
        self.count += len(found)
        if self.on_own is None:
            self.content += found
        elif found:
            self.on_own(found)


def _stopped_by_tasks(receipts: Sequence[Receipt]) -> set[TableName]:
    """Tables that tasks have not delivered: what comes after must not overtake that."""
    shared = [each for each in receipts if isinstance(each.content, Outcome)]
    stopped = {table for each in shared for table in each.content.stopped}
    return stopped | {refused.table for each in shared for refused in each.refused}


def schema_documents(
    part: ShapeChange, source: str, skipped: Collection[TableName]
) -> list[pa.RecordBatch]:
    """The documents of one statement's changes, without those of some tables."""
    found = []
    mark = part.mark
    committed_at = utc_times(np.array([mark.committed_at], np.int64))[0].as_py().decode()
    for followed in part.followed:
        if followed.table in skipped or not followed.differences:
            continue
        place = f"{source}:{mark.commit_lsn}:{mark.ordinal}"
        value = {
            # Several statements may stand before one row, and one statement changes several tables.
            "id": f"{place}:schema:{mark.number}:{followed.table}",
            "op": "schema",
            "schema": followed.table.schema,
            "table": followed.table.name,
            "commit_lsn": str(mark.commit_lsn),
            "ordinal": mark.ordinal,
            "xid": mark.xid,
            "committed_at": committed_at,
            "source": source,
            "key": None,
            "before": None,
            "after": None,
            "unchanged": [],
            "version": part.versions.get(followed.table.schema),
            "difference": [as_json(each) for each in followed.differences],
        }
        found.append(document(value, mark.committed_at))
    return found
