"""What `penstock check` says of a Kafka sink: whether it can be reached, and what it lets us do."""

from __future__ import annotations

import re
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
    from collections.abc import Collection, Iterator

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
    own = options.progress_topic if options.delivery is Delivery.EXACTLY_ONCE else None
    # Of a pattern the topics of tables are known, and any that are there; of one topic all can be known.
    fixed = () if "{" in options.topic else (options.topic,)
    pattern = re.compile(_matching(options.topic))
    met = [topic for topic in sorted(found.topics) if pattern.fullmatch(topic) and topic != own]
    wanted = {topic: [AclOperation.WRITE] for topic in sorted({*fixed, *topics})}
    if own is not None:
        wanted[own] = [AclOperation.WRITE, AclOperation.READ]
    there = {topic: operations for topic, operations in wanted.items() if topic in found.topics}
    yield from topic_rights(producing, there)
    if own is not None and own in there:
        yield from _compacted(producing, own)
    absent = [topic for topic in wanted if topic not in there]
    if not options.create_topics:
        for topic in absent:
            if topic != own:
                yield _absent(clients, topic)
        absent = [topic for topic in absent if topic == own]
    unfit = dict(_unfit(clients, wanted, found.topics))
    yield from (Finding(error) for error in unfit.values())
    absent = [topic for topic in absent if topic not in unfit]
    made = [
        wanted_topic(options) if topic == own else producing.topics.wanted(topic)
        for topic in absent
    ]
    yield from may_create(clients, made)
    if name:
        yield from group_rights(clients, name)
        yield from transaction_rights(clients, options, name)
    yield from _partitions(producing, options, {each: found.topics[each] for each in met})
    yield from _limits(producing, met)
    factor = options.replication_factor
    if factor is not None and factor > len(found.brokers):
        yield Finding(
            SinkPrivilegeMissing(
                f"replication_factor is {factor}, and there are {len(found.brokers)} brokers",
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
