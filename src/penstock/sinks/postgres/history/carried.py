"""The SQL for an instant that goes on: one transaction of the source in several steps of a history.

A key that is new has been so from the beginning, which hides when it came. Where its transaction goes on
in another step, the key is noted in a temporary table, so that what changes it there changes a row that is
new with this instant: one row is left of it, or none.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from psycopg import sql

from penstock.sinks.postgres.history.statements import Versions

if TYPE_CHECKING:
    from penstock.sinks.postgres.mapping.plan import TargetColumn


class Carried(Versions):
    """The SQL of one step, and of what it shares with those before and after it."""

    @property
    def carried_name(self) -> str:
        """Of the temporary table that holds the keys which began with the instant that goes on."""
        told = [*self._plan.target, *(f"{c.name} {c.stage_type}" for c in self._key_columns())]
        return f"carried_{hashlib.sha256('/'.join(told).encode()).hexdigest()[:16]}"

    def _key_columns(self) -> list[TargetColumn]:
        return [self._step.columns[place] for place in self._step.key]

    def _carried_keys(self) -> list[sql.Identifier]:
        return [sql.Identifier(f"e{number}") for number in range(len(self._step.key))]

    def make_carried(self) -> sql.Composed:
        """Have that table."""
        declared = [
            sql.SQL("{} {}").format(name, sql.SQL(column.stage_type))
            for name, column in zip(self._carried_keys(), self._key_columns(), strict=True)
        ]
        return sql.SQL("CREATE TEMPORARY TABLE IF NOT EXISTS {} ({}, at {}) ON COMMIT DROP").format(
            sql.Identifier(self.carried_name),
            sql.SQL(", ").join(declared),
            sql.SQL(self._start_type),
        )

    def carry(self, last_at: int) -> sql.Composed:
        """Note the keys that are new with the step's last instant, before they are inserted."""
        return self._format(
            "INSERT INTO {carried} SELECT {cells}, s.a FROM {stage} s"
            " WHERE s.f AND {inserted} AND s.u IS NULL AND s.a = {at}"
            " AND NOT EXISTS (SELECT FROM {target} t WHERE {found})",
            carried=self._carried,
            cells=sql.SQL(", ").join(self._cells[place] for place in self._step.key),
            inserted=self._is("I"),
            at=self._at(last_at),
            found=self._same_key(),
        )

    @property
    def _carried(self) -> sql.Identifier:
        return sql.Identifier("pg_temp", self.carried_name)

    def take_carried(self) -> list[sql.Composed]:
        """Rows that began with this very instant never were so: what changes them is new instead."""
        matched = self._matched()
        same = sql.SQL(" AND ").join(
            sql.SQL("k.{} {} s.{}").format(name, sql.SQL(column.equals), cell)
            for name, column, cell in zip(
                self._carried_keys(), self._key_columns(), matched, strict=True
            )
        )
        is_carried = sql.SQL("s.f AND k.at = s.a AND {}").format(same)
        became = (
            sql.SQL("op = s.op")
            if self._step.kind == "move"
            else sql.SQL("op = CASE WHEN {} THEN '-' ELSE 'I' END::\"char\"").format(
                self._is("D", "C", "G")
            )
        )
        return [
            self._format(
                "DELETE FROM {target} t USING {stage} s, {carried} k"
                " WHERE {is_carried} AND {found} AND {is_open} AND t.{start} = {first}",
                carried=self._carried,
                is_carried=is_carried,
                found=self._same_old_key() if self._step.kind == "move" else self._same_key(),
            ),
            self._format(
                "UPDATE {stage} s SET {became} FROM {carried} k WHERE {is_carried}",
                carried=self._carried,
                became=became,
                is_carried=is_carried,
            ),
            self._format(
                "DELETE FROM {carried} k USING {stage} s WHERE {is_carried}",
                carried=self._carried,
                is_carried=is_carried,
            ),
            # What came and went is as if it had not been.
            self._format("DELETE FROM {stage} s WHERE {undone}", undone=self._is("-")),
            self.have_firsts(),
        ]

    def take_all_carried(self, at: int) -> sql.Composed:
        """The same, where every row goes."""
        same = sql.SQL(" AND ").join(
            self._equal(place, self._theirs(place), sql.SQL("k.{}").format(name))
            for name, place in zip(self._carried_keys(), self._step.key, strict=True)
        )
        return self._format(
            "WITH taken AS (DELETE FROM {carried} k WHERE k.at = {at} RETURNING *)"
            " DELETE FROM {target} t USING taken k"
            " WHERE {fixed} AND {is_open} AND t.{start} = {first} AND {same}",
            carried=self._carried,
            at=self._at(at),
            fixed=self._fixed,
            same=same,
        )
