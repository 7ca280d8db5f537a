"""The executor half of a sink that tasks deliver to, in parallel: each document of a key in one task, in order.

Every task of a batch reads all of it and delivers the keys of its own share, chunk by chunk. To decode a change twice
costs less than to send its document through a shuffle, which would also hold a whole batch in memory. The position
moves when all of it is delivered, so that after a crash a batch may come again, with the same ids.
"""

from __future__ import annotations

import base64
import pickle
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from penstock import vault
from penstock.changes.envelope import Origin
from penstock.changes.shares import Share
from penstock.failpoints import fault_point
from penstock.sinks.documents.contract import DocumentsRefused
from penstock.sinks.documents.failures import explained, let_go, ours
from penstock.sinks.documents.format import JSON_FORMAT, DocumentFormat
from penstock.sinks.documents.refusals import Attempt
from penstock.sinks.documents.routed import sink_of
from penstock.sinks.sink import Receipt
from penstock.sinks.tables import ALL_TABLES, WantedTables

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

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
    """What a receipt holds: what was not delivered, for the driver to keep."""

    caught: list[dict[str, Any]] = field(default_factory=list)  # parked, in their order
    reasons: dict[str, str] = field(default_factory=dict)
    stopped: dict[TableName, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)  # see DocumentSink.left_over


@dataclass(frozen=True)
class SharedOut:
    """What the executors are sent; `share_count` says among how many tasks the keys are shared out."""

    sink: SealedSink
    source: str
    on_refused: OnRefused
    holds: Holds
    tables: WantedTables = ALL_TABLES
    shared_by: str = "key"  # see DocumentSink
    format: DocumentFormat = JSON_FORMAT
    database: str = ""
    share_count: int = 1

    def shared_among(self, count: int) -> SharedOut:
        """The same for so many tasks."""
        return replace(self, share_count=count)

    def begin(self, task: int) -> ShareTask:
        """Start the work of one task, whose share has its number."""
        return ShareTask(self, task)


class ShareTask:
    """Delivers one share of what it is given. Its receipt's content is an Outcome."""

    def __init__(self, worker: SharedOut, task: int) -> None:
        self._worker = worker
        self._holds = worker.holds.copy()
        self._outcome = Outcome()
        self._receipt = Receipt(task, content=self._outcome)

    def prepare(self, pieces: Sequence[Piece]) -> pa.RecordBatch:
        """Documents of what belongs to the share, of the changes of a few slices."""
        worker = self._worker
        share = Share(self._receipt.task, worker.share_count, worker.shared_by)
        origin = Origin(worker.source, worker.database)
        wanted = [piece for piece in pieces if piece.relation.table in worker.tables]
        return worker.format.documents_of_share(wanted, origin, share)

    def take(self, batch: pa.RecordBatch) -> None:
        """Deliver documents.

        Raises:
            PenstockError: nothing, or some of it, is delivered.
        """
        if len(batch):
            self._receipt.change_count += len(batch)
            self._deliver(batch)

    def _deliver(self, batch: pa.RecordBatch) -> None:
        place, outcome = self._worker.sink.place, self._outcome
        attempt = Attempt(
            lambda: iter((batch,)), self._holds, self._worker.on_refused, f"sink {place.name}"
        )
        attempt.stopped |= outcome.stopped
        attempt.refuse_marked()
        with ours(None, place.state, place.name):
            sink = sink_of(self._worker.sink.kind, place)
        try:
            sink.begin_share(self._worker.shared_by, self._worker.share_count)
            while True:
                try:
                    sink.deliver(attempt.documents(), None)
                except DocumentsRefused as refused:
                    attempt.refuse(refused.reasons)
                    continue
                break
            outcome.left += sink.left_over()
            fault_point("documents.after_deliver")
        except Exception as error:  # noqa: BLE001 - explained, and raised
            raise explained(error, sink, place.state, place.name) from None
        finally:
            let_go(sink, place.state, place.name)
        caught = attempt.caught()
        for row in caught:
            self._holds.add(row)
        outcome.caught += caught
        outcome.reasons |= attempt.reasons
        outcome.stopped |= attempt.stopped

    def finish(self) -> Receipt:
        """All of it is delivered, but for what the receipt says."""
        self._receipt.holds_up = bool(self._outcome.caught or self._outcome.stopped)
        return self._receipt
