"""Make, at the target, a table that came with the stream."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg

from penstock.errors import Remedy, SinkError
from penstock.schema.describe import description_of, structure_of
from penstock.sinks.postgres import alter
from penstock.sinks.postgres.adoption import refuse_occupied
from penstock.sinks.postgres.connect import is_about_table
from penstock.sinks.postgres.following import join_table
from penstock.sinks.postgres.freesequences import have_sequences
from penstock.sinks.postgres.landed import landed_description, landed_structure
from penstock.sinks.postgres.rivals import refuse_rivals
from penstock.sinks.postgres.target import find_table
from penstock.sinks.postgres.usertypes import have_types

if TYPE_CHECKING:
    from penstock.schema.shape import TableShape
    from penstock.sinks.postgres.landing import Landings

    Cursor = psycopg.Cursor[Any]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Born:
    """A table that is there now; `notes` has a line for each thing of it that could not be made."""

    is_new: bool
    notes: list[str] = field(default_factory=list)
    awaits_names: bool = False


def create_born(cursor: Cursor, landings: Landings, shape: TableShape) -> Born | None:
    """Make the table inside the caller's transaction; None where that is not possible yet.

    Nor is it where another table has the place: the one that came is refused by name once it is
    enrolled, and the first goes on.
    """
    landing = landings.of(shape.table)
    try:
        with cursor.connection.transaction():
            refuse_rivals(cursor.connection, landings, shape.table, landing.target)
            # Where others deliver as well, they may have been quicker.
            if landing.keeps_place and find_table(cursor.connection, landing.target) is not None:
                refuse_occupied(cursor.connection, landings, shape.table, landing.target)
                join_table(cursor, landings, shape, None)
                return Born(is_new=False)
            description = landed_description(description_of(shape), landing)
            have_types(cursor.connection, landings.owner, shape.table, description.types)
            have_sequences(cursor.connection, landings.owner, shape.table, description.sequences)
            made = alter.create_from_shape(
                cursor,
                description,
                landed_structure(structure_of(shape), landing, landings.of),
                landing.target,
                with_indexes=landings.options.create_indexes,
                rules=landings.options.expression_rules,
            )
    except (SinkError, psycopg.Error) as error:
        if _mends_with_time(error):
            raise
        _log.warning("%s cannot be created yet: %s", shape.table, type(error).__name__)
        return None
    return Born(True, made.notes, made.awaits_names)


def _mends_with_time(error: SinkError | psycopg.Error) -> bool:
    """Whether the whole transaction is to be tried again, not one table to be set apart."""
    if isinstance(error, SinkError):
        return error.remedy is Remedy.TIME
    return not is_about_table(error)
