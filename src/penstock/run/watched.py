"""A run as its HTTP server sees it: a thread keeps the last status in memory, and actions are carried out.

Servers are asked seldom, unless somebody looks or a table is being copied; what the halves report in the
state directory is read in between.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from penstock.errors import BadValue, PenstockError, TrackingBroken
from penstock.pipeline import top_wire_of
from penstock.run.parked import Choice, as_dicts, drop_parked, find_parked, retry_parked
from penstock.run.pauses import set_pause
from penstock.run.requests import change_followed, choose_sources
from penstock.run.status import read_status, refresh_status
from penstock.run.subscriptions import subscriptions_of
from penstock.run.versions import compare_versions, list_versions, show_version
from penstock.schema.difference_text import describe_difference
from penstock.server.serve import watched_run
from penstock.server.watched import Snapshot
from penstock.table import TableRule
from penstock.text import printable
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.config import PipelineFile
    from penstock.metrics import Recorder
    from penstock.run.flow import Flow
    from penstock.run.status import PipelineStatus
    from penstock.sinks.subscriptions import Subscriptions
    from penstock.table import TableName

_log = logging.getLogger(__name__)

CAPTURE_ALONE = frozenset({"capture"})
DELIVER_ALONE = frozenset({"deliver"})
BOTH = CAPTURE_ALONE | DELIVER_ALONE


@contextmanager
def watched(
    pipeline: PipelineFile, halves: frozenset[str]
) -> Iterator[tuple[WatchedRun, Recorder]]:
    """Serve and count what a run does for as long as the block lasts, where the file says so.

    Entered before a source is asked: who probes the process wants an answer while it waits for one.

    Raises:
        SecondInstance: another process runs the same half.
        ServerFailed: the address cannot be listened on, or what that needs is not installed.
    """
    run = WatchedRun(pipeline, halves)
    if pipeline.server.listen is not None:
        _require_first(pipeline, halves)
    with watched_run(run, pipeline.server, is_alone=pipeline.is_alone) as recorder:
        if recorder.is_on:
            run.start()
        try:
            yield run, recorder
        finally:
            run.stop()


def _require_first(pipeline: PipelineFile, halves: frozenset[str]) -> None:
    """Another process of the pipeline has its address as well, and that it runs is the news.

    Raises:
        SecondInstance: there is one, and it does not end within the time that a predecessor is given.
    """
    wire = top_wire_of(pipeline)
    if "deliver" in halves and wire.delivering_run() is not None:
        with wire.hold_delivery(pipeline.sinks):
            pass
    if "capture" in halves and wire.capturing_run() is not None:
        with wire.hold_capture():
            pass


class WatchedRun:
    """Implements `penstock.server.watched.Watched`."""

    def __init__(self, pipeline: PipelineFile, halves: frozenset[str]) -> None:
        self.name = pipeline.name
        self.log = pipeline.log.kind
        self.halves = halves
        self.on_snapshot: Callable[[Snapshot], None] = lambda _: None
        self.on_error: Callable[[str, str], None] = lambda _part, _text: None
        self.flows: Callable[[], Sequence[Flow]] = tuple  # of the loops of this process
        self._pipeline = pipeline
        self._snapshot: Snapshot | None = None
        self._asked: PipelineStatus | None = None  # as servers last said it
        self._wanted_until = float("-inf")
        self._effect_until = float("-inf")
        self._asked_at = float("-inf")
        self._wake = threading.Event()
        self._is_ended = False
        self._known_defects: set[str] = set()  # as many as there are places in the program
        self._standing_defect: str | None = None
        self._thread: threading.Thread | None = None

    # -- the status in memory ---------------------------------------------------------------------

    def start(self) -> None:
        """Keep the status from now on."""
        self._thread = threading.Thread(target=self._keep, name="watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Keep it no more."""
        self._is_ended = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timing().server_stop_seconds)

    def snapshot(self) -> Snapshot | None:
        """The last one."""
        return self._snapshot

    def hurry(self) -> None:
        """Somebody is looking."""
        was_wanted = time.monotonic() < self._wanted_until
        self._wanted_until = time.monotonic() + timing().watch_interest_seconds
        if not was_wanted:
            self._wake.set()

    def _keep(self) -> None:
        while not self._is_ended:
            self._wake.clear()
            try:
                self._take(self._read())
                self._standing_defect = None
            except (PenstockError, OSError) as error:
                # It grows old, and /ready says so. The run itself is not concerned.
                _log.debug("the status cannot be read", exc_info=error)
            except Exception as error:  # noqa: BLE001 - see _report_defect
                self._report_defect(error)
            self._wake.wait(self._pause_seconds())

    def _report_defect(self, error: Exception) -> None:
        """Say so, and count it; the thread goes on.

        A defect here must not end what the pipeline is for, and without this thread probes and metrics would show the
        last status for good: while it cannot be read it grows old, and /ready says so. Each defect is logged once,
        where it is first met, for there is a turn every few seconds; and counted whenever it comes up again.
        """
        last = traceback.extract_tb(error.__traceback__)[-1]
        defect = f"{type(error).__name__} in {last.filename}, line {last.lineno}"
        if defect not in self._known_defects:
            self._known_defects.add(defect)
            _log.error(
                "the status cannot be read: an unexpected %s; please report it",
                type(error).__name__,
                exc_info=error,
            )
        if defect != self._standing_defect:
            self._standing_defect = defect
            self.on_error("status", f"PEN-900 an unexpected {defect}")

    def _read(self) -> PipelineStatus:
        now = time.monotonic()
        asking = self._pipeline.paced(self.asking_seconds(now))
        if self._asked is not None and now - self._asked_at < asking:
            return refresh_status(self._pipeline, self._asked)
        self._asked_at = now
        # A slot that is peeked at cannot be streamed, and this process is about to.
        may_peek = "capture" not in self.halves
        self._asked = read_status(self._pipeline, self._asked, may_peek=may_peek)
        return self._asked

    def _take(self, status: PipelineStatus) -> None:
        version = self._snapshot.version + 1 if self._snapshot is not None else 1
        self._snapshot = Snapshot(status, version, time.time())
        self.on_snapshot(self._snapshot)

    @property
    def _is_copying(self) -> bool:
        return self._snapshot is not None and self._snapshot.status.phase == "copying"

    def asking_seconds(self, now: float) -> float:
        """How often servers are asked. A page that is open all day is no reason to do so all the time."""
        if self._is_copying or now < self._effect_until:
            return timing().watch_live_asking_seconds
        if now < self._wanted_until:
            return timing().watch_seen_asking_seconds
        return timing().watch_asking_seconds

    def _pause_seconds(self) -> float:
        now = time.monotonic()
        is_live = self._is_copying or now < max(self._wanted_until, self._effect_until)
        return timing().watch_live_seconds if is_live else timing().watch_seconds

    def poll_again(self) -> None:
        """Something was changed: have its effect seen soon, which may take some seconds."""
        self._effect_until = time.monotonic() + timing().watch_effect_seconds
        self._asked_at = float("-inf")
        self._wake.set()

    # -- actions ----------------------------------------------------------------------------------

    def change_tables(self, action: str, names: Sequence[str], source: str | None) -> list[str]:
        """Add, remove or resync tables."""
        done = change_followed(self._pipeline, action, names, source)
        for flow in self.flows():
            flow.tables.poll_soon()
        self.poll_again()
        return done

    def retry_tables(self, sink: str, names: Sequence[str], source: str | None) -> list[str]:
        """Try stopped tables again now."""
        wanted = [flow for flow in self.flows() if flow.name == sink]
        wanted = [flow for flow in wanted if source in (None, flow.source_id)]
        if not wanted:
            raise BadValue(f"this process delivers to no sink {sink!r}", "sink", "see /status")
        done = []
        for name, rule in {name: TableRule.parse(name) for name in names}.items():
            found = [
                (flow, table, needs_copy)
                for flow in wanted
                for table, needs_copy in flow.stopped().items()
                if rule.matches(table)
            ]
            for flow, table, needs_copy in found:
                done += self._retry(flow, table, needs_copy=needs_copy)
            if not found:
                done.append(f"{name}: has not stopped")
        self.poll_again()
        return done

    def _retry(self, flow: Flow, table: TableName, *, needs_copy: bool) -> list[str]:
        if needs_copy:
            return change_followed(self._pipeline, "resync", [str(table)], flow.source_id)
        flow.tables.retry_now(table)
        return [f"{table}: is tried again now"]

    def pause(self, sink: str, *, is_paused: bool) -> str:
        """Hold delivery to a sink, or go on."""
        done = set_pause(self._pipeline, sink, is_paused=is_paused)
        self.poll_again()
        return done

    def parked(
        self, sink: str | None, source: str | None, table: str | None, most: int
    ) -> tuple[int, list[dict[str, Any]]]:
        """Changes that are parked."""
        choice = _choice(sink, source, table, ())
        found = as_dicts(find_parked(self._pipeline, choice, most=most))
        snapshot = self._snapshot
        if len(found) < most or snapshot is None:
            return len(found), found
        # Not all were read: how many there are in all is known from the last status.
        known = sum(
            each.parked for name, each in snapshot.status.sinks.items() if sink in (None, name)
        )
        is_whole = table is None and (source is None or self._pipeline.is_alone)
        return max(len(found), known if is_whole else 0), found[:most]

    def change_parked(
        self,
        action: str,
        sink: str | None,
        source: str | None,
        table: str | None,
        ids: Sequence[str],
    ) -> int:
        """Retry or drop parked changes."""
        found = find_parked(self._pipeline, _choice(sink, source, table, ids))
        {"retry": retry_parked, "drop": drop_parked}[action](self._pipeline, found)
        self.poll_again()
        return sum(len(each.entries) for each in found)

    def subscriptions(self) -> dict[str, Subscriptions]:
        """Who has subscribed, by sink."""
        return subscriptions_of(self._pipeline)

    def versions(self, source: str | None, schema: str | None) -> list[dict[str, Any]]:
        """Versions of the schemas of a source, of all sources where none is named.

        None of a source that has none: the page asks by itself, and that is no fault of anybody's.
        """
        found: list[dict[str, Any]] = []
        for view in choose_sources(self._pipeline, source):
            with suppress(TrackingBroken):
                found += [
                    {
                        **vars(each),
                        "created_at": each.created_at.isoformat(),
                        "source": view.source_id,
                    }
                    for each in list_versions(view, schema)
                ]
        return found

    def changes_of_version(self, source: str | None, schema: str, number: int) -> list[str]:
        """What a version changed."""
        view = self._one_source(source)
        known = [each.version for each in list_versions(view, schema)]
        if known and number == min(known):
            return []
        return [
            printable(f"{each.schema}.{each.name}: {describe_difference(each)}")
            for each in compare_versions(view, schema, number - 1, number)
        ]

    def version(self, source: str | None, schema: str, number: int) -> dict[str, Any]:
        """What a schema was in a version."""
        return show_version(self._one_source(source), schema, number)

    def _one_source(self, source: str | None) -> PipelineFile:
        views = choose_sources(self._pipeline, source)
        if len(views) > 1:
            ids = ", ".join(view.source_id for view in views)
            raise BadValue(f"{len(views)} sources, wanted one", "source", f"name one of {ids}")
        return views[0]


def _choice(sink: str | None, source: str | None, table: str | None, ids: Sequence[str]) -> Choice:
    rule = TableRule.parse(table) if table is not None else None
    return Choice(sink, source, rule, frozenset(ids))
