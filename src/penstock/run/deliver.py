"""Loop 2: the logs of all sources are delivered to one sink. One such loop, in one thread, per sink.

It goes round the sources, one batch each, so that none waits for another's backlog. While a batch
commits, the job of the next one already runs, of whichever source that is.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from penstock.errors import (
    PenstockError,
    ReaderGone,
    SinkError,
    SinkLoginRefused,
    SinkPrivilegeMissing,
    SinkTooOld,
)
from penstock.logging import speak_for
from penstock.metrics import NOTHING
from penstock.retry import is_temporary
from penstock.run.commits import Commits
from penstock.timing import timing

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from penstock.metrics import Recorder
    from penstock.run.flow import Flow

_log = logging.getLogger(__name__)


_OF_THE_TARGET = (SinkLoginRefused, SinkPrivilegeMissing, SinkTooOld, ReaderGone)


class Delivery:
    """Delivers to one sink until stopped.

    `is_alone`: there is one source and there will be no other, so that what ends its flow ends all.
    `is_paused`: whether a person holds it; then what is under way ends, and nothing is begun.
    """

    def __init__(
        self,
        name: str,
        stop: threading.Event,
        flows: Sequence[Flow] = (),
        *,
        is_alone: bool = True,
        is_paused: Callable[[], bool] = lambda: False,
        recorder: Recorder = NOTHING,
    ) -> None:
        self.name = name
        self._is_paused = is_paused
        self._recorder = recorder
        self._stop = stop
        self._is_alone = is_alone
        self._commits = Commits(name)
        self._new: list[Flow] = list(flows)
        self._all_at = 0.0
        self._at: Flow | None = None  # whose turn it is
        self.flows: list[Flow] = []

    def add(self, flow: Flow) -> None:
        """Deliver what another source has, too; from another thread."""
        self._new.append(flow)

    def run(self) -> None:
        """Deliver until stopped. Faults that pass with time are waited out.

        Raises:
            PenstockError: one that a person must fix, and that keeps every source from being delivered.
        """
        try:
            while not self._stop.is_set():
                while self._new:
                    self.flows.append(self._new.pop(0))
                self._count_retries()
                if self._is_paused():
                    self._rest()
                    continue
                for flow in self.flows:
                    flow.resume()
                if not self._go_round(time.monotonic()):
                    busy = any(flow.is_busy(time.monotonic()) for flow in self.flows)
                    self._stop.wait(
                        timing().flow_busy_seconds if busy else timing().flow_idle_seconds
                    )
            self._commits.wait()
            self._raise_if_failed()
        finally:
            self._commits.close()
            with ExitStack() as closing:
                for flow in self.flows:
                    closing.callback(flow.close)
                for flow in self.flows:
                    if flow.is_open:  # else it has reported, before its tables were forgotten
                        flow.report()

    def _count_retries(self) -> None:
        """Count what sinks have tried again by themselves."""
        if self._recorder.is_on:
            for _ in range(sum(flow.take_retries() for flow in self.flows)):
                self._recorder.retry(self.name)

    def _rest(self) -> None:
        """Begin nothing, since a person holds the sink; but open it, to report how far it is."""
        self._commits.wait()
        for flow in self.flows:
            if self._stop.is_set():
                break
            self._at = flow
            try:
                flow.pause()
                if flow.is_open and not flow.is_stale:
                    flow.raise_if_failed()
                    flow.rest()
                else:
                    self._take_turn(flow, may_grow=False)
            except PenstockError as error:
                self._fail(flow, error)
        self._stop.wait(timing().flow_idle_seconds)

    def _raise_if_failed(self) -> None:
        """Raise what ended the last commits, unless it would have been waited out.

        A stop cancels a commit that takes too long: nothing has happened, and the next run delivers it.
        """
        for flow in self.flows:
            try:
                flow.raise_if_failed()
            except PenstockError as error:
                if not is_temporary(error):
                    raise
                _log.warning(
                    "sink %s: the last batch is delivered by the next run: %s",
                    self.name,
                    str(error).splitlines()[0],
                )

    def interrupt(self) -> None:
        """Cancel what is under way at the sink; from another thread."""
        for flow in self.flows:
            if flow is self._at or flow.is_committing:
                flow.interrupt()

    def _go_round(self, now: float) -> bool:
        """One batch of each flow that has something; whether any had."""
        has_all = now >= self._all_at
        if has_all:
            self._all_at = now + 0.9 * timing().flow_idle_seconds
        due = [flow for flow in self.flows if flow.is_busy(now) or (has_all and flow.is_due(now))]
        has_moved = False
        for flow in due:
            if self._stop.is_set():
                break
            self._at = flow
            try:
                has_moved |= self._take_turn(flow, may_grow=len(due) == 1)
            except PenstockError as error:
                self._fail(flow, error)
        return has_moved

    def _take_turn(self, flow: Flow, *, may_grow: bool) -> bool:
        now = time.monotonic()
        speak_for("" if self._is_alone else flow.source_id)
        if flow.is_stale:
            self._commits.wait()
            flow.is_stale = False
            flow.close()
        if flow.is_open:
            return flow.take_turn(self._commits, now, may_grow=may_grow)
        if now >= flow.retry_at:
            self._commits.wait()
            flow.open()
        return False

    def _fail(self, flow: Flow, error: PenstockError) -> None:
        """Try again later: this flow, or all when it is the target that failed."""
        concerns_all = type(error) is SinkError or isinstance(error, _OF_THE_TARGET)
        is_news = flow.error is None or str(flow.error) != str(error)
        flow.error = error
        if is_news:
            self._recorder.error(f"sink {self.name}", str(error))
        if (self._is_alone or concerns_all) and not is_temporary(error):
            flow.report()
            raise error
        self._recorder.retry(self.name)
        self._commits.wait()
        flow.report()  # before its tables are forgotten: the log is kept for some
        wait = flow.back_off.seconds_after(error)
        for each in self.flows if concerns_all else [flow]:
            each.close()
            each.retry_at = time.monotonic() + wait
        if is_news or is_temporary(error):
            _log.warning(
                "sink %s: %s (next attempt in %.1f s)", self.name, str(error).splitlines()[0], wait
            )
