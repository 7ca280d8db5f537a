"""A transaction that changes shapes as documents: those of its rows, and between them its own.

    {"id", "op": "schema", "schema", "table", "commit_lsn", "ordinal", "xid", "committed_at", "source",
     "key": null, "before": null, "after": null, "unchanged": [], "version", "difference": [{…}, …]}

`table` is what the table is called from there on. `version` is null where the source has no triggers
that count versions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from penstock.changes.documents import document
from penstock.changes.textcolumns import utc_times
from penstock.schema.difference import as_json
from penstock.schema.unsent import leaves_rows_behind
from penstock.sinks.ddl_transaction import Rows
from penstock.sinks.documents.format import JSON_FORMAT
from penstock.sinks.documents.tasks import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence, Set

    import pyarrow as pa

    from penstock.schema.difference import Difference
    from penstock.sinks.ddl_transaction import DdlTransaction, RunJob, ShapeChange
    from penstock.sinks.documents.format import DocumentFormat
    from penstock.sinks.sink import Batch, Receipt, Worker
    from penstock.table import TableName


class KeepsRows(Protocol):
    """`keeps_rows` of a sink."""

    def __call__(self, difference: Difference, *, may_compute: bool) -> bool: ...


class DdlDocuments:
    """The documents of a transaction that changes shapes: what receipts stand for, and its own.

    `names` says what the tables that take part were called before, and are called now; `created_in_stream` are
    those that came with it, `unknown` those that must be copied before their rows are delivered, `left_behind` those
    of which rows hold what nobody was sent, and that are to be copied again.
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
        self.left_behind: dict[TableName, int] = {}  # the same
        self.not_copied: set[TableName] = set()  # of those that nobody copies
        # Where tasks have delivered the rows before: documents of changes go at once, in their place.
        self.on_own: Callable[[list[pa.RecordBatch]], None] | None = None
        # Called with receipts of rows before anything that comes after them is described.
        self.on_rows: Callable[[list[Receipt]], None] | None = None
        # Called when tables have got other names, with the place of that in the stream.
        self.on_renamed: Callable[[Mapping[TableName, TableName], int, int], None] | None = None
        # Whether the destination has dealt with a change before, by the id of its document.
        self.has_followed: Callable[[str], bool] | None = None
        # Whether rows that the destination shows are right all the same after a change of their table.
        self.keeps_rows: KeepsRows | None = None
        # Tables that wait for a copy, and whose changes are described although their rows are skipped.
        self.described: set[TableName] = set()
        self._batch = batch
        self._is_group = is_group
        self._source = source
        self._format = form
        self._detached = set(batch.detached)
        self._with_rows: set[TableName] = set()  # of those that came with it

    def run(
        self,
        ddl_transaction: DdlTransaction,
        worker_of: Callable[[Batch, Collection[TableName] | None], Worker],
        run_job: RunJob,
    ) -> None:
        """Go through it, part by part."""
        delivered = self._delivered_before(ddl_transaction)
        for number, part in enumerate(ddl_transaction):
            if isinstance(part, Rows):
                detached = frozenset(self._detached | self._unlisted(part) | delivered[number])
                batch = replace(self._batch, tables=part.tables, detached=detached)
                only = set(self.names.values()) - detached if self._is_group else None
                receipts = run_job(worker_of(batch, only), [part])
                self._detached |= _stopped_by_tasks(receipts)
                self._with_rows |= self.created_in_stream & part.tables
                self.content.append(receipts)
                if self.on_rows is not None:
                    self.on_rows(receipts)
                self.count += sum(receipt.change_count for receipt in receipts)
            else:
                self._describe(part)

    def _delivered_before(self, ddl_transaction: DdlTransaction) -> list[set[TableName]]:
        """Of each part the tables whose rows in it have been delivered, by the names that they have there.

        A transaction comes again after a crash. Where the destination has followed a change of a table it has the rows
        from before it, and the table there is not what it was any more: it may have another name, or be gone.
        """
        found: list[set[TableName]] = []
        delivered: set[TableName] = set()
        for part in reversed(ddl_transaction):
            if not isinstance(part, Rows) and self.has_followed is not None:
                names = {new: old for old, new in part.renamed.items()}
                delivered = {names.get(table, table) for table in delivered}
                delivered |= {
                    names.get(each.table, each.table)
                    for each in part.followed
                    if each.differences
                    and self.has_followed(schema_id(part, each.table, self._source))
                }
                delivered -= part.created_in_stream
            found.append(set(delivered))
        return found[::-1]

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
        before = set(self.names.values())
        described = set(map(part.name_after, self.described))  # also what it drops
        self._follow_names(part)
        self._note_left_behind(part)
        self._add_own(part, self._skipped_in(part, before) - described)
        renamed = {
            old: new
            for old, new in part.renamed.items()
            if new not in self._detached and (old in before or not self._is_group)
        }
        if self.on_renamed is not None and renamed:
            self.on_renamed(renamed, part.mark.commit_lsn, part.mark.ordinal)

    def _follow_names(self, part: ShapeChange) -> None:
        """Call every table what it is called after a change; those that it drops are none any more."""
        came = part.created_in_stream - set(self.names.values()) - self._detached
        self.created_in_stream = part.left_of(self.created_in_stream)
        self.created_in_stream |= set() if self._is_group else came
        self.described = part.left_of(self.described)
        self._with_rows = part.left_of(self._with_rows)
        # Also those that are dropped: nothing is said of them.
        self._detached = set(map(part.name_after, self._detached))
        self.unknown = _renamed(self.unknown, part)
        self.left_behind = _renamed(self.left_behind, part)
        self.names = {
            began_as: part.name_after(now)
            for began_as, now in self.names.items()
            if now not in part.dropped
        }

    def _skipped_in(self, part: ShapeChange, before: Set[TableName]) -> set[TableName]:
        """Tables that a change concerns, and that this is not to describe; `before` is what its own were called."""
        if not self._is_group:
            return self._detached
        own = before | set(self.names.values())
        return {each.table for each in part.followed} - (own - self._detached)

    def _add_own(self, part: ShapeChange, skipped: Collection[TableName]) -> None:
        """Add the documents of a change itself, or deliver them."""
        found = self._format.shape_changes(schema_documents(part, self._source, skipped))
        self.count += len(found)
        if self.on_own is None:
            self.content += found
        elif found:
            self.on_own(found)

    def _note_left_behind(self, part: ShapeChange) -> None:
        """Go on with those of the tables that stream, and that had rows before this."""
        oids = {shape.table: shape.id for shape in part.change.tables}
        with_rows = self._with_rows | set(self.names.values())
        for table in self.left_behind.keys() - with_rows:
            del self.left_behind[table]
        for each in part.followed:
            if not self._leaves_rows_behind(part, each.differences):
                continue
            if each.table in with_rows:
                self.left_behind[each.table] = oids.get(each.table, 0)
            elif not self._batch.copies_first and not self._is_group:
                self.not_copied |= {each.table} - self._detached - self.created_in_stream

    def _leaves_rows_behind(self, part: ShapeChange, differences: Sequence[Difference]) -> bool:
        keeps, may_compute = self.keeps_rows, part.may_compute(differences)
        return any(
            leaves_rows_behind(each) and not (keeps and keeps(each, may_compute=may_compute))
            for each in differences
        )


def _renamed(oids: Mapping[TableName, int], part: ShapeChange) -> dict[TableName, int]:
    """Oids of tables by what these are called after a change, without those that it drops."""
    return {part.name_after(table): oid for table, oid in oids.items() if table not in part.dropped}


def _stopped_by_tasks(receipts: Sequence[Receipt]) -> set[TableName]:
    """Tables that tasks have not delivered: what comes after must not overtake that."""
    shared = [each for each in receipts if isinstance(each.content, Outcome)]
    stopped = {table for each in shared for table in each.content.stopped}
    return stopped | {refused.table for each in shared for refused in each.refused}


def schema_id(part: ShapeChange, table: TableName, source: str) -> str:
    """The id of the document that says what a statement has changed of a table."""
    # Several statements may stand before one row, and one statement changes several tables.
    mark = part.mark
    return f"{source}:{mark.commit_lsn}:{mark.ordinal}:schema:{mark.number}:{table}"


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
        value = {
            "id": schema_id(part, followed.table, source),
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
        if part.may_compute(followed.differences):
            value["using"] = True
        found.append(document(value, mark.committed_at))
    return found
