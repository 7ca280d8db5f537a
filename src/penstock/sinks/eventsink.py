"""What sinks of documents have in common: the life of their tables, and how copies are published.

A table is copied by others (`eventcopying`), into files beside the position. When they are all there,
its documents are delivered from here, step by step, between batches; each step and how far it went are
recorded together. Then the table catches up with the others, and flows with them. A document is
refused by nobody, so no table stops alone.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError, PositionTaken, SinkError
from penstock.failpoints import fault_point
from penstock.sinks.copies import COPIED
from penstock.sinks.durable import cannot_use
from penstock.sinks.eventpassage import PassageDocuments
from penstock.sinks.partfile import line_end, read_span
from penstock.sinks.positionfile import KeptPosition, KeptTable, Published
from penstock.sinks.tables import (
    CATCHING_UP,
    COPYING,
    FAILED,
    PENDING,
    REMOVED,
    STREAMING,
    ApartTable,
    WantedTables,
)
from penstock.table import tell_tables
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from penstock.lsn import Lsn
    from penstock.sinks.copies import Copies, TableCopy
    from penstock.sinks.passage import Passage, RunJob
    from penstock.sinks.positionfile import PositionFile
    from penstock.sinks.sink import Batch, Receipt, Worker
    from penstock.table import TableName

_log = logging.getLogger(__name__)


@dataclass
class _Step:
    """Documents of copies that are delivered at once, and how tables stand then."""

    room: int  # in bytes; negative when the last line was long
    spans: list[tuple[str, int, int]] = field(default_factory=list)
    tables: dict[TableName, KeptTable] = field(default_factory=dict)
    used_up: list[str] = field(default_factory=list)

    def read(self) -> Iterator[bytes]:
        """The documents, block by block."""
        for span in self.spans:
            yield from read_span(*span)


class EventSink(ABC):
    """The part of the driver half that does not depend on where documents go.

    `_kept` mirrors the position that is stored; None while the sink is not open, and after a failure,
    so that nothing is done before `open` has looked again at what there is.
    """

    def __init__(
        self, name: str, directory: Path, position: PositionFile, copies: Copies, source: str
    ) -> None:
        self.name = name
        self._source = source
        self.change_count = 0
        self.flowing: set[TableName] = set()
        self.objects_due = False
        self.has_notes = False
        self.apart: dict[TableName, ApartTable] = {}
        self._directory = directory
        self._position = position
        self._copies = copies
        self._known_copies: dict[TableName, TableCopy] = {}
        self._kept: KeptPosition | None = None
        self._called_off = threading.Event()

    def begin(self, identity: Mapping[str, str], lsn: Lsn) -> None:
        """Store the first position."""
        with self._or_forget():
            self._record(KeptPosition(lsn, dict(identity)))

    def refresh_tables(self, lsn: Lsn) -> None:
        """See what was copied and what was asked for; deliver copies that are whole, for a while."""
        self._require_open()
        with self._or_forget():
            self._take_requests(lsn)
            self._known_copies = self._copies.read()
            self._try_again(lsn)
            deadline = time.monotonic() + timing().publish_seconds
            while self._publish(lsn) and time.monotonic() < deadline:
                self._raise_if_called_off(lsn)
        self._see_tables()

    def enrol(self, tables: Mapping[TableName, int], lsn: Lsn, *, is_new: bool = True) -> None:
        """Note that tables wait for a copy. What is known of an earlier life is forgotten."""
        del is_new  # all that is known is the position
        self._set_tables({table: KeptTable.enrolled(lsn, oid) for table, oid in tables.items()})

    def rename(self, table: TableName, name: TableName, lsn: Lsn) -> None:
        """Let a table wait for a copy under another name."""
        kept = self._require_open()
        others = {each: known for each, known in kept.tables.items() if each != table}
        others[name] = KeptTable.enrolled(lsn, kept.tables[table].oid)
        with self._or_forget():
            self._record(replace(kept, tables=others))
        self._see_tables()

    def remove(self, tables: Collection[TableName]) -> None:
        """Note that tables are followed no more."""
        self._set_tables({table: KeptTable(REMOVED) for table in tables})

    def note(self, table: TableName, text: str) -> None:
        """Nothing: documents tell what has happened, not what there is."""
        del table, text

    def commit(self, batch: Batch, receipts: Sequence[Receipt]) -> None:
        """Deliver the documents in the order of their tasks, and the position with them."""
        kept = self._require_position(batch)
        fault_point("deliver.after_job")
        moved = replace(_counted(kept, receipts), delivered_lsn=batch.end_lsn)
        with self._or_forget():
            self._deliver(self._documents(receipts), moved)
        fault_point("deliver.after_commit")

    def commit_shapes(
        self,
        batch: Batch,
        passage: Passage,
        run_job: RunJob,
        only: Collection[TableName] | None = None,
    ) -> dict[TableName, TableName]:
        """Deliver rows and documents of changes in turn; tables bear their new names from then on."""
        kept = self._require_position(batch) if only is None else self._require_apart(only, batch)
        taking_part = set(only or ()) or {
            table for table, known in kept.tables.items() if known.state in (STREAMING, PENDING)
        }
        done = PassageDocuments(batch, taking_part, only is not None, self._source)
        done.run(passage, self.worker, run_job)
        tables: dict[TableName, KeptTable] = {}
        for table, known in kept.tables.items():
            if table not in taking_part:
                tables[table] = known
            elif table in done.names:
                tables[done.names[table]] = _moved(known, batch, is_new=done.names[table] != table)
        tables |= {table: KeptTable(STREAMING) for table in done.born}
        tables |= {
            table: KeptTable.enrolled(batch.end_lsn, oid) for table, oid in done.unknown.items()
        }
        moved = replace(kept, change_count=kept.change_count + done.count, tables=tables)
        if only is None:
            moved = replace(moved, delivered_lsn=batch.end_lsn)
        blocks = (
            self._documents(each) if isinstance(each, list) else (each,) for each in done.content
        )
        with self._or_forget():
            self._deliver(itertools.chain.from_iterable(blocks), moved)
        fault_point("schema.after_commit")
        self._see_tables()
        return done.names

    def commit_apart(
        self, tables: Collection[TableName], batch: Batch, receipts: Sequence[Receipt]
    ) -> None:
        """Deliver the documents of tables that catch up, and their position with them."""
        kept = self._require_apart(tables, batch)
        moved = _counted(kept, receipts).with_tables(
            {table: replace(kept.tables[table], delivered_lsn=batch.end_lsn) for table in tables}
        )
        fault_point("catch_up.before_commit")
        with self._or_forget():
            self._deliver(self._documents(receipts), moved)
        self._see_tables()

    def join(self, tables: Collection[TableName]) -> None:
        """Let tables flow with the others."""
        self._set_tables({table: KeptTable(STREAMING) for table in tables})
        _log.info("caught up: %s", tell_tables(tables))

    def interrupt(self) -> None:
        """Call off the commit that runs, between two blocks of bytes; its position does not move."""
        self._called_off.set()

    @abstractmethod
    def worker(self, batch: Batch, only: Collection[TableName] | None = None) -> Worker:
        """The executor half."""

    @property
    @abstractmethod
    def _step_bytes(self) -> int:
        """How many bytes of copied documents are to be delivered at once."""

    @abstractmethod
    def _deliver(self, documents: Iterable[bytes], kept: KeptPosition) -> None:
        """Deliver documents and record the position that they lead to; may raise OSError."""

    @abstractmethod
    def _record(self, kept: KeptPosition) -> None:
        """Record a position without documents; may raise OSError."""

    @abstractmethod
    def _blocks(self, content: Any) -> Iterable[bytes]:
        """The documents that a receipt's content stands for."""

    def _forget(self) -> None:
        """Know nothing any more: what is stored is looked at again by `open`."""
        self._kept = None

    def _take_up(self, kept: KeptPosition) -> None:
        """Go on from what `open` has found; may raise OSError."""
        self._known_copies = self._copies.read()
        self._kept = kept
        self.change_count = kept.change_count
        self._see_tables()

    def _see_tables(self) -> None:
        """Know how tables stand, by what is recorded and by what a copier says of those that wait."""
        tables = self._require_open().tables
        self.flowing = {name for name, table in tables.items() if table.state == STREAMING}
        self.apart = {
            name: _apart(table, self._known_copies.get(name))
            for name, table in tables.items()
            if table.state != STREAMING
        }

    def _set_tables(self, tables: Mapping[TableName, KeptTable]) -> None:
        kept = self._require_open()
        with self._or_forget():
            self._record(kept.with_tables(tables))
        self._see_tables()

    def _take_requests(self, lsn: Lsn) -> None:
        """Let tables begin again that a person wants copied again."""
        kept = self._require_open()
        for path, tables in self._copies.asked().items():
            again = {table for table in tables if table in kept.tables}
            again -= kept.in_state(REMOVED)
            oids = {table: kept.tables[table].oid for table in again}
            kept = kept.with_tables(
                {table: KeptTable.enrolled(lsn, oid) for table, oid in oids.items()}
            )
            self._record(kept)
            path.unlink()  # what is found twice is begun twice, which only costs time

    def _try_again(self, lsn: Lsn) -> None:
        """Enrol tables anew whose copy failed, and whose time has come."""
        kept = self._require_open()
        due = {
            table: KeptTable.enrolled(lsn, kept.tables[table].oid)
            for table in kept.in_state(PENDING)
            if (copy := self._known_copies.get(table)) is not None
            and copy.enrolment == kept.tables[table].enrolment
            and copy.may_be_tried_again
        }
        if due:
            self._record(kept.with_tables(due))

    def _publish(self, lsn: Lsn) -> bool:
        """Deliver some documents of copies that are whole; whether there may be more."""
        kept = self._require_open()
        step = _Step(self._step_bytes)
        for table in sorted(kept.in_state(PENDING)):
            copy = self._known_copies.get(table)
            if copy is None or copy.state != COPIED:
                continue
            if copy.enrolment != kept.tables[table].enrolment:
                continue
            if step.room <= 0:
                break
            self._add_copy(step, kept.tables[table], copy, lsn)
        if not step.tables:
            return False
        self._deliver(step.read(), kept.with_tables(step.tables))
        for path in step.used_up:
            Path(path).unlink(missing_ok=True)
        return True

    def _add_copy(self, step: _Step, kept: KeptTable, copy: TableCopy, lsn: Lsn) -> None:
        """As much of one table's copy as there is room for."""
        at = kept.published
        if at is None or at.copy_id != copy.copy_id:
            at = Published(copy.copy_id)
        parts = self._copies.parts(copy)
        while at.number < copy.range_count and step.room > 0:
            part = parts.get(at.number)
            if part is None:
                _log.warning("%s is copied again: what was copied of it is gone", copy.table)
                step.tables[copy.table] = KeptTable.enrolled(lsn, kept.oid)
                return
            end = line_end(part.path, at.offset, part.size, step.room)
            if end > at.offset:
                step.spans.append((part.path, at.offset, end))
                step.room -= end - at.offset
            if end == part.size:
                step.used_up.append(part.path)
                at = replace(at, number=at.number + 1, offset=0)
            else:
                at = replace(at, offset=end)
        is_whole = at.number == copy.range_count
        step.tables[copy.table] = (
            KeptTable(CATCHING_UP, copy.lsn, oid=kept.oid)
            if is_whole
            else replace(kept, published=at)
        )

    def _documents(self, receipts: Sequence[Receipt]) -> Iterator[bytes]:
        for receipt in sorted(receipts, key=lambda receipt: receipt.task):
            yield from self._blocks(receipt.content)

    def _wanted(self, batch: Batch, only: Collection[TableName] | None) -> WantedTables:
        """Whose changes of a batch are taken."""
        if only is not None:
            return WantedTables(only=frozenset(only))
        return WantedTables(batch.aside | (batch.tables & set(self.apart)))

    def _require_position(self, batch: Batch) -> KeptPosition:
        """The stored position, which is where the batch begins.

        Raises:
            SinkError: the sink is not open.
            PositionTaken: the position is elsewhere.
        """
        kept = self._require_open()
        if kept.delivered_lsn != batch.after_lsn:
            raise self._taken(f"the position is {kept.delivered_lsn}, wanted {batch.after_lsn}")
        return kept

    def _require_apart(self, tables: Collection[TableName], batch: Batch) -> KeptPosition:
        """The stored position, with tables that catch up and stand where the batch begins.

        Raises:
            PositionTaken: one stands elsewhere.
        """
        kept = self._require_open()
        for table in tables:
            known = kept.tables.get(table)
            if known is None or (known.state, known.delivered_lsn) != (
                CATCHING_UP,
                batch.after_lsn,
            ):
                raise self._taken(f"{table} does not stand at {batch.after_lsn}")
        return kept

    def _taken(self, what: str) -> PositionTaken:
        return PositionTaken(
            what,
            f"sink {self.name}",
            "stop the other penstock that delivers this pipeline, and start again",
        )

    def _require_open(self) -> KeptPosition:
        if self._kept is None:
            raise SinkError("not open", f"sink {self.name}", "nothing, penstock tries again")
        return self._kept

    def _raise_if_called_off(self, end_lsn: Lsn) -> None:
        if self._called_off.is_set():
            raise SinkError(
                f"the batch up to {end_lsn} was called off",
                f"sink {self.name}",
                "nothing; it is delivered when penstock runs again",
            )

    @contextmanager
    def _or_forget(self) -> Iterator[None]:
        """After a failure nothing in memory counts any more, and the error is a SinkError."""
        try:
            yield
        except OSError as error:
            self._forget()
            raise cannot_use(error, self._directory) from None
        except PenstockError:
            self._forget()
            raise


def _counted(kept: KeptPosition, receipts: Sequence[Receipt]) -> KeptPosition:
    count = sum(receipt.change_count for receipt in receipts)
    return replace(kept, change_count=kept.change_count + count)


def _moved(table: KeptTable, batch: Batch, *, is_new: bool) -> KeptTable:
    """How a table stands after a batch in which it may have got another name."""
    if table.state == CATCHING_UP:
        return replace(table, delivered_lsn=batch.end_lsn)
    # What was copied of it so far bears the old name.
    is_begun_again = table.state == PENDING and is_new
    return KeptTable.enrolled(batch.end_lsn, table.oid) if is_begun_again else table


def _apart(table: KeptTable, copy: TableCopy | None) -> ApartTable:
    """What the delivering loop is to know of a table."""
    if table.state != PENDING:
        return ApartTable(table.state, table.delivered_lsn, oid=table.oid)
    state, error = PENDING, ""
    if copy is not None and copy.enrolment == table.enrolment:
        state = FAILED if copy.state == FAILED else COPYING
        error = copy.error
    return ApartTable(state, table.delivered_lsn, error, needs_copy=True, oid=table.oid)
