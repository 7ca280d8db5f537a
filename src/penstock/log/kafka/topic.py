"""Topics of a log: how they are made where they are missing, and what is asked of those that are there."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType

from penstock.errors import LogRefused, PenstockError, Remedy
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.brokers.kafka.client import Clients
    from penstock.log.kafka.options import KafkaLogOptions

_log = logging.getLogger(__name__)

# Capture itself lets go of what every sink has: nobody else must.
LOG_CONFIG = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
STATE_CONFIG = {
    "cleanup.policy": "compact",
    # Reports are many and only the last ones count: small segments, compacted soon.
    "segment.bytes": str(16 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
}
_DEFAULT_LIMIT = 1_048_588


def log_config(options: KafkaLogOptions) -> dict[str, str]:
    """How the topic of a log is made."""
    return {**LOG_CONFIG, **options.config}


def state_config(options: KafkaLogOptions) -> dict[str, str]:
    """How the topic of reports is made: what `config:` says of deleting is meant for the log."""
    given = {
        key: value
        for key, value in options.config.items()
        if key != "cleanup.policy" and not key.startswith(("retention.", "local.retention."))
    }
    return {**STATE_CONFIG, **given}


@dataclass(frozen=True)
class TopicFacts:
    """What a topic is like."""

    partitions: int
    replicas: int
    config: Mapping[str, str]  # empty where it may not be read

    @property
    def limit(self) -> int:
        """How many bytes a batch of records may have."""
        return int(self.config.get("max.message.bytes", _DEFAULT_LIMIT))


class LogTopic:
    """One topic, by name."""

    def __init__(self, clients: Clients, options: KafkaLogOptions, name: str) -> None:
        self._clients = clients
        self._options = options
        self.name = name

    def facts(self) -> TopicFacts | None:
        """What it is like; None where it is not there.

        Raises:
            LogUnreachable: the brokers are away.
        """
        found = self._found()
        if found is None:
            return None
        partitions = found.partitions
        replicas = min((len(each.replicas) for each in partitions.values()), default=0)
        config = self._config(ConfigResource(ResourceType.TOPIC, self.name))
        return TopicFacts(len(partitions), replicas, config)

    def facts_if_made(self, partitions: int, config: Mapping[str, str]) -> TopicFacts:
        """What it would be like, by options and by what the broker does where they say nothing.

        Raises:
            LogUnreachable: the brokers are away.
        """
        found = self._clients.metadata(self._clients.admin, "reaching the brokers")
        # As Kafka is shipped, where it may not be looked at.
        defaults = {
            "default.replication.factor": "1",
            "min.insync.replicas": "1",
            **self._config(ConfigResource(ResourceType.BROKER, str(min(found.brokers)))),
        }
        replicas = self._options.replication_factor or int(defaults["default.replication.factor"])
        in_sync = {"min.insync.replicas": defaults["min.insync.replicas"]}
        return TopicFacts(partitions, replicas, {**in_sync, **config})

    def is_there(self) -> bool:
        """Whether it exists.

        Raises:
            LogUnreachable: the brokers are away.
        """
        return self._found() is not None

    def _found(self) -> Any:
        found = self._clients.metadata(self._clients.admin, "asking for topics").topics
        return found[self.name] if self.name in found and found[self.name].error is None else None

    def _config(self, place: ConfigResource) -> dict[str, str]:
        admin = self._clients.admin
        try:
            found: dict[str, Any] = self._clients.ask(
                lambda: admin.describe_configs(
                    [place], request_timeout=timing().broker_ask_seconds
                )[place],
                f"asking for settings of {place.name}",
            )
        except PenstockError as error:
            if error.remedy is Remedy.TIME:
                raise
            return {}  # it may be written to, but not be looked at
        return {key: each.value for key, each in found.items() if each.value is not None}

    def require(self, partitions: int, config: Mapping[str, str]) -> TopicFacts:
        """Make sure that it is there, with so many partitions at least.

        Raises:
            LogRefused: it is not, and cannot be made.
        """
        found = self.facts()
        if found is None:
            self._create(partitions, config)
            waiting = self._clients.steps(f"waiting for topic {self.name}")
            while (found := self.facts()) is None or not found.partitions:
                waiting.go_on()
        if found.partitions < partitions:
            raise LogRefused(
                f"the topic has {found.partitions} partitions, wanted {partitions}",
                self._clients.place,
                f"give topic {self.name} {partitions} partitions, or delete it: penstock makes it",
            )
        return found

    def _create(self, partitions: int, config: Mapping[str, str]) -> None:
        if not self._options.create_topics:
            raise LogRefused(
                f"topic {self.name} is not there, and create_topics is false",
                self._clients.place,
                f"make it with {partitions} partitions, or set create_topics: true",
            )
        admin = self._clients.admin
        wanted = NewTopic(
            self.name,
            num_partitions=partitions,
            replication_factor=self._options.replication_factor or -1,
            config=dict(config),
        )
        try:
            self._clients.ask(
                lambda: admin.create_topics([wanted], request_timeout=timing().broker_ask_seconds)[
                    self.name
                ],
                f"making topic {self.name}",
            )
        except PenstockError as error:
            code = error.__cause__.args[0].code() if error.__cause__ else None
            if code != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        else:
            _log.info("made topic %s", self.name)

    def delete(self) -> bool:
        """Remove it; whether it was there."""
        if self.facts() is None:
            return False
        admin = self._clients.admin
        self._clients.ask(
            lambda: admin.delete_topics([self.name], request_timeout=timing().broker_ask_seconds)[
                self.name
            ],
            f"deleting topic {self.name}",
        )
        return True
