"""What `penstock check` says of a Kafka sink: whether it can be reached, and what it lets us do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka.admin import AclOperation

from penstock.brokers.kafka.names import colliding, too_long
from penstock.errors import DestinationRefuses, PenstockError, SinkPrivilegeMissing
from penstock.findings import Finding
from penstock.sinks.kafka.options import Delivery
from penstock.sinks.kafka.progress import wanted_topic
from penstock.sinks.kafka.registry import Registry
from penstock.sinks.kafka.rights import group_rights, may_create, topic_rights, transaction_rights
from penstock.sinks.kafka.topics import USUAL_LIMIT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from penstock.brokers.kafka.client import Clients
    from penstock.sinks.kafka.options import KafkaOptions
    from penstock.sinks.kafka.producing import Producing


def findings(
    producing: Producing, options: KafkaOptions, topics: Collection[str], name: str = ""
) -> Iterator[Finding]:
    """Everything that can be known before the start. Changes nothing.

    Args:
        producing: whose clients ask.
        options: of the sink.
        topics: those of the tables that are known.
        name: of the transactional id and the group; empty without.
    """
    try:
        yield from _findings(producing, options, topics, name)
    except PenstockError as error:
        yield Finding(error)


def _findings(
    producing: Producing, options: KafkaOptions, topics: Collection[str], name: str
) -> Iterator[Finding]:
    clients = producing.clients
    if options.registry is not None:
        yield from Registry(options.registry, clients.place).findings()
    found = clients.metadata(clients.admin, "reaching the brokers")
    wanted = _Wanted.of(options, topics, found.topics)
    yield from topic_rights(producing, wanted.there)
    if wanted.own in wanted.there:
        yield from _compacted(producing, wanted.own)
    yield from _missing(producing, options, wanted)
    if name:
        yield from group_rights(clients, name)
        yield from transaction_rights(clients, options, name)
    met = _met(options, wanted)
    yield from _partitions(producing, options, {each: found.topics[each] for each in met})
    yield from _limits(producing, met)
    yield from _replicas(clients, options, len(found.brokers))


@dataclass(frozen=True)
class _Wanted:
    """Topics that the sink will write to, and what it does to each; `own` is that of its position."""

    own: str | None
    operations: Mapping[str, list[AclOperation]]
    known: Mapping[str, Any]  # all that the brokers have, as far as they say

    @classmethod
    def of(
        cls, options: KafkaOptions, topics: Collection[str], known: Mapping[str, Any]
    ) -> _Wanted:
        # Of a pattern the topics of tables are known; of one topic all can be known.
        fixed = () if "{" in options.topic else (options.topic,)
        operations = {topic: [AclOperation.WRITE] for topic in sorted({*fixed, *topics})}
        own = options.progress_topic if options.delivery is Delivery.EXACTLY_ONCE else None
        if own is not None:
            operations[own] = [AclOperation.WRITE, AclOperation.READ]
        return cls(own, operations, known)

    @property
    def there(self) -> dict[str, list[AclOperation]]:
        return {topic: each for topic, each in self.operations.items() if topic in self.known}

    @property
    def absent(self) -> list[str]:
        return [topic for topic in self.operations if topic not in self.known]


def _missing(producing: Producing, options: KafkaOptions, wanted: _Wanted) -> Iterator[Finding]:
    """Topics that are not there, and that nobody will make; or that penstock cannot."""
    clients, absent = producing.clients, wanted.absent
    if not options.create_topics:
        yield from (_absent(clients, topic) for topic in absent if topic != wanted.own)
        absent = [topic for topic in absent if topic == wanted.own]
    unfit = dict(_unfit(clients, wanted.operations, wanted.known))
    yield from map(Finding, unfit.values())
    made = [
        wanted_topic(options) if topic == wanted.own else producing.topics.wanted(topic)
        for topic in absent
        if topic not in unfit
    ]
    yield from may_create(clients, made)


def _met(options: KafkaOptions, wanted: _Wanted) -> list[str]:
    """Topics that are there and that documents may go to, be it those of tables to come."""
    pattern = re.compile(_matching(options.topic))
    return [each for each in sorted(wanted.known) if pattern.fullmatch(each) and each != wanted.own]


def _replicas(clients: Clients, options: KafkaOptions, brokers: int) -> Iterator[Finding]:
    """More copies of a topic than there are brokers."""
    factor = options.replication_factor
    if factor is not None and factor > brokers:
        yield Finding(
            SinkPrivilegeMissing(
                f"replication_factor is {factor}, and there are {brokers} brokers",
                clients.place,
                "set it to at most the number of brokers",
            )
        )


def _absent(clients: Clients, topic: str) -> Finding:
    return Finding(
        SinkPrivilegeMissing(
            f"topic {topic} is not there, or not for penstock's user; and create_topics is false",
            clients.place,
            "make the topic and allow the operations Describe and Write on it, or set create_topics: true",
        )
    )


def _unfit(
    clients: Clients, wanted: Collection[str], known: Collection[str]
) -> Iterator[tuple[str, PenstockError]]:
    """Topics that cannot be made, by their names alone."""
    collisions = colliding(wanted, known)
    for topic in wanted:
        if problem := too_long(topic):
            yield (
                topic,
                DestinationRefuses(
                    problem, clients.place, f"shorten topic: of the sink, {_OR_ROUTE}"
                ),
            )
        elif topic in collisions:
            other = collisions[topic]
            how = "is there" if other in known else "is that of another table"
            yield (
                topic,
                DestinationRefuses(
                    f"topic {topic} collides with {other}, which {how}: Kafka takes no two names that differ"
                    " in '.' and '_' alone",
                    clients.place,
                    f"put another character between the fields of topic:, such as '-', {_OR_ROUTE}",
                ),
            )


_OR_ROUTE = "or give the table another name by a route (modifiers:)"


def _matching(pattern: str) -> str:
    """A regular expression for the topics of a pattern, as names of tables are escaped there."""
    return "".join(
        "[A-Za-z0-9_-]+" if part.startswith("{") else re.escape(part)
        for part in re.split(r"(\{[a-z]+\})", pattern)
    )


def _partitions(
    producing: Producing, options: KafkaOptions, topics: dict[str, Any]
) -> Iterator[Finding]:
    """Topics that are there, and that are not as they would be made."""
    for topic, known in topics.items():
        if options.partitions is None or len(known.partitions) == options.partitions:
            continue
        error = DestinationRefuses(
            f"topic {topic} has {len(known.partitions)} partitions; wanted {options.partitions}",
            producing.clients.place,
            "nothing, if that is meant: penstock leaves a topic as it is. Adding partitions moves keys",
        )
        yield Finding(error, "warning")


def _limits(producing: Producing, topics: list[str]) -> Iterator[Finding]:
    """Topics that take smaller records than Kafka does as it is shipped."""
    producing.topics.read_limits(topics)
    for topic in topics:
        if producing.topics.limit(topic) >= USUAL_LIMIT:
            continue
        error = DestinationRefuses(
            f"topic {topic} takes records of up to {producing.topics.limit(topic)} bytes;"
            f" usual are {USUAL_LIMIT}",
            producing.clients.place,
            f"raise max.message.bytes of topic {topic}, or choose by on_refused what becomes of"
            " documents that are longer",
        )
        yield Finding(error, "warning")


def _compacted(producing: Producing, topic: str) -> Iterator[Finding]:
    """The position is the last record of its key, however long ago that was."""
    policy = producing.topics.setting(topic, "cleanup.policy")
    if policy is not None and policy != "compact":
        yield Finding(
            DestinationRefuses(
                f"cleanup.policy of topic {topic} is {policy}, wanted compact: Kafka deletes the position",
                producing.clients.place,
                f"set cleanup.policy=compact for topic {topic}",
            )
        )
