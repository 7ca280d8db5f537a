"""Staged versions -> a history, as sets. Decides which statements run; knows no batch.

What is there ends where the first change of its key begins, and every version is added: two statements,
and one more that checks whether new keys are new to the target. All else is for special cases: values that
only the target knows, a clock that was set back, a transaction that goes on in another step.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.sinks.postgres.history.statements import Carried
from penstock.sinks.postgres.merge.conflicts import (
    LOGGED_KEYS,
    NONE,
    Conflicts,
    affected,
    counted,
    first_key,
    is_incomplete,
    is_missing,
    is_there,
    log_keys,
)
from penstock.sinks.postgres.options import OnConflict

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg
    from psycopg import sql

    from penstock.errors import PenstockError
    from penstock.sinks.postgres.mapping.plan import (
        HistoryPlan,
        HistoryTimes,
        StagedStep,
        TablePlan,
    )

    Cursor = psycopg.Cursor[Any]


def merge(
    cursor: Cursor,
    plan: TablePlan,
    history: HistoryPlan,
    step: StagedStep,
    stage: sql.Identifier,
    conflict: OnConflict,
) -> Conflicts:
    """Merge one step.

    Raises:
        RowRefused: `on_conflict: stop` does not allow it, or a row that is not wholly known is not at
            the target.
    """
    times = step.times
    assert times is not None
    build = Carried(plan, history, step, stage)
    if step.kind == "truncate":
        if step.key and _has_carried(cursor, build, times):
            cursor.execute(build.take_all_carried(times.first_at))
        for statement in build.close_all(times.first_at):
            cursor.execute(statement)
        return NONE
    if not step.key:
        return _merge_whole(cursor, step, build)
    for statement in build.completions():
        cursor.execute(statement)
    if step.kind == "move":
        left = _leave(cursor, plan, step, build, conflict)
        # From here on they are rows that came.
        arrived = Carried(plan, history, replace(step, kind="net"), stage)
        return left + _merge_net(cursor, plan, step, arrived, conflict, is_changed=False)
    is_changed = _has_carried(cursor, build, times)
    if is_changed:
        for statement in build.take_carried():
            cursor.execute(statement)
    return _merge_net(cursor, plan, step, build, conflict, is_changed=is_changed)


def _merge_net(
    cursor: Cursor,
    plan: TablePlan,
    step: StagedStep,
    build: Carried,
    conflict: OnConflict,
    *,
    is_changed: bool,
) -> Conflicts:
    """`is_changed`: the stage holds other operations than the step says."""
    skipped = _settle(cursor, plan, step, build, conflict)
    announced = _announced(cursor, step, build, is_changed=is_changed or bool(skipped))
    seen = counted(cursor, build.count_seen()) if announced["I"] else 0
    _log_conflicts(cursor, plan, build)
    closed: Counter[str] = Counter()
    changed = announced.total() - announced["I"]
    if seen or changed:
        closed = _counts(cursor, build.close(with_new=seen > 0))
    if seen or closed.total() < changed - announced["G"]:
        closed += _close_late(cursor, build, with_new=seen > 0)
    found = Conflicts(
        closed["I"] + closed["N"],
        max(0, announced["U"] - closed["U"] - closed["C"]),
        max(0, announced["D"] - closed["D"]),
    )
    if seen or found.update_missing or closed["R"] < announced["R"]:
        cursor.execute(build.lift_over_past())
    if seen:
        cursor.execute(build.undo_deletions())
    if step.times is not None and step.times.is_followed:
        cursor.execute(build.make_carried())
        cursor.execute(build.carry(step.times.last_at))
    cursor.execute(build.insert_versions(may_be_seen=seen > 0))
    return found + skipped


def _close_late(cursor: Cursor, build: Carried, *, with_new: bool) -> Counter[str]:
    """End what began after the change that ends it: a clock was set back."""
    late = _counts(cursor, build.take_late(with_new=with_new))
    if late:
        cursor.execute(build.delete_before_late())
    return late


def _merge_whole(cursor: Cursor, step: StagedStep, build: Carried) -> Conflicts:
    """Rows that are known by their whole content."""
    closed: Counter[str] = Counter()
    if step.delete_count or step.update_count:
        rows = cursor.execute(build.close_whole()).fetchall()
        closed = Counter({letter: count for letter, count, _ in rows})
        if any(late for *_, late in rows):
            cursor.execute(build.drop_late())
    cursor.execute(build.insert_versions(may_be_seen=False))
    return Conflicts(0, step.update_count - closed["C"], step.delete_count - closed["D"])


def _leave(
    cursor: Cursor, plan: TablePlan, step: StagedStep, build: Carried, conflict: OnConflict
) -> Conflicts:
    """End rows that take another key, and are known only by the target's."""
    found = NONE
    conflict = plan.if_missing(conflict)
    missing = first_key(cursor, build.keys("N", are_open=False, most=1))
    if missing is not None and conflict is OnConflict.KEEP:
        passed = sum(affected(cursor, each) for each in build.skip_missing())
        found = Conflicts(update_missing=passed)
    elif missing is not None:
        refuse = is_incomplete if conflict is OnConflict.REPLACE else is_missing
        raise refuse(plan, missing)
    if step.times is not None and _has_carried(cursor, build, step.times):
        for statement in build.take_carried():
            cursor.execute(statement)
    if _counts(cursor, build.close_old()).total() < step.insert_count:
        cursor.execute(build.take_late())
    return found


