"""A log on a broker, as everybody but its kind sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.log.background import BackgroundWriter
from penstock.log.broker.find import entry_after, first_entry, require_owner, span_of
from penstock.log.broker.reader import BrokerReader
from penstock.log.broker.writer import BrokerWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.encryption import Keyring
    from penstock.errors import PenstockError
    from penstock.log.broker.transport import Transport
    from penstock.log.contract import LogReader, LogSpan, LogWriter
    from penstock.lsn import Lsn


class BrokerLog:
    """The log of one source. Readers share a transport; a writer has one of its own, which `make` gives."""

    def __init__(
        self, shared: Transport, make: Callable[[], Transport], owner: str, keyring: Keyring
    ) -> None:
        self._make = make
        self._transport = shared
        self._owner = owner
        self._keyring = keyring

    @property
    def place(self) -> str:
        """Topic or stream."""
        return self._transport.place

    def writer(self) -> LogWriter:
        """What appends to it, in a thread of its own where slices are large."""
        return BackgroundWriter(BrokerWriter(self._make(), self._owner, self._keyring))

    def reader(self, after: Lsn) -> LogReader:
        """What reads it from a position on."""
        return BrokerReader(self._transport, after, self._owner, self._keyring)

    def span(self) -> LogSpan:
        """From where to where it goes now.

        Raises:
            LogUnreachable: the broker is away.
        """
        return span_of(self._transport)

    def end_lsn(self) -> Lsn | None:
        """Where everything in it ends."""
        return self.span().end_lsn

    def require_own(self) -> None:
        """See that nobody else's log lies there.

        Raises:
            StateOfAnother: one does.
            LogUnreachable: the broker is away.
        """
        found = first_entry(self._transport)
        if found is not None:
            require_owner(found[1], self._owner, self.place)

    def risk(self, needed_lsn: Lsn) -> PenstockError | None:
        """What of the broker's settings will soon delete what a sink needs, by its age and by number.

        Raises:
            LogUnreachable: the broker is away.
        """
        needed = entry_after(self._transport, needed_lsn)
        return None if needed is None else self._transport.risk(needed.at, 0)
