"""What `penstock status` shows of subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.sinks.status import SubscriptionStatus
from penstock.sinks.webhook.parked import opened

if TYPE_CHECKING:
    from penstock.sinks.kind import SinkPlace
    from penstock.sinks.status import SinkStatus
    from penstock.sinks.webhook.options import WebhookOptions
    from penstock.sinks.webhook.rows import Kept


def add_subscriptions(place: SinkPlace[WebhookOptions], status: SinkStatus) -> None:
    """Add how subscriptions stand."""
    try:
        with opened(place) as store:
            if store is None:
                return
            counts = store.parked_counts()
            for kept in store.subscriptions():
                status.subscriptions[kept.id] = status_of(kept, counts.get(kept.id, 0))
            status.parked += sum(counts.values())
    except PenstockError as error:
        status.error = status.error or str(error)


def status_of(kept: Kept, parked: int) -> SubscriptionStatus:
    """One subscription; not its URL, which may hold a secret."""
    state = "failing" if kept.state == "active" and kept.failing_since else kept.state
    return SubscriptionStatus(
        state=state,
        delivered_lsn=kept.delivered_lsn,
        delivered=kept.delivered,
        parked=parked,
        error=kept.error,
        lost_after_lsn=kept.lost_after_lsn,
        lost_to_lsn=kept.lost_to_lsn,
    )
