"""How far a subscription is while its documents are acknowledged in any order."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.sinks.webhook.rows import Place


class Ticket:
    """One document on its way."""

    __slots__ = ("after", "is_done", "lsn", "size")

    def __init__(self, after: Place, size: int, lsn: int | None) -> None:
        self.after = after
        self.size = size
        self.lsn = lsn
        self.is_done = False


class Track:
    """Documents in their order; `place` is the first that is not settled, `size` that of all that are not.

    `lsn` is where the last entry ends of which, and of all before it, everything is settled; 0 while there is none.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.lsn = 0
        self.size = 0
        self._tickets: deque[Ticket] = deque()

    def __len__(self) -> int:
        return len(self._tickets)

    def begin(self, after: Place, size: int = 0, lsn: int | None = None) -> Ticket:
        """A document sets out; `after` is the place, and `lsn` the new one if any, when it and all before it are settled."""
        ticket = Ticket(after, size, lsn)
        self._tickets.append(ticket)
        self.size += size
        return ticket

    def settle(self, ticket: Ticket) -> None:
        """It is delivered, or parked."""
        ticket.is_done = True
        self.size -= ticket.size
        while self._tickets and self._tickets[0].is_done:
            first = self._tickets.popleft()
            self.place = first.after
            if first.lsn is not None:
                self.lsn = first.lsn

    def skip_to(self, place: Place, lsn: int | None = None) -> None:
        """What lies before a place, an entry that ends at `lsn`, is settled as soon as all that is on its way is."""
        self.settle(self.begin(place, lsn=lsn))
