"""The kind `kafka`: documents as records of topics."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.extras import require_package
from penstock.sinks.documents.contract import DocumentKind
from penstock.sinks.documents.format import JSON_FORMAT
from penstock.sinks.documents.patterns import Pattern
from penstock.sinks.kafka.options import Delivery, Format, KafkaOptions, RecordKey

if TYPE_CHECKING:
    from penstock.sinks.documents.contract import DocumentSink
    from penstock.sinks.documents.format import DocumentFormat
    from penstock.sinks.documents.workspace import Workspace
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
        from penstock.sinks.kafka.at_least_once import AtLeastOnceSink
        from penstock.sinks.kafka.sink import ExactlyOnceSink

        if place.options.delivery is Delivery.EXACTLY_ONCE:
            return ExactlyOnceSink(place)
        return AtLeastOnceSink(place)

    def needs_primary_key(self, options: KafkaOptions) -> bool:
        """Where records have it as their key, also those of tables whose replica identity is full."""
        return options.key is RecordKey.PRIMARY_KEY

    def format(self, place: SinkPlace[KafkaOptions]) -> DocumentFormat:
        """What `format:` says."""
        return format_of(place)

    def workspace(self, place: SinkPlace[KafkaOptions]) -> Workspace:
        """Below the state directory; copied rows that wait are of one form only."""
        space = super().workspace(place)
        form = place.options.format
        if form is Format.JSON:
            return space
        return replace(space, copies=space.copies.with_name(f"{space.copies.name}-{form.value}"))


def format_of(place: SinkPlace[KafkaOptions]) -> DocumentFormat:
    """The format of a sink; needs no client."""
    options = place.options
    if options.format is Format.JSON:
        return JSON_FORMAT
    from penstock.changes.debezium import Decimals
    from penstock.sinks.kafka.formats import AvroFormat, DebeziumFormat
    from penstock.sinks.kafka.registry import Registry

    if options.format is Format.DEBEZIUM:
        decimals = Decimals(options.decimals.value) if options.decimals else Decimals.PRECISE
        return DebeziumFormat(place.routes, decimals)
    assert options.registry is not None
    topics = Pattern(options.topic, place.pipeline, place.source_id)
    return AvroFormat(place.routes, topics, Registry(options.registry, f"sink {place.name}"))
