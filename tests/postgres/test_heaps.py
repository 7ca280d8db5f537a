"""Where rows lie under a snapshot, also of what was dropped since."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from penstock.snapshot.ranges import cut
from penstock.source.heaps import read_heaps
from penstock.table import TableName

if TYPE_CHECKING:
    from fix_postgres import Database

_TABLES = [TableName("public", name) for name in ("dropped", "kept", "root", "gone_root")]


def test_what_was_dropped_after_the_snapshot_is_reported_and_cannot_be_cut(
    source: Database,
) -> None:
    source.execute(
        "CREATE TABLE dropped (id int); CREATE TABLE kept (id int);"
        "CREATE TABLE root (id int) PARTITION BY LIST (id);"
        "CREATE TABLE leaf PARTITION OF root FOR VALUES IN (1);"
        "CREATE TABLE other_leaf PARTITION OF root FOR VALUES IN (2);"
        "CREATE TABLE gone_root (id int) PARTITION BY LIST (id);"
        "CREATE TABLE gone_leaf PARTITION OF gone_root FOR VALUES IN (1)"
    )
    with source.connect(autocommit=False) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT 1")
        source.execute("DROP TABLE dropped, leaf, gone_root")
        heaps = read_heaps(connection, _TABLES)

    found = {str(heap.table) for heap in heaps if heap.is_gone}
    assert {"public.dropped", "public.gone_root"} <= found
    assert "public.kept" not in found
    assert all(cut(heap.table, [heap]) for heap in heaps)
