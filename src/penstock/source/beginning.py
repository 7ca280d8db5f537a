"""Shapes of tables where a slot begins that nobody has read from: by the stream, not by the catalog.

Between `init` and the first connection of capture, tables may change. The catalog has them as they are now;
but `init` has described them all in the stream, right after it made the slot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.changes.pgoutput import parse_message
from penstock.errors import SchemaUnreadable
from penstock.lsn import Lsn
from penstock.schema.shape import CHANGE_PREFIX, REFRESH
from penstock.schema.wire import read_reported
from penstock.source.connect import source_errors
from penstock.source.notes import unseal
from penstock.source.shapes import read_published_shapes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from penstock.schema.shape import SchemaChange, TableShape
    from penstock.source.subscription import Subscription

    Connection = psycopg.Connection[Any]

# So far the description is searched for: the slot may have been made long ago. A busy server writes less than
# that between two statements of `init`.
_REACH_BYTES = 64 * 1024 * 1024
_REACH_CHANGES = 100_000

# Of all that is decoded, only logical messages leave the server: they begin with an M.
_PEEK = """
SELECT data FROM pg_logical_slot_peek_binary_changes(%(slot)s, %(upto)s::pg_lsn, %(count)s,
    'proto_version', '1', 'publication_names', %(publications)s, 'messages', 'true')
WHERE get_byte(data, 0) = 77 AND lsn >= %(start)s::pg_lsn
"""


def read_first_shapes(
    connection: Connection, subscription: Subscription, start: Lsn, seal: bytes | None
) -> list[TableShape]:
    """The tables as they were at `start`, where the slot begins.

    Those of a schema that `init` has described are as it says: what it does not name was made since,
    which the stream reports in its turn. Of others, and where there are no triggers, as they are now.
    """
    now = read_published_shapes(connection, subscription.publications)
    described: dict[int, TableShape] = {}
    schemas: set[str] = set()
    for change in _descriptions(connection, subscription, start, seal) if seal else ():
        described = {shape.id: shape for shape in change.tables} | described
        schemas.update(shape.schema_name for shape in change.tables)
        schemas.update(schema.name for schema in change.schemas)
    return [*described.values(), *(shape for shape in now if shape.schema_name not in schemas)]


def _descriptions(
    connection: Connection, subscription: Subscription, start: Lsn, seal: bytes
) -> Iterator[SchemaChange]:
    names = ",".join(f'"{name}"' for name in subscription.publications)
    values = {
        "slot": subscription.slot,
        "start": str(start),
        "upto": str(Lsn(start + _REACH_BYTES)),
        "count": _REACH_CHANGES,
        "publications": names,
    }
    with source_errors(connection, subscription.slot):
        rows = connection.execute(_PEEK, values).fetchall()
    for (data,) in rows:
        message = parse_message(data)
        content = unseal(message.content, seal) if message.prefix == CHANGE_PREFIX else None
        if content is None:
            continue
        try:
            change = read_reported(content, "").change
        except SchemaUnreadable:  # reported where it is delivered, with its place
            continue
        if change.tag == REFRESH:
            yield change
