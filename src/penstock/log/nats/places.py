"""Which streams the logs and boards of a pipeline are, and what may be wrong with them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from nats.js import api

from penstock.brokers.names import fill
from penstock.errors import LogAtRisk, LogRefused
from penstock.log.broker.log import BrokerLog
from penstock.log.broker.places import Places
from penstock.log.nats.board import NatsBoard, board_risks, refused_bucket
from penstock.log.nats.connections import Settings, connection_of
from penstock.log.nats.stream import delete, find, problem
from penstock.log.nats.transport import NatsTransport, subjects_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.errors import PenstockError
    from penstock.log.contract import LogOwner
    from penstock.log.nats.options import NatsLogOptions


class NatsPlaces(Places):
    """Streams."""

    unit = "stream"

    def __init__(self, options: NatsLogOptions) -> None:
        super().__init__(options.stream)
        self._options = options

    def log_of(self, owner: LogOwner) -> BrokerLog:
        """The log of one source."""
        options, stream = self._options, self.name_of(owner)
        return BrokerLog(
            NatsTransport(options, stream),
            lambda: NatsTransport(options, stream),
            f"{owner.pipeline}/{owner.source_id}",
            options.keyring(),
        )

    def board_of(self, pipeline: str) -> NatsBoard:
        """The board of one pipeline."""
        options = self._options
        bucket = fill(options.bucket, pipeline=pipeline)
        settings = Settings.of(options)
        return _board(settings, options.replicas, options.create_streams, bucket, pipeline)

    def _delete(self, name: str) -> bool:
        return delete(connection_of(Settings.of(self._options), "log"), name)

    def _risks(self, name: str, place: str) -> Iterator[PenstockError]:
        return _risks_of(self._options, name, place)

    def _board_risks(self, pipeline: str) -> Iterator[PenstockError]:
        bucket = fill(self._options.bucket, pipeline=pipeline)
        place = f"bucket {bucket}"
        found = find(connection_of(Settings.of(self._options), place), f"KV_{bucket}")
        if found is not None:
            for risk in board_risks(found.config, place):
                yield refused_bucket(risk) or risk
            if (found.config.num_replicas or 1) < 2:
                yield LogAtRisk(
                    "the bucket has one replica: positions and shapes of tables are lost with the disk of one server",
                    place,
                    "use replicas: 3 on a cluster",
                )
        elif not self._options.create_streams:
            yield LogRefused(
                "the bucket is not there, and log.create_streams is false",
                place,
                "make it, or set create_streams: true",
            )


@functools.lru_cache(maxsize=16)
def _board(
    settings: Settings, replicas: int, create_streams: bool, bucket: str, pipeline: str
) -> NatsBoard:
    options = settings.options.model_copy(
        update={"replicas": replicas, "create_streams": create_streams}
    )
    return NatsBoard(options, bucket, pipeline)


def _risks_of(options: NatsLogOptions, name: str, place: str) -> Iterator[PenstockError]:
    found = find(connection_of(Settings.of(options), place), name)
    if found is None and not options.create_streams:
        yield LogRefused(
            "the stream is not there, and log.create_streams is false",
            place,
            "make it, or set create_streams: true",
        )
        return
    replicas = options.replicas if found is None else found.config.num_replicas or 1
    if replicas < 3:
        yield LogAtRisk(
            f"the stream has {replicas} replicas: what one server alone has is lost with its disk;"
            " with `acknowledge: delivered` the source's slot still has it, with `acknowledge: logged`"
            " nobody has",
            place,
            "use replicas: 3 on a cluster before you set acknowledge: logged",
        )
    if found is None:
        return  # made without limits
    config = found.config
    if refused := problem(config, subjects_of(name), place):
        yield refused
    if config.storage == api.StorageType.MEMORY:
        yield LogAtRisk(
            "the stream lies in memory: what it has is lost when its servers are started anew; with `acknowledge:"
            " delivered` the source's slot still has it, with `acknowledge: logged` nobody has",
            place,
            "delete it while penstock is stopped and nothing waits in it: penstock makes it on disk",
        )
    yield from _limits_of(config, place)


def _limits_of(config: Any, place: str) -> Iterator[PenstockError]:
    """What a stream deletes or refuses by itself."""
    limits = {"max_age": config.max_age or 0, "max_bytes": max(0, config.max_bytes or 0)}
    limits["max_msgs"] = max(0, config.max_msgs or 0)
    limits["max_msgs_per_subject"] = max(0, config.max_msgs_per_subject or 0)
    for key, limit in limits.items():
        if limit > 0:
            yield LogAtRisk(
                f"{key} of the stream is {limit:g}: NATS deletes or refuses what is beyond, also where a sink that"
                " is behind still needs it",
                place,
                f"take {key} off the stream: penstock itself deletes what every sink has",
            )
