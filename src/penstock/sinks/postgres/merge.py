"""Staged rows -> the target table, as sets. Decides which statements run; knows no batch.

The ways, from quick to careful:

- `apply`: DELETE, UPDATE, INSERT, each one statement. Fails where a row is already there, or where
  unique values change places between rows.
- `rewrite`: complete the rows whose unchanged values are not known from the target's own, DELETE all
  that are touched, INSERT all that remain. Nothing can stand in its own way then. Only where
  triggers are off: a foreign key with ON DELETE CASCADE would otherwise fire.
- `upsert`: INSERT … ON CONFLICT, where triggers cannot be switched off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import RowRefused, TargetTableUnfit
from penstock.sinks.postgres.options import OnConflict
from penstock.sinks.postgres.statements import Statements

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

    from penstock.sinks.postgres.plan import StagedStep, TablePlan

    Cursor = psycopg.Cursor[Any]


class IdentityInTheWay(TargetTableUnfit):
    """A GENERATED ALWAYS column must change, which no UPDATE may do; writing the row anew may."""


def apply(
    cursor: Cursor, plan: TablePlan, step: StagedStep, stage: sql.Identifier, conflict: OnConflict
) -> None:
    """The quick way.

    Raises:
        psycopg.errors.UniqueViolation: something stands in the way; nothing else has gone wrong.
        IdentityInTheWay: as above.
        RowRefused: an UPDATE's row is not at the target and cannot be made.
    """
    build = Statements(plan, step, stage)
    if step.kind == "truncate":
        cursor.execute(build.truncate())
    elif step.kind == "move":
        _move(cursor, plan, build, conflict)
    else:
        if step.delete_count:
            cursor.execute(build.delete())
        if step.update_count:
            _update(cursor, plan, step, build, conflict)
        if step.insert_count:
            cursor.execute(build.insert())


def rewrite(
    cursor: Cursor, plan: TablePlan, step: StagedStep, stage: sql.Identifier, conflict: OnConflict
) -> None:
    """The way for rows that stand in each other's way, or are already there.

    Raises:
        RowRefused: `on_conflict: stop` does not allow a row to be replaced, or a row that is not
            wholly known is not at the target.
    """
    build = Statements(plan, step, stage)
    if step.kind == "truncate" or not step.key:
        apply(cursor, plan, step, stage, conflict)
        return
    if step.insert_count:
        _settle_conflicts(cursor, plan, build, conflict)
    if step.kind == "move" or step.update_count:
        _settle_missing(cursor, plan, step, build, conflict)
    for statement in build.completions():
        cursor.execute(statement)
    for statement in build.clear_touched():
        cursor.execute(statement)
    cursor.execute(build.insert_all())


def upsert(
    cursor: Cursor, plan: TablePlan, step: StagedStep, stage: sql.Identifier, conflict: OnConflict
) -> None:
    """The way that fires no DELETE: for roles that cannot switch triggers off."""
    build = Statements(plan, step, stage)
    if step.kind != "net" or not step.key:
        apply(cursor, plan, step, stage, conflict)
        return
    if step.insert_count:
        _settle_conflicts(cursor, plan, build, conflict)
    if step.delete_count:
        cursor.execute(build.delete())
    if step.update_count:
        _update(cursor, plan, step, build, conflict)
    if step.insert_count:
        cursor.execute(build.insert_or_update())


def _run(cursor: Cursor, statement: sql.Composed) -> int:
    cursor.execute(statement)
    return cursor.rowcount


def _first_key(cursor: Cursor, statement: sql.Composed) -> str | None:
    row = cursor.execute(statement).fetchone()
    return f"key ({', '.join(row)})" if row is not None else None


def _move(cursor: Cursor, plan: TablePlan, build: Statements, conflict: OnConflict) -> None:
    if build.fixed_columns(with_key=True):
        raise _identity_in_the_way(plan, build.fixed_columns(with_key=True))
    moved = sum(_run(cursor, statement) for statement in build.moves())
    count = cursor.execute(build.count()).fetchone()
    if count is not None and moved < count[0]:
        _refuse_missing(cursor, plan, build, conflict)


def _update(
    cursor: Cursor, plan: TablePlan, step: StagedStep, build: Statements, conflict: OnConflict
) -> None:
    updated = sum(_run(cursor, statement) for statement in build.updates())
    fixed = build.fixed_columns(with_key=False)
    if fixed and cursor.execute(build.first_fixed_difference()).fetchone() is not None:
        raise _identity_in_the_way(plan, fixed)
    # Rows that keep all their values are not counted; the statements below see that they are there.
    if updated < step.update_count and conflict is not OnConflict.KEEP:
        _settle_missing(cursor, plan, step, build, conflict)
        cursor.execute(build.insert_missing_updates())


def _identity_in_the_way(plan: TablePlan, columns: list[str]) -> IdentityInTheWay:
    named = ", ".join(columns)
    return IdentityInTheWay(
        f"{named} of {plan.target} is GENERATED ALWAYS, and changes at the source",
        str(plan.source),
        f"ALTER TABLE {plan.target} ALTER {columns[0]} SET GENERATED BY DEFAULT",
    )


def _settle_conflicts(
    cursor: Cursor, plan: TablePlan, build: Statements, conflict: OnConflict
) -> None:
    """Inserted rows whose key is already there: drop them, refuse them, or let them replace."""
    if conflict is OnConflict.KEEP:
        cursor.execute(build.forget_existing_inserts())
    elif conflict is OnConflict.STOP:
        key = _first_key(cursor, build.first_existing_insert())
        if key is not None:
            raise RowRefused(
                "the row is already there, and on_conflict is stop",
                f"{plan.source} {key}",
                f"delete the row from {plan.target}, or set on_conflict: replace",
            )


def _settle_missing(
    cursor: Cursor, plan: TablePlan, step: StagedStep, build: Statements, conflict: OnConflict
) -> None:
    """Changed rows that are not at the target: drop them, refuse them, or see that they can be made."""
    if conflict is OnConflict.KEEP:
        cursor.execute(build.forget_missing())
    elif conflict is OnConflict.STOP or step.kind == "move":
        _refuse_missing(cursor, plan, build, conflict)
    elif len(step.unchanged) > 1:
        key = _first_key(cursor, build.first_missing(only_incomplete=True))
        if key is not None:
            raise _untold(plan, key)


def _refuse_missing(
    cursor: Cursor, plan: TablePlan, build: Statements, conflict: OnConflict
) -> None:
    key = None if conflict is OnConflict.KEEP else _first_key(cursor, build.first_missing())
    if key is None:
        return
    if conflict is OnConflict.REPLACE:
        raise _untold(plan, key)
    raise RowRefused(
        "the row is changed but not at the target, and on_conflict is stop",
        f"{plan.source} {key}",
        f"copy the row to {plan.target} by hand, or set on_conflict: keep to pass over it",
    )


def _untold(plan: TablePlan, key: str) -> RowRefused:
    return RowRefused(
        "the row is not at the target, and its UPDATE left TOASTed values untold",
        f"{plan.source} {key}",
        f"copy that row to {plan.target} by hand; REPLICA IDENTITY FULL avoids it",
    )
