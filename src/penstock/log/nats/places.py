"""Which streams the logs and boards of a pipeline are, and what may be wrong with them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from penstock.brokers.names import fill
from penstock.errors import LogAtRisk, PenstockError
from penstock.log.broker.log import BrokerLog
from penstock.log.nats.board import NatsBoard
from penstock.log.nats.connections import Settings, connection_of
from penstock.log.nats.kind import stream_of
from penstock.log.nats.stream import delete, find
from penstock.log.nats.transport import NatsTransport

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.log.contract import LogOwner
    from penstock.log.nats.options import NatsLogOptions


def log_of(options: NatsLogOptions, owner: LogOwner) -> BrokerLog:
    """The log of one source."""
    stream = stream_of(options, owner)
    return BrokerLog(
        NatsTransport(options, stream),
        lambda: NatsTransport(options, stream),
        f"{owner.pipeline}/{owner.source_id}",
        options.keyring(),
    )


def board_of(options: NatsLogOptions, pipeline: str) -> NatsBoard:
    """The board of one pipeline; the same for all in this process."""
    bucket = fill(options.bucket, pipeline=pipeline)
    return _board(Settings.of(options), options.replicas, options.create_streams, bucket, pipeline)


@functools.lru_cache(maxsize=16)
def _board(
    settings: Settings, replicas: int, create_streams: bool, bucket: str, pipeline: str
) -> NatsBoard:
    options = settings.options.model_copy(
        update={"replicas": replicas, "create_streams": create_streams}
    )
    return NatsBoard(options, bucket, pipeline)


def forget(options: NatsLogOptions, owners: Sequence[LogOwner]) -> list[str]:
    """Delete streams of logs; which."""
    names = [stream_of(options, owner) for owner in owners]
    connection = connection_of(Settings.of(options), "log")
    return [f"stream {name}" for name in names if delete(connection, name)]


def problems(options: NatsLogOptions, owners: Sequence[LogOwner]) -> list[PenstockError]:
    """Everything that can be known before the start. Changes nothing."""
    names = {owner.source_id: stream_of(options, owner) for owner in owners}
    if len(set(names.values())) < len(names):
        return [
            LogAtRisk(
                f"{len(names)} sources have one stream, wanted one for each",
                f"log.stream {options.stream}",
                "put {source} into log.stream",
            )
        ]
    try:
        return [each for name in names.values() for each in _of_stream(options, name)]
    except PenstockError as error:
        return [error]


def _of_stream(options: NatsLogOptions, name: str) -> Iterator[PenstockError]:
    place = f"stream {name}"
    found = find(connection_of(Settings.of(options), place), name)
    if found is None and not options.create_streams:
        yield LogAtRisk(
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
    limits = {"max_age": config.max_age or 0, "max_bytes": max(0, config.max_bytes or 0)}
    limits["max_msgs"] = max(0, config.max_msgs or 0)
    for key, limit in limits.items():
        if limit > 0:
            yield LogAtRisk(
                f"{key} of the stream is {limit:g}: NATS deletes or refuses what is beyond, also where a sink that"
                " is behind still needs it",
                place,
                f"take {key} off the stream: penstock itself deletes what every sink has",
            )
