"""What the receipts of a batch say, taken together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.errors import PenstockError
    from penstock.sinks.postgres.mapping.plan import StagedStep
    from penstock.sinks.sink import Receipt
    from penstock.table import TableName


def staged_steps(
    receipts: Sequence[Receipt], *, is_part_of_transaction: bool = False
) -> list[StagedStep]:
    """The steps, in order. Those of a history know where an instant goes on from one to the next.

    With `is_part_of_transaction` that may also be before the first and after the last.
    """
    steps: list[StagedStep] = [step for receipt in receipts for step in receipt.content.steps]
    last: dict[TableName, int] = {}
    for number, step in enumerate(steps):
        if step.times is None:
            continue
        times = replace(
            step.times, follows=is_part_of_transaction, is_followed=is_part_of_transaction
        )
        before = last.get(step.table)
        if before is not None:
            earlier = steps[before].times
            goes_on = earlier is not None and earlier.last_at == times.first_at
            times = replace(times, follows=goes_on)
            if earlier is not None:
                went_on = replace(earlier, is_followed=goes_on)
                steps[before] = replace(steps[before], times=went_on)
        steps[number] = replace(step, times=times)
        last[step.table] = number
    return steps


def change_counts(receipts: Sequence[Receipt]) -> dict[TableName, int]:
    """How many changes came, by table."""
    counts: dict[TableName, int] = {}
    for receipt in receipts:
        for table, count in receipt.content.change_counts.items():
            counts[table] = counts.get(table, 0) + count
    return counts


def refused_tables(receipts: Sequence[Receipt]) -> dict[TableName, PenstockError]:
    """Tables whose rows the target would not even stage, or no modifier could be applied to, and why."""
    return {
        entry.table: entry.error
        for receipt in receipts
        for entry in (*receipt.refused, *receipt.content.refused)
    }
