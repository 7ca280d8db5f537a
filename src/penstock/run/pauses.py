"""Sinks that a person has paused: kept in the state directory, so that a restart does not go on by itself."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.errors import BadValue, LogUnreachable
from penstock.pipeline import board_of, top_of, top_wire_of
from penstock.state.reports import Pause
from penstock.timing import timing

if TYPE_CHECKING:
    from penstock.config import PipelineFile
    from penstock.state.wire import Wire


_log = logging.getLogger(__name__)


class PauseWatch:
    """Whether a sink is paused, for its loop, which asks at every turn; from any thread."""

    def __init__(self, wire: Wire, sink: str) -> None:
        self._wire = wire
        self._sink = sink
        self._asked_at = float("-inf")
        self._is_paused = False

    def __call__(self) -> bool:
        """Whether it is; as it was a moment ago."""
        now = time.monotonic()
        if now - self._asked_at > timing().pause_poll_seconds:
            self._asked_at = now
            was_paused, self._is_paused = (
                self._is_paused,
                self._wire.published_at(Pause, self._sink) > 0,
            )
            if self._is_paused is not was_paused:
                self._say()
        return self._is_paused

    def _say(self) -> None:
        """Who has forgotten the pause waits for changes that do not come."""
        if self._is_paused:
            _log.warning(
                "sink %s is paused: nothing is delivered to it until penstock sinks PIPELINE.yml resume %s",
                self._sink,
                self._sink,
            )
        else:
            _log.info("sink %s goes on", self._sink)


def paused_since(pipeline: PipelineFile, sink: str) -> str | None:
    """Since when a sink is paused, as ISO 8601; None when it is not."""
    pause = top_wire_of(pipeline).latest(Pause, sink)
    if pause is None:
        return None
    return datetime.fromtimestamp(pause.since, UTC).isoformat(timespec="seconds")


def set_pause(pipeline: PipelineFile, sink: str, *, is_paused: bool) -> str:
    """Hold delivery to a sink, after the batch and the copies under way, or go on; what comes of it.

    Raises:
        BadValue: there is no such sink.
        LogError: the state directory cannot be used.
        LogUnreachable: the halves share a broker, and it is away.
    """
    if sink not in pipeline.sinks:
        raise BadValue(
            f"no sink {sink!r}, wanted one of {', '.join(pipeline.sinks)}",
            "sink",
            "name a sink as the file does",
        )
    wire = top_wire_of(pipeline)
    if not is_paused:
        if not wire.withdraw(Pause, sink):
            raise _unheard(sink)
        return f"sink {sink}: goes on"
    top_of(pipeline).claim()  # the directory may not be there yet
    before = wire.latest(Pause, sink)
    if not wire.publish(before or Pause(time.time()), sink) and board_of(pipeline) is not None:
        raise _unheard(sink)
    return f"sink {sink}: paused; changes wait in the log, and the source keeps its WAL"


def _unheard(sink: str) -> LogUnreachable:
    return LogUnreachable(
        "the request could not be posted: the broker does not answer",
        f"sink {sink}",
        "try again when it does",
    )
