"""Where staged rows are, seen from the driver.

In staging tables; or brought along and put into temporary tables of the driver's own session, which are kept and
emptied by each COMMIT (`Stages`). Where a table's shape changes in the very transaction that merges its rows, no
other session sees the new shape before COMMIT: executors stage such rows as text, and the driver's own session puts
them into tables of their types (`LateStages`).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from penstock.sinks.postgres.connect import connect_target, is_about_table
from penstock.sinks.postgres.worker import copy_into

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.dsn import Dsn
    from penstock.sinks.postgres.mapping.plan import StagedStep
    from penstock.table import TableName

    Shape = tuple[tuple[str, str], ...]

# Postgres empties every ON COMMIT DELETE ROWS table of the session at each commit, used or not.
_MOST_TEMPORARY = 64
_DROP_AT_ONCE = 50


class Stages:
    """Staging tables of one session."""

    def __init__(self) -> None:
        self._temporary: dict[Shape, sql.Identifier] = {}
        # Which step's rows each one holds, by its id; 0: none. Unknown when absent.
        self._holds: dict[Shape, int] = {}
        self._made = 0

    def prepare(
        self, connection: psycopg.Connection[Any], steps: list[StagedStep]
    ) -> dict[TableName, psycopg.Error]:
        """Have a temporary table for every step that brings its rows along. Outside a transaction.

        Steps of one shape share theirs, one after the other. The answer names the tables for which
        there can be none, such as one whose type is gone.
        """
        failed: dict[TableName, psycopg.Error] = {}
        if len(self._temporary) > _MOST_TEMPORARY:
            self.drop_temporary(connection)
        for step in steps:
            shape = tuple(step.stage_columns)
            if step.inline is None or shape in self._temporary:
                continue
            try:
                self._temporary[shape] = self._make(connection, shape)
            except psycopg.Error as error:
                if not is_about_table(error):
                    raise
                failed[step.table] = error
        self._holds = dict.fromkeys(self._temporary, 0)
        return failed

    def drop_temporary(self, connection: psycopg.Connection[Any]) -> None:
        """Make them anew when they are next needed: they may no longer be what they were.

        They also stand in the way of a person who wants to drop a type.
        """
        for begin in range(0, len(self._temporary), _DROP_AT_ONCE):
            tables = list(self._temporary.values())[begin : begin + _DROP_AT_ONCE]
            connection.execute(
                sql.SQL("DROP TABLE IF EXISTS {}").format(sql.SQL(", ").join(tables))
            )
        self._temporary.clear()

    def _make(self, connection: psycopg.Connection[Any], shape: Shape) -> sql.Identifier:
        self._made += 1
        name = f"stage_{self._made}"
        declared = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(column), sql.SQL(kind)) for column, kind in shape
        )
        connection.execute(
            sql.SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DELETE ROWS").format(
                sql.Identifier(name), declared
            )
        )
        return sql.Identifier("pg_temp", name)

    def load(self, cursor: psycopg.Cursor[Any], step: StagedStep) -> None:
        """Put the rows that a step brings along into its temporary table. Inside a transaction."""
        if step.inline is None:
            return
        shape = tuple(step.stage_columns)
        held = self._holds.pop(shape, None)
        if held != id(step):
            if held != 0:
                cursor.execute(sql.SQL("DELETE FROM {}").format(self._temporary[shape]))
            copy_into(cursor, self._temporary[shape], step.inline)
        self._holds[shape] = id(step)

    def unsettle(self) -> None:
        """A savepoint was rolled back, or rows were changed: what is held is not known any more."""
        self._holds.clear()

    def place_of(self, step: StagedStep) -> sql.Identifier:
        """The table that holds the step's rows, once they are loaded."""
        if step.inline is not None:
            return self._temporary[tuple(step.stage_columns)]
        return sql.Identifier("penstock", step.stage_table or "none")

    def drop_staged(self, connection: psycopg.Connection[Any], steps: list[StagedStep]) -> None:
        """Remove staging tables that have been merged."""
        drop_tables(connection, [step.stage_table for step in steps])


def drop_tables(connection: psycopg.Connection[Any], names: Iterable[str | None]) -> None:
    """Remove staging tables; None is no table."""
    staged = [name for name in names if name is not None]
    for begin in range(0, len(staged), _DROP_AT_ONCE):
        tables = [
            sql.Identifier("penstock", name) for name in staged[begin : begin + _DROP_AT_ONCE]
        ]
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.SQL(", ").join(tables)))


def stage_prefix(pipeline: str, source: str) -> str:
    """How the names of a pipeline's staging tables begin."""
    owner = hashlib.sha256(f"{pipeline}/{source}".encode()).hexdigest()[:8]
    return f"stage_{owner}_"


def drop_orphans(connection: psycopg.Connection[Any], prefix: str) -> None:
    """Remove what a killed predecessor has staged and nobody will merge."""
    rows = connection.execute(
        "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = 'penstock' AND c.relkind = 'r' AND starts_with(c.relname, %s)",
        (prefix,),
    ).fetchall()
    for (name,) in rows:
        connection.execute(
            sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier("penstock", name))
        )


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
