"""Copies into sinks of documents: tasks write documents to part files, one for each range; when all
ranges of a table are there, the delivering loop publishes them (`driver`).

Nothing is delivered from here: a copy that does not finish leaves no document.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.changes.copyrows import parse_rows
from penstock.changes.envelope import Origin
from penstock.changes.pgoutput import Relation, relation_of
from penstock.encryption import NO_KEYS, Keyring
from penstock.errors import PenstockError, SinkError, SinkPrivilegeMissing, TableMissing
from penstock.failpoints import fault_point
from penstock.sinks.copying import Arrived
from penstock.sinks.documents.copies import COPIED, Copies, TableCopy, part_name
from penstock.sinks.documents.format import JSON_FORMAT, CopiedAt, DocumentFormat
from penstock.sinks.documents.parts import PartWriter, message_of
from penstock.sinks.durable import cannot_use
from penstock.sinks.tables import TableState
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from penstock.lsn import Lsn
    from penstock.sinks.copying import Copy, CopyOrder
    from penstock.sinks.documents.copies import CopyPart
    from penstock.sinks.documents.position import KeptTable, PositionFile
    from penstock.table import TableName

# So many bytes of rows become documents at once: Arrow's cost per call is the same for one row.
_BLOCK_BYTES = 2 * 1024 * 1024

# Ordinals of a range begin at its number times this: no range has so many rows, and up to two million
# ranges all are whole numbers that every JSON parser reads exactly.
ORDINALS_PER_RANGE = 1 << 32


@dataclass(frozen=True)
class DocumentRangeWriter:
    """What the executors are sent for one table."""

    directory: str
    relation: Relation
    commit_lsn: int
    source: str
    copy_id: str
    keyring: Keyring = NO_KEYS
    format: DocumentFormat = JSON_FORMAT
    database: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that the stream brings."""
        return tuple(column.name for column in self.relation.columns)

    @property
    def literals(self) -> tuple[tuple[str, str], ...]:
        """None: documents say by themselves where they are from."""
        return ()

    @property
    def is_binary(self) -> bool:
        """Never: documents are made of text."""
        return False

    def begin(self, number: int) -> DocumentRange:
        """Begin a range.

        Raises:
            SinkPrivilegeMissing: this machine does not see the directory that the driver made.
        """
        if not Path(self.directory).exists():
            raise SinkPrivilegeMissing(
                "a task does not see the directory that the driver has made",
                self.directory,
                "choose a directory that the driver and all executors share",
            )
        return DocumentRange(self, number)


class DocumentRange:
    """One range, one part file."""

    def __init__(self, writer: DocumentRangeWriter, number: int) -> None:
        self._writer = writer
        self._number = number
        self._part = PartWriter(writer.directory, f"unfinished-{number}-", writer.keyring)
        self._rows: list[bytes | memoryview] = []
        self._waiting_bytes = 0
        self._row_count = 0

    def write(self, rows: Sequence[bytes | memoryview]) -> None:
        """Turn rows into documents, many at once."""
        self._rows += rows
        self._waiting_bytes += sum(map(len, rows))
        if self._waiting_bytes >= _BLOCK_BYTES:
            self._flush()

    def finish(self) -> None:
        """Make the part durable, under the name by which it counts."""
        self._flush()
        fault_point("copy.inside_range")
        self._part.finish_as(part_name(self._number, self._row_count, self._part.size))
        fault_point("copy.after_range")

    def abort(self) -> None:
        """Leave nothing."""
        self._part.discard()

    def _flush(self) -> None:
        writer = self._writer
        rows = parse_rows(b"".join(self._rows), len(writer.relation.columns))
        first_ordinal = self._number * ORDINALS_PER_RANGE + self._row_count
        batch = writer.format.copied(
            writer.relation,
            rows,
            Origin(writer.source, writer.database),
            CopiedAt(writer.commit_lsn, first_ordinal, writer.copy_id),
        )
        if len(batch):
            self._part.write(message_of(batch))
        self._row_count += len(rows)
        self._rows, self._waiting_bytes = [], 0


