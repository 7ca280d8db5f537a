"""The driver half of every sink of documents: the life of its tables, and how copies are published.

A table is copied by others (`copying`), into files beside the position. When they are all there,
its documents are delivered from here, step by step, between batches; each step and how far it went are
recorded together. Then the table catches up with the others, and streams with them.

A document that the destination refuses is parked with those that must not overtake it, or its table
stops; the others go on (`refusals`).
"""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError, SchemaChangeRefused, SinkError
from penstock.failpoints import fault_point
from penstock.options import OnRefused
from penstock.schema.versions import NO_TABLES
from penstock.sinks.ddl_transaction import (
    changed_in,
    changed_schemas,
    created_in,
    entangled_in,
    named_in,
    names_through,
    refused_in,
    renamed_together,
)
from penstock.sinks.describe import WholeSchema
from penstock.sinks.documents.contract import DocumentsRefused
from penstock.sinks.documents.copies import Copies
from penstock.sinks.documents.ddl import DdlDocuments
from penstock.sinks.documents.failures import let_go, ours
from penstock.sinks.documents.keeper import PositionKeeper
from penstock.sinks.documents.parked import Holds, Parked, Retry, batches_of
from penstock.sinks.documents.parts import Cursor, read_some, remove_parts, value_bytes
from penstock.sinks.documents.position import KeptPosition, KeptTable, PositionFile, Published
from penstock.sinks.documents.refusals import Attempt
from penstock.sinks.documents.routed import sink_of
from penstock.sinks.documents.standing import KeptTableStore
from penstock.sinks.documents.tasks import Outcome, SealedSink, SharedOut
from penstock.sinks.documents.worker import DocumentWorker, Prepared
from penstock.sinks.durable import make_directory
from penstock.sinks.tables import SinkTables, TableState, WantedTables
from penstock.table import TableName
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from penstock.encryption import Keyring
    from penstock.lsn import Lsn
    from penstock.sinks.ddl_transaction import DdlTransaction, RunJob
    from penstock.sinks.describe import Describe
    from penstock.sinks.documents.contract import DocumentKind
    from penstock.sinks.documents.copies import TableCopy
    from penstock.sinks.documents.parked import ParkedRequest
    from penstock.sinks.kind import SinkPlace
    from penstock.sinks.sink import Batch, Receipt, StoredPosition

    ReadDocuments = Callable[[], Iterator[pa.RecordBatch]]

_log = logging.getLogger(__name__)

# So many bytes of copied documents are delivered at once.
_MOST_STEP_BYTES = 16 * 1024 * 1024


@dataclass
class _Step:
    """Documents of copies that are delivered at once, and how tables stand then."""

    room: int  # in bytes; negative when the last document was long
    batches: list[pa.RecordBatch] = field(default_factory=list)
    tables: dict[TableName, KeptTable] = field(default_factory=dict)
    used_up: list[str] = field(default_factory=list)
    begun: dict[TableName, str] = field(default_factory=dict)  # copies that begin with it
    whole: dict[TableName, str] = field(default_factory=dict)  # those that end with it


