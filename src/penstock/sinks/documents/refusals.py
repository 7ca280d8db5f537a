"""What becomes of documents that a destination refuses, by `on_refused:`.

`stop`: their tables stop where they are, the others go on. `park`: they are kept with their reason, and
with everything that must not overtake them, before the position moves past them.

Costs nothing while nothing is refused and nothing is parked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.errors import RowRefused, SinkDefect
from penstock.lsn import Lsn
from penstock.options import OnRefused
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from penstock.sinks.documents.parked import Holds

    ReadDocuments = Callable[[], Iterator[pa.RecordBatch]]


class Attempt:
    """Some documents on their way: what is left of them after each refusal.

    `read` may be called again. `holds` are those of what is parked already. `together` says which tables stop with one:
    a table under its other names, where some are renamed on the way. Of `unparked` nothing is parked: those tables stop.
    """

    def __init__(
        self,
        read: ReadDocuments,
        holds: Holds,
        on_refused: OnRefused,
        place: str,
        together: Mapping[TableName, Collection[TableName]] | None = None,
        unparked: Collection[TableName] = (),
    ) -> None:
        self._read = read
        self._together = together or {}
        self._unparked = unparked
        self._on_refused = on_refused
        self._place = place
        # As they were: what is parked meanwhile is among these documents, and found by itself.
        self._holds = holds.copy()
        self.reasons: dict[str, str] = {}
        self.stopped: dict[TableName, str] = {}

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """The destination does not take these.

        Raises:
            SinkDefect: it was not given them.
        """
        found = [
            row
            for batch in self.documents()
            for row in _rows(batch, np.isin(batch.column("id").to_pylist(), list(reasons)))
        ]
        if not found:
            raise SinkDefect(
                "the sink refuses documents that it was not given",
                self._place,
                "report it to who wrote the sink",
            )
        for row in found:
            table = TableName(row["schema"], row["table"])
            if self._on_refused is OnRefused.PARK and table not in self._unparked:
                self.reasons[row["id"]] = reasons[row["id"]]
                continue
            where = f"{table} {row['key'] or row['op']} at {Lsn(row['commit_lsn'])}"
            or_park = "; or set on_refused: park"
            if self._on_refused is OnRefused.PARK:
                or_park = ": what a transaction has that changes the table is not parked"
            error = RowRefused(
                f"the destination refuses a document: {reasons[row['id']]}",
                where,
                f"fix the cause there, and penstock goes on by itself{or_park}",
            )
            self.stop(table, str(error))

    def stop(self, table: TableName, error: str) -> None:
        """Leave out a table, by all its names."""
        for name in self._together.get(table, (table,)):
            self.stopped.setdefault(name, error)

    def refuse_marked(self) -> None:
        """Refuse documents that their format has no form for, and stop tables that it cannot write."""
        reasons: dict[str, str] = {}
        tables: dict[str, TableName] = {}
        for batch in self._read():
            if "refused" not in batch.schema.names:
                return
            marked = batch.column("refused")
            if marked.null_count == len(batch):
                continue
            some = batch.filter(marked.is_valid())
            ids, texts = some.column("id").to_pylist(), some.column("refused").to_pylist()
            for name, one, text in zip(_names(some), ids, texts, strict=True):
                if text.startswith("PEN-"):
                    self.stop(name, text)
                else:
                    reasons[one], tables[one] = text, name
        left = {one: text for one, text in reasons.items() if tables[one] not in self.stopped}
        if left:
            self.refuse(left)

    @property
    def is_plain(self) -> bool:
        """Whether everything is delivered as it comes."""
        return not (self.reasons or self._holds or self.stopped)

    def caught(self) -> list[dict[str, Any]]:
        """What is to be parked: refused documents, and those that wait behind parked ones.

        Nothing of a table that stops: all of that comes again."""
        if not (self.reasons or self._holds):
            return []
        holds = self._holds.copy()
        return [
            row
            for batch in self._read()
            for row in _rows(batch, self._caught(batch, holds))
            if TableName(row["schema"], row["table"]) not in self.stopped
        ]

    def documents(self) -> Iterator[pa.RecordBatch]:
        """What is to be delivered."""
        if self.is_plain:
            yield from self._read()
            return
        holds = self._holds.copy()
        for batch in self._read():
            left_out = self._caught(batch, holds)
            if self.stopped:
                left_out |= np.array([name in self.stopped for name in _names(batch)], np.bool_)
            if left_out.any():
                batch = batch.filter(pa.array(~left_out))  # noqa: PLW2901
            if len(batch):
                yield batch

    def _caught(self, batch: pa.RecordBatch, holds: Holds) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which documents are refused, or wait behind one that is; `holds` grows by them."""
        caught = np.zeros(len(batch), np.bool_)
        names = _names(batch)
        ids = batch.column("id").to_pylist()
        refused_tables = {
            name for name, each in zip(names, ids, strict=True) if each in self.reasons
        }
        # Changes of tables have a batch of their own each, and may be of one that had another name.
        is_change = bool(holds) and len(batch) == 1 and batch.column("op")[0].as_py() == "schema"
        if not refused_tables and not is_change and not holds.concerns(set(names)):
            return caught
        places = np.flatnonzero(
            [is_change or name in refused_tables or holds.concerns((name,)) for name in names]
        )
        # Row by row, but only of tables that something of is parked.
        for place, row in zip(places, batch.take(pa.array(places)).to_pylist(), strict=True):
            if row["id"] in self.reasons or holds.waits(row):
                caught[place] = True
                holds.add(row)
        return caught


def _names(batch: pa.RecordBatch) -> list[TableName]:
    schemas, tables = batch.column("schema").to_pylist(), batch.column("table").to_pylist()
    return [TableName(*name) for name in zip(schemas, tables, strict=True)]


def _rows(batch: pa.RecordBatch, mask: np.ndarray[Any, np.dtype[np.bool_]]) -> list[dict[str, Any]]:
    return list(batch.filter(pa.array(mask)).to_pylist()) if mask.any() else []
