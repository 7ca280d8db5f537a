"""The driver half of every sink of documents: the life of its tables, and how copies are published.

A table is copied by others (`copying`), into files beside the position. When they are all there,
its documents are delivered from here, step by step, between batches; each step and how far it went are
recorded together. Then the table catches up with the others, and streams with them.

A document that the destination refuses is parked with those that must not overtake it, or its table
stops; the others go on (`refusals`).
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError, PositionTaken, SinkError
from penstock.failpoints import fault_point
from penstock.options import OnRefused
from penstock.sinks.documents.contract import DocumentsRefused
from penstock.sinks.documents.copies import COPIED, Copies
from penstock.sinks.documents.ddl import DdlDocuments
from penstock.sinks.documents.failures import explained
from penstock.sinks.documents.parked import Holds, Parked, Retry, batch_of
from penstock.sinks.documents.parts import Cursor, read_some, remove_parts, value_bytes
from penstock.sinks.documents.position import KeptPosition, KeptTable, PositionFile, Published
from penstock.sinks.documents.refusals import Attempt
from penstock.sinks.documents.tasks import Outcome, SealedSink, SharedOut
from penstock.sinks.documents.worker import DocumentWorker, Prepared
from penstock.sinks.durable import make_directory
from penstock.sinks.tables import (
    CATCHING_UP,
    COPYING,
    FAILED,
    PENDING,
    REMOVED,
    STREAMING,
    DetachedTable,
    WantedTables,
)
from penstock.table import name_tables
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import pyarrow as pa

    from penstock.lsn import Lsn
    from penstock.sinks.ddl_transaction import DdlTransaction, RunJob
    from penstock.sinks.documents.contract import DocumentKind
    from penstock.sinks.documents.copies import TableCopy
    from penstock.sinks.documents.parked import ParkedRequest
    from penstock.sinks.kind import SinkPlace
    from penstock.sinks.sink import Batch, Receipt, StoredPosition
    from penstock.table import TableName

    ReadDocuments = Callable[[], Iterator[pa.RecordBatch]]

_log = logging.getLogger(__name__)

# So many bytes of copied documents are delivered at once.
_MOST_STEP_BYTES = 16 * 1024 * 1024
# Into how many parts documents are shared out where tasks deliver.
_PARTITIONS = 8


@dataclass
class _Step:
    """Documents of copies that are delivered at once, and how tables stand then."""

    room: int  # in bytes; negative when the last document was long
    batches: list[pa.RecordBatch] = field(default_factory=list)
    tables: dict[TableName, KeptTable] = field(default_factory=dict)
    used_up: list[str] = field(default_factory=list)


class DocumentDriver:
    """Delivers to one `DocumentSink`. Implements `penstock.sinks.sink.Sink`.

    `_kept` mirrors the position that is stored; None while the sink is not open, and after a failure,
    so that nothing is done before `open` has seen again what there is.
    """

    def __init__(self, kind: DocumentKind[Any], place: SinkPlace[Any]) -> None:
        self.name = place.name
        self.change_count = 0
        self.streaming: set[TableName] = set()
        self.detached: dict[TableName, DetachedTable] = {}
        self.objects_due = False
        self.has_notes = False
        self._source = place.source_id
        self._sink = kind.sink(place)
        self._space = kind.workspace(place)
        self._position = PositionFile(self._space.position, place.pipeline, place.source_id)
        self._copies = Copies(self._space.copies, self._space.directory_mode)
        self._known_copies: dict[TableName, TableCopy] = {}
        self._kept: KeptPosition | None = None
        self._parked = Parked(self._space.parked)
        self._on_refused: OnRefused = getattr(place.options, "on_refused", OnRefused.STOP)
        self._by_tasks = self._sink.delivered_by == "tasks"
        self._sealed = SealedSink(kind, place)
        self._refused_until: dict[TableName, float] = {}
        self._cancelled = threading.Event()

    @property
    def batch_bytes(self) -> int:
        """How much a batch may hold before latency suffers."""
        return self._sink.batch_bytes

    def open(self) -> StoredPosition | None:
        """Have the sink reach its destination; go on from what is stored."""
        self._forget()
        self._cancelled.clear()
        with self._or_forget():
            make_directory(self._space.directory, self._space.directory_mode)
            text = self._sink.open()
            remove_parts(self._space.directory, self._space.part_prefix)
            if not self._sink.stores_state:
                text = self._position.read_text()
            self._parked.open()
            if text is None:
                return None
            kept = self._position.text.read(text)
            self._known_copies = self._copies.read()
            self._keep(kept, text)
        return kept.stored

    def begin(self, identity: Mapping[str, str], lsn: Lsn) -> None:
        """Store the first position."""
        with self._or_forget():
            self._record(KeptPosition(lsn, dict(identity)))

    def refresh_tables(self, lsn: Lsn) -> None:
        """See what was copied and what was asked for; deliver copies that are whole, for a while."""
        self._require_open()
        with self._or_forget():
            self._take_requests(lsn)
            self._retry_parked()
            self._known_copies = self._copies.read()
            self._try_again(lsn)
            deadline = time.monotonic() + timing().publish_seconds
            while self._publish(lsn) and time.monotonic() < deadline:
                self._raise_if_cancelled(lsn)
        self._see_tables()

    def schedule_copy(
        self, tables: Mapping[TableName, int], lsn: Lsn, *, is_new: bool = True
    ) -> None:
        """Note that tables wait for a copy. What is known of an earlier life is forgotten."""
        del is_new  # all that is known is the position
        self._set_tables({table: KeptTable.scheduled(lsn, oid) for table, oid in tables.items()})

    def rename(self, table: TableName, name: TableName, lsn: Lsn) -> None:
        """Let a table wait for a copy under another name."""
        kept = self._require_open()
        others = {each: known for each, known in kept.tables.items() if each != table}
        others[name] = KeptTable.scheduled(lsn, kept.tables[table].oid)
        with self._or_forget():
            self._record(replace(kept, tables=others))
        self._see_tables()

    def remove(self, tables: Collection[TableName]) -> None:
        """Note that tables are followed no more."""
        self._set_tables({table: KeptTable(REMOVED) for table in tables})

    def note(self, table: TableName, text: str) -> None:
        """Nothing: documents say what has happened, not what there is."""
        del table, text

    def worker(
        self, batch: Batch, only: Collection[TableName] | None = None
    ) -> DocumentWorker | SharedOut:
        """The executor half."""
        wanted = (
            WantedTables(only=frozenset(only))
            if only is not None
            else WantedTables(batch.detached | (batch.tables & set(self.detached)))
        )
        if self._by_tasks:
            holds = self._parked.holds
            return SharedOut(
                self._sealed,
                self._source,
                _PARTITIONS,
                self._on_refused,
                holds,
                wanted,
                self._sink.shared_by,
            )
        space = self._space
        return DocumentWorker(str(space.directory), space.part_prefix, self._source, wanted)

    def commit(self, batch: Batch, receipts: Sequence[Receipt]) -> None:
        """Deliver the documents in the order of their tasks, and the position with them."""
        kept = self._require_position(batch)
        fault_point("deliver.after_job")
        moved = replace(_counted(kept, receipts), delivered_lsn=batch.end_lsn)
        with self._or_forget():
            self._deliver_receipts(receipts, moved, batch.after_lsn)
        fault_point("deliver.after_commit")
        if self._require_open().tables is not kept.tables:  # one has stopped
            self._see_tables()

    def commit_shapes(
        self,
        batch: Batch,
        ddl_transaction: DdlTransaction,
        run_job: RunJob,
        only: Collection[TableName] | None = None,
    ) -> dict[TableName, TableName]:
        """Deliver rows and documents of changes in turn; tables bear their new names from then on."""
        kept = (
            self._require_position(batch) if only is None else self._require_detached(only, batch)
        )
        taking_part = set(only or ()) or {
            table for table, known in kept.tables.items() if known.state in (STREAMING, PENDING)
        }
        done = DdlDocuments(batch, taking_part, only is not None, self._source)
        stopped: dict[TableName, str] = {}
        with self._or_forget():
            if self._by_tasks:
                done.on_own = lambda own: stopped.update(self._deliver_between(own))
            done.run(ddl_transaction, self.worker, run_job)
        tables: dict[TableName, KeptTable] = {}
        for table, known in kept.tables.items():
            if table not in taking_part:
                tables[table] = known
            elif table in done.names:
                tables[done.names[table]] = _moved(known, batch, is_new=done.names[table] != table)
        tables |= {table: KeptTable(STREAMING) for table in done.created_in_stream}
        tables |= {
            table: KeptTable.scheduled(batch.end_lsn, oid) for table, oid in done.unknown.items()
        }
        moved = replace(kept, change_count=kept.change_count + done.count, tables=tables)
        if only is None:
            moved = replace(moved, delivered_lsn=batch.end_lsn)

        former_names = {now: old for old, now in done.names.items()}
        receipts = [each for part in done.content if isinstance(part, list) for each in part]
        with self._or_forget():
            if self._by_tasks:
                self._settle(receipts, moved, batch.after_lsn, former_names, stopped)
            else:
                self._deliver(_content_reader(done.content), moved, batch.after_lsn, former_names)
                _discard(receipts)
        fault_point("schema.after_commit")
        self._see_tables()
        return done.names

    def commit_detached(
        self, tables: Collection[TableName], batch: Batch, receipts: Sequence[Receipt]
    ) -> None:
        """Deliver the documents of tables that catch up, and their position with them."""
        kept = self._require_detached(tables, batch)
        moved = _counted(kept, receipts).with_tables(
            {
                table: replace(
                    kept.tables[table], state=CATCHING_UP, delivered_lsn=batch.end_lsn, error=""
                )
                for table in tables
            }
        )
        fault_point("catch_up.before_commit")
        with self._or_forget():
            self._deliver_receipts(receipts, moved, batch.after_lsn)
        self._see_tables()

    def attach(self, tables: Collection[TableName]) -> None:
        """Let tables stream with the others."""
        kept = self._require_open()
        # One whose last documents were refused stays where it is.
        ready = {table for table in tables if kept.tables[table].state == CATCHING_UP}
        if ready:
            self._set_tables({table: KeptTable(STREAMING) for table in ready})
            _log.info("caught up: %s", name_tables(ready))

    def idle(self) -> None:
        """Let the sink do what is due without documents."""
        if self._kept is not None:
            with self._or_forget():
                self._sink.idle()

    def interrupt(self) -> None:
        """Cancel the commit that runs, between two batches of documents; its position does not move."""
        self._cancelled.set()
        self._sink.interrupt()

    def close(self) -> None:
        """Let go of everything."""
        try:
            self._sink.close()
        finally:
            self._forget()

    def _deliver_receipts(
        self, receipts: Sequence[Receipt], kept: KeptPosition, after_lsn: Lsn
    ) -> None:
        if self._by_tasks:
            self._settle(receipts, kept, after_lsn)
        else:
            self._deliver(_reader(receipts), kept, after_lsn)
            _discard(receipts)

    # --- positions -----------------------------------------------------------------------------

    def _deliver(
        self,
        read: ReadDocuments,
        kept: KeptPosition,
        after_lsn: Lsn,
        former_names: Mapping[TableName, TableName] | None = None,
    ) -> None:
        """Deliver documents and record the position that they lead to.

        Tables whose documents are refused stop at `after_lsn`, under the names that they had there.
        """
        attempt = self._attempt(read)
        while True:
            moved = self._stopped(kept, attempt.stopped, after_lsn, former_names or {})
            # Before the position can move past them.
            self._parked.append(attempt.caught(), attempt.reasons)
            text = self._position.text.write(moved)
            fault_point("documents.before_deliver")
            try:
                self._sink.deliver(
                    self._while_wanted(attempt.documents(), moved.delivered_lsn), text
                )
            except DocumentsRefused as refused:
                attempt.refuse(refused.reasons)
                continue
            break
        fault_point("documents.after_deliver")
        self._keep(moved, text, is_news=True)

    def _settle(
        self,
        receipts: Sequence[Receipt],
        kept: KeptPosition,
        after_lsn: Lsn,
        former_names: Mapping[TableName, TableName] | None = None,
        stopped: Mapping[TableName, str] | None = None,
    ) -> None:
        """Record the position after tasks have delivered; keep what they could not deliver."""
        all_stopped = dict(stopped or {})
        for receipt in receipts:
            outcome: Outcome = receipt.content
            all_stopped |= outcome.stopped
            self._parked.append(outcome.caught, outcome.reasons)
        self._record(self._stopped(kept, all_stopped, after_lsn, former_names or {}))

    def _deliver_between(self, batches: Sequence[pa.RecordBatch]) -> dict[TableName, str]:
        """Deliver documents of changes of shape between those that tasks deliver; tables that stop."""
        attempt = self._attempt(lambda: iter(batches))
        while True:
            self._parked.append(attempt.caught(), attempt.reasons)
            try:
                self._sink.deliver(attempt.documents(), None)
            except DocumentsRefused as refused:
                attempt.refuse(refused.reasons)
                continue
            return attempt.stopped

    def _attempt(self, read: ReadDocuments) -> Attempt:
        return Attempt(read, self._parked.holds, self._on_refused, f"sink {self.name}")

    def _stopped(
        self,
        kept: KeptPosition,
        stopped: Mapping[TableName, str],
        after_lsn: Lsn,
        former_names: Mapping[TableName, TableName],
    ) -> KeptPosition:
        """The position, but for tables that stay where they were, with what was refused."""
        if not stopped:
            return kept
        tables = dict(kept.tables)
        before = self._require_open().tables
        for table, error in stopped.items():
            name = former_names.get(table, table)
            tables.pop(table, None)
            was = before.get(name, KeptTable(STREAMING))
            if was.state == PENDING:  # while its copy was delivered
                tables[name] = replace(was, error=error)
                self._refused_until[name] = time.monotonic() + timing().copy_refused_seconds
            else:
                lsn = was.delivered_lsn if was.state in (CATCHING_UP, FAILED) else after_lsn
                tables[name] = KeptTable(FAILED, lsn, oid=was.oid, error=error)
            if was.error != error:
                _log.error("%s stops: %s", name, error)
        return replace(kept, tables=tables)

    def _record(self, kept: KeptPosition) -> None:
        """Store a position without documents."""
        text = self._position.text.write(kept)
        self._sink.deliver(iter(()), text)
        self._keep(kept, text, is_news=True)

    def _keep(self, kept: KeptPosition, text: str, *, is_news: bool = False) -> None:
        """Know that a position is stored; write it to the file that others read, where it is needed.

        Where the destination stores it the file only says how tables stand.
        """
        before = self._kept
        is_due = (
            before is None or before.tables is not kept.tables
            if self._sink.stores_state
            else is_news
        )
        if is_due and not self._space.sink_writes_position:
            self._position.write(text)
        self._kept = kept
        self.change_count = kept.change_count
        if before is None:
            self._see_tables()

    def _forget(self) -> None:
        """Know nothing any more: what is stored is read again by `open`."""
        self._kept = None

    def _see_tables(self) -> None:
        """Know how tables stand, by what is recorded and by what a copier says of those that wait."""
        tables = self._require_open().tables
        self.streaming = {name for name, table in tables.items() if table.state == STREAMING}
        self.detached = {
            name: _detached(table, self._known_copies.get(name))
            for name, table in tables.items()
            if table.state != STREAMING
        }

    def _set_tables(self, tables: Mapping[TableName, KeptTable]) -> None:
        kept = self._require_open()
        with self._or_forget():
            self._record(kept.with_tables(tables))
        self._see_tables()

    # --- what people ask for -------------------------------------------------------------------

    def _take_requests(self, lsn: Lsn) -> None:
        """Let tables begin again that a person wants copied again."""
        kept = self._require_open()
        for path, tables in self._copies.asked().items():
            again = {table for table in tables if table in kept.tables}
            again -= kept.in_state(REMOVED)
            oids = {table: kept.tables[table].oid for table in again}
            kept = kept.with_tables(
                {table: KeptTable.scheduled(lsn, oid) for table, oid in oids.items()}
            )
            self._record(kept)
            path.unlink()  # what is found twice is begun twice, which only costs time

    def _retry_parked(self) -> None:
        """Deliver parked documents that a person wants tried again, or forget them."""
        for asked in self._parked.asked():
            if asked.action == "drop":
                _log.warning("%d parked documents dropped", len(self._parked.drop(asked)))
            else:
                self._try_parked(asked)
            self._parked.answered(asked)

    def _try_parked(self, asked: ParkedRequest) -> None:
        """Deliver parked documents in their order; what is refused again stays, with all behind it."""
        text = self._position.text.write(self._require_open())
        everything = self._parked.read()
        # One that waits behind a document which is not meant cannot go before it.
        holds, meant = Holds(), []
        for each in everything:
            row = asdict(each)
            if holds.waits(row) or not asked.means(each):
                holds.add(row)
            else:
                meant.append(each)
        retry = Retry(meant)
        while retry.left:
            try:
                self._sink.deliver(iter((batch_of(retry.left),)), text)
            except DocumentsRefused as refused:
                retry.refuse(refused.reasons)
                continue
            break
        gone = {each.id for each in retry.left}
        stays = [retry.reasoned(each) for each in everything if each.id not in gone]
        self._parked.replace(stays)
        _log.info("%d parked documents delivered, %d stay", len(gone), len(stays))

    # --- copies --------------------------------------------------------------------------------

    def _try_again(self, lsn: Lsn) -> None:
        """Schedule tables anew whose copy failed, and whose time has come."""
        kept = self._require_open()
        now = time.monotonic()
        due = {
            table: KeptTable.scheduled(lsn, kept.tables[table].oid)
            for table in kept.in_state(PENDING)
            if self._is_refused(table, now) is False
            or (
                (copy := self._known_copies.get(table)) is not None
                and copy.enrolment == kept.tables[table].enrolment
                and copy.may_be_tried_again
            )
        }
        if due:
            self._record(kept.with_tables(due))

    def _is_refused(self, table: TableName, now: float) -> bool | None:
        """Whether a copy whose documents were refused still waits; None where none were.

        It is made anew then: who waits for a copy has no log kept for it.
        """
        if not self._require_open().tables[table].error:
            return None
        return now < self._refused_until.get(table, 0.0)

    def _publish(self, lsn: Lsn) -> bool:
        """Deliver some documents of copies that are whole; whether there may be more."""
        kept = self._require_open()
        step = _Step(min(self._sink.step_bytes, _MOST_STEP_BYTES))
        for table in sorted(kept.in_state(PENDING)):
            copy = self._known_copies.get(table)
            if copy is None or copy.state != COPIED or kept.tables[table].error:
                continue
            if copy.enrolment != kept.tables[table].enrolment:
                continue
            if step.room <= 0:
                break
            self._add_copy(step, kept.tables[table], copy, lsn)
        if not step.tables:
            return False
        self._deliver(lambda: iter(step.batches), kept.with_tables(step.tables), lsn)
        stays = {table for table in step.tables if self._require_open().tables[table].error}
        if not stays:
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
                step.tables[copy.table] = KeptTable.scheduled(lsn, kept.oid)
                return
            batches, cursor = read_some(part.path, part.size, Cursor(at.offset, at.row), step.room)
            step.batches += batches
            step.room -= sum(map(value_bytes, batches))
            if cursor.offset == part.size:
                step.used_up.append(part.path)
                at = replace(at, number=at.number + 1, offset=0, row=0)
            else:
                at = replace(at, offset=cursor.offset, row=cursor.row)
        is_whole = at.number == copy.range_count
        step.tables[copy.table] = (
            KeptTable(CATCHING_UP, copy.lsn, oid=kept.oid)
            if is_whole
            else replace(kept, published=at, error="")
        )

    # --- what must hold ------------------------------------------------------------------------

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

    def _require_detached(self, tables: Collection[TableName], batch: Batch) -> KeptPosition:
        """The stored position, with tables that catch up and stand where the batch begins.

        Raises:
            PositionTaken: one stands elsewhere.
        """
        kept = self._require_open()
        for table in tables:
            known = kept.tables.get(table)
            can_catch_up = known is not None and known.state in (CATCHING_UP, FAILED)
            if known is None or not can_catch_up or known.delivered_lsn != batch.after_lsn:
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

    def _while_wanted(
        self, documents: Iterator[pa.RecordBatch], end_lsn: Lsn
    ) -> Iterator[pa.RecordBatch]:
        for batch in documents:
            self._raise_if_cancelled(end_lsn)
            yield batch
            fault_point("documents.inside_deliver")

    def _raise_if_cancelled(self, end_lsn: Lsn) -> None:
        if self._cancelled.is_set():
            raise SinkError(
                f"the batch up to {end_lsn} was cancelled",
                f"sink {self.name}",
                "nothing; it is delivered when penstock runs again",
            )

    @contextmanager
    def _or_forget(self) -> Iterator[None]:
        """After a failure nothing in memory counts any more, and the error is a PenstockError."""
        try:
            yield
        except PenstockError:
            self._forget()
            raise
        except Exception as error:
            self._forget()
            if self._cancelled.is_set():
                self._raise_if_cancelled_by(error)
            raise explained(error, self._sink, self._space.directory, self.name) from error

    def _raise_if_cancelled_by(self, error: Exception) -> None:
        """An exception of an interrupted sink is the interruption, whatever it says."""
        _log.debug("cancelled", exc_info=error)
        raise SinkError(
            "a batch was cancelled",
            f"sink {self.name}",
            "nothing; it is delivered when penstock runs again",
        ) from None


def _reader(receipts: Sequence[Receipt]) -> ReadDocuments:
    """Reads the documents of receipts, in the order of their tasks; may be called again."""

    def read() -> Iterator[pa.RecordBatch]:
        for receipt in sorted(receipts, key=lambda receipt: receipt.task):
            prepared: Prepared | None = receipt.content
            if prepared is not None:
                yield from prepared.read()

    return read


def _content_reader(content: Sequence[list[Receipt] | pa.RecordBatch]) -> ReadDocuments:
    """Reads documents of rows, and between them those of changes of shape."""

    def read() -> Iterator[pa.RecordBatch]:
        for each in content:
            yield from _reader(each)() if isinstance(each, list) else (each,)

    return read


def _discard(receipts: Sequence[Receipt]) -> None:
    for receipt in receipts:
        if receipt.content is not None:
            receipt.content.discard()


def _counted(kept: KeptPosition, receipts: Sequence[Receipt]) -> KeptPosition:
    count = sum(receipt.change_count for receipt in receipts)
    return replace(kept, change_count=kept.change_count + count)


def _moved(table: KeptTable, batch: Batch, *, is_new: bool) -> KeptTable:
    """How a table stands after a batch in which it may have got another name."""
    if table.state in (CATCHING_UP, FAILED):
        return replace(table, state=CATCHING_UP, delivered_lsn=batch.end_lsn, error="")
    # What was copied of it so far bears the old name.
    is_begun_again = table.state == PENDING and is_new
    return KeptTable.scheduled(batch.end_lsn, table.oid) if is_begun_again else table


def _detached(table: KeptTable, copy: TableCopy | None) -> DetachedTable:
    """What the delivering loop is to know of a table."""
    if table.state != PENDING:
        return DetachedTable(table.state, table.delivered_lsn, table.error, oid=table.oid)
    state, error = PENDING, ""
    if copy is not None and copy.enrolment == table.enrolment:
        state = FAILED if copy.state == FAILED or table.error else COPYING
        error = table.error or copy.error
    return DetachedTable(state, table.delivered_lsn, error, needs_copy=True, oid=table.oid)
