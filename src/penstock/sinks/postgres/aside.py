"""Merge a copy that lies aside into its table, in the caller's transaction.

`conflict` None: the table becomes equal to the copy. Otherwise its rows came from elsewhere, and what
they mean is what `on_conflict` says; none of them is removed.
"""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Any

from psycopg import sql

from penstock.errors import TargetTableUnfit
from penstock.sinks.postgres.options import OnConflict
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from penstock.sinks.copying import CopyOrder
    from penstock.sinks.postgres.plan import TablePlan

    Cursor = psycopg.Cursor[Any]

_log = logging.getLogger(__name__)


def aside_name(owner: tuple[str, str], table: TableName) -> TableName:
    """Where the rows of a table lie that cannot go into it directly."""
    told = "/".join((*owner, *table))
    return TableName("penstock", f"copy_{hashlib.sha256(told.encode()).hexdigest()[:24]}")


def merge_aside(
    cursor: Cursor,
    plan: TablePlan,
    aside: TableName,
    columns: Sequence[str],
    order: CopyOrder,
    conflict: OnConflict | None,
) -> None:
    """Bring the rows over, and drop the table they lay in.

    Raises:
        TargetTableUnfit: rows that must not be touched are in the way.
    """
    key = order.description.key_columns if _is_unique(cursor, plan.target) else ()
    build = _Merge(plan, aside, columns, key)
    if build.has_key:
        cursor.execute(build.index())
        cursor.execute(build.analyze())
    if conflict is None:
        _make_equal(cursor, build)
    elif build.has_key:
        if conflict is OnConflict.STOP:
            _refuse_any(cursor, build, plan)
        if conflict is OnConflict.REPLACE:
            cursor.execute(build.update())
        _tell_others(cursor, build, plan)
    elif conflict is OnConflict.STOP:
        raise _in_the_way(plan)
    cursor.execute(build.insert())
    cursor.execute(build.drop())


def _make_equal(cursor: Cursor, build: _Merge) -> None:
    """Take away what the copy does not have; what it has besides is inserted afterwards."""
    role = cursor.execute("SHOW session_replication_role").fetchone()
    if not build.has_key:
        cursor.execute(build.delete_all())
    elif build.is_whole_row and role == ("replica",):
        # Unique values may have changed places: what differs goes first, and comes again.
        cursor.execute(build.delete_different())
    else:
        # Columns of the target's own are kept, and no DELETE cascades to other tables.
        cursor.execute(build.delete_vanished())
        cursor.execute(build.update())


def _is_unique(cursor: Cursor, target: TableName) -> bool:
    """Whether the target keeps rows apart; where it does not, a key may be there twice."""
    row = cursor.execute(
        "SELECT EXISTS (SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid"
        " JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s AND i.indisunique AND i.indisvalid)",
        target,
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


def _tell_others(cursor: Cursor, build: _Merge, plan: TablePlan) -> None:
    row = cursor.execute(build.count_others()).fetchone()
    if row is not None and row[0]:
        _log.warning(
            "%s has %d rows that the source does not; they stay (penstock tables resync removes them)",
            plan.target,
            row[0],
        )


class _Merge:
    """The statements for one table: t is the target, s what lies aside."""

    def __init__(
        self, plan: TablePlan, aside: TableName, columns: Sequence[str], key: Sequence[str]
    ) -> None:
        self._target = sql.Identifier(*plan.target)
        self._aside = sql.Identifier(*aside)
        self._columns = list(columns)
        self._key = list(key) if set(key) <= set(columns) else []
        self.is_whole_row = not plan.others and len(columns) == len(plan.columns)
        self._updatable = [
            column.name for column in plan.columns if column.is_updatable and column.name in columns
        ]

    @property
    def has_key(self) -> bool:
        return bool(self._key)

    def _same_key(self) -> sql.Composed:
        return sql.SQL(" AND ").join(
            sql.SQL("t.{0} = s.{0}").format(sql.Identifier(name)) for name in self._key
        )

    def _listed(self, names: Sequence[str], prefix: str = "") -> sql.Composed:
        return sql.SQL(", ").join(
            sql.SQL(f"{prefix}{{}}").format(sql.Identifier(name)) for name in names
        )

    def index(self) -> sql.Composed:
        return sql.SQL("CREATE INDEX ON {} ({})").format(self._aside, self._listed(self._key))

    def analyze(self) -> sql.Composed:
        return sql.SQL("ANALYZE {}").format(self._aside)

    def delete_all(self) -> sql.Composed:
        return sql.SQL("DELETE FROM {}").format(self._target)

    def delete_vanished(self) -> sql.Composed:
        return sql.SQL("DELETE FROM {} t WHERE NOT EXISTS (SELECT FROM {} s WHERE {})").format(
            self._target, self._aside, self._same_key()
        )

    def delete_different(self) -> sql.Composed:
        return sql.SQL(
            "DELETE FROM {} t WHERE NOT EXISTS (SELECT FROM {} s WHERE {}"
            " AND ROW({})::record *= ROW({})::record)"
        ).format(
            self._target,
            self._aside,
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
            self._aside,
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
            self._aside,
            missing,
        )

    def any_there(self) -> sql.Composed:
        return sql.SQL("SELECT EXISTS (SELECT FROM {} t, {} s WHERE {})").format(
            self._target, self._aside, self._same_key()
        )

    def count_others(self) -> sql.Composed:
        return sql.SQL(
            "SELECT count(*) FROM {} t WHERE NOT EXISTS (SELECT FROM {} s WHERE {})"
        ).format(self._target, self._aside, self._same_key())

    def drop(self) -> sql.Composed:
        return sql.SQL("DROP TABLE {}").format(self._aside)
