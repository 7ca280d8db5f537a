"""A board as a compacted topic of one partition. Who holds a role is a member of a group of Kafka's."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from penstock.brokers.kafka.claim import Claim
from penstock.brokers.kafka.client import leave_to_parent
from penstock.brokers.kafka.producer import HeldProducer
from penstock.errors import LogRefused, LogUnreachable
from penstock.log.broker.board import MemoryBoard
from penstock.log.kafka.clients import Reading, Settings
from penstock.log.kafka.topic import LogTopic, state_config
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.brokers.kafka.client import Clients
    from penstock.log.kafka.options import KafkaLogOptions

_PARTITION = 0


class KafkaBoard(MemoryBoard):
    """The board of one pipeline."""

    def __init__(self, options: KafkaLogOptions, topic: str, pipeline: str) -> None:
        super().__init__(f"topic {topic}", options.timeout, pipeline)
        self._topic = topic
        self._options = options
        # Reports are not worth a long wait: the next one follows.
        self._timeout = min(timing().board_report_seconds, options.timeout)
        self._reading_settings = Settings.of(options)
        self._settings = replace(self._reading_settings, timeout=self._timeout)
        self._clients = self._settings.clients(self._place)
        # At the start there is nothing else to do: a busy broker may take its time.
        patient = replace(self._settings, timeout=max(timing().board_join_seconds, options.timeout))
        self._patient = patient.clients(self._place)
        self._log_topic = LogTopic(self._reading_settings.clients(self._place), options, topic)
        self._reading: Reading | None = None
        self._producer = HeldProducer(self._clients)
        self._made_by = 0
        self._next = 0
        self._claims: dict[str, Claim] = {}
        self._keep_at = 0.0

    def _exists(self) -> bool:
        return self._log_topic.is_there()

    def _connect(self) -> None:
        self._clients.close()
        self._end_clients()
        facts = self._log_topic.require(1, state_config(self._options))
        policy = facts.config.get("cleanup.policy", "compact")
        if "compact" not in policy:
            raise LogRefused(
                f"cleanup.policy is {policy}, wanted compact: Kafka deletes positions and requests",
                self._place,
                f"set cleanup.policy=compact for topic {self._topic}",
            )
        self._limit_pieces(facts.limit)
        self._reading = Reading(
            self._reading_settings,
            self._place,
            **{"auto.offset.reset": "earliest", "fetch.wait.max.ms": 100},
        )
        self._reading.assign(self._topic, _PARTITION, 0)
        self._next = 0
        self._made_by = os.getpid()
        self._producer.make(
            self._clients.conf(
                **{
                    "enable.idempotence": True,
                    "message.timeout.ms": int(1000 * self._timeout),
                    "linger.ms": 0,
                }
            ),
        )

    def _catch_up(self) -> None:
        assert self._reading is not None, "connected first"
        found = self._reading.watermarks(self._topic, _PARTITION)
        if found is None:
            self._pid = 0
            raise LogUnreachable(
                "the topic is not there", self._place, "nothing, penstock makes it anew"
            )
        reading, end = self._reading, found[1]
        # Where the end was met, the rest was compacted away.
        self._take_until(lambda: self._next >= end or reading.end_offset >= end)

    def _take_next(self, seconds: float) -> bool:
        assert self._reading is not None, "connected first"
        one = self._reading.poll(seconds, "reading reports")
        if one is None:
            return False
        self._next = one.offset() + 1
        self._take_read(
            one.offset(), (one.key() or b"").decode(), one.value(), one.timestamp()[1] / 1000
        )
        return True

    def _post(self, key: str, value: bytes | None) -> int:
        done: list[Any] = []
        try:
            self._producer.client.produce(
                self._topic,
                value,
                key.encode(),
                partition=_PARTITION,
                on_delivery=lambda error, record: done.append((error, record)),
            )
            self._producer.flush("reporting")
        except KafkaException as raised:
            self._pid = 0
            raise self._clients.explained(raised.args[0], "reporting") from None
        error, record = done[0]
        if error is not None:
            if error.code() in (KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT):
                raise self._clients.timed_out("reporting")
            self._pid = 0  # the topic may have been deleted, and made anew
            raise self._clients.explained(error, "reporting")
        return int(record.offset())

    def _end_clients(self) -> None:
        """Those of an earlier connection; nothing that waits is sent any more."""
        reading, self._reading = self._reading, None
        if reading is not None and self._made_by != os.getpid():
            leave_to_parent(reading)
        elif reading is not None:
            reading.close()
        self._producer.discard()

    def _group(self, role: str) -> str:
        return f"penstock/{self._pipeline}/{role}"

    def _claim(self, role: str, clients: Clients) -> Claim:
        return Claim(clients, self._group(role), self._topic, "works for this pipeline")

    def _holder(self, role: str) -> str | None:
        own = self._claims.get(role)
        if own is not None:
            return own.instance
        others = self._claim(role, self._clients).others()
        return others[0].instance if others else None

    def _keep_roles(self) -> None:
        """Poll the members of groups: one that the broker has given up joins again only then."""
        if time.monotonic() >= self._keep_at:
            self._keep_at = time.monotonic() + timing().broker_step_seconds
            for claim in self._claims.values():
                claim.keep()

    @contextmanager
    def hold(self, role: str) -> Iterator[None]:
        """Hold a role alone.

        Raises:
            SecondInstance: another process holds it.
        """
        with self._lock:
            self._require_connected(creates=True)
        claim = self._claim(role, self._patient)
        claim.take()
        try:
            with self._lock:
                self._claims[role] = claim
                self._hold(role, claim.instance)
            yield
        finally:
            with self._lock:
                self._claims.pop(role, None)
                self._leave_role(role)
            claim.release()

    def forget(self) -> list[str]:
        """Delete the topic."""
        with self._lock:
            self._require_own()
            try:
                was_there = self._log_topic.delete()
            except KafkaException as error:
                raise self._clients.explained(error.args[0], "deleting the topic") from None
            self._pid = 0
            return [f"topic {self._topic}"] if was_there else []
