"""Remove everything that a pipeline has made, and nothing else."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from penstock.errors import SecondInstance
from penstock.pipeline import state_of
from penstock.sinks.postgres.connect import classify_target_error, connect_target
from penstock.sinks.postgres.options import PostgresOptions
from penstock.source.connect import connect_source
from penstock.source.subscription import drop_subscription

if TYPE_CHECKING:
    from penstock.config import PipelineFile

    Connection = psycopg.Connection[Any]


def tear_down(pipeline: PipelineFile) -> list[str]:
    """Remove slot, publications, positions, staging tables and the state directory; what was removed.

    Source first: a slot that is left behind fills the source's disk.

    Raises:
        SecondInstance: the pipeline still runs.
        SlotInUse: something else reads the slot.
    """
    state = state_of(pipeline)
    for role in ("capture", "deliver"):
        if state.is_held(role):
            raise SecondInstance(
                f"the pipeline still runs ({role})", str(state.path), "stop it, then tear down"
            )
    removed = []
    with connect_source(pipeline.source.url, "penstock teardown") as connection:
        removed += [
            f"{each} at the source" for each in drop_subscription(connection, pipeline.name)
        ]
    for name, options in pipeline.sinks.items():
        if isinstance(options, PostgresOptions):
            try:
                with connect_target(options.url, "penstock teardown") as connection:
                    removed += [
                        f"{each} at sink {name}" for each in _clear_target(connection, pipeline)
                    ]
            except psycopg.Error as error:
                raise classify_target_error(error, options.url) from None
    if state.path.exists():
        state.claim()  # never delete a directory that is another's
        shutil.rmtree(state.path)
        removed.append(f"state directory {state.path}")
    return removed


def _clear_target(connection: Connection, pipeline: PipelineFile) -> list[str]:
    """Forget this pipeline; take the schema away with the last one."""
    with connection.transaction():
        found = connection.execute("SELECT to_regclass('penstock.progress')").fetchone()
        if found is None or found[0] is None:
            return []
        position = connection.execute(
            "DELETE FROM penstock.progress WHERE pipeline = %s", (pipeline.name,)
        )
        connection.execute("DELETE FROM penstock.tables WHERE pipeline = %s", (pipeline.name,))
        left = connection.execute("SELECT count(*) FROM penstock.progress").fetchone()
        if left is not None and left[0] == 0:
            connection.execute(sql.SQL("DROP SCHEMA penstock CASCADE"))
            return ["schema penstock"]
        return ["position"] if position.rowcount else []
