"""A log as a stream of two subjects: entries under one, pieces under the other.

An entry is appended only after the one that its writer knows to be the last: whoever is behind is refused. Pieces come
before the entry that names them; those of a writer that was killed are nobody's.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nats.js import api
from nats.js.errors import APIError, NotFoundError

from penstock.errors import LogAtRisk, LogGone, LogUnreachable, PenstockError, SecondInstance
from penstock.log.broker.transport import Bounds
from penstock.log.nats.connections import Settings, connection_of
from penstock.log.nats.stream import (
    PIECE_BYTES,
    StreamTail,
    delete,
    find,
    get_all,
    manager,
    require,
    seconds_of_several,
    several,
)
from penstock.text import size_text
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.brokers.nats.client import Connection
    from penstock.log.nats.options import NatsLogOptions

# Beside the payload: the subject and headers.
_HEADER_BYTES = 1024
_WRONG_LAST_SEQUENCE = 10071


def subjects_of(stream: str) -> list[str]:
    """Those of a log's entries and pieces."""
    return [f"{stream}.entries", f"{stream}.pieces"]


@dataclass(frozen=True)
class NatsLocator:
    """The pieces of one slice: numbers of messages in a stream."""

    settings: Settings
    stream: str
    numbers: tuple[int, ...]
    number: int  # of the entry

    @property
    def where(self) -> str:
        """The place, for errors."""
        return f"stream {self.stream}, entry {self.number}"

    def fetch(self, size: int) -> bytes:
        """The bytes of the slice."""
        connection = connection_of(self.settings, f"stream {self.stream}")
        return b"".join(get_all(connection, self.stream, self.numbers, self.where))[:size]


