"""When requests to one receiver may set out: at once, after `Retry-After`, or after pauses that grow while something fails.

What fails is a document, or the whole receiver. A lane whose document fails waits by itself, longer each time, whatever
becomes of the others. When one begins to fail, the next request of any lane is tried alone: if it is taken, the others go on;
if it is not, the receiver is down, and one request at a time is tried. Only a request that began after the last failure says
that a receiver is up again. Knows no client.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from penstock.retry import BackOff
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.sinks.webhook.doc import Doc
    from penstock.sinks.webhook.track import Ticket


class Lane:
    """Documents that go one after another, and since when the first of them fails."""

    __slots__ = ("back_off", "documents", "error", "failing_since", "retry_at")

    def __init__(self, failing_since: float | None = None, error: str | None = None) -> None:
        self.documents: deque[tuple[Doc, Ticket]] = deque()
        self.failing_since = failing_since
        self.error = error
        self.retry_at = 0.0
        self.back_off: BackOff | None = None

    def fail(self, reason: str, now: float) -> float:
        """It is tried again, later than the last time; since when it fails."""
        self.back_off = self.back_off or _back_off()
        self.retry_at = now + self.back_off.next_seconds()
        self.error = reason
        if self.failing_since is None:
            self.failing_since = time.time()
        return self.failing_since

    def succeed(self) -> None:
        """Its first document is not in its way any more."""
        self.retry_at, self.back_off = 0.0, None
        self.failing_since = self.error = None


class Pace:
    """The pace of one receiver, in the event loop of the dispatcher.

    `failing_since`, `error`: what was recorded of it, by an earlier run for instance. The first lane goes on with it, since it
    begins with the first document that is not settled. Nothing sets out while `goes_on` is not set, nor before `held_until`,
    in seconds since 1970.
    """

    def __init__(
        self,
        give_up_after: float,
        goes_on: asyncio.Event,
        failing_since: float | None,
        error: str | None,
        *,
        held_until: float | None = None,
    ) -> None:
        self._give_up_after = give_up_after
        self._goes_on = goes_on
        self._former = Lane(failing_since, error) if failing_since is not None else None
        self._failing: dict[Lane, None] = {}  # who fails longest is the first
        if self._former is not None:
            self._failing[self._former] = None
        self._down_since = failing_since  # None while the receiver is up
        self._failed_at = 0.0
        self._retry_at = 0.0  # while it is down
        self._back_off = _back_off()
        self._held_until = 0.0  # as the receiver said, by the monotonic clock
        self.held_until: float | None = None  # the same, to be recorded
        if held_until is not None and held_until > time.time():
            self.hold(held_until - time.time())
        self._probe = asyncio.Lock()
        self._probing: Lane | None = None

    @property
    def is_failing(self) -> bool:
        """Whether a document waits for being tried again."""
        return bool(self._failing)

    @property
    def failing_since(self) -> float | None:
        """Since when the one fails that fails longest."""
        return next((each.failing_since for each in self._failing), None)

    @property
    def error(self) -> str | None:
        """Why that one fails."""
        return next((each.error for each in self._failing), None)

    def lane(self) -> Lane:
        """A new lane."""
        former, self._former = self._former, None
        return former or Lane()

    @asynccontextmanager
    async def turn(self, lane: Lane) -> AsyncIterator[None]:
        """Wait until a request of a lane may set out; while the receiver is down nobody else's does within."""
        while True:
            await self._pause(lane.retry_at)
            if self._down_since is None:
                yield
                return
            # In the order in which they come: who has just failed is the last.
            async with self._probe:
                await self._pause(self._retry_at)
                if self._down_since is not None:
                    self._probing = lane
                    try:
                        yield
                    finally:
                        self._probing = None
                    return

    async def _pause(self, until: float) -> None:
        while True:
            await self._goes_on.wait()
            left = max(until, self._held_until) - time.monotonic()
            if left <= 0:
                return
            await asyncio.sleep(left)

    def hold(self, seconds: float) -> None:
        """The receiver says when it wants to be asked again: nothing sets out before."""
        wait = min(seconds, self._give_up_after)
        if time.monotonic() + wait > self._held_until:
            self._held_until = time.monotonic() + wait
            self.held_until = time.time() + wait

    def fail(self, lane: Lane, reason: str, *, is_sent: bool = True) -> bool:
        """A request of a lane was not taken, or, unless `is_sent`, not even tried; whether it is to be given up.

        That is when the lane has failed for so long without a break, or the whole receiver has.
        """
        now = time.monotonic()
        is_down = self._down_since is not None
        # Of one that fails again while others are taken nothing follows for the others.
        is_own = not is_sent or (lane.failing_since is not None and not is_down)
        since = lane.fail(reason, now)
        self._failing.setdefault(lane)
        if not is_own:
            self._failed_at = now
            if self._down_since is None:
                self._down_since, self._retry_at = time.time(), now
            elif lane is self._probing:
                self._retry_at = now + self._back_off.next_seconds()
            since = min(since, self._down_since)
        return time.time() - since > self._give_up_after

    def succeed(self, lane: Lane, began: float) -> None:
        """A request of a lane, that began then by the monotonic clock, was taken, or refused for good."""
        self.forget(lane)
        if self._down_since is not None and began >= self._failed_at:
            self._down_since = None
            self._back_off.succeed()

    def forget(self, lane: Lane) -> None:
        """The first document of a lane is not in its way any more."""
        if lane in self._failing:
            del self._failing[lane]
            lane.succeed()


def _back_off() -> BackOff:
    return BackOff(timing().webhook_retry_seconds, timing().webhook_last_retry_seconds)
