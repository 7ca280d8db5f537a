"""What `penstock check` says of a Kafka sink: whether it can be reached, and what it lets us do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka.admin import NewTopic

from penstock.errors import PenstockError, SinkPrivilegeMissing
from penstock.findings import Finding
from penstock.sinks.kafka.options import Delivery

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.sinks.kafka.options import KafkaOptions
    from penstock.sinks.kafka.producing import Producing


def findings(producing: Producing, options: KafkaOptions) -> Iterator[Finding]:
    """Everything that can be known before the start. Changes nothing."""
    try:
        yield from _findings(producing, options)
    except PenstockError as error:
        yield Finding(error)


def _findings(producing: Producing, options: KafkaOptions) -> Iterator[Finding]:
    clients = producing.clients
    found = clients.metadata(clients.admin, "reaching the brokers")
    own = (options.progress_topic,) if options.delivery is Delivery.EXACTLY_ONCE else ()
    # Of a pattern nobody knows here which tables it will meet; of one topic all can be known.
    fixed = () if "{" in options.topic else (options.topic,)
    for topic in (*own, *fixed):
        if topic in found.topics:
            yield from _rights(producing, topic)
        elif topic in fixed and not options.create_topics:
            yield Finding(
                SinkPrivilegeMissing(
                    f"topic {topic} is not there, and create_topics is false",
                    clients.place,
                    "make the topic, or set create_topics: true",
                )
            )
        else:
            yield from _may_create(producing, topic)
    factor = options.replication_factor
    if factor is not None and factor > len(found.brokers):
        yield Finding(
            SinkPrivilegeMissing(
                f"replication_factor is {factor}, and there are {len(found.brokers)} brokers",
                clients.place,
                "set it to at most the number of brokers",
            )
        )


def _rights(producing: Producing, topic: str) -> Iterator[Finding]:
    for reason in producing.topics.forbidden([topic]).values():
        yield Finding(
            SinkPrivilegeMissing(
                reason, producing.clients.place, f"allow the operation Write on topic {topic}"
            )
        )


def _may_create(producing: Producing, topic: str) -> Iterator[Finding]:
    clients = producing.clients
    wanted = NewTopic(topic, 1)
    try:
        clients.ask(
            lambda: clients.admin.create_topics([wanted], validate_only=True)[topic],
            f"making topic {topic}",
        )
    except SinkPrivilegeMissing as error:
        yield Finding(error)
