"""Statements that change a target's shape, and what to do where the target refuses one.

They are planned as a whole before the first one runs, so that they can be shown without being run.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from penstock.errors import SchemaChangeRefused
from penstock.sinks.postgres.ddl.displaced import is_held_by_ours, stand_in
from penstock.sinks.postgres.ddl.structure import TAKEN, one_line, reason
from penstock.sinks.postgres.expressions.expressions import (
    BUILTIN,
    NO_COLUMNS,
    Expression,
    ExpressionRules,
    execute_one,
    refused_expressions,
    scope_of_table,
)
from penstock.sinks.postgres.expressions.time_limit import own_time_limit

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from penstock.schema.shape import ColumnShape, TableShape
    from penstock.sinks.postgres.ddl.structure import Piece
    from penstock.table import TableName

    Connection = psycopg.Connection[Any]

# Others are in the way, or the server is: the same statement may do later.
_STATES_OF_TIME = ("40", "53", "55P03", "57", "58")


@dataclass(frozen=True)
class Step:
    """One statement. Where the target refuses it, that is noted as `undone`, and `instead` is run.

    With neither the change as a whole is refused. `when` are the errors that `instead` is for; it
    fixes them where it is not for all, and then there is nothing to note.

    `screened` are expressions of the source's in the statement. Where one of them is not taken over, the
    statement is not run; that is noted as `left_out`, and `without` is run.
    """

    statement: sql.Composed
    undone: str = ""
    instead: tuple[Step, ...] = ()
    when: tuple[type[psycopg.Error], ...] = ()
    # What is run where the name that the statement gives is that of another table of ours.
    displaced: Displaced | None = None
    screened: Screened | None = None
    left_out: str = ""
    without: tuple[Step, ...] = ()
    # What penstock writes down for itself, which is nobody's to run by hand.
    is_record: bool = False


@dataclass(frozen=True)
class Displaced:
    """An object of a target's table whose name others may have, and how it waits for it.

    None: it waits already.
    """

    table: TableName
    name: str
    statement: sql.Composed | None

    @classmethod
    def of(cls, piece: Piece, table_oid: int) -> Displaced:
        """One that is made of the target's table with that oid."""
        return cls(piece.target, piece.name, piece.called(stand_in(table_oid, piece.name)))


@dataclass(frozen=True)
class Screened:
    """Expressions over the columns of a table that is there when the statement is run. None: over none."""

    table: TableName | None
    expressions: tuple[Expression, ...]


@dataclass
class Outcome:
    """What was run, and what the target would not have."""

    statements: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    awaits_names: bool = False  # something is called otherwise, until others give its name up


def run_steps(
    connection: Connection,
    steps: Iterable[Step],
    table: TableName,
    described: str,
    rules: ExpressionRules = BUILTIN,
) -> Outcome:
    """Run them in order. `described` is what an error says about both sides.

    Raises:
        SchemaChangeRefused: the target refuses one that nothing can stand for.
        psycopg.Error: others are in the way, or the server went away.
    """
    runner = _Runner(connection, table, described, rules, Outcome())
    for step in steps:
        runner.run(step)
    return runner.outcome


@dataclass(frozen=True)
class _Runner:
    connection: Connection
    table: TableName
    described: str
    rules: ExpressionRules
    outcome: Outcome

    def run(self, step: Step) -> None:
        why = self._refused(step.screened) if step.screened is not None else ""
        if why:
            self.outcome.notes.append(one_line(f"{step.left_out}, {why}"))
            for other in step.without:
                self.run(other)
        else:
            self._run(step)

    def _refused(self, screened: Screened) -> str:
        scope = NO_COLUMNS if screened.table is None else scope_of_table(screened.table)
        wanted = [(scope, each) for each in screened.expressions]
        refused = refused_expressions(self.connection, self.rules, wanted)
        return refused[min(refused)] if refused else ""

    def _limit(self, step: Step) -> AbstractContextManager[None]:
        """What evaluates expressions of the source's takes no longer than the role may."""
        is_limited = step.screened is not None and bool(step.screened.expressions)
        return own_time_limit(self.connection, is_limited=is_limited)

    def _run(self, step: Step) -> None:
        text = step.statement.as_string(self.connection)
        try:
            with self.connection.transaction(), self._limit(step):
                execute_one(self.connection, step.statement)
        except psycopg.Error as error:
            if not self._waits_for_name(step, error):
                self._give_way(step, error, text)
        else:
            if not step.is_record:
                self.outcome.statements.append(text)

    def _waits_for_name(self, step: Step, error: psycopg.Error) -> bool:
        """Whether another table of ours has the name; then the object gets one that stands for it."""
        waiting = step.displaced
        if waiting is None or not isinstance(error, TAKEN):
            return False
        if not is_held_by_ours(self.connection, waiting.table, waiting.name):
            return False
        self.outcome.awaits_names = True
        if waiting.statement is not None:
            self._run(replace(step, statement=waiting.statement, displaced=None))
        return True

    def _give_way(self, step: Step, error: psycopg.Error, text: str) -> None:
        """Note what was refused, and run what stands for it."""
        is_for_it = step.instead and (not step.when or isinstance(error, step.when))
        if not is_for_it and not step.undone:
            raise refusal(error, self.table, self.described, text) from None
        why = reason_of(error)
        if step.undone and not (is_for_it and step.when):
            self.outcome.notes.append(one_line(f"{step.undone}: {why}"))
        for other in step.instead if is_for_it else ():
            self.run(other)


def reason_of(error: psycopg.Error) -> str:
    """Why the target refuses a statement, without a value of a row.

    Raises:
        psycopg.Error: the same one, when it is not the statement's fault.
    """
    if error.sqlstate is not None and error.sqlstate.startswith(_STATES_OF_TIME):
        raise error
    return reason(error)


def refusal(
    error: psycopg.Error, table: TableName, described: str, statement: str = ""
) -> SchemaChangeRefused:
    """What to raise when the target does not follow. `described` is what was to be followed.

    Raises:
        psycopg.Error: the same one, when it is not the statement's fault.
    """
    do = "make the target's table like the source's"
    if statement:
        do = f"run at the target, once nothing is in its way: {statement}"
    return SchemaChangeRefused(
        one_line(
            f"the target refuses to follow a change of the table: {reason_of(error)}; {described}"
        ),
        str(table),
        do,
    )


def describe_columns(shape: TableShape, names: Iterable[str]) -> str:
    """Those columns of a table in short."""
    wanted = set(names)
    return ", ".join(_describe_column(each) for each in shape.columns if each.name in wanted)


def _describe_column(column: ColumnShape) -> str:
    return f"{column.name} {column.type}{' NOT NULL' if column.not_null else ''}"


def alter_table(table: TableName, action: str, *names: str) -> sql.Composed:
    """ALTER TABLE with an action in which each {} stands for a name."""
    named = sql.SQL(action).format(*map(sql.Identifier, names))
    return sql.SQL("ALTER TABLE {} {}").format(sql.Identifier(*table), named)
