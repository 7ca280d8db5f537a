"""How a sink asks for the shape of a table of the source. Knows no source: whoever builds the sink does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.lsn import Lsn
    from penstock.schema.shape import TableShape
    from penstock.table import TableName


@dataclass(frozen=True)
class WholeSchema:
    """A schema of the source at a position, with the tables that a sink follows, as its modifiers leave them."""

    name: str
    content: dict[str, Any]  # format, tables, types, sequences
    version: int | None  # None where the source has no triggers that count versions


class Describe(Protocol):
    """Describes a source table as it was at a position."""

    def __call__(self, table: TableName, lsn: Lsn) -> TableShape | None:
        """As it was, or as it is now where that is not known; None when there is no such table."""

    def shape(self, table: TableName, lsn: Lsn) -> TableShape | None:
        """As it was; None where that is not known."""

    def lacks_rows(self, table: TableName) -> bool:
        """Whether rules leave rows of the table out, so that the sink may not have a row that changes."""

    def schemas(
        self, lsn: Lsn, known: Collection[TableName], only: Collection[str] | None = None
    ) -> dict[str, WholeSchema]:
        """The schemas of the tables that the sink is to have, or knows, as they were at a position; or some of them.

        Empty where no shapes are known.
        """

    def name_of(self, oid: int, lsn: Lsn) -> TableName | None:
        """What the table of an oid was called at a position, where that is known."""
