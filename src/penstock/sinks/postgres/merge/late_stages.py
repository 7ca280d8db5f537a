"""Staged rows for tables whose shape changes in the very transaction that merges them.

No other session sees the new shape before COMMIT, so executors stage such rows as text, and the
driver's own session puts them into tables of their types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import sql

from penstock.sinks.postgres.connect import connect_target
from penstock.sinks.postgres.worker import copy_into

if TYPE_CHECKING:
    import psycopg

    from penstock.dsn import Dsn
    from penstock.sinks.postgres.mapping.plan import StagedStep


class LateStages:
    """Temporary tables of one transaction; it takes them along when it ends."""

    def __init__(self, dsn: Dsn) -> None:
        self._dsn = dsn
        self._places: dict[int, sql.Identifier] = {}
        self._made = 0
        self._reader: psycopg.Connection[Any] | None = None

    def load(self, cursor: psycopg.Cursor[Any], step: StagedStep) -> None:
        """Have the rows of a step in a table of its own."""
        if id(step) in self._places or step.kind == "truncate":
            return
        self._made += 1
        name = f"late_{self._made}"
        declared = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(column), sql.SQL(kind))
            for column, kind in step.stage_columns
        )
        cursor.execute(
            sql.SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DROP").format(
                sql.Identifier(name), declared
            )
        )
        place = sql.Identifier("pg_temp", name)
        if step.inline is not None:
            copy_into(cursor, place, step.inline)
        else:
            self._copy_over(cursor, place, step)
        self._places[id(step)] = place

    def place_of(self, step: StagedStep) -> sql.Identifier:
        """The table that holds the step's rows."""
        return self._places.get(id(step), sql.Identifier("pg_temp", "none"))

    def unsettle(self) -> None:
        """A savepoint begins or was rolled back: what was made in it is gone."""
        self._places.clear()

    def close(self) -> None:
        """Let go of the connection that reads."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _copy_over(
        self, cursor: psycopg.Cursor[Any], place: sql.Identifier, step: StagedStep
    ) -> None:
        """From text to types as COPY does it: a cast would cut off what does not fit."""
        if self._reader is None:
            self._reader = connect_target(self._dsn, "penstock stages")
        stage = sql.Identifier("penstock", step.stage_table or "none")
        with (
            self._reader.cursor() as reading,
            reading.copy(sql.SQL("COPY {} TO STDOUT").format(stage)) as rows,
            cursor.copy(sql.SQL("COPY {} FROM STDIN").format(place)) as copy,
        ):
            for block in rows:
                copy.write(block)
