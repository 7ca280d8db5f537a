"""How far a subscription is while its documents are acknowledged in any order."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.sinks.webhook.rows import Place


class Ticket:
    """One document on its way."""

    __slots__ = ("after", "is_done", "size")

    def __init__(self, after: Place, size: int) -> None:
        self.after = after
        self.size = size
        self.is_done = False


class Track:
    """Documents in their order; `place` is the first that is not settled, `size` that of all that are not."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.size = 0
        self._tickets: deque[Ticket] = deque()

    def __len__(self) -> int:
        return len(self._tickets)

    def begin(self, after: Place, size: int = 0) -> Ticket:
        """A document sets out; `after` is the place when it and all before it are settled."""
        ticket = Ticket(after, size)
        self._tickets.append(ticket)
        self.size += size
        return ticket

    def settle(self, ticket: Ticket) -> None:
        """It is delivered, or parked."""
        ticket.is_done = True
        self.size -= ticket.size
        while self._tickets and self._tickets[0].is_done:
            self.place = self._tickets.popleft().after

    def skip_to(self, place: Place) -> None:
        """What lies before a place is settled as soon as all that is on its way is."""
        self.settle(self.begin(place))
