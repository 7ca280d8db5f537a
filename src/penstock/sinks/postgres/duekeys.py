"""Foreign keys of tables that were copied: made once both tables stand at the same position.

They are those of the shape that penstock.tables keeps, which moves with the stream; what the source has
by now may be ahead of it. Whoever delivers a schema change locks the same row first, so that a key
which goes at this moment either is not made, or is seen and dropped.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import psycopg

from penstock.schema.describe import structure_of
from penstock.sinks.postgres import copyrecords as records
from penstock.sinks.postgres.connect import set_replica_role
from penstock.sinks.postgres.landed import landed_structure
from penstock.sinks.postgres.mapped import mapped
from penstock.sinks.postgres.structure import add_foreign_keys, one_line, reason
from penstock.table import TableName

if TYPE_CHECKING:
    from penstock.sinks.postgres.landing import Landings
    from penstock.sinks.postgres.shapes import ShapeStore

    Connection = psycopg.Connection[Any]

_log = logging.getLogger(__name__)

_ATTEMPTS = 5
_PAUSE_SECONDS = 0.2

_MAY_NOT = (
    "foreign keys are not made: role {role} may not switch them off while it delivers"
    " (GRANT SET ON PARAMETER session_replication_role TO {role})"
)


class _MovedOnError(Exception):
    """The stream has changed the table since its keys were read."""


def make_due_keys(
    connection: Connection, landings: Landings, store: ShapeStore, owner: tuple[str, str]
) -> bool:
    """Make them all; what cannot be made is noted in penstock.tables. Whether any were due.

    Raises:
        psycopg.Error: the server went away.
    """
    due = [TableName(*row) for row in connection.execute(records.KEYS_DUE, owner).fetchall()]
    if not due:
        return False
    # They would be checked in the middle of a batch, where they need not hold.
    may_switch_off = set_replica_role(connection)
    for table in due:
        try:
            notes = _make_patiently(
                connection, landings, store, table, may_switch_off=may_switch_off
            )
        except _MovedOnError:
            continue  # next time, from the shape it has then
        for note in notes:
            _log.warning("%s: %s", table, note)
        connection.execute(records.KEYS_DONE, ("\n".join(notes) or None, *owner, *table))
    return True


def _make_patiently(
    connection: Connection,
    landings: Landings,
    store: ShapeStore,
    table: TableName,
    *,
    may_switch_off: bool,
) -> list[str]:
    """An internal error is said of a table that is altered or dropped at the same moment.

    One that stays is no such moment, and is noted: whoever waits for the keys must come to an end.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return _make(connection, landings, store, table, may_switch_off=may_switch_off)
        except psycopg.errors.InternalError_:
            time.sleep(_PAUSE_SECONDS)
    try:
        return _make(connection, landings, store, table, may_switch_off=may_switch_off)
    except psycopg.errors.InternalError_ as error:
        return [one_line(f"foreign keys: {reason(error)}")]


def _make(
    connection: Connection,
    landings: Landings,
    store: ShapeStore,
    table: TableName,
    *,
    may_switch_off: bool,
) -> list[str]:
    shape, document = store.shape_and_mapping(connection, table)
    if shape is None or not shape.foreign_keys:
        return []
    if not may_switch_off:
        return [_MAY_NOT.format(role=landings.options.url.user)]
    # Shapes follow their own table's changes; what a key leads to may have been renamed since.
    names = {each.source_oid: each.name for each in store.read(connection)}
    called_now = {
        TableName(key.referenced_schema, key.referenced_name): names[key.referenced_id]
        for key in shape.foreign_keys
        if key.referenced_id in names
    }
    known = mapped(document)
    landing = landings.of(table, known.ruled_as)

    def hold() -> None:
        if store.shape_and_mapping(connection, table, lock=True) != (shape, document):
            raise _MovedOnError

    return add_foreign_keys(
        connection,
        known.target or landing.target,
        landed_structure(
            structure_of(shape), landing, lambda name: landings.of(called_now.get(name, name))
        ),
        lambda name: landings.target(called_now.get(name, name)),
        hold,
    )
