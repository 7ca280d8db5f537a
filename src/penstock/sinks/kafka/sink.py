"""Documents as records of Kafka topics, exactly once.

The driver produces the documents of a batch and the position in one transaction. Who reads committed records sees both
or neither; `open` ends what a killed predecessor left open, and reads the position that counts.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from penstock.brokers.kafka.claim import Claim
from penstock.brokers.kafka.client import FENCED
from penstock.brokers.kafka.producer import HeldProducer
from penstock.errors import PenstockError, SecondInstance, SinkError, SinkPrivilegeMissing
from penstock.failpoints import fault_point
from penstock.sinks.documents.contract import DocumentSink, DocumentsRefused
from penstock.sinks.kafka.check import findings
from penstock.sinks.kafka.kind import format_of, topics_of
from penstock.sinks.kafka.producing import Producing
from penstock.sinks.kafka.progress import Progress
from penstock.sinks.kafka.records import Layout
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from penstock.findings import Finding
    from penstock.sinks.kafka.options import KafkaOptions
    from penstock.sinks.kind import SinkPlace
    from penstock.table import TableName


class ExactlyOnceSink(DocumentSink):
    """Delivers by transactions, which hold the position as well."""

    stores_state = True
    batch_bytes = 32 * 1024 * 1024

    def __init__(self, place: SinkPlace[KafkaOptions]) -> None:
        options = place.options
        self._options = options
        self._where = f"sink {place.name}"
        names = {
            each: f"penstock.{place.pipeline}.{each}.{place.name}"
            for each in (*place.source_ids, place.source_id)
        }
        self._name = name = names.pop(place.source_id)
        self._siblings = tuple(names.values())
        self._transaction_ms = int(1000 * options.transaction_timeout)
        layout = layout_of(place)
        self._topics = layout.topics
        self._producing = Producing(
            options,
            self._where,
            layout,
            **{
                "transactional.id": name,
                "transaction.timeout.ms": self._transaction_ms,
                # Never longer than the transaction: librdkafka's rule.
                "message.timeout.ms": self._transaction_ms,
            },
        )
        self._clients = self._producing.clients
        self._claim = Claim(self._clients, name, options.progress_topic)
        self._progress = Progress(self._clients, options, name)
        self._in_transaction = False

    def open(self) -> str | None:
        """Claim the sink, end what a predecessor left open, read the position."""
        self._discard()
        # An admin client never again finds the coordinator of a group whose broker has died and come back.
        self._clients.close()
        self._clients.go_on()
        self._progress.make_topic(self._producing.topics)
        self._claim.take()
        self._init()
        return self._progress.read(self._siblings, self._end_transaction)

    def _require_right(self) -> None:
        """See that the position can be written: a transaction does not say for what of it a right is missing.

        Raises:
            SinkPrivilegeMissing: it cannot.
        """
        for reason in self._producing.topics.forbidden([self._options.progress_topic]).values():
            raise SinkPrivilegeMissing(
                reason, self._where, "grant the operation Write on it: the position is there"
            )

    def _end_transaction(self, name: str) -> None:
        """Have the broker end what a killed process has left open for another source, if nobody delivers that one."""
        claim = Claim(self._clients, name, self._options.progress_topic)
        if claim.others():
            return
        ending = HeldProducer(self._clients)
        try:
            claim.take()
            conf = {"transactional.id": name, "transaction.timeout.ms": self._transaction_ms}
            ending.make(self._clients.conf(**conf))
            ending.in_steps("init_transactions", f"ending a transaction of {name}", claim.keep)
        except SecondInstance:
            return  # somebody has come meanwhile, who ends it
        except KafkaException as error:
            raise self._explained(error, f"ending a transaction of {name}") from None
        finally:
            ending.discard()
            claim.release()

    def _init(self) -> None:
        """Have the broker end the last transaction, and fence whoever had it."""
        self._in_steps("init_transactions", "beginning transactions")

    def deliver(self, documents: Iterator[pa.RecordBatch], state: str | None) -> None:
        """Produce documents and position in one transaction."""
        assert state is not None, "delivered by the driver"
        with self._or_discard():
            with self._or_refusals():
                refused = self._produce(documents)
                if not refused:
                    self._store(state.encode())
                    fault_point("kafka.before_commit")
                    self._commit()
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

    @contextmanager
    def _or_refusals(self) -> Iterator[None]:
        """Where the broker has refused records, their reports have the reason: the transaction only knows that one failed."""
        try:
            yield
        except SecondInstance:
            raise
        except PenstockError:
            if refused := self._producing.failures():
                self._producing.refuse_again(refused)
                raise SinkError(
                    "; ".join(refused.values()),
                    self._where,
                    "nothing, penstock delivers the batch again without the documents for there",
                ) from None
            self._producing.topics.forget()
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
        if refused or not is_empty:  # between two attempts positions may be stored alone
            self._producing.allow_all()
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

    def _commit(self) -> None:
        try:
            # A commit would do that as well, but not say whether anything moves.
            self._flush()
            self._in_steps("commit_transaction", "committing")
        except SinkPrivilegeMissing as error:
            self._require_right()
            # A right to a topic of documents that was taken away meanwhile: whose, the next attempt finds out by asking.
            raise SinkError(error.what, error.where, "nothing, penstock tries again") from None
        self._in_transaction = False

    def _flush(self) -> None:
        try:
            self._producing.flush(self._claim.keep)
        except KafkaException as error:
            raise self._explained(error, "producing") from None

    def _abort(self) -> None:
        self._in_transaction = False
        self._in_steps("abort_transaction", "aborting a transaction")
        self._producing.failures()

    def _in_steps(self, method: str, what: str) -> None:
        """Call the producer until it is done; a call that timed out may be repeated, and goes on where it was."""
        try:
            self._producing.in_steps(method, what, self._claim.keep)
        except KafkaException as error:
            raise self._explained(error, what) from None

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
        yield from self.check_tables(())

    def check_tables(self, tables: Sequence[TableName]) -> Iterator[Finding]:
        """The same, with the topics of tables."""
        self._clients.go_on()
        topics = {self._topics.of(*table) for table in tables}
        yield from findings(self._producing, self._options, topics, self._name)

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
        self._producing.close()

    def _discard(self) -> None:
        """End the producer; a transaction that is open is aborted, or is by the next `open`."""
        is_open, self._in_transaction = self._in_transaction, False
        if is_open and self._producing.is_ours:
            # The broker may be away, or have fenced us: then `open` sees to it.
            with suppress(KafkaException):
                self._producing.producer.abort_transaction(timing().broker_step_seconds)
        self._producing.discard()


def layout_of(place: SinkPlace[KafkaOptions]) -> Layout:
    """How the documents of a sink become records."""
    options = place.options
    return Layout(
        topics_of(place),
        options.key,
        format_of(place).content_type,
        options.writes_tombstones,
    )
