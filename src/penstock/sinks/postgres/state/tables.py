"""penstock.tables at the target: how every table stands. The truth about tables that are detached.

The delivering loop detaches tables and lets them flow again; a copier moves those that wait for
one from pending over copying to catching_up (`copy/copying.py`). Neither touches the other's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg.rows import namedtuple_row

from penstock.errors import PositionTaken
from penstock.lsn import Lsn
from penstock.sinks.postgres.mapping.kept_names import NO_NAMES, KeptNames
from penstock.sinks.postgres.merge.conflicts import NONE, Conflicts
from penstock.sinks.postgres.state.copy_records import KEYS_DUE
from penstock.sinks.tables import DetachedTable, TableState
from penstock.table import TableName, as_columns

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    import psycopg

    Connection = psycopg.Connection[Any]
    Cursor = psycopg.Cursor[Any]

_READ = """
SELECT schema_name, table_name, state, delivered_lsn::text, error, filled, needs_copy, request,
       ranges_total, rows_copied, bytes_copied, notes, changed_at,
       extract(epoch FROM now() - snapshot_at)::float8 AS snapshot_seconds, copy_id,
       coalesce(retry_at, now()) <= now() AS may_retry, mapping,
       insert_exists, update_missing, delete_missing, foreign_keys_due, names_due,
       coalesce(source_oid, 0) AS source_oid
FROM penstock.tables
WHERE pipeline = %s AND source = %s ORDER BY schema_name, table_name
"""
# Whether anything of it has changed: each new version of a row has another place or transaction.
_SIGN = """
SELECT count(*), sum(hashtextextended(concat_ws(' ', ctid, xmin), 0))::text,
       count(*) FILTER (WHERE retry_at <= now())
FROM penstock.tables WHERE pipeline = %s AND source = %s
"""
_ARRIVED = """
SELECT schema_name, table_name, copy_id, count(*)::int, sum(rows)::bigint, sum(bytes)::bigint
FROM penstock.ranges WHERE pipeline = %s AND source = %s GROUP BY 1, 2, 3
"""

_SCHEDULE = """
INSERT INTO penstock.tables AS t
    (pipeline, source, schema_name, table_name, state, needs_copy, delivered_lsn, source_oid)
SELECT %s, %s, schema_name, table_name, 'pending', true, %s::pg_lsn, nullif(oid, 0)
FROM unnest(%s::text[], %s::text[], %s::int8[]) AS n(schema_name, table_name, oid)
ON CONFLICT (pipeline, source, schema_name, table_name) DO UPDATE SET
    state = 'pending', needs_copy = true, delivered_lsn = EXCLUDED.delivered_lsn, copy_id = NULL,
    error = NULL, request = NULL, attempts = 0, retry_at = NULL, changed_at = now(),
