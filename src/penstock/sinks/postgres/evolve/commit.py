"""Commit transactions of the source in which tables change their shape, each as one of the target."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.failpoints import fault_point
from penstock.sinks.postgres.evolve.transaction import Evolution, EvolvingTarget
from penstock.sinks.postgres.merge.conflicts import add_conflicts
from penstock.sinks.postgres.merge.stages import drop_tables
from penstock.sinks.postgres.state.shapes import ShapeStore, TableStops

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import psycopg

    from penstock.errors import PenstockError
    from penstock.lsn import Lsn
    from penstock.sinks.ddl_transaction import DdlTransaction, RunJob
    from penstock.sinks.describe import Describe
    from penstock.sinks.postgres.mapping.table_mapping import TableMappings
    from penstock.sinks.postgres.state.progress import Progress
    from penstock.sinks.postgres.state.tables import TargetTables
    from penstock.sinks.sink import Batch
    from penstock.table import TableName

    Connection = psycopg.Connection[Any]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Done:
    """What came of it: what tables were called before, and are called now."""

    names: dict[TableName, TableName]
    change_count: int


class ShapeCommits:
    """One pipeline's and source's, at one target."""

    def __init__(
        self,
        table_mappings: TableMappings,
        progress: Progress,
        tables: TargetTables,
        describe: Describe,
        stage_prefix: str,
    ) -> None:
        self._table_mappings = table_mappings
        self._progress = progress
        self._tables = tables
        self._describe = describe
        self._stage_prefix = stage_prefix
        self._store = ShapeStore(*tables.owner)

    def note(self, cursor: psycopg.Cursor[Any], table: TableName, lsn: Lsn) -> None:
        """Note a table's shape at a position, where it is known."""
        shape = self._describe.shape(table, lsn)
        if shape is not None:
            self._store.keep(cursor, table, shape, lsn)

    def commit(
        self,
        connection: Connection,
        batch: Batch,
        ddl_transaction: DdlTransaction,
        run_job: RunJob,
        only: Collection[TableName] | None,
        *,
        replica_role: bool,
        left_out: Mapping[TableName, PenstockError] | None = None,
    ) -> Done:
        """All of it as one; done again without a table that cannot follow, which stops.

        Those of `left_out` stop from the beginning.

        Raises:
            SinkError: the target, or a table that stops although it was left out.
        """
        target = EvolvingTarget(
            self._table_mappings, self._store, self._describe, self._stage_prefix, replica_role
        )
        refused: dict[TableName, PenstockError] = dict(left_out or {})
        again: set[TableName] = set()  # those of them that are copied again
        while True:
            evolution = Evolution(target, batch, only, refused)
            try:
                count = self._attempt(
                    connection, evolution, ddl_transaction, run_job, refused, again
                )
            except TableStops as stops:
                if stops.table in refused:
                    raise stops.error from None  # or this would never end
                refused[stops.table] = stops.error
                if stops.is_copied_again:
                    again.add(stops.table)
                continue
            finally:
                drop_tables(connection, [step.stage_table for step in evolution.staged])
            for note in evolution.notes:
                _log.warning("%s", note)
            for table, error in refused.items():
                if table in again:
                    _log.info("%s is copied again: %s", table, error.what)
                else:
                    _log.error("%s stops, the other tables go on: %s", table, error)
            return Done(evolution.tables.names, count)

    def _attempt(
        self,
        connection: Connection,
        evolution: Evolution,
        ddl_transaction: DdlTransaction,
        run_job: RunJob,
        refused: Mapping[TableName, PenstockError],
        again: Collection[TableName],
    ) -> int:
        batch, only = evolution.batch, evolution.only
        with connection.transaction(), connection.cursor() as cursor:
            evolution.run(cursor, ddl_transaction, run_job)
            for table, error in refused.items():
                if table in again:
                    self._store.have_copied(cursor, table, batch.after_lsn)
                else:
                    self._tables.stop(cursor, table, batch.after_lsn, str(error))
            for table, made_as in evolution.created.items():
                self._tables.note_streaming(cursor, table)
                if made_as is not None:
                    self._tables.made(connection, table, made_as)
                self.note(cursor, table, batch.end_lsn)
            for known, note in evolution.kept_notes:
                self._tables.note(connection, known.name, note)
            add_conflicts(cursor, self._tables.owner, evolution.conflicts)
            count = sum(evolution.counts.values())
            if only is None:
                self._progress.advance(cursor, batch, count)
            else:
                moved = list(evolution.tables.names.values())
                self._tables.advance(cursor, moved, batch.after_lsn, batch.end_lsn)
                self._progress.count(cursor, count)
            fault_point("schema.before_commit")
        return count
