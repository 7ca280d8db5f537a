"""Shapes of source tables when the target last followed them: kept in penstock.tables.

Written in the same transaction as what was done to the target's table, so that a difference is
applied exactly once, whatever is killed when.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

from penstock.lsn import ZERO, Lsn
from penstock.schema.shape import TableShape, read_tables
from penstock.sinks.postgres.mapping.kept_names import NO_NAMES, KeptNames
from penstock.sinks.postgres.state.tables import TargetTables
from penstock.sinks.tables import TableState
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import psycopg

    from penstock.errors import PenstockError

    Connection = psycopg.Connection[Any]
    Cursor = psycopg.Cursor[Any]
    Executor = Connection | Cursor

_READ = """
SELECT schema_name, table_name, state, needs_copy, coalesce(source_oid, 0) AS source_oid, filled,
       made_by_us, shape_lsn::text, mapping, target_oid,
       shape ->> 'schema_name' AS shape_schema, shape ->> 'name' AS shape_name
FROM penstock.tables WHERE pipeline = %s AND source = %s AND state <> 'removed'
"""
_THIS = " WHERE pipeline = %s AND source = %s AND schema_name = %s AND table_name = %s"


@dataclass
class KnownTable:
    """One row of penstock.tables while shapes change.

    `name` is what the table is called at this moment of the stream, `recorded_as` the name in the row: of
    one that stands elsewhere in the stream that is an older one. `began_as` is the name in the row before
    all of it, `shaped_as` the one that the target's table was given.
    """

    name: TableName
    began_as: TableName
    source_oid: int
    state: TableState
    needs_copy: bool
    is_filled: bool
    made_by_us: bool
    shape_lsn: Lsn = ZERO
    kept_names: KeptNames = NO_NAMES
    target_oid: int | None = None  # of the table that was made, where that is known
    shaped_as: TableName | None = None
    recorded_as: TableName = field(init=False)

    def __post_init__(self) -> None:
        self.recorded_as = self.name

    @classmethod
    def streaming(cls, name: TableName, oid: int = 0, *, made_here: bool = False) -> KnownTable:
        """One that the stream brings."""
        return cls(
            name,
            name,
            oid,
            TableState.STREAMING,
            needs_copy=False,
            is_filled=made_here,
            made_by_us=made_here,
        )

    @classmethod
    def waiting(cls, name: TableName, oid: int) -> KnownTable:
        """One that is to be copied, and of which nothing is there."""
        return cls(
            name, name, oid, TableState.PENDING, needs_copy=True, is_filled=False, made_by_us=False
        )

    @property
    def flows(self) -> bool:
        """Whether it goes with the sink's position."""
        return self.state == TableState.STREAMING

    @property
    def waits(self) -> bool:
        """Whether it is to be copied, and nobody is at it."""
        return self.needs_copy and self.state != TableState.COPYING


class TableStops(Exception):
    """A table cannot follow; everything is to be done again without it.

    `is_copied_again`: it need not wait for a person, but is copied as it is later.
    """

    def __init__(
        self, table: TableName, error: PenstockError, *, is_copied_again: bool = False
    ) -> None:
        super().__init__(str(table))
        self.table = table
        self.error = error
        self.is_copied_again = is_copied_again


