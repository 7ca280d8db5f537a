"""What `penstock check` knows of the tables of a source, for what it asks of sinks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.schema.sequences import FoundSequences
    from penstock.schema.shape import TableShape
    from penstock.table import TableName


@dataclass(frozen=True)
class ChosenTables:
    """Tables of a source: those that are followed, and those that findings of their own name."""

    followed: list[TableName]
    others: list[TableName]
    shapes: list[TableShape]
    extensions: dict[str, list[TableName]]  # what they are made with
    sequences: FoundSequences

    @property
    def named(self) -> list[TableName]:
        """All that the rules choose."""
        return [*self.followed, *self.others]
