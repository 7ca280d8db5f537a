"""Make, at the target, a table that came with the stream."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg

from penstock.errors import Remedy, SinkError
from penstock.schema.describe import structure_of
from penstock.sinks.postgres.connect import is_about_table
from penstock.sinks.postgres.ddl import alter
from penstock.sinks.postgres.ddl.free_sequences import have_sequences
from penstock.sinks.postgres.ddl.schemas import have_schemas
from penstock.sinks.postgres.ddl.user_types import have_types
from penstock.sinks.postgres.evolve.following import join_table
from penstock.sinks.postgres.mapping.adoption import refuse_occupied
from penstock.sinks.postgres.mapping.kept_names import NO_NAMES
from penstock.sinks.postgres.mapping.rivals import refuse_rivals
from penstock.sinks.postgres.mapping.target import find_table
from penstock.sinks.postgres.mapping.target_shape import target_description, target_structure

if TYPE_CHECKING:
    from penstock.schema.shape import TableShape
    from penstock.sinks.postgres.mapping.table_mapping import TableMappings

    Cursor = psycopg.Cursor[Any]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Created:
    """A table that is there now; `notes` has a line for each thing of it that could not be made."""

    is_new: bool
    notes: list[str] = field(default_factory=list)
    awaits_names: bool = False


def create_in_stream(
    cursor: Cursor, table_mappings: TableMappings, shape: TableShape
) -> Created | None:
    """Make the table inside the caller's transaction; None where that is not possible yet.

    Nor is it where another table has the place: the one that came is refused by name once it is
    scheduled to be copied, and the first goes on.
    """
    table_mapping = table_mappings.of(shape.table)
    try:
        with cursor.connection.transaction():
            refuse_rivals(cursor.connection, table_mappings, shape.table, table_mapping.target)
            # Where others deliver as well, they may have been quicker.
            if (
                table_mapping.keeps_place
                and find_table(cursor.connection, table_mapping.target) is not None
            ):
                refuse_occupied(
                    cursor.connection, table_mappings, shape.table, table_mapping.target
                )
                join_table(cursor, table_mappings, shape, NO_NAMES)
                return Created(is_new=False)
            description = target_description(shape, table_mapping)
            have_schemas(cursor.connection, table_mappings.owner, [table_mapping.target.schema])
            rules = table_mappings.options.expression_rules
            have_types(
                cursor.connection, table_mappings.owner, shape.table, description.types, rules
            )
            have_sequences(
                cursor.connection, table_mappings.owner, shape.table, description.sequences
            )
            made = alter.create_from_shape(
                cursor,
                description,
                target_structure(structure_of(shape), table_mapping, table_mappings.of),
                table_mapping.target,
                with_indexes=table_mappings.options.create_indexes,
                rules=rules,
            )
    except (SinkError, psycopg.Error) as error:
        if _passes_with_time(error):
            raise
        _log.warning("%s cannot be created yet: %s", shape.table, type(error).__name__)
        return None
    return Created(True, made.notes, made.awaits_names)


def _passes_with_time(error: SinkError | psycopg.Error) -> bool:
    """Whether the whole transaction is to be tried again, not one table to be detached."""
    if isinstance(error, SinkError):
        return error.remedy is Remedy.TIME
    return not is_about_table(error)
