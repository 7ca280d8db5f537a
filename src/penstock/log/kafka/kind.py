"""The kind `kafka`: a log in topics, which capture and delivery on different machines share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.log.broker.kind import BrokerKind
from penstock.log.kafka.options import KafkaLogOptions

if TYPE_CHECKING:
    from penstock.log.contract import LogKind
    from penstock.log.kafka.places import KafkaPlaces


class KafkaKind(BrokerKind):
    """Topics."""

    name = "kafka"
    options = KafkaLogOptions
    package = "confluent_kafka"

    def _made_places(self, options: KafkaLogOptions) -> KafkaPlaces:
        from penstock.log.kafka.places import KafkaPlaces

        return KafkaPlaces(options)


KIND: LogKind = KafkaKind()
