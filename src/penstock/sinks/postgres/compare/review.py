"""Hold the notes on tables against what the target has: what is missing is noted, what is there no more.

At the start all tables are checked, later those that have notes, and now and then those that penstock has
made and that somebody has altered since. Foreign keys that are missing, or do not hold for every row, are
made due again now and then: rows may be equal by now.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import namedtuple_row

from penstock.errors import TargetTableUnfit
from penstock.schema.catalog import read_shapes
from penstock.schema.shape import read_tables
from penstock.sinks.postgres.compare.deviations import Deviation, Wanted, deviations, wanted_of
from penstock.sinks.postgres.compare.notes import are_on_objects, renewed
from penstock.sinks.postgres.mapping.kept_names import KeptNames
from penstock.table import TableName, as_columns
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.schema.shape import TableShape
    from penstock.sinks.postgres.mapping.table_mapping import TableMappings

    Connection = psycopg.Connection[Any]

_log = logging.getLogger(__name__)

# Of the time, at most so much is spent here.
SHARE = 0.02
# So many tables are read at once.
_TOGETHER = 200

_OWNER = " WHERE pipeline = %s AND source = %s"
_KNOWN = (
    "SELECT coalesce(source_oid, 0) AS source_oid, schema_name, table_name, copied_at,"
    " state = 'streaming' AND shape IS NOT NULL AND constraints_of IS NULL AND NOT foreign_keys_due"
    " AS is_settled, notes IS NOT NULL AS has_notes, target_oid FROM penstock.tables" + _OWNER
)
# Whatever alters a table makes rows of these anew; VACUUM and ANALYZE write over theirs in place.
_MARKS = """
SELECT relid::int8, count(*), sum(hashtextextended(row, 0))::text FROM (
    SELECT oid, concat_ws(' ', 'c', oid, xmin) FROM pg_class WHERE oid = ANY (%(oids)s::oid[])
    UNION ALL SELECT attrelid, concat_ws(' ', 'a', attnum, xmin) FROM pg_attribute
    WHERE attrelid = ANY (%(oids)s::oid[])
    UNION ALL SELECT adrelid, concat_ws(' ', 'd', oid, xmin) FROM pg_attrdef
    WHERE adrelid = ANY (%(oids)s::oid[])
    UNION ALL SELECT conrelid, concat_ws(' ', 'k', oid, xmin) FROM pg_constraint
    WHERE conrelid = ANY (%(oids)s::oid[])
    UNION ALL SELECT indrelid, concat_ws(' ', 'i', indexrelid, xmin) FROM pg_index
    WHERE indrelid = ANY (%(oids)s::oid[])
) AS marks(relid, row) GROUP BY relid
"""
_READ = (
    "SELECT schema_name, table_name, made_by_us, target_oid, mapping, notes, shape_lsn::text AS shape_lsn,"
    " copied_at, shape FROM penstock.tables" + _OWNER + " AND (schema_name, table_name) IN"
    " (SELECT * FROM unnest(%s::text[], %s::text[])) AND state = 'streaming' AND shape IS NOT NULL"
    " AND constraints_of IS NULL AND NOT foreign_keys_due"
)
# Who delivers may hold the row: its table changes, and is checked another time.
_UNCHANGED = """ WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM penstock.tables WHERE pipeline = %s AND source = %s AND schema_name = %s
    AND table_name = %s AND notes IS NOT DISTINCT FROM %s
    AND shape_lsn IS NOT DISTINCT FROM %s::pg_lsn AND state = 'streaming' FOR UPDATE SKIP LOCKED))"""
_NOTE = "UPDATE penstock.tables SET notes = %s" + _UNCHANGED
_DUE = "UPDATE penstock.tables SET foreign_keys_due = true" + _UNCHANGED


_Mark = tuple[int, int, str]


@dataclass
class _Try:
    """When a foreign key is made due, and what its tables' last copies were then."""

    at: float
    pause_seconds: float
    copies: tuple[Any, ...]


@dataclass
class _Known:
    """Tables of the source by their oids: what they are called, and when they were copied."""

    names: dict[int, TableName] = field(default_factory=dict)
    copies: dict[int, Any] = field(default_factory=dict)
    marks: dict[TableName, _Mark] = field(default_factory=dict)  # of those that are settled


