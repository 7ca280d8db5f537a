"""What a row sink is: `RowSink`, made by a `RowKind`. Public as `penstock.sink`.

It is a sink of documents whose documents are rows (`format`), so that copies, positions, parking and order are those of
every such sink. On the driver the rows of a batch are typed, and reduced to their net effect per key, before the sink
is given them.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, final

from penstock.changes.documents import key_places
from penstock.changes.netbatch import arrow_schema, net_batches
from penstock.changes.rowrecords import runs_of
from penstock.changes.typed import Unfit
from penstock.options import Options
from penstock.sinks.documents.contract import DocumentKind, DocumentSink, DocumentsRefused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from penstock.changes.decode import TableChanges
    from penstock.changes.netbatch import NetBatch
    from penstock.changes.rowrecords import Run
    from penstock.sinks.documents.format import DocumentFormat
    from penstock.sinks.kind import SinkPlace
    from penstock.table import TableName

OptionsT = TypeVar("OptionsT", bound=Options)


@dataclass(frozen=True)
class RowChanges:
    """What changes of one table come to: at most one row for each key, to be applied as one set.

    `ids` has for each row what the sink refuses it by: `DocumentsRefused({ids[number].as_py(): reason})`.
    `key_columns` are the names of the columns that identify a row; none where the whole row does.
    """

    table: TableName
    key_columns: tuple[str, ...]
    net: NetBatch
    ids: pa.Array


@dataclass(frozen=True)
class TableEmptied:
    """A table has no rows here: it was truncated, or a copy of it begins. `id` is what the sink refuses it by; None of a copy."""

    table: TableName
    id: str | None = None


@dataclass(frozen=True)
class TableAltered:
    """A table has changed its columns, its key or its name, or is gone. `differences` as documents have them."""

    table: TableName
    id: str
    differences: list[dict[str, Any]]


TableChange = RowChanges | TableEmptied | TableAltered


class RowSink(DocumentSink):
    """Where rows go. All of `DocumentSink` holds, but that `apply` is written instead of `deliver`.

    The driver delivers: `delivered_by` stays as it is.
    """

    shows_rows = True

    unfit: ClassVar[Unfit] = Unfit.REPORT
    """What becomes of values that an Arrow type cannot hold: their rows are refused, or columns that may have such
    values are strings."""

    _begun: Mapping[TableName, str] | None = None

    @abstractmethod
    def apply(self, changes: Iterator[TableChange], state: str | None) -> None:
        """Apply changes, those of each table in their order, and store the state with them.

        On return all of it is durable. After an exception nothing has happened, or `open` finds out what has. There may
        be no changes at all: then only the state is stored. Where the destination does not store the state, the last batch may
        come again after a crash: an `insert` may find its row, and a `delete` none.

        Args:
            changes: read once.
            state: opaque, some kilobytes.

        Raises:
            DocumentsRefused: the destination does not take some rows, by their `ids`.
        """

    @final
    def begin_copies(self, copies: Mapping[TableName, str]) -> None:
        """Remember which tables are to be emptied by the next `deliver`."""
        self._begun = copies

    @final
    def deliver(self, documents: Iterator[pa.RecordBatch], state: str | None) -> None:
        """Have the rows of the documents applied."""
        begun, self._begun = self._begun, None
        self.apply(self._changes(begun or {}, documents), state)

    def _changes(
        self, begun: Mapping[TableName, str], documents: Iterator[pa.RecordBatch]
    ) -> Iterator[TableChange]:
        for table in begun:
            yield TableEmptied(table)
        for batch in documents:
            for run in runs_of(batch):
                if run.changes is None:
                    yield _other_change(run)
                else:
                    yield from self._row_changes(run, run.changes)

    def _row_changes(self, run: Run, changes: TableChanges) -> Iterator[RowChanges]:
        relation = changes.relation
        key = key_places(relation)
        names = tuple(relation.columns[place].name for place in key)
        schema = arrow_schema(relation, enums=run.enums, unfit=self.unfit)
        for net in net_batches(changes, key, schema):
            ids = run.ids_of(net.keys, len(net))
            reasons = {
                ids[row].as_py(): f"column {column} has a value that its Arrow type has not"
                for column, rows in net.unfit.items()
                for row in rows.tolist()
            }
            if reasons:
                raise DocumentsRefused(reasons)
            yield RowChanges(run.table, names, net, ids)


def _other_change(run: Run) -> TableEmptied | TableAltered:
    [record] = run.records.to_pylist()
    if record["op"] == "truncate":
        return TableEmptied(run.table, record["id"])
    return TableAltered(run.table, record["id"], json.loads(record["value"])["difference"])


class RowKind(DocumentKind[OptionsT], Generic[OptionsT]):
    """A kind of row sink: its name, its options, and how the sink is made."""

    worker_modules: ClassVar[tuple[str, ...]] = (
        "penstock.sinks.documents.worker",
        "penstock.sinks.rows.format",
    )
    needs_ids: ClassVar[bool] = (
        True  # a primary key identifies rows also with replica identity full; enums are known
    )

    @abstractmethod
    def sink(self, place: SinkPlace[OptionsT]) -> RowSink:
        """The sink, unopened."""

    @final
    def format(self, place: SinkPlace[OptionsT]) -> DocumentFormat:
        """Rows."""
        from penstock.sinks.rows.format import RowFormat

        del place
        return RowFormat()
