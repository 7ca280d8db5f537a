"""What `penstock check` says of a log on Kafka: whether it can be reached, and what may lose or delete changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.brokers.kafka.names import colliding, too_long
from penstock.errors import LogAtRisk, LogRefused
from penstock.log.kafka.clients import Settings
from penstock.log.kafka.topic import LogTopic, log_config
from penstock.log.kafka.transport import PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.errors import PenstockError
    from penstock.log.kafka.options import KafkaLogOptions
    from penstock.log.kafka.topic import TopicFacts


def risks(options: KafkaLogOptions, name: str, place: str) -> Iterator[PenstockError]:
    """What is to be said of one topic, whether it is there or not. Changes nothing."""
    clients = Settings.of(options).clients(place)
    found = clients.metadata(clients.admin, "reaching the brokers")
    facts = LogTopic(clients, options, name).facts()
    factor = options.replication_factor
    if factor is not None and factor > len(found.brokers):
        # A topic that is there is as it is.
        kind = LogRefused if facts is None else LogAtRisk
        yield kind(
            f"log.replication_factor is {factor}, and there are {len(found.brokers)} brokers",
            place,
            "set it to at most the number of brokers",
        )
    if facts is None:
        if not options.create_topics:
            yield LogRefused(
                "the topic is not there, and log.create_topics is false",
                place,
                f"make it with {PARTITIONS} partitions, or set create_topics: true",
            )
            return
        facts = LogTopic(clients, options, name).facts_if_made(PARTITIONS, log_config(options))
    yield from _safety(facts, place)
    yield from _retention(facts, place)


def state_risks(options: KafkaLogOptions, name: str, place: str) -> Iterator[PenstockError]:
    """The same of the topic of reports; where it is missing it is made as it should be."""
    clients = Settings.of(options).clients(place)
    facts = LogTopic(clients, options, name).facts()
    if facts is None:
        if not options.create_topics:
            yield LogRefused(
                "the topic is not there, and log.create_topics is false",
                place,
                "make it with 1 partition and cleanup.policy=compact, or set create_topics: true",
            )
        return
    policy = facts.config.get("cleanup.policy", "compact")
    if policy != "compact":
        # One that is compacted as well loses what is old; one that is not is refused.
        kind = LogAtRisk if "compact" in policy else LogRefused
        yield kind(
            f"cleanup.policy is {policy}, wanted compact: Kafka deletes positions and requests",
            place,
            f"set cleanup.policy=compact for topic {name}",
        )
    if facts.replicas < 2:
        yield LogAtRisk(
            f"replication factor {facts.replicas}: positions and shapes of tables are lost with the disk of"
            " one broker",
            place,
            "use replication factor 3",
        )


def name_problems(
    options: KafkaLogOptions, names: Sequence[str], place: str
) -> Iterator[PenstockError]:
    """Topics that cannot be made, by their names alone."""
    clients = Settings.of(options).clients(place)
    known = clients.metadata(clients.admin, "reaching the brokers").topics
    for name in names:
        if problem := too_long(name):
            yield LogRefused(problem, place, "choose shorter names under log:")
    for name, other in colliding(names, known).items():
        yield LogRefused(
            f"topic {name} collides with {other}: Kafka takes no two names that differ in '.' and '_' alone",
            place,
            "choose other names under log:",
        )


def _safety(facts: TopicFacts, place: str) -> Iterator[PenstockError]:
    if facts.partitions < PARTITIONS:
        yield LogRefused(
            f"the topic has {facts.partitions} partitions, wanted {PARTITIONS}",
            place,
            f"give it {PARTITIONS} partitions",
        )
    in_sync = int(facts.config.get("min.insync.replicas", 1))
    if facts.replicas < 2 or in_sync < 2:
        yield LogAtRisk(
            f"replication factor {facts.replicas}, min.insync.replicas {in_sync}: what one broker alone has is"
            " lost with its disk; with `acknowledge: delivered` the source's slot still has it, with"
            " `acknowledge: logged` nobody has",
            place,
            "use replication factor 3 and min.insync.replicas 2 before you set acknowledge: logged",
        )


def _retention(facts: TopicFacts, place: str) -> Iterator[PenstockError]:
    policy = facts.config.get("cleanup.policy", "delete")
    if "compact" in policy:
        yield LogRefused(
            f"cleanup.policy is {policy}, wanted delete", place, "set cleanup.policy to delete"
        )
    for key, unit in (("retention.ms", "milliseconds"), ("retention.bytes", "bytes")):
        limit = int(facts.config.get(key, -1))
        if limit >= 0:
            yield LogAtRisk(
                f"{key} is {limit}: Kafka deletes what is older or more than that many {unit}, also where a"
                " sink that is behind still needs it",
                place,
                f"set {key} to -1: penstock itself deletes what every sink has",
            )
