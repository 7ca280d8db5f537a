"""Documents as records of Kafka topics.

Exactly once: the driver produces the documents of a batch and the position in one transaction. Who reads committed
records sees both or neither; `open` ends what a killed predecessor left open, and reads the position that counts.

At least once: tasks produce in parallel, each key in one task; the position is penstock's own, kept when all is acknowledged.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

from confluent_kafka import KafkaException

from penstock.errors import PenstockError, SecondInstance, SinkError, SinkPrivilegeMissing
from penstock.failpoints import fault_point
from penstock.sinks.documents.contract import DocumentSink, DocumentsRefused
from penstock.sinks.documents.patterns import Pattern
from penstock.sinks.kafka.check import findings
from penstock.sinks.kafka.claim import Claim
from penstock.sinks.kafka.client import FENCED
from penstock.sinks.kafka.options import RecordKey
from penstock.sinks.kafka.producing import Producing
from penstock.sinks.kafka.progress import Progress
from penstock.sinks.kafka.records import Layout
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from penstock.findings import Finding
    from penstock.sinks.kafka.options import KafkaOptions
    from penstock.sinks.kind import SinkPlace

_SHARED_BY: dict[RecordKey, Literal["key", "table", "schema"]] = {
    RecordKey.PRIMARY_KEY: "key",
    RecordKey.TABLE: "table",
    RecordKey.SCHEMA: "schema",
}


class ExactlyOnceSink(DocumentSink):
    """Delivers by transactions, which hold the position as well."""

    stores_state = True
    batch_bytes = 16 * 1024 * 1024

    def __init__(self, place: SinkPlace[KafkaOptions]) -> None:
        options = place.options
        self._options = options
        self._where = f"sink {place.name}"
        name = f"penstock.{place.pipeline}.{place.source_id}.{place.name}"
        self._producing = Producing(
            options,
            self._where,
            layout_of(place),
            **{
                "transactional.id": name,
                "transaction.timeout.ms": int(1000 * options.transaction_timeout),
                "message.timeout.ms": int(1000 * min(options.timeout, options.transaction_timeout)),
            },
        )
        self._clients = self._producing.clients
        self._claim = Claim(self._clients, name, options.progress_topic)
        self._progress = Progress(self._clients, options, name)
        self._in_transaction = False

    def open(self) -> str | None:
        """Claim the sink, end what a predecessor left open, read the position."""
        self._discard()
        self._clients.go_on()
        self._progress.make_topic(self._producing.topics)
        self._claim.take()
        self._init()
        return self._progress.read()

    def _init(self) -> None:
        """Have the broker end the last transaction, and fence whoever had it."""
        producer = self._producing.producer
        self._in_steps(producer.init_transactions, "beginning transactions")

    def deliver(self, documents: Iterator[pa.RecordBatch], state: str | None) -> None:
        """Produce documents and position in one transaction."""
        assert state is not None, "delivered by the driver"
        with self._or_discard():
            refused = self._produce(documents)
            if not refused:
                self._store(state.encode())
                fault_point("kafka.before_commit")
                refused = self._commit()
            if refused:
                self._abort()
        if refused:
            raise DocumentsRefused(refused)

    @contextmanager
    def _or_discard(self) -> Iterator[None]:
        """After a failure nothing of the transaction stays; `open` finds out what has happened."""
        try:
            yield
        except BaseException:
            self._discard()
            raise

    def _produce(self, documents: Iterator[pa.RecordBatch]) -> dict[str, str]:
        """Begin a transaction and produce; once something is refused, only find out what else is."""
        refused: dict[str, str] = {}
        self._begin()
        is_empty = True
        for batch in documents:
            refused |= self._producing.refused(batch)
            if refused:
                continue
            if self._producing.sends_too_much:
                self._begin_anew(is_empty)
            self._producing.produce(batch)
            is_empty = False
        return refused

    def _begin(self) -> None:
        try:
            self._producing.producer.begin_transaction()
        except KafkaException as error:
            raise self._explained(error, "beginning a transaction") from None
        self._in_transaction = True

    def _begin_anew(self, is_empty: bool) -> None:
        """A topic was met that takes smaller batches than the producer makes."""
        if not is_empty:
            raise SinkError(
                "a topic takes smaller batches than the others",
                self._where,
                "nothing, penstock delivers the batch again",
            )
        self._discard()
        self._init()
        self._begin()

    def _store(self, state: bytes | None) -> None:
        """Produce the position; None forgets it."""
        topic, key, partition = self._progress.record
        try:
            self._producing.producer.produce(topic, state, key, partition)
        except (KafkaException, BufferError) as error:
            raise self._explained(error, "producing the position") from None

    def _commit(self) -> dict[str, str]:
        """Commit; or what is refused, and nothing is committed."""
        try:
            self._in_steps(self._producing.producer.commit_transaction, "committing")
        except PenstockError as error:
            # Where it is one record's, its report has the reason: the transaction only knows that one failed.
            if refused := self._producing.failures():
                return refused
            self._producing.topics.forget()
            if isinstance(error, SinkPrivilegeMissing):
                # A right that was taken away meanwhile: whose, the next attempt finds out by asking.
                raise SinkError(error.what, error.where, "nothing, penstock tries again") from None
            raise
        self._in_transaction = False
        return {}

    def _abort(self) -> None:
        self._in_transaction = False
        self._in_steps(self._producing.producer.abort_transaction, "aborting a transaction")
        self._producing.failures()

    def _in_steps(self, call: Callable[[float], None], what: str) -> None:
        """Call until it is done; a call that timed out may be repeated, and goes on where it was."""
        waiting = self._clients.steps(what)
        while True:
            try:
                call(timing().broker_step_seconds)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise self._explained(error, what) from None
                self._claim.keep()
                waiting.go_on()
            else:
                return

    def _explained(self, error: Exception, what: str) -> PenstockError:
        if not isinstance(error, KafkaException):
            return SinkError(f"{what}: the client's queue is full", self._where, "nothing")
        if error.args[0].code() not in FENCED:
            return self._clients.explained(error.args[0], what)
        if self._claim.others():
            return SecondInstance(
                "another process has begun to deliver there", self._where, "stop one of the two"
            )
        return SinkError(
            f"{what}: the broker ended a transaction of more than"
            f" {self._options.transaction_timeout:g} s",
            self._where,
            "nothing, penstock tries again; if it comes again, set transaction_timeout higher",
        )

    def idle(self) -> None:
        """Let the claim's client work."""
        self._claim.keep()

    def interrupt(self) -> None:
        """Wait for the broker no longer."""
        self._clients.give_up()

    def check(self) -> Iterator[Finding]:
        """What stands in the way."""
        self._clients.go_on()
        yield from findings(self._producing, self._options)

    def forget(self) -> list[str]:
        """Forget the position, and remove the group that the claim is made by."""
        self._clients.go_on()
        if not self._progress.is_there():
            return []
        try:
            if self.open() is None:
                return []
            self._begin()
            self._store(None)
            self._commit()
            return [f"position in topic {self._options.progress_topic}"]
        finally:
            self.close()
            self._clients.go_on()
            self._claim.forget()

    def close(self) -> None:
        """Abort what is under way, and let go of everything."""
        self._discard()
        self._claim.release()
        self._clients.close()

    def _discard(self) -> None:
        """Let go of the producer; a transaction that is open is aborted, or is by the next `open`."""
        if self._in_transaction:
            self._in_transaction = False
            # The broker may be away, or have fenced us: then `open` sees to it.
            with suppress(KafkaException):
                self._producing.producer.abort_transaction(timing().broker_step_seconds)
        self._producing.discard()


