"""The kind `nats`: documents as messages of a JetStream stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.extras import require_package
from penstock.sinks.documents.contract import DocumentKind
from penstock.sinks.nats.options import NatsOptions

if TYPE_CHECKING:
    from penstock.sinks.kind import SinkPlace
    from penstock.sinks.nats.sink import NatsSink


class NatsKind(DocumentKind[NatsOptions]):
    """Messages of JetStream."""

    name = "nats"
    options = NatsOptions

    def sink(self, place: SinkPlace[NatsOptions]) -> NatsSink:
        """The sink, unopened.

        Raises:
            PackageMissing: the extra is not installed.
        """
        require_package("nats", "nats", f"sink {place.name}")
        from penstock.sinks.nats.sink import NatsSink

        return NatsSink(place)
