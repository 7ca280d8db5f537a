"""The partitions of followed tables, and which of them had rows before they were one.

Rows come and go with ATTACH, DETACH and DROP of a partition without a change of any row: no stream
reports them. What can be reported is that it has happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.source.connect import source_errors

if TYPE_CHECKING:
    from collections.abc import Collection

    import psycopg

    Connection = psycopg.Connection[Any]

# Who makes a table as a partition makes its row type in the same transaction as the bond to its parent;
# a table that was attached has a bond that is younger than itself, or one of its ancestors has. One that
# is made, filled and attached by a single transaction cannot be distinguished from one made as a partition.
_LEAVES = """
SELECT r.oid::int8, l.oid::int8, concat_ws('.', quote_ident(n.nspname), quote_ident(l.relname)),
       coalesce(pg_relation_size(l.oid), 0) > 0 AND EXISTS (
           SELECT FROM pg_partition_ancestors(l.oid) AS a
           JOIN pg_inherits i ON i.inhrelid = a.relid JOIN pg_type t ON t.typrelid = a.relid
           WHERE i.xmin <> t.xmin)
FROM pg_class r
LEFT JOIN LATERAL pg_partition_tree(r.oid) AS p ON p.isleaf AND p.relid <> r.oid
LEFT JOIN pg_class l ON l.oid = p.relid LEFT JOIN pg_namespace n ON n.oid = l.relnamespace
WHERE r.oid = ANY (%s::oid[]) AND r.relkind = 'p'
ORDER BY 1, 2
"""


class Partition(NamedTuple):
    """One leaf. `came_filled`: it was attached, and has rows that may be older than that."""

    name: str
    came_filled: bool


def read_partitions(
    connection: Connection, roots: Collection[int]
) -> dict[int, dict[int, Partition]]:
    """The leaves of those of the tables that are partitioned, by oids.

    Raises:
        SourceError: or the subclass that says why.
    """
    with source_errors(connection):
        rows = connection.execute(_LEAVES, (list(roots),)).fetchall()
    found: dict[int, dict[int, Partition]] = {}
    for root, leaf, name, came_filled in rows:
        leaves = found.setdefault(root, {})
        if leaf is not None:
            leaves[leaf] = Partition(name, came_filled)
    return found
