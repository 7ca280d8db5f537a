"""Parked rows of one table are merged again, in the order in which they came.

Those of one step are tried as one set, as they would have been at first; rows of a net step then one by one. Moves of
one step may need each other, so they go together or not at all. Nothing goes before an earlier row of its key. What goes
through leaves penstock.parked in the same transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from psycopg import sql
from psycopg.rows import class_row

from penstock.errors import PenstockError, TargetTableUnfit
from penstock.failpoints import fault_point
from penstock.sinks.postgres.mapping.plan import StagedStep
from penstock.sinks.postgres.merge.careful import explain, merge_table
from penstock.sinks.postgres.merge.conflicts import add_conflicts
from penstock.sinks.postgres.merge.copy_text import cell_text

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import psycopg

    from penstock.sinks.postgres.mapping.plan import TablePlan
    from penstock.sinks.postgres.merge.stages import Stages
    from penstock.sinks.postgres.options import OnConflict

    Connection = psycopg.Connection[Any]

_READ = """
SELECT id, commit_lsn::text, step, op, key, old_key, row_values, request, reason
FROM penstock.parked
WHERE pipeline = %s AND source = %s AND schema_name = %s AND table_name = %s ORDER BY id
"""


@dataclass(frozen=True)
class _Row:
    """One row of penstock.parked."""

    id: int
    commit_lsn: str
    step: int
    op: str
    key: dict[str, str | None]
    old_key: dict[str, str | None] | None
    row_values: dict[str, str | None]
    request: str | None
    reason: str | None


class Unparking:
    """Tries what is parked of one table."""

    def __init__(
        self,
        connection: Connection,
        owner: tuple[str, str],
        plan: TablePlan,
        stages: Stages,
        conflict: OnConflict,
        *,
        replica_role: bool,
    ) -> None:
        self._connection = connection
        self._owner = owner
        self._plan = plan
        self._stages = stages
        self._conflict = conflict
        self._replica_role = replica_role

    def run(self) -> int:
        """Try what is asked for; how many rows went through."""
        with self._connection.cursor(row_factory=class_row(_Row)) as cursor:
            found = cursor.execute(_READ, (*self._owner, *self._plan.source)).fetchall()
        meant = _meant(found)
        return sum(
            self._try_step(list(rows), meant)
            for _, rows in groupby(found, lambda row: (row.commit_lsn, row.step))
        )

    def _try_step(self, rows: list[_Row], all_meant: Collection[int]) -> int:
        meant = [row for row in rows if row.id in all_meant]
        if not meant:
            return 0
        is_move = rows[0].old_key is not None
        free = self._free(meant)
        if is_move and len(free) < len(rows):
            return 0
        if not free or self._try(free):
            return len(free)
        if is_move or len(free) == 1:
            return 0
        return sum(self._try([row]) for row in free)

    def _free(self, rows: list[_Row]) -> list[_Row]:
        """Those before which nothing of their keys is parked, as the target's columns compare keys."""
        columns = _columns(self._plan, rows)
        same = sql.SQL(" AND ").join(
            sql.SQL("(a.k ->> {name})::{type} {equals} (b.k ->> {name})::{type}").format(
                name=sql.Literal(columns[place].name),
                type=sql.SQL(columns[place].stage_type),
                equals=sql.SQL(columns[place].equals),
            )
            for place in _key_places(self._plan, rows)
        )
        of_table = ("pipeline", "source", "schema_name", "table_name")
        found = self._connection.execute(
            sql.SQL(
                "SELECT r.id FROM penstock.parked r WHERE r.id = ANY (%s) AND NOT EXISTS ("
                "SELECT FROM penstock.parked e, LATERAL (VALUES (e.key), (e.old_key)) a(k),"
                " LATERAL (VALUES (r.key), (r.old_key)) b(k)"
                " WHERE {of} AND e.id < r.id"
                " AND (e.commit_lsn, e.step) <> (r.commit_lsn, r.step) AND {same})"
            ).format(
                of=sql.SQL(" AND ").join(
                    sql.SQL("e.{0} = r.{0}").format(sql.Identifier(name)) for name in of_table
                ),
                same=same,
            ),
            ([row.id for row in rows],),
        ).fetchall()
        ids = {number for (number,) in found}
        return [row for row in rows if row.id in ids]

    def _try(self, rows: list[_Row]) -> bool:
        """Merge rows as one step; whether they went through. Otherwise the reason is kept."""
        step = _step_of(self._plan, rows)
        for error in self._stages.prepare(self._connection, [step]).values():
            self._keep_reason(rows, explain(error, self._plan))
            return False
        ids = [row.id for row in rows]
        with self._connection.transaction(), self._connection.cursor() as cursor:
            merged = merge_table(
                cursor,
                self._plan,
                [step],
                self._stages,
                self._conflict,
                replica_role=self._replica_role,
            )
            if not isinstance(merged, PenstockError):
                cursor.execute("DELETE FROM penstock.parked WHERE id = ANY (%s)", (ids,))
                add_conflicts(cursor, self._owner, {self._plan.source: merged})
                fault_point("unpark.before_commit")
        if isinstance(merged, PenstockError):
            self._keep_reason(rows, merged)
            return False
        return True

    def _keep_reason(self, rows: list[_Row], error: PenstockError) -> None:
        """Of one row alone it is its own; of several nobody knows whose it is, unless it had one."""
        blamed = [row.id for row in rows if row.reason is not None] or [rows[0].id]
        self._connection.execute(
            "UPDATE penstock.parked SET reason = %s WHERE id = ANY (%s)", (error.what, blamed)
        )


