"""Streams of a log: how they are made where they are missing, and how their messages are read in order."""

from __future__ import annotations

import asyncio
import logging
import queue
from typing import TYPE_CHECKING, Any, TypeVar

from nats import errors as nats_errors
from nats.js import api
from nats.js.errors import NotFoundError

from penstock.errors import LogGone, LogRefused, LogUnreachable
from penstock.log.broker.transport import Kept
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from penstock.brokers.nats.client import Connection

_log = logging.getLogger(__name__)

# So many are asked for at once, and so many may wait to be taken.
_AT_ONCE = 64
_MOST_WAITING = 256
# Pieces, each of which may be as large as a message can be.
_MOST_ON_THEIR_WAY = 8
# A server hangs up on who takes so long to read what is on its way that 10 s (`write_deadline`) do not suffice.
_MOST_READ_BYTES = 1024 * 1024

PIECE_BYTES = 1_000_000
"""How large a piece is at most."""

_tasks: set[asyncio.Task[None]] = set()

Given = TypeVar("Given")
Done = TypeVar("Done")


def manager(connection: Connection) -> Any:
    """What asks and makes."""
    return connection.client.jsm(timeout=timing().broker_ask_seconds)


def find(connection: Connection, name: str) -> Any:
    """A stream's configuration and state; None where it is not there."""

    async def ask() -> Any:
        try:
            return await manager(connection).stream_info(name)
        except NotFoundError:
            return None

    return connection.run(ask(), f"asking for stream {name}")


def require(connection: Connection, wanted: api.StreamConfig, *, may_create: bool) -> Any:
    """Make sure that a stream is there; its configuration.

    Raises:
        LogRefused: it is not, and may not be made, or cannot be what it is to be.
    """
    name = str(wanted.name)
    found = find(connection, name)
    if found is None and not may_create:
        raise LogRefused(
            f"stream {name} is not there, and create_streams is false",
            connection.place,
            "make it, or set create_streams: true",
        )
    if found is None:
        found = connection.run(manager(connection).add_stream(wanted), f"making stream {name}")
        _log.info("made stream %s", name)
    if refused := problem(found.config, wanted.subjects or (), connection.place):
        raise refused
    return found.config


def problem(config: Any, subjects: Sequence[str], place: str) -> LogRefused | None:
    """Why a stream that is there cannot be a log, or a bucket of reports."""
    name, taken = config.name, list(config.subjects or ())
    if taken != list(subjects) or not config.allow_direct:
        what = (
            f"stream {name} takes {', '.join(taken)} and direct gets: {bool(config.allow_direct)};"
            f" wanted {', '.join(subjects)} and direct gets"
        )
    elif config.retention != api.RetentionPolicy.LIMITS:
        what = (
            f"stream {name} has the retention {api.RetentionPolicy(config.retention).value}, wanted limits: NATS"
            " deletes what its consumers have read, or what nobody waits for, and sinks still need it"
        )
    elif config.no_ack:
        what = f"stream {name} has no_ack and acknowledges nothing: what it does not take would be lost"
    else:
        return None
    do = "delete the stream, and penstock makes it; or choose another name for it under log:"
    return LogRefused(what, place, do)


def delete(connection: Connection, name: str) -> bool:
    """Remove a stream; whether it was there."""
    if find(connection, name) is None:
        return False
    connection.run(manager(connection).delete_stream(name), f"deleting stream {name}")
    return True


