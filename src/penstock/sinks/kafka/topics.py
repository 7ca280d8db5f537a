"""Which topics are there, how large a record each takes, and how missing ones are made."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, TopicCollection
from confluent_kafka.admin import AclOperation, ConfigResource, NewTopic, ResourceType

from penstock.brokers.kafka.client import REFUSED
from penstock.brokers.kafka.names import too_long
from penstock.errors import PenstockError, Remedy, SinkPrivilegeMissing
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from penstock.brokers.kafka.client import Clients
    from penstock.sinks.kafka.options import KafkaOptions

_log = logging.getLogger(__name__)

# A broker's own default, for one that does not let us read it.
_DEFAULT_LIMIT = 1_048_588
# Framing of a batch of one record: the broker counts it, too.
_BATCH_BYTES = 100
# How large a record may be as brokers are shipped.
USUAL_LIMIT = _DEFAULT_LIMIT - _BATCH_BYTES


class Topics:
    """What is known of topics; asked of the broker when one is met for the first time."""

    def __init__(self, clients: Clients, options: KafkaOptions) -> None:
        self._clients = clients
        self._options = options
        self._limits: dict[str, int] = {}
        self._compacted: set[str] = set()
        self._partitions: dict[str, int] = {}

    def forget(self) -> None:
        """Know nothing any more."""
        self._limits.clear()
        self._compacted.clear()
        self._partitions.clear()

    def is_known(self, topic: str) -> bool:
        """Whether it was seen."""
        return topic in self._limits

    def limit(self, topic: str) -> int:
        """How many bytes a record of a known topic may have."""
        return self._limits[topic]

    def needs_keys(self, topic: str) -> bool:
        """Whether a known topic is compacted, so that it takes no record without a key."""
        return topic in self._compacted

    @property
    def least_limit(self) -> int:
        """The least limit of known topics."""
        return min(self._limits.values(), default=_DEFAULT_LIMIT)

    def partitions(self, topic: str) -> int:
        """How many partitions a known topic has.

        Raises:
            PenstockError: it is not there any more.
        """
        if topic not in self._partitions:
            # It was just made, and not every broker knew of it yet.
            waiting = self._clients.steps(f"waiting for topic {topic}")
            while self._see([topic]):
                waiting.go_on()
                time.sleep(timing().broker_ask_pause_seconds)
        return self._partitions[topic]

    def missing(self, topics: Collection[str]) -> dict[str, str]:
        """Make sure that topics are there; of those that are not and cannot be made, why.

        Raises:
            PenstockError: the broker cannot be asked.
        """
        new = [topic for topic in topics if topic not in self._limits]
        if not new:
            return {}
        reasons = {topic: reason for topic in new if (reason := too_long(topic))}
        new = [topic for topic in new if topic not in reasons]
        absent = self._see(new)
        if absent and self._options.create_topics:
            reasons |= self._create(absent)
            self._see([topic for topic in absent if topic not in reasons])
        elif absent:
            reasons |= {
                topic: f"topic {topic} is not there, and create_topics is false" for topic in absent
            }
        reasons |= self.forbidden([topic for topic in new if topic not in reasons])
        self.read_limits([topic for topic in new if topic not in reasons])
        return reasons

    def forbidden(self, topics: Sequence[str]) -> dict[str, str]:
        """Topics that are there and that we may not write to; why.

        A transaction that meets one fails as a whole, and does not say which record is to blame.
        """
        return {
            topic: f"penstock's user may not write to topic {topic}"
            for topic, allowed in self.allowed(topics).items()
            # A broker without an authorizer says that everything is allowed, or nothing at all.
            if allowed and AclOperation.WRITE not in allowed
        }

    def allowed(self, topics: Sequence[str]) -> dict[str, list[AclOperation] | None]:
        """What we may do to topics that are there, as the broker says it.

        Raises:
            PenstockError: the broker cannot be asked.
        """
        described = self._describe(topics)
        found: dict[str, list[AclOperation] | None] = {}
        for topic in topics:
            try:
                found[topic] = self._clients.ask(
                    lambda topic=topic: self._describe([topic])[topic],  # type: ignore[misc]
                    f"describing topic {topic}",
                    described[topic],
                ).authorized_operations
            except SinkPrivilegeMissing:
                found[topic] = [AclOperation.UNKNOWN]  # nothing that has a name, not even to look
        return found

    def _describe(self, topics: Sequence[str]) -> dict[str, Any]:
        if not topics:
            return {}
        found: dict[str, Any] = self._clients.admin.describe_topics(
            TopicCollection(list(topics)),
            include_authorized_operations=True,
            request_timeout=timing().broker_ask_seconds,
        )
        return found

    def _see(self, topics: Iterable[str]) -> list[str]:
        """Count partitions of topics; those that are not there."""
        known = self._clients.metadata(self._clients.admin, "asking for topics").topics
        absent = []
        for topic in topics:
            if topic in known and known[topic].error is None:
                self._partitions[topic] = len(known[topic].partitions)
            else:
                absent.append(topic)
        return absent

    def _create(self, topics: Iterable[str]) -> dict[str, str]:
        reasons = {}
        for topic in topics:
            if reason := self.create_error(self.wanted(topic)):
                reasons[topic] = reason
            else:
                _log.info("made topic %s", topic)
        return reasons

    def wanted(self, topic: str) -> NewTopic:
        """A topic for documents, as it is made."""
        options = self._options
        return NewTopic(
            topic,
            num_partitions=options.partitions or -1,
            replication_factor=options.replication_factor or -1,
            config=dict(options.config),
        )

    def create_error(self, topic: NewTopic) -> str | None:
        """Make a topic; why that does not work, None where it is there.

        Raises:
            PenstockError: it is not the topic's fault.
        """
        admin, name = self._clients.admin, topic.topic
        try:
            self._clients.ask(
                lambda: admin.create_topics([topic], request_timeout=timing().broker_ask_seconds)[
                    name
                ],
                f"making topic {name}",
            )
        except PenstockError as error:
            code = error.__cause__.args[0].code() if error.__cause__ else None
            if code == KafkaError.TOPIC_ALREADY_EXISTS:
                return None
            if code in REFUSED or error.remedy is not Remedy.TIME:
                return error.what
            raise
        return None

    def read_limits(self, topics: Collection[str]) -> None:
        """Ask how large a record each topic takes, and whether it takes one without a key."""
        settings = self._settings(topics)
        for topic in topics:
            limit = self._asked(topic, "max.message.bytes", settings[topic])
            policy = self._asked(topic, "cleanup.policy", settings[topic]) or ""
            self._limits[topic] = int(limit or _DEFAULT_LIMIT) - _BATCH_BYTES
            (self._compacted.add if "compact" in policy else self._compacted.discard)(topic)

    def setting(self, topic: str, key: str) -> str | None:
        """A setting of a topic that is there; None where it may not be looked at."""
        return self._asked(topic, key, self._settings([topic])[topic])

    def _asked(self, topic: str, key: str, first: Any) -> str | None:
        try:
            found = self._clients.ask(
                lambda: self._settings([topic])[topic], f"asking for settings of {topic}", first
            )
        except PenstockError as error:
            if error.remedy is Remedy.TIME:
                raise
            return None  # it may be written to, but not be looked at
        return str(found[key].value)

    def _settings(self, topics: Collection[str]) -> dict[str, Any]:
        if not topics:
            return {}
        places = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        found = self._clients.admin.describe_configs(
            places, request_timeout=timing().broker_ask_seconds
        )
        return {place.name: future for place, future in found.items()}