"""
_SAME = " source_oid = coalesce(EXCLUDED.source_oid, t.source_oid)"
_PERHAPS_ANOTHER = " source_oid = EXCLUDED.source_oid" + "".join(
    f", {column} = CASE WHEN t.source_oid = EXCLUDED.source_oid THEN t.{column} END"
    for column in ("shape", "shape_lsn", "mapping", "constraints_of")
)

_IN_LIST = (
    " pipeline = %s AND source = %s AND (schema_name, table_name) IN"
    " (SELECT * FROM unnest(%s::text[], %s::text[]))"
)


@dataclass(frozen=True)
class TableRow:
    """One row of penstock.tables, with what has arrived of a copy that is under way."""

    table: TableName
    state: TableState
    delivered_lsn: Lsn | None
    error: str | None
    is_filled: bool
    needs_copy: bool
    request: str | None
    ranges_total: int
    ranges_done: int
    rows_copied: int
    bytes_copied: int
    notes: str | None
    changed_at: Any
    snapshot_seconds: float | None
    may_retry: bool
    kept_names: KeptNames = NO_NAMES
    conflicts: Conflicts = NONE
    keys_due: bool = False  # foreign keys are still to be made
    names_due: bool = False  # objects wait for their names
    source_oid: int = 0

    @property
    def detached(self) -> DetachedTable | None:
        """What the delivering loop is to know, None for a table that flows."""
        if self.state == TableState.STREAMING:
            return None
        return DetachedTable(
            self.state,
            self.delivered_lsn or Lsn(0),
            self.error or "",
            self.needs_copy,
            self.source_oid,
        )


class TargetTables:
    """One pipeline's and source's rows of penstock.tables."""

    def __init__(self, pipeline: str, source: str) -> None:
        self._owner = (pipeline, source)

    @property
    def owner(self) -> tuple[str, str]:
        """The pipeline and the source."""
        return self._owner

    def sign(self, connection: Connection) -> object:
        """Something that is the same as long as `read` would return the same; cheaper than that."""
        return connection.execute(_SIGN, self._owner).fetchone()

    def read(self, connection: Connection) -> list[TableRow]:
        """Every table that is known; what has arrived of copies under way is left out."""
        with connection.cursor(row_factory=namedtuple_row) as cursor:
            return [_row(row, {}) for row in cursor.execute(_READ, self._owner).fetchall()]

    def keys_due(self, connection: Connection) -> list[TableName]:
        """Tables whose foreign keys can be made; not those that wait for one whose copy failed."""
        rows = connection.execute(KEYS_DUE, (*self._owner, *self._owner)).fetchall()
        return [TableName(schema, name) for schema, name in rows]

    def read_with_ranges(self, connection: Connection) -> list[TableRow]:
        """Every table that is known, with what has arrived."""
        arrived = {
            (schema, name, copy_id): (ranges, rows, size)
            for schema, name, copy_id, ranges, rows, size in connection.execute(
                _ARRIVED, self._owner
            )
        }
        with connection.cursor(row_factory=namedtuple_row) as cursor:
            return [_row(row, arrived) for row in cursor.execute(_READ, self._owner).fetchall()]

    def note_streaming(self, cursor: Cursor, table: TableName) -> None:
        """List a table that has got its first rows from the stream."""
        cursor.execute(
            "INSERT INTO penstock.tables"
            " (pipeline, source, schema_name, table_name, state, filled)"
            " VALUES (%s, %s, %s, %s, 'streaming', true)"
            " ON CONFLICT (pipeline, source, schema_name, table_name) DO UPDATE SET filled = true",
            (*self._owner, *table),
        )

    def made(self, connection: Connection, table: TableName, target: TableName) -> None:
        """Note that the target's table is one that penstock has created, and which one."""
        connection.execute(
            "UPDATE penstock.tables SET made_by_us = true, target_oid = (SELECT c.oid::bigint"
            " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s AND c.relname = %s) WHERE" + _IN_LIST,
            (*target, *self._owner, *as_columns([table])),
        )

    def detach(self, connection: Connection, table: TableName, text: str) -> None:
        """Follow a table no more whose rows at the target are somebody's own.

        A new one of its name is not taken for it.
        """
        self.remove(connection, [table])
        connection.execute(
            "UPDATE penstock.tables SET filled = false, made_by_us = false, target_oid = NULL,"
            " copy_way = NULL, source_oid = NULL, shape = NULL, shape_lsn = NULL, mapping = NULL,"
            " notes = %s WHERE" + _IN_LIST,
            (text, *self._owner, *as_columns([table])),
        )

    def schedule(
        self, connection: Connection, tables: Mapping[TableName, int], lsn: Lsn, *, is_new: bool
    ) -> None:
        """List tables that wait to be copied, with their oids; 0: as it is known, or unknown.

        With `is_new` what was known of one that had the name is forgotten, unless it has that oid.
        What is parked of them goes: the copy has it.
        """
        with connection.transaction():
            connection.execute(
                _SCHEDULE + (_PERHAPS_ANOTHER if is_new else _SAME),
                (*self._owner, str(lsn), *as_columns(tables), list(tables.values())),
            )
            self._drop_parked(connection, tables)

    def _drop_parked(self, connection: Connection, tables: Iterable[TableName]) -> None:
        connection.execute(
            "DELETE FROM penstock.parked WHERE" + _IN_LIST, (*self._owner, *as_columns(tables))
        )

    def rename(self, connection: Connection, old: TableName, new: TableName) -> None:
        """The source calls a table differently."""
        this = " WHERE pipeline = %s AND source = %s AND schema_name = %s AND table_name = %s"
        # Whoever had the name before is followed no more.
        connection.execute(
            f"DELETE FROM penstock.tables{this} AND state = 'removed'", (*self._owner, *new)
        )
        for table in ("tables", "ranges", "parked"):
            connection.execute(
                f"UPDATE penstock.{table} SET schema_name = %s, table_name = %s{this}",
                (*new, *self._owner, *old),
            )

    def retry(self, connection: Connection, tables: Collection[TableName], lsn: Lsn) -> None:
        """Let tables wait for another copy; how often it was tried is remembered."""
        connection.execute(
            "UPDATE penstock.tables SET state = 'pending', delivered_lsn = %s::pg_lsn,"
            " changed_at = now() WHERE" + _IN_LIST,
            (str(lsn), *self._owner, *as_columns(tables)),
        )

    def remove(self, connection: Connection, tables: Collection[TableName]) -> None:
        """Note that tables are followed no more."""
        with connection.transaction():
            connection.execute(
                "UPDATE penstock.tables SET state = 'removed', needs_copy = false, error = NULL,"
                " delivered_lsn = NULL, request = NULL, changed_at = now() WHERE" + _IN_LIST,
                (*self._owner, *as_columns(tables)),
            )
            self._drop_parked(connection, tables)

    def note(self, connection: Connection, table: TableName, text: str) -> None:
        """Have people read something of a table, once."""
        connection.execute(
            "UPDATE penstock.tables SET notes = concat_ws(E'\\n', notes, %s::text) WHERE"
            " strpos(coalesce(notes, ''), %s) = 0 AND" + _IN_LIST,
            (text, text, *self._owner, *as_columns([table])),
        )

    def ask(self, connection: Connection, tables: Collection[TableName]) -> list[TableName]:
        """Ask for tables to be copied again; those that are known, and so will be."""
        rows = connection.execute(
            "UPDATE penstock.tables SET request = 'resync', retry_at = NULL WHERE"
            + _IN_LIST
            + " RETURNING schema_name, table_name",
            (*self._owner, *as_columns(tables)),
        )
        return [TableName(schema, name) for schema, name in rows]

    def stop(self, cursor: Cursor, table: TableName, lsn: Lsn, error: str) -> DetachedTable:
        """Record that a table waits, where and why."""
        cursor.execute(
            "INSERT INTO penstock.tables"
            " (pipeline, source, schema_name, table_name, state, delivered_lsn, error)"
            " VALUES (%s, %s, %s, %s, 'failed', %s::pg_lsn, %s)"
            " ON CONFLICT (pipeline, source, schema_name, table_name) DO UPDATE SET"
            " state = 'failed', delivered_lsn = EXCLUDED.delivered_lsn, error = EXCLUDED.error,"
            " changed_at = now()",
            (*self._owner, *table, str(lsn), error),
        )
        return DetachedTable(TableState.FAILED, lsn, error)

    def advance(self, cursor: Cursor, tables: Collection[TableName], after: Lsn, end: Lsn) -> None:
        """Move the position of tables that catch up.

        Raises:
            PositionTaken: one is not where this process left it.
        """
        cursor.execute(
            "UPDATE penstock.tables SET delivered_lsn = %s::pg_lsn, filled = true"
            " WHERE delivered_lsn = %s::pg_lsn AND NOT needs_copy AND" + _IN_LIST,
            (str(end), str(after), *self._owner, *as_columns(tables)),
        )
        if cursor.rowcount != len(tables):
            raise PositionTaken(
                f"of {len(tables)} tables, {cursor.rowcount} still stand at {after}",
                f"penstock.tables, pipeline {self._owner[0]}",
                "stop the other penstock that delivers this pipeline, and start again",
            )

    def attach(self, connection: Connection, tables: Collection[TableName]) -> None:
        """Tables have caught up and flow with the others."""
        connection.execute(
            "UPDATE penstock.tables SET state = 'streaming', delivered_lsn = NULL, error = NULL,"
            " changed_at = now() WHERE" + _IN_LIST,
            (*self._owner, *as_columns(tables)),
        )