class NatsTransport:
    """The stream of one source's log."""

    def __init__(self, options: NatsLogOptions, stream: str) -> None:
        self._options = options
        self._settings = Settings.of(options)
        self._stream = stream
        self._last = 0  # the last entry's number, as who writes knows it
        self._is_fresh = True  # nothing was appended since it was opened for writing
        self._is_writing = False
        self.piece_bytes = PIECE_BYTES

    @property
    def place(self) -> str:
        """The stream."""
        return f"stream {self._stream}"

    @property
    def read_seconds(self) -> float:
        """See Transport."""
        return max(timing().log_read_seconds, self._options.timeout)

    @property
    def entries_subject(self) -> str:
        """That of entries."""
        return subjects_of(self._stream)[0]

    @property
    def pieces_subject(self) -> str:
        """That of pieces."""
        return subjects_of(self._stream)[1]

    @property
    def _connection(self) -> Connection:
        return connection_of(self._settings, self.place)

    # --- writing -------------------------------------------------------------------------------

    def open_for_writing(self) -> None:
        """Make the stream where it is missing, and learn where it ends."""
        connection = self._connection
        wanted = api.StreamConfig(
            name=self._stream,
            subjects=subjects_of(self._stream),
            storage=api.StorageType.FILE,
            num_replicas=self._options.replicas,
            # Capture itself lets go of what every sink has: nobody else must.
            discard=api.DiscardPolicy.NEW,
            allow_direct=True,
        )
        config = require(connection, wanted, may_create=self._options.create_streams)
        limit = connection.max_payload
        if config.max_msg_size and config.max_msg_size > 0:
            limit = min(limit, config.max_msg_size)
        self.piece_bytes = min(PIECE_BYTES, limit - _HEADER_BYTES)
        self._last = connection.run(self._last_entry(connection), "asking for the last entry")
        self._is_fresh = self._is_writing = True

    async def _last_entry(self, connection: Connection) -> int:
        try:
            found = await manager(connection).get_last_msg(
                self._stream, self.entries_subject, direct=True
            )
        except NotFoundError:
            return 0
        return int(found.seq or 0)

    @contextmanager
    def append(self) -> Iterator[_Group]:
        """Append a group: its pieces, then its entries."""
        if not self._is_writing:
            raise LogUnreachable(
                "the log is not open", self.place, "nothing, penstock tries again by itself"
            )
        group = _Group(self, self._connection)
        try:
            yield group
        except BaseException:
            self._is_writing = False
            raise
        self._is_fresh = False

    async def publish_entries(self, connection: Connection, data: Sequence[bytes]) -> list[int]:
        """Entries, each after the one before, and after nobody else's."""
        jetstream = connection.client.jetstream(timeout=self._options.timeout)
        numbers = []
        for each in data:
            headers = {"Nats-Expected-Last-Subject-Sequence": str(self._last)}
            try:
                done = await jetstream.publish(self.entries_subject, each, headers=headers)
            except APIError as error:
                if error.err_code != _WRONG_LAST_SEQUENCE:
                    raise
                raise self._behind() from None
            connection.move_on()
            self._last = int(done.seq)
            numbers.append(self._last)
        return numbers

    async def publish_pieces(self, connection: Connection, data: Sequence[bytes]) -> list[int]:
        """Pieces, several on their way at once."""
        jetstream = connection.client.jetstream(timeout=seconds_of_several(connection))

        async def one(piece: bytes) -> int:
            return int((await jetstream.publish(self.pieces_subject, piece)).seq)

        return await several(connection, one, data)

    def _behind(self) -> PenstockError:
        if self._is_fresh:
            return LogUnreachable(
                "somebody else appended to the log at this moment",
                self.place,
                "nothing, penstock tries again by itself",
            )
        return SecondInstance(
            "another process captures this source and has taken over its log",
            self.place,
            "run one capture for each source; nothing was written",
        )

    def close_writing(self) -> None:
        """Append no more."""
        self._is_writing = False

    # --- reading -------------------------------------------------------------------------------

    def bounds(self) -> Bounds | None:
        """Where the stream begins and ends."""
        found = find(self._connection, self._stream)
        if found is None:
            return None
        state = found.state
        return Bounds(state.first_seq, state.last_seq + 1) if state.last_seq else Bounds(0, 0)

    def tail(self, number: int) -> StreamTail:
        """Read from an entry on."""
        return StreamTail(self._connection, self._stream, self.entries_subject, number)

    def fetch(self, pieces: Sequence[int]) -> bytes:
        """Pieces, one after the other."""
        return b"".join(get_all(self._connection, self._stream, pieces, self.place))

    def locator(self, pieces: tuple[int, ...], number: int) -> NatsLocator:
        """What a task reads pieces with."""
        return NatsLocator(self._settings, self._stream, pieces, number)

    # --- keeping -------------------------------------------------------------------------------

    def discard(self, entries_before: int, pieces_before: int) -> None:
        """Have the server delete messages before these."""
        connection = self._connection

        async def purge(subject: str, number: int) -> None:
            await manager(connection).purge_stream(self._stream, seq=number, subject=subject)

        for subject, number in (
            (self.entries_subject, entries_before),
            (self.pieces_subject, pieces_before),
        ):
            if number > 1:
                connection.run(purge(subject, number), f"deleting of stream {self._stream}")

    def forget(self) -> bool:
        """Delete the stream; whether it was there."""
        return delete(self._connection, self._stream)

    def risk(self, oldest_at: float, size_bytes: int) -> PenstockError | None:
        """Whether a limit of the stream is near."""
        found = find(self._connection, self._stream)
        if found is None:
            return LogGone(
                "the stream is not there any more",
                self.place,
                "stop penstock and start it again; teardown first where a sink needs what is gone",
            )
        age, limit = time.time() - oldest_at, found.config.max_age or 0
        config, messages = found.config, found.state.messages
        most, fewest = config.max_bytes or -1, _most_messages(config)
        is_dropping = _is_dropping(config)
        if 0 < limit < 2 * age:
            what = f"the oldest change that a sink still needs is {age / 3600:.1f} hours old, and NATS deletes after {limit / 3600:.1f}"
        elif 0 < most < 2 * size_bytes and is_dropping:
            what = f"sinks still need {size_text(size_bytes)}, and NATS keeps {size_text(most)}"
        elif 0 < fewest < 2 * messages:
            what = f"the stream has {messages} messages, and NATS keeps {fewest}"
        else:
            return None
        return LogAtRisk(
            what, self.place, "take the limit off the stream, or fix the sink that is behind"
        )


def _is_dropping(config: api.StreamConfig) -> bool:
    """Whether what is oldest goes where the stream is full; else what is new is refused."""
    return bool(config.discard != api.DiscardPolicy.NEW)


def _most_messages(config: api.StreamConfig) -> int:
    """With how many the first are dropped; -1 where none are."""
    is_dropping = _is_dropping(config)
    # Of one subject it drops the oldest in any case, unless it is told otherwise.
    counts = [config.max_msgs or -1] if is_dropping else []
    if is_dropping or not config.discard_new_per_subject:
        counts.append(config.max_msgs_per_subject or -1)
    return min((count for count in counts if count > 0), default=-1)


class _Group:
    """What is published in one go."""

    def __init__(self, transport: NatsTransport, connection: Connection) -> None:
        self._transport = transport
        self._connection = connection
        self.numbers: list[int] = []

    def pieces(self, data: Sequence[bytes]) -> list[int]:
        """Publish pieces; their numbers."""
        work = self._transport.publish_pieces(self._connection, data)
        return self._connection.run(work, "appending to the log")

    def entries(self, data: Sequence[bytes]) -> None:
        """Publish entries, in order."""
        work = self._transport.publish_entries(self._connection, data)
        self.numbers += self._connection.run(work, "appending to the log")