def _settle(
    cursor: Cursor, plan: TablePlan, step: StagedStep, build: Carried, conflict: OnConflict
) -> Conflicts:
    """What `on_conflict` says of rows that are there or are not; those that were skipped."""
    if_missing = plan.if_missing(conflict)
    if len(step.unchanged) > 1 and step.kind == "net" and if_missing is not OnConflict.KEEP:
        incomplete = build.keys("U", are_open=False, most=1, only="s.g <> 0")
        refuse = is_incomplete if if_missing is OnConflict.REPLACE else is_missing
        _refuse_first(cursor, plan, incomplete, refuse)
    if conflict is OnConflict.REPLACE:
        return NONE
    there = build.keys("I", "N", are_open=True, most=1)
    missing = build.keys("U", are_open=False, most=1)
    if conflict is OnConflict.STOP:
        _refuse_first(cursor, plan, there, is_there)
        if if_missing is OnConflict.STOP:
            _refuse_first(cursor, plan, missing, is_missing)
        return NONE
    existing = passed = 0
    if cursor.execute(there).fetchone() is not None:
        existing, *_ = [affected(cursor, each) for each in build.skip_existing()]
    if if_missing is conflict and cursor.execute(missing).fetchone() is not None:
        passed, *_ = [affected(cursor, each) for each in build.skip_missing()]
    return Conflicts(existing, passed)


def _refuse_first(
    cursor: Cursor,
    plan: TablePlan,
    keys: sql.Composed,
    refuse: Callable[[TablePlan, str], PenstockError],
) -> None:
    """Refuse the row of the first key that is found."""
    key = first_key(cursor, keys)
    if key is not None:
        raise refuse(plan, key)


def _announced(
    cursor: Cursor, step: StagedStep, build: Carried, *, is_changed: bool
) -> Counter[str]:
    """How many keys begin with which operation; those of new keys, and of changed ones, as one."""
    if not is_changed:
        return Counter(
            I=step.insert_count,
            U=step.update_count,
            D=step.delete_count,
            R=step.replace_count,
            G=step.gone_count,
        )
    found = _counts(cursor, build.counts())
    found["I"] += found.pop("N", 0)
    found["U"] += found.pop("C", 0)
    return found


def _log_conflicts(cursor: Cursor, plan: TablePlan, build: Carried) -> None:
    """The first keys of each conflict, at debug level."""
    for kind, letters, are_open in (
        ("insert_exists", ("I", "N"), True),
        ("update_missing", ("U", "C"), False),
        ("delete_missing", ("D",), False),
    ):
        keys = partial(build.keys, *letters, are_open=are_open, most=LOGGED_KEYS)
        log_keys(cursor, plan.source, kind, keys)


def _counts(cursor: Cursor, statement: sql.Composed) -> Counter[str]:
    """How many, by operation."""
    return Counter(dict(cursor.execute(statement).fetchall()))


def _has_carried(cursor: Cursor, build: Carried, times: HistoryTimes) -> bool:
    if not times.follows:
        return False
    query = "SELECT to_regclass(%s) IS NOT NULL"
    return cursor.execute(query, (f"pg_temp.{build.carried_name}",)).fetchone() == (True,)