def get_all(connection: Connection, stream: str, numbers: Sequence[int], where: str) -> list[bytes]:
    """Messages by their numbers, several asked for at once.

    Raises:
        LogGone: one was deleted.
    """

    async def get() -> list[bytes]:
        asking = connection.client.jsm(timeout=seconds_of_several(connection))

        async def one(number: int) -> bytes:
            found = await asking.get_msg(stream, seq=number, direct=True)
            return bytes(found.data or b"")

        largest = min(PIECE_BYTES, connection.max_payload)
        at_once = max(1, min(_MOST_ON_THEIR_WAY, _MOST_READ_BYTES // largest))
        try:
            return await several(connection, one, numbers, at_once)
        except NotFoundError:
            raise LogGone(
                f"messages of stream {stream} are gone: deleted, by a limit or by hand",
                where,
                "nothing if a sink has passed them; else penstock teardown and init to begin anew",
            ) from None

    return connection.run(get(), "reading pieces of a slice")


def seconds_of_several(connection: Connection) -> float:
    """How long one of several requests may take that share the link; `several` sees to it that something moves."""
    return _MOST_ON_THEIR_WAY * connection.timeout


async def several(
    connection: Connection,
    one: Callable[[Given], Awaitable[Done]],
    given: Sequence[Given],
    at_once: int = _MOST_ON_THEIR_WAY,
) -> list[Done]:
    """Requests that are many or large: so many on their way at once, and who waits goes on waiting while answers come."""
    room = asyncio.Semaphore(at_once)

    async def in_turn(each: Given) -> Done:
        async with room:
            done = await one(each)
            connection.move_on()
            return done

    return list(await asyncio.gather(*map(in_turn, given)))


class StreamTail:
    """Messages of one subject from a number on, and those that come. Taken in one thread at a time."""

    def __init__(self, connection: Connection, stream: str, subject: str, number: int) -> None:
        self._connection = connection
        self._stream = stream
        self._subject = subject
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.has_caught_up = False
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None
        self._room: asyncio.Event = asyncio.Event()
        connection.run(self._begin(max(1, number)), f"reading stream {stream}")

    async def _begin(self, number: int) -> None:
        jetstream = self._connection.client.jetstream(timeout=timing().broker_ask_seconds)
        config = api.ConsumerConfig(
            ack_policy=api.AckPolicy.NONE,
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=number,
            filter_subject=self._subject,
            inactive_threshold=300.0,
            mem_storage=True,
        )
        try:
            consumer = await jetstream.pull_subscribe(
                self._subject, stream=self._stream, config=config
            )
            info = await consumer.consumer_info()
        except NotFoundError:
            raise LogGone(
                f"stream {self._stream} is not there any more",
                self._connection.place,
                "penstock teardown and init to begin anew; with acknowledge: delivered start penstock again, and"
                " the slot sends what no sink has",
            ) from None
        self.has_caught_up = info.num_pending == 0
        self._room.set()
        work = self._pull(consumer, str(info.name), int(info.num_pending or 0))
        self._task = asyncio.get_running_loop().create_task(work)
        # A loop has weak references alone, and a task that is cancelled has something left to do.
        _tasks.add(self._task)
        self._task.add_done_callback(_tasks.discard)

    async def _pull(self, consumer: Any, name: str, pending: int) -> None:
        try:
            # Asked as well as cancelled: the client may take that for a time-out of its own.
            while not self._is_closed:
                await self._room.wait()
                try:
                    # No more than there are: the client would wait until as many have come.
                    found = await consumer.fetch(max(1, min(_AT_ONCE, pending)), timeout=5)
                except (nats_errors.TimeoutError, TimeoutError):
                    pending = 0
                    continue
                pending = int(found[-1].metadata.num_pending) if found else 0
                for message in found:
                    self._waiting.put(message)
                if self._waiting.qsize() >= _MOST_WAITING:
                    self._room.clear()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - raised where the message is wanted
            self._waiting.put(error)
        finally:
            if self._connection.client is not None and self._connection.is_open:
                await self._end(consumer, name)

    async def _end(self, consumer: Any, name: str) -> None:
        """Have the server forget it: else it does so by itself only after a while, and servers may limit how many there are."""
        try:
            await consumer.unsubscribe()
            await manager(self._connection).delete_consumer(self._stream, name)
        except (nats_errors.Error, OSError, TimeoutError) as error:
            _log.debug("a consumer is left: %s", type(error).__name__)

    def poll(self, seconds: float) -> Kept | None:
        """The next one, waited for so long at most."""
        message = self.poll_message(seconds)
        if message is None:
            return None
        found = message.metadata
        return Kept(found.sequence.stream, bytes(message.data), found.timestamp.timestamp())

    def poll_message(self, seconds: float) -> Any:
        """The same, as it came.

        Raises:
            LogUnreachable: the servers are away.
        """
        try:
            message = self._waiting.get(timeout=seconds) if seconds else self._waiting.get_nowait()
        except queue.Empty:
            # It was full when that was looked at, and was emptied before it was said.
            self._want_more()
            if not self._connection.is_open:
                raise LogUnreachable(
                    "the connection is gone", self._connection.place, "nothing, it is tried again"
                ) from None
            return None
        if isinstance(message, Exception):
            raise self._connection.explained(message, f"reading stream {self._stream}")
        if message.metadata.num_pending == 0:
            self.has_caught_up = True
        self._want_more()
        return message

    def _want_more(self) -> None:
        if not self._room.is_set() and self._waiting.qsize() < _AT_ONCE:
            self._connection.call_soon(self._room.set)

    def close(self) -> None:
        """Read no more."""
        self._is_closed = True
        if self._task is not None:
            self._connection.call_soon(self._task.cancel)
            self._task = None
