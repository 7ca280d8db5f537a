"""What a sink is: an executor half that takes changes and returns a receipt, a driver half that
commits receipts. Both are plain objects, so both can also run in one process.

A sink must not know where changes come from: not the source, not the log, not the run.

Life of a sink, on the driver unless said otherwise:

    open()                once, before anything else; again after a SinkError that time fixes
      its answer          where to go on from; the sink's own position is the truth
    worker()              for each batch; what it returns is pickled and sent to the executors
      begin(), take() …   on an executor, in slice order; may run twice for the same slices
      finish()            on an executor; the receipt travels back
    commit()              for each batch, in order, at most once for a position; either all of the
                          batch is delivered and the position moves, or nothing has happened
    commit_shapes()       the same, for a transaction in which tables change their shape
    idle()                again and again between batches, when there is nothing to deliver
    close()               once, whatever happened before
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from penstock.errors import PenstockError, error_classes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from penstock.changes.decode import Piece
    from penstock.lsn import Lsn
    from penstock.sinks.ddl_transaction import DdlTransaction, RunJob
    from penstock.sinks.tables import SinkTables
    from penstock.table import TableName


@dataclass(frozen=True)
class RefusedTable:
    """A table that a task could not do; the others of the task are done. Errors do not travel, text does."""

    table: TableName
    code: str
    what: str
    where: str
    do: str

    @classmethod
    def of(cls, table: TableName, error: PenstockError) -> RefusedTable:
        """A table, and why."""
        return cls(table, error.code, error.what, error.where, error.do)

    @property
    def error(self) -> PenstockError:
        """Why."""
        return error_classes()[self.code](self.what, self.where, self.do)


@dataclass
class Receipt:
    """What a task has done and where it left it. Small: it travels through the driver.

    `refused` are tables that no modifier could be applied to: they stop, and nothing of the batch's is delivered.
    """

    task: int
    change_count: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    content: Any = None
    refused: list[RefusedTable] = field(default_factory=list)
    # Some of it is not delivered: what comes next is not to begin before the driver knows of that.
    holds_up: bool = False
    # For those who watch: when the task began, what it read and handed over.
    began_at: float = 0.0
    rows: dict[tuple[TableName, str], int] = field(default_factory=dict)
    read_bytes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Batch:
    """A run of whole transactions: everything after `after_lsn` up to `end_lsn`."""

    number: int
    after_lsn: Lsn
    end_lsn: Lsn
    committed_at: (
        int  # of the last commit in it, microseconds since 2000-01-01; 0 when there is none
    )
    tables: frozenset[TableName]
    detached: frozenset[TableName] = (
        frozenset()
    )  # those of them that are detached, by their names here
    copies_first: bool = False  # whether a table that nobody knows yet is to be copied first


@dataclass(frozen=True)
class StoredPosition:
    """How far a sink has got, and in which source: cluster, database, slot, its generation."""

    delivered_lsn: Lsn
    identity: dict[str, str]


class TaskHalf(Protocol):
    """Takes the changes of one task, in order."""

    def prepare(self, pieces: Sequence[Piece]) -> Any:
        """What `take` is to be given, of the changes of a few slices. In the order of their slices, in a thread of its own,
        while what was prepared before is taken.
        """

    def take(self, work: Any) -> None:
        """Take what was prepared."""

    def finish(self) -> Receipt:
        """Everything taken is where `commit` will find it."""


class Worker(Protocol):
    """The executor half, as it is sent to the executors: picklable, and without open connections."""

    def begin(self, task: int) -> TaskHalf:
        """Start the work of one task."""


@runtime_checkable
class SharingWorker(Worker, Protocol):
    """An executor half whose every task takes all slices of a batch, and does its own share of them."""

    def shared_among(self, count: int) -> SharingWorker:
        """The same for so many tasks, numbered from 0."""


class Sink(Protocol):
    """The driver half."""

    name: str
    change_count: int  # delivered since the beginning, as far as the sink remembers
    tables: SinkTables  # how they stand, and the steps of their lives
    batch_bytes: int  # how much a batch may hold before latency suffers

    def open(self) -> StoredPosition | None:
        """Reach the destination and claim it; where to go on from, None before the first `begin`.

        Raises:
            SinkError: or one of its kinds.
            SecondInstance: another process delivers this pipeline there.
        """

    def begin(self, identity: Mapping[str, str], lsn: Lsn) -> None:
        """Store the first position, of a source known by `identity`."""

    def refresh_tables(self, lsn: Lsn) -> None:
        """See again how tables stand: others copy them, and people ask for things.

        A table that is to be copied again is detached at `lsn`, the sink's position. Never during a
        `commit`.

        Raises:
            SinkError: `open` and go on from the position.
        """

    def worker(self, batch: Batch, only: Collection[TableName] | None = None) -> Worker:
        """The executor half for this batch; `only` restricts it to tables that catch up."""

    def commit(self, batch: Batch, receipts: Sequence[Receipt]) -> None:
        """Deliver what the receipts stand for, and move the position, as one.

        Raises:
            SinkError: nothing has happened; `open` and go on from the position.
        """

    def commit_shapes(
        self,
        batch: Batch,
        ddl_transaction: DdlTransaction,
        run_job: RunJob,
        only: Collection[TableName] | None = None,
    ) -> dict[TableName, TableName]:
        """Deliver a transaction that changes the shape of tables, and move the position, as one.

        Args:
            run_job: has a worker take the rows of a part, and returns the receipts.
            only: tables that catch up, as in `commit_detached`; None: those that flow.

        Returns:
            What tables were called before it, and are called now.

        Raises:
            SinkError: nothing has happened; `open` and go on from the position.
        """

    def commit_detached(
        self, tables: Collection[TableName], batch: Batch, receipts: Sequence[Receipt]
    ) -> None:
        """Deliver the changes of tables that catch up, up to `batch.end_lsn`, and move their position.

        All of them stand at `batch.after_lsn`. One that is refused fails, or stays so, and stays there.

        Raises:
            SinkError: nothing has happened.
        """

    def idle(self) -> None:
        """Do what is due without a new batch; called every few milliseconds while none is under way.

        In the thread that calls `open` and `close`, never during a `commit`; cheap when nothing is due.

        Raises:
            SinkError: `open` and go on from the position.
        """

    def interrupt(self) -> None:
        """Cancel a commit that takes too long; called from another thread, changes nothing."""

    def close(self) -> None:
        """Let go of everything."""


@runtime_checkable
class HandingOn(Protocol):
    """A driver half that may send on what it has committed, at the receivers' pace."""

    def pause(self) -> None:
        """Begin nothing by itself until `resume`; between commits, also before `open`."""

    def resume(self) -> None:
        """Go on."""

    def has_handed_on(self) -> bool:
        """Whether that is done, as far as it can be now; from another thread."""

    def take_retries(self) -> int:
        """How many attempts it has made there after an error that time fixes, since it was last asked."""
