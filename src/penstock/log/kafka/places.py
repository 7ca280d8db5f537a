"""Which topics the logs and boards of a pipeline are."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from penstock.brokers.names import fill
from penstock.log.broker.log import BrokerLog
from penstock.log.kafka.board import KafkaBoard
from penstock.log.kafka.clients import Settings
from penstock.log.kafka.kind import topic_of
from penstock.log.kafka.topic import LogTopic
from penstock.log.kafka.transport import KafkaTransport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.log.contract import LogOwner
    from penstock.log.kafka.options import KafkaLogOptions


def log_of(options: KafkaLogOptions, owner: LogOwner) -> BrokerLog:
    """The log of one source. All who read it in this process share clients."""
    whose = f"{owner.pipeline}/{owner.source_id}"
    topic = topic_of(options, owner)
    return BrokerLog(
        _reading(_Key(options), topic, whose),
        lambda: KafkaTransport(options, topic, f"penstock/{whose}/log"),
        whose,
        options.keyring(),
    )


def board_of(options: KafkaLogOptions, pipeline: str) -> KafkaBoard:
    """The board of one pipeline; the same for all in this process."""
    return _board(_Key(options), fill(options.state_topic, pipeline=pipeline), pipeline)


def forget(options: KafkaLogOptions, owners: Sequence[LogOwner]) -> list[str]:
    """Delete topics of logs; which."""
    names = [topic_of(options, owner) for owner in owners]
    topics = [
        LogTopic(Settings.of(options).clients(f"topic {name}"), options, name) for name in names
    ]
    return [f"topic {topic.name}" for topic in topics if topic.delete()]


class _Key:
    """Options as a key of what is kept for them."""

    def __init__(self, options: KafkaLogOptions) -> None:
        self.options = options
        self._text = f"{Settings.of(options).key} {options.config} {options.replication_factor}"

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and other._text == self._text


@functools.lru_cache(maxsize=256)
def _reading(key: _Key, topic: str, owner: str) -> KafkaTransport:
    return KafkaTransport(key.options, topic, f"penstock/{owner}/log")


@functools.lru_cache(maxsize=16)
def _board(key: _Key, topic: str, pipeline: str) -> KafkaBoard:
    return KafkaBoard(key.options, topic, pipeline)
