"""How tables of the source look now, in the words of `penstock.schema`. Reads only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.schema.catalog import read_shapes, read_shapes_by_id
from penstock.source.connect import place_of, source_errors
from penstock.source.description import qualified_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from penstock.schema.shape import TableShape
    from penstock.table import TableName

    Connection = psycopg.Connection[Any]

_PUBLISHED = """
SELECT DISTINCT r.prrelid::int8 FROM pg_publication_rel r
JOIN pg_publication p ON p.oid = r.prpubid WHERE p.pubname = ANY (%s)
"""


def read_published_shapes(connection: Connection, publications: Sequence[str]) -> list[TableShape]:
    """The tables of publications."""
    with source_errors(connection), qualified_names(connection):
        oids = [oid for (oid,) in connection.execute(_PUBLISHED, (list(publications),))]
        return list(read_shapes_by_id(connection, oids, place_of(connection)).values())


def read_shape_now(connection: Connection, oid: int) -> TableShape | None:
    """One table by its oid, None when it is gone."""
    with source_errors(connection), qualified_names(connection):
        return read_shapes_by_id(connection, [oid], place_of(connection)).get(oid)


def read_named_shapes(
    connection: Connection, names: Sequence[TableName]
) -> dict[TableName, TableShape]:
    """Those of the tables that are there."""
    with source_errors(connection), qualified_names(connection):
        return read_shapes(connection, names, place_of(connection))
