"""The kind `nats`: a log in streams of JetStream, which capture and delivery on different machines share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.log.broker.kind import BrokerKind
from penstock.log.nats.options import NatsLogOptions

if TYPE_CHECKING:
    from penstock.log.contract import LogKind
    from penstock.log.nats.places import NatsPlaces


class NatsKind(BrokerKind):
    """Streams."""

    name = "nats"
    options = NatsLogOptions
    package = "nats"

    def _made_places(self, options: NatsLogOptions) -> NatsPlaces:
        from penstock.log.nats.places import NatsPlaces

        return NatsPlaces(options)


KIND: LogKind = NatsKind()
