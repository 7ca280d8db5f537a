"""One connection of the server: given up where its client neither sends a request nor reads the answer.

uvicorn waits for both without end. Nor does its own limit help: it counts those that wait, and answers everybody
with 503 once there are so many, probes as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.timing import timing

if TYPE_CHECKING:
    import asyncio


# Each is a descriptor. Of more, the one on which least happens makes room.
MOST_CONNECTIONS = 128


class Connection(H11Protocol):
    """Of uvicorn's, with a time limit for the head of a request, and for a client that takes nothing."""

    moved_at = 0.0  # when something last came
    _head_timer: asyncio.TimerHandle | None = None
    _reading_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody has connected."""
        super().connection_made(transport)
        self.moved_at = self.loop.time()
        self._await_head()
        if len(self.connections) > MOST_CONNECTIONS:
            self._make_room()

    def _make_room(self) -> None:
        others = [each for each in self.connections if isinstance(each, Connection)]
        waiting = [each for each in others if each is not self and each.is_waiting]
        # Where all are being answered, who comes now is one too many.
        oldest = min(waiting, key=lambda each: each.moved_at, default=self)
        self.connections.discard(oldest)  # it is told that it is lost in a moment
        oldest.give_up()

    @property
    def is_waiting(self) -> bool:
        """Whether it is the client who is to send something: a request, or the rest of one."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        self._end_head()
        self._end_reading()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Something came: a request, or some of it."""
        super().data_received(data)
        self.moved_at = self.loop.time()
        if self.cycle is None or self.cycle.response_complete:
            self._await_head()
        else:
            self._end_head()

    def _await_head(self) -> None:
        if self._head_timer is None:  # not from the last byte on: one now and then would do
            self._head_timer = self.loop.call_later(timing().server_head_seconds, self.give_up)

    def pause_writing(self) -> None:
        """The client does not read as fast as it is answered."""
        super().pause_writing()
        self._reading_timer = self.loop.call_later(timing().server_reading_seconds, self.give_up)

    def resume_writing(self) -> None:
        """It has read."""
        self._end_reading()
        super().resume_writing()

    def _end_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_reading(self) -> None:
        if self._reading_timer is not None:
            self._reading_timer.cancel()
            self._reading_timer = None

    def give_up(self) -> None:
        """Hang up, at once."""
        self.transport.abort()
