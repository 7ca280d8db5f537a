"""Take penstock's own objects off a target; the tables it has filled stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from penstock.sinks.postgres.connect import connect_target, target_errors
from penstock.sinks.postgres.copy.shadow import shadow_name
from penstock.sinks.postgres.merge.stages import drop_orphans, stage_prefix
from penstock.sinks.postgres.state.objects import has_objects, make_objects
from penstock.sinks.postgres.state.progress import Progress
from penstock.sinks.postgres.state.tables import TargetTables

if TYPE_CHECKING:
    from penstock.dsn import Dsn


_LEFT = """
SELECT source FROM penstock.progress WHERE pipeline = %s
UNION SELECT source FROM penstock.tables WHERE pipeline = %s ORDER BY 1
"""


def forget_source(dsn: Dsn, pipeline: str, source: str) -> list[str]:
    """Remove a source's position and staging tables; the schema goes with the last one of all.

    The pipeline's other sources keep theirs: they go on from there.

    Raises:
        SinkError: or one of its kinds.
    """
    with connect_target(dsn, "penstock teardown") as connection, target_errors(dsn):
        return _forget(connection, pipeline, source)


def forget_orphans(dsn: Dsn, pipeline: str) -> dict[str, list[str]]:
    """Remove what is left of a pipeline whose sources are gone; by source, what was removed.

    These are sources that were taken out of the file: nobody would ever come for them.

    Raises:
        SinkError: or one of its kinds.
        SecondInstance: one is being delivered, by another file of this name.
    """
    removed: dict[str, list[str]] = {}
    with connect_target(dsn, "penstock teardown") as connection, target_errors(dsn):
        if not has_objects(connection):
            return {}
        for (source,) in connection.execute(_LEFT, (pipeline, pipeline)).fetchall():
            Progress(pipeline, source).claim(connection, str(dsn))
            removed[source] = _forget(connection, pipeline, source)
    return removed


def _forget(connection: psycopg.Connection[Any], pipeline: str, source: str) -> list[str]:
    if not has_objects(connection):
        return []
    make_objects(connection)  # what an older penstock has made is known in full then
    drop_orphans(connection, stage_prefix(pipeline, source))
    for table in TargetTables(pipeline, source).read(connection):
        shadow = sql.Identifier(*shadow_name((pipeline, source), table.table))
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(shadow))
    with connection.transaction():
        this = " WHERE pipeline = %s AND source = %s"
        owner = (pipeline, source)
        position = connection.execute("DELETE FROM penstock.progress" + this, owner)
        connection.execute("DELETE FROM penstock.tables" + this, owner)
        connection.execute("DELETE FROM penstock.ranges" + this, owner)
        connection.execute("DELETE FROM penstock.types" + this, owner)
        connection.execute("DELETE FROM penstock.sequences" + this, owner)
        connection.execute("DELETE FROM penstock.schemas" + this, owner)
        connection.execute("DELETE FROM penstock.parked" + this, owner)
        left = connection.execute("SELECT count(*) FROM penstock.progress").fetchone()
        if left is not None and left[0] == 0:
            return _drop_own(connection)
    return ["position"] if position.rowcount else []


def _drop_own(connection: psycopg.Connection[Any]) -> list[str]:
    """The last source of the last pipeline is gone. Where the target is a source as well, its triggers stay."""
    tables = "penstock.progress, penstock.tables, penstock.ranges, penstock.types,"
    tables += " penstock.sequences, penstock.schemas, penstock.parked"
    connection.execute(f"DROP TABLE {tables}")
    try:
        with connection.transaction():
            connection.execute("DROP SCHEMA penstock")
    except psycopg.errors.DependentObjectsStillExist:
        return [f"tables {tables}"]
    return ["schema penstock"]
