"""What a merge finds to be other than the source's changes say: counted, and made right all the same.

A row that is inserted and is there already; one that is changed or deleted and is not there. Tables
are counted in the transaction that merges them, so each oddity once.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import psycopg
    from psycopg import sql

    from penstock.table import TableName

    Cursor = psycopg.Cursor[Any]

_log = logging.getLogger(__name__)

# How many keys of each kind are told, to who asked for every detail.
TOLD_KEYS = 3


@dataclass(frozen=True)
class Conflicts:
    """How many there were of each kind."""

    insert_exists: int = 0
    update_missing: int = 0
    delete_missing: int = 0

    def __add__(self, other: Conflicts) -> Conflicts:
        return Conflicts(
            *(getattr(self, each.name) + getattr(other, each.name) for each in fields(self))
        )

    def __bool__(self) -> bool:
        return any(getattr(self, each.name) for each in fields(self))


NONE = Conflicts()


def tell_keys(
    cursor: Cursor, table: TableName, kind: str, keys: Callable[[], sql.Composed]
) -> None:
    """Log the first keys, at debug level: keys are data too. The query is made only then."""
    if not _log.isEnabledFor(logging.DEBUG):
        return
    for row in cursor.execute(keys()).fetchall():
        _log.debug("%s: %s: key (%s)", table, kind, ", ".join(map(str, row)))


def add_conflicts(
    cursor: Cursor, owner: tuple[str, str], found: Mapping[TableName, Conflicts]
) -> None:
    """Add them to what penstock.tables says. No statement where there are none."""
    for table, conflicts in found.items():
        if conflicts:
            cursor.execute(
                "UPDATE penstock.tables SET insert_exists = insert_exists + %s,"
                " update_missing = update_missing + %s, delete_missing = delete_missing + %s"
                " WHERE pipeline = %s AND source = %s AND schema_name = %s AND table_name = %s",
                (
                    conflicts.insert_exists,
                    conflicts.update_missing,
                    conflicts.delete_missing,
                    *owner,
                    *table,
                ),
            )
