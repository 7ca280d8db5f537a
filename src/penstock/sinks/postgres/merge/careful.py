"""Merge one table under a savepoint, and when it is refused find the row that is to blame."""

from __future__ import annotations

from dataclasses import dataclass
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
from penstock.sinks.postgres.expressions.time_limit import TimeLimitReachedError
from penstock.sinks.postgres.mapping.target import refuse_new_code
from penstock.sinks.postgres.merge import rows as merge
from penstock.sinks.postgres.merge.conflicts import NONE
from penstock.sinks.postgres.merge.copy_text import plain_text
from penstock.sinks.postgres.merge.parking import Culprit
from penstock.sinks.postgres.merge.statements import Statements
from penstock.sinks.postgres.worker import refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.sinks.postgres.mapping.plan import StagedStep, TablePlan
    from penstock.sinks.postgres.merge.conflicts import Conflicts
    from penstock.sinks.postgres.merge.parking import Parking
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
    parking: Parking | None = None,
) -> PenstockError | Conflicts:
    """Merge all steps of one table, or none: the conflicts, or the error when it cannot be.

    Runs inside the caller's transaction, which stays usable whatever happens here. Rows that are refused
    are parked, one after the other, where `parking` takes them.

    Raises:
        psycopg.OperationalError: the connection or the server, not the table.
    """
    while True:
        done = _merge(cursor, plan, steps, stages, conflict, parking, replica_role=replica_role)
        if not isinstance(done, _Refused):
            return done
        culprit = None
        if _has_culprit(done.error):
            culprit = _blame(cursor, plan, steps, done, stages, conflict, parking)
        error = explain(done.error, plan, culprit.place if culprit else None)
        # A row that others refer to may be free to go once their tables are merged: stopping waits for that.
        is_for_later = isinstance(done.error, psycopg.errors.ForeignKeyViolation)
        if culprit is None or parking is None or is_for_later:
            return error
        if not parking.refuse(plan, steps[done.at], done.at, culprit, error.what):
            return error


@dataclass(frozen=True)
class _Refused:
    """What the server has refused, at which step, and in which way it was merged."""

    error: psycopg.Error
    at: int
    way: Way


def _merge(
    cursor: Cursor,
    plan: TablePlan,
    steps: list[StagedStep],
    stages: Stages,
    conflict: OnConflict,
    parking: Parking | None,
    *,
    replica_role: bool,
) -> PenstockError | Conflicts | _Refused:
    """One attempt, quick and then careful."""
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
                for at, step in enumerate(steps):
                    _load(cursor, plan, step, stages)
                    sifted = _sift(cursor, step, at, stages, parking)
                    conflicts += way(cursor, plan, sifted, stages.place_of(step), conflict)
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
            return conflicts.unexpected(plan)
    if error is None:
        return unfit
    return _Refused(error, at, way)


def _sift(
    cursor: Cursor, step: StagedStep, number: int, stages: Stages, parking: Parking | None
) -> StagedStep:
    """The step without what is parked of it."""
    if parking is None:
        return step
    return parking.sift(cursor, step, number, stages.place_of(step))


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
    if isinstance(error, TimeLimitReachedError):
        return False
    return (error.sqlstate or "")[:2] in ("21", "22", "23", "44", "54", "P0")


def _blame(
    cursor: Cursor,
    plan: TablePlan,
    steps: list[StagedStep],
    refused: _Refused,
    stages: Stages,
    conflict: OnConflict,
    parking: Parking | None,
) -> Culprit | None:
    """The first row without which the step would pass, found by halving."""
    step, way = steps[refused.at], refused.way
    stage = stages.place_of(step)
    if not step.key:
        return None
    found: Culprit | None = None
    try:
        with cursor.connection.transaction():
            stages.unsettle()
            for number, earlier in enumerate(steps[: refused.at]):
                stages.load(cursor, earlier)
                sifted = _sift(cursor, earlier, number, stages, parking)
                way(cursor, plan, sifted, stages.place_of(earlier), conflict)
            stages.load(cursor, step)
            step = _sift(cursor, step, refused.at, stages, parking)
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
            found = _culprit(cursor, build, places[most - 1]) if places else None
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


def _culprit(cursor: Cursor, build: Statements, place: str) -> Culprit | None:
    named = cursor.execute(build.key_at(place)).fetchone()
    keys = cursor.execute(build.keys_at(place)).fetchone()
    if named is None or keys is None:
        return None
    return Culprit(tuple(keys[0]), tuple(keys[1]), f"key ({', '.join(named)})")


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
        if not is_about_table(error) or isinstance(error, TimeLimitReachedError):
            raise  # too many rows to say anything of one
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
    if isinstance(error, TimeLimitReachedError):
        return TargetTableUnfit(
            f"rows of {plan.target} take longer than the role's statement_timeout, which each 10,000 of them"
            " have: a check, a computed column or an index of it evaluates an expression",
            where,
            f"drop at {plan.target} what is slow, or raise statement_timeout of the sink's role; its"
            " changes wait in the log and go on by themselves",
        )
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
