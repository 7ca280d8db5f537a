"""One connection of the server: given up where its client neither sends a request nor reads the answer.

uvicorn waits for both without end, and answers nobody else once so many wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.timing import timing

if TYPE_CHECKING:
    import asyncio


class Connection(H11Protocol):
    """Of uvicorn's, with a time limit for the head of a request, and for a client that takes nothing."""

    _head_timer: asyncio.TimerHandle | None = None
    _reading_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody has connected."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        self._end_head()
        self._end_reading()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Something came: a request, or some of it."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._await_head()
        else:
            self._end_head()

    def _await_head(self) -> None:
        if self._head_timer is None:  # not from the last byte on: one now and then would do
            self._head_timer = self.loop.call_later(timing().server_head_seconds, self._give_up)

    def pause_writing(self) -> None:
        """The client does not read as fast as it is answered."""
        super().pause_writing()
        self._reading_timer = self.loop.call_later(timing().server_reading_seconds, self._give_up)

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

    def _give_up(self) -> None:
        self.transport.abort()
