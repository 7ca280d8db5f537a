"""Merge one table under a savepoint, and when it is refused find the row that is to blame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from penstock.errors import (
    PenstockError,
    RowRefused,
    TargetObjectsForeign,
    TargetTableMissing,
    TargetTableUnfit,
)
from penstock.sinks.postgres.connect import is_about_table
from penstock.sinks.postgres.mapping.target import refuse_new_code
from penstock.sinks.postgres.merge import rows as merge
from penstock.sinks.postgres.merge.conflicts import NONE
from penstock.sinks.postgres.merge.copy_text import plain_text
from penstock.sinks.postgres.merge.statements import Statements
from penstock.sinks.postgres.worker import refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.sinks.postgres.mapping.plan import StagedStep, TablePlan
    from penstock.sinks.postgres.merge.conflicts import Conflicts
    from penstock.sinks.postgres.merge.stages import LateStages
    from penstock.sinks.postgres.merge.stages import Stages as OwnStages
    from penstock.sinks.postgres.options import OnConflict

    Stages = OwnStages | LateStages

    Cursor = psycopg.Cursor[Any]
    Way = Callable[[Cursor, TablePlan, StagedStep, sql.Identifier, OnConflict], Conflicts]


# Rows that change places: writing them anew may help.
_IN_THE_WAY = (psycopg.errors.UniqueViolation, psycopg.errors.ExclusionViolation)


# A deferred constraint would speak at COMMIT, when nobody knows whose row it is.
_CHECK_NOW = "SET CONSTRAINTS ALL IMMEDIATE"


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
) -> PenstockError | Conflicts:
    """Merge all steps of one table, or none: the conflicts, or the error when it cannot be.

    Runs inside the caller's transaction, which stays usable whatever happens here.

    Raises:
        psycopg.OperationalError: the connection or the server, not the table.
    """
    second: Way = merge.rewrite if replica_role else merge.upsert
    error: psycopg.Error | None = None
    way: Way = merge.apply
    at = 0
    for way in (merge.apply, second):
        at = 0
        conflicts = NONE
        try:
            with cursor.connection.transaction():
                refuse_new_code(cursor.connection, plan)
                stages.unsettle()
                for at, step in enumerate(steps):  # noqa: B007
                    _load(cursor, plan, step, stages)
                    conflicts += way(cursor, plan, step, stages.place_of(step), conflict)
                cursor.execute(_CHECK_NOW)
        except (RowRefused, TargetObjectsForeign, TargetTableUnfit) as refused:
            stages.unsettle()
            return refused
        except merge.IdentityInTheWay as in_the_way:
            unfit: PenstockError = in_the_way.why
        except psycopg.Error as refused_by_server:
            if not is_about_table(refused_by_server):
                raise
            error = refused_by_server
            if not isinstance(error, _IN_THE_WAY):
                break
        else:
            return conflicts
    if error is None:
        return unfit
    place = _blame(cursor, plan, steps, at, stages, conflict, way) if _has_culprit(error) else None
    return explain(error, plan, place)


def _load(cursor: Cursor, plan: TablePlan, step: StagedStep, stages: Stages) -> None:
    """Put the rows that the step brings along where the merge finds them."""
    try:
        stages.load(cursor, step)
    except psycopg.DataError as error:
        lines = (step.inline or b"").split(b"\n")
        raise refusal(
            error, plan, step, lambda column, line: plain_text(lines[line].split(b"\t")[column])
        ) from None


def _has_culprit(error: psycopg.Error) -> bool:
    """Data exceptions and constraint violations are about one row; the rest is about the table."""
    return (error.sqlstate or "")[:2] in ("21", "22", "23", "44", "54", "P0")


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
            stages.unsettle()
            for earlier in steps[:failing]:
                stages.load(cursor, earlier)
                way(cursor, plan, earlier, stages.place_of(earlier), conflict)
            stages.load(cursor, step)
            build = Statements(plan, step, stage)
            places = [place for (place,) in cursor.execute(build.places()).fetchall()]
            # The first `most` rows are refused, the first `least` pass.
            least, most = 0, len(places)
            while most - least > 1:
                middle = (least + most) // 2
                if _passes(cursor, plan, step, stage, conflict, way, places[middle]):
                    least = middle
                else:
                    most = middle
            row = cursor.execute(build.key_at(places[most - 1])).fetchone() if places else None
            found = f"key ({', '.join(row)})" if row is not None else None
            raise _Undo  # noqa: TRY301
    except _Undo:
        return found
    except psycopg.Error as error:
        if not is_about_table(error):
            raise
    except (RowRefused, merge.IdentityInTheWay):
        pass
    finally:
        stages.unsettle()
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
            cursor.execute(_CHECK_NOW)
            raise _Undo  # noqa: TRY301
    except _Undo:
        return True
    except psycopg.Error as error:
        if not is_about_table(error):
            raise
    except (RowRefused, merge.IdentityInTheWay):
        pass
    return False


def _advice(plan: TablePlan, state: str) -> str:
    if state == "42501":
        return (
            f"GRANT the sink's role what it lacks on {plan.target}, or BYPASSRLS where row-level security"
            " is on for it; its changes wait in the log"
        )
    return f"fix {plan.target}; its changes wait in the log"


def explain(error: psycopg.Error, plan: TablePlan, place: str | None = None) -> PenstockError:
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
        what = type(error).__name__ if state[:2] == "0A" else error.diag.message_primary
        return TargetTableUnfit(
            f"the target table {plan.target} does not fit: {what}",
            where,
            _advice(plan, state),
        )
    about = [
        f"{label} {name}"
        for label, name in (
            ("constraint", error.diag.constraint_name),
            ("column", error.diag.column_name),
        )
        if name
    ]
    described = f" ({', '.join(about)})" if about else ""
    return RowRefused(
        f"the target refuses the row{described}: SQLSTATE {state} {type(error).__name__}",
        where,
        f"fix the row or the constraint at {plan.target}; its changes wait in the log and go on by themselves",
    )
