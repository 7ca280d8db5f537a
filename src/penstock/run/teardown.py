"""Remove everything that a pipeline has made, and nothing else."""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING

from penstock.errors import PenstockError, SecondInstance
from penstock.pipeline import state_of, top_of
from penstock.sinks.file.options import FileOptions
from penstock.sinks.file.sink import FileSink
from penstock.sinks.postgres.forget import forget_source, forget_strays
from penstock.sinks.postgres.options import PostgresOptions
from penstock.source.connect import connect_source
from penstock.source.subscription import drop_subscription
from penstock.source.tracking import drop_tracking

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.config import PipelineFile
    from penstock.state.directory import StateDirectory

_log = logging.getLogger(__name__)


def tear_down(pipeline: PipelineFile, views: list[PipelineFile] | None = None) -> list[str]:
    """Remove slot, publications, positions, staging tables and the state directory; what was removed.

    `views` are the sources to leave, None for all: then nothing of the pipeline remains, also of
    sources that are no longer in the file. Otherwise the other sources keep what they have.
    Source first: a slot that is left behind fills the source's disk. Its triggers last: they may be
    an admin's to remove. A source that cannot be reached keeps the others from nothing.

    Raises:
        SecondInstance: the pipeline still runs.
        SlotInUse: something else reads the slot.
        SourcePrivilegeMissing: another role installed the triggers; all else is gone.
    """
    is_whole = views is None
    views = views or pipeline.each()
    top = top_of(pipeline)
    _require_stopped([top, *map(state_of, views)])
    has_state = top.path.exists()
    if has_state:
        top.claim()  # never delete a directory that is another's
    removal = _Removal()
    for view in views:
        removal.attempt(_tear_down_source, view)
    if is_whole and not removal.failures:
        removal.attempt(_forget_strays, pipeline)
    if len(views) == 1 or not removal.removed:
        removal.raise_if_failed()
    if has_state and not removal.failures:
        removal.attempt(_remove_state, pipeline, views)
    for view in views:
        removal.attempt(_drop_tracking, view)
    return removal.end()


class _Removal:
    """What has been removed so far, and what could not be."""

    def __init__(self) -> None:
        self.removed: list[str] = []
        self.failures: list[PenstockError] = []

    def attempt(self, remove: Callable[..., list[str]], *arguments: object) -> None:
        """Remove something; keep what went wrong, so that the rest is removed all the same."""
        try:
            self.removed += remove(*arguments)
        except PenstockError as error:
            self.failures.append(error)

    def raise_if_failed(self) -> None:
        """Raise what went wrong first."""
        if self.failures:
            raise self.failures[0]

    def end(self) -> list[str]:
        """What was removed; logged where something else was not."""
        if self.failures:
            for line in self.removed:
                _log.warning("removed %s", line)
        self.raise_if_failed()
        return self.removed


def _remove_state(pipeline: PipelineFile, views: list[PipelineFile]) -> list[str]:
    """Remove the state of sources; with that of the last one the whole pipeline's."""
    is_all = len(views) == len(pipeline.sources)
    paths = [pipeline.top] if is_all else [view.state for view in views]
    for path in paths:
        shutil.rmtree(path, ignore_errors=not path.exists())
    return [f"state directory {path}" for path in paths]


def _drop_tracking(pipeline: PipelineFile) -> list[str]:
    with connect_source(pipeline.source.url, "penstock teardown") as connection:
        return [f"{each} at {_place(pipeline)}" for each in drop_tracking(connection)]


def _require_stopped(states: list[StateDirectory]) -> None:
    for state in states:
        for role in ("capture", "deliver"):
            if state.is_held(role):
                raise SecondInstance(
                    f"the pipeline still runs ({role})", str(state.path), "stop it, then tear down"
                )


def _tear_down_source(pipeline: PipelineFile) -> list[str]:
    """Remove what a source has of its own, but for its triggers."""
    with connect_source(pipeline.source.url, "penstock teardown") as connection:
        dropped = drop_subscription(connection, pipeline.name)
    removed = [f"{each} at {_place(pipeline)}" for each in dropped]
    for name in pipeline.sinks:
        removed += [f"{each} at sink {name}" for each in _forget_at_sink(pipeline, name)]
    return removed


def _place(pipeline: PipelineFile) -> str:
    return "the source" if pipeline.is_alone else f"source {pipeline.source_id}"


def _forget_at_sink(pipeline: PipelineFile, name: str) -> list[str]:
    options = pipeline.sinks[name]
    if isinstance(options, PostgresOptions):
        return forget_source(options.url, pipeline.name, pipeline.source_id)
    if isinstance(options, FileOptions):
        return FileSink(name, options, pipeline.name, pipeline.source_id).remove_position()
    return []  # stdout's position lies in the state directory


def _forget_strays(pipeline: PipelineFile) -> list[str]:
    removed: list[str] = []
    for name, options in pipeline.sinks.items():
        if not isinstance(options, PostgresOptions):
            continue
        for source, each in forget_strays(options.url, pipeline.name).items():
            removed += [f"{one} of source {source} at sink {name}" for one in each]
            # It was the only place that still knew of it.
            _log.warning(
                "source %s is not in the file: where it still has a slot, that keeps WAL until it is"
                " dropped there",
                source,
            )
    return removed