@dataclass(frozen=True)
class _Altering:
    """What a transaction that changes tables means to those that are refused in it, by any of their names there."""

    # Tables stop by all names that they have in it.
    together: Mapping[TableName, Collection[TableName]] = field(default_factory=dict)
    # Rows from before a change and from after it are not parked behind one another: their tables stop.
    unparked: Collection[TableName] = ()
    # Names that several tables have in it: none of those can stop by itself.
    entangled: Collection[TableName] = ()
    # What tables were called before it, and are called after it; None of those that are gone.
    names: Mapping[TableName, TableName | None] = field(default_factory=dict)
    # Those that take part in it, where not all do.
    only: Collection[TableName] | None = None
    # Tables that came with it; None where any table that is not known does.
    came: Collection[TableName] | None = None

    @classmethod
    def of_rows(
        cls,
        ddl_transaction: DdlTransaction,
        done: DdlDocuments,
        kept: KeptPosition,
        only: Collection[TableName] | None,
        *,
        copies_first: bool,
    ) -> _Altering:
        """Of a transaction that has been gone through, for a sink that takes rows."""
        return cls(
            renamed_together(ddl_transaction),
            changed_in(ddl_transaction),
            # Names of tables that stand elsewhere mean nothing to those that catch up.
            entangled_in(
                ddl_transaction,
                only or kept.tables.keys() - kept.in_state(TableState.REMOVED),
                knows_all=copies_first,
            ),
            {**names_through(ddl_transaction), **done.names},
            only,
            created_in(ddl_transaction) if copies_first else None,
        )

    def may_bring(self, table: TableName) -> bool:
        """Whether a table that nobody knew may have come with it."""
        return self.came is None or table in self.came

    def went_by(self, stopped: Mapping[TableName, str]) -> dict[TableName, str]:
        """Tables that stop, by what they were called before it.

        Raises:
            SchemaChangeRefused: the names do not say which.
        """
        for table in sorted(stopped.keys() & set(self.entangled)):
            raise SchemaChangeRefused(
                "a transaction gives a name from one table to another, or another name to a table that came with it;"
                f" one of them cannot go on, so that all tables wait before it: {stopped[table]}",
                str(table),
                "fix that, and start penstock again where it has ended",
            )
        former = {now: before for before, now in self.names.items()}
        found: dict[TableName, str] = {}
        for table, error in stopped.items():
            name = table
            if table in former and not (table in self.names and table in self.together):
                name = former[table]
            elif table in self.together and table not in self.names:
                continue  # a name that was only passed through
            if self.only is None or name in self.only:
                found[name] = error
        return found


