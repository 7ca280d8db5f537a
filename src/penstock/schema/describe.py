"""From the picture of a table to what is needed to make one like it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.schema.description import (
    ACTIONS,
    CONSTRAINT_KINDS,
    MATCHES,
    Constraint,
    ForeignKey,
    Index,
    PrimaryKey,
    TableDescription,
    TableStructure,
    UsedSequence,
)
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.schema.shape import ForeignKeyShape, TableShape, TypeShape


class RowKey(NamedTuple):
    """What updates and deletes are recognised by: columns by their ids, and the index's name."""

    columns: tuple[int, ...]
    name: str
    is_primary: bool


def row_key_of(shape: TableShape) -> RowKey | None:
    """The replica identity index where the table is set to one, else the primary key.

    A deferrable key is none: it may hold a value twice between two rows of one UPDATE.
    """
    primary = shape.primary_key
    if shape.replica_identity == "i" and shape.identity_index_id:
        wanted = shape.identity_index_id
        for index in shape.indexes:
            if index.id == wanted and index.is_valid and index.is_immediate:
                return RowKey(index.columns, index.name, is_primary=False)
        for each in shape.constraints:
            if each.index_id == wanted and each.kind == "u" and not each.is_deferrable:
                return RowKey(each.columns, each.name, is_primary=False)
    if primary is not None and not primary.is_deferrable:
        return RowKey(primary.columns, primary.name, is_primary=True)
    return None


def description_of(shape: TableShape) -> TableDescription:
    """Columns, keys and types."""
    key, primary = row_key_of(shape), shape.primary_key
    if primary is not None and primary.is_deferrable:
        primary = None
    return TableDescription(
        name=shape.table,
        oid=shape.id,
        kind=shape.kind,
        replica_identity=shape.replica_identity,
        columns=shape.columns,
        key_columns=shape.names_of(key.columns) if key is not None else (),
        primary_key=shape.names_of(primary.columns) if primary is not None else (),
        types=shape.types,
        sequences=shape.sequences,
    )


def structure_of(shape: TableShape) -> TableStructure:
    """Keys, indexes and constraints; of sequences not where they stand, which no picture holds."""
    key, primary = row_key_of(shape), shape.primary_key
    return TableStructure(
        name=shape.table,
        key_columns=shape.names_of(key.columns) if key is not None else (),
        primary_key=None
        if primary is None
        else PrimaryKey(
            primary.name,
            shape.names_of(primary.columns),
            primary.definition,
            frozenset(shape.names_of(primary.used)),
            is_deferrable=primary.is_deferrable,
            has_period=primary.has_period,
        ),
        identity_index=key.name if key is not None and not key.is_primary else None,
        indexes=tuple(
            Index(each.name, each.is_unique, each.definition, frozenset(shape.names_of(each.used)))
            for each in shape.indexes
            if each.is_valid
        ),
        constraints=tuple(
            Constraint(
                each.name,
                CONSTRAINT_KINDS[each.kind],
                each.definition,
                frozenset(shape.names_of(each.used)),
            )
            for each in shape.constraints
            if each.kind in CONSTRAINT_KINDS
        ),
        foreign_keys=tuple(foreign_key_of(shape, each) for each in shape.foreign_keys),
        sequences=tuple(
            UsedSequence(
                column.name,
                "identity" if column.identity else "serial",
                column.sequence,
                last_value=None,
                is_called=False,
            )
            for column in shape.columns
            if column.sequence is not None
        ),
    )


def foreign_key_of(shape: TableShape, key: ForeignKeyShape) -> ForeignKey:
    """One foreign key of the table."""
    return ForeignKey(
        name=key.name,
        columns=shape.names_of(key.columns),
        referenced=TableName(key.referenced_schema, key.referenced_name),
        referenced_columns=key.referenced_columns,
        on_update=ACTIONS[key.on_update],
        on_delete=ACTIONS[key.on_delete],
        on_delete_columns=shape.names_of(key.on_delete_columns),
        match=MATCHES[key.match],
        is_deferrable=key.is_deferrable,
        is_deferred=key.is_deferred,
        is_valid=key.is_valid,
        is_enforced=key.is_enforced,
        has_period=key.has_period,
    )


def types_in_order(types: Iterable[TypeShape]) -> list[TypeShape]:
    """Each type after those it is made of. Arrays and multiranges come with their own type."""
    waiting = {each.id: each for each in types}
    made: list[TypeShape] = []

    def make(number: int) -> None:
        each = waiting.pop(number, None)
        if each is None:
            return
        for part in each.parts:
            make(part)
        if not each.is_array:
            made.append(each)

    for number in tuple(waiting):
        make(number)
    return made