class KnownTables:
    """The tables of penstock.tables in one attempt, by id and by the names they have meanwhile.

    `only`: those of a group that catches up take part; None: those that flow. Never the `refused`.
    """

    def __init__(self, only: Collection[TableName] | None, refused: Collection[TableName]) -> None:
        self.listed: list[KnownTable] = []
        self.refused = refused
        self._only = only

    def take(self, tables: Iterable[KnownTable]) -> None:
        """Begin with what the target says."""
        self.listed = list(tables)

    def add(self, table: KnownTable) -> None:
        """One that came in between."""
        self.listed.append(table)

    def remove(self, table: KnownTable) -> None:
        """One that is gone."""
        self.listed.remove(table)

    @property
    def names(self) -> dict[TableName, TableName]:
        """What tables that take part were called before, and are called now."""
        return {each.began_as: each.name for each in self.listed if self.takes_part(each)}

    def is_altered(self, table: KnownTable) -> bool:
        """Whether it is altered here: it takes part, or waits for its copy."""
        waits = self._only is None and table.waits and table.began_as not in self.refused
        return self.takes_part(table) or waits

    def takes_part(self, table: KnownTable) -> bool:
        """Whether it is altered and gets its rows here."""
        if table.began_as in self.refused or table.needs_copy:
            return False
        return table.flows if self._only is None else table.began_as in self._only

    def by_id(self, number: int) -> KnownTable | None:
        """The one that is that table of the source."""
        return next((each for each in self.listed if each.source_oid == number), None)

    def by_name(self, name: TableName) -> KnownTable | None:
        """The one that has the name at this moment; who is not of the group stands at another."""
        return next(
            (
                each
                for each in self.listed
                if each.name == name and (self._only is None or self.takes_part(each))
            ),
            None,
        )

    def recorded(self, name: TableName) -> KnownTable | None:
        """The one that is listed under a name."""
        return next((each for each in self.listed if each.recorded_as == name), None)

    def find(self, shape: TableShape) -> KnownTable | None:
        """The one that a document is about."""
        known = self.by_id(shape.id)
        if known is not None:
            return known
        named = self.by_name(shape.table)
        return named if named is not None and named.source_oid == 0 else None