class DocumentDriver:
    """Delivers to one `DocumentSink`. Implements `penstock.sinks.sink.Sink`."""

    def __init__(
        self, kind: DocumentKind[Any], place: SinkPlace[Any], describe: Describe | None = None
    ) -> None:
        self.name = place.name
        self._kind, self._place = kind, place
        # Documents of rows say by themselves which shape a table has.
        self._describe = describe
        self._lacks_schemas = False
        self._source = place.source_id
        self._routes = place.routes
        self._keyring = place.keyring
        self._format = kind.format(place)
        self._sink = sink_of(kind, place)
        self._space = kind.workspace(place)
        self._position = PositionFile(self._space.position, place.pipeline, place.source_id)
        self._keeper = PositionKeeper(self.name, self._sink, self._space, self._position)
        self._copies = Copies(self._space.copies, self._space.directory_mode)
        self._store = KeptTableStore(self._keeper, self._copies)
        self.tables = SinkTables(self._store)
        self._keeper.on_opened = self._see_tables
        self._parked = Parked(self._space.parked, place.keyring)
        self._on_refused: OnRefused = getattr(place.options, "on_refused", OnRefused.STOP)
        self._by_tasks = self._sink.delivered_by == "tasks"
        # Whether it is given rows as they are now, all of them here and in order.
        self._takes_rows = self._sink.shows_rows and not self._by_tasks
        self._sealed = SealedSink(kind, place)

    @property
    def change_count(self) -> int:
        """Delivered since the beginning."""
        return self._keeper.change_count

    @property
    def batch_bytes(self) -> int:
        """How much a batch may hold before latency suffers."""
        return self._sink.batch_bytes

    def open(self) -> StoredPosition | None:
        """Have the sink reach its destination; go on from what is stored."""
        self._keeper.forget()
        self._keeper.allow()
        with self._keeper.or_forget():
            make_directory(self._space.directory, self._space.directory_mode)
            stored = self._sink.open()
            self._lacks_schemas = self._sink.keeps_schemas
            remove_parts(self._space.directory, self._space.part_prefix)
            self._parked.open()
            kept = self._keeper.open(stored)
            if kept is not None:
                self._require_own_places(kept)
        return None if kept is None else kept.stored

    def _require_own_places(self, kept: KeptPosition) -> None:
        """See that no tables clash that are there already: `modifiers:` may have been edited since.

        Raises:
            PenstockError: some do.
        """
        without_rows = (TableState.PENDING, TableState.REMOVED)
        own = [name for name, table in kept.tables.items() if table.state not in without_rows]
        for error in self._kind.clashes(self._place, own).values():
            raise error

    def begin(self, identity: Mapping[str, str], lsn: Lsn) -> None:
        """Store the first position."""
        with self._keeper.or_forget():
            self._keeper.record(KeptPosition(lsn, dict(identity)))

    def refresh_tables(self, lsn: Lsn) -> None:
        """See what was copied and what was asked for; deliver copies that are whole, for a while."""
        with self._keeper.or_forget():
            self._begin_schemas(lsn)
            self._retry_parked()
        self.tables.refresh(lsn)
        with self._keeper.or_forget():
            deadline = time.monotonic() + timing().publish_seconds
            while self._publish(lsn) and time.monotonic() < deadline:
                self._keeper.raise_if_cancelled(lsn)
        self.tables.read()

    def _begin_schemas(self, lsn: Lsn) -> None:
        """Have the sink keep the schemas as they are at the start, once their shapes are known."""
        if self._lacks_schemas and self._describe is not None:
            schemas = self._describe.schemas(lsn, self._keeper.stored.tables)
            if schemas:
                self._sink.keep_schemas(list(schemas.values()), lsn)
                self._lacks_schemas = False

    def _keep_schemas(
        self, versions: Mapping[str, int | None], lsn: Lsn, known: Collection[TableName]
    ) -> None:
        """Have the sink keep schemas that a transaction has changed, as it left them."""
        if not self._sink.keeps_schemas or self._describe is None or not versions:
            return
        found = self._describe.schemas(lsn, known, versions)
        empty = {name: WholeSchema(name, NO_TABLES, number) for name, number in versions.items()}
        self._sink.keep_schemas([found.get(name, empty[name]) for name in sorted(versions)], lsn)

    def _see_tables(self) -> None:
        self._store.read_copies()
        self.tables.read()

    def worker(
        self, batch: Batch, only: Collection[TableName] | None = None
    ) -> DocumentWorker | SharedOut:
        """The executor half."""
        wanted = (
            WantedTables(only=frozenset(only))
            if only is not None
            else WantedTables(batch.detached | (batch.tables & set(self.tables.detached)))
        )
        if self._by_tasks:
            holds = self._parked.holds
            return SharedOut(
                self._sealed,
                self._source,
                self._on_refused,
                holds,
                wanted,
                self._shared_by,
                self._format,
                self._database,
            )
        space = self._space
        return DocumentWorker(
            str(space.directory),
            space.part_prefix,
            self._source,
            wanted,
            self._keyring,
            self._format,
            self._database,
        )

    @property
    def _shared_by(self) -> str:
        """What stays in one task. Tasks of a batch do not know what the others of them park: where that matters, one has
        all of a table."""
        shared_by = self._sink.shared_by
        is_apart = self._on_refused is OnRefused.PARK and not self._sink.parks_by_key
        return "table" if shared_by == "key" and is_apart else shared_by

    def _reader(self, receipts: Sequence[Receipt]) -> ReadDocuments:
        return _reader(receipts, self._keyring, self._format.schema)

    @property
    def _database(self) -> str:
        return self._keeper.stored.identity.get("database", "")

    def commit(self, batch: Batch, receipts: Sequence[Receipt]) -> None:
        """Deliver the documents in the order of their tasks, and the position with them."""
        kept = self._keeper.require(batch)
        fault_point("deliver.after_job")
        moved = replace(kept.with_count(_count(receipts)), delivered_lsn=batch.end_lsn)
        with self._keeper.or_forget():
            self._deliver_receipts(receipts, moved, batch.after_lsn)
        fault_point("deliver.after_commit")
        if self._keeper.stored.tables is not kept.tables:  # one has stopped
            self.tables.read()

    def commit_shapes(
        self,
        batch: Batch,
        ddl_transaction: DdlTransaction,
        run_job: RunJob,
        only: Collection[TableName] | None = None,
    ) -> dict[TableName, TableName]:
        """Deliver rows and documents of changes in turn; tables bear their new names from then on."""
        kept = self._keeper.require(batch, only)
        taking_part = set(only or ()) or {
            *kept.in_state(TableState.STREAMING),
            *kept.in_state(TableState.PENDING),
        }
        done = DdlDocuments(batch, taking_part, only is not None, self._source, self._format)
        stopped: dict[TableName, str] = {}
        with self._keeper.or_forget():
            self._listen(done, stopped)
            if self._takes_rows and only is None:
                done.described = kept.in_state(TableState.PENDING)
            done.run(ddl_transaction, self.worker, run_job)
            moved = _after_ddl(kept, done, batch.end_lsn)
            if self._sink.shows_rows:
                moved = _with_copies(moved, done, batch.end_lsn)
            unfit = {
                done.names.get(table, table): str(error)
                for table, error in refused_in(ddl_transaction).items()
                if table in taking_part
            }
            altering = _Altering(names=done.names)
            if only is None:
                moved = replace(moved, delivered_lsn=batch.end_lsn)
            if self._takes_rows:
                unfit |= self._settle_parked(kept, done, ddl_transaction, only)
                altering = _Altering.of_rows(
                    ddl_transaction, done, kept, only, copies_first=batch.copies_first
                )
            if only is None:  # else those that went before have kept them already
                known = {done.names.get(table, table) for table in kept.tables}
                self._keep_schemas(changed_schemas(ddl_transaction), batch.end_lsn, known)
            self._deliver_shapes(done, moved, batch.after_lsn, stopped, unfit, altering)
        fault_point("schema.after_commit")
        self.tables.read()
        return done.names

    def _listen(self, done: DdlDocuments, stopped: dict[TableName, str]) -> None:
        """Have the sink and what is parked hear of a transaction as it goes; `stopped` gets tables that refuse it."""
        if self._by_tasks:
            done.on_rows = self._take_outcomes
            done.on_own = lambda own: stopped.update(self._deliver_between(own))
            done.has_followed = self._sink.has_followed
            if self._sink.shows_rows:
                done.on_renamed = self._parked.rename
        if self._sink.shows_rows:
            done.keeps_rows = self._sink.keeps_rows

    def _settle_parked(
        self,
        kept: KeptPosition,
        done: DdlDocuments,
        ddl_transaction: DdlTransaction,
        only: Collection[TableName] | None,
    ) -> dict[TableName, str]:
        """Tables that cannot change, since something of them is parked; a copy that is to come has it all.

        Raises:
            SinkError: a table gets the name of one that has yet to come so far.
        """
        if only is None:
            self._require_free_names(kept, done, ddl_transaction)
        changed = changed_in(ddl_transaction)
        pending = kept.in_state(TableState.PENDING)
        concerned = changed - (kept.tables.keys() - done.taking_part) - pending
        if only is not None:
            together = renamed_together(ddl_transaction)
            concerned &= done.taking_part.union(*(together.get(each, ()) for each in only))
        stopped = self._parked_in(concerned)
        # Their copies have those rows; what is parked would keep the sink from being told of the change.
        for table in sorted(pending & done.taking_part & changed):
            self._drop_parked(table)
        return stopped

    def _require_free_names(
        self, kept: KeptPosition, done: DdlDocuments, ddl_transaction: DdlTransaction
    ) -> None:
        """See that no table gets a name by which another one is known that has yet to come so far.

        Nor do those get one that are both behind: they catch up one by one, each by the name that it has there.

        Raises:
            SinkError: one does. That passes once the other one has caught up.
        """
        taken = named_in(ddl_transaction) | done.unknown.keys()
        apart = kept.tables.keys() - done.taking_part
        held = {table for table in apart if kept.tables[table].can_catch_up}
        for table in sorted(taken & held):
            raise SinkError(
                "a transaction gives its name to another table, and it has yet to come so far: "
                f"{kept.tables[table].error or 'it catches up'}",
                str(table),
                "fix what stops the table, if something does; penstock then goes on by itself",
            )

    def _parked_in(self, tables: Collection[TableName]) -> dict[TableName, str]:
        """Those of which something is parked, of tables that a transaction changes: they stop until that is delivered or dropped.

        Rows that are parked have the names and columns from before it.
        """
        return {
            table: str(
                SchemaChangeRefused(
                    "rows of it are parked, and a transaction changes the table",
                    str(table),
                    "penstock parked PIPELINE.yml retry, or drop; the table then goes on by itself",
                )
            )
            for table in sorted(tables)
            if self._parked.holds.concerns((table,))
        }

    def commit_detached(
        self, tables: Collection[TableName], batch: Batch, receipts: Sequence[Receipt]
    ) -> None:
        """Deliver the documents of tables that catch up, and their position with them."""
        kept = self._keeper.require(batch, tables)
        moved = kept.with_count(_count(receipts)).with_tables(
            {table: kept.tables[table].caught_up_to(batch.end_lsn) for table in tables}
        )
        fault_point("catch_up.before_commit")
        with self._keeper.or_forget():
            self._deliver_receipts(receipts, moved, batch.after_lsn)
        self.tables.read()

    def idle(self) -> None:
        """Let the sink do what is due without documents."""
        if self._keeper.is_open:
            with self._keeper.or_forget():
                self._sink.idle()

    def pause(self) -> None:
        """See HandingOn."""
        with self._ours():
            self._sink.pause()

    def resume(self) -> None:
        """See HandingOn."""
        with self._ours():
            self._sink.resume()

    def has_handed_on(self) -> bool:
        """See HandingOn."""
        with self._ours():
            return self._sink.has_handed_on()

    def take_retries(self) -> int:
        """See HandingOn."""
        with self._ours():
            return self._sink.take_retries()

    def _ours(self) -> AbstractContextManager[None]:
        return ours(self._sink, self._space.directory, self.name)

    def interrupt(self) -> None:
        """Cancel the commit that runs, between two batches of documents; its position does not move."""
        self._keeper.cancel()
        try:
            with self._ours():
                self._sink.interrupt()
        except PenstockError as error:  # who stops has others to stop, too
            _log.warning("sink %s is not interrupted: %s", self.name, str(error).splitlines()[0])

    def close(self) -> None:
        """Let go of everything."""
        try:
            let_go(self._sink, self._space.directory, self.name)
        finally:
            self._keeper.forget()

    def _deliver_receipts(
        self, receipts: Sequence[Receipt], kept: KeptPosition, after_lsn: Lsn
    ) -> None:
        if self._by_tasks:
            self._settle(receipts, kept, after_lsn)
        else:
            read = self._reader(receipts)
            self._deliver(read, kept, after_lsn, unfit=_unfit(receipts))
            _discard(receipts)

    def _deliver_shapes(
        self,
        done: DdlDocuments,
        kept: KeptPosition,
        after_lsn: Lsn,
        stopped: Mapping[TableName, str],
        unfit: Mapping[TableName, str],
        altering: _Altering,
    ) -> None:
        receipts = [each for part in done.content if isinstance(part, list) for each in part]
        if self._by_tasks:
            self._settle(receipts, kept, after_lsn, altering, {**stopped, **unfit})
        else:
            all_unfit = _unfit(receipts) | dict(unfit)
            read = _content_reader(done.content, self._reader)
            self._deliver(read, kept, after_lsn, altering, all_unfit)
            _discard(receipts)

    # --- positions -----------------------------------------------------------------------------

    def _deliver(
        self,
        read: ReadDocuments,
        kept: KeptPosition,
        after_lsn: Lsn,
        altering: _Altering | None = None,
        unfit: Mapping[TableName, str] | None = None,
        copied: _Step | None = None,
    ) -> None:
        """Deliver documents and record the position that they lead to.

        Tables whose documents are refused stop at `after_lsn`, under the names that they had there; so do those
        of `unfit`.
        """
        altering = altering or _Altering()
        attempt = self._attempt(read, altering)
        for table, error in (unfit or {}).items():
            attempt.stop(table, error)
        attempt.refuse_marked()
        while True:
            moved = self._stopped(kept, attempt.stopped, after_lsn, altering)
            # Before the position can move past them.
            self._parked.append(attempt.caught(), attempt.reasons)
            text = self._keeper.text(moved)
            fault_point("documents.before_deliver")
            step = copied or _Step(0)
            self._sink.begin_copies(_without(step.begun, attempt.stopped))
            self._sink.end_copies(_without(step.whole, attempt.stopped))
            try:
                self._sink.deliver(
                    self._while_wanted(attempt.documents(), moved.delivered_lsn), text
                )
            except DocumentsRefused as refused:
                attempt.refuse(refused.reasons)
                continue
            break
        fault_point("documents.after_deliver")
        self._keeper.keep(moved, text, is_news=True)

    def _settle(
        self,
        receipts: Sequence[Receipt],
        kept: KeptPosition,
        after_lsn: Lsn,
        altering: _Altering | None = None,
        stopped: Mapping[TableName, str] | None = None,
    ) -> None:
        """Record the position after tasks have delivered; keep what they could not deliver."""
        all_stopped = _unfit(receipts) | dict(stopped or {})
        for receipt in receipts:
            all_stopped |= receipt.content.stopped
        self._take_outcomes(receipts)
        self._keeper.record(self._stopped(kept, all_stopped, after_lsn, altering or _Altering()))

    def _take_outcomes(self, receipts: Sequence[Receipt]) -> None:
        """Park what tasks could not deliver, and do what they left over: after that it is left over no more."""
        outcomes: list[Outcome] = [receipt.content for receipt in receipts]
        left = [each for outcome in outcomes for each in outcome.left]
        emptied = self._sink.emptied(left)
        for outcome in outcomes:
            self._parked.append(self._still_there(outcome.caught, emptied), outcome.reasons)
        self._sink.settle(left)
        for outcome in outcomes:  # they come again where a transaction changes tables
            outcome.left.clear()
            outcome.caught.clear()

    def _still_there(
        self, caught: list[dict[str, Any]], emptied: Mapping[TableName, tuple[int, int]]
    ) -> list[dict[str, Any]]:
        """Documents but for those of tables that were emptied since: a retry would bring back rows that are gone."""
        if not emptied:
            return caught
        stays = []
        for row in caught:
            table = TableName(row["schema"], row["table"])
            truncated = emptied.get(self._routes.of(table) or table)
            if truncated is None or (row["commit_lsn"], row["ordinal"]) >= truncated:
                stays.append(row)
        if count := len(caught) - len(stays):
            _log.warning("%d refused documents not parked: a TRUNCATE has come since", count)
        return stays

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

    def _attempt(self, read: ReadDocuments, altering: _Altering | None = None) -> Attempt:
        altering = altering or _Altering()
        return Attempt(
            read,
            self._parked.holds,
            self._on_refused,
            f"sink {self.name}",
            altering.together,
            altering.unparked,
        )

    def _stopped(
        self,
        kept: KeptPosition,
        stopped: Mapping[TableName, str],
        after_lsn: Lsn,
        altering: _Altering,
    ) -> KeptPosition:
        """The position, but for tables that stay where they were, with what was refused."""
        if not stopped:
            return kept
        found = altering.went_by(stopped)
        left = {altering.names.get(name, name) for name in found}
        unaccounted = stopped.keys() & kept.tables.keys() - found.keys() - left
        assert not unaccounted, f"stopped, and at no position: {sorted(unaccounted)}"
        before = self._keeper.stored.tables
        # Those that are followed no more stay so, whoever gets their name.
        removed = self._keeper.stored.in_state(TableState.REMOVED)
        tables = {name: each for name, each in kept.tables.items() if name not in left}
        tables |= {name: before[name] for name in removed & left}
        for name, error in found.items():
            if name in removed or not (name in before or altering.may_bring(name)):
                continue  # there is nothing of it that could go on
            was = before.get(name, KeptTable(TableState.STREAMING))
            if was.state == TableState.PENDING:
                # It goes by this position, and so by the name that it has there; none where it was dropped.
                now = altering.names.get(name, name)
                if now is not None and (standing := kept.tables.get(now)) is not None:
                    tables[now] = replace(was if now == name else standing, error=error)
                    self._store.put_off(now)
                    self.tables.report_stop(now, error)
                continue
            tables[name] = was.stopped(after_lsn, error)
            self.tables.report_stop(name, error)
        return replace(kept, tables=tables)

    # --- what people ask for -------------------------------------------------------------------

    def _retry_parked(self) -> None:
        """Deliver parked documents that a person wants tried again, or forget them."""
        kept = self._keeper.stored
        for asked in self._parked.asked():
            if asked.action == "drop":
                _log.warning("%d parked documents dropped", len(self._parked.drop(asked)))
            else:
                self._try_parked(asked, kept)
            self._parked.answered(asked)

    def _try_parked(self, asked: ParkedRequest, kept: KeptPosition) -> None:
        """Deliver parked documents in their order; what is refused again stays, with all behind it."""
        text = self._keeper.text(kept)
        everything = self._parked.read()
        drops = [each for each in self._parked.asked() if each.action == "drop"]
        # One that waits behind a document which is not meant cannot go before it. One that waits only for what is meant
        # goes as well: behind a key that changes all the time something is parked after every request.
        holds, going, meant = Holds(), Holds(), []
        for each in everything:
            row = asdict(each)
            merely_waits = each.reason is None and not any(one.means(each) for one in drops)
            if not holds.waits(row) and (asked.means(each) or (merely_waits and going.waits(row))):
                meant.append(each)
                going.add(row)
            else:
                holds.add(row)
        retry = Retry(meant)
        if unwritable := {each.id: each.refused for each in meant if each.refused}:
            retry.refuse(unwritable)
        while retry.left:
            try:
                self._sink.deliver(batches_of(retry.left), text)
            except DocumentsRefused as refused:
                retry.refuse(refused.reasons)
                continue
            break
        gone = {each.id for each in retry.left}
        stays = [retry.reasoned(each) for each in everything if each.id not in gone]
        self._parked.replace(stays)
        _log.info("%d parked documents delivered, %d stay", len(gone), len(stays))

    # --- copies --------------------------------------------------------------------------------

    def _publish(self, lsn: Lsn) -> bool:
        """Deliver some documents of copies that are whole; whether there may be more."""
        kept = self._keeper.stored
        step = _Step(min(self._sink.step_bytes, _MOST_STEP_BYTES))
        for copy in self._store.whole_copies():
            if step.room <= 0:
                break
            self._add_copy(step, kept.tables[copy.table], copy, lsn)
        if not step.tables:
            return False
        moved = kept.with_tables(step.tables)
        clashes = self._clashes(moved) if step.begun else {}
        unfit = {table: str(error) for table, error in clashes.items() if table in step.begun}
        self._deliver(lambda: iter(step.batches), moved, lsn, unfit=unfit, copied=step)
        stays = {table for table in step.tables if self._keeper.stored.tables[table].error}
        if not stays:
            for path in step.used_up:
                Path(path).unlink(missing_ok=True)
        return True

    def _drop_parked(self, table: TableName) -> None:
        if count := self._parked.drop_table(table):
            _log.warning("%d parked documents dropped: the copy of %s has them", count, table)

    def _clashes(self, kept: KeptPosition) -> Mapping[TableName, PenstockError]:
        """Tables that must not begin, since others have their place or are about to."""
        removed = kept.in_state(TableState.REMOVED)
        return self._kind.clashes(
            self._place, [each for each in kept.tables if each not in removed]
        )

    def _add_copy(self, step: _Step, kept: KeptTable, copy: TableCopy, lsn: Lsn) -> None:
        """As much of one table's copy as there is room for."""
        at = kept.published
        if at is None or at.copy_id != copy.copy_id:
            at = Published(copy.copy_id)
            self._drop_parked(copy.table)
        begins = at == Published(copy.copy_id)
        parts = self._copies.parts(copy)
        while at.number < copy.range_count and step.room > 0:
            part = parts.get(at.number)
            if part is None:
                _log.warning("%s is copied again: what was copied of it is gone", copy.table)
                step.tables[copy.table] = KeptTable.scheduled(lsn, kept.oid)
                return
            begin = Cursor(at.offset, at.row)
            batches, cursor = read_some(
                part.path, part.size, begin, step.room, self._keyring, self._format.schema
            )
            step.batches += batches
            step.room -= sum(map(value_bytes, batches))
            if cursor.offset == part.size:
                step.used_up.append(part.path)
                at = replace(at, number=at.number + 1, offset=0, row=0)
            else:
                at = replace(at, offset=cursor.offset, row=cursor.row)
        is_whole = at.number == copy.range_count
        if begins:
            step.begun[copy.table] = copy.copy_id
        if is_whole:
            step.whole[copy.table] = copy.copy_id
        step.tables[copy.table] = (
            KeptTable(TableState.CATCHING_UP, copy.lsn, oid=kept.oid)
            if is_whole
            else replace(kept, published=at, error="")
        )

    def _while_wanted(
        self, documents: Iterator[pa.RecordBatch], end_lsn: Lsn
    ) -> Iterator[pa.RecordBatch]:
        for batch in documents:
            self._keeper.raise_if_cancelled(end_lsn)
            yield batch
            fault_point("documents.inside_deliver")


