"""penstock.parked at the target: rows that it refused, and what came behind them. Knows no merge."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock.sinks.parked import ALL, ParkedEntry
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Collection

    import psycopg

    from penstock.sinks.parked import Wanted

    Connection = psycopg.Connection[Any]

_OPERATIONS = {
    "I": "insert",
    "U": "update",
    "D": "delete",
    "M": "update",  # of the key
    "R": "delete, insert",
    "G": "insert, delete",
}
_OWN = " WHERE pipeline = %s AND source = %s"
_BY_ID = f"{_OWN} AND id = ANY (%s::bigint[])"


class ParkedRows:
    """One pipeline's and source's rows of penstock.parked. `tables`: of which there are some."""

    def __init__(self, pipeline: str, source: str) -> None:
        self._owner = (pipeline, source)
        self.tables: set[TableName] = set()

    def read(self, connection: Connection) -> None:
        """Know of which tables something is parked."""
        rows = connection.execute(
            f"SELECT DISTINCT schema_name, table_name FROM penstock.parked{_OWN}", self._owner
        )
        self.tables = {TableName(schema, name) for schema, name in rows.fetchall()}

    def count(self, connection: Connection) -> int:
        """How many there are; none where an older penstock has made the other tables."""
        if not _is_there(connection):
            return 0
        row = connection.execute(f"SELECT count(*) FROM penstock.parked{_OWN}", self._owner)
        found = row.fetchone()
        return int(found[0]) if found is not None else 0

    def entries(self, connection: Connection, wanted: Wanted = ALL) -> list[ParkedEntry]:
        """All that are wanted, in the source's order, as people are shown them."""
        if not _is_there(connection):
            return []
        rows = connection.execute(
            "SELECT id, schema_name, table_name, op, key, old_key, commit_lsn::text, reason,"
            " parked_at, request, CASE WHEN %s THEN row_values END"
            f" FROM penstock.parked{_OWN} ORDER BY id LIMIT %s",
            (wanted.with_values, *self._owner, wanted.most),
        ).fetchall()
        return [
            ParkedEntry(
                id=str(number),
                table=TableName(schema, name),
                op=_OPERATIONS.get(op, op),
                key=json.dumps(old_key or key),
                commit_lsn=lsn,
                reason=reason,
                parked_at=at.isoformat(timespec="seconds"),
                request=request,
                values=values,
            )
            for number, schema, name, op, key, old_key, lsn, reason, at, request, values in rows
        ]

    def ask(self, connection: Connection, action: str, ids: Collection[str]) -> None:
        """Leave a request for who delivers."""
        connection.execute(
            "UPDATE penstock.parked SET request = %s" + _BY_ID, (action, *self._owner, list(ids))
        )

    def drop(self, connection: Connection, ids: Collection[str]) -> None:
        """Forget some for good."""
        connection.execute("DELETE FROM penstock.parked" + _BY_ID, (*self._owner, list(ids)))

    def drop_asked(self, connection: Connection) -> int:
        """Forget those that a person wants dropped; how many."""
        return connection.execute(
            f"DELETE FROM penstock.parked{_OWN} AND request = 'drop'", self._owner
        ).rowcount

    def retries(self, connection: Connection) -> list[TableName]:
        """Tables of which something is to be tried again."""
        rows = connection.execute(
            f"SELECT DISTINCT schema_name, table_name FROM penstock.parked{_OWN}"
            " AND request = 'retry' ORDER BY 1, 2",
            self._owner,
        )
        return [TableName(schema, name) for schema, name in rows.fetchall()]

    def answered(self, connection: Connection, table: TableName) -> None:
        """What is still there of a table was tried, or could not be."""
        connection.execute(
            f"UPDATE penstock.parked SET request = NULL{_OWN} AND request = 'retry'"
            " AND schema_name = %s AND table_name = %s",
            (*self._owner, *table),
        )


def _is_there(connection: Connection) -> bool:
    found = connection.execute("SELECT to_regclass('penstock.parked') IS NOT NULL").fetchone()
    return found is not None and bool(found[0])
