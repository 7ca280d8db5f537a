"""The executor half of a sink that tasks deliver to, in parallel: each document of a key in one task, in order.

A job has two stages. The first makes documents and shares them out by key; Spark's shuffle brings those
of a key together; the second puts them in order and calls the sink. The position moves when all of it is
delivered, so that after a crash a batch may come again, with the same ids.
"""

from __future__ import annotations

import base64
import pickle
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock import vault
from penstock.changes.documents import documents
from penstock.failpoints import fault_point
from penstock.sinks.documents.contract import DocumentsRefused
from penstock.sinks.documents.failures import explained
from penstock.sinks.documents.parts import message_of, read_messages
from penstock.sinks.documents.refusals import Attempt
from penstock.sinks.documents.routed import sink_of
from penstock.sinks.sink import Receipt
from penstock.sinks.tables import ALL_TABLES, WantedTables

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.changes.decode import Piece
    from penstock.options import OnRefused
    from penstock.sinks.documents.contract import DocumentKind
    from penstock.sinks.documents.parked import Holds
    from penstock.sinks.kind import SinkPlace
    from penstock.table import TableName


@dataclass(frozen=True)
class SealedSink:
    """How a task makes the sink. What people have said of it, passwords included, never enters a job."""

    kind: DocumentKind[Any]
    place: SinkPlace[Any]

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        # Of this process's own making on both sides, so that it may be pickled.
        text = base64.b64encode(pickle.dumps((self.kind, self.place))).decode()
        return _unsealed, vault.seal(text)


def _unsealed(path: str, name: str) -> SealedSink:
    return SealedSink(*pickle.loads(base64.b64decode(vault.unseal(path, name))))  # noqa: S301


@dataclass
class Outcome:
    """What a receipt of the second stage holds: what was not delivered, for the driver to keep."""

    caught: list[dict[str, Any]] = field(default_factory=list)  # parked, in their order
    reasons: dict[str, str] = field(default_factory=dict)
    stopped: dict[TableName, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SharedOut:
    """What the executors are sent; `partitions` says into how many parts documents are shared out."""

    sink: SealedSink
    source: str
    partitions: int
    on_refused: OnRefused
    holds: Holds
    tables: WantedTables = ALL_TABLES
    shared_by: str = "key"  # see DocumentSink

    def begin(self, task: int) -> FirstStage:
        """Start the work of one task of the first stage."""
        return FirstStage(self, task)

    def deliver(self, partition: int, blocks: Iterable[tuple[int, bytes]]) -> Receipt:
        """The second stage: what all tasks have for one partition, in the source's order.

        Raises:
            PenstockError: nothing, or some of it, is delivered.
        """
        messages = [batch for _, block in sorted(blocks) for batch in read_messages(block)]
        receipt = Receipt(partition, content=Outcome())
        if messages:
            batch = in_order(pa.concat_batches(messages))
            receipt.change_count = len(batch)
            receipt.content = self._deliver(batch)
        return receipt

    def _deliver(self, batch: pa.RecordBatch) -> Outcome:
        place = self.sink.place
        sink = sink_of(self.sink.kind, place)
        attempt = Attempt(lambda: iter((batch,)), self.holds, self.on_refused, f"sink {place.name}")
        try:
            while True:
                try:
                    sink.deliver(attempt.documents(), None)
                except DocumentsRefused as refused:
                    attempt.refuse(refused.reasons)
                    continue
                break
            fault_point("documents.after_deliver")
        except Exception as error:  # noqa: BLE001 - explained, and raised
            raise explained(error, sink, place.state, place.name) from None
        finally:
            sink.close()
        return Outcome(attempt.caught(), attempt.reasons, attempt.stopped)


class FirstStage:
    """Makes documents, and shares them out. Its receipt's content is a block for each partition."""

    def __init__(self, worker: SharedOut, task: int) -> None:
        self._worker = worker
        self._blocks: dict[int, bytearray] = {}
        self._receipt = Receipt(task)

    def take(self, pieces: Sequence[Piece]) -> None:
        """Turn the changes of a few slices into documents."""
        wanted = [piece for piece in pieces if piece.relation.table in self._worker.tables]
        batch = documents(wanted, self._worker.source)
        if not len(batch):
            return
        partition = partition_of(batch, self._worker.partitions, self._worker.shared_by)
        for number in np.unique(partition).tolist():
            some = batch.filter(pa.array(partition == number))
            self._blocks.setdefault(number, bytearray()).extend(memoryview(message_of(some)))

    def finish(self) -> Receipt:
        """The blocks, by partition."""
        self._receipt.content = {number: bytes(block) for number, block in self._blocks.items()}
        return self._receipt


_SHARED_BY = {"schema": 1, "table": 2, "key": 3}


def partition_of(
    batch: pa.RecordBatch, count: int, shared_by: str = "key"
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Which partition each document belongs to: by schema, table and key, or less of it.

    Where there is no key, by the table.
    """
    columns = [batch.column(name).cast(pa.large_string()) for name in ("schema", "table", "key")]
    of = pc.binary_join_element_wise(
        *columns[: _SHARED_BY[shared_by]],
        pa.scalar("\0", pa.large_string()),
        null_handling="replace",
        null_replacement="",
    )
    encoded = of.dictionary_encode()
    # The same in every process, unlike Python's own hash.
    numbers = [zlib.crc32(text.encode()) % count for text in encoded.dictionary.to_pylist()]
    found: np.ndarray[Any, np.dtype[np.int64]] = np.asarray(numbers, np.int64)[
        encoded.indices.to_numpy()
    ]
    return found


def in_order(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Documents by commit and place in it; those of one place stay as they are."""
    keys = (batch.column("ordinal").to_numpy(), batch.column("commit_lsn").to_numpy())
    return batch.take(pa.array(np.lexsort(keys)))