def _reader(receipts: Sequence[Receipt], keyring: Keyring, schema: pa.Schema) -> ReadDocuments:
    """Reads the documents of receipts, in the order of their tasks; may be called again."""

    def read() -> Iterator[pa.RecordBatch]:
        for receipt in sorted(receipts, key=lambda receipt: receipt.task):
            prepared: Prepared | None = receipt.content
            if prepared is not None:
                yield from prepared.read(keyring, schema)

    return read


def _content_reader(
    content: Sequence[list[Receipt] | pa.RecordBatch],
    reader: Callable[[list[Receipt]], ReadDocuments],
) -> ReadDocuments:
    """Reads documents of rows, and between them those of changes of shape."""

    def read() -> Iterator[pa.RecordBatch]:
        for each in content:
            yield from reader(each)() if isinstance(each, list) else (each,)

    return read


def _unfit(receipts: Sequence[Receipt]) -> dict[TableName, str]:
    """Tables that no modifier could be applied to, and why."""
    return {each.table: str(each.error) for receipt in receipts for each in receipt.refused}


def _without(
    copies: Mapping[TableName, str], tables: Collection[TableName]
) -> dict[TableName, str]:
    return {table: copy_id for table, copy_id in copies.items() if table not in tables}


def _discard(receipts: Sequence[Receipt]) -> None:
    for receipt in receipts:
        if receipt.content is not None:
            receipt.content.discard()


