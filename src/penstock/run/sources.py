"""Every source of a pipeline: started, or tried again until it can be. None waits for another.

With one source what keeps it from being started ends the command. Among several it is reported, and the
source is started as soon as it can be, without anybody's help.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.pipeline import top_of, top_wire_of
from penstock.retry import BackOff, is_temporary, slow_back_off
from penstock.run.signals import Stop
from penstock.run.start import Databases, Started, start, start_up
from penstock.source.server import emit_mark
from penstock.state.reports import SourceErrors
from penstock.timing import timing

if TYPE_CHECKING:
    from penstock.config import PipelineFile
    from penstock.lsn import Lsn

_log = logging.getLogger(__name__)

_AT_ONCE = 8


def mark_now(pipeline: PipelineFile) -> Lsn:
    """A position that everything committed so far lies before, and that will come down the stream."""
    return emit_mark(pipeline.source.url, "caught up")


@dataclass
class _Source:
    """One source on its way."""

    view: PipelineFile
    started: Started | None = None
    mark_lsn: Lsn | None = None  # what is to be delivered before the command may end
    error: PenstockError | None = None
    attempt: _Attempt | None = None
    retry_at: float = 0.0
    started_at: float = 0.0
    back_off: BackOff = field(default_factory=slow_back_off)


class _Attempt(threading.Thread):
    """One attempt to start a source. A thread, for a server that does not answer takes its time."""

    def __init__(
        self,
        source: _Source,
        databases: Databases,
        room: threading.Semaphore,
        *,
        wants_mark: bool,
    ) -> None:
        super().__init__(name=f"start {source.view.source_id}", daemon=True)
        self._view = source.view
        self._databases = databases
        self._room = room
        self._wants_mark = wants_mark and source.mark_lsn is None
        self.started: Started | None = None
        self.mark_lsn = source.mark_lsn
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Start it; keep what went wrong for the main thread."""
        with self._room:
            try:
                self.started = start(self._view, self._databases)
                if self._wants_mark:
                    self.mark_lsn = mark_now(self._view)
            except BaseException as failure:  # noqa: BLE001 - handed to the main thread
                self.failure = failure
            finally:
                self._databases.report(self._view.source_id)


class Sources:
    """The sources of one pipeline. All methods from one thread.

    `wants_marks`: each is asked to mark what it has committed when it is first started.
    """

    def __init__(self, pipeline: PipelineFile, *, wants_marks: bool = False) -> None:
        self._pipeline = pipeline
        self._wants_marks = wants_marks
        self._sources = {view.source_id: _Source(view) for view in pipeline.each()}
        self._databases = Databases(self._sources)
        self._room = threading.Semaphore(_AT_ONCE)
        self._new: list[tuple[PipelineFile, Started]] = []
        self._reported: dict[str, str] | None = None
        self._top = top_of(pipeline)
        self._wire = top_wire_of(pipeline)

    def begin(self, stop: threading.Event) -> None:
        """Start them; returns as soon as one is, and the others follow.

        A signal ends the command at once until then.

        Raises:
            PenstockError: what keeps the sole source from being started; or the first one of many,
                when none can be and only a person can fix it.
        """
        existed = self._top.path.exists()
        if self._pipeline.is_whole:
            self._top.claim()  # so that two pipelines cannot share it
        if self._pipeline.is_alone:
            self._begin_alone(stop)
            return
        while not stop.is_set() and not self._new:
            self.poll()
            errors = [source.error for source in self._sources.values()]
            if all(error is not None and not is_temporary(error) for error in errors):
                if not existed:
                    shutil.rmtree(self._top.path, ignore_errors=True)
                assert errors[0] is not None
                raise errors[0]
            stop.wait(timing().sources_poll_seconds)
        if isinstance(stop, Stop):
            stop.raises = False

    def _begin_alone(self, stop: threading.Event) -> None:
        [source] = self._sources.values()
        source.started = start_up(source.view, stop)
        source.mark_lsn = mark_now(source.view) if self._wants_marks else None
        self._new.append((source.view, source.started))

    def poll(self) -> None:
        """See which attempts have ended, and begin those that are due."""
        now = time.monotonic()
        for source in self._sources.values():
            if source.attempt is not None and not source.attempt.is_alive():
                self._take_end(source, source.attempt, now)
            if source.started is None and source.attempt is None and now >= source.retry_at:
                source.attempt = _Attempt(
                    source, self._databases, self._room, wants_mark=self._wants_marks
                )
                source.attempt.start()
        self._report()

    def take_started(self) -> list[tuple[PipelineFile, Started]]:
        """Those that have been started, or started again, since this was last asked."""
        new, self._new = self._new, []
        return new

    def fail(self, source_id: str, error: PenstockError) -> None:
        """A source that was started cannot go on; it is started anew when its time has come.

        Raises:
            PenstockError: the same, where there is no other source.
        """
        if self._pipeline.is_alone:
            raise error
        source = self._sources[source_id]
        if time.monotonic() - source.started_at > timing().sources_sound_seconds:
            source.back_off.succeed()
        source.started = None
        self._put_off(source, error)
        self._report()

    def error_of(self, source_id: str) -> PenstockError | None:
        """Why a source is not started."""
        return self._sources[source_id].error

    def marks(self) -> dict[str, Lsn | None]:
        """What is to be delivered of each before the command may end; None: not known yet."""
        return {source_id: source.mark_lsn for source_id, source in self._sources.items()}

    def _take_end(self, source: _Source, attempt: _Attempt, now: float) -> None:
        source.attempt = None
        if attempt.failure is None:
            assert attempt.started is not None
            if source.error is not None:
                _log.info("source %s is followed from now on", source.view.source_id)
            source.started, source.mark_lsn = attempt.started, attempt.mark_lsn
            source.error, source.started_at = None, now
            self._new.append((source.view, attempt.started))
        elif isinstance(attempt.failure, PenstockError):
            self._put_off(source, attempt.failure)
        else:
            raise attempt.failure

    def _put_off(self, source: _Source, error: PenstockError) -> None:
        wait = source.back_off.seconds_after(error)
        is_news = source.error is None or str(source.error) != str(error)
        source.error = error
        source.retry_at = time.monotonic() + wait
        if is_news:
            _log.warning(
                "source %s: %s (tried again from time to time; the others go on)",
                source.view.source_id,
                error,
            )

    def _report(self) -> None:
        """Leave word for `status`: the source's own state directory may not be there."""
        errors = {
            source_id: str(source.error)
            for source_id, source in self._sources.items()
            if source.error is not None
        }
        if errors != self._reported and not self._pipeline.is_alone:
            self._reported = errors
            self._wire.publish(SourceErrors(errors))
