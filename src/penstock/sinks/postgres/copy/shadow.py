"""Merge the copy in a shadow table into its table, in the caller's transaction.

`conflict` None: the table becomes equal to the copy. Otherwise its rows came from elsewhere, and what
they mean is what `on_conflict` says; none of them is removed.
"""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Any

from psycopg import sql

from penstock.errors import TargetTableUnfit
from penstock.sinks.copying import CopyLost
from penstock.sinks.postgres.history.shadow import merge_copied_versions
from penstock.sinks.postgres.mapping.target import refuse_new_code
from penstock.sinks.postgres.merge.statements import of_this_source, same_value
from penstock.sinks.postgres.options import Kind, OnConflict
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    import psycopg

    from penstock.sinks.copying import CopyOrder
    from penstock.sinks.postgres.mapping.plan import TablePlan

    Cursor = psycopg.Cursor[Any]

_log = logging.getLogger(__name__)


def shadow_name(owner: tuple[str, str], table: TableName) -> TableName:
    """Where the rows of a table lie that cannot go into it directly."""
    named = "/".join((*owner, *table))
    return TableName("penstock", f"copy_{hashlib.sha256(named.encode()).hexdigest()[:24]}")


def require_whole(
    cursor: Cursor, order: CopyOrder, shadow: TableName | None, recorded: Any
) -> None:
    """See that all that was recorded of a copy is there still.

    A target that crashes may lose ranges that were not flushed yet, with their records; and of an
    unlogged table it keeps nothing, though the records stay.

    Raises:
        CopyLost: it is not, and what is there must not be merged.
    """
    range_count, row_count = recorded
    if range_count != order.range_count:
        raise CopyLost(f"{range_count} ranges are there, wanted {order.range_count}")
    if shadow is None:
        return
    query = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(*shadow))
    (found,) = cursor.execute(query).fetchone() or (0,)
    if found != row_count:
        raise CopyLost(f"{found} rows are in the shadow table, {row_count} had arrived")


def merge_shadow(
    cursor: Cursor,
    plan: TablePlan,
    shadow: TableName,
    columns: Sequence[str],
    order: CopyOrder,
    conflict: OnConflict | None,
    moment: datetime,
) -> None:
    """Bring the rows over, and drop the table they lay in. `moment` is when they were so.

    Raises:
        TargetTableUnfit: rows that must not be touched are in the way.
        TargetObjectsForeign: the table would run what another role has made.
    """
    refuse_new_code(cursor.connection, plan)
    is_again = conflict is None
    if conflict is None and (plan.is_mixed or plan.kind is Kind.APPEND):
        # What the copy has not may be of another table, or is to stay: nothing is taken away.
        conflict = OnConflict.REPLACE
    has_unique_key = conflict is None or _is_unique(cursor, plan.target)
    build = _Merge(plan, shadow, columns, order.shape.key_columns if has_unique_key else ())
    if plan.history is None and build.has_key:
        cursor.execute(build.index())
        cursor.execute(build.analyze())
    # Single statements over the whole table, which no limit is meant for; no other table waits for them.
    if plan.history is not None:
        called = [dict(plan.names).get(name, name) for name in order.shape.key_columns]
        if not merge_copied_versions(cursor, plan, shadow, columns, called, conflict, moment):
            raise _in_the_way(plan)
    else:
        _merge_rows(cursor, plan, build, conflict, is_again=is_again)
    cursor.execute(build.drop())


def _merge_rows(
    cursor: Cursor, plan: TablePlan, build: _Merge, conflict: OnConflict | None, *, is_again: bool
) -> None:
    if conflict is None:
        _make_equal(cursor, build)
    else:
        _settle_rows_there(cursor, build, plan, conflict)
        if build.has_key and not is_again:
            _log_others(cursor, build, plan)
    cursor.execute(build.insert_more() if is_again and not build.has_key else build.insert())


