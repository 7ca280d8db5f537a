"""The wire through a broker, for halves that share no disk: reports on a board, and roles held there.

What a process reports itself it also keeps in its own state directory: `status` on the same machine still knows it while
the broker is away. What others have reported counts meanwhile as it was last read.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from penstock.errors import LogError
from penstock.state.reports import from_json, to_json
from penstock.state.wire import file_of
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from penstock.log.contract import Board, Posted
    from penstock.state.directory import StateDirectory
    from penstock.state.reports import R, Report
    from penstock.state.wire import FileWire

_log = logging.getLogger(__name__)


class BoardWire:
    """The last reports of one source's parts, or of the whole pipeline.

    `local`: the same of this machine. `prefix`: whose reports they are among those of the pipeline.
    `capture`: the role of who captures it. `sinks`: all that the file has.
    """

    def __init__(
        self,
        board: Board,
        local: FileWire,
        state: StateDirectory,
        prefix: str,
        capture: str,
        sinks: Collection[str],
    ) -> None:
        self._board = board
        self._local = local
        self._state = state
        self._prefix = prefix
        self._capture = capture
        self._sinks = tuple(sinks)

    def publish(self, report: Report, of: str = "") -> bool:
        """Post it, and keep it here; whether others can read it."""
        if self._state.is_ours():
            self._local.publish(report, of)
        key, unposted = self._key(type(report), of), _unposted.setdefault(self._board, set())
        unposted.add(key)
        if self._rests:
            return False
        began = time.monotonic()
        try:
            self._board.put(key, to_json(report).encode())
        except LogError as error:
            self._rest(error, began)
            return False
        unposted.discard(key)
        return True

    def latest(self, kind: type[R], of: str = "") -> R | None:
        """What was posted last; while the broker is away, what this process or this machine knows."""
        began = time.monotonic()
        try:
            posted = self._posted(kind, of)
        except LogError as error:
            self._rest(error, began)
            if self._is_known_here(kind, of):
                return self._local.latest(kind, of)
            posted = self._board.recall(self._key(kind, of))
        return None if posted is None else from_json(kind, posted.value)

    def published_at(self, kind: type[Report], of: str = "") -> float:
        """When that was, by the clock of who posted it."""
        began = time.monotonic()
        try:
            posted = self._posted(kind, of)
        except LogError as error:
            self._rest(error, began)
            if self._is_known_here(kind, of):
                return self._local.published_at(kind, of)
            posted = self._board.recall(self._key(kind, of))
        return 0.0 if posted is None else max(posted.at, 1.0)

    def withdraw(self, kind: type[Report], of: str = "") -> bool:
        """Take the last one back; whether others can see that. Asks also who did not answer a moment ago: it is not repeated."""
        if self._state.is_ours():
            self._local.withdraw(kind, of)
        began = time.monotonic()
        try:
            if self._board.get(self._key(kind, of)) is not None:
                self._board.put(self._key(kind, of), None)
        except LogError as error:
            self._rest(error, began)
            return False
        return True

    def capturing_run(self) -> str | None:
        """Which run captures right now; while the broker is away, of those on this machine."""
        return self._run_of([self._capture]) or self._local.capturing_run()

    def delivering_run(self, sink: str = "") -> str | None:
        """Which run delivers to a sink, or to any, right now; while the broker is away, of those on this machine."""
        sinks = [sink] if sink else self._sinks
        found = self._run_of([_delivery(each) for each in sinks])
        return found or next(
            (run for each in sinks if (run := self._state.run_of(_lock(each)))), None
        )

    @contextmanager
    def hold_capture(self) -> Iterator[None]:
        """Be the one who captures, here and elsewhere."""
        with self._local.hold_capture(), self._board.hold(self._capture):
            yield

    @contextmanager
    def hold_delivery(self, sinks: Collection[str]) -> Iterator[None]:
        """Be the one who delivers to sinks; others may deliver to others."""
        with ExitStack() as stack:
            for sink in sinks:
                stack.enter_context(self._state.lock(_lock(sink)))
                stack.enter_context(self._board.hold(_delivery(sink)))
                # The same run here as for all others.
                self._state.name_run(_lock(sink), self._board.own_run(_delivery(sink)) or "")
            yield

    def _run_of(self, roles: Collection[str]) -> str | None:
        # A process knows what it holds itself, and reports go by that for as long as it lives.
        own = next((run for role in roles if (run := self._board.own_run(role))), None)
        began = time.monotonic()
        try:
            if own is not None or self._rests:
                return own
            return next((run for role in roles if (run := self._board.run_of(role))), None)
        except LogError as error:
            self._rest(error, began)
            return None

    def _posted(self, kind: type[Report], of: str) -> Posted | None:
        if self._rests:
            raise LogError("the broker was away a moment ago")
        return self._board.get(self._key(kind, of))

    def _key(self, kind: type[Report], of: str) -> str:
        return f"{self._prefix}/{file_of(kind, of)}"

    def _is_known_here(self, kind: type[Report], of: str) -> bool:
        """Whether this machine's own reports say more than what was read of the board: its last one could not be posted."""
        unposted = _unposted.get(self._board, set())
        return not self._board.is_known or self._key(kind, of) in unposted

    @property
    def _rests(self) -> bool:
        return time.monotonic() < _rests_until.get(self._board, 0.0)

    def _rest(self, error: LogError, began: float) -> None:
        """Leave a broker that is away alone for a while: nobody is to wait at each report."""
        if not self._rests:
            _log.debug("cannot report: %s", error)
            # As long as it took to find out: else most of the time would be spent waiting for it.
            now = time.monotonic()
            _rests_until[self._board] = now + max(timing().board_rest_seconds, now - began)


# Until when boards are left alone.
_rests_until: WeakKeyDictionary[Board, float] = WeakKeyDictionary()
# Keys of reports of this process that boards do not have yet.
_unposted: WeakKeyDictionary[Board, set[str]] = WeakKeyDictionary()


def _delivery(sink: str) -> str:
    return f"deliver/{sink}"


def _lock(sink: str) -> str:
    return f"deliver-{sink}"