def _count(receipts: Sequence[Receipt]) -> int:
    return sum(receipt.change_count for receipt in receipts)


def _after_ddl(kept: KeptPosition, done: DdlDocuments, lsn: Lsn) -> KeptPosition:
    """How tables stand after a transaction that changes shapes; those that are dropped are gone."""
    tables: dict[TableName, KeptTable] = {}
    for table, known in kept.tables.items():
        if table not in done.taking_part:
            tables[table] = known
        elif table in done.names:
            name = done.names[table]
            tables[name] = known.after_ddl(lsn, is_renamed=name != table)
    tables |= {table: KeptTable(TableState.STREAMING) for table in done.created_in_stream}
    tables |= {table: KeptTable.scheduled(lsn, oid) for table, oid in done.unknown.items()}
    return replace(kept.with_count(done.count), tables=tables)


def _with_copies(moved: KeptPosition, done: DdlDocuments, lsn: Lsn) -> KeptPosition:
    """The same, but that tables are copied again of which rows hold what nobody was sent."""
    behind = {
        table: oid
        for table, oid in done.left_behind.items()
        if table in moved.tables
        and moved.tables[table].state in (TableState.STREAMING, TableState.CATCHING_UP)
    }
    for table in sorted(behind):
        _log.info("%s: its rows hold what the source has not sent; it is copied again", table)
    for table in sorted(done.not_copied):
        _log.warning(
            "%s: its rows hold what the source has not sent, and it is not copied again, since tables are not copied first",
            table,
        )
    return moved.with_tables(
        {table: KeptTable.scheduled(lsn, oid) for table, oid in behind.items()}
    )