def _meant(rows: Sequence[_Row]) -> set[int]:
    """Rows that are asked for, and those that merely wait behind such: behind a key that changes all the time something is
    parked after every request."""
    meant: set[int] = set()
    keys: set[frozenset[tuple[str, str | None]]] = set()
    for row in rows:
        own = {frozenset(key.items()) for key in (row.key, row.old_key) if key is not None}
        merely_waits = row.request is None and row.reason is None
        if row.request == "retry" or (merely_waits and own & keys):
            meant.add(row.id)
            keys |= own
    return meant


def _columns(plan: TablePlan, rows: Sequence[_Row]) -> list[Any]:
    """The target's columns that the rows have values for, by their names."""
    names = {name for row in rows for name in row.row_values}
    return [column for column in plan.columns if column.name in names]


def _key_places(plan: TablePlan, rows: Sequence[_Row]) -> tuple[int, ...]:
    columns = _columns(plan, rows)
    key = rows[0].key
    places = tuple(place for place, column in enumerate(columns) if column.name in key)
    if len(places) < len(key):
        raise TargetTableUnfit(
            f"{plan.target} lacks a column of the key of what is parked",
            str(plan.source),
            f"add it to {plan.target}, or penstock parked PIPELINE.yml drop",
        )
    return places


def _step_of(plan: TablePlan, rows: Sequence[_Row]) -> StagedStep:
    """The rows as a step that brings them along."""
    columns = _columns(plan, rows)
    key = _key_places(plan, rows)
    unknown = [
        tuple(n for n, column in enumerate(columns) if column.name not in row.row_values)
        for row in rows
    ]
    groups = list(dict.fromkeys([(), *unknown]))
    is_move = rows[0].old_key is not None
    ops = [row.op for row in rows]
    has_operations = not is_move and any(op != "I" for op in ops)
    moved = [columns[place].name for place in key] if is_move else []

    def line(row: _Row, group: tuple[int, ...]) -> bytes:
        """The row as it is staged: operation, group, the key that it had, values; the first three where they say something."""
        cells: list[str | None] = [row.op] * has_operations
        cells += [str(groups.index(group))] * (len(groups) > 1)
        cells += [(row.old_key or {})[name] for name in moved]
        cells += [row.row_values.get(column.name) for column in columns]
        return b"\t".join(map(cell_text, cells)) + b"\n"

    return StagedStep(
        table=plan.source,
        kind="move" if is_move else "net",
        columns=tuple(columns),
        key=key,
        has_operations=has_operations,
        unchanged=tuple(groups),
        insert_count=ops.count("I"),
        update_count=ops.count("U"),
        delete_count=ops.count("D"),
        replace_count=ops.count("R"),
        gone_count=ops.count("G"),
        inline=b"".join(map(line, rows, unknown)),
    )
