"""In which order the steps of a batch are merged. Decides, runs nothing.

Where triggers are off, as they come. Where foreign keys are checked, rows come before those that
refer to them and go after them: first what is put, parents before children, then what is taken
away, children before parents. Both ends of a round are states that the source has had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.sinks.postgres.mapping.plan import StagedStep
    from penstock.table import TableName


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
