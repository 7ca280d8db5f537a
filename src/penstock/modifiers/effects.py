"""What rules do to a table, in parts that can be compared: none may be lost when the table changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Effect(NamedTuple):
    """What one rule does to one column, or to the rows as a whole.

    `is_own`: the rule names the table, so that somebody has decided for it. `hides`: something of the source is
    not delivered as it is; else the rule only says so (`keep`).
    """

    family: str
    column: int  # its id; 0 are the rows
    what: object  # equal where the same is done
    is_own: bool
    hides: bool = True


def lost_effects(before: Iterable[Effect], after: Iterable[Effect]) -> list[Effect]:
    """What was done, and is not any more.

    In its place may be the same, or what a rule says that names the table; one such rule for each that is lost
    of those that named it before. A column that only a rule for any table was for may have another such rule: its
    type may be another one.
    """
    there = list(after)
    left = list(there)
    missing = [one for one in before if one.hides and not _took(left, _same(one, left))]
    return [
        one
        for one in missing
        if not (_took(left, _own(one, left)) if one.is_own else _any_other(one, there, left))
    ]


def _took(left: list[Effect], found: list[Effect]) -> bool:
    if found:
        left.remove(found[0])
    return bool(found)


def _same(one: Effect, others: list[Effect]) -> list[Effect]:
    return [each for each in others if each.hides and each[:3] == one[:3]]


def _own(one: Effect, others: list[Effect]) -> list[Effect]:
    return [each for each in others if each.is_own and each[:2] == one[:2]]


def _any_other(one: Effect, there: list[Effect], left: list[Effect]) -> bool:
    general = [each for each in left if each.hides and each.column and each[:2] == one[:2]]
    return bool(_own(one, there)) or _took(left, general)
