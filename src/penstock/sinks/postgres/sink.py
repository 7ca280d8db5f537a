"""The driver half: one transaction per batch merges every table and moves the position.

So the target only ever shows whole source transactions, all tables at the same position, and a batch
that is repeated after a crash changes nothing: the position in the same transaction says it is there.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from penstock.errors import (
    ModifierError,
    PenstockError,
    Remedy,
    RowRefused,
    SchemaChangeRefused,
    SinkError,
    TargetObjectsForeign,
    TargetTableUnfit,
)
from penstock.failpoints import fault_point
from penstock.options import OnRefused
from penstock.sinks.ddl_transaction import refused_in, tables_of
from penstock.sinks.postgres.connect import (
    classify_target_error,
    is_about_table,
    target_errors,
)
from penstock.sinks.postgres.evolve.commit import ShapeCommits
from penstock.sinks.postgres.mapping.planner import Planner
from penstock.sinks.postgres.merge import rows as merge
from penstock.sinks.postgres.merge.careful import explain, merge_table
from penstock.sinks.postgres.merge.conflicts import add_conflicts
from penstock.sinks.postgres.merge.parking import Parking, can_park
from penstock.sinks.postgres.merge.quick import merge_steps
from penstock.sinks.postgres.merge.receipts import change_counts, refused_tables, staged_steps
from penstock.sinks.postgres.merge.stages import Stages, drop_orphans, stage_prefix
from penstock.sinks.postgres.merge.unpark import Unparking
from penstock.sinks.postgres.session import TargetSession
from penstock.sinks.postgres.state.objects import has_objects, make_objects
from penstock.sinks.postgres.state.parked import ParkedRows
from penstock.sinks.postgres.state.progress import Progress
from penstock.sinks.postgres.state.standing import TargetTableStore
from penstock.sinks.postgres.state.tables import TargetTables
from penstock.sinks.postgres.worker import PostgresWorker
from penstock.sinks.tables import SinkTables
from penstock.text import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from penstock.lsn import Lsn
    from penstock.sinks.ddl_transaction import DdlTransaction, RunJob
    from penstock.sinks.describe import Describe
    from penstock.sinks.postgres.mapping.plan import StagedStep, TablePlan
    from penstock.sinks.postgres.mapping.table_mapping import TableMappings
    from penstock.sinks.postgres.merge.conflicts import Conflicts
    from penstock.sinks.postgres.state.tables import TableRow
    from penstock.sinks.sink import Batch, Receipt, StoredPosition
    from penstock.sinks.tables import DetachedTable
    from penstock.table import TableName

_log = logging.getLogger(__name__)


class PostgresSink:
    """Delivers to one Postgres."""

    batch_bytes = 64 * 1024 * 1024

    def __init__(
        self,
        name: str,
        table_mappings: TableMappings,
        pipeline: str,
        describe: Describe,
        session: TargetSession | None = None,
    ) -> None:
        source = table_mappings.source
        self.name = name
        self.change_count = 0
        self._table_mappings = table_mappings
        self._options = table_mappings.options
        self._progress = Progress(pipeline, source)
        self._tables = TargetTables(pipeline, source)
        self._parked = ParkedRows(pipeline, source)
        self._planner = Planner(table_mappings, describe)
        self._describe = describe
        self._changed_at: Any = None
        self._unplanned: dict[int, dict[TableName, PenstockError]] = {}
        self._session = session or TargetSession(table_mappings.options.url)
        self._session_number = 0
        self._store = TargetTableStore(
            self._tables, self._parked, self._connected, self._options.url, self._update_planner
        )
        self.tables = SinkTables(self._store)
        self._stage_prefix = stage_prefix(pipeline, source)
        self._shapes = ShapeCommits(
            table_mappings, self._progress, self._tables, describe, self._stage_prefix
        )

    def open(self) -> StoredPosition | None:
        """Connect, claim the pipeline at this target, read the position."""
        self.close()
        dsn, session = self._options.url, self._session
        connection = session.open(self)
        self._session_number = session.number
        with target_errors(dsn):
            self._progress.claim(connection, str(dsn), session.predecessor)
            self._planner.open(session, ranks_tables=not session.replica_role)
            if not has_objects(connection):
                return None  # nothing is made before the first position is known
            make_objects(connection)
            drop_orphans(connection, self._stage_prefix)
            found = self._progress.read(connection)
            self._parked.read(connection)
            self.tables.read()
            self._progress.report_orphans(connection, self.name, self._table_mappings.sources)
        if found is None:
            return None
        self.change_count = found[1]
        return found[0]

    def begin(self, identity: Mapping[str, str], lsn: Lsn) -> None:
        """Store the first position, with penstock's own tables around it."""
        with target_errors(self._options.url):
            make_objects(self._connected())
            self._progress.begin(self._connected(), identity, lsn)

    def refresh_tables(self, lsn: Lsn) -> None:
        """Read penstock.tables again, and detach what a person wants copied again."""
        if self._parked.tables:
            with target_errors(self._options.url):
                self._answer_parked(self._connected(), lsn)
        self.tables.refresh(lsn)

    def _update_planner(self, rows: Sequence[TableRow]) -> None:
        changed_at = max((row.changed_at for row in rows), default=None)
        if changed_at != self._changed_at:
            self._planner.forget_all()  # the copier makes tables, indexes and foreign keys
            self._changed_at = changed_at
        self._planner.filled = {row.table for row in rows if row.is_filled}
        self._planner.kept_names = {row.table: row.kept_names for row in rows}

    def worker(self, batch: Batch, only: Collection[TableName] | None = None) -> PostgresWorker:
        """The executor half, with the plan of each table of the batch."""
        wanted = (
            set(only)
            if only is not None
            else batch.tables - batch.detached - set(self.tables.detached)
        )
        skipped = set(batch.tables) - wanted
        plans: dict[TableName, TablePlan] = {}
        for table in sorted(wanted & set(batch.tables)):
            try:
                plans[table] = self._planner.plan(table, batch.after_lsn)
            except (SinkError, ModifierError) as error:
                if error.remedy is Remedy.TIME:
                    raise
                # Earlier batches may still be on their way: the table stops in its turn, at `commit`.
                self._unplanned.setdefault(batch.number, {})[table] = error
                skipped.add(table)
            except psycopg.Error as error:
                raise classify_target_error(error, self._options.url) from None
        return PostgresWorker(self._options.url, self._stage_prefix, plans, frozenset(skipped))

    def commit(self, batch: Batch, receipts: Sequence[Receipt]) -> None:
        """Merge, move the position, commit; table by table if all at once does not work."""
        staged = staged_steps(receipts)
        refused = self._refused(batch, receipts)
        refused = {
            table: why for table, why in refused.items() if table not in self.tables.detached
        }
        # A table may have stopped after this batch was staged: its changes wait in the log.
        steps = [step for step in staged if step.table not in self.tables.detached]
        counts = change_counts(receipts)
        connection = self._connected()
        by_table = bool(refused) or any(step.table in self._parked.tables for step in steps)
        fault_point("deliver.after_job")
        with target_errors(self._options.url):
            try:
                if by_table:
                    self._commit_by_table(batch, steps, counts, refused)
                else:
                    self._commit_at_once(batch, steps, counts)
            except (
                psycopg.Error,
                RowRefused,
                TargetObjectsForeign,
                TargetTableUnfit,
                merge.IdentityInTheWay,
            ) as error:
                if by_table or (isinstance(error, psycopg.Error) and not is_about_table(error)):
                    raise
                self._commit_by_table(batch, steps, counts, {})
            fault_point("deliver.after_commit")
            self.change_count += self._delivered(counts)
            self._stages.drop_staged(connection, staged)

    def commit_detached(
        self, tables: Collection[TableName], batch: Batch, receipts: Sequence[Receipt]
    ) -> None:
        """Merge the changes of tables that catch up, each under a savepoint of its own."""
        steps = staged_steps(receipts)
        counts = change_counts(receipts)
        connection = self._connected()
        refused = self._refused(batch, receipts)
        with target_errors(self._options.url):
            with self._by_table(batch, steps, refused) as (cursor, failures, conflicts):
                moved = [table for table in tables if table not in failures]
                self._tables.advance(cursor, moved, batch.after_lsn, batch.end_lsn)
                count = sum(counts.get(table, 0) for table in moved)
                self._progress.count(cursor, count)
                add_conflicts(cursor, self._tables.owner, conflicts)
                detached = {
                    table: self._tables.stop(cursor, table, batch.after_lsn, str(error))
                    for table, error in failures.items()
                }
                fault_point("catch_up.before_commit")
            self._stages.drop_staged(connection, steps)
        self.change_count += count
        self._planner.filled.update(moved)
        self.tables.move(moved, batch.end_lsn)
        self._stop(detached)

    def commit_shapes(
        self,
        batch: Batch,
        ddl_transaction: DdlTransaction,
        run_job: RunJob,
        only: Collection[TableName] | None = None,
    ) -> dict[TableName, TableName]:
        """Alter tables and merge rows in turn; again without the tables that cannot follow."""
        connection = self._connected()
        with target_errors(self._options.url):
            # They hold on to types, and would be of the old shape.
            self._stages.drop_temporary(connection)
            done = self._shapes.commit(
                connection,
                batch,
                ddl_transaction,
                run_job,
                only,
                replica_role=self._session.replica_role,
                left_out=self._left_out(ddl_transaction),
            )
            fault_point("schema.after_commit")
            self.change_count += done.change_count
            self._planner.forget_all()
            self.tables.read()
        return done.names

    def idle(self) -> None:
        """Nothing is due: what is committed is visible."""

    def interrupt(self) -> None:
        """Have the target give up the statement that runs; its transaction is rolled back."""
        self._session.interrupt()

    def close(self) -> None:
        """Let go of the target."""
        self._store.forget()
        self._unplanned.clear()
        self._planner.close()
        self._session.close(self)

    def _refused(self, batch: Batch, receipts: Sequence[Receipt]) -> dict[TableName, PenstockError]:
        """Tables whose rows could not be staged, or have nowhere to go."""
        return refused_tables(receipts) | self._unplanned.pop(batch.number, {})

    def _delivered(
        self, counts: Mapping[TableName, int], failures: Collection[TableName] = ()
    ) -> int:
        """How many changes arrive: those of tables that wait do so later."""
        return sum(
            count
            for table, count in counts.items()
            if table not in self.tables.detached and table not in failures
        )

    def _commit_at_once(
        self, batch: Batch, steps: list[StagedStep], counts: Mapping[TableName, int]
    ) -> None:
        connection = self._connected()
        for error in self._stages.prepare(connection, steps).values():
            raise error
        new = self._unlisted(steps)
        with connection.transaction(), connection.cursor() as cursor:
            conflicts = merge_steps(
                cursor,
                steps,
                self._planner.known,
                self._stages,
                self._options.on_conflict,
                replica_role=self._session.replica_role,
            )
            self._progress.advance(cursor, batch, self._delivered(counts))
            self._note_streaming(cursor, new, batch)
            add_conflicts(cursor, self._tables.owner, conflicts)
            fault_point("deliver.before_commit")
        self._take_note(new)

    def _commit_by_table(
        self,
        batch: Batch,
        steps: list[StagedStep],
        counts: Mapping[TableName, int],
        refused: Mapping[TableName, PenstockError],
    ) -> None:
        """One table that fails stops, the others are delivered."""
        with self._by_table(batch, steps, refused) as (cursor, failures, conflicts):
            detached = {
                table: self._tables.stop(cursor, table, batch.after_lsn, str(error))
                for table, error in failures.items()
            }
            self._progress.advance(cursor, batch, self._delivered(counts, failures))
            new = [table for table in self._unlisted(steps) if table not in failures]
            self._note_streaming(cursor, new, batch)
            add_conflicts(cursor, self._tables.owner, conflicts)
            fault_point("deliver.before_commit")
        self._take_note(new)
        self._stop(detached)

    @contextmanager
    def _by_table(
        self, batch: Batch, steps: list[StagedStep], refused: Mapping[TableName, PenstockError]
    ) -> Iterator[
        tuple[psycopg.Cursor[Any], dict[TableName, PenstockError], dict[TableName, Conflicts]]
    ]:
        """A transaction in which each table was merged under a savepoint; what failed, and the conflicts."""
        connection = self._connected()
        failures = dict(refused)
        conflicts: dict[TableName, Conflicts] = {}
        parkings: dict[TableName, Parking] = {}
        for table, unstaged in self._stages.prepare(connection, steps).items():
            failures.setdefault(table, explain(unstaged, self._planner.known(table)))
        with connection.transaction(), connection.cursor() as cursor:
            tables = dict.fromkeys(step.table for step in steps)
            for table in sorted(tables, key=lambda name: self._planner.known(name).rank):
                if table in failures:
                    continue
                own = [step for step in steps if step.table == table]
                parkings[table] = self._parking(table, batch)
                merged = merge_table(
                    cursor,
                    self._planner.known(table),
                    own,
                    self._stages,
                    self._options.on_conflict,
                    replica_role=self._session.replica_role,
                    parking=parkings[table],
                )
                if isinstance(merged, PenstockError):
                    failures[table] = self._unparked(merged, self._planner.known(table), own)
                else:
                    conflicts[table] = merged
            yield cursor, failures, conflicts
        self._take_note_of_parked(
            {table: each for table, each in parkings.items() if table not in failures}
        )

    # --- what the target refuses ---------------------------------------------------------------

    def _parking(self, table: TableName, batch: Batch) -> Parking:
        return Parking(
            self._tables.owner,
            table,
            batch.end_lsn,
            has_rows=table in self._parked.tables,
            may_park=self._options.on_refused is OnRefused.PARK,
        )

    def _unparked(
        self, error: PenstockError, plan: TablePlan, steps: Sequence[StagedStep]
    ) -> PenstockError:
        """The error, which says why nothing was parked where a person expects that."""
        if self._options.on_refused is not OnRefused.PARK or not isinstance(error, RowRefused):
            return error
        if all(step.kind == "truncate" or can_park(plan, step) for step in steps):
            return error
        why = "on_refused: park parks rows of clones with a key alone, so the table stops"
        return RowRefused(error.what, error.where, f"{error.do}; {why}")

    def _take_note_of_parked(self, parkings: Mapping[TableName, Parking]) -> None:
        if not any(each.is_used for each in parkings.values()):
            return
        self._parked.read(self._connected())
        for table, parking in parkings.items():
            for place, reason in parking.refused:
                _log.warning("%s %s is parked: %s", table, place, reason)

    def _left_out(self, ddl_transaction: DdlTransaction) -> dict[TableName, PenstockError]:
        """Tables that stop where a transaction changes shapes."""
        known = self.tables.streaming | set(self.tables.detached)
        refused = refused_in(ddl_transaction)
        unfit = {table: error for table, error in refused.items() if table in known}
        return self._parked_in(ddl_transaction) | unfit

    def _parked_in(self, ddl_transaction: DdlTransaction) -> dict[TableName, PenstockError]:
        """Tables of a transaction that changes shapes of which something is parked.

        What is parked has the old shape, so they stop until it is delivered or dropped.
        """
        if not self._parked.tables:
            return {}
        return {
            table: SchemaChangeRefused(
                "rows of it are parked, and a transaction changes tables",
                str(table),
                "penstock parked PIPELINE.yml retry, or drop; the table then goes on by itself",
            )
            for table in self._parked.tables & tables_of(ddl_transaction)
        }

    def _answer_parked(self, connection: psycopg.Connection[Any], lsn: Lsn) -> None:
        """Try parked rows again, or forget them, as a person wants it."""
        dropped = self._parked.drop_asked(connection)
        if dropped:
            _log.warning("%d parked rows dropped", dropped)
        tables = self._parked.retries(connection)
        for table in tables:
            detached = self.tables.detached.get(table)
            self._unpark(connection, table, detached.delivered_lsn if detached is not None else lsn)
            self._parked.answered(connection, table)
        if dropped or tables:
            self._parked.read(connection)

    def _unpark(self, connection: psycopg.Connection[Any], table: TableName, lsn: Lsn) -> None:
        try:
            count = Unparking(
                connection,
                self._tables.owner,
                self._planner.plan(table, lsn),
                self._stages,
                self._options.on_conflict,
                replica_role=self._session.replica_role,
            ).run()
        except SinkError as error:
            if error.remedy is Remedy.TIME:
                raise
            _log.error("%s: parked rows cannot be tried again: %s", table, error)
            return
        except psycopg.Error as error:
            if not is_about_table(error):
                raise
            _log.error(
                "%s: parked rows cannot be tried again: %s",
                table,
                explain(error, self._planner.known(table)),
            )
            return
        _log.info("%s: %d parked rows delivered", table, count)

    def _note_streaming(
        self, cursor: psycopg.Cursor[Any], new: Collection[TableName], batch: Batch
    ) -> None:
        """List tables that got their first rows from the stream, and their shapes then."""
        for table in new:
            made_by_us = table in self._planner.created
            self._tables.note_streaming(cursor, table)
            if made_by_us:
                target = self._planner.known(table).target
                self._tables.made(cursor.connection, table, target)
            self._shapes.note(cursor, table, batch.after_lsn)
            for note in self._planner.created.get(table, ()):
                self._tables.note(cursor.connection, table, printable(note))

    def _take_note(self, new: Collection[TableName]) -> None:
        self._planner.filled.update(new)
        self.tables.add_streaming(new)

    def _stop(self, tables: Mapping[TableName, DetachedTable]) -> None:
        if tables:
            self._stages.drop_temporary(self._connected())
            self.tables.stop(tables)
        for table in tables:
            self._planner.forget(table)

    def _unlisted(self, steps: list[StagedStep]) -> list[TableName]:
        tables = dict.fromkeys(step.table for step in steps)
        return [table for table in tables if table not in self._planner.filled]

    def _connected(self) -> psycopg.Connection[Any]:
        return self._session.connection(self._session_number)

    @property
    def _stages(self) -> Stages:
        return self._session.stages
