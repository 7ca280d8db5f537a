"""The kind `nats`: a log in streams of JetStream, which capture and delivery on different machines share."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from penstock.brokers.names import fill
from penstock.extras import require_package
from penstock.log.nats.options import NatsLogOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.errors import PenstockError
    from penstock.log.broker.log import BrokerLog
    from penstock.log.contract import Board, LogKind, LogOwner
    from penstock.log.options import LogOptions


class NatsKind:
    """Says what the rest asks of a kind of log."""

    name = "nats"
    options: ClassVar[type[LogOptions]] = NatsLogOptions

    def log_of(self, options: LogOptions, owner: LogOwner) -> BrokerLog:
        """The stream of a source."""
        found = _own(options)
        from penstock.log.nats.places import log_of

        return log_of(found, owner)

    def board_of(self, options: LogOptions, pipeline: str) -> Board:
        """The bucket of what the halves report."""
        found = _own(options)
        from penstock.log.nats.places import board_of

        return board_of(found, pipeline)

    def forget(self, options: LogOptions, owners: Sequence[LogOwner]) -> list[str]:
        """Delete the streams of sources."""
        found = _own(options)
        from penstock.log.nats.places import forget

        return forget(found, owners)

    def check(self, options: LogOptions, owners: Sequence[LogOwner]) -> list[PenstockError]:
        """What may lose or delete what a sink needs."""
        found = _own(options)
        from penstock.log.nats.places import problems

        return problems(found, owners)


def _own(options: LogOptions) -> NatsLogOptions:
    require_package("nats", "nats", "log")
    assert isinstance(options, NatsLogOptions)
    return options


def stream_of(options: NatsLogOptions, owner: LogOwner) -> str:
    """The name of a source's stream."""
    return fill(options.stream, pipeline=owner.pipeline, source=owner.source_id)


KIND: LogKind = NatsKind()
