"""What one task of a copy does: ranges, one after the other, from the source into the sink."""

from __future__ import annotations

import itertools
import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg

from penstock.errors import (
    DecodeError,
    ModifierError,
    PenstockError,
    RowRefused,
    SnapshotGone,
    SourceError,
    TableRewritten,
    TableUnreadable,
)
from penstock.failpoints import fault_point
from penstock.sinks.copying import CopySuperseded, RangeRefused, RangeThere
from penstock.source.connect import classify_source_error
from penstock.source.copyout import SnapshotReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.dsn import Dsn
    from penstock.modifiers.copies import ModifiedCopy
    from penstock.sinks.copying import OpenRange, RangeWriter
    from penstock.snapshot.ranges import PageRange
    from penstock.table import TableName

# What is not one table's: the connection, the server's resources, a server that shuts down. All
# else is reported of the table, be it gone, altered, locked, damaged, or not readable by the role.
_CLASSES_OF_ALL = ("08", "25", "28", "40", "53", "57P", "58")
# No such table or column: another snapshot shows the table as it is by now, or that it is gone.
_STATES_OF_ANOTHER_SHAPE = ("42P01", "42703")
# Whose words name objects, never values.
_CLASSES_WITHOUT_VALUES = ("42", "55", "57")

# A rule costs something for each block, and little for each row of it.
_MODIFIED_BLOCK_BYTES = 2 << 20


@dataclass(frozen=True)
class CopyWork:
    """What the executors are sent: how to read the snapshot, and how to write each table."""

    dsn: Dsn = field(repr=False)
    snapshot: str
    writers: Mapping[TableName, RangeWriter]
    keys: dict[TableName, tuple[str, ...]]
    rows_per_second: float | None = None  # of one task
    modified: Mapping[TableName, ModifiedCopy] = field(default_factory=dict)


@dataclass(frozen=True)
class TableFailure:
    """A table that cannot be copied; the others of the task go on. Errors do not travel, text does."""

    table: TableName
    code: str
    what: str
    where: str
    do: str


@dataclass(frozen=True)
class TableLeft:
    """A table that is not this copy's any more; the others of the task go on."""

    table: TableName


def copy_ranges(
    work: CopyWork, tasks: Iterator[list[PageRange]]
) -> Iterator[TableFailure | TableLeft]:
    """Copy ranges; what is yielded are the tables that failed or were left. Runs in a Spark task.

    Raises:
        SnapshotGone: nothing more can be copied under it.
        PenstockError: a server is away.
    """
    ended: set[TableName] = set()
    reading = _Reading(work)
    with closing(reading):
        for each in itertools.chain.from_iterable(tasks):
            if each.table in ended:
                continue
            try:
                _copy_range(work, reading.reader_for(each), each)
            except RangeThere:
                continue
            except CopySuperseded:
                ended.add(each.table)
                yield TableLeft(each.table)
            except (RangeRefused, TableUnreadable, TableRewritten, ModifierError) as error:
                # In the middle of a COPY the connection is of no use any more.
                reading.close()
                shown = _blame(work, each, error) if isinstance(error, RangeRefused) else error
                ended.add(each.table)
                yield TableFailure(each.table, shown.code, shown.what, shown.where, shown.do)


