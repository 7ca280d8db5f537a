"""The position, as a record of a compacted topic: written in the transaction of the documents, read at the start.

The last record of a key counts. It is searched for from the end of a partition, in steps that double: most of
the time it is among the last few records, however many the topic has.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import NewTopic, OffsetSpec

from penstock.brokers.kafka.client import end_client
from penstock.errors import PositionMissing, SinkError
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from penstock.brokers.kafka.client import Clients
    from penstock.sinks.kafka.options import KafkaOptions
    from penstock.sinks.kafka.topics import Topics

# Several: a transaction that somebody left open hides what lies behind it in its partition, until it times out.
_PARTITIONS = 16
_CONFIG = {
    "cleanup.policy": "compact",
    # Positions are many and only the last one counts: small segments, compacted soon.
    "segment.bytes": str(16 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
    # A position may be long where there are thousands of tables.
    "max.message.bytes": str(32 * 1024 * 1024),
}
_FIRST_STEP = 64


def wanted_topic(options: KafkaOptions) -> NewTopic:
    """The topic, as it is made."""
    replication = options.replication_factor or -1
    return NewTopic(options.progress_topic, _PARTITIONS, replication, config=_CONFIG)


class Progress:
    """The position of one pipeline, source and sink."""

    def __init__(self, clients: Clients, options: KafkaOptions, key: str) -> None:
        self._clients = clients
        self._topic = options.progress_topic
        self._wanted = wanted_topic(options)
        self._key = key.encode()
        self._partition = 0
        self._hiding: list[str] = []
        self._end_hiding: Callable[[str], None] = lambda _key: None

    @property
    def record(self) -> tuple[str, bytes, int]:
        """Topic, key and partition of what is written."""
        return self._topic, self._key, self._partition

    def is_there(self) -> bool:
        """Whether the topic exists; changes nothing."""
        known = self._clients.metadata(self._clients.admin, "asking for topics").topics
        return self._topic in known

    def make_topic(self, topics: Topics) -> None:
        """Make the topic, where it is missing.

        Raises:
            PenstockError: it cannot be made.
        """
        if self.is_there():
            return
        if reason := topics.create_error(self._wanted):
            raise PositionMissing(
                f"the topic of positions cannot be made: {reason}",
                self._clients.place,
                f"make topic {self._topic} by hand, with cleanup.policy=compact",
            )
        waiting = self._clients.steps(f"waiting for topic {self._topic}")
        while not self.is_there():
            waiting.go_on()

    def read(
        self, siblings: Collection[str] = (), end: Callable[[str], None] = lambda _key: None
    ) -> str | None:
        """The position that was stored last, None where there is none.

        No transaction of this sink's own is open then: `init_transactions` has ended it.

        Args:
            siblings: the keys of other sources of this pipeline at this sink.
            end: ends what a killed predecessor has left open for one of them, where that hides what may be ours.

        Raises:
            SinkError: somebody else's open transaction hides what may be ours.
        """
        conf = self._clients.conf(
            **{
                # A client insists on one. Never joined, nothing is committed to it; the rights are there.
                "group.id": self._key.decode(),
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,  # the end is known at once, not when more comes
                "auto.offset.reset": "earliest",
            }
        )
        consumer = self._clients.made(Consumer, conf)
        try:
            known = self._clients.metadata(consumer, "asking for topics").topics[self._topic]
            count = len(known.partitions)
            first = zlib.crc32(self._key) % count
            self._partition = first
            self._hiding = [key for key in siblings if zlib.crc32(key.encode()) % count == first]
            self._end_hiding = end
            ends = self._ends(count)
            # Where it would be, and else everywhere: somebody may have added partitions since.
            for number in [first, *(each for each in range(count) if each != first)]:
                found = self._last(consumer, number, ends[number])
                if found is not None:
                    self._partition = number
                    value = found.value()
                    return None if value is None else value.decode()
            return None
        finally:
            end_client(consumer, consumer.close)

    def _last(self, consumer: Consumer, partition: int, end: int) -> Any:
        """The last record of the key in a partition, tombstones included."""
        begin, step = end, _FIRST_STEP
        while begin > 0:
            until, begin = begin, max(0, end - step)
            if (found := self._last_between(consumer, partition, begin, until)) is not None:
                return found
            step *= 8
        return None

    def _ends(self, count: int) -> list[int]:
        """Where the partitions end, open transactions included."""
        places = [TopicPartition(self._topic, number) for number in range(count)]
        found = self._list_offsets(places)
        return [
            self._clients.ask(
                lambda place=place: self._list_offsets([place])[place],  # type: ignore[misc]
                f"asking how long topic {self._topic} is",
                found[place],
            ).offset
            for place in places
        ]

    def _list_offsets(self, places: list[TopicPartition]) -> dict[TopicPartition, Any]:
        found: dict[TopicPartition, Any] = self._clients.admin.list_offsets(
            {place: OffsetSpec.latest() for place in places},
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=timing().broker_ask_seconds,
        )
        return found

    def _last_between(self, consumer: Consumer, partition: int, begin: int, until: int) -> Any:
        """The last of the key's records from one offset up to another."""
        consumer.assign([TopicPartition(self._topic, partition, begin)])
        waiting = self._clients.steps(f"reading topic {self._topic}")
        found, at, is_at_end = None, begin, False
        while at < until:
            one = consumer.poll(timing().broker_step_seconds)
            if one is None:
                if is_at_end and waiting.is_over:
                    raise self._hidden()
                # What hides the rest may be of a source that is opened after this one, and so be ours to end.
                if is_at_end and self._hiding:
                    self._end_hiding(self._hiding.pop())
                    waiting.begin_anew()
                waiting.go_on()
            elif one.error() is None:
                at = one.offset() + 1
                if one.key() == self._key and one.offset() < until:
                    found = one
            elif one.error().code() == KafkaError._PARTITION_EOF:
                # Compacted records and ends of transactions are skipped; open ones stop it.
                at, is_at_end = max(at, one.offset()), True
            else:
                raise self._clients.explained(one.error(), f"reading topic {self._topic}")
        return found

    def _hidden(self) -> SinkError:
        """What is behind an open transaction cannot be seen yet."""
        return SinkError(
            f"a transaction of another pipeline is open in topic {self._topic}, and hides what is"
            " behind it",
            self._clients.place,
            "nothing: the broker ends it by itself when its transaction_timeout is over",
        )
