"""Where in the stream the shape of tables changed: a mark in the head of a transaction's last slice."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from penstock.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Mapping

# What a mark's content is: a SchemaChange or a VersionWritten.
CHANGE, VERSION = "change", "version"


@dataclass(frozen=True)
class Mark:
    """One document of the stream and its place: before the row with this ordinal.

    `number` counts the documents of one transaction.
    """

    commit_lsn: Lsn
    end_lsn: Lsn
    committed_at: int
    xid: int
    ordinal: int
    number: int
    kind: str
    content: str

    @property
    def where(self) -> str:
        """The place, for errors."""
        return f"{self.commit_lsn} ordinal {self.ordinal}"

    def as_json(self) -> dict[str, Any]:
        """As it stands in a slice's head or among the past shapes."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Mark:
        """The same, read back."""
        return cls(
            Lsn(document["commit_lsn"]),
            Lsn(document["end_lsn"]),
            int(document["committed_at"]),
            int(document["xid"]),
            int(document["ordinal"]),
            int(document["number"]),
            str(document["kind"]),
            str(document["content"]),
        )
