"""Conflicts: what a merge finds to be other than the source's changes say, counted and made right all the same.

A row that is inserted and is there already; one that is changed or deleted and is not there. The SQL that finds such
rows, counts them and leaves them out, and the errors of `on_conflict: stop`. Tables are counted in the transaction
that merges them, so each conflict once.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from psycopg import sql

from penstock.errors import RowRefused
from penstock.sinks.postgres.merge.statements import Statements

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import psycopg

    from penstock.sinks.postgres.mapping.plan import TablePlan
    from penstock.table import TableName

    Cursor = psycopg.Cursor[Any]

_log = logging.getLogger(__name__)

# How many keys of each kind are logged, at debug level.
LOGGED_KEYS = 3


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

    def unexpected(self, plan: TablePlan) -> Conflicts:
        """Without what is none: rows that rules have left out are not at the target."""
        return replace(self, update_missing=0, delete_missing=0) if plan.lacks_rows else self

    def __bool__(self) -> bool:
        return any(getattr(self, each.name) for each in fields(self))


NONE = Conflicts()


def log_keys(cursor: Cursor, table: TableName, kind: str, keys: Callable[[], sql.Composed]) -> None:
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


_TRUE = sql.SQL("true")


class ConflictStatements(Statements):
    """The SQL of one step, and of the conflicts in it. `t` is the target, `s` the stage."""

    def _is_there(self) -> sql.Composed:
        """INSERTs whose row is at the target.

        One that the step itself takes away stands in nobody's way: its key may be spelled differently.
        """
        found = self._same_key()
        if self._step.delete_count or self._step.gone_count:
            found += sql.SQL(" AND NOT EXISTS (SELECT FROM {} d WHERE {} AND {})").format(
                self._stage, self._is("D", "G", row="d"), self._same_key("d")
            )
        return sql.SQL("{} AND EXISTS (SELECT FROM {} t WHERE {})").format(
            self._is("I"), self._target, found
        )

    def _is_missing(self) -> sql.Composed:
        """UPDATEs and moves whose row is not at the target."""
        found = self._same_old_key() if self._step.kind == "move" else self._same_key()
        return sql.SQL("{} AND NOT EXISTS (SELECT FROM {} t WHERE {})").format(
            self._is("U"), self._target, found
        )

    def _is_gone_already(self) -> sql.Composed:
        """DELETEs whose row is not at the target."""
        return sql.SQL("{} AND NOT EXISTS (SELECT FROM {} t WHERE {})").format(
            self._is("D"), self._target, self._same_key()
        )

    def _count(self, condition: sql.Composable) -> sql.Composed:
        return sql.SQL("SELECT count(*) FROM {} s WHERE {}").format(self._stage, condition)

    def count_existing_inserts(self) -> sql.Composed:
        """How many INSERTs have a row at the target already."""
        return self._count(self._is_there())

    def count_missing(self) -> sql.Composed:
        """How many UPDATEs and moves have none."""
        return self._count(self._is_missing())

    def count_missing_deletes(self) -> sql.Composed:
        """How many DELETEs have none."""
        return self._count(self._is_gone_already())

    def _keys(self, condition: sql.Composable, most: int) -> sql.Composed:
        return sql.SQL("SELECT {} FROM {} s WHERE {} LIMIT {}").format(
            self._key_texts(), self._stage, condition, sql.Literal(most)
        )

    def existing_inserts(self, most: int = LOGGED_KEYS) -> sql.Composed:
        """Keys of INSERTs that are there already, as texts `column=value`."""
        return self._keys(self._is_there(), most)

    def missing(self, most: int = LOGGED_KEYS) -> sql.Composed:
        """Keys of UPDATEs and moves whose row is not there."""
        return self._keys(self._is_missing(), most)

    def missing_deletes(self, most: int = LOGGED_KEYS) -> sql.Composed:
        """Keys of DELETEs whose row is not there."""
        if not self._step.key:
            return sql.SQL("SELECT 1 WHERE false").format()  # a whole row is no key
        return self._keys(self._is_gone_already(), most)

    def first_missing(self, *, only_incomplete: bool = False) -> sql.Composed:
        """The key of an UPDATE or move whose row is not there."""
        incomplete = sql.SQL("s.g <> 0") if only_incomplete else _TRUE
        condition = sql.SQL("{} AND {}").format(incomplete, self._is_missing())
        return self._keys(condition, 1)

    def first_existing_insert(self) -> sql.Composed:
        """The key of a staged INSERT that is there already."""
        return self.existing_inserts(1)

    def forget_existing_inserts(self) -> sql.Composed:
        """Drop staged INSERTs whose key is there."""
        return sql.SQL("DELETE FROM {} s WHERE {}").format(self._stage, self._is_there())

    def forget_missing(self) -> sql.Composed:
        """Drop staged UPDATEs and moves whose row is not there."""
        return sql.SQL("DELETE FROM {} s WHERE {}").format(self._stage, self._is_missing())


def is_there(plan: TablePlan, key: str) -> RowRefused:
    """`on_conflict: stop` does not allow a row to be replaced."""
    return RowRefused(
        "the row is already there, and on_conflict is stop",
        f"{plan.source} {key}",
        f"delete the row from {plan.target}, or set on_conflict: replace",
    )


def is_missing(plan: TablePlan, key: str) -> RowRefused:
    """`on_conflict: stop` does not allow a row to be made of its change."""
    return RowRefused(
        "the row is changed but not at the target, and on_conflict is stop",
        f"{plan.source} {key}",
        f"copy the row to {plan.target} by hand, or set on_conflict: keep to skip it",
    )


def is_incomplete(plan: TablePlan, key: str) -> RowRefused:
    """A row cannot be made of a change that does not have all of it."""
    return RowRefused(
        "the row is not at the target, and its UPDATE left TOASTed values untold",
        f"{plan.source} {key}",
        _complete_it(plan),
    )


def _complete_it(plan: TablePlan) -> str:
    if plan.lacks_rows:  # it has moved into a filter
        return f"ALTER TABLE {plan.source} REPLICA IDENTITY FULL, then penstock tables resync {plan.source}"
    return f"copy that row to {plan.target} by hand; REPLICA IDENTITY FULL avoids it"


def affected(cursor: Cursor, statement: sql.Composed) -> int:
    """How many rows it has changed."""
    cursor.execute(statement)
    return cursor.rowcount


def counted(cursor: Cursor, statement: sql.Composed) -> int:
    """The number that it asks for."""
    row = cursor.execute(statement).fetchone()
    return int(row[0]) if row is not None else 0


def first_key(cursor: Cursor, statement: sql.Composed) -> str | None:
    """The key in its first row, as an error names it; None where there is none."""
    row = cursor.execute(statement).fetchone()
    return f"key ({', '.join(row)})" if row is not None else None