def _row(row: Any, arrived: Mapping[tuple[str, str, str], tuple[int, int, int]]) -> TableRow:
    key = (row.schema_name, row.table_name, row.copy_id)
    ranges_done, rows_done, bytes_done = arrived.get(key, (0, 0, 0))
    under_way = row.state in (TableState.PENDING, TableState.COPYING) or (
        row.state == TableState.FAILED and row.needs_copy
    )
    return TableRow(
        table=TableName(row.schema_name, row.table_name),
        state=TableState(row.state),
        delivered_lsn=Lsn.parse(row.delivered_lsn) if row.delivered_lsn else None,
        error=row.error,
        is_filled=row.filled,
        needs_copy=row.needs_copy,
        request=row.request,
        ranges_total=row.ranges_total,
        ranges_done=ranges_done if under_way else row.ranges_total,
        rows_copied=rows_done if under_way else row.rows_copied,
        bytes_copied=bytes_done if under_way else row.bytes_copied,
        notes=row.notes,
        changed_at=row.changed_at,
        snapshot_seconds=row.snapshot_seconds if row.state == TableState.COPYING else None,
        may_retry=row.may_retry,
        kept_names=KeptNames.read(row.mapping),
        conflicts=Conflicts(row.insert_exists, row.update_missing, row.delete_missing),
        keys_due=row.foreign_keys_due
        and row.state in (TableState.CATCHING_UP, TableState.STREAMING),
        names_due=row.names_due and row.state in (TableState.CATCHING_UP, TableState.STREAMING),
        source_oid=row.source_oid,
    )