def _settle_rows_there(
    cursor: Cursor, build: _Merge, plan: TablePlan, conflict: OnConflict
) -> None:
    """Rows that came from elsewhere mean what `on_conflict` says."""
    if conflict is OnConflict.STOP:
        if not build.has_key:
            raise _in_the_way(plan)
        _refuse_any(cursor, build, plan)
    elif conflict is OnConflict.REPLACE and build.has_key:
        cursor.execute(build.update())


def _make_equal(cursor: Cursor, build: _Merge) -> None:
    """Take away what the copy does not have; what it has besides is inserted afterwards."""
    role = cursor.execute("SHOW session_replication_role").fetchone()
    if not build.has_key:
        cursor.execute(build.delete_all())
        return
    if not _is_unique(cursor, build.target, build.key):
        cursor.execute(build.delete_surplus())
    if build.is_whole_row and role == ("replica",):
        # Unique values may have changed places: what differs goes first, and comes again.
        cursor.execute(build.delete_different())
    else:
        # Columns of the target's own are kept, and no DELETE cascades to other tables.
        cursor.execute(build.delete_vanished())
        cursor.execute(build.update())


def _is_unique(cursor: Cursor, target: TableName, key: Sequence[str] | None = None) -> bool:
    """Whether the target keeps rows unique; where it does not, a key may be there twice.

    With `key`: whether it does so by these columns.
    """
    row = cursor.execute(
        "SELECT EXISTS (SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid"
        " JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s AND i.indisunique AND i.indisvalid"
        " AND (%s::text[] IS NULL OR (i.indpred IS NULL AND NOT EXISTS ("
        "   SELECT FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k(number, place)"
        "   LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number"
        "   WHERE k.place <= i.indnkeyatts AND coalesce(a.attname <> ALL (%s), true)))))",
        (*target, key, key),
    ).fetchone()
    return row == (True,)


def _refuse_any(cursor: Cursor, build: _Merge, plan: TablePlan) -> None:
    if cursor.execute(build.any_there()).fetchone() == (True,):
        raise _in_the_way(plan)


def _in_the_way(plan: TablePlan) -> TargetTableUnfit:
    return TargetTableUnfit(
        f"{plan.target} holds rows already, and on_conflict is stop",
        str(plan.source),
        f"empty {plan.target}, or set on_conflict: replace or keep",
    )


def _log_others(cursor: Cursor, build: _Merge, plan: TablePlan) -> None:
    if plan.is_mixed:
        return  # they are another table's
    row = cursor.execute(build.count_others()).fetchone()
    if row is not None and row[0]:
        _log.warning(
            "%s has %d rows that the source does not; they stay (penstock tables PIPELINE.yml resync removes them)",
            plan.target,
            row[0],
        )


