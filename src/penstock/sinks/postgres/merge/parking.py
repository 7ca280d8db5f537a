"""Rows that the target refuses, taken out of the steps of one table while it is merged.

They go into `penstock.parked` in the transaction that merges the rest and moves the position. Later rows of their
keys follow them there, so that no change of a key overtakes another. A TRUNCATE takes them away: they are gone at
the source. Runs statements only for tables of which something is parked, or was refused just now.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from psycopg import sql
from psycopg.types.json import Jsonb

from penstock.errors import TargetTableUnfit
from penstock.sinks.postgres.options import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from penstock.lsn import Lsn
    from penstock.sinks.postgres.mapping.plan import StagedStep, TablePlan
    from penstock.table import TableName

    Cursor = psycopg.Cursor[Any]

# Each costs some dozen merges of its batch. A table of which more are refused has another problem.
_MOST_REFUSED = 100

_OF_TABLE = "pipeline = %s AND source = %s AND schema_name = %s AND table_name = %s"
_PARK = """
INSERT INTO penstock.parked (pipeline, source, schema_name, table_name, commit_lsn, step, op, key,
                             old_key, row_values, reason)
VALUES (%s, %s, %s, %s, %s::pg_lsn, %s, %s, %s, %s, %s, %s)
"""
_OTHER_KEYS = f"""
SELECT EXISTS (SELECT FROM penstock.parked p WHERE {_OF_TABLE}
    AND (SELECT array_agg(k ORDER BY k) FROM jsonb_object_keys(p.key) k) <> %s::text[])
