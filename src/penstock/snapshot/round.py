"""One round of copying: some tables, one snapshot, one Spark job at a time, on the driver.

A range that has arrived is never copied again in its round, whatever fails around it. When the
snapshot itself is lost, the tables that were not finished begin again in another round.
"""

from __future__ import annotations

import logging
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.errors import (
    PenstockError,
    SnapshotGone,
    SourceError,
    TableMissing,
    TableRewritten,
    TableUnreadable,
    error_classes,
)
from penstock.failpoints import fault_point
from penstock.modifiers.copies import modified_copies, modified_shapes
from penstock.retry import BackOff, is_temporary
from penstock.sinks.copying import Arrived, Copy, CopyLost, CopyOrder, CopySuperseded
from penstock.snapshot.ranges import cut, share_out
from penstock.snapshot.task import CopyWork, TableLeft, copy_ranges
from penstock.source.connect import connect_source, role_of
from penstock.source.exported import ExportedSnapshot
from penstock.source.heaps import read_heaps
from penstock.source.server import emit_mark
from penstock.source.shapes import (
    locked_by_others,
    oids_of,
    read_named_shapes,
    waiting_little,
)
from penstock.source.structure import structures_of
from penstock.spark.jobs import run_tasks
from penstock.timing import timing

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import psycopg

    from penstock.lsn import Lsn
    from penstock.modifiers.copies import ModifiedCopy
    from penstock.modifiers.former_parts import FormerParts
    from penstock.modifiers.modifier import Modifiers
    from penstock.schema.description import TableStructure
    from penstock.schema.shape import TableShape
    from penstock.sinks.copying import Copying, RangeWriter
    from penstock.snapshot.ranges import PageRange
    from penstock.snapshot.task import TableFailure
    from penstock.source.heaps import HeapSize
    from penstock.source.options import SourceOptions
    from penstock.spark.session import Spark
    from penstock.table import TableName

    Connection = psycopg.Connection[Any]

_log = logging.getLogger(__name__)

# Among many tables a check takes its time: it gets this part of it.
_CHECK_SHARE = 0.25
# Small tables are finished together: a transaction costs what it costs.
_FINISHED_TOGETHER = 50
_FINISHED_BYTES = 8 * 1024 * 1024
# Each key, index and constraint holds a lock until the transaction ends.
_FINISHED_PIECES = 200


@dataclass(frozen=True)
class RoundProgress:
    """How far a round has got. Bytes are those of the source's pages.

    Once tables stream there is no round any more, but keys that lead from one to another: then
    `table_count` is 0, and `keys_due` says of how many tables they are.
    """

    table_count: int = 0
    tables_begun: int = 0  # made room for
    tables_done: int = 0
    tables_failed: int = 0
    range_count: int = 0
    ranges_done: int = 0
    row_count: int = 0
    bytes_total: int = 0
    bytes_done: int = 0
    is_prepared: bool = False  # room is made, and the number of bytes is known
    transfer_seconds: float = 0.0
    keys_due: int = 0
    keys_made: int = 0


@dataclass
class _Table:
    """One table on its way."""

    order: CopyOrder
    ranges: list[PageRange]
    arrived: Arrived = field(default_factory=Arrived)
    finishing: Future[Mapping[TableName, Exception]] | None = None  # of some tables
    is_done: bool = False
    has_failed: bool = False

    @property
    def missing(self) -> list[PageRange]:
        """Ranges that have not arrived."""
        return [each for each in self.ranges if each.number not in self.arrived.ranges]