class Review:
    """That of one source's tables at one target."""

    def __init__(self, table_mappings: TableMappings) -> None:
        self._table_mappings = table_mappings
        self._at = 0.0
        self._is_first = True
        self._marks: dict[TableName, _Mark] = {}
        self._marks_at = 0.0
        self._tries: dict[tuple[TableName, str], _Try] = {}

    @property
    def is_due(self) -> bool:
        """Whether it is time."""
        return time.monotonic() >= self._at

    def run(self, connection: Connection) -> bool:
        """Renew notes; whether foreign keys are due because of it.

        Raises:
            psycopg.OperationalError: the server went away.
        """
        began = time.monotonic()
        try:
            is_due = self._run(connection)
        except psycopg.OperationalError:
            raise
        except psycopg.Error as error:
            # Somebody alters tables at this moment.
            _log.debug("notes on tables are held against the target later: %s", error)
            is_due = False
        now = time.monotonic()
        self._at = now + max(timing().review_seconds, (now - began) / SHARE)
        return is_due

    def _run(self, connection: Connection) -> bool:
        is_marking = time.monotonic() >= self._marks_at
        known, tables = self._known(connection, is_marking=is_marking)
        is_due = False
        changed_meanwhile: set[TableName] = set()
        for first in range(0, len(tables), _TOGETHER):
            some = tables[first : first + _TOGETHER]
            for row, lacking_keys, notes in self._read(connection, known, some):
                table = TableName(row.schema_name, row.table_name)
                this = (*self._table_mappings.owner, *table, row.notes, row.shape_lsn)
                if lacking_keys and self._is_time(table, lacking_keys):
                    is_due |= connection.execute(_DUE, this).rowcount > 0
                if notes != row.notes and not connection.execute(_NOTE, (notes, *this)).rowcount:
                    changed_meanwhile.add(table)
        if is_marking:
            self._marks = {
                table: mark for table, mark in known.marks.items() if table not in changed_meanwhile
            }
            self._marks_at = time.monotonic() + timing().review_marks_seconds
        self._is_first = False
        return is_due

    def _known(self, connection: Connection, *, is_marking: bool) -> tuple[_Known, list[TableName]]:
        known, tables = _Known(), []
        with connection.cursor(row_factory=namedtuple_row) as cursor:
            rows: list[Any] = cursor.execute(_KNOWN, self._table_mappings.owner).fetchall()
        # Before the tables are read: what is altered in between is seen the next time.
        marks = _read_marks(connection, rows) if is_marking else {}
        for row in rows:
            name = TableName(row.schema_name, row.table_name)
            if row.source_oid:
                known.names[row.source_oid] = name
                known.copies[row.source_oid] = row.copied_at
            if not row.is_settled:
                continue
            mark = marks.get(row.target_oid)
            if mark is not None:
                known.marks[name] = mark
            is_altered = mark is not None and mark != self._marks.get(name)
            if self._is_first or row.has_notes or is_altered:
                tables.append(name)
        return known, tables

    def _read(
        self, connection: Connection, known: _Known, tables: list[TableName]
    ) -> Iterator[tuple[Any, dict[str, tuple[Any, ...]], str | None]]:
        """Tables, foreign keys that they lack with the copies of both sides, and notes as they are to be."""
        with connection.transaction(), connection.cursor(row_factory=namedtuple_row) as cursor:
            # One moment: what the stream does to a table, and that it has done so.
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            cursor.execute("SET LOCAL search_path = ''")
            names = as_columns(tables)
            rows: list[Any] = cursor.execute(
                _READ, (*self._table_mappings.owner, *names)
            ).fetchall()
            shapes = read_tables([row.shape for row in rows], "penstock.tables")
            wanted = [
                self._wanted(row, shape, known) for row, shape in zip(rows, shapes, strict=True)
            ]
            places = {
                place
                for each in wanted
                if each is not None
                for place in (each.target, *each.referenced)
            }
            found = read_shapes(connection, sorted(places), str(self._table_mappings.options.url))
        for row, shape, each in zip(rows, shapes, wanted, strict=True):
            there = found.get(each.target) if each is not None else None
            if each is None or there is None or row.target_oid not in (None, there.id):
                continue  # it has stopped, or soon will
            lacking = [one for one in deviations(each, there, found) if not one.is_extra]
            keys = _lacking_keys(shape, lacking, known)
            yield row, keys, renewed(row.notes, each.subjects, lacking)

    def _wanted(self, row: Any, shape: TableShape, known: _Known) -> Wanted | None:
        try:
            return wanted_of(
                self._table_mappings,
                shape,
                KeptNames.read(row.mapping),
                is_ours=row.made_by_us,
                called_now=known.names,
                # One that was created in the stream has them, or a note on what it lacks.
                is_bare=row.copied_at is None and not are_on_objects(row.notes),
            )
        except TargetTableUnfit:
            return None

    def _is_time(self, table: TableName, keys: dict[str, tuple[Any, ...]]) -> bool:
        """Whether one of the keys is to be tried again: at the start, after a copy, and now and then."""
        now, is_time = time.monotonic(), False
        for subject, copies in keys.items():
            last = self._tries.get((table, subject))
            if last is None:
                pause = timing().review_retry_first_seconds
                is_now = self._is_first
            else:
                is_now = now >= last.at or copies != last.copies
                pause = last.pause_seconds
                if is_now:
                    pause = min(2 * pause, timing().review_retry_last_seconds)
            if last is None or is_now:
                self._tries[table, subject] = _Try(now + pause, pause, copies)
            is_time |= is_now
        return is_time


def _read_marks(connection: Connection, rows: list[Any]) -> dict[int, _Mark]:
    """What the tables that penstock has made are like, by their oids."""
    oids = [row.target_oid for row in rows if row.is_settled and row.target_oid is not None]
    found = connection.execute(_MARKS, {"oids": oids}).fetchall()
    return {oid: (oid, count, total) for oid, count, total in found}


def _lacking_keys(
    shape: TableShape, lacking: list[Deviation], known: _Known
) -> dict[str, tuple[Any, ...]]:
    """Foreign keys that are missing for no reason, with the times at which both sides were copied."""
    copies = {
        f"foreign key {key.name}": (
            known.copies.get(shape.id),
            known.copies.get(key.referenced_id),
        )
        for key in shape.foreign_keys
    }
    return {
        each.subject: copies.get(each.subject, ())
        for each in lacking
        if each.is_foreign_key and not each.reason
    }
