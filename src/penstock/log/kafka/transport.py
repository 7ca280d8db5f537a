"""A log as a topic of two partitions: entries in one, pieces in the other, each group in a transaction of Kafka's.

The transactional id is the source's: who opens the log for writing fences whoever had it before, and the broker ends
what that one has left open. Readers see committed records alone.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from penstock.brokers.kafka.client import FENCED
from penstock.brokers.kafka.producer import HeldProducer
from penstock.errors import (
    LogAtRisk,
    LogGone,
    LogRefused,
    LogUnreachable,
    PenstockError,
    SecondInstance,
)
from penstock.log.broker.transport import Bounds, Kept
from penstock.log.kafka.clients import Pool, Settings
from penstock.log.kafka.locator import PIECE_BYTES, PIECES, KafkaLocator, fetch
from penstock.log.kafka.topic import LogTopic, log_config
from penstock.text import size_text
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.log.kafka.clients import Reading
    from penstock.log.kafka.options import KafkaLogOptions

ENTRIES = 0
PARTITIONS = 2
# Framing of a batch of one record: the broker counts it, too.
_BATCH_BYTES = 200


class KafkaTransport:
    """The topic of one source's log."""

    def __init__(self, options: KafkaLogOptions, topic: str, writer_id: str) -> None:
        self._options = options
        self._settings = Settings.of(options)
        self._topic = topic
        self._writer_id = writer_id
        self._clients = self._settings.clients(self.place)
        self._log_topic = LogTopic(self._clients, options, topic)
        self._pool = Pool(
            self._settings,
            self.place,
            **{"isolation.level": "read_committed", "fetch.wait.max.ms": 100},
        )
        self._held = HeldProducer(self._clients)
        self._last_number = -1
        self._is_known = False  # whether the topic was there when it was last asked for
        self.piece_bytes = PIECE_BYTES

    @property
    def place(self) -> str:
        """The topic."""
        return f"topic {self._topic}"

    @property
    def read_seconds(self) -> float:
        """See Transport."""
        return max(timing().log_read_seconds, self._options.timeout)

    # --- writing -------------------------------------------------------------------------------

    def open_for_writing(self) -> None:
        """Make the topic where it is missing, and fence whoever appended before."""
        self.close_writing()
        self._clients.go_on()
        facts = self._log_topic.require(PARTITIONS, log_config(self._options))
        policy = facts.config.get("cleanup.policy", "delete")
        if "compact" in policy:  # then Kafka takes no record without a key, and entries have none
            raise LogRefused(
                f"cleanup.policy is {policy}, wanted delete",
                self.place,
                f"set cleanup.policy=delete for topic {self._topic}",
            )
        self.piece_bytes = min(PIECE_BYTES, facts.limit - _BATCH_BYTES)
        longest = int(1000 * max(timing().log_transaction_seconds, self._options.timeout))
        conf = self._clients.conf(
            **{
                "transactional.id": self._writer_id,
                "transaction.timeout.ms": longest,
                # A slow link is no reason to give up a record that waits for its turn: `flush` sees to it that
                # something moves.
                "message.timeout.ms": longest,
                "message.max.bytes": max(1_000_000, self.piece_bytes + _BATCH_BYTES),
                "batch.size": max(self.piece_bytes, 1000),
                "linger.ms": 0,
            }
        )
        self._held.make(conf)
        try:
            self._in_steps("init_transactions", "becoming the only writer of the log")
        except BaseException:
            self._held.discard()
            raise

    @contextmanager
    def append(self) -> Iterator[_Group]:
        """Append a group, in one transaction."""
        if not self._held.is_there:
            raise self._options_away()
        group = _Group(self)
        try:
            self._held.client.begin_transaction()
            yield group
            # A commit would do that as well, but not say whether anything moves.
            self.flush()
            self._in_steps("commit_transaction", "appending to the log")
            group.require_all()
        except BaseException as error:
            self._held.discard()
            if isinstance(error, KafkaException):
                raise self._explained(error, "appending to the log") from error
            raise
        numbers = group.numbers
        if numbers and numbers[0] <= self._last_number:
            raise LogGone(
                f"the broker gave an entry number {numbers[0]}, after {self._last_number}: the topic was"
                " deleted and made anew",
                self.place,
                "stop penstock and start it again; teardown first where a sink needs what is gone",
            )
        self._last_number = max([self._last_number, *numbers])

    def _in_steps(self, method: str, what: str) -> None:
        try:
            self._held.in_steps(method, what)
        except KafkaException as error:
            raise self._explained(error, what) from None

    def produce(self, partition: int, data: bytes, on_delivery: Callable[..., None]) -> None:
        """Add a record to the transaction that is under way."""
        self._held.client.produce(self._topic, data, partition=partition, on_delivery=on_delivery)

    def flush(self) -> None:
        """Wait until the broker has all records."""
        self._held.flush("appending to the log")

    def _options_away(self) -> PenstockError:
        return self._clients.timed_out("appending to the log")

    def _explained(self, error: KafkaException, what: str) -> PenstockError:
        found = error.args[0]
        if found.code() in FENCED:
            return SecondInstance(
                "another process captures this source and has taken over its log",
                self.place,
                "run one capture for each source; nothing was written",
            )
        return self._clients.explained(found, what)

    def close_writing(self) -> None:
        """Append no more."""
        self._held.discard()

    # --- reading -------------------------------------------------------------------------------

    def bounds(self) -> Bounds | None:
        """Where the partition of entries begins and ends."""
        # The client waits long for a topic that is not there: somebody may make it.
        if not self._is_known and not self._log_topic.is_there():
            return None
        reading = self._pool.take()
        try:
            found = reading.watermarks(self._topic, ENTRIES)
            self._is_known = found is not None
        except LogUnreachable:
            self._is_known = False
            if not self._log_topic.is_there():
                return None
            raise
        finally:
            self._pool.give_back(reading)
        return None if found is None else Bounds(*found)

    def tail(self, number: int) -> KafkaTail:
        """Read from an entry on."""
        reading = self._pool.take()
        reading.assign(self._topic, ENTRIES, number)
        return KafkaTail(self._pool, reading)

    def fetch(self, pieces: Sequence[int]) -> bytes:
        """Pieces, one after the other."""
        return fetch(self._settings, self._topic, pieces, self.place)

    def locator(self, pieces: tuple[int, ...], number: int) -> KafkaLocator:
        """What a task reads pieces with."""
        return KafkaLocator(self._settings, self._topic, pieces, number)

    # --- keeping -------------------------------------------------------------------------------

    def discard(self, entries_before: int, pieces_before: int) -> None:
        """Have the broker delete records before these."""
        admin = self._clients.admin
        # Entries first: one without its pieces must not be met.
        for partition, offset in ((ENTRIES, entries_before), (PIECES, pieces_before)):
            if offset <= 0:
                continue
            place = TopicPartition(self._topic, partition, offset)
            self._clients.ask(
                lambda place=place: admin.delete_records(  # type: ignore[misc]
                    [place], request_timeout=timing().broker_ask_seconds
                )[place],
                f"deleting records of topic {self._topic}",
            )

    def risk(self, oldest_at: float, size_bytes: int) -> PenstockError | None:
        """Whether retention is near."""
        facts = self._log_topic.facts()
        if facts is None:
            return LogGone(
                "the topic is not there any more",
                self.place,
                "stop penstock and start it again; teardown first where a sink needs what is gone",
            )
        age = time.time() - oldest_at
        milliseconds = int(facts.config.get("retention.ms", -1))
        limit_bytes = int(facts.config.get("retention.bytes", -1))
        if "delete" not in facts.config.get("cleanup.policy", "delete"):
            limit_bytes = milliseconds = -1
        if 0 <= milliseconds < 2000 * age:
            what = f"the oldest change that a sink still needs is {age / 3600:.1f} hours old, and Kafka deletes after {milliseconds / 3_600_000:.1f}"
        elif 0 <= limit_bytes < 2 * size_bytes:
            what = f"sinks still need {size_text(size_bytes)}, and Kafka keeps {size_text(limit_bytes)}"
        else:
            return None
        return LogAtRisk(
            what,
            self.place,
            f"set retention.ms and retention.bytes of topic {self._topic} to -1, or fix the sink that is behind",
        )