class Round:
    """Copies some tables, and lets each catch up as soon as it is whole."""

    def __init__(
        self,
        spark: Spark,
        copying: Copying,
        source: SourceOptions,
        tables: Mapping[TableName, int],
        stop: threading.Event,
        on_change: Callable[[], None],
        modifiers: Modifiers | None = None,
        former_parts: FormerParts | None = None,
    ) -> None:
        self.tables = frozenset(tables)
        self._modifiers = modifiers
        self._former_parts = former_parts
        self._modified: dict[TableName, ModifiedCopy] = {}
        self._unfit: dict[TableName, PenstockError] = {}  # tables that their rules do not fit
        self._oids = tables
        self.progress = RoundProgress(table_count=len(self.tables))
        self._spark = spark
        self._copying = copying
        self._source = source
        self._dsn = source.snapshot.url or source.url
        self._stop = stop
        self._on_change = on_change
        self._parallel = source.snapshot.parallel or spark.parallel
        self._on_the_way: dict[TableName, _Table] = {}
        self._writers: Mapping[TableName, RangeWriter] = {}
        self._ended_early: set[TableName] = set()  # failed, or not this round's any more
        self._begun: Copy | None = None
        self._began = self._transfer_began = time.monotonic()
        self._check_seconds = 0.0

    @property
    def unfinished(self) -> list[TableName]:
        """Tables that are neither done nor failed."""
        ended = {n for n, table in self._on_the_way.items() if table.is_done or table.has_failed}
        return sorted(self.tables - ended - self._ended_early)

    def fail(self, table: TableName, error: PenstockError) -> None:
        """Record at the sink that a table of this round is not copied."""
        self._copying.fail(table, error, self._begun)

    def run(self) -> None:
        """Copy until every table is done or failed, the snapshot is lost, or it is asked to stop.

        Raises:
            PenstockError: the round could not begin, or cannot go on; what arrived stays.
        """
        primary = None if self._source.snapshot.url is None else self._source.url
        snapshot = ExportedSnapshot.take(self._dsn, self._stop, primary)
        # So that an idle source, too, soon has something after the snapshot's position.
        emit_mark(self._source.url, "copying")
        fault_point("copy.after_snapshot")
        copy = Copy(uuid.uuid4().hex, snapshot.lsn, snapshot.taken_at)
        try:
            self._prepare(copy, snapshot)
            _log.info(
                "copying %d tables, %.1f MB, as of %s",
                len(self._on_the_way),
                self.progress.bytes_total / 1e6,
                snapshot.lsn,
            )
            with ThreadPoolExecutor(self._parallel + 1, "copy") as pool:
                try:
                    self._copy_all(pool, snapshot, copy)
                finally:
                    # Tables whose turn to be finished has not come begin again in another round.
                    pool.shutdown(wait=False, cancel_futures=True)
        finally:
            snapshot.close()
        self._report_end()

    def _modify(self, shapes: dict[TableName, TableShape], lsn: Lsn) -> dict[TableName, TableShape]:
        """The shapes that rows have once modifiers have seen them."""
        if self._modifiers is None:
            return shapes
        self._modified, unfit = modified_copies(self._modifiers, shapes, lsn)
        seen, more = modified_shapes(self._modifiers, shapes)
        self._unfit = unfit | more
        if self._former_parts is not None:
            self._unfit |= self._former_parts.unfit(shapes)
        return seen

    def _still_there(
        self, name: TableName, shape: TableShape | None, own: Sequence[HeapSize], lsn: Lsn
    ) -> TableShape | None:
        """The shape of a table that can be copied under the snapshot; None, and what becomes of it."""
        if self._oids[name] and (shape is None or shape.id != self._oids[name]):
            self._postpone(name, lsn)
            return None
        # One that is partitioned may have no partition yet, and so nothing to copy.
        if shape is None or (not own and shape.kind != "p"):
            gone = TableMissing("the source has no such table", str(name), "fix `tables:`")
            self._fail(name, gone)
            return None
        dropped = [str(heap.relation) for heap in own if heap.is_gone]
        if dropped:
            self._begin_again(name, f"{', '.join(dropped)} was dropped after the snapshot")
            return None
        return shape

    def _read(
        self, connection: Connection, names: list[TableName]
    ) -> tuple[list[HeapSize], dict[TableName, TableShape]]:
        """What the tables are, but for those that somebody has locked: they fail, and are tried again."""
        left = names
        while True:
            oids = oids_of(connection, left)
            try:
                with waiting_little(connection, oids):
                    return read_heaps(connection, left), read_named_shapes(connection, left)
            except SourceError:
                locked = locked_by_others(connection, oids)
                if not locked:
                    raise
                for name, error in locked.items():
                    self._fail(name, error)
                left = [name for name in left if name not in locked]

    def _prepare(self, copy: Copy, snapshot: ExportedSnapshot) -> None:
        """Read the tables' shapes, cut them into ranges, make room at the sink."""
        names = sorted(self.tables)
        with (
            connect_source(self._dsn, "penstock copies") as connection,
            snapshot.seen_by(connection),
        ):
            role = role_of(connection)
            heaps, found = self._read(connection, names)
            names = [name for name in names if name not in self._ended_early]
            shapes = self._modify(found, snapshot.lsn)
            structures = structures_of(connection, shapes.values())
        by_table: dict[TableName, list[HeapSize]] = {}
        for heap in heaps:
            by_table.setdefault(heap.table, []).append(heap)
        for name in names:
            own = by_table.get(name, [])
            if name in self._unfit:
                self._fail(name, self._unfit[name])
                continue
            shape = self._still_there(name, shapes.get(name), own, snapshot.lsn)
            if shape is None:
                continue
            unreadable = _unreadable(own, role)
            if unreadable is not None:
                self._fail(name, unreadable)
                continue
            ranges = cut(name, own)
            order = self._order(name, shape, structures[name], len(ranges))
            self._on_the_way[name] = _Table(order, ranges)
        orders = [table.order for table in self._on_the_way.values()]
        self._writers, failures = self._copying.begin(copy, orders, self._note_begun)
        self._begun = copy
        for name, error in failures.items():
            self._fail(name, error)
        for name in set(self._on_the_way) - set(self._writers) - set(failures):
            self._leave(name)  # removed meanwhile
        self._transfer_began = time.monotonic()
        self._note_progress()
        self._on_change()

    def _order(
        self, name: TableName, shape: TableShape, structure: TableStructure, range_count: int
    ) -> CopyOrder:
        """What the sink is asked for, also where rows are changed on their way."""
        modified = self._modified.get(name)
        if modified is None:
            return CopyOrder(name, shape, structure, range_count)
        return CopyOrder(
            name,
            shape,
            structure,
            range_count,
            as_text=not modified.is_whole,
            injected=modified.injected,
        )

    def _copy_all(self, pool: ThreadPoolExecutor, snapshot: ExportedSnapshot, copy: Copy) -> None:
        back_off = BackOff()
        while not self._stop.is_set():
            try:
                self._poll(pool, copy)
                missing = self._missing()
                if missing:
                    self._run_job(pool, snapshot, copy, missing)
                elif any(table.finishing for table in self._on_the_way.values()):
                    self._stop.wait(self._pause(timing().round_poll_seconds / 5))
                else:
                    return
                back_off.succeed()
            except SnapshotGone:
                raise
            except PenstockError as error:
                if not is_temporary(error):
                    self._fail_all(error)
                    return
                if self._missing() and not snapshot.is_alive:
                    raise SnapshotGone(
                        "the snapshot's connection is lost",
                        str(self._dsn),
                        "nothing; the tables that were not finished begin again",
                    ) from None
                seconds = back_off.next_seconds()
                _log.warning(
                    "copying: %s (next attempt in %.1f s)", str(error).splitlines()[0], seconds
                )
                self._stop.wait(seconds)

    def _missing(self) -> list[PageRange]:
        """Ranges that are still to come, in the order they are wanted."""
        # Small tables first: most of them flow soon, and large ones keep all tasks busy to the end.
        waiting = [
            table
            for table in self._on_the_way.values()
            if not table.is_done and not table.has_failed and table.finishing is None
        ]
        waiting.sort(key=lambda table: sum(each.byte_count for each in table.ranges))
        return [each for table in waiting for each in table.missing]

    def _run_job(
        self,
        pool: ThreadPoolExecutor,
        snapshot: ExportedSnapshot,
        copy: Copy,
        missing: list[PageRange],
    ) -> None:
        """One Spark job over all ranges that are missing; tables are finished while it runs."""
        limit = self._source.snapshot.max_rows_per_second
        tasks = share_out(missing)
        count = min(self._parallel, len(tasks))
        work = CopyWork(
            self._dsn,
            snapshot.name,
            self._writers,
            {
                name: self._modified[name].key_columns
                if name in self._modified
                else table.order.shape.key_columns
                for name, table in self._on_the_way.items()
            },
            None if limit is None else limit / count,
            self._modified,
        )
        # Dealt out like cards, so that all tasks end at about the same time.
        dealt = [tasks[first::count] for first in range(count)]
        job = pool.submit(run_tasks, self._spark, partial(_copy_dealt, work), dealt, copy.copy_id)
        try:
            while not job.done():
                if self._stop.wait(self._pause(timing().round_poll_seconds)):
                    return
                self._poll(pool, copy)
        finally:
            # Also when the sink went away during the check: two jobs would copy the same ranges.
            self._end_job(job, copy)
        for ended in job.result():
            if isinstance(ended, TableLeft):
                self._leave(ended.table)
            else:
                self._fail(ended.table, _error_of(ended))
        self._poll(pool, copy)

    def _end_job(self, job: Future[list[TableFailure | TableLeft]], copy: Copy) -> None:
        """See that a job is over: it may be about to begin, where there is nothing to cancel yet."""
        job.cancel()
        while not job.done():
            self._spark.cancel(copy.copy_id)
            wait([job], timing().round_poll_seconds)

    def _poll(self, pool: ThreadPoolExecutor, copy: Copy) -> None:
        """See what has arrived, and finish the tables that are whole."""
        began = time.monotonic()
        arrived = self._copying.arrived(copy)
        whole: list[_Table] = []
        has_ended = False
        for name, table in list(self._on_the_way.items()):
            if table.finishing is not None and table.finishing.done():
                self._take_end(name, table)
                has_ended = True
            if table.has_failed or table.is_done or name not in self._on_the_way:
                continue
            if table.finishing is not None:
                continue  # what it had is recorded elsewhere once it is finished
            table.arrived = arrived.get(name, Arrived())
            if not table.missing:
                whole.append(table)
        self._finish(pool, copy, whole)
        if has_ended:
            self._on_change()
        self._note_progress()
        self._check_seconds = time.monotonic() - began

    def _finish(self, pool: ThreadPoolExecutor, copy: Copy, whole: list[_Table]) -> None:
        """Begin to finish tables of which all has arrived."""
        for group in _groups(whole):
            orders = [table.order for table in group]
            future = pool.submit(self._copying.finish, orders, copy)
            for table in group:
                table.finishing = future

    def _pause(self, seconds: float) -> float:
        """How long to wait between two checks."""
        return max(seconds, self._check_seconds * (1 / _CHECK_SHARE - 1))

    def _take_end(self, name: TableName, table: _Table) -> None:
        assert table.finishing is not None
        error = table.finishing.exception()
        if error is None:
            error = table.finishing.result().get(name)
        table.finishing = None
        if error is None:
            table.is_done = True
        elif isinstance(error, CopySuperseded):
            self._leave(name)
        elif isinstance(error, CopyLost):
            self._begin_again(name, error.what)
        elif not isinstance(error, PenstockError):
            raise error
        elif is_temporary(error):
            _log.warning("%s: %s", name, str(error).splitlines()[0])  # the next poll tries again
        else:
            self._fail(name, error)

    def _fail(self, name: TableName, error: PenstockError) -> None:
        if isinstance(error, TableRewritten):
            self._begin_again(name, error.what)
            return
        if name in self._on_the_way:
            self._on_the_way[name].has_failed = True
        else:
            self._ended_early.add(name)
        _log.error("%s is not copied, the other tables go on: %s", name, error)
        self.fail(name, error)
        self.progress = replace(self.progress, tables_failed=self.progress.tables_failed + 1)
        self._on_change()

    def _begin_again(self, name: TableName, why: str) -> None:
        """Have a table wait for another snapshot."""
        self._on_the_way.pop(name, None)
        self._ended_early.add(name)
        _log.info("%s begins again: %s", name, why)
        self._copying.begin_again(name, self._begun)

    def _postpone(self, name: TableName, lsn: Lsn) -> None:
        """Have a table wait until the stream has reported under which name it is found, if at all."""
        self._ended_early.add(name)
        _log.info("%s waits: it was renamed or dropped before the snapshot at %s", name, lsn)
        self._copying.postpone(name, lsn)
        self._on_change()

    def _leave(self, name: TableName) -> None:
        """A table is whole already, was removed, or scheduled or begun anew: this round has nothing to say of it."""
        if self._on_the_way.pop(name, None) is not None:
            # The answer to its COMMIT may have been lost: then it is whole.
            _log.info("%s leaves this copy: it is whole, was removed, or begins anew", name)
        self._ended_early.add(name)
        self._on_change()

    def _fail_all(self, error: PenstockError) -> None:
        for name, table in self._on_the_way.items():
            if not table.is_done and not table.has_failed:
                self._fail(name, error)

    def _note_begun(self, count: int) -> None:
        self.progress = replace(self.progress, tables_begun=count)

    def _note_progress(self) -> None:
        tables = list(self._on_the_way.values())
        self.progress = replace(
            self.progress,
            tables_done=sum(table.is_done for table in tables),
            range_count=sum(len(table.ranges) for table in tables),
            ranges_done=sum(len(table.arrived.ranges) for table in tables),
            row_count=sum(table.arrived.row_count for table in tables),
            bytes_total=sum(each.byte_count for table in tables for each in table.ranges),
            bytes_done=sum(
                each.byte_count
                for table in tables
                for each in table.ranges
                if each.number in table.arrived.ranges
            ),
            is_prepared=True,
            transfer_seconds=time.monotonic() - self._transfer_began,
        )

    def _report_end(self) -> None:
        so_far = self.progress
        _log.info(
            "copied %d tables, %d rows, %.1f MB in %.1f s",
            so_far.tables_done,
            so_far.row_count,
            so_far.bytes_done / 1e6,
            time.monotonic() - self._began,
        )


