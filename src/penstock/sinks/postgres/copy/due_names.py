"""Indexes and constraints that waited for their names get them, once their tables stream."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from penstock.schema.describe import structure_of
from penstock.schema.shape import read_tables
from penstock.sinks.postgres.ddl.displaced import name_alike, rename_object, stand_in
from penstock.sinks.postgres.ddl.structure import (
    TAKEN,
    find_all,
    key_piece,
    limit_locks,
    pieces_of,
    reason,
)
from penstock.sinks.postgres.mapping.kept_names import KeptNames
from penstock.sinks.postgres.mapping.target_shape import target_structure
from penstock.sinks.postgres.state import copy_records as records
from penstock.table import TableName, as_columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.schema.description import TableStructure
    from penstock.sinks.postgres.ddl.structure import Found, Piece
    from penstock.sinks.postgres.mapping.table_mapping import TableMappings

    Connection = psycopg.Connection[Any]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Waiting:
    """One object, and the table of the source that it belongs to."""

    table: TableName
    target: TableName
    called: str
    piece: Piece

    def rename(self, connection: Connection, name: str) -> bool:
        """Whether the name was free."""
        statement = rename_object(self.target, self.called, name, has_index=self.piece.has_index)
        try:
            with connection.transaction():
                connection.execute(statement)
        except TAKEN:
            return False
        _log.info("%s: %s", self.table, statement.as_string(connection))
        return True

    def call_alike(self, connection: Connection) -> bool:
        """Whether it has got a name like the one that it waited for, which somebody keeps."""
        return self.rename(
            connection, name_alike(connection, [self.target.schema], self.piece.name)
        )


def give_due_names(connection: Connection, table_mappings: TableMappings) -> bool:
    """Rename what has its name free by now; whether anything was due.

    Once no other table can give a name up any more, whoever has it keeps it, and the object gets one like it.

    Raises:
        psycopg.Error: the server went away.
    """
    try:
        with connection.transaction():
            return _give(connection, table_mappings)
    except psycopg.Error as error:
        reason(error)  # raises what is not about these tables
        return True  # somebody uses or alters one of them: next time


def _place(
    table_mappings: TableMappings, schema: str, name: str, document: Any, mapping: Any
) -> tuple[TableName, tuple[TableName, TableStructure]]:
    """A table, where it is, and what is made of it."""
    table, known = TableName(schema, name), KeptNames.read(mapping)
    shape = read_tables([document], f"penstock.tables, {table}")[0]
    table_mapping = table_mappings.of(table, known.ruled_as)
    structure = target_structure(structure_of(shape), table_mapping, table_mappings.of)
    return table, (known.target or table_mapping.target, structure)


def _give(connection: Connection, table_mappings: TableMappings) -> bool:
    owner = table_mappings.owner
    # Without waiting, and first: who delivers takes rows before tables, too.
    rows = connection.execute(records.NAMES_DUE, owner).fetchall()
    if not rows:
        return False
    limit_locks(connection)
    places = dict(_place(table_mappings, *row) for row in rows)
    found = find_all(connection, {target for target, _ in places.values()})
    left: list[_Waiting] = []
    for table, (target, structure) in places.items():
        for called, piece in _displaced(target, structure, found[target]):
            waiting = _Waiting(table, target, called, piece)
            if not waiting.rename(connection, piece.name):
                left.append(waiting)
    others = connection.execute(records.MAY_GIVE_NAMES, owner).fetchone()
    if left and others == (False,):
        left = [each for each in left if not each.call_alike(connection)]
    done = set(places) - {each.table for each in left}
    connection.execute(records.NAMES_DONE, (*owner, *as_columns(done)))
    return True


def _displaced(
    target: TableName, structure: TableStructure, found: Found
) -> Iterator[tuple[str, Piece]]:
    key = key_piece(target, structure, found.columns)
    pieces = [*([key] if key is not None else []), *pieces_of(target, structure, found.columns)]
    for piece in pieces:
        called = stand_in(found.oid, piece.name)
        if called in (found.indexes if piece.has_index else found.constraints):
            yield called, piece