class ShapeStore:
    """One pipeline's and source's shapes."""

    def __init__(self, pipeline: str, source: str) -> None:
        self._owner = (pipeline, source)
        self._tables = TargetTables(pipeline, source)

    def read(self, connection: Connection) -> list[KnownTable]:
        """Every table that is known, without its shape."""
        with connection.cursor(row_factory=namedtuple_row) as named:
            rows: list[Any] = named.execute(_READ, self._owner).fetchall()
        return [
            KnownTable(
                name := TableName(row.schema_name, row.table_name),
                name,
                row.source_oid,
                TableState(row.state),
                row.needs_copy,
                row.filled,
                row.made_by_us,
                Lsn.parse(row.shape_lsn) if row.shape_lsn else ZERO,
                KeptNames.read(row.mapping),
                row.target_oid,
                TableName(row.shape_schema, row.shape_name) if row.shape_name else None,
            )
            for row in rows
        ]

    def shape(
        self, executor: Executor, table: TableName, *, lock: bool = False
    ) -> TableShape | None:
        """The table's shape when the target last followed it; None when nobody has noted it.

        `lock`: it stays so until the transaction ends.
        """
        return self.shape_and_names(executor, table, lock=lock)[0]

    def shape_and_names(
        self, executor: Executor, table: TableName, *, lock: bool = False
    ) -> tuple[TableShape | None, KeptNames]:
        """The same, and the names that the target did not follow."""
        row = executor.execute(
            "SELECT shape, mapping FROM penstock.tables" + _THIS + " FOR UPDATE" * lock,
            (*self._owner, *table),
        ).fetchone()
        document, mapping = row or (None, None)
        if document is None:
            return None, KeptNames.read(mapping)
        return read_tables([document], f"penstock.tables, {table}")[0], KeptNames.read(mapping)

    def keep(
        self,
        executor: Executor,
        table: TableName,
        shape: TableShape,
        lsn: Lsn,
        kept: KeptNames = NO_NAMES,
        *,
        before_copy: bool = False,
    ) -> None:
        """Note the shape of a table that the target has followed, and where in the stream that is.

        `before_copy`: all but what is claimed of rows; whose claims it has is remembered until then.
        """
        deferred = ", constraints_of = coalesce(constraints_of, shape)" * before_copy
        executor.execute(
            "UPDATE penstock.tables SET source_oid = %s, shape = %s, shape_lsn = %s::pg_lsn,"
            f" mapping = %s, changed_at = now(){deferred}" + _THIS,
            (
                shape.id,
                Jsonb(shape.model_dump()),
                str(lsn),
                Jsonb(kept.document) if kept.document else None,
                *self._owner,
                *table,
            ),
        )

    def constraints_of(self, executor: Executor, table: TableName) -> TableShape | None:
        """The shape whose claims the target has, where others wait for a copy; else None."""
        query = "SELECT constraints_of FROM penstock.tables" + _THIS
        row = executor.execute(query, (*self._owner, *table)).fetchone()
        if row is None or row[0] is None:
            return None
        return read_tables([row[0]], f"penstock.tables, {table}")[0]

    def await_foreign_keys(self, cursor: Cursor, table: TableName) -> None:
        """Have foreign keys made once the tables that they lead to are copied."""
        cursor.execute(
            "UPDATE penstock.tables SET foreign_keys_due = true" + _THIS, (*self._owner, *table)
        )

    def await_names(self, executor: Executor, table: TableName) -> None:
        """Have objects that wait for their names get them once the table streams."""
        query = "UPDATE penstock.tables SET names_due = true" + _THIS
        executor.execute(query, (*self._owner, *table))

    def still_waits(self, cursor: Cursor, table: TableName) -> bool:
        """Whether nobody copies the table, nor begins to before this transaction ends."""
        row = cursor.execute(
            "SELECT state <> 'copying' FROM penstock.tables" + _THIS + " FOR UPDATE",
            (*self._owner, *table),
        ).fetchone()
        return row is not None and bool(row[0])

    def rename(self, cursor: Cursor, old: TableName, new: TableName) -> None:
        """The source calls a table differently."""
        self._tables.rename(cursor.connection, old, new)

    def forget(self, cursor: Cursor, table: TableName) -> None:
        """The source has dropped a table, and so has the target."""
        for name in ("tables", "ranges"):
            cursor.execute(f"DELETE FROM penstock.{name}" + _THIS, (*self._owner, *table))

    def detach(self, cursor: Cursor, table: TableName, text: str) -> None:
        """The source has dropped a table, and the target's is somebody's own."""
        self._tables.detach(cursor.connection, table, text)

    def leave(self, cursor: Cursor, table: TableName) -> None:
        """The source has dropped a table, and the target keeps it."""
        self._tables.remove(cursor.connection, [table])

    def add(self, cursor: Cursor, shape: TableShape, lsn: Lsn, made_as: TableName | None) -> None:
        """List a table that has been in the stream since before its first row.

        `made_as` is the target's, where penstock has just made it.
        """
        cursor.execute(
            "INSERT INTO penstock.tables (pipeline, source, schema_name, table_name, state, filled,"
            " foreign_keys_due) VALUES (%s, %s, %s, %s, 'streaming', true, true)"
            " ON CONFLICT (pipeline, source, schema_name, table_name) DO UPDATE SET state ="
            " 'streaming', filled = true, made_by_us = false, target_oid = NULL,"
            " foreign_keys_due = true, needs_copy = false, delivered_lsn = NULL, error = NULL,"
            " constraints_of = NULL",
            (*self._owner, *shape.table),
        )
        if made_as is not None:
            self._tables.made(cursor.connection, shape.table, made_as)
        self.keep(cursor, shape.table, shape, lsn)

    def schedule(self, cursor: Cursor, table: TableName, oid: int, lsn: Lsn) -> None:
        """List a table that is to be copied before it takes rows."""
        self._tables.schedule(cursor.connection, {table: oid}, lsn, is_new=True)

    def have_copied(self, cursor: Cursor, table: TableName, lsn: Lsn) -> None:
        """What the rows hold does not follow from the change: the table waits for a copy."""
        self._tables.schedule(cursor.connection, {table: 0}, lsn, is_new=False)