class _Reading:
    """One connection for many ranges, made where it is needed."""

    def __init__(self, work: CopyWork) -> None:
        self._work = work
        self._reader: SnapshotReader | None = None
        self._relation: object = None

    def reader_for(self, each: PageRange) -> SnapshotReader:
        """One that holds no other table: who holds one and waits for another may be half of a user's deadlock."""
        if self._reader is None:
            self._reader = SnapshotReader(self._work.dsn, self._work.snapshot)
        elif self._relation != each.relation:
            self._reader.let_go()
        self._relation = each.relation
        return self._reader

    def close(self) -> None:
        """End it; the next range gets another."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def _copy_range(work: CopyWork, reader: SnapshotReader, each: PageRange) -> None:
    writer = work.writers[each.table]
    fault_point("copy.before_range")
    into = writer.begin(each.number)
    modified = work.modified.get(each.table)
    if modified is not None and not modified.is_whole:
        _copy_modified(work, reader, each, into, modified)
        return
    blocks = reader.blocks(
        each.relation,
        writer.columns,
        each.pages,
        is_binary=writer.is_binary,
        literals=writer.literals,
        condition="" if modified is None else modified.condition,
    )
    _write(work, each, into, blocks)
    into.finish()


def _copy_modified(
    work: CopyWork,
    reader: SnapshotReader,
    each: PageRange,
    into: OpenRange,
    modified: ModifiedCopy,
) -> None:
    writer = work.writers[each.table]
    change = modified.begin(writer.columns, writer.literals)
    blocks = reader.blocks(
        each.relation,
        modified.source_columns,
        each.pages,
        is_binary=False,
        condition=modified.condition,
        block_bytes=_MODIFIED_BLOCK_BYTES,
    )
    try:
        _write(work, each, into, blocks, change.rows)
        into.finish()
    except RangeRefused as error:
        # Who names the row by its key counts the source's rows.
        raise RangeRefused(error.what, error.do, change.source_row(error.line)) from None


def _write(
    work: CopyWork,
    each: PageRange,
    into: OpenRange,
    blocks: Iterator[list[memoryview]],
    change: Callable[[list[memoryview]], list[memoryview]] | None = None,
) -> None:
    pace = _Pace(work.rows_per_second)
    try:
        for rows in blocks:
            into.write(rows if change is None else change(rows))
            pace.keep(len(rows))
    except (TableRewritten, DecodeError, ModifierError):
        into.abort()
        raise
    except psycopg.Error as error:  # of the source: the sink speaks in its own errors
        into.abort()
        raise _source_failure(error, work, each) from None


def _source_failure(error: psycopg.Error, work: CopyWork, each: PageRange) -> PenstockError:
    state = error.sqlstate
    if state is None or state.startswith(_CLASSES_OF_ALL):
        return classify_source_error(error, work.dsn)
    if state in _STATES_OF_ANOTHER_SHAPE:
        return TableRewritten(
            f"{each.relation} was dropped, renamed or altered after the snapshot (SQLSTATE {state})",
            str(each.table),
            "nothing; the copy begins again, under a new snapshot",
        )
    said = error.diag.message_primary if state.startswith(_CLASSES_WITHOUT_VALUES) else ""
    return TableUnreadable(
        f"{each.relation} cannot be read: {said or type(error).__name__} (SQLSTATE {state})",
        str(each.table),
        "see that the table is there, that the role may SELECT from it, and that nobody holds"
        " a lock on it; the copy is tried again by itself",
    )


def _blame(work: CopyWork, each: PageRange, refused: RangeRefused) -> PenstockError:
    """Name the row by its key, which the source knows under the same snapshot."""
    place = f"{each.table} range {each.number}"
    key = work.keys.get(each.table)
    if refused.line is not None and key:
        try:
            reader = SnapshotReader(work.dsn, work.snapshot)
            try:
                modified = work.modified.get(each.table)
                condition = "" if modified is None else modified.condition
                values = reader.key_at(each.relation, key, each.pages, refused.line, condition)
            finally:
                reader.close()
        except (psycopg.Error, SourceError, SnapshotGone):
            values = None  # the table's error stands without it
        if values is not None:
            shown = ", ".join(f"{name}={value}" for name, value in zip(key, values, strict=True))
            place = f"{each.table} key ({shown})"
    return RowRefused(refused.what, place, refused.do)


class _Pace:
    """Not more rows in a second than were allowed."""

    def __init__(self, rows_per_second: float | None) -> None:
        self._rows_per_second = rows_per_second
        self._began = time.monotonic()
        self._count = 0

    def keep(self, count: int) -> None:
        """So many rows have passed; wait if that was too quick."""
        if self._rows_per_second is None:
            return
        self._count += count
        ahead = self._count / self._rows_per_second - (time.monotonic() - self._began)
        if ahead > 0:
            time.sleep(ahead)
