"""Foreign keys of tables that were copied: made once both tables stand at the same position.

They are those of the shape that penstock.tables keeps, which moves with the stream; what the source has
by now may be ahead of it. Whoever delivers a schema change locks the same row first, so that a key
which goes at this moment either is not made, or is seen and dropped.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from penstock.schema.describe import structure_of
from penstock.schema.shape import read_tables
from penstock.sinks.postgres.connect import set_replica_role
from penstock.sinks.postgres.ddl.structure import (
    add_foreign_keys,
    add_small_foreign_keys,
    find_all,
    limit_locks,
    one_line,
    reason,
)
from penstock.sinks.postgres.mapping.kept_names import KeptNames
from penstock.sinks.postgres.mapping.target_shape import target_structure
from penstock.sinks.postgres.state import copy_records as records
from penstock.sinks.postgres.state.tables import TargetTables
from penstock.table import TableName, as_columns
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.schema.description import TableStructure
    from penstock.schema.shape import TableShape
    from penstock.sinks.postgres.mapping.table_mapping import TableMappings
    from penstock.sinks.postgres.state.shapes import ShapeStore

    Connection = psycopg.Connection[Any]

_log = logging.getLogger(__name__)

# So many tables get their keys in one transaction, while which nobody can write to them.
_TOGETHER = 25
_ATTEMPTS = 5

_MAY_NOT = (
    "foreign keys are not made: role {role} may not switch them off while it delivers"
    " (GRANT SET ON PARAMETER session_replication_role TO {role})"
)


class _MovedOnError(Exception):
    """The stream has changed the table since its keys were read."""


def make_due_keys(
    connection: Connection,
    table_mappings: TableMappings,
    store: ShapeStore,
    owner: tuple[str, str],
    on_made: Callable[[int, int], None] = lambda _made, _due: None,
) -> bool:
    """Make them all; what cannot be made is noted in penstock.tables. Whether any were due.

    `on_made` is called with how many tables have theirs, and how many lacked them.

    Raises:
        psycopg.Error: the server went away.
    """
    without = connection.execute(records.NO_KEYS_DUE, owner).rowcount
    due = TargetTables(*owner).keys_due(connection)
    if not due:
        return without > 0
    # They would be checked in the middle of a batch, where they need not hold.
    may_switch_off = set_replica_role(connection)
    # Shapes follow their own table's changes; what a key leads to may have been renamed since.
    names = {each.source_oid: each.name for each in store.read(connection)}
    maker = _Maker(connection, table_mappings, store, owner, names)
    done: set[TableName] = set()
    for first in range(0, len(due) if may_switch_off else 0, _TOGETHER):
        done |= maker.make_together(due[first : first + _TOGETHER])
        on_made(len(done), len(due))
    for table in due:
        if table in done:
            continue
        try:
            notes = maker.make_patiently(table) if may_switch_off else maker.refuse(table)
        except _MovedOnError:
            continue  # next time, from the shape it has then
        for note in notes:
            _log.warning("%s: %s", table, note)
        connection.execute(records.KEYS_DONE, ("\n".join(notes) or None, *owner, *table))
        done.add(table)
        on_made(len(done), len(due))
    return True


@dataclass(frozen=True)
class _Maker:
    """Makes keys. `names`: what tables are called by now, by the source's oids."""

    connection: Connection
    table_mappings: TableMappings
    store: ShapeStore
    owner: tuple[str, str]
    names: Mapping[int, TableName]

    def make_together(self, tables: Sequence[TableName]) -> set[TableName]:
        """Those of some tables that are small and refused nothing, in one transaction.

        The others are left to be made one by one.
        """
        try:
            with self.connection.transaction():
                return self._make_together(tables)
        except psycopg.Error as error:
            reason(error)  # raises what is not about keys
            return set()

    def _make_together(self, tables: Sequence[TableName]) -> set[TableName]:
        limit_locks(self.connection)
        # Without waiting: who holds one of the rows may wait for another that is ours by now.
        rows = self.connection.execute(
            records.KEYS_TOGETHER, (*self.owner, *as_columns(tables))
        ).fetchall()
        wanted: dict[TableName, _Keys] = {}
        for schema, name, shape, document in rows:
            table = TableName(schema, name)
            read = read_tables([shape], f"penstock.tables, {table}")[0]
            wanted[table] = self._keys(table, read, KeptNames.read(document))
        places = {keys.target for keys in wanted.values()}
        places |= {
            keys.place(k.referenced)
            for keys in wanted.values()
            for k in keys.structure.foreign_keys
        }
        found = find_all(self.connection, places)
        done: list[TableName] = []
        for table, keys in wanted.items():
            try:
                with self.connection.transaction():
                    if add_small_foreign_keys(
                        self.connection, keys.target, keys.structure.foreign_keys, keys.place, found
                    ):
                        done.append(table)
            except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                raise  # what the others hold is in somebody's way, too
            except psycopg.Error as error:
                reason(error)  # alone it is noted why
        self.connection.execute(records.KEYS_DONE_OF, (*self.owner, *as_columns(done)))
        return set(done)

    def refuse(self, table: TableName) -> list[str]:
        """What is to be said of a table whose keys could not be switched off."""
        shape = self.store.shape(self.connection, table)
        if shape is None or not shape.foreign_keys:
            return []
        return [_MAY_NOT.format(role=self.table_mappings.options.url.user)]

    def make_patiently(self, table: TableName) -> list[str]:
        """An internal error is said of a table that is altered or dropped at the same moment.

        One that stays is no such moment, and is noted: whoever waits for the keys must come to an end.
        """
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._make(table)
            except psycopg.errors.InternalError_:
                time.sleep(timing().foreign_key_pause_seconds)
        try:
            return self._make(table)
        except psycopg.errors.InternalError_ as error:
            return [one_line(f"foreign keys: {reason(error)}")]

    def _make(self, table: TableName) -> list[str]:
        shape, known = self.store.shape_and_names(self.connection, table)
        if shape is None or not shape.foreign_keys:
            return []
        keys = self._keys(table, shape, known)

        def hold() -> None:
            if self.store.shape_and_names(self.connection, table, lock=True) != (shape, known):
                raise _MovedOnError

        return add_foreign_keys(self.connection, keys.target, keys.structure, keys.place, hold)

    def _keys(self, table: TableName, shape: TableShape, known: KeptNames) -> _Keys:
        called_now = {
            TableName(key.referenced_schema, key.referenced_name): self.names[key.referenced_id]
            for key in shape.foreign_keys
            if key.referenced_id in self.names
        }
        table_mapping = self.table_mappings.of(table, known.ruled_as)
        structure = target_structure(
            structure_of(shape),
            table_mapping,
            lambda name: self.table_mappings.of(called_now.get(name, name)),
        )
        return _Keys(
            known.target or table_mapping.target,
            structure,
            lambda name: self.table_mappings.target(called_now.get(name, name)),
        )


class _Keys(NamedTuple):
    """The keys of one table, and where the tables go that they lead to."""

    target: TableName
    structure: TableStructure
    place: Callable[[TableName], TableName]
