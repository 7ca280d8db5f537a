"""Names of a source table that the target did not follow, as penstock.tables keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.sinks.postgres.mapping.table_mapping import Landing


@dataclass(frozen=True)
class Mapped:
    """Names of a source table that the target did not follow: where it is, what columns are called.

    `ruled_as` is what the table was called when its rule was taken, where that is not its name.
    """

    target: TableName | None = None
    columns: tuple[tuple[str, str], ...] = ()
    ruled_as: TableName | None = None

    def names(self, landing: Landing) -> dict[str, str]:
        """What the target calls columns of the source, where that is not their name."""
        return dict(self.columns or landing.names.items())

    def names_of(self, landing: Landing, columns: Collection[str]) -> dict[str, str]:
        """The same of `columns`, and of those that the rule names and the source may get yet.

        Not where another column has that name by now: one that was renamed at the source, say.
        """
        names = self.names(landing)
        taken = {*columns, *dict(self.columns).values()}
        missing = {
            name: called
            for name, called in landing.names.items()
            if name not in columns and called not in taken
        }
        return {name: called for name, called in names.items() if name in columns} | missing

    def wanted(self, landing: Landing) -> tuple[str, ...] | None:
        """The columns to deliver, also those that the source calls differently by now."""
        if landing.columns is None:
            return None
        return (*landing.columns, *(name for name, called in self.columns if called))


def mapped(document: Mapping[str, Any] | None) -> Mapped:
    """What penstock.tables says of it."""
    if not document:
        return Mapped()
    target, ruled_as = document.get("target"), document.get("ruled_as")
    return Mapped(
        TableName(*target) if target else None,
        tuple(sorted(document.get("columns", {}).items())),
        TableName(*ruled_as) if ruled_as else None,
    )