class _Group:
    """What is produced in one transaction."""

    def __init__(self, transport: KafkaTransport) -> None:
        self._transport = transport
        self._offsets: dict[int, list[int]] = {ENTRIES: [], PIECES: []}
        self._wanted = {ENTRIES: 0, PIECES: 0}
        self._error: KafkaError | None = None

    @property
    def numbers(self) -> list[int]:
        """Offsets of the entries."""
        return self._offsets[ENTRIES]

    def pieces(self, data: Sequence[bytes]) -> list[int]:
        """Produce pieces, and wait for their offsets."""
        before = len(self._offsets[PIECES])
        self._produce(PIECES, data)
        self._transport.flush()
        self.require_all()
        return self._offsets[PIECES][before:]

    def entries(self, data: Sequence[bytes]) -> None:
        """Produce entries; the commit waits for them."""
        self._produce(ENTRIES, data)

    def require_all(self) -> None:
        """See that everything has its offset."""
        if self._error is not None:
            raise KafkaException(self._error)
        if any(len(self._offsets[each]) != self._wanted[each] for each in self._wanted):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def _produce(self, partition: int, data: Sequence[bytes]) -> None:
        for each in data:
            self._wanted[partition] += 1
            self._transport.produce(partition, each, self._delivered)

    def _delivered(self, error: KafkaError | None, record: Any) -> None:
        if error is not None:
            self._error = self._error or error
        else:
            self._offsets[record.partition()].append(record.offset())


class KafkaTail:
    """Entries from an offset on."""

    def __init__(self, pool: Pool, reading: Reading) -> None:
        self._pool = pool
        self._reading: Reading | None = reading
        self.has_caught_up = False

    def poll(self, seconds: float) -> Kept | None:
        """The next one."""
        assert self._reading is not None, "closed"
        one = self._reading.poll(seconds, "reading the log")
        if one is not None:
            return Kept(one.offset(), bytes(one.value() or b""), one.timestamp()[1] / 1000)
        self.has_caught_up = self.has_caught_up or self._reading.is_at_end
        return None

    def close(self) -> None:
        """Leave the consumer to the next one."""
        reading, self._reading = self._reading, None
        if reading is not None:
            self._pool.give_back(reading)
