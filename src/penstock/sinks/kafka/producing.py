"""A producer and what goes through it: records of batches in, refusals out. Shared by both kinds of delivery."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from penstock.brokers.kafka.client import REFUSED, Clients
from penstock.brokers.kafka.producer import HeldProducer
from penstock.errors import DestinationRefuses
from penstock.sinks.documents.patterns import TablesOfBatch
from penstock.sinks.kafka.topics import Topics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from confluent_kafka import Producer

    from penstock.sinks.kafka.options import KafkaOptions
    from penstock.sinks.kafka.records import Layout

# Purged by ourselves, with a transaction that is not to be.
_PURGED = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}
# What is acknowledged is freed where it is polled: soon, while it is still in the processor's cache. After 500 records
# instead of 10,000 a million of them cost a fifth less.
_POLL_EVERY = 500
_BY_KEY = -1  # the partitioner chooses
_LARGEST_RECORD = 1_000_000_000
_BATCH_BYTES = 1_000_000


class Reports:
    """What a producer says of records that it could not deliver. No part of a cycle, as `Complaint`."""

    def __init__(self) -> None:
        self._failed: list[tuple[KafkaError, Any]] = []

    def __call__(self, error: KafkaError | None, record: Any) -> None:
        """Called for each such record."""
        if error is not None and error.code() not in _PURGED:
            self._failed.append((error, record))

    def take(self) -> list[tuple[KafkaError, Any]]:
        """What was said since the last time."""
        failed, self._failed = self._failed, []
        return failed


class Producing:
    """One producer. After an exception it is discarded, and another one made."""

    def __init__(self, options: KafkaOptions, place: str, layout: Layout, **conf: Any) -> None:
        self._options = options
        self._layout = layout
        self.clients = Clients(options, place)
        self.topics = Topics(self.clients, options)
        self._conf = conf
        self._held = HeldProducer(self.clients)
        self._batch_bytes = _BATCH_BYTES
        self._reports = Reports()
        self._refusing: dict[str, str] = {}

    @property
    def is_ours(self) -> bool:
        """Whether its clients are of this process, and not of the one that it was forked from."""
        return self._held.is_ours

    @property
    def producer(self) -> Producer:
        """The client; made when it is first asked for."""
        if not self._held.is_there:
            self._make()
        return self._held.client

    def _make(self) -> None:
        conf = self.clients.conf(
            **{
                # The same as Java's clients have, so that others' records of a key lie with ours.
                "partitioner": "murmur2_random",
                "enable.idempotence": True,
                # A slow link is no reason to give up a record that waits for its turn: `flush` sees to it
                # that something moves.
                "message.timeout.ms": 0,
                "delivery.report.only.error": True,
                "on_delivery": self._reports,
                **_unless_given(
                    self._options,
                    {
                        "batch.size": self._wanted_batch_bytes,
                        "message.max.bytes": _LARGEST_RECORD,
                        "queue.buffering.max.messages": 1_000_000,
                        "queue.buffering.max.kbytes": 131_072,
                    },
                ),
                **self._conf,
            }
        )
        self._held.make(conf)
        self._batch_bytes = int(conf["batch.size"])

    def in_steps(self, method: str, what: str, meanwhile: Callable[[], None]) -> None:
        """Call the producer until it is done; `meanwhile` is called every now and then.

        Raises:
            KafkaException: it fails.
            PenstockError: it takes longer than the time-out.
        """
        if not self._held.is_there:
            self._make()
        self._held.in_steps(method, what, meanwhile)

    def discard(self) -> None:
        """End the producer; nothing that waits in it is sent any more."""
        self._held.discard()
        self._reports.take()

    def close(self) -> None:
        """End all clients."""
        self.discard()
        self.topics.forget()
        self.clients.close()

    @property
    def _wanted_batch_bytes(self) -> int:
        # A broker counts a batch as it counts a record: one of many small ones must fit as well.
        return min(_BATCH_BYTES, self.topics.least_limit)

    @property
    def sends_too_much(self) -> bool:
        """Whether the producer makes larger batches than a topic takes that was met since."""
        is_set = "batch.size" in self._options.conf
        return self._held.is_there and not is_set and self._batch_bytes > self._wanted_batch_bytes

    def refused(self, batch: pa.RecordBatch) -> dict[str, str]:
        """What of a batch the broker would not take, by what is known of topics; why.

        Raises:
            PenstockError: the broker cannot be asked.
        """
        tables = TablesOfBatch.of(batch)
        topics = [self._layout.topics.of(*name) for name in tables.names]
        missing = self.topics.missing(sorted(set(topics)))
        known = self._without_key(batch, tables, topics) | self._too_large(batch, tables, topics)
        return _of_topics(batch, tables, topics, missing | self._refusing) | known

    def refused_at(self, batch: pa.RecordBatch, reasons: Mapping[str, str]) -> dict[str, str]:
        """The documents of a batch that go to topics which refuse, by topic why."""
        tables = TablesOfBatch.of(batch)
        topics = [self._layout.topics.of(*name) for name in tables.names]
        return _of_topics(batch, tables, topics, reasons)

    def refuse_again(self, reasons: Mapping[str, str]) -> None:
        """Refuse documents of topics, by topic why, until `allow_all`: what was read once is not there any more."""
        self._refusing = dict(reasons)

    def allow_all(self) -> None:
        """Have the broker say again what it refuses."""
        self._refusing = {}

    def _without_key(
        self, batch: pa.RecordBatch, tables: TablesOfBatch, topics: list[str]
    ) -> dict[str, str]:
        """Records without a key that go to a compacted topic: the broker refuses them, and all that is sent with them."""
        if "record_key" not in batch.schema.names:
            return {}  # penstock's own form always has one
        keyless = batch.column("record_key").is_null().to_numpy(zero_copy_only=False)
        places = np.flatnonzero(keyless)
        met = {topics[number] for number in np.unique(tables.numbers[places]).tolist()}
        if not any(map(self.topics.needs_keys, met)):
            return {}
        # It may have been changed since.
        self.topics.read_limits([topic for topic in met if self.topics.is_known(topic)])
        compacted = np.array([self.topics.needs_keys(topic) for topic in topics])[tables.numbers]
        for topic in filter(self.topics.needs_keys, met):
            self._refusing.pop(topic, None)  # that is why, and others can go
        some = np.flatnonzero(keyless & compacted)
        ids = batch.column("id").take(pa.array(some)).to_pylist()
        return {
            one: f"a record without a key, and topic {topics[number]} is compacted (cleanup.policy)"
            for one, number in zip(ids, tables.numbers[some].tolist(), strict=True)
        }

    def _too_large(
        self, batch: pa.RecordBatch, tables: TablesOfBatch, topics: list[str]
    ) -> dict[str, str]:
        sizes = self._layout.sizes(batch)
        least = min(self._own_limit, self.topics.least_limit)
        if not len(sizes) or int(sizes.max()) <= least:
            return {}
        # It may have been raised since.
        self.topics.read_limits([topic for topic in topics if self.topics.is_known(topic)])
        limits = np.array([self._limit(topic) for topic in topics], np.int64)[tables.numbers]
        places = np.flatnonzero(sizes > limits).tolist()
        ids = batch.column("id")
        return {
            ids[place].as_py(): f"a record of {int(sizes[place])} bytes, topic"
            f" {topics[tables.numbers[place]]} takes {int(limits[place])}"
            for place in places
        }

    @property
    def _own_limit(self) -> int:
        """What the client takes, whatever the topic."""
        given = self._options.conf.get("message.max.bytes")
        return int(given.get_secret_value()) if given else _LARGEST_RECORD

    def _limit(self, topic: str) -> int:
        own = self._own_limit
        return min(own, self.topics.limit(topic)) if self.topics.is_known(topic) else own

    def produce(self, batch: pa.RecordBatch) -> None:
        """Hand the records of a batch to the client.

        Raises:
            PenstockError: the client takes no more.
        """
        produce, poll = self.producer.produce, self.producer.poll
        rows = self._layout.rows(batch, TablesOfBatch.of(batch))
        try:
            for number, (topic, value, key, headers, table_number) in enumerate(rows, 1):
                partition = _BY_KEY if key is not None else self._partition(topic, table_number)
                try:
                    produce(topic, value, key, partition, headers=headers)
                except BufferError:
                    self._produce_when_there_is_room(topic, value, key, partition, headers)
                if not number % _POLL_EVERY:
                    poll(0)
                    self.clients.raise_if_given_up()
            poll(0)
        except KafkaException as error:
            raise self.clients.explained(error.args[0], "producing") from None
        finally:
            del (
                produce,
                poll,
            )  # an exception on its way has this frame, and must not have the producer

    def _partition(self, topic: str, table_number: int) -> int:
        """Where records of a table without a key lie: all in one partition, in their order."""
        return table_number % self.topics.partitions(topic)

    def _produce_when_there_is_room(
        self, topic: str, value: Any, key: Any, partition: int, headers: Any
    ) -> None:
        waiting = self.clients.steps("producing")
        while True:
            self.producer.poll(0.05)
            try:
                self.producer.produce(topic, value, key, partition, headers=headers)
            except BufferError:
                waiting.go_on()
            else:
                return

    def failures(self) -> dict[str, str]:
        """What the broker said of records since the last time: by topic, why it refuses some.

        It refuses what was sent together as a whole, and its reports have no headers: which document is to blame, nobody
        says.

        Raises:
            PenstockError: something else than a refusal.
        """
        refused: dict[str, str] = {}
        if self._held.is_there:
            with suppress(KafkaException, SystemError):  # what is beyond repair says so
                self.producer.poll(0)
        for error, record in self._reports.take():
            if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                self.topics.forget()
                raise DestinationRefuses(
                    f"topic {record.topic()} takes smaller records than penstock can see",
                    self.clients.place,
                    "let penstock's user describe the configuration of topics, or set"
                    " message.max.bytes in conf: of the sink",
                )
            is_position = record.topic() == self._options.progress_topic
            if error.code() not in REFUSED or is_position:
                self.topics.forget()
                raise self.clients.explained(error, f"producing to topic {record.topic()}")
            refused[record.topic()] = f"topic {record.topic()}: Kafka says {error.name()}"
        if refused:
            self.topics.forget()
        return refused

    def flush(self, meanwhile: Callable[[], None] | None = None) -> None:
        """Wait until everything is with the broker, or has failed; `meanwhile` is called every now and then.

        Raises:
            KafkaException: the producer can do nothing more; another one may have taken its place.
            PenstockError: the broker has taken nothing for as long as the time-out.
        """
        self._held.flush("producing", meanwhile)


def _of_topics(
    batch: pa.RecordBatch, tables: TablesOfBatch, topics: list[str], reasons: Mapping[str, str]
) -> dict[str, str]:
    """The documents that go to some topics, with the reason of each."""
    found: dict[str, str] = {}
    for number, topic in enumerate(topics):
        if topic in reasons:
            ids = batch.column("id").filter(tables.rows(number)).to_pylist()
            found |= dict.fromkeys(ids, reasons[topic])
    return found


def _unless_given(options: KafkaOptions, conf: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in conf.items() if key not in options.conf}
