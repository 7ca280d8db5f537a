"""What was published when somebody looked at the source's catalog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.lsn import ZERO, Lsn
from penstock.table import TableName, TableRule

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Members:
    """Tables and their entries in the publications, by name and by oid.

    They were read at some moment between two positions of the stream.
    """

    oids: dict[TableName, int]
    names: dict[int, TableName]
    entries: dict[str, list[int]]
    since_lsn: Lsn
    lsn: Lsn

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Members:
        """As who captures has reported them."""
        oids = {table_name(text): oid for text, oid in report.get("published", {}).items()}
        lsn = Lsn.parse(report["lsn"]) if report.get("lsn") else ZERO
        since_lsn = Lsn.parse(report["since_lsn"]) if report.get("since_lsn") else lsn
        names = {oid: name for name, oid in oids.items()}
        return cls(oids, names, report.get("entries", {}), since_lsn, lsn)


def table_name(text: str) -> TableName:
    """A table's name as reports spell it."""
    rule = TableRule.parse(text)
    assert rule.schema is not None and rule.name is not None  # noqa: PT018
    return TableName(rule.schema, rule.name)
