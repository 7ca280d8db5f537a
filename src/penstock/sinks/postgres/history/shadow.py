"""Merge the copy in a shadow table into a history, in the caller's transaction.

A copy says how rows are, not since when. What differs is taken as a change at the moment of the copy, and
so is staged and merged like one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from psycopg import sql

from penstock.sinks.postgres.history import merge as history
from penstock.sinks.postgres.mapping.plan import HistoryTimes, StagedStep
from penstock.sinks.postgres.mapping.target_shape import LAST_INSTANT
from penstock.sinks.postgres.merge.statements import of_this_source, same_value
from penstock.sinks.postgres.options import OnConflict

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from penstock.sinks.postgres.mapping.plan import HistoryPlan, TablePlan, TargetColumn
    from penstock.table import TableName

    Cursor = psycopg.Cursor[Any]

_STAGE = "copied_versions"
_2000 = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class CopiedVersions:
    """The rows of the shadow table, and the history they are to be merged into."""

    plan: TablePlan
    history: HistoryPlan
    shadow: TableName
    columns: tuple[TargetColumn, ...]
    key: tuple[str, ...]
    moment: datetime

    def any_there(self) -> sql.Composed:
        """Whether a row that was copied is there."""
        return sql.SQL("SELECT EXISTS (SELECT FROM {} t, {} s WHERE {} AND {})").format(
            self._target, self._shadow, self._open(), self._same_key()
        )

    @property
    def _target(self) -> sql.Identifier:
        return sql.Identifier(*self.plan.target)

    @property
    def _shadow(self) -> sql.Identifier:
        return sql.Identifier(*self.shadow)

    def _open(self) -> sql.Composed:
        """Rows of this source that are still so."""
        return sql.SQL("{} AND t.{} = {}::{}").format(
            of_this_source(self.plan),
            sql.Identifier(self.history.end),
            sql.Literal(LAST_INSTANT),
            sql.SQL(self.history.end_type),
        )

    def _same_key(self) -> sql.Composed:
        return sql.SQL(" AND ").join(same_value(self.plan, name) for name in self.key)

    def _values(self, side: str) -> sql.Composed:
        return sql.SQL(", ").join(sql.Identifier(side, column.name) for column in self.columns)

    def _staged(self, operation: sql.Composable, side: str) -> sql.Composed:
        """A staged row: what happens, that it is the first of its key, since when, until when."""
        cells = sql.SQL(", ").join(
            sql.SQL("{}::{} AS {}").format(
                sql.Identifier(side, column.name),
                sql.SQL(column.stage_type),
                sql.Identifier(f"c{place}"),
            )
            for place, column in enumerate(self.columns)
        )
        return sql.SQL(
            '{}::"char" AS op, true AS f, {}::{} AS a, NULL::{} AS u, false AS d, {}'
        ).format(
            operation,
            sql.Literal(self.moment.astimezone(UTC).isoformat(" ")),
            sql.SQL(self.history.start_type),
            sql.SQL(self.history.end_type),
            cells,
        )

    def stage(self, *, changes: bool, removes: bool) -> sql.Composed:
        """Have what differs as staged rows: what is new, what changed, what is gone."""
        parts = self._by_key(changes=changes) if self.key else self._by_content()
        wanted = parts if removes else parts[:1]
        return sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS {}").format(
            sql.Identifier(_STAGE), sql.SQL(" UNION ALL ").join(wanted)
        )

    def _by_key(self, *, changes: bool) -> list[sql.Composed]:
        is_new = sql.SQL("t.tableoid IS NULL")
        differs = sql.SQL("ROW({})::record *<> ROW({})::record").format(
            self._values("s"), self._values("t")
        )
        return [
            sql.SQL("SELECT {} FROM {} s LEFT JOIN {} t ON {} AND {} WHERE {}").format(
                self._staged(sql.SQL("CASE WHEN {} THEN 'I' ELSE 'U' END").format(is_new), "s"),
                self._shadow,
                self._target,
                self._open(),
                self._same_key(),
                sql.SQL("{} OR {}").format(is_new, differs) if changes else is_new,
            ),
            sql.SQL(
                "SELECT {} FROM {} t WHERE {} AND NOT EXISTS (SELECT FROM {} s WHERE {})"
            ).format(
                self._staged(sql.Literal("D"), "t"),
                self._target,
                self._open(),
                self._shadow,
                self._same_key(),
            ),
        ]

    def _by_content(self) -> list[sql.Composed]:
        """Without a key: how many more or fewer of equal rows there are."""

        def numbered(side: str, place: sql.Composable) -> sql.Composed:
            return sql.SQL(
                "(SELECT *, {row} AS r, row_number() OVER (PARTITION BY {row}) AS number"
                " FROM {place})"
            ).format(
                row=sql.SQL("ROW({})::text").format(self._values(side)),
                place=place,
            )

        ours = numbered("s", sql.SQL("{} s").format(self._shadow))
        theirs = numbered("t", sql.SQL("{} t WHERE {}").format(self._target, self._open()))
        missing = "SELECT {} FROM {} {} WHERE NOT EXISTS (SELECT FROM {} o WHERE o.r = {}.r AND o.number = {}.number)"
        return [
            sql.SQL(missing).format(
                self._staged(sql.Literal(letter), side),
                here,
                sql.SQL(side),
                there,
                sql.SQL(side),
                sql.SQL(side),
            )
            for letter, side, here, there in (
                ("I", "s", ours, theirs),
                ("D", "t", theirs, ours),
            )
        ]

    def step(self, counts: dict[str, int]) -> StagedStep:
        """What was staged, as the merge takes it."""
        names = [column.name for column in self.columns]
        at = (self.moment - _2000) // timedelta(microseconds=1)
        return StagedStep(
            table=self.plan.source,
            kind="net",
            columns=self.columns,
            key=tuple(names.index(name) for name in self.key),
            has_operations=True,
            insert_count=counts.get("I", 0),
            update_count=counts.get("U", 0),
            delete_count=counts.get("D", 0),
            times=HistoryTimes(at, at, (self.history.start_type, self.history.end_type)),
        )


def merge_copied_versions(
    cursor: Cursor,
    plan: TablePlan,
    shadow: TableName,
    columns: Sequence[str],
    key: Sequence[str],
    conflict: OnConflict | None,
    moment: datetime,
) -> bool:
    """Bring what differs over; False where `on_conflict: stop` does not allow it.

    `conflict` None: what is still so becomes equal to the copy. Otherwise no row ends that is not copied.
    """
    assert plan.history is not None
    taken = tuple(column for column in plan.columns if column.name in columns)
    key = key if set(key) <= {column.name for column in taken} else ()
    copied = CopiedVersions(plan, plan.history, shadow, taken, tuple(key), moment)
    if conflict is OnConflict.STOP and (
        not key or cursor.execute(copied.any_there()).fetchone() == (True,)
    ):
        return False
    cursor.execute(copied.stage(changes=conflict is not OnConflict.KEEP, removes=conflict is None))
    stage = sql.Identifier("pg_temp", _STAGE)
    cursor.execute(sql.SQL("ANALYZE {}").format(stage))
    rows = cursor.execute(
        sql.SQL("SELECT op::text, count(*) FROM {} GROUP BY 1").format(stage)
    ).fetchall()
    step = copied.step(dict(rows))
    history.merge(cursor, plan, plan.history, step, stage, OnConflict.REPLACE)
    return True
