"""What a destination has refused and a sink keeps, as people are shown it. Knows no kind of sink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.table import TableName


@dataclass(frozen=True)
class ParkedEntry:
    """One parked document or row; `reason` is None of one that waits behind another."""

    id: str
    table: TableName
    op: str
    key: str | None  # JSON
    commit_lsn: str
    reason: str | None
    parked_at: str
    # What has been asked for and is not carried out yet: retry or drop.
    request: str | None = None
    values: Any = None


@dataclass(frozen=True)
class Wanted:
    """What is needed of what is parked; a sink may give more."""

    with_values: bool = True
    most: int | None = None  # entries, the oldest


ALL = Wanted()