class _Merge:
    """The statements for one table: t is the target, s the shadow table."""

    def __init__(
        self, plan: TablePlan, shadow: TableName, columns: Sequence[str], key: Sequence[str]
    ) -> None:
        self.target = plan.target
        self._target = sql.Identifier(*plan.target)
        self._shadow = sql.Identifier(*shadow)
        self._columns = list(columns)
        self._ours = of_this_source(plan)
        self._plan = plan
        names = dict(plan.names)
        own = [each.name for each in plan.fixed]
        key = [names.get(name, name) for name in key]
        self._key = [*own, *key] if key and set(key) <= set(columns) else []
        self.is_whole_row = not plan.others and len(columns) == len(plan.columns) + len(own)
        self._updatable = [
            column.name for column in plan.columns if column.is_updatable and column.name in columns
        ]

    @property
    def key(self) -> list[str]:
        return self._key

    @property
    def has_key(self) -> bool:
        return bool(self._key)

    def _same_key(self) -> sql.Composed:
        return sql.SQL(" AND ").join(same_value(self._plan, name) for name in self._key)

    def _listed(self, names: Sequence[str], prefix: str = "") -> sql.Composed:
        return sql.SQL(", ").join(
            sql.SQL(f"{prefix}{{}}").format(sql.Identifier(name)) for name in names
        )

    def index(self) -> sql.Composed:
        return sql.SQL("CREATE INDEX ON {} ({})").format(self._shadow, self._listed(self._key))

    def analyze(self) -> sql.Composed:
        return sql.SQL("ANALYZE {}").format(self._shadow)

    def delete_all(self) -> sql.Composed:
        return sql.SQL("DELETE FROM {} t WHERE {}").format(self._target, self._ours)

    def delete_surplus(self) -> sql.Composed:
        """Leave one row of each key: nothing at the target has kept them unique by it."""
        return sql.SQL(
            "DELETE FROM {target} t USING (SELECT t.tableoid AS part, t.ctid AS place,"
            " row_number() OVER (PARTITION BY {key}) AS number FROM {target} t WHERE {ours}) d"
            " WHERE t.tableoid = d.part AND t.ctid = d.place AND d.number > 1"
        ).format(target=self._target, key=self._listed(self._key, "t."), ours=self._ours)

    def delete_vanished(self) -> sql.Composed:
        return sql.SQL(
            "DELETE FROM {} t WHERE {} AND NOT EXISTS (SELECT FROM {} s WHERE {})"
        ).format(self._target, self._ours, self._shadow, self._same_key())

    def delete_different(self) -> sql.Composed:
        return sql.SQL(
            "DELETE FROM {} t WHERE {} AND NOT EXISTS (SELECT FROM {} s WHERE {}"
            " AND ROW({})::record *= ROW({})::record)"
        ).format(
            self._target,
            self._ours,
            self._shadow,
            self._same_key(),
            self._listed(self._columns, "t."),
            self._listed(self._columns, "s."),
        )

    def update(self) -> sql.Composed:
        if not self._updatable:
            return sql.SQL("SELECT 1 WHERE false").format()
        # *<> compares what is stored, so that every type has it.
        return sql.SQL(
            "UPDATE {} t SET {} FROM {} s WHERE {} AND ROW({})::record *<> ROW({})::record"
        ).format(
            self._target,
            sql.SQL(", ").join(
                sql.SQL("{0} = s.{0}").format(sql.Identifier(name)) for name in self._updatable
            ),
            self._shadow,
            self._same_key(),
            self._listed(self._updatable, "t."),
            self._listed(self._updatable, "s."),
        )

    def insert(self) -> sql.Composed:
        missing: sql.Composable = sql.SQL("")
        if self._key:
            missing = sql.SQL(" WHERE NOT EXISTS (SELECT FROM {} t WHERE {})").format(
                self._target, self._same_key()
            )
        return sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {} s{}").format(
            self._target,
            self._listed(self._columns),
            self._listed(self._columns, "s."),
            self._shadow,
            missing,
        )

    def insert_more(self) -> sql.Composed:
        """Without a key: as many of equal rows as the copy has more of."""
        numbered = "SELECT *, {row} AS r, row_number() OVER (PARTITION BY {row}) AS number FROM "

        def rows(side: str, place: sql.Composable) -> sql.Composed:
            row = sql.SQL("ROW({})::text").format(self._listed(self._columns, f"{side}."))
            return sql.SQL(numbered + "{place}").format(row=row, place=place)

        return sql.SQL(
            "INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM ({}) s WHERE NOT EXISTS"
            " (SELECT FROM ({}) o WHERE o.r = s.r AND o.number = s.number)"
        ).format(
            self._target,
            self._listed(self._columns),
            self._listed(self._columns, "s."),
            rows("s", sql.SQL("{} s").format(self._shadow)),
            rows("t", sql.SQL("{} t WHERE {}").format(self._target, self._ours)),
        )

    def any_there(self) -> sql.Composed:
        return sql.SQL("SELECT EXISTS (SELECT FROM {} t, {} s WHERE {})").format(
            self._target, self._shadow, self._same_key()
        )

    def count_others(self) -> sql.Composed:
        return sql.SQL(
            "SELECT count(*) FROM {} t WHERE {} AND NOT EXISTS (SELECT FROM {} s WHERE {})"
        ).format(self._target, self._ours, self._shadow, self._same_key())

    def drop(self) -> sql.Composed:
        return sql.SQL("DROP TABLE {}").format(self._shadow)
