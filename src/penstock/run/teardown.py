"""Remove everything that a pipeline has made, and nothing else."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from penstock.errors import PenstockError, SecondInstance, StateUnusable
from penstock.pipeline import forget_logs, top_of, top_wire_of, wire_of
from penstock.source.connect import connect_source
from penstock.source.subscription import drop_subscription
from penstock.source.tracking.install import drop_tracking

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.config import PipelineFile

_log = logging.getLogger(__name__)


@dataclass
class _Teardown:
    """What is gone by now, and what could not be removed."""

    place: Path
    removed: list[str] = field(default_factory=list)
    failures: list[PenstockError] = field(default_factory=list)

    def attempt(self, remove: Callable[[], list[str]]) -> bool:
        """Remove something; whether it is gone. That it cannot be keeps the rest from nothing."""
        try:
            self.removed += remove()
        except PenstockError as error:
            self.failures.append(error)
            return False
        except OSError as error:  # of a file that is in the way, or not ours to remove
            self.failures.append(
                StateUnusable(
                    f"cannot be removed: {error.strerror}",
                    str(error.filename or self.place),
                    "remove it by hand, or make its directory writable for this user, and tear down again",
                )
            )
            return False
        return True

    def fail(self) -> NoReturn:
        """Say what is gone all the same, and raise the first failure."""
        for line in self.removed:
            _log.warning("removed %s", line)
        for error in self.failures[1:]:
            _log.error("%s", error)
        raise self.failures[0]


def tear_down(pipeline: PipelineFile, views: list[PipelineFile] | None = None) -> list[str]:
    """Remove slot, publications, positions, staging tables and the state directory; what was removed.

    `views` are the sources to leave, None for all: then nothing of the pipeline remains, also of
    sources that are no longer in the file. Otherwise the other sources keep what they have.
    Source first: a slot that is left behind fills the source's disk. Its triggers last: they may be
    an admin's to remove. A source that cannot be reached keeps the others from nothing, nor does a sink; the state
    directory stays for another attempt.

    Raises:
        SecondInstance: the pipeline still runs.
        SlotInUse: something else reads the slot.
        SourcePrivilegeMissing: another role installed the triggers; all else is gone.
    """
    leaving = views or pipeline.each()
    top = top_of(pipeline)
    _require_stopped(pipeline, leaving)
    has_state = top.path.exists()
    if has_state:
        top.claim()  # never delete a directory that is another's
    work = _Teardown(pipeline.top)
    for view in leaving:
        _leave(view, work)
    if views is None and not work.failures:
        work.attempt(partial(_forget_orphans, pipeline))
    if work.failures and (len(leaving) == 1 or not work.removed):
        work.fail()
    if not work.failures:
        work.attempt(partial(_remove_state, pipeline, leaving))
    for view in leaving:
        work.attempt(partial(_drop_triggers, view))
    if work.failures:
        work.fail()
    return work.removed


def _leave(view: PipelineFile, work: _Teardown) -> None:
    """A source that keeps its slot keeps its positions: it can go on."""
    if work.attempt(partial(_remove_subscription, view)):
        for name in view.sinks:
            work.attempt(partial(_forget_at_sink, view, name))


def _require_stopped(pipeline: PipelineFile, leaving: list[PipelineFile]) -> None:
    for wire in (top_wire_of(pipeline), *map(wire_of, leaving)):
        roles = {"capture": wire.capturing_run(), "deliver": wire.delivering_run()}
        for role, run in roles.items():
            if run is not None:
                raise SecondInstance(
                    f"the pipeline still runs ({role})",
                    str(pipeline.top),
                    "stop it, then tear down",
                )


def _remove_subscription(pipeline: PipelineFile) -> list[str]:
    """Remove slot and publications of a source."""
    with connect_source(pipeline.source.url, "penstock teardown") as connection:
        dropped = drop_subscription(connection, pipeline.name)
    return [f"{each} at {_place(pipeline)}" for each in dropped]


def _forget_at_sink(pipeline: PipelineFile, name: str) -> list[str]:
    """Remove the position of a source at a sink."""
    forgotten = pipeline.kind_of(name).forget(pipeline.place_of(name))
    return [f"{each} at sink {name}" for each in forgotten]


def _forget_orphans(pipeline: PipelineFile) -> list[str]:
    """Remove what sinks still have of sources that are not in the file any more."""
    removed: list[str] = []
    for name, options in pipeline.sinks.items():
        orphans = pipeline.kind_of(name).forget_orphans(options, pipeline.name)
        for source, forgotten in orphans.items():
            removed += [f"{each} of source {source} at sink {name}" for each in forgotten]
            # It was the only place that still knew of it.
            _log.warning(
                "source %s is not in the file: where it still has a slot, that keeps WAL until it is"
                " dropped there",
                source,
            )
    return removed


def _remove_state(pipeline: PipelineFile, leaving: list[PipelineFile]) -> list[str]:
    """Remove the state directory, or those of the sources that leave others behind."""
    is_all = len(leaving) == len(pipeline.sources)
    removed = forget_logs(pipeline, leaving, is_all=is_all)
    paths = [pipeline.top] if is_all else [view.state for view in leaving]
    paths = [path for path in paths if path.exists()]
    for path in paths:
        shutil.rmtree(path)
    return [*removed, *(f"state directory {path}" for path in paths)]


def _drop_triggers(pipeline: PipelineFile) -> list[str]:
    with connect_source(pipeline.source.url, "penstock teardown") as connection:
        return [f"{each} at {_place(pipeline)}" for each in drop_tracking(connection)]


def _place(pipeline: PipelineFile) -> str:
    return "the source" if pipeline.is_alone else f"source {pipeline.source_id}"
