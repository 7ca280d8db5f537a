"""Remove everything that a pipeline has made, and nothing else."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from penstock.errors import SecondInstance
from penstock.pipeline import state_of
from penstock.sinks.file.options import FileOptions
from penstock.sinks.file.sink import FileSink
from penstock.sinks.postgres.forget import forget_pipeline
from penstock.sinks.postgres.options import PostgresOptions
from penstock.source.connect import connect_source
from penstock.source.subscription import drop_subscription
from penstock.source.tracking import drop_tracking

if TYPE_CHECKING:
    from penstock.config import PipelineFile


def tear_down(pipeline: PipelineFile) -> list[str]:
    """Remove slot, publications, positions, staging tables and the state directory; what was removed.

    Source first: a slot that is left behind fills the source's disk. Its triggers last: they may be
    an admin's to remove.

    Raises:
        SecondInstance: the pipeline still runs.
        SlotInUse: something else reads the slot.
        SourcePrivilegeMissing: another role installed the triggers; all else is gone.
    """
    state = state_of(pipeline)
    for role in ("capture", "deliver"):
        if state.is_held(role):
            raise SecondInstance(
                f"the pipeline still runs ({role})", str(state.path), "stop it, then tear down"
            )
    has_state = state.path.exists()
    if has_state:
        state.claim()  # never delete a directory that is another's
    removed = []
    with connect_source(pipeline.source.url, "penstock teardown") as connection:
        removed += [
            f"{each} at the source" for each in drop_subscription(connection, pipeline.name)
        ]
    for name in pipeline.sinks:
        removed += [f"{each} at sink {name}" for each in _forget_at_sink(pipeline, name)]
    if has_state:
        shutil.rmtree(state.path)
        removed.append(f"state directory {state.path}")
    with connect_source(pipeline.source.url, "penstock teardown") as connection:
        removed += [f"{each} at the source" for each in drop_tracking(connection)]
    return removed


def _forget_at_sink(pipeline: PipelineFile, name: str) -> list[str]:
    options = pipeline.sinks[name]
    if isinstance(options, PostgresOptions):
        return forget_pipeline(options.url, pipeline.name, pipeline.source_id)
    if isinstance(options, FileOptions):
        return FileSink(name, options, pipeline.name, pipeline.source_id).remove_position()
    return []  # stdout's position lies in the state directory
