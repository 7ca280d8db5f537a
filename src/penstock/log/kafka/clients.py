"""Clients of the Kafka that a log is on: those of the driver, and those of tasks elsewhere."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from pydantic import SecretStr

from penstock.brokers.errors import OF_LOG
from penstock.brokers.kafka.client import Clients, end_client
from penstock.errors import LogGone
from penstock.timing import timing
from penstock.vault import seal, unseal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.log.kafka.options import KafkaLogOptions

_log = logging.getLogger(__name__)

# What a consumer says of a place that is not there, or no more.
GONE = {
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}
# Of these the reason may be a broker that just came back: where the partition begins and ends says what is true.
_OUT_OF_RANGE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
_AWAY = {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE}
# A client insists on one. Never joined, and nothing is committed to it.
READING_GROUP = "penstock-log"
_READING = {
    "group.id": READING_GROUP,
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "fetch.queue.backoff.ms": 10,
    "queued.max.messages.kbytes": 16_384,
}


@dataclass(frozen=True)
class Settings:
    """How to reach the brokers. Small and picklable; secrets go through the vault."""

    servers: str
    timeout: float
    conf: Mapping[str, SecretStr] = field(default_factory=dict)

    @classmethod
    def of(cls, options: KafkaLogOptions) -> Settings:
        """As the pipeline file says."""
        return cls(options.servers, options.timeout, options.conf)

    @property
    def key(self) -> str:
        """The same for the same settings. Holds secrets: never print it."""
        conf = {key: value.get_secret_value() for key, value in self.conf.items()}
        return json.dumps([self.servers, self.timeout, conf], sort_keys=True)

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> tuple[Callable[..., Settings], tuple[Any, ...]]:
        """Without the settings themselves, where there are any: any of them may be a secret."""
        if not self.conf:
            return Settings, (self.servers, self.timeout)
        return _unsealed, seal(self.key)

    def clients(self, place: str) -> Clients:
        """What makes clients."""
        return Clients(self, place, OF_LOG)


def _unsealed(path: str, name: str) -> Settings:
    servers, timeout, conf = json.loads(unseal(path, name))
    return Settings(servers, timeout, {key: SecretStr(value) for key, value in conf.items()})


class Away:
    """Whether the brokers are known to be away. No part of a cycle with its client."""

    def __init__(self) -> None:
        self.error: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """Called by the client when a connection fails."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN or error.code() not in _AWAY:
            self.error = error


class Reading:
    """A consumer of one partition at a time, from an offset on. In one thread at a time."""

    def __init__(self, settings: Settings, place: str, **conf: Any) -> None:
        self._clients = settings.clients(place)
        self._away = Away()
        made = self._clients.conf(**{**_READING, "error_cb": self._away, **conf})
        self._consumer = self._clients.made(Consumer, made)
        self.is_at_end = False
        self.end_offset = -1  # where the end was when it was last reached; more may have come since
        self._reads: tuple[str, int] = "", 0  # topic and partition
        self._next = 0
        self._doubt_until: float | None = None

    def assign(self, topic: str, partition: int, offset: int) -> None:
        """Read from there."""
        self.is_at_end = False
        self.end_offset = -1
        self._away.error = None
        self._reads, self._next = (topic, partition), offset
        self._doubt_until = None
        self._consumer.assign([TopicPartition(topic, partition, offset)])

    def poll(self, seconds: float, what: str) -> Any:
        """The next record; None when there is none yet.

        Raises:
            LogGone: what was to be read is not there.
            LogUnreachable: the brokers are away.
        """
        one = self._consumer.poll(seconds)
        if one is None:
            if self._away.error is not None:
                error, self._away.error = self._away.error, None
                raise self._clients.explained(error, what)
            return None
        error = one.error()
        if error is None:
            self.is_at_end = False
            self._away.error = None
            self._doubt_until = None
            self._next = int(one.offset()) + 1
            return one
        if error.code() == KafkaError._PARTITION_EOF:
            self.is_at_end = True
            self._doubt_until = None
            self._next = max(self._next, int(one.offset()))
            self.end_offset = int(one.offset())
            return None
        if error.code() in _OUT_OF_RANGE and self._may_come(what):
            return None
        if error.code() in GONE:
            raise LogGone(
                f"{what}: Kafka says {error.name()}; it was deleted, by retention or by hand",
                self._clients.place,
                "penstock teardown and init to begin anew; with acknowledge: delivered the slot still has it:"
                " delete the topic while penstock is stopped, and it is sent again",
            )
        if error.code() in _AWAY:
            return None
        raise self._clients.explained(error, what)

    def _may_come(self, what: str) -> bool:
        """Whether a place that is said to be out of range is not deleted; then it is read again.

        A broker that was killed has what it has acknowledged, and may say for a moment that it has not.
        """
        topic, partition = self._reads
        found = self.watermarks(topic, partition)
        if found is None or self._next < found[0]:
            return False
        now = time.monotonic()
        if self._doubt_until is None:
            self._doubt_until = now + timing().kafka_doubt_seconds
            _log.debug("%s: %d is out of range, %s", what, self._next, found)
        elif now > self._doubt_until:
            return False
        time.sleep(timing().broker_ask_pause_seconds)
        self._consumer.assign([TopicPartition(topic, partition, self._next)])
        return True

    def watermarks(self, topic: str, partition: int) -> tuple[int, int] | None:
        """Where a partition begins and ends; None where there is none.

        Raises:
            LogUnreachable: the brokers are away.
        """
        what = f"asking how long topic {topic} is"
        waiting = self._clients.steps(what)
        while True:
            try:
                place = TopicPartition(topic, partition)
                low, high = self._consumer.get_watermark_offsets(
                    place, timeout=timing().broker_step_seconds * 2
                )
            except KafkaException as error:
                if error.args[0].code() in GONE:
                    return None
                if error.args[0].code() not in {KafkaError._TIMED_OUT, *_AWAY}:
                    raise self._clients.explained(error.args[0], what) from None
                waiting.go_on()
            else:
                return int(low), int(high)

    def idle(self) -> None:
        """Read nothing, for now."""
        self._consumer.unassign()

    def close(self) -> None:
        """Let go of the client."""
        end_client(self._consumer, self._consumer.close)


class Pool:
    """Consumers that nobody uses right now, of this process: a new one takes several round trips."""

    def __init__(self, settings: Settings, place: str, **conf: Any) -> None:
        self._settings, self._place, self._conf = settings, place, conf
        self._idle: list[Reading] = []
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def take(self) -> Reading:
        """One that is idle, or a new one."""
        with self._lock:
            if self._pid != os.getpid():  # forked: those of the parent are dead here
                self._idle, self._pid = [], os.getpid()
            if self._idle:
                return self._idle.pop()
        return Reading(self._settings, self._place, **self._conf)

    def give_back(self, reading: Reading) -> None:
        """Keep it for the next one."""
        reading.idle()
        with self._lock:
            if len(self._idle) < 4:
                self._idle.append(reading)
                return
        reading.close()
