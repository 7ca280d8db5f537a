"""How sinks, and tables at them, are shown to people. Knows no kind of sink, and nothing that runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from penstock.table import TableName


@dataclass
class TableStatus:
    """One table at one sink."""

    state: str = "streaming"
    rows_copied: int = 0
    bytes_copied: int = 0
    ranges_done: int = 0
    ranges_total: int = 0
    delivered_lsn: str | None = None  # its own position, while it does not flow with the others
    snapshot_seconds: float | None = None  # the age of the snapshot it is copied under
    request: str | None = None
    foreign_keys_due: bool = False  # they are still to be made
    notes: str | None = None
    changed_at: str | None = None
    # What was other than the source's changes said: insert_exists, update_missing, delete_missing.
    conflicts: dict[str, int] = field(default_factory=dict)
    error: str | None = None


@dataclass
class FlowStatus:
    """One source at one sink."""

    delivered_lsn: str | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    changes_delivered: int = 0
    error: str | None = None
    log_age_seconds: float | None = None  # of what the log keeps for it, also for a stopped table


@dataclass
class SubscriptionStatus:
    """One of those who have subscribed, at a sink that many may subscribe to."""

    state: str = "active"
    delivered_lsn: str | None = None
    delivered: int = 0
    parked: int = 0
    # WAL from `delivered_lsn` to where the sink is; 0 when it has everything, None where nothing is kept for it.
    lag_bytes: int | None = None
    error: str | None = None
    # Between these, documents were deleted before it had them; none where `lost_to_lsn` is None.
    lost_after_lsn: str | None = None
    lost_to_lsn: str | None = None


@dataclass
class SinkStatus:
    """One sink; with several sources what they are together, which is nowhere a position."""

    delivered_lsn: str | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    changes_delivered: int = 0
    parked: int = 0
    paused_since: str | None = None  # a person holds it
    error: str | None = None
    log_age_seconds: float | None = None  # of what the log keeps for it, also for a stopped table
    sources: dict[str, FlowStatus] = field(default_factory=dict)
    tables: dict[str, TableStatus] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionStatus] = field(default_factory=dict)


class SequencePosition(NamedTuple):
    """Where a sequence of the target stands now.

    Not `is_set`: it was further on than the source's already, and was left there.
    """

    table: TableName
    sequence: TableName
    value: int
    is_set: bool
