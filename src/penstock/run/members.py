"""What was published when the source's catalog was read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.table import TableName, TableRule

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.lsn import Lsn
    from penstock.state.reports import MembershipReport


@dataclass(frozen=True)
class Members:
    """Tables and their entries in the publications, by name and by oid.

    They were read at some moment between two positions of the stream.
    """

    oids: dict[TableName, int]
    names: dict[int, TableName]
    entries: dict[int, tuple[int, ...]]
    since_lsn: Lsn
    lsn: Lsn

    @classmethod
    def of(cls, report: MembershipReport) -> Members:
        """As capture has reported them."""
        oids = {table_name(text): oid for text, oid in report.published.items()}
        since_lsn = report.lsn if report.since_lsn is None else report.since_lsn
        names = {oid: name for name, oid in oids.items()}
        return cls(oids, names, report.entries, since_lsn, report.lsn)

    def without(self, excludes: Callable[[TableName], bool]) -> Members:
        """Those that a sink is to have."""
        oids = {name: oid for name, oid in self.oids.items() if not excludes(name)}
        if len(oids) == len(self.oids):
            return self
        kept = set(oids.values())
        return replace(
            self,
            oids=oids,
            names={oid: name for oid, name in self.names.items() if oid in kept},
            entries={oid: each for oid, each in self.entries.items() if oid in kept},
        )


def table_name(text: str) -> TableName:
    """A table's name as reports spell it."""
    rule = TableRule.parse(text)
    assert rule.schema is not None and rule.name is not None  # noqa: PT018
    return TableName(rule.schema, rule.name)
