"""How tables stand at the target, as the delivering loop is to know it: the store of its `SinkTables`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.sinks.postgres.compare.notes import are_on_objects
from penstock.sinks.postgres.connect import target_errors
from penstock.sinks.tables import Standing, TableState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import psycopg

    from penstock.dsn import Dsn
    from penstock.lsn import Lsn
    from penstock.sinks.postgres.state.parked import ParkedRows
    from penstock.sinks.postgres.state.tables import TableRow, TargetTables
    from penstock.table import TableName

    Connection = psycopg.Connection[Any]


class TargetTableStore:
    """penstock.tables of one pipeline and source. Implements `penstock.sinks.tables.TableStore`.

    `on_read` is given the rows whenever they are read.
    """

    def __init__(
        self,
        tables: TargetTables,
        parked: ParkedRows,
        connected: Callable[[], Connection],
        url: Dsn,
        on_read: Callable[[Sequence[TableRow]], None],
    ) -> None:
        self._tables = tables
        self._parked = parked
        self._connected = connected
        self._url = url
        self._on_read = on_read
        self._rows: list[TableRow] = []
        self._sign: object = None

    def forget(self) -> None:
        """Read anew whatever happens; for a target that is let go of."""
        self._sign = None

    def read(self) -> Standing:
        """Read penstock.tables."""
        connection = self._connected()
        with target_errors(self._url):
            self._sign = self._tables.sign(connection)  # before: what changes then is read again
            rows = self._rows = self._tables.read(connection)
            if self._parked.tables:
                self._parked.read(connection)  # what is copied again is parked no more
            if self.requested() or self.due_again():
                self._sign = None  # asked for while nobody ran, say: the next refresh takes it up
            self._on_read(rows)
            detached = {row.table: row.detached for row in rows if row.detached is not None}
            return Standing(
                {row.table for row in rows} - set(detached),
                detached,
                self._are_objects_due(connection),
                any(are_on_objects(row.notes) for row in rows),
            )

    def _are_objects_due(self, connection: Connection) -> bool:
        if not any(row.keys_due or row.names_due for row in self._rows):
            return False
        if not any(row.state == TableState.FAILED for row in self._rows):
            return True
        # Those that catch up can get theirs as soon as they stream, before this is read again.
        are_ahead = any(
            row.state == TableState.CATCHING_UP and (row.keys_due or row.names_due)
            for row in self._rows
        )
        return are_ahead or bool(self._tables.keys_due(connection))

    def poll(self) -> bool:
        """Whether anything of penstock.tables has changed since it was read."""
        with target_errors(self._url):
            return self._sign is None or self._tables.sign(self._connected()) != self._sign

    def schedule(self, tables: Mapping[TableName, int], lsn: Lsn, *, is_new: bool) -> None:
        """List tables as pending."""
        with target_errors(self._url):
            self._tables.schedule(self._connected(), tables, lsn, is_new=is_new)

    def retry(self, tables: Collection[TableName], lsn: Lsn) -> None:
        """List tables as pending, with the attempts that were made."""
        with target_errors(self._url):
            self._tables.retry(self._connected(), tables, lsn)

    def rename(self, table: TableName, name: TableName, lsn: Lsn) -> None:
        """List a table under another name; its copy renames what the target has of it."""
        connection = self._connected()
        with target_errors(self._url), connection.transaction():
            self._tables.rename(connection, table, name)
            self._tables.schedule(connection, {name: 0}, lsn, is_new=False)

    def remove(self, tables: Collection[TableName]) -> None:
        """List tables as removed."""
        with target_errors(self._url):
            self._tables.remove(self._connected(), tables)

    def attach(self, tables: Collection[TableName]) -> Collection[TableName]:
        """List tables as streaming."""
        with target_errors(self._url):
            self._tables.attach(self._connected(), tables)
        return tables

    def note(self, table: TableName, text: str) -> None:
        """Add to the table's notes; the next copy of it takes them away."""
        with target_errors(self._url):
            self._tables.note(self._connected(), table, text)

    def requested(self) -> dict[TableName, int]:
        """Those that were asked for when the table was last read; their oids are there."""
        return {
            row.table: 0
            for row in self._rows
            if row.request == "resync" and row.state != TableState.COPYING
        }

    def answered(self) -> None:
        """Nothing: what is scheduled is asked for no more."""

    def due_again(self) -> list[TableName]:
        """Those that were due when the table was last read."""
        return [
            row.table
            for row in self._rows
            if row.state == TableState.FAILED
            and row.needs_copy
            and row.may_retry
            and row.request is None
        ]
