"""One transaction of the source that changes shapes -> one transaction of the target.

Rows and changes alternate, and each table is what it was at the source when its rows came. A table
that cannot follow stops: then everything is rolled back and done again without it.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import psycopg

from penstock.errors import (
    ModifierError,
    PenstockError,
    Remedy,
    SchemaChangeRefused,
    SchemaChangeStops,
    SinkError,
)
from penstock.sinks.ddl_transaction import Rows
from penstock.sinks.postgres.connect import is_about_table
from penstock.sinks.postgres.ddl import alter
from penstock.sinks.postgres.ddl.free_sequences import drop_gone_sequences, follow_sequences
from penstock.sinks.postgres.ddl.schemas import drop_schema
from penstock.sinks.postgres.ddl.structure import one_line, reason
from penstock.sinks.postgres.ddl.user_types import drop_unused_types
from penstock.sinks.postgres.evolve.created_in_stream import create_in_stream
from penstock.sinks.postgres.evolve.following import follow_table, take_ours, unexplained, unsure
from penstock.sinks.postgres.mapping.target import find_table, plan_table
from penstock.sinks.postgres.merge.careful import merge_table
from penstock.sinks.postgres.merge.conflicts import NONE, Conflicts
from penstock.sinks.postgres.merge.receipts import change_counts, refused_tables, staged_steps
from penstock.sinks.postgres.merge.stages import LateStages
from penstock.sinks.postgres.state.shapes import KnownTable, KnownTables, ShapeStore, TableStops
from penstock.sinks.postgres.worker import PostgresWorker
from penstock.sinks.tables import TableState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from penstock.lsn import Lsn
    from penstock.schema.shape import SchemaChange, TableShape
    from penstock.sinks.ddl_transaction import DdlTransaction, RunJob, ShapeChange
    from penstock.sinks.describe import Describe
    from penstock.sinks.postgres.mapping.kept_names import KeptNames
    from penstock.sinks.postgres.mapping.plan import StagedStep, TablePlan
    from penstock.sinks.postgres.mapping.table_mapping import TableMapping, TableMappings
    from penstock.sinks.sink import Batch
    from penstock.table import TableName

    Cursor = psycopg.Cursor[Any]

_log = logging.getLogger(__name__)

# Whoever reads a table keeps us from altering it, and everybody else queues behind us.
_LOCK_TIMEOUT = "10s"

_KEPT = "the source has dropped it; {target} is kept, which penstock has not made"


@dataclass(frozen=True)
class EvolvingTarget:
    """Where shapes change: one pipeline's and source's part of a target."""

    table_mappings: TableMappings
    store: ShapeStore
    describe: Describe
    stage_prefix: str
    replica_role: bool


class Evolution:
    """One attempt. `refused` are tables that stopped in an earlier one, by the names they had.

    `only`: the tables of a group that catches up; None: those that flow with the sink's position.
    """

    def __init__(
        self,
        target: EvolvingTarget,
        batch: Batch,
        only: Collection[TableName] | None,
        refused: Collection[TableName],
    ) -> None:
        self._table_mappings = target.table_mappings
        self._options = target.table_mappings.options
        self._store = target.store
        self._describe = target.describe
        self._stage_prefix = target.stage_prefix
        self._replica_role = target.replica_role
        self.batch = batch
        self.only = only
        self._stages = LateStages(self._options.url)
        self._with_keys: list[tuple[TableShape, TableShape, TableName]] = []
        self.tables = KnownTables(only, refused)
        self.staged: list[StagedStep] = []
        self.counts: dict[TableName, int] = {}
        self.conflicts: dict[TableName, Conflicts] = {}
        # Whose first rows came, and what they are at the target if they were made here.
        self.created: dict[TableName, TableName | None] = {}
        self.notes: list[str] = []
        # What of a table could not follow: kept with it, under the name that it has in the end.
        self.kept_notes: list[tuple[KnownTable, str]] = []

    def run(self, cursor: Cursor, ddl_transaction: DdlTransaction, run_job: RunJob) -> None:
        """Do all of it inside the caller's transaction.

        Raises:
            TableStops: do it again, without that table.
            SinkError: the target.
        """
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", (_LOCK_TIMEOUT,))
        self.tables.take(self._store.read(cursor.connection))
        self._name_by_position()
        try:
            waiting: list[Rows] = []
            for part in ddl_transaction:
                if isinstance(part, Rows):
                    waiting.append(part)
                    continue
                # Rows may wait until their own table changes: a job costs the same for few as for many.
                if self._concerns(part, waiting):
                    self._merge(cursor, waiting, run_job)
                    waiting = []
                self._follow_all(cursor, part)
            self._merge(cursor, waiting, run_job)
            if self._options.schema_changes.value == "apply":
                unused = drop_gone_sequences(cursor, self._table_mappings.owner)
                unused += drop_unused_types(cursor, self._table_mappings.owner)
                for name in unused:
                    _log.info("%s was dropped: nothing needs it any more", name)
        except psycopg.errors.LockNotAvailable:
            raise SinkError(
                "a table that is to be altered is in use at the target",
                str(self._options.url),
                "nothing, penstock tries again; end what reads the table for long",
            ) from None
        finally:
            self._stages.close()

    def _name_by_position(self) -> None:
        """Know what the tables that do not flow are called where this begins, whatever they are listed as."""
        for known in self.tables.listed:
            if self.only is None and not known.flows and known.source_oid:
                called = self._describe.name_of(known.source_oid, self.batch.after_lsn)
                known.name = called or known.name

    def _concerns(self, part: ShapeChange, waiting: list[Rows]) -> bool:
        change = part.change
        ids = {shape.id for shape in change.tables} | {gone.id for gone in change.dropped_tables}
        touched = {shape.table for shape in change.tables}
        touched |= {known.name for known in self.tables.listed if known.source_oid in ids}
        return bool(change.dropped_schemas) or any(rows.tables & touched for rows in waiting)

    def _follow_all(self, cursor: Cursor, part: ShapeChange) -> None:
        tables = [(self.tables.find(shape), shape) for shape in part.change.tables]
        # What leads to a table goes before the table does.
        dropped = [(self.tables.by_id(gone.id), None) for gone in part.change.dropped_tables]
        self._drop_foreign_keys(cursor, [*tables, *dropped])
        for gone in part.change.dropped_tables:
            known = self.tables.by_id(gone.id)
            if known is not None:
                self._drop(cursor, known)
        for known, shape in tables:
            if known is not None:
                self._follow(cursor, known, shape, part)
            elif shape.table in part.created_in_stream and self.only is None:
                self._create(cursor, shape, part)
        self._make_foreign_keys(cursor)
        self._follow_others(cursor, part.change)

    def _follow_others(self, cursor: Cursor, change: SchemaChange) -> None:
        """What is no table: sequences and schemas."""
        policy, owner = self._options.schema_changes.value, self._table_mappings.owner
        if self.only is None:  # who catches up comes by what others have done already
            self.notes += follow_sequences(cursor, owner, change, policy)
        has_own_schemas = self._options.keeps_schemas and self._table_mappings.is_alone
        if policy == "apply" and has_own_schemas:
            for schema in change.dropped_schemas:
                self.notes += drop_schema(cursor, owner, schema.name)

    def _make_foreign_keys(self, cursor: Cursor) -> None:
        """Of tables that were altered; those that are refused are tried once more when all rows are there."""
        waiting = {known.source_oid for known in self.tables.listed if known.needs_copy}
        for before, shape, target in self._with_keys:
            if waiting & {key.referenced_id for key in shape.foreign_keys}:
                # What it leads to gets its own keys with its copy.
                self._store.await_foreign_keys(cursor, shape.table)
            elif self._options.schema_changes.value == "apply":
                notes = alter.make_new_foreign_keys(
                    cursor, before, shape, target, self._table_mappings.target
                )
                known = self.tables.find(shape)
                if known is not None:
                    self._note(known, shape.table, notes)
                if notes:  # its rows may hold it once both tables have all of them
                    self._store.await_foreign_keys(cursor, shape.table)
        self._with_keys.clear()

    def _drop_foreign_keys(
        self, cursor: Cursor, tables: Sequence[tuple[KnownTable | None, TableShape | None]]
    ) -> None:
        if self._options.schema_changes.value != "apply":
            return
        for known, shape in tables:
            if known is None or not known.made_by_us or not self.tables.is_altered(known):
                continue
            before = self._store.shape(cursor, known.recorded_as, lock=True)
            if before is None or not before.foreign_keys:
                continue
            try:
                with cursor.connection.transaction():
                    alter.drop_gone_foreign_keys(
                        cursor,
                        before,
                        shape,
                        self._target_of(known),
                        before_copy=not self.tables.takes_part(known),
                    )
            except SinkError as error:
                raise TableStops(known.began_as, error) from None

    def _target_of(self, known: KnownTable) -> TableName:
        names = known.kept_names
        named = known.shaped_as or known.name
        return names.target or self._table_mappings.of(named, names.ruled_as).target

    def _table_mapping_of(self, known: KnownTable) -> TableMapping:
        return self._table_mappings.of(known.name, known.kept_names.ruled_as)

    def _follow(
        self, cursor: Cursor, known: KnownTable, shape: TableShape, part: ShapeChange
    ) -> None:
        if not self.tables.takes_part(known):
            if self.only is None:
                self._follow_detached(cursor, known, shape, part)
            return
        if part.mark.commit_lsn < known.shape_lsn:
            return  # a copy of a later moment has brought it already
        if known.name != shape.table and not self._free_name(cursor, known, shape.table, part):
            # Who catches up may meet a table that has the name later: it is copied as it is then.
            is_late = self.only is not None
            raise TableStops(known.began_as, _name_taken(shape.table), is_copied_again=is_late)
        before = self._store.shape(cursor, known.name) or self._describe.shape(
            known.name, self.batch.after_lsn
        )
        if before is None or before.id != shape.id:
            # Nobody has noted its shape: from here on it is known.
            self._keep(cursor, known, shape, known.kept_names, self.batch.end_lsn)
            return
        if part.change.is_unsure:
            raise TableStops(known.began_as, unsure(self._table_mappings, before, shape))
        kept, needs_copy = self._alter(cursor, known, before, shape, part)
        self._keep(cursor, known, shape, kept, self.batch.end_lsn)
        if needs_copy:
            self.notes.append(
                f"{shape.table}: what its rows hold does not follow from the change; it is copied again"
            )
            self._store.have_copied(cursor, shape.table, self.batch.end_lsn)
            known.state, known.needs_copy = TableState.PENDING, True

    def _alter(
        self,
        cursor: Cursor,
        known: KnownTable,
        before: TableShape,
        shape: TableShape,
        part: ShapeChange,
        *,
        before_copy: bool = False,
    ) -> tuple[KeptNames, bool]:
        """Let the target's table follow; names that it did not follow, and whether it is to be copied."""
        with self._stopping(known, before, shape), cursor.connection.transaction():
            followed, kept = follow_table(
                cursor,
                self._table_mappings,
                before,
                shape,
                known.kept_names,
                made_by_us=known.made_by_us,
                has_using=part.change.has_using,
                before_copy=before_copy,
            )
        for statement in followed.statements:
            _log.info("%s: %s", shape.table, statement)
        if followed.awaits_names:
            self._store.await_names(cursor, known.recorded_as)
        if before_copy:
            return kept, followed.needs_copy  # the copy brings the rest, and notes
        self._note(known, shape.table, followed.notes)
        with_keys = self._options.create_indexes and self._table_mapping_of(known).is_like_source
        if self._replica_role and known.made_by_us and with_keys:
            self._with_keys.append((before, shape, followed.target))
        return kept, followed.needs_copy

    @contextmanager
    def _stopping(self, known: KnownTable, before: TableShape, shape: TableShape) -> Iterator[None]:
        """What is wrong with one table stops that one alone."""
        try:
            yield
        except SinkError as error:
            if error.remedy is Remedy.TIME:
                raise
            raise TableStops(known.began_as, error) from None
        except psycopg.Error as error:
            if not is_about_table(error) or isinstance(error, psycopg.errors.LockNotAvailable):
                raise
            raise TableStops(known.began_as, unexplained(error, before, shape)) from None

    def _follow_detached(
        self, cursor: Cursor, known: KnownTable, shape: TableShape, part: ShapeChange
    ) -> None:
        """A table that does not flow. One that needs a copy follows here, by the sink's position.

        Others come by this change in their turn; until then only its name here is known.
        """
        if not known.needs_copy or known.began_as in self.tables.refused:
            known.name = shape.table
        elif known.recorded_as != shape.table:
            if self._free_name(cursor, known, shape.table, part):
                self._move(cursor, known, shape.table, part)
        elif part.mark.commit_lsn >= known.shape_lsn and known.waits:
            self._follow_waiting(cursor, known, shape, part)

    def _follow_waiting(
        self, cursor: Cursor, known: KnownTable, shape: TableShape, part: ShapeChange
    ) -> None:
        """What is there of a table that waits for its copy follows all the same."""
        if not self._store.still_waits(cursor, known.recorded_as):
            return
        before = self._store.shape(cursor, known.recorded_as)
        if before is None or part.change.is_unsure:
            return
        try:
            kept, _ = self._alter(cursor, known, before, shape, part, before_copy=True)
        except TableStops:
            return  # whoever copies it is refused as well, and says so
        self._keep(cursor, known, shape, kept, self.batch.end_lsn, before_copy=True)

    def _move(self, cursor: Cursor, known: KnownTable, name: TableName, part: ShapeChange) -> None:
        """Let a table that needs a copy, or does so from now on, wait for it under another name.

        A copy that is under way begins again: it bears the old name.
        """
        if not known.is_filled:
            self._drop_unfilled(cursor, known)
            self._store.schedule(cursor, name, known.source_oid, self.batch.end_lsn)
            self.tables.add(KnownTable.waiting(name, known.source_oid))
            return
        before = self._store.shape(cursor, known.recorded_as, lock=True)
        kept = known.kept_names
        if before is not None:
            after = before.model_copy(update={"schema_name": name.schema, "name": name.name})
            try:
                kept, _ = self._alter(cursor, known, before, after, part, before_copy=True)
            except TableStops:
                before = None  # whoever copies it is refused as well, and says so
        self._store.rename(cursor, known.recorded_as, name)
        self._store.have_copied(cursor, name, self.batch.end_lsn)
        known.name = known.recorded_as = name
        known.state, known.needs_copy = TableState.PENDING, True
        if before is not None:
            self._keep(cursor, known, after, kept, known.shape_lsn, before_copy=True)

    def _free_name(
        self, cursor: Cursor, known: KnownTable | None, name: TableName, part: ShapeChange
    ) -> bool:
        """Whether nobody is listed under a name that the stream gives to a table now.

        Who stands elsewhere in the stream may still be: that table is copied again, under the name
        that it has here.
        """
        other = self.tables.recorded(name)
        if other is None or other is known:
            return True
        if self.only is not None:
            return False
        if other.name != name:
            if not self._free_name(cursor, other, other.name, part):
                return False
            self.notes.append(f"{other.name}: copied again, since another table got its old name")
            self._move(cursor, other, other.name, part)
            return True
        if not other.needs_copy or other.is_filled:
            return False
        # Scheduled under a name of the catalog's, where nobody knew yet what the stream calls it.
        self._drop_unfilled(cursor, other)
        return True

    def _drop_unfilled(self, cursor: Cursor, known: KnownTable) -> None:
        """Forget a table that has got no rows yet, with what was made for its copy."""
        self._store.shape(cursor, known.recorded_as, lock=True)  # the row before the table
        target = self._target_of(known)
        found = find_table(cursor.connection, target)
        if found is not None and known.made_by_us and known.target_oid in (None, found.oid):
            alter.drop_table(cursor, known.recorded_as, target, None)
        self._store.forget(cursor, known.recorded_as)
        self.tables.remove(known)

    def _keep(
        self,
        cursor: Cursor,
        known: KnownTable,
        shape: TableShape,
        kept: KeptNames,
        lsn: Lsn,
        *,
        before_copy: bool = False,
    ) -> None:
        if known.recorded_as != shape.table:
            self._store.rename(cursor, known.recorded_as, shape.table)
        self._store.keep(cursor, shape.table, shape, lsn, kept, before_copy=before_copy)
        known.name = known.recorded_as = known.shaped_as = shape.table
        known.source_oid, known.kept_names = shape.id, kept

    def _drop_target(
        self, cursor: Cursor, known: KnownTable, target: TableName, before: TableShape | None
    ) -> None:
        try:
            with cursor.connection.transaction():
                alter.drop_table(cursor, known.name, target, before)
        except SinkError as error:
            raise TableStops(known.began_as, error) from None

    def _take_rows(self, cursor: Cursor, known: KnownTable, target: TableName) -> None:
        """Delete this source's rows from a table that stays; where the target refuses, the table stops."""
        table_mapping = self._table_mapping_of(known)
        try:
            with cursor.connection.transaction():
                take_ours(cursor, self._table_mappings, table_mapping, target, known)
        except SinkError as error:
            raise TableStops(known.began_as, error) from None
        except psycopg.Error as error:
            if not is_about_table(error) or isinstance(error, psycopg.errors.LockNotAvailable):
                raise
            what = "the source has dropped the table, and the target refuses to delete its rows"
            raise TableStops(
                known.began_as,
                SchemaChangeRefused(
                    one_line(f"{what}: {reason(error)}"),
                    str(known.name),
                    f"take away what refers to rows of {target}; it is tried again by itself",
                ),
            ) from None

    def _drop(self, cursor: Cursor, known: KnownTable) -> None:
        if known.began_as in self.tables.refused:
            return
        if self.only is not None and not self.tables.takes_part(known):
            return
        policy = self._table_mapping_of(known).policy.value
        before = self._store.shape(cursor, known.recorded_as, lock=True)
        target = self._target_of(known)
        if policy == "stop":
            raise TableStops(
                known.began_as,
                SchemaChangeStops(
                    "the source has dropped the table, and schema_changes is stop",
                    str(known.name),
                    f"penstock tables PIPELINE.yml remove {known.name}, and do with {target} what you want",
                ),
            )
        found = find_table(cursor.connection, target)
        # Another one of that name is somebody's own.
        is_ours = found is None or (known.made_by_us and known.target_oid in (None, found.oid))
        if policy == "apply" and known.is_filled and not is_ours:
            self._store.detach(cursor, known.recorded_as, _KEPT.format(target=target))
            self.notes.append(f"{known.name}: {_KEPT.format(target=target)}")
        elif policy == "apply":
            if is_ours:  # else it was refused a place
                self._drop_target(cursor, known, target, before)
            self._store.forget(cursor, known.recorded_as)
        else:
            self._take_rows(cursor, known, target)
            self._store.leave(cursor, known.recorded_as)
        _log.info("%s was dropped at the source", known.name)
        self.tables.remove(known)

    def _create(self, cursor: Cursor, shape: TableShape, part: ShapeChange) -> None:
        """A table that came with the stream."""
        if self._options.schema_changes.value in ("ignore", "stop") or self.tables.by_name(
            shape.table
        ):
            return  # it is scheduled as any other table, when its rows come
        if not self._options.create_tables:
            return
        if not self._free_name(cursor, None, shape.table, part):
            return  # it is copied once the name is free
        created = create_in_stream(cursor, self._table_mappings, shape)
        if created is None:
            return
        made_as = self._table_mappings.target(shape.table) if created.is_new else None
        self._store.add(cursor, shape, self.batch.end_lsn, made_as)
        if created.awaits_names:
            self._store.await_names(cursor, shape.table)
        known = KnownTable.streaming(shape.table, shape.id, made_here=created.is_new)
        self.tables.add(known)
        self._note(known, shape.table, created.notes)

    def _note(self, known: KnownTable, called: TableName, notes: Sequence[str]) -> None:
        self.notes += [f"{called}: {note}" for note in notes]
        self.kept_notes += [(known, note) for note in notes]

    def _merge(self, cursor: Cursor, parts: list[Rows], run_job: RunJob) -> None:
        """Stage and merge rows, with the shapes that their tables have by now."""
        tables = {table for rows in parts for table in rows.tables}
        plans = self._plan_all(cursor, parts, tables)
        if not plans:
            return
        worker = PostgresWorker(
            self._options.url,
            self._stage_prefix,
            plans,
            frozenset(tables - set(plans)),
            stages_text=True,
        )
        receipts = run_job(worker, parts)
        steps = staged_steps(receipts, is_part_of_transaction=True)
        self.staged += steps
        for table, error in refused_tables(receipts).items():
            raise self._stop(table, error)
        self._merge_staged(cursor, plans, steps)
        for table, count in change_counts(receipts).items():
            self.counts[table] = self.counts.get(table, 0) + count

    def _plan_all(
        self, cursor: Cursor, parts: list[Rows], tables: set[TableName]
    ) -> dict[TableName, TablePlan]:
        """The plans of tables that take part; those that nobody has listed yet are met here."""
        oids = {table: oid for rows in parts for table, oid in rows.oids.items()}
        plans: dict[TableName, TablePlan] = {}
        for name in sorted(tables):
            known = self.tables.by_name(name) or self._meet(cursor, name, oids.get(name, 0))
            if known is None or not self.tables.takes_part(known):
                continue
            try:
                plans[name] = self._plan(cursor, known)
            except ModifierError as error:
                raise self._stop(name, error) from None
            self._note(known, name, plans[name].notes)
            if not known.is_filled:
                made_as = plans[name].target if plans[name].is_new else None
                self.created[name] = made_as or self.created.get(name)
        return plans

    def _merge_staged(
        self, cursor: Cursor, plans: dict[TableName, TablePlan], steps: list[StagedStep]
    ) -> None:
        for table in dict.fromkeys(step.table for step in steps):
            merged = merge_table(
                cursor,
                plans[table],
                [step for step in steps if step.table == table],
                self._stages,
                self._options.on_conflict,
                replica_role=self._replica_role,
            )
            if isinstance(merged, PenstockError):
                raise self._stop(table, merged)
            self.conflicts[table] = self.conflicts.get(table, NONE) + merged

    def _stop(self, table: TableName, error: PenstockError) -> TableStops:
        """What to raise where a table cannot go on that has this name by now."""
        began_as = {known.name: known.began_as for known in self.tables.listed}
        return TableStops(began_as[table], error)

    def _meet(self, cursor: Cursor, name: TableName, oid: int) -> KnownTable | None:
        """A table that nobody has listed; None where it must be copied before it takes rows."""
        if self.only is not None:
            return None
        if self.batch.copies_first:
            # Else it is scheduled once the name is free.
            is_known = bool(oid) and self.tables.by_id(oid) is not None
            if self.tables.recorded(name) is None and not is_known:
                self._store.schedule(cursor, name, oid, self.batch.end_lsn)
                self.tables.add(KnownTable.waiting(name, oid))
            return None
        known = KnownTable.streaming(name)
        self.tables.add(known)
        return known

    def _plan(self, cursor: Cursor, known: KnownTable) -> TablePlan:
        try:
            plan = plan_table(
                cursor.connection,
                self._table_mappings,
                known.name,
                lambda name: self._shape_now(cursor, name),
                is_filled=known.is_filled,
                kept=known.kept_names,
            )
            return replace(plan, lacks_rows=self._describe.lacks_rows(known.name))
        except SinkError as error:
            if error.remedy is Remedy.TIME:
                raise
            raise TableStops(known.began_as, error) from None

    def _shape_now(self, cursor: Cursor, table: TableName) -> TableShape | None:
        """The table's shape at this moment of the transaction."""
        shape = self._store.shape(cursor, table)
        return shape if shape is not None else self._describe(table, self.batch.end_lsn)


def _name_taken(name: TableName) -> SchemaChangeRefused:
    return SchemaChangeRefused(
        f"the source has renamed another table to {name}, which is still followed under that name",
        str(name),
        "nothing; the table goes on once the other one has been copied",
    )