"""


@dataclass(frozen=True)
class Culprit:
    """The staged row that is to blame: its key, the one that a move gives up, and how an error names it."""

    key: tuple[str, ...]
    old_key: tuple[str, ...]
    place: str


def can_park(plan: TablePlan, step: StagedStep) -> bool:
    """Whether rows of a step have keys by which what comes behind them is found.

    Texts that are equal although they are spelled differently are compared by the target's table alone.
    """
    if plan.kind is not Kind.CLONE or plan.history is not None or not step.key:
        return False
    return not any(step.columns[place].is_loose for place in step.key)


class Parking:
    """What is parked of one table in one batch.

    `has_rows`: something of the table is parked already. `may_park`: what is refused is parked, too.
    """

    def __init__(
        self, owner: tuple[str, str], table: TableName, lsn: Lsn, *, has_rows: bool, may_park: bool
    ) -> None:
        self._of_table = (*owner, *table)
        self._lsn = str(lsn)
        self._has_rows = has_rows
        self._may_park = may_park
        self._refused: list[tuple[int, Culprit, str]] = []

    @property
    def is_used(self) -> bool:
        """Whether what is parked of the table may be other than before."""
        return self._has_rows or bool(self._refused)

    @property
    def refused(self) -> list[tuple[str, str]]:
        """Rows that were refused: how an error names each, and why."""
        return [(row.place, why) for _, row, why in self._refused]

    def refuse(
        self, plan: TablePlan, step: StagedStep, number: int, row: Culprit, why: str
    ) -> bool:
        """Park a row when the steps are merged once more; whether that can be done."""
        is_known = any(each[:2] == (number, row) for each in self._refused)
        if not self._may_park or is_known or not can_park(plan, step):
            return False
        if len(self._refused) == _MOST_REFUSED:
            return False
        self._refused.append((number, row, why))
        return True

    def sift(
        self, cursor: Cursor, step: StagedStep, number: int, stage: sql.Identifier
    ) -> StagedStep:
        """Take out of a loaded stage what is refused, and what must wait; the step without that.

        Raises:
            TargetTableUnfit: the table's key is another than that of what is parked.
        """
        if not (self._has_rows or any(each[0] <= number for each in self._refused)):
            return step
        if step.kind == "truncate":
            cursor.execute(f"DELETE FROM penstock.parked WHERE {_OF_TABLE}", self._of_table)
            return step
        self._require_same_key(cursor, step)
        rows = _StagedRows(step, stage)
        taken = 0
        for at, culprit, reason in self._refused:
            if at == number:
                taken += self._park(cursor, rows, number, rows.is_row(culprit), reason)
        held = rows.is_held(self._of_table)
        # A move that waits holds both of its keys, and so may hold others of its step.
        while parked := self._park(cursor, rows, number, held, None):
            taken += parked
            if step.kind != "move":
                break
        return rows.recounted(cursor) if taken else step

    def _park(
        self,
        cursor: Cursor,
        rows: _StagedRows,
        number: int,
        condition: sql.Composable,
        reason: str | None,
    ) -> int:
        found = cursor.execute(rows.take(condition)).fetchall()
        if found:
            cursor.executemany(
                _PARK,
                [
                    (*self._of_table, self._lsn, number, *rows.as_parked(row), reason)
                    for row in found
                ],
            )
        return len(found)

    def _require_same_key(self, cursor: Cursor, step: StagedStep) -> None:
        names = sorted(step.columns[place].name for place in step.key)
        found = cursor.execute(_OTHER_KEYS, (*self._of_table, names)).fetchone()
        is_loose = any(step.columns[place].is_loose for place in step.key)
        if is_loose or (found is not None and found[0]):
            raise other_key(f"{self._of_table[2]}.{self._of_table[3]}")


def other_key(table: str) -> TargetTableUnfit:
    """What is parked is known by another key than the table has now."""
    return TargetTableUnfit(
        "rows of it are parked, and its key is another now",
        table,
        "penstock parked PIPELINE.yml retry, or drop; or copy the table again, which drops them",
    )


class _StagedRows:
    """The SQL that moves rows from a stage to penstock.parked."""

    def __init__(self, step: StagedStep, stage: sql.Identifier) -> None:
        self._step = step
        self._stage = stage
        self._names = [column.name for column in step.columns]
        self._is_move = step.kind == "move"

    def take(self, condition: sql.Composable) -> sql.Composed:
        """Take rows away; operation, group, old key and values of each, as texts."""
        step = self._step
        op = sql.SQL("s.op::text" if step.has_operations else "'I'")
        group = sql.SQL("s.g" if len(step.unchanged) > 1 else "0")
        olds = [f"k{n}" for n in range(len(step.key))] if self._is_move else []
        texts = [
            sql.SQL("{}::text").format(sql.Identifier("s", name))
            for name in (*olds, *(f"c{n}" for n in range(len(step.columns))))
        ]
        return sql.SQL("DELETE FROM {} s WHERE {} RETURNING {}").format(
            self._stage, condition, sql.SQL(", ").join([op, group, *texts])
        )

    def as_parked(self, row: Sequence[Any]) -> tuple[str, Jsonb, Jsonb | None, Jsonb]:
        """Operation, key, old key and values as they are kept; a value that is not known is left out."""
        step = self._step
        old_count = len(step.key) if self._is_move else 0
        olds, cells = row[2 : 2 + old_count], row[2 + old_count :]
        keys = [self._names[place] for place in step.key]
        unknown = step.unchanged[row[1]]
        values = {
            name: cell
            for place, (name, cell) in enumerate(zip(self._names, cells, strict=True))
            if place not in unknown
        }
        old_key = Jsonb(dict(zip(keys, olds, strict=True))) if self._is_move else None
        key = {name: cells[place] for name, place in zip(keys, step.key, strict=True)}
        return ("M" if self._is_move else row[0]), Jsonb(key), old_key, Jsonb(values)

    def is_row(self, row: Culprit) -> sql.Composed:
        """That a staged row is this one."""
        pairs = [(f"c{place}", text) for place, text in zip(self._step.key, row.key, strict=True)]
        if self._is_move:
            pairs += [(f"k{number}", text) for number, text in enumerate(row.old_key)]
        return sql.SQL(" AND ").join(
            sql.SQL("{}::text = {}").format(sql.Identifier("s", name), sql.Literal(text))
            for name, text in pairs
        )

    def is_held(self, of_table: tuple[str, ...]) -> sql.Composed:
        """That something of the row's key, or of one of a move's two, is parked."""
        return held(self._step, of_table, "c", ["k"] if self._is_move else [])

    def recounted(self, cursor: Cursor) -> StagedStep:
        """The step, with as many rows of each operation as there are left."""
        step = self._step
        if self._is_move:
            return step
        op = sql.SQL("s.op::text" if step.has_operations else "'I'")
        found = cursor.execute(
            sql.SQL("SELECT {}, count(*) FROM {} s GROUP BY 1").format(op, self._stage)
        )
        counts = dict(found.fetchall())
        return replace(
            step,
            insert_count=counts.get("I", 0),
            update_count=counts.get("U", 0),
            delete_count=counts.get("D", 0),
            replace_count=counts.get("R", 0),
            gone_count=counts.get("G", 0),
        )


def held(
    step: StagedStep, of_table: tuple[str, ...], new: str, olds: Sequence[str]
) -> sql.Composed:
    """That a row `s` has a key of one that is parked. Compared as the target's column does."""
    keys = [
        sql.SQL(" AND ").join(
            sql.SQL("s.{} {} (h.key ->> {})::{}").format(
                sql.Identifier(f"{letter}{number if letter in olds else place}"),
                sql.SQL(step.columns[place].equals),
                sql.Literal(step.columns[place].name),
                sql.SQL(step.columns[place].stage_type),
            )
            for number, place in enumerate(step.key)
        )
        for letter in (new, *olds)
    ]
    of = sql.SQL("pipeline = {} AND source = {} AND schema_name = {} AND table_name = {}").format(
        *map(sql.Literal, of_table)
    )
    return sql.SQL(" OR ").join(
        sql.SQL(
            "EXISTS (SELECT FROM (SELECT key FROM penstock.parked WHERE {of} UNION ALL"
            " SELECT old_key FROM penstock.parked WHERE {of} AND old_key IS NOT NULL) h"
            " WHERE {same})"
        ).format(of=of, same=same)
        for same in keys
    )
