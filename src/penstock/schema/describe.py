"""From the picture of a table to what is needed to make one like it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


def description_of(shape: TableShape) -> TableDescription:
    """Columns, key and types."""
    return TableDescription(
        name=shape.table,
        columns=shape.columns,
        key_columns=shape.key_columns,
        types=shape.types,
        sequences=shape.sequences,
    )


def structure_of(shape: TableShape) -> TableStructure:
    """Keys, indexes and constraints; of sequences not where they stand, which no picture holds."""
    key, primary = shape.row_key, shape.primary_key
    return TableStructure(
        name=shape.table,
        key_columns=shape.key_columns,
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
