"""The plans of all tables of one sink: made when first needed, read again now and then."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.errors import SinkError
from penstock.sinks.postgres.mapping.kept_names import NO_NAMES, KeptNames
from penstock.sinks.postgres.mapping.rivals import taken
from penstock.sinks.postgres.mapping.target import plan_table, read_ranks
from penstock.timing import timing

if TYPE_CHECKING:
    import psycopg

    from penstock.lsn import Lsn
    from penstock.sinks.describe import Describe
    from penstock.sinks.postgres.mapping.plan import TablePlan
    from penstock.sinks.postgres.mapping.table_mapping import TableMappings
    from penstock.sinks.postgres.session import TargetSession
    from penstock.table import TableName


class Planner:
    """Asks over a connection of its own: another thread may be in the middle of a commit.

    `filled` are the tables that have rows from this pipeline; they are never created again, and
    `created` those that were made here, with what was left out of them.
    `kept_names` says where names differ from the source's.
    """

    def __init__(self, table_mappings: TableMappings, describe: Describe) -> None:
        self.filled: set[TableName] = set()
        self.created: dict[TableName, tuple[str, ...]] = {}
        self.kept_names: dict[TableName, KeptNames] = {}
        self._table_mappings = table_mappings
        self._options = table_mappings.options
        self._describe = describe
        self._plans: dict[TableName, TablePlan] = {}
        self._planned_at: dict[TableName, float] = {}
        self._connection: psycopg.Connection[Any] | None = None
        self._ranks_tables = False
        self._ranks: dict[TableName, int] = {}
        self._ranked_at = -timing().rank_seconds

    def open(self, session: TargetSession, *, ranks_tables: bool) -> None:
        """Begin anew; `ranks_tables` where foreign keys must be respected by order.

        Raises:
            SinkError: the target cannot be reached.
        """
        self.close()
        self._ranks_tables = ranks_tables
        self._connection = session.planning()

    def plan(self, table: TableName, lsn: Lsn) -> TablePlan:
        """How a table is delivered as it was at a position, read at the target if need be.

        Raises:
            SinkError: TargetTableMissing, TargetTableUnfit: it cannot be delivered.
            psycopg.Error: the target does not answer.
        """
        now = time.monotonic()
        if table not in self._plans or now - self._planned_at[table] > timing().plan_seconds:
            if self._connection is None:
                raise SinkError(
                    "not connected", str(self._options.url), "nothing, penstock tries again"
                )
            self._refuse_rival(table)
            plan = plan_table(
                self._connection,
                self._table_mappings,
                table,
                lambda name: self._describe(name, lsn),
                is_filled=table in self.filled,
                kept=self.kept_names.get(table),
            )
            plan = replace(plan, lacks_rows=self._describe.lacks_rows(table))
            self._plans[table] = plan
            self._planned_at[table] = now
            if plan.is_new:
                self.created[table] = plan.notes
            if self._ranks_tables:
                if now - self._ranked_at > timing().rank_seconds:
                    self._ranks, self._ranked_at = read_ranks(self._connection), now
                self._plans[table] = replace(plan, rank=self._ranks.get(plan.target, 0))
        return self._plans[table]

    def known(self, table: TableName) -> TablePlan:
        """The plan that a batch was staged with, or a newer one."""
        return self._plans[table]

    def forget(self, table: TableName) -> None:
        """Read the table again before it is next used."""
        self._plans.pop(table, None)

    def forget_all(self) -> None:
        """Read all tables again."""
        self._plans.clear()
        self._ranked_at = -timing().rank_seconds

    def close(self) -> None:
        """Forget all plans; the connection is the session's to close."""
        self._plans.clear()
        self._connection = None

    def _refuse_rival(self, table: TableName) -> None:
        """Two source tables must not be mixed in one target table, unless a person has said so."""
        kept = self.kept_names.get(table, NO_NAMES)
        if not self._table_mappings.may_collide or table in self.filled:
            return
        if self._table_mappings.of(table, kept.ruled_as).is_mixed:
            return
        target = self._target_of(table)
        for other in sorted({*self._plans, *self.filled} - {table}):
            if self._target_of(other) == target:
                raise taken(target, other, table)

    def _target_of(self, table: TableName) -> TableName:
        kept = self.kept_names.get(table, NO_NAMES)
        return kept.target or self._table_mappings.target(table, kept.ruled_as)
