"""Merge one table under a savepoint, and when it is refused find the row that is to blame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from penstock.errors import PenstockError, RowRefused, TargetTableMissing, TargetTableUnfit
from penstock.sinks.postgres import merge

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.sinks.postgres.options import OnConflict
    from penstock.sinks.postgres.plan import StagedStep, TablePlan
    from penstock.sinks.postgres.stages import Stages

    Cursor = psycopg.Cursor[Any]
    Way = Callable[[Cursor, TablePlan, StagedStep, sql.Identifier, OnConflict], None]


class _Undo(Exception):
    """Leave a savepoint without keeping what was done in it."""


def merge_table(
    cursor: Cursor,
    plan: TablePlan,
    steps: list[StagedStep],
    stages: Stages,
    conflict: OnConflict,
    *,
    replica_role: bool,
) -> PenstockError | None:
    """Merge all steps of one table, or none; the error when it cannot be.

    Runs inside the caller's transaction, which stays usable whatever happens here.

    Raises:
        psycopg.OperationalError: the connection or the server, not the table.
    """
    second: Way = merge.rewrite if replica_role else merge.upsert
    error: Exception | None = None
    way: Way = merge.apply
    at = 0
    for way in (merge.apply, second):
        at = 0
        try:
            with cursor.connection.transaction():
                stages.load(cursor, steps)
                for at, step in enumerate(steps):  # noqa: B007
                    way(cursor, plan, step, stages.place_of(step), conflict)
        except RowRefused as refused:
            return refused
        except psycopg.OperationalError:
            raise
        except psycopg.Error as refused_by_server:
            error = refused_by_server
            if not isinstance(error, psycopg.errors.UniqueViolation):
                break
        else:
            return None
    assert isinstance(error, psycopg.Error)
    place = _blame(cursor, plan, steps, at, stages, conflict, way) if _has_culprit(error) else None
    return _explain(error, plan, place)


def _has_culprit(error: psycopg.Error) -> bool:
    """Data exceptions and constraint violations are about one row; the rest is about the table."""
    return (error.sqlstate or "")[:2] in ("22", "23", "P0")


def _blame(
    cursor: Cursor,
    plan: TablePlan,
    steps: list[StagedStep],
    failing: int,
    stages: Stages,
    conflict: OnConflict,
    way: Way,
) -> str | None:
    """The key of the first row without which the step would pass, found by halving."""
    step = steps[failing]
    stage = stages.place_of(step)
    if not step.key:
        return None
    found: str | None = None
    try:
        with cursor.connection.transaction():
            if step.inline is not None:
                stages.load(cursor, [step])
            for earlier in steps[:failing]:
                if earlier.inline is not None:
                    stages.load(cursor, [earlier])
                way(cursor, plan, earlier, stages.place_of(earlier), conflict)
            cursor.execute(sql.SQL("SELECT ctid::text FROM {} ORDER BY ctid").format(stage))
            places = [row[0] for row in cursor.fetchall()]
            least, most = (
                0,
                len(places),
            )  # the first `most` rows are refused, the first `least` pass
            while most - least > 1:
                middle = (least + most) // 2
                if _passes(cursor, plan, step, stage, conflict, way, places[middle]):
                    least = middle
                else:
                    most = middle
            build = merge.Statements(plan, step, stage)
            row = cursor.execute(build.key_at(places[most - 1])).fetchone() if places else None
            found = f"key ({', '.join(row)})" if row is not None else None
            raise _Undo  # noqa: TRY301
    except _Undo:
        return found
    except (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError, RowRefused):
        return None  # other rows are refused on the way there; the table's error stands by itself


def _passes(
    cursor: Cursor,
    plan: TablePlan,
    step: StagedStep,
    stage: sql.Identifier,
    conflict: OnConflict,
    way: Way,
    before: str,
) -> bool:
    """Whether the staged rows before a place would be taken."""
    try:
        with cursor.connection.transaction():
            cursor.execute(
                sql.SQL("DELETE FROM {} WHERE ctid >= {}::tid").format(stage, sql.Literal(before))
            )
            way(cursor, plan, step, stage, conflict)
            raise _Undo  # noqa: TRY301
    except _Undo:
        return True
    except psycopg.OperationalError:
        raise
    except (psycopg.Error, RowRefused):
        return False


def _explain(error: psycopg.Error, plan: TablePlan, place: str | None) -> PenstockError:
    """Name constraint, column and key; never a value."""
    where = f"{plan.source} {place}" if place else str(plan.source)
    state = error.sqlstate or ""
    if state in ("42P01", "3F000"):
        return TargetTableMissing(
            f"the target table {plan.target} is gone",
            where,
            f"create {plan.target} again; its changes wait in the log",
        )
    if state[:2] in ("42", "0A", "55"):
        what = error.diag.message_primary if state[:2] == "42" else type(error).__name__
        return TargetTableUnfit(
            f"the target table {plan.target} does not fit: {what}",
            where,
            f"mend {plan.target}; its changes wait in the log",
        )
    about = [
        f"{label} {name}"
        for label, name in (
            ("constraint", error.diag.constraint_name),
            ("column", error.diag.column_name),
        )
        if name
    ]
    told = f" ({', '.join(about)})" if about else ""
    return RowRefused(
        f"the target refuses the row{told}: SQLSTATE {state} {type(error).__name__}",
        where,
        f"mend the row or the constraint at {plan.target}; its changes wait in the log and go on by themselves",
    )
