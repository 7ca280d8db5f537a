"""How a table of the source is made: enough to make one like it elsewhere. Reads only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.schema.describe import description_of
from penstock.schema.description import TableDescription
from penstock.source.shapes import read_named_shapes

if TYPE_CHECKING:
    import psycopg

    from penstock.table import TableName

    Connection = psycopg.Connection[Any]

__all__ = ["TableDescription", "describe_table"]


def describe_table(connection: Connection, name: TableName) -> TableDescription | None:
    """The table as it is now, or None when there is no such table."""
    shape = read_named_shapes(connection, [name]).get(name)
    return description_of(shape) if shape is not None else None
