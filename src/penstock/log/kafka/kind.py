"""The kind `kafka`: a log in topics, which capture and delivery on different machines share."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from penstock.brokers.names import fill
from penstock.extras import require_package
from penstock.log.kafka.options import KafkaLogOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.errors import PenstockError
    from penstock.log.broker.log import BrokerLog
    from penstock.log.contract import Board, LogKind, LogOwner
    from penstock.log.options import LogOptions


class KafkaKind:
    """Says what the rest asks of a kind of log."""

    name = "kafka"
    options: ClassVar[type[LogOptions]] = KafkaLogOptions

    def log_of(self, options: LogOptions, owner: LogOwner) -> BrokerLog:
        """The topic of a source."""
        found = _own(options)
        from penstock.log.kafka.places import log_of

        return log_of(found, owner)

    def board_of(self, options: LogOptions, pipeline: str) -> Board:
        """The topic of what the halves report."""
        found = _own(options)
        from penstock.log.kafka.places import board_of

        return board_of(found, pipeline)

    def forget(self, options: LogOptions, owners: Sequence[LogOwner]) -> list[str]:
        """Delete the topics of sources."""
        found = _own(options)
        from penstock.log.kafka.places import forget

        return forget(found, owners)

    def check(self, options: LogOptions, owners: Sequence[LogOwner]) -> list[PenstockError]:
        """What may lose or delete what a sink needs."""
        found = _own(options)
        from penstock.log.kafka.check import problems

        return problems(found, owners)


def _own(options: LogOptions) -> KafkaLogOptions:
    require_package("confluent_kafka", "kafka", "log")
    assert isinstance(options, KafkaLogOptions)
    return options


def topic_of(options: KafkaLogOptions, owner: LogOwner) -> str:
    """The name of a source's topic."""
    return fill(options.topic, pipeline=owner.pipeline, source=owner.source_id)


KIND: LogKind = KafkaKind()
