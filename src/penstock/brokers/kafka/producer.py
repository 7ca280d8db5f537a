"""A producer that one object holds: how it is waited for in steps, and how it is ended."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, Producer

from penstock.brokers.kafka.client import end_client, leave_to_parent
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.brokers.kafka.client import Clients


class HeldProducer:
    """One producer at a time, which nobody else refers to. After an exception it is discarded, and another one made.

    An exception on its way has the frames that it came through, and must not have the producer: so none of them has it
    as a variable.
    """

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._client: Producer | None = None
        self._made_by = os.getpid()

    @property
    def is_ours(self) -> bool:
        """Whether it is of this process, and not of the one that it was forked from."""
        return self._made_by == os.getpid()

    @property
    def is_there(self) -> bool:
        """Whether one was made and not discarded. Not its own truth: that of one with an empty queue is False."""
        return self._client is not None

    @property
    def client(self) -> Producer:
        """The producer, which was made."""
        assert self._client is not None, "made first"
        return self._client

    def make(self, conf: dict[str, Any]) -> None:
        """Make it.

        Raises:
            PenstockError: a setting is none.
        """
        self._client = self._clients.made(Producer, conf)
        self._made_by = os.getpid()

    def in_steps(self, method: str, what: str, meanwhile: Callable[[], None] | None = None) -> None:
        """Call a method until it is done; a call that timed out may be repeated, and goes on where it was.

        Raises:
            KafkaException: it fails.
            PenstockError: it takes longer than the time-out.
        """
        waiting = self._clients.steps(what)
        while True:
            try:
                getattr(self._client, method)(timing().broker_step_seconds)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
                if meanwhile is not None:
                    meanwhile()
                waiting.go_on()
            else:
                return

    def flush(self, what: str, meanwhile: Callable[[], None] | None = None) -> None:
        """Wait until everything is with the broker, or has failed; `meanwhile` is called every now and then.

        Raises:
            KafkaException: the producer can do nothing more; another one may have taken its place.
            PenstockError: the broker has taken nothing for as long as the time-out. A slow link is none: the time is
                counted from the last record that was acknowledged.
        """
        if self._client is None:
            return
        waiting = self._clients.steps(what)
        before = len(self._client)
        while left := self._flush_step():
            if left < before:
                waiting.begin_anew()
            before = left
            if meanwhile is not None:
                meanwhile()
            waiting.go_on()

    def _flush_step(self) -> int:
        """How many records are left after a while."""
        if self._client is None:
            return 0
        try:
            return int(self._client.flush(timing().broker_step_seconds))
        except SystemError as error:
            raise self._explained(error) from None

    def _explained(self, raised: SystemError) -> Exception:
        """What a client is beyond repair for, where a callback was run meanwhile: Python reports that one then, or nothing."""
        found: Exception = raised
        if isinstance(raised.__cause__, KafkaException):
            found = raised.__cause__
        elif self._client is not None:
            try:
                # Changes nothing: one is under way, or it says again what it is beyond repair for.
                self._client.begin_transaction()
            except KafkaException as error:
                if error.args[0].fatal():
                    found = error
        return found

    def discard(self) -> None:
        """End it; nothing that waits in it is sent any more, and a transaction that it left open is ended by who comes next."""
        producer, self._client = self._client, None
        if producer is None:
            return
        if not self.is_ours:
            leave_to_parent(producer)
            return
        # Ended with its last reference, which is this one: `close` would wait for a broker that is away to
        # abort a transaction.
        producer.purge()
        # What is beyond repair says so here, too: that is why it is ended.
        with suppress(KafkaException, SystemError):
            producer.flush(0)
        last = [producer]
        del producer
        end_client(last, last.clear)
