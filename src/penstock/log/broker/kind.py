"""A kind of log on a broker, as the registry finds it. Knows no client: the package of one is an extra."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.extras import require_package

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.errors import PenstockError
    from penstock.log.broker.log import BrokerLog
    from penstock.log.broker.places import Places
    from penstock.log.contract import Board, LogOwner
    from penstock.log.options import LogOptions


class BrokerKind(ABC):
    """Says what the rest asks of a kind of log; its name is that of the extra. Implements LogKind."""

    name: ClassVar[str]
    options: ClassVar[type[LogOptions]]
    package: ClassVar[str]
    """The client, which may not be installed."""

    @abstractmethod
    def _made_places(self, options: Any) -> Places:
        """Topics or streams by options of this kind; imports the client, which is there."""

    def _places(self, options: LogOptions) -> Places:
        require_package(self.package, self.name, "log")
        assert isinstance(options, self.options)
        return self._made_places(options)

    def log_of(self, options: LogOptions, owner: LogOwner) -> BrokerLog:
        """The topic or stream of a source."""
        return self._places(options).log_of(owner)

    def board_of(self, options: LogOptions, pipeline: str) -> Board:
        """Where the halves report."""
        return self._places(options).board_of(pipeline)

    def forget(self, options: LogOptions, owners: Sequence[LogOwner]) -> list[str]:
        """Delete the topics or streams of sources."""
        return self._places(options).forget(owners)

    def check(self, options: LogOptions, owners: Sequence[LogOwner]) -> list[PenstockError]:
        """What may lose or delete what a sink needs."""
        return self._places(options).problems(owners)
