"""Which topics the logs and boards of a pipeline are."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from penstock.brokers.names import fill
from penstock.log.broker.log import BrokerLog
from penstock.log.broker.places import Places
from penstock.log.kafka.board import KafkaBoard
from penstock.log.kafka.check import name_problems, risks, state_risks
from penstock.log.kafka.clients import Settings
from penstock.log.kafka.topic import LogTopic
from penstock.log.kafka.transport import KafkaTransport

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.errors import PenstockError
    from penstock.log.contract import LogOwner
    from penstock.log.kafka.options import KafkaLogOptions


class KafkaPlaces(Places):
    """Topics. All who read a log in this process share clients."""

    unit = "topic"

    def __init__(self, options: KafkaLogOptions) -> None:
        super().__init__(options.topic)
        self._options = options

    def log_of(self, owner: LogOwner) -> BrokerLog:
        """The log of one source."""
        options, topic = self._options, self.name_of(owner)
        whose = f"{owner.pipeline}/{owner.source_id}"
        return BrokerLog(
            _reading(_Key(options), topic, whose),
            lambda: KafkaTransport(options, topic, f"penstock/{whose}/log"),
            whose,
            options.keyring(),
        )

    def board_of(self, pipeline: str) -> KafkaBoard:
        """The board of one pipeline."""
        topic = self._board_name(pipeline)
        return _board(_Key(self._options), topic, pipeline)

    def _delete(self, name: str) -> bool:
        clients = Settings.of(self._options).clients(f"topic {name}")
        return LogTopic(clients, self._options, name).delete()

    def _risks(self, name: str, place: str) -> Iterator[PenstockError]:
        return risks(self._options, name, place)

    def _board_name(self, pipeline: str) -> str:
        return fill(self._options.state_topic, pipeline=pipeline)

    def _board_risks(self, pipeline: str) -> Iterator[PenstockError]:
        name = self._board_name(pipeline)
        return state_risks(self._options, name, f"topic {name}")

    def _name_problems(self, names: Sequence[str], pipeline: str) -> Iterator[PenstockError]:
        names = [*names, self._board_name(pipeline)]
        return name_problems(self._options, names, "log")


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
