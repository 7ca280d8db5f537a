"""Sequences that followed tables count with, by what becomes of them at a target. Knows no server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.table import TableName


@dataclass(frozen=True)
class FoundSequences:
    """Sequences by what becomes of them; one may be in several lists."""

    # A target has them: with the column that owns them, or under their own names.
    carried: list[TableName] = field(default_factory=list)
    free: list[TableName] = field(default_factory=list)  # of those, what no column owns
    shared: list[TableName] = field(
        default_factory=list
    )  # of those, what several columns count with
    # A target lacks them, and the defaults that name them: the column that owns them is not followed, or
    # its own default is more than the next value.
    missed: list[TableName] = field(default_factory=list)
    # A target lacks them: no column that is followed counts with them.
    unused: list[TableName] = field(default_factory=list)
