"""What `penstock status` shows of subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import PenstockError
from penstock.lsn import Lsn
from penstock.sinks.status import SubscriptionStatus
from penstock.sinks.webhook.outbox import RETAINING
from penstock.sinks.webhook.parked import opened

if TYPE_CHECKING:
    from penstock.sinks.kind import SinkPlace
    from penstock.sinks.status import SinkStatus
    from penstock.sinks.webhook.options import WebhookOptions
    from penstock.sinks.webhook.rows import Kept
    from penstock.sinks.webhook.store import Store


def add_subscriptions(place: SinkPlace[WebhookOptions], status: SinkStatus) -> None:
    """Add how subscriptions stand."""
    try:
        with opened(place) as store:
            if store is None:
                return
            counts = store.parked_counts()
            end = End.of(store)
            for kept in store.subscriptions():
                status.subscriptions[kept.id] = status_of(kept, counts.get(kept.id, 0), end)
            status.parked += sum(counts.values())
    except PenstockError as error:
        status.error = status.error or str(error)


class End(NamedTuple):
    """Where the sink is: its last entry of the outbox, and its position."""

    published: int
    delivered_lsn: str | None

    @classmethod
    def of(cls, store: Store) -> End:
        """As it is stored now."""
        return cls(store.published, store.delivered_lsn)

    def lag_bytes(self, kept: Kept) -> int | None:
        """How far a subscription is behind.

        What it has not had is told by entries: without any its position stays where its last document was.
        """
        if kept.state not in RETAINING:
            return None
        if kept.place.seq > self.published:
            return 0
        lsn = kept.delivered_lsn or kept.from_lsn
        if lsn is None or self.delivered_lsn is None:
            return None
        return max(0, Lsn.parse(self.delivered_lsn) - Lsn.parse(lsn))


def status_of(kept: Kept, parked: int, end: End) -> SubscriptionStatus:
    """One subscription; not its URL, which may hold a secret."""
    state = "failing" if kept.state == "active" and kept.failing_since else kept.state
    return SubscriptionStatus(
        state=state,
        delivered_lsn=kept.delivered_lsn,
        delivered=kept.delivered,
        parked=parked,
        lag_bytes=end.lag_bytes(kept),
        error=kept.error,
        lost_after_lsn=kept.lost_after_lsn,
        lost_to_lsn=kept.lost_to_lsn,
    )
