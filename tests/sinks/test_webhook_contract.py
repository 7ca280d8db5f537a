"""The webhook sink keeps the contract, with a real receiver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.lsn import Lsn
from penstock.sinks.webhook.kind import WebhookKind
from penstock.sinks.webhook.options import WebhookOptions
from penstock.testing import SinkContract

if TYPE_CHECKING:
    from pathlib import Path


class TestWebhook(SinkContract):
    """Receivers refuse each for itself: that is in test_webhook_delivery."""

    @pytest.fixture(autouse=True)
    def _receivers(self, receivers) -> None:
        self.receivers = receivers
        self.made: dict[str, Any] = {}

    def kind(self) -> WebhookKind:
        return WebhookKind()

    def options(self, directory: Path) -> WebhookOptions:
        receiver = self.receivers()
        self.made[receiver.url] = receiver
        return WebhookOptions.model_validate({"urls": receiver.url, "allow": ["127.0.0.1"]})

    def delivered(self, options: WebhookOptions) -> list[dict[str, Any]]:
        # Between keys requests overtake one another: as documents say. Copied rows come first.
        found = self.made[options.urls[0].url].documents
        return sorted(
            found,
            key=lambda one: (Lsn.parse(one["commit_lsn"]), one["op"] != "read", one["ordinal"]),
        )
