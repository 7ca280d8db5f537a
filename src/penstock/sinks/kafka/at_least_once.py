"""Documents as records of Kafka topics, at least once.

Tasks produce in parallel, each key in one task; the position is penstock's own, kept when all is acknowledged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from confluent_kafka import KafkaException

from penstock.sinks.documents.contract import DocumentSink, DocumentsRefused
from penstock.sinks.kafka.check import findings
from penstock.sinks.kafka.options import RecordKey
from penstock.sinks.kafka.producing import Producing
from penstock.sinks.kafka.sink import layout_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from penstock.findings import Finding
    from penstock.sinks.kafka.options import KafkaOptions
    from penstock.sinks.kafka.records import Layout
    from penstock.sinks.kind import SinkPlace
    from penstock.table import TableName

_SHARED_BY: dict[RecordKey, Literal["key", "table", "schema"]] = {
    RecordKey.PRIMARY_KEY: "key",
    RecordKey.TABLE: "table",
    RecordKey.SCHEMA: "schema",
}


class AtLeastOnceSink(DocumentSink):
    """Delivers in tasks. A producer outlives its task: to make one takes longer than most batches."""

    delivered_by = "tasks"
    batch_bytes = 64 * 1024 * 1024

    def __init__(self, place: SinkPlace[KafkaOptions]) -> None:
        self.shared_by = _SHARED_BY[place.options.key]
        self._options = place.options
        self._where = f"sink {place.name}"
        self._layout = layout_of(place)
        self._producing: Producing | None = None
        self._is_drivers = False

    @property
    def _mine(self) -> Producing:
        if self._producing is not None and not self._producing.is_ours:
            self._producing.close()  # forked: it is left to the parent
            self._producing = None
        if self._producing is None:
            self._producing = _taken(self._options, self._where, self._layout)
        return self._producing

    def open(self) -> None:
        """Reach the brokers; the position is penstock's."""
        self._is_drivers = True
        self._mine.clients.go_on()
        self._mine.clients.metadata(self._mine.clients.admin, "reaching the brokers")

    def deliver(self, documents: Iterator[pa.RecordBatch], state: str | None) -> None:
        """Produce, and wait until all is acknowledged."""
        del state  # penstock keeps it
        batches = list(documents)  # a chunk of a task, or a step of a copy: in memory as it is
        if not batches:
            return
        try:
            refused = self._deliver(self._mine, batches)
        except BaseException:
            self._mine.close()
            raise
        if refused:
            raise DocumentsRefused(refused)

    def _deliver(self, mine: Producing, batches: list[pa.RecordBatch]) -> dict[str, str]:
        """Deliver all; or what is refused, before anything is produced where that can be known.

        Of what only the broker knows, other documents are delivered, and come again.
        """
        refused: dict[str, str] = {}
        for batch in batches:
            refused |= mine.refused(batch)
        if refused:
            return refused
        if mine.sends_too_much:
            mine.discard()
        for batch in batches:
            mine.produce(batch)
        try:
            mine.flush()
        except KafkaException as error:
            raise mine.clients.explained(error.args[0], "producing") from None
        if not (reasons := mine.failures()):
            return {}
        for batch in batches:  # topics may have changed since they were met
            refused |= mine.refused(batch)
        for batch in () if refused else batches:
            refused |= mine.refused_at(batch, reasons)
        return refused

    def interrupt(self) -> None:
        """Wait for the brokers no longer."""
        if self._producing is not None:
            self._producing.clients.give_up()

    def check(self) -> Iterator[Finding]:
        """What stands in the way."""
        yield from self.check_tables(())

    def check_tables(self, tables: Sequence[TableName]) -> Iterator[Finding]:
        """The same, with the topics of tables."""
        self._is_drivers = True
        self._mine.clients.go_on()
        topics = {self._layout.topics.of(*table) for table in tables}
        yield from findings(self._mine, self._options, topics)

    def close(self) -> None:
        """End the clients; those of a task are left to the next one of this process."""
        mine, self._producing = self._producing, None
        if mine is None:
            return
        if self._is_drivers or not mine.is_ours:
            mine.close()
        else:
            _idle.append((self._options, self._layout, mine))
            while len(_idle) > _MOST_IDLE:
                _idle.pop(0)[2].close()


# As many sinks as a process is likely to have.
_MOST_IDLE = 8
# Of tasks of this process, or of the one that it was forked from.
_idle: list[tuple[Any, Layout, Producing]] = []


def _taken(options: KafkaOptions, where: str, layout: Layout) -> Producing:
    """What a task has left, or a new one."""
    for number, (its_options, its_layout, producing) in enumerate(_idle):
        if producing.is_ours and its_options == options and its_layout == layout:
            del _idle[number]
            producing.clients.go_on()
            return producing
    return Producing(options, where, layout)
