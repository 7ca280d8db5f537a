"""Merge the steps of all tables of a batch the quick way: no savepoints, and the first error ends it.

Where triggers are off, steps are merged as they come. Where foreign keys are checked, rows come before those that
refer to them and go after them: first what is put, parents before children, then what is taken
away, children before parents. Both ends of a round are states that the source has had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.failpoints import fault_point
from penstock.sinks.postgres.mapping.target import refuse_new_code
from penstock.sinks.postgres.merge import rows as merge
from penstock.sinks.postgres.merge.conflicts import NONE, Conflicts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import psycopg

    from penstock.sinks.postgres.mapping.plan import StagedStep, TablePlan
    from penstock.sinks.postgres.merge.stages import Stages
    from penstock.sinks.postgres.options import OnConflict
    from penstock.table import TableName


def merge_steps(
    cursor: psycopg.Cursor[Any],
    steps: list[StagedStep],
    plan_of: Callable[[TableName], TablePlan],
    stages: Stages,
    conflict: OnConflict,
    *,
    replica_role: bool,
) -> dict[TableName, Conflicts]:
    """Merge them; the conflicts, by table.

    Raises:
        TargetObjectsForeign: a table would run what another role has made.
        TimeLimitReachedError: expressions of a table take longer than the role may.
    """
    for table in dict.fromkeys(step.table for step in steps):
        refuse_new_code(cursor.connection, plan_of(table))
    found: dict[TableName, Conflicts] = {}
    parts = (
        ((step, "all") for step in steps)
        if replica_role
        else parents_first(steps, lambda table: plan_of(table).rank)
    )
    for step, part in parts:
        plan, stage = plan_of(step.table), stages.place_of(step)
        stages.load(cursor, step)
        if part == "take":
            conflicts = merge.take(cursor, plan, step, stage, after_put=True)
        elif part == "put":
            conflicts = merge.put(cursor, plan, step, stage, conflict)
        else:
            conflicts = merge.apply(cursor, plan, step, stage, conflict)
        if conflicts := conflicts.unexpected(plan):
            found[step.table] = found.get(step.table, NONE) + conflicts
        fault_point("deliver.between_steps")
    return found


def rounds(steps: list[StagedStep]) -> Iterator[list[StagedStep]]:
    """The steps in runs that hold no table twice, and nothing else beside a truncate or a move."""
    run: list[StagedStep] = []
    for step in steps:
        together = run and run[0].kind == step.kind and step.kind != "move"
        if run and (not together or any(step.table == other.table for other in run)):
            yield run
            run = []
        run.append(step)
    if run:
        yield run


def parents_first(
    steps: list[StagedStep], rank: Callable[[TableName], int]
) -> Iterator[tuple[StagedStep, str]]:
    """Each step with what to do of it: `put`, `take`, or `all`."""
    for run in rounds(steps):
        ranked = sorted(run, key=lambda step: rank(step.table))
        if run[0].kind == "net":
            yield from ((step, "put") for step in ranked)
            yield from ((step, "take") for step in reversed(ranked))
        else:
            yield from ((step, "all") for step in reversed(ranked))