class DocumentCopying:
    """The driver half. Called from several threads: rounds, and tables that are finished."""

    def __init__(
        self,
        position: PositionFile,
        copies: Copies,
        source: str,
        keyring: Keyring = NO_KEYS,
        form: DocumentFormat = JSON_FORMAT,
    ) -> None:
        self._keyring = keyring
        self._position = position
        self._copies = copies
        self._source = source
        self._format = form
        self._lock = threading.RLock()
        self._claim: int | None = None
        self._under_way: dict[TableName, TableCopy] = {}

    def open(self) -> None:
        """See that the position can be read; it may not be there yet."""
        with self._guarded():
            self._position.read()

    def claim(self) -> bool:
        """Hold the directory of copies."""
        with self._guarded():
            if self._claim is None:
                self._claim = self._copies.try_lock()
            return self._claim is not None

    def release(self) -> None:
        """Let another process copy; what is under way here is over."""
        with self._guarded():
            for copy in self._under_way.values():
                self._copies.remove(copy)
            self._under_way.clear()
            if self._claim is not None:
                os.close(self._claim)
                self._claim = None

    def due(self) -> dict[TableName, int]:
        """Tables that are pending in the position file, but for those that wait to be published."""
        with self._guarded():
            waiting = self._waiting()
            if self._copies.path.exists() and self.claim():
                self._tidy(waiting)
            known = self._copies.read()
            return {
                table: kept.oid
                for table, kept in sorted(waiting.items())
                if _is_due(kept, known.get(table))
            }

    def _tidy(self, waiting: dict[TableName, KeptTable]) -> None:
        """Remove copies that were delivered, are not wanted any more, or were left by the killed."""
        known = self._copies.read()
        wanted = {
            table: copy
            for table, copy in known.items()
            # One that failed is remembered for how often it did.
            if table in waiting
            and (copy.state == TableState.FAILED or waiting[table].schedule_id == copy.schedule_id)
        }
        if len(wanted) != len(known):
            self._copies.write(wanted.values())
        whole = [copy for copy in wanted.values() if copy.state == COPIED]
        # One that is not wanted any more stays until its round has ended: its tasks still write.
        self._copies.remove_others([*whole, *self._under_way.values()])

    def begin(
        self,
        copy: Copy,
        orders: Sequence[CopyOrder],
        on_begun: Callable[[int], None] = lambda _: None,
    ) -> tuple[dict[TableName, DocumentRangeWriter], dict[TableName, PenstockError]]:
        """Make a directory for each table that still waits."""
        writers: dict[TableName, DocumentRangeWriter] = {}
        with self._guarded():
            waiting, known = self._waiting(), self._copies.read()
            kept = self._position.read()
            database = kept.identity.get("database", "") if kept is not None else ""
            for number, order in enumerate(orders):
                table = order.table
                if table not in waiting:
                    continue
                schedule_id = waiting[table].schedule_id
                begun = TableCopy(
                    table,
                    schedule_id,
                    TableState.COPYING,
                    copy.copy_id,
                    copy.lsn,
                    number,
                    order.range_count,
                    attempts=known[table].attempts if table in known else 0,
                )
                if table in self._under_way:
                    self._copies.remove(self._under_way[table])
                self._under_way[table] = known[table] = begun
                writers[table] = DocumentRangeWriter(
                    str(self._copies.make_room(begun)),
                    order.injected or relation_of(order.shape),
                    int(copy.lsn),
                    self._source,
                    copy.copy_id,
                    self._keyring,
                    self._format,
                    database,
                )
            self._copies.write(known.values())
        on_begun(len(writers))
        return writers, {}

    def arrived(self, copy: Copy) -> dict[TableName, Arrived]:
        """What lies in the directories."""
        with self._guarded():
            found = {}
            for table, begun in self._under_way.items():
                if begun.copy_id == copy.copy_id:
                    found[table] = _arrived(self._copies.parts(begun).values())
            return found

    def finish(self, orders: Sequence[CopyOrder], copy: Copy) -> dict[TableName, Exception]:
        """Note that copies are whole; from here on they are the delivering loop's."""
        for _ in orders:
            fault_point("copy.before_finish")
        failures: dict[TableName, Exception] = {}
        whole: dict[TableName, TableCopy] = {}
        with self._guarded():
            waiting = self._waiting()
            for order in orders:
                table, begun = order.table, self._under_way.get(order.table)
                if begun is None or begun.copy_id != copy.copy_id:
                    continue  # begun anew
                if table not in waiting or waiting[table].schedule_id != begun.schedule_id:
                    self._forget(table)  # removed, or scheduled anew, meanwhile
                    continue
                sealed = replace(begun, state=COPIED, attempts=0)
                parts = self._copies.parts(begun) or self._copies.parts(sealed)
                if len(parts) != begun.range_count:
                    failures[table] = SinkError(
                        f"{len(parts)} ranges of documents are there, wanted {begun.range_count}",
                        str(self._copies.path),
                        "nothing, penstock tries again",
                    )
                    continue
                self._copies.seal(begun, sealed)
                whole[table] = sealed
            self._copies.write((self._copies.read() | whole).values())
            for table in whole:
                del self._under_way[table]
        for _ in orders:
            fault_point("copy.after_finish")
        return failures

    def fail(self, table: TableName, error: PenstockError, copy: Copy | None = None) -> None:
        """Record why; there is another attempt later."""
        with self._guarded():
            if self._is_of_another(table, copy):
                return
            self._forget(table)
            kept = self._waiting().get(table)
            if kept is None or not self.claim():
                return
            before = self._copies.read().get(table)
            attempts = before.attempts if before is not None else 0
            wait = min(
                timing().copy_retry_first_seconds * 2 ** min(attempts, 10),
                timing().copy_retry_last_seconds,
            )
            self._note(
                TableCopy(
                    table,
                    kept.schedule_id,
                    TableState.FAILED,
                    error=str(error),
                    attempts=attempts + 1,
                    retry_at=time.time() + wait,
                )
            )

    def postpone(self, table: TableName, lsn: Lsn) -> None:
        """Try again later: only who delivers writes positions."""
        self.fail(
            table,
            TableMissing(
                "the source has no such table any more",
                str(table),
                f"nothing; the stream reports by {lsn} what became of it",
            ),
        )

    def under_way(self) -> dict[TableName, tuple[Arrived, int]]:
        """For observers: what has arrived of each copy, and of how many ranges it is."""
        with self._guarded():
            return {
                table: (_arrived(self._copies.parts(copy).values()), copy.range_count)
                for table, copy in self._copies.read().items()
                if copy.state in (TableState.COPYING, COPIED)
            }

    def asked(self) -> set[TableName]:
        """Tables that somebody wants copied again, and nobody has begun with."""
        with self._guarded():
            return {table for tables in self._copies.asked().values() for table in tables}

    @property
    def is_review_due(self) -> bool:
        """Notes are on partitions alone, which nobody can make."""
        return False

    def after_attach(self, on_made: Callable[[int, int], None] = lambda _made, _due: None) -> bool:
        """Nothing waits until tables stream."""
        del on_made
        return False

    def begin_again(self, table: TableName, copy: Copy | None = None) -> None:
        """Forget what there is of it; it is still pending in the position file."""
        with self._guarded():
            if self._is_of_another(table, copy):
                return
            self._forget(table)
            known = self._copies.read()
            if known.pop(table, None) is not None:
                self._copies.write(known.values())

    def ask(self, tables: Collection[TableName]) -> list[TableName]:
        """Ask for tables to be copied again; those that are known, and so will be.

        From any process. The delivering loop finds the request, now or when it runs again.

        Raises:
            SinkError: the sink's directory cannot be written.
        """
        with self._guarded():
            kept = self._position.read()
            known = [table for table in tables if kept is not None and table in kept.tables]
            if known:
                self._copies.ask(known)
            return known

    def ask_under(self, names: Collection[TableName]) -> bool:
        """Ask for one table that is just being renamed, under all its names; whether it is known by one of them.

        Which one it has when the request is read depends on whether the rename is stored by then.

        Raises:
            SinkError: the sink's directory cannot be written.
        """
        with self._guarded():
            kept = self._position.read()
            is_known = kept is not None and any(name in kept.tables for name in names)
            if is_known:
                self._copies.ask(names)
            return is_known

    def interrupt(self) -> None:
        """Nothing here takes long: a copy is finished by a rename."""

    def close(self) -> None:
        """Remove what is not whole, and let go of the directory."""
        self.release()

    def _waiting(self) -> dict[TableName, KeptTable]:
        kept = self._position.read()
        if kept is None:
            return {}  # nobody has delivered anything yet
        return {table: kept.tables[table] for table in kept.in_state(TableState.PENDING)}

    def _is_of_another(self, table: TableName, copy: Copy | None) -> bool:
        begun = self._under_way.get(table)
        return copy is not None and begun is not None and begun.copy_id != copy.copy_id

    def _note(self, copy: TableCopy) -> None:
        self._copies.write((self._copies.read() | {copy.table: copy}).values())

    def _forget(self, table: TableName) -> None:
        begun = self._under_way.pop(table, None)
        if begun is not None:
            self._copies.remove(begun)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """One thread at a time; an error of the file system is a SinkError."""
        with self._lock:
            try:
                yield
            except OSError as error:
                raise cannot_use(error, self._copies.path) from None


def _arrived(parts: Collection[CopyPart]) -> Arrived:
    return Arrived(
        frozenset(part.number for part in parts),
        sum(part.row_count for part in parts),
        sum(part.size for part in parts),
    )


def _is_due(kept: KeptTable, copy: TableCopy | None) -> bool:
    if copy is None or copy.schedule_id != kept.schedule_id:
        return True
    # One that failed waits until the delivering loop schedules it anew.
    return copy.state not in (COPIED, TableState.FAILED)
