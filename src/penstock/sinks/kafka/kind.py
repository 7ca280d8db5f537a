"""The kind `kafka`: documents as records of topics."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.errors import DestinationRefuses
from penstock.extras import require_package
from penstock.findings import Finding
from penstock.sinks.documents.contract import DocumentKind
from penstock.sinks.documents.format import JSON_FORMAT
from penstock.sinks.documents.patterns import Pattern, escaped, replaced
from penstock.sinks.kafka.options import Delivery, Format, KafkaOptions, RecordKey

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from penstock.errors import PenstockError
    from penstock.sinks.documents.contract import DocumentSink
    from penstock.sinks.documents.format import DocumentFormat
    from penstock.sinks.documents.workspace import Workspace
    from penstock.sinks.kind import SinkPlace
    from penstock.table import TableName


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

    def clashes(
        self, place: SinkPlace[KafkaOptions], tables: Collection[TableName]
    ) -> Mapping[TableName, PenstockError]:
        """Tables whose topics are to be their own and are not, since characters of their names are replaced.

        Their keys, and the schemas of Avro, do not tell them apart.
        """
        topics = topics_of(place)
        if place.options.format is Format.JSON or not topics.fields >= {"schema", "table"}:
            return {}
        targets = {table: place.routes.of(table) or table for table in tables}
        by_topic: dict[str, set[TableName]] = {}
        for target in targets.values():
            by_topic.setdefault(topics.of(*target), set()).add(target)
        found: dict[TableName, PenstockError] = {}
        for table, target in sorted(targets.items()):
            those = by_topic[topic := topics.of(*target)]
            if len(those) > 1:
                found[table] = DestinationRefuses(
                    f"{' and '.join(map(str, sorted(those)))} would all be topic {topic}, wanted one for each:"
                    " records in Debezium's form do not say by their keys which table they are of",
                    f"sink {place.name}",
                    "give one of them another name by a route (modifiers:), or take it out of what is followed",
                )
        return found

    def occupied(
        self, place: SinkPlace[KafkaOptions], tables: Sequence[TableName]
    ) -> Sequence[Finding]:
        """See `clashes`: nothing starts with them."""
        errors = {str(error): error for error in self.clashes(place, tables).values()}
        return [Finding(error) for error in errors.values()]

    def check(
        self, places: Mapping[str, SinkPlace[KafkaOptions]], chosen: Mapping[str, Any]
    ) -> Iterator[Finding]:
        """As of every sink of documents; and which tables, or sources, would meet in one topic."""
        yield from super().check(places, chosen)
        for source_id, known in chosen.items():
            yield from self.occupied(places[source_id], known.followed)
        yield from _meetings(places, chosen)

    def workspace(self, place: SinkPlace[KafkaOptions]) -> Workspace:
        """Below the state directory; copied rows that wait are of one form only."""
        space = super().workspace(place)
        form = place.options.format
        if form is Format.JSON:
            return space
        return replace(space, copies=space.copies.with_name(f"{space.copies.name}-{form.value}"))


def topics_of(place: SinkPlace[KafkaOptions]) -> Pattern:
    """How topics are called: as Debezium calls them, where records are as Debezium's."""
    options = place.options
    spelled = escaped if options.format is Format.JSON else replaced
    return Pattern(options.topic, place.pipeline, place.source_id, spelled)


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
    return AvroFormat(
        place.routes, topics_of(place), Registry(options.registry, f"sink {place.name}")
    )


def _meetings(
    places: Mapping[str, SinkPlace[KafkaOptions]], chosen: Mapping[str, Any]
) -> Iterator[Finding]:
    """Topics with records of several sources, whose keys, or schemas, do not say of which they are."""
    if len(places) == 1:
        return
    options = next(iter(places.values())).options
    if not options.writes_tombstones and options.format is not Format.AVRO:
        return
    is_avro = options.format is Format.AVRO
    for topic, those in _sources_of_topics(places, chosen):
        harm = (
            "schemas of Avro belong to one source each, and the registry refuses the second"
            if is_avro
            else "a tombstone of a key of one has a compacted topic forget the row of the other"
        )
        otherwise = (
            "" if is_avro else ", or tombstones: false where two sources can have the same key"
        )
        yield Finding(
            DestinationRefuses(
                f"sources {' and '.join(those)} go to topic {topic}: {harm}",
                f"sink {places[those[0]].name}",
                f"write {{source}} into topic:{otherwise}",
            ),
            "error" if is_avro else "warning",
        )


def _sources_of_topics(
    places: Mapping[str, SinkPlace[KafkaOptions]], chosen: Mapping[str, Any]
) -> Iterator[tuple[str, list[str]]]:
    """Topics in which records of several sources cannot be told from one another by their keys; with those sources."""
    sources: dict[tuple[str, TableName | None], set[str]] = {}
    for source_id, known in chosen.items():
        place = places[source_id]
        topics = topics_of(place)
        for table in known.followed:
            target = place.routes.of(table) or table
            # Keys of penstock's own form name the table.
            own = target if place.options.format is Format.JSON else None
            sources.setdefault((topics.of(*target), own), set()).add(source_id)
    for topic in sorted({topic for (topic, _), those in sources.items() if len(those) > 1}):
        yield (
            topic,
            sorted(set().union(*(found for (each, _), found in sources.items() if each == topic))),
        )