def _groups(tables: Iterable[_Table]) -> Iterator[list[_Table]]:
    """Small tables together, large ones alone."""
    small: list[_Table] = []
    size = count = 0
    for table in tables:
        byte_count = sum(each.byte_count for each in table.ranges)
        if byte_count > _FINISHED_BYTES:
            yield [table]
            continue
        structure = table.order.structure
        pieces = 1 + len(structure.indexes) + len(structure.constraints)
        is_full = size + byte_count > _FINISHED_BYTES or count + pieces > _FINISHED_PIECES
        if small and (is_full or len(small) == _FINISHED_TOGETHER):
            yield small
            small, size, count = [], 0, 0
        small.append(table)
        size += byte_count
        count += pieces
    if small:
        yield small


def _copy_dealt(
    work: CopyWork, dealt: Iterable[list[list[PageRange]]]
) -> Iterator[TableFailure | TableLeft]:
    """Runs in a Spark task."""
    for hand in dealt:
        yield from copy_ranges(work, iter(hand))


def _unreadable(heaps: list[HeapSize], role: str) -> TableUnreadable | None:
    for heap in heaps:
        if heap.kind != "r":
            return TableUnreadable(
                f"{heap.relation} holds no rows of its own ({heap.kind!r}), wanted a table",
                str(heap.table),
                "exclude the table, or follow its partitions one by one",
            )
        if not heap.is_readable:
            return TableUnreadable(
                f"role {role} may not read {heap.relation}",
                str(heap.table),
                f"GRANT SELECT ON {heap.relation} TO {role}; the copy is tried again by itself",
            )
    return None


def _error_of(failure: TableFailure) -> PenstockError:
    return error_classes()[failure.code](failure.what, failure.where, failure.do)
