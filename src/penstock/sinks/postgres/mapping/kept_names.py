"""Names of a source table that the target did not follow, as penstock.tables keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.sinks.postgres.mapping.table_mapping import TableMapping


@dataclass(frozen=True)
class KeptNames:
    """Names of a source table that the target did not follow: where it is, what columns are called.

    `ruled_as` is what the table was called when its rule was taken, where that is not its name.
    """

    target: TableName | None = None
    columns: tuple[tuple[str, str], ...] = ()
    ruled_as: TableName | None = None

    @classmethod
    def read(cls, document: Mapping[str, Any] | None) -> KeptNames:
        """What the column `mapping` of penstock.tables says; NULL where every name was followed."""
        if not document:
            return cls()
        target, ruled_as = document.get("target"), document.get("ruled_as")
        return cls(
            TableName(*target) if target else None,
            tuple(sorted(document.get("columns", {}).items())),
            TableName(*ruled_as) if ruled_as else None,
        )

    @property
    def document(self) -> dict[str, Any] | None:
        """What that column is to say."""
        document: dict[str, Any] = {}
        if self.target is not None:
            document["target"] = list(self.target)
        if self.columns:
            document["columns"] = dict(self.columns)
        if self.ruled_as is not None:
            document["ruled_as"] = list(self.ruled_as)
        return document or None

    def names(self, table_mapping: TableMapping) -> dict[str, str]:
        """What the target calls columns of the source, where that is not their name."""
        return dict(self.columns or table_mapping.names.items())

    def names_of(self, table_mapping: TableMapping, columns: Collection[str]) -> dict[str, str]:
        """The same of `columns`, and of those that the rule names and the source may get yet.

        Not where another column has that name by now: one that was renamed at the source, say.
        """
        names = self.names(table_mapping)
        taken = {*columns, *dict(self.columns).values()}
        missing = {
            name: called
            for name, called in table_mapping.names.items()
            if name not in columns and called not in taken
        }
        return {name: called for name, called in names.items() if name in columns} | missing

    def wanted(self, table_mapping: TableMapping) -> tuple[str, ...] | None:
        """The columns to deliver, also those that the source calls differently by now."""
        if table_mapping.columns is None:
            return None
        return (*table_mapping.columns, *(name for name, called in self.columns if called))


# Every name was followed.
NO_NAMES = KeptNames()
