"""The kind `kafka`: documents as records of topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.sinks.documents.contract import DocumentKind
from penstock.sinks.documents.extras import require_package
from penstock.sinks.kafka.options import Delivery, KafkaOptions

if TYPE_CHECKING:
    from penstock.sinks.documents.contract import DocumentSink
    from penstock.sinks.kind import SinkPlace


class KafkaKind(DocumentKind[KafkaOptions]):
    """Records of Kafka topics."""

    name = "kafka"
    options = KafkaOptions

    def sink(self, place: SinkPlace[KafkaOptions]) -> DocumentSink:
        """The sink, unopened.

        Raises:
            PackageMissing: the extra is not installed.
        """
        require_package("confluent_kafka", "kafka", f"sink {place.name}")
        from penstock.sinks.kafka.sink import AtLeastOnceSink, ExactlyOnceSink

        if place.options.delivery is Delivery.EXACTLY_ONCE:
            return ExactlyOnceSink(place)
        return AtLeastOnceSink(place)