class AtLeastOnceSink(DocumentSink):
    """Delivers in tasks. A producer outlives its task: to make one takes longer than most batches."""

    delivered_by = "tasks"
    batch_bytes = 16 * 1024 * 1024

    def __init__(self, place: SinkPlace[KafkaOptions]) -> None:
        self.shared_by = _SHARED_BY[place.options.key]
        self._options = place.options
        self._where = f"sink {place.name}"
        self._layout = layout_of(place)
        self._producing: Producing | None = None
        self._made_by = 0

    @property
    def _mine(self) -> Producing:
        if self._producing is None or self._made_by != os.getpid():
            self._producing = _taken(self._options, self._where, self._layout)
            self._made_by = os.getpid()
        return self._producing

    def open(self) -> None:
        """Reach the brokers; the position is penstock's."""
        self._mine.clients.go_on()
        self._mine.clients.metadata(self._mine.clients.admin, "reaching the brokers")

    def deliver(self, documents: Iterator[pa.RecordBatch], state: str | None) -> None:
        """Produce, and wait until all is acknowledged."""
        del state  # penstock keeps it
        batches = list(documents)  # of a task, or a step of a copy: in memory as it is
        if not batches:
            return
        try:
            refused = self._deliver(self._mine, batches)
        except BaseException:
            self._mine.discard()
            raise
        if refused:
            raise DocumentsRefused(refused)

    def _deliver(self, mine: Producing, batches: list[pa.RecordBatch]) -> dict[str, str]:
        """Deliver all; or what is refused, before anything is produced where that can be known."""
        refused: dict[str, str] = {}
        for batch in batches:
            refused |= mine.refused(batch)
        if refused:
            return refused
        if mine.sends_too_much:
            mine.discard()
        for batch in batches:
            mine.produce(batch)
        mine.flush()
        return mine.failures()

    def interrupt(self) -> None:
        """Wait for the brokers no longer."""
        if self._producing is not None:
            self._producing.clients.give_up()

    def check(self) -> Iterator[Finding]:
        """What stands in the way."""
        self._mine.clients.go_on()
        yield from findings(self._mine, self._options)

    def close(self) -> None:
        """Leave the producer to the next task of this process."""
        mine, self._producing = self._producing, None
        if mine is not None and self._made_by == os.getpid():
            _pool.setdefault(self._made_by, []).append((self._options, self._layout, mine))


# Producers of this process that nobody uses. Of another, where the process was forked: they are dead.
_pool: dict[int, list[tuple[Any, Layout, Producing]]] = {}


def _taken(options: KafkaOptions, where: str, layout: Layout) -> Producing:
    """A producer that a task has left, or a new one."""
    idle = _pool.get(os.getpid(), [])
    for number, (its_options, its_layout, producing) in enumerate(idle):
        if its_options == options and its_layout == layout:
            del idle[number]
            producing.clients.go_on()
            return producing
    return Producing(options, where, layout)


def layout_of(place: SinkPlace[KafkaOptions]) -> Layout:
    """How the documents of a sink become records."""
    options = place.options
    return Layout(
        Pattern(options.topic, place.pipeline, place.source_id),
        options.key,
        "application/json",
        options.tombstones,
    )
