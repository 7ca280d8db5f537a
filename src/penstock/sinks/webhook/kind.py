"""The kind `webhook`: documents as requests to receivers that have subscribed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.extras import require_package
from penstock.sinks.documents.contract import DocumentKind
from penstock.sinks.parked import ALL
from penstock.sinks.webhook.options import WebhookOptions

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from penstock.sinks.documents.format import DocumentFormat
    from penstock.sinks.kind import SinkPlace
    from penstock.sinks.parked import ParkedEntry, Wanted
    from penstock.sinks.status import SinkStatus
    from penstock.sinks.webhook.sink import WebhookSink
    from penstock.sinks.webhook.subscriptions import WebhookSubscriptions


class WebhookKind(DocumentKind[WebhookOptions]):
    """Requests to receivers."""

    name = "webhook"
    options = WebhookOptions

    def sink(self, place: SinkPlace[WebhookOptions]) -> WebhookSink:
        """The sink, unopened.

        Raises:
            PackageMissing: the extra is not installed.
        """
        require_package("aiohttp", "webhook", f"sink {place.name}")
        from penstock.sinks.webhook.sink import WebhookSink

        return WebhookSink(place)

    def format(self, place: SinkPlace[WebhookOptions]) -> DocumentFormat:
        """penstock's JSON, with types for filters."""
        from penstock.sinks.webhook.typed import TypedFormat

        del place
        return TypedFormat()

    def subscriptions(self, places: Sequence[SinkPlace[WebhookOptions]]) -> WebhookSubscriptions:
        """Who has subscribed, for the API and the command."""
        require_package("aiohttp", "webhook", f"sink {places[0].name}")
        from penstock.sinks.webhook.subscriptions import WebhookSubscriptions

        return WebhookSubscriptions(places)

    def read_status(
        self, places: Sequence[SinkPlace[WebhookOptions]], parts: Sequence[SinkStatus]
    ) -> None:
        """Add how subscriptions stand, and what is parked for them."""
        super().read_status(places, parts)
        from penstock.sinks.webhook.status import add_subscriptions

        for place, part in zip(places, parts, strict=True):
            add_subscriptions(place, part)

    # Receivers refuse one by one, each for itself: what is parked lies with the subscription.

    def parked(self, place: SinkPlace[WebhookOptions], wanted: Wanted = ALL) -> list[ParkedEntry]:
        """Documents that receivers refused, and those behind them."""
        from penstock.sinks.webhook.parked import parked_entries

        del wanted
        return parked_entries(place)

    def ask_parked(
        self, place: SinkPlace[WebhookOptions], action: str, ids: Collection[str]
    ) -> None:
        """Leave a request for who delivers."""
        from penstock.sinks.webhook.parked import ask_parked

        ask_parked(place, action, ids)

    def drop_parked(self, place: SinkPlace[WebhookOptions], ids: Collection[str]) -> None:
        """Forget documents for good."""
        from penstock.sinks.webhook.parked import drop_parked

        drop_parked(place, ids)
