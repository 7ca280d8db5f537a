"""The driver half of a copy: make room, see what has arrived, let the table catch up.

Into an empty table rows go directly, range by range. Where rows are already, they go into a shadow table, a
table of penstock's own, and are merged in one transaction: who reads the target sees the old rows or
the new ones, never a mixture and never none.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from penstock.claims import release, try_claim
from penstock.errors import PenstockError, Remedy, SinkError, TargetTableUnfit
from penstock.failpoints import fault_point
from penstock.sinks.copying import Arrived, CopyLost, CopySuperseded
from penstock.sinks.postgres.compare.review import Review
from penstock.sinks.postgres.connect import (
    classify_target_error,
    connect_target,
    in_replica_role,
    is_about_table,
    set_replica_role,
    target_errors,
)
from penstock.sinks.postgres.copy.cancelled import cancel_all, cancellable
from penstock.sinks.postgres.copy.columns import (
    column_types,
    copied_columns,
    may_be_binary,
    own_values,
    structured_columns,
)
from penstock.sinks.postgres.copy.copy_in import PostgresRangeWriter
from penstock.sinks.postgres.copy.due_keys import make_due_keys
from penstock.sinks.postgres.copy.due_names import give_due_names
from penstock.sinks.postgres.copy.new_tables import make_new_tables
from penstock.sinks.postgres.copy.sequences import set_sequences
from penstock.sinks.postgres.copy.shadow import merge_shadow, require_whole, shadow_name
from penstock.sinks.postgres.copy.whole_tables import WholeTable, finish_together
from penstock.sinks.postgres.ddl.create import complete_columns
from penstock.sinks.postgres.ddl.structure import add_indexes, add_key, add_not_null
from penstock.sinks.postgres.evolve.following import follow_after_copy, follow_before_copy
from penstock.sinks.postgres.mapping.adoption import holds_more, refuse_occupied
from penstock.sinks.postgres.mapping.target import find_table, plan_table, refuse_new_code
from penstock.sinks.postgres.mapping.target_shape import target_description, target_structure
from penstock.sinks.postgres.merge.statements import of_this_source
from penstock.sinks.postgres.options import SchemaChanges
from penstock.sinks.postgres.state import copy_records as records
from penstock.sinks.postgres.state.objects import has_objects, make_objects
from penstock.sinks.postgres.state.shapes import ShapeStore
from penstock.sinks.postgres.state.tables import TargetTables
from penstock.table import TableName, name_tables
from penstock.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from datetime import datetime

    from penstock.lsn import Lsn
    from penstock.schema.description import TableStructure
    from penstock.sinks.copying import Copy, CopyOrder
    from penstock.sinks.postgres.mapping.plan import TablePlan
    from penstock.sinks.postgres.mapping.table_mapping import TableMapping, TableMappings

    Connection = psycopg.Connection[Any]

_log = logging.getLogger(__name__)

# How rows of a copy go into their table, as penstock.tables keeps it (copy_way).
_DIRECT, _SHADOW = "direct", "aside"

# So many tables are made in one transaction: each holds a few of the server's locks until it ends.
TOGETHER = 50
# Smaller ones are planned well enough without statistics, and autovacuum gets round to them.
_ANALYZED_ROWS = 10_000


class PostgresCopying:
    """Copies tables into one Postgres."""

    def __init__(self, table_mappings: TableMappings, pipeline: str) -> None:
        self._table_mappings = table_mappings
        self._options = table_mappings.options
        self._owner = (pipeline, table_mappings.source)
        self._connection: Connection | None = None
        self._plans: dict[TableName, TablePlan] = {}
        self._mapped: dict[TableName, TableMapping] = {}
        # Rounds run side by side, and a transaction is the whole connection's.
        self._lock = threading.RLock()
        self._has_objects = False
        self._claim: int | None = None
        self._idle: list[Connection] = []  # connections that finish tables
        self._finishing: set[Connection] = set()
        self._is_cancelled = False
        self._review = Review(table_mappings)

    def open(self) -> None:
        """Connect."""
        self.close()
        self._connection = cancellable(connect_target(self._options.url, "penstock copies"))
        # Nothing here must outlive a crash of the target: the tables are begun again then.
        self._execute_only("SET synchronous_commit = off", ())
        with target_errors(self._options.url):
            has_objects(self._connection)  # or they are somebody else's

    def claim(self) -> bool:
        """It ends with the connection."""
        if self._claim is None:
            with self._lock, target_errors(self._options.url):
                name = f"penstock copy {' '.join(self._owner)}"
                self._claim = try_claim(self._connected(), name)
        return self._claim is not None

    def release(self) -> None:
        """Let another copy."""
        if self._claim is not None:
            claim, self._claim = self._claim, None
            with self._lock, target_errors(self._options.url):
                release(self._connected(), claim)

    def due(self) -> dict[TableName, int]:
        """Tables that are pending, were left behind by a killed copier, or may be tried again."""
        if not self._has_objects:
            query = "SELECT to_regclass('penstock.ranges') IS NOT NULL"
            self._has_objects = bool(self._execute(query, ())[0][0])
        if not self._has_objects:
            return {}  # nobody has delivered anything yet
        rows = self._execute(records.DUE, self._owner)
        return {TableName(schema, name): oid for schema, name, oid in rows}

    def begin(
        self,
        copy: Copy,
        orders: Sequence[CopyOrder],
        on_begun: Callable[[int], None] = lambda _: None,
    ) -> tuple[dict[TableName, PostgresRangeWriter], dict[TableName, PenstockError]]:
        """Create what is missing, empty what an earlier attempt has left."""
        writers: dict[TableName, PostgresRangeWriter] = {}
        failures: dict[TableName, PenstockError] = {}
        for first in range(0, len(orders), TOGETHER):
            writers |= self._begin_new(copy, orders[first : first + TOGETHER])
            on_begun(len(writers))
        if writers:
            _log.info("created %s like the source's", name_tables(writers))
        for order in orders:
            if order.table in writers:
                continue
            try:
                with self._lock:
                    writer = self._begin_table(copy, order)
            except SinkError as error:
                if error.remedy is Remedy.TIME:
                    raise
                failures[order.table] = error
            except psycopg.Error as error:
                if not is_about_table(error):
                    raise classify_target_error(error, self._options.url) from None
                failures[order.table] = self._unfit(order.table, error)
            else:
                if writer is not None:
                    writers[order.table] = writer
                    on_begun(len(writers))
        return writers, failures

    def _begin_new(
        self, copy: Copy, orders: Sequence[CopyOrder]
    ) -> dict[TableName, PostgresRangeWriter]:
        """Make those that the target has not, all at once; the others are begun one by one."""
        with self._lock:
            try:
                new = make_new_tables(self._connected(), self._table_mappings, copy, orders)
            except SinkError:
                self._connected()
                return {}  # each is refused on its own
            except psycopg.Error as error:
                if not _is_about_some(error):
                    raise classify_target_error(error, self._options.url) from None
                return {}
        for each in new:
            self._plans[each.order.table] = each.plan
            self._mapped[each.order.table] = self._table_mappings.of(each.order.table)
        return {
            each.order.table: self._writer(
                copy, each.order, each.plan, each.plan.target, is_binary=each.is_binary
            )
            for each in new
        }

    def _begin_table(self, copy: Copy, order: CopyOrder) -> PostgresRangeWriter | None:
        connection, table = self._connected(), order.table
        values = (copy.copy_id, order.range_count, *self._owner, *table)
        row = connection.execute(records.BEGIN, values).fetchone()
        if row is None:
            return None  # removed meanwhile
        is_filled, way, made_by_us = row
        # From here on it keeps its name: another table might be altered or emptied for it.
        with connection.transaction():
            held = (*self._owner, *table, copy.copy_id)
            if connection.execute(records.KEEP_NAME, held).fetchone() is None:
                return None  # removed, renamed, or begun anew
            return self._make_room(copy, order, is_filled, way, made_by_us)

    def _make_room(
        self, copy: Copy, order: CopyOrder, is_filled: bool, way: str | None, made_by_us: bool
    ) -> PostgresRangeWriter:
        """Have a table that is this copy's in the copy's shape, and without what an earlier one left."""
        connection, table = self._connected(), order.table
        store = ShapeStore(*self._owner)
        if not (is_filled or made_by_us):
            # Before anything is done to it: it may be somebody's own.
            _, known = store.shape_and_names(connection, table)
            place = known.target or self._table_mappings.target(table, known.ruled_as)
            if self._may_be_occupied(table, place, way):
                refuse_occupied(
                    connection, self._table_mappings, table, place, ruled_as=known.ruled_as
                )
        target, kept = follow_before_copy(
            connection, self._table_mappings, store, order, copy.lsn, made_by_us
        )
        # Whoever finds a table without its key must find, too, that we have made it so.
        is_there = find_table(connection, target) is not None
        plan = plan_table(
            connection,
            self._table_mappings,
            table,
            lambda _: order.shape,
            is_filled=False,
            with_key=False,
            kept=kept,
        )
        if not is_there:
            fault_point("copy.after_create")
            TargetTables(*self._owner).made(connection, table, target)
        self._plans[table] = plan
        self._mapped[table] = self._table_mappings.of(table, kept.ruled_as)
        if way == _DIRECT and not is_filled:
            # Nobody knows the rows of an earlier attempt to be whole: they go, or the table is made equal.
            is_filled = not self._empty(plan)
        way = self._way(plan, is_filled=is_filled)
        connection.execute(records.FORGET_RANGES, (*self._owner, *table))
        columns = copied_columns(order, plan)
        own = own_values(plan)
        if way == _SHADOW:
            self._make_shadow(table, plan, (*columns.values(), *own))
        connection.execute(records.ROOM, (way, is_filled, *self._owner, *table))
        oid = find_table(connection, target).oid
        is_binary = may_be_binary(column_types(connection, [oid])[oid], order, plan)
        into = target if way == _DIRECT else shadow_name(self._owner, table)
        return self._writer(copy, order, plan, into, is_binary=is_binary)

    def _may_be_occupied(self, table: TableName, place: TableName, begun: str | None) -> bool:
        """Whether a table has rows, or may, that no earlier attempt has brought."""
        connection = self._connected()
        if find_table(connection, place) is None:
            return False
        if begun != _DIRECT:
            return True
        # A range is recorded with its rows.
        [(row_count,)] = connection.execute(records.ROWS, (*self._owner, *table)).fetchall()
        return holds_more(connection, self._table_mappings, place, row_count)

    def _way(self, plan: TablePlan, *, is_filled: bool) -> str:
        """How rows go: directly, or into a shadow table first."""
        if is_filled:
            return _SHADOW  # people read it
        if plan.is_watched:
            return _SHADOW  # the merge sees that nothing of another role's runs
        if plan.is_mixed:
            return _SHADOW  # an attempt that fails must not take away what others have brought
        is_empty = self._connected().execute(
            sql.SQL("SELECT NOT EXISTS (SELECT FROM {} t WHERE {})").format(
                sql.Identifier(*plan.target), of_this_source(plan)
            )
        )
        return _DIRECT if is_empty.fetchone() == (True,) else _SHADOW

    def _writer(
        self, copy: Copy, order: CopyOrder, plan: TablePlan, into: TableName, *, is_binary: bool
    ) -> PostgresRangeWriter:
        columns, own = copied_columns(order, plan), own_values(plan)
        return PostgresRangeWriter(
            dsn=self._options.url,
            owner=self._owner,
            table=order.table,
            copy_id=copy.copy_id,
            target=into,
            columns=tuple(columns),
            literals=tuple(own.values()),
            target_columns=(*columns.values(), *own),
            is_binary=is_binary,
        )

    def _empty(self, plan: TablePlan) -> bool:
        """Take out this source's rows, and nothing else; whether that can be done."""
        connection, target = self._connected(), sql.Identifier(*plan.target)
        refuse_new_code(connection, plan)
        with in_replica_role(connection) as is_alone:
            if plan.is_referenced and not is_alone:
                return False  # foreign keys would refuse it, or take rows of other tables along
            if plan.fixed or plan.is_referenced:
                statement = sql.SQL("DELETE FROM {} t WHERE {}").format(
                    target, of_this_source(plan)
                )
            else:
                statement = sql.SQL("TRUNCATE {}").format(target)
            connection.execute(statement)
        return True

    def _make_shadow(self, table: TableName, plan: TablePlan, columns: tuple[str, ...]) -> None:
        shadow = sql.Identifier(*shadow_name(self._owner, table))
        connection = self._connected()
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(shadow))
        connection.execute(
            sql.SQL("CREATE UNLOGGED TABLE {} AS SELECT {} FROM {} WITH NO DATA").format(
                shadow,
                sql.SQL(", ").join(map(sql.Identifier, columns)),
                sql.Identifier(*plan.target),
            )
        )

    def arrived(self, copy: Copy) -> dict[TableName, Arrived]:
        """What penstock.ranges says."""
        rows = self._execute(records.ARRIVED, (*self._owner, copy.copy_id))
        return {
            TableName(schema, name): Arrived(frozenset(numbers), row_count, byte_count)
            for schema, name, numbers, row_count, byte_count in rows
        }

    def finish(self, orders: Sequence[CopyOrder], copy: Copy) -> dict[TableName, Exception]:
        """Key and indexes, or the merge of the shadow table; then a table may catch up."""
        for _ in orders:
            fault_point("copy.before_finish")
        done = self._finish_together(orders, copy) if len(orders) > 1 else set()
        failures: dict[TableName, Exception] = {}
        away: SinkError | None = None
        for order in orders:
            if order.table in done:
                continue
            failed = away or self._finish_alone(order, copy)
            if failed is not None:
                failures[order.table] = failed
            if isinstance(failed, SinkError) and failed.remedy is Remedy.TIME:
                away = failed  # the others need not find that out, too
        for _ in orders:
            fault_point("copy.after_finish")
        return failures

    def _finish_alone(self, order: CopyOrder, copy: Copy) -> Exception | None:
        """Why it could not be finished."""
        try:
            with self._connection_to_finish() as connection:
                self._finish(connection, order, copy)
        except psycopg.Error as error:
            if is_about_table(error):
                return self._unfit(order.table, error)
            return classify_target_error(error, self._options.url)
        except (PenstockError, CopySuperseded, CopyLost) as error:
            return error
        return None

    def _finish_together(self, orders: Sequence[CopyOrder], copy: Copy) -> set[TableName]:
        """Small ones, many in a transaction; those that are not done are finished one by one."""
        tables = [self._whole(order) for order in orders]
        try:
            with self._connection_to_finish() as connection:
                done = finish_together(connection, self._owner, copy, tables, self._options)
                for each in tables:
                    if each.order.table in done and self._counts(each.order):
                        set_sequences(connection, each.plan.target, each.order.structure)
        except psycopg.Error as error:
            if not _is_about_some(error):
                raise classify_target_error(error, self._options.url) from None
            return set()
        return done

    def _whole(self, order: CopyOrder) -> WholeTable:
        table_mapping = self._mapped[order.table]
        return WholeTable(
            order,
            self._plans[order.table],
            target_description(order.shape, table_mapping),
            target_structure(order.structure, table_mapping, self._table_mappings.of),
        )

    def _counts(self, order: CopyOrder) -> bool:
        """Whether sequences at the target are to go on where the source's stand."""
        return bool(order.structure.sequences) and self._mapped[order.table].is_like_source

    @contextmanager
    def _connection_to_finish(self) -> Iterator[Connection]:
        """Several tables are finished at once, and an index takes its time."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect_to_finish()
        is_usable = False
        self._finishing.add(connection)
        try:
            self._require_going_on()
            yield connection
            is_usable = True
        finally:
            self._finishing.discard(connection)
            if is_usable:
                self._idle.append(connection)
            else:
                connection.close()

    def _require_going_on(self) -> None:
        if self._is_cancelled:
            raise SinkError("asked to stop", str(self._options.url), "nothing, it is begun again")

    def _connect_to_finish(self) -> Connection:
        self._require_going_on()
        connection = cancellable(connect_target(self._options.url, "penstock copies"))
        with target_errors(self._options.url):
            set_replica_role(connection)
            # What is made before the table is recorded as whole is lost with that record, if at all.
            connection.execute("SET synchronous_commit = off")
        return connection

    def _make_pieces(
        self,
        connection: Connection,
        order: CopyOrder,
        of_copy: tuple[str, ...],
        *,
        made_by_us: bool,
        is_merged: bool,
    ) -> list[str]:
        """Make what a table has beside its rows, while nothing else waits for it; what is left out."""
        notes: list[str] = []

        def hold() -> None:
            """Or another table might have the name by now."""
            if connection.execute(records.KEEP_NAME, of_copy).fetchone() is None:
                raise CopySuperseded(str(order.table))

        if is_merged:
            with connection.transaction(), connection.cursor() as cursor:
                hold()
                notes += self._follow(cursor, order, made_by_us)
        if made_by_us:
            notes += self._complete(connection, order, self._plans[order.table], hold)
        for note in notes:
            _log.warning("%s: %s", order.table, note)
        return notes

    def _finish(self, connection: Connection, order: CopyOrder, copy: Copy) -> None:
        table, plan = order.table, self._plans[order.table]
        of_copy = (*self._owner, *table, copy.copy_id)
        row = connection.execute(records.STANDS, of_copy).fetchone()
        if row is None:
            raise CopySuperseded(str(table))
        way, made_by_us, is_filled, begun_at = row
        moment = copy.taken_at or begun_at
        if way == _SHADOW and is_filled:
            # What is claimed of rows holds for those that the copy brings, not for the old ones.
            self._merge_again(connection, order, of_copy, moment)
            way = "merged"
        shadow = shadow_name(self._owner, table) if way == _SHADOW else None
        notes = self._make_pieces(
            connection, order, of_copy, made_by_us=made_by_us, is_merged=shadow is None
        )
        with connection.transaction(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL synchronous_commit = on")
            recorded = cursor.execute(records.RECORDED, of_copy).fetchone()
            require_whole(cursor, order, shadow, recorded)
            if shadow is not None:
                # Rows from elsewhere: what they mean is decided once, together with the record of it.
                names = (*copied_columns(order, plan).values(), *own_values(plan))
                merge_shadow(cursor, plan, shadow, names, order, self._options.on_conflict, moment)
                notes += self._follow(cursor, order, made_by_us)
            values = (
                str(copy.lsn),
                "\n".join(map(printable, notes)) or None,
                self._options.create_indexes,
            )
            count = cursor.execute(records.FINISH, (*values, *of_copy)).fetchone()
            if count is None:
                raise CopySuperseded(str(table))  # and what was merged is rolled back
            cursor.execute(records.FORGET_RANGES, (*self._owner, *table))
        self._finishing.discard(connection)  # what follows is quick, and is not repeated
        if self._counts(order):
            set_sequences(connection, plan.target, order.structure)
        if count[0] >= _ANALYZED_ROWS:
            connection.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(*plan.target)))

    def _merge_again(
        self, connection: Connection, order: CopyOrder, of_copy: tuple[str, ...], moment: datetime
    ) -> None:
        """Make the table equal to the shadow table. Repeated with another copy, that does no harm.

        Raises:
            CopySuperseded: the table is not this copy's any more.
            CopyLost: some of it is not there any more.
        """
        plan, shadow = self._plans[order.table], shadow_name(self._owner, order.table)
        names = (*copied_columns(order, plan).values(), *own_values(plan))
        with connection.transaction(), connection.cursor() as cursor:
            if cursor.execute(records.HOLD, of_copy).fetchone() is None:
                raise CopySuperseded(str(order.table))
            require_whole(
                cursor, order, shadow, cursor.execute(records.RECORDED, of_copy).fetchone()
            )
            merge_shadow(cursor, plan, shadow, names, order, None, moment)
            cursor.execute(records.MERGED, (*self._owner, *order.table))
        fault_point("copy.after_merge")

    def _follow(self, cursor: psycopg.Cursor[Any], order: CopyOrder, made_by_us: bool) -> list[str]:
        store = ShapeStore(*self._owner)
        return follow_after_copy(cursor, self._table_mappings, store, order, made_by_us)

    def _complete(
        self, connection: Connection, order: CopyOrder, plan: TablePlan, hold: Callable[[], None]
    ) -> list[str]:
        """Make what belongs to a table of penstock's own beside its rows; a line for what was not."""
        table_mapping, rules = self._mapped[order.table], self._options.expression_rules
        made = target_description(order.shape, table_mapping)
        with connection.transaction():
            hold()
            notes = complete_columns(connection, made, plan.target, rules)
        structure = target_structure(order.structure, table_mapping, self._table_mappings.of)
        if table_mapping.is_like_source and table_mapping.policy is SchemaChanges.APPLY:
            required = [column.name for column in made.columns if column.not_null]
            notes += add_not_null(connection, plan.target, required, hold)
        add_key(connection, plan.target, structure, hold=hold)
        if self._options.create_indexes and _has_more_than_key(structure):
            columns = structured_columns(order, plan)
            notes += add_indexes(connection, plan.target, structure, columns, rules, hold=hold)
        return notes

    def fail(self, table: TableName, error: PenstockError, copy: Copy | None = None) -> None:
        """Record why; there is another attempt later."""
        if copy is not None or self.claim():  # else it may be another one's by now
            values = (str(error), *self._owner, *table, *self._of(copy))
            self._execute_only(records.FAIL, values)

    def postpone(self, table: TableName, lsn: Lsn) -> None:
        """Have it pending at a position that the sink has yet to reach."""
        self._execute_only(records.POSTPONE, (str(lsn), *self._owner, *table))

    def begin_again(self, table: TableName, copy: Copy | None = None) -> None:
        """Have it pending."""
        self._execute_only(records.BEGIN_AGAIN, (*self._owner, *table, *self._of(copy)))

    def _of(self, copy: Copy | None) -> tuple[str | None, str | None]:
        copy_id = None if copy is None else copy.copy_id
        return copy_id, copy_id

    def ask(self, tables: Collection[TableName]) -> list[TableName]:
        """Write the request into penstock.tables."""
        with target_errors(self._options.url):
            if not has_objects(self._connected()):
                return []  # nobody has delivered anything yet
            make_objects(self._connected())
            return TargetTables(*self._owner).ask(self._connected(), tables)

    def after_attach(self, on_made: Callable[[int, int], None] = lambda _made, _due: None) -> bool:
        """Foreign keys hold once both tables stand at the same position."""
        if not self._has_objects:
            return False
        with self._lock, target_errors(self._options.url):
            connection, store = self._connected(), ShapeStore(*self._owner)
            were_due = give_due_names(connection, self._table_mappings)
            were_due |= make_due_keys(connection, self._table_mappings, store, self._owner, on_made)
            if self._review.is_due and self._review.run(connection):
                make_due_keys(connection, self._table_mappings, store, self._owner, on_made)
                return True
            return were_due

    @property
    def is_review_due(self) -> bool:
        """Whether notes are to be held against the target again."""
        return self._review.is_due

    def interrupt(self) -> None:
        """Cancel indexes, keys and merges that are under way: their tables are begun again."""
        self._is_cancelled = True
        used = list(self._finishing)
        if self._connection is not None:
            used.append(self._connection)
        cancel_all(used)

    def close(self) -> None:
        """Let go of the target."""
        self._claim = None
        while self._idle:
            self._idle.pop().close()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _unfit(self, table: TableName, error: psycopg.Error) -> TargetTableUnfit:
        target = self._table_mappings.target(table)
        return TargetTableUnfit(
            f"{target} cannot take the copy: SQLSTATE {error.sqlstate} {type(error).__name__}"
            + (f" ({error.diag.constraint_name})" if error.diag.constraint_name else ""),
            str(table),
            f"fix {target}, or the rows at the source; the copy is tried again by itself",
        )

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            raise SinkError(
                "not connected", str(self._options.url), "nothing, penstock tries again"
            )
        return self._connection

    def _execute(self, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        with self._lock, target_errors(self._options.url):
            return self._connected().execute(query, values).fetchall()

    def _execute_only(self, query: str, values: tuple[Any, ...]) -> None:
        with self._lock, target_errors(self._options.url):
            self._connected().execute(query, values)


def _is_about_some(error: psycopg.Error) -> bool:
    """Whether tables of a set, or that there were so many, may be to blame: each is tried alone."""
    state = error.sqlstate or ""
    return is_about_table(error) or state[:2] in ("40", "53", "55", "XX")


def _has_more_than_key(structure: TableStructure) -> bool:
    return bool(structure.indexes or structure.constraints or structure.identity_index)
