"""Follow a slot: messages in, acknowledgements out. libpq's COPY_BOTH, since psycopg has no
replication client. Knows the replication protocol, not what the messages mean.

https://www.postgresql.org/docs/current/protocol-replication.html
"""

from __future__ import annotations

import enum
import select
import struct
import time
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
from psycopg import pq
from psycopg.errors import error_from_result

from penstock.lsn import Lsn
from penstock.source.connect import classify_source_error, connect_replication
from penstock.source.identity import Answering
from penstock.source.slot import publication_names
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.dsn import Dsn

# w | start u64 | end u64 | sent_at i64 | message
_DATA = b"w"[0]
_DATA_HEADER = 25
# k | end u64 | sent_at i64 | reply wanted u8
_KEEPALIVE = b"k"[0]
_KEEPALIVE_LAYOUT = struct.Struct(">cQqB")
# r | written u64 | flushed u64 | applied u64 | sent_at i64 | reply wanted u8
_STATUS = struct.Struct(">cQQQqB")
_EPOCH_2000 = 946_684_800

# A server that is shutting down asks again and again until all it sent is acknowledged. What no sink
# has must not be acknowledged, so we hang up instead, and it can go.
_SHUTDOWN_REQUESTS = 5

# What IDENTIFY_SYSTEM does not say.
_SERVER = (
    b"SELECT pg_catalog.pg_is_in_recovery(),"
    b" pg_catalog.date_part('epoch', pg_catalog.pg_postmaster_start_time())"
)

# One receive takes about so many messages at most, so that there is time for the rest.
_MOST_MESSAGES = 10_000
# From so many in one receive on a stream is dense; from so many a second on it is a backlog, whose messages
# nobody waits for one by one. See `_Pace`.
_DENSE_MESSAGES = 16
_BACKLOG_RATE = 100_000

# select() knows file descriptors below this one.
_MOST_SELECTED = 1024


class InProgress(enum.Enum):
    """When a large transaction is sent: before it commits, or after."""

    STREAMED = "on"
    WITHHELD = "off"


class ServerShutsDown(psycopg.OperationalError):
    """The server waits for us in order to end."""


class Messages(Protocol):
    """Who takes the messages."""

    def add(self, message: memoryview) -> None:
        """Take one message."""


class _Pace:
    """How long messages of a dense stream are let arrive before they are taken.

    The server sends each message by itself, and a system call that carries one wakes who waits for it. To be
    woken and to sleep again costs both sides more than the messages do. And where nobody reads for
    a while, TCP's window closes: then messages wait at the server, and go out in large pieces.
    A Unix socket has no such window, and blocks the server instead.
    """

    def __init__(self) -> None:
        self._seconds = 0.0

    def wait(self) -> bool:
        """Let some arrive, in a dense stream; whether it is one."""
        if self._seconds:
            time.sleep(self._seconds)
        return self._seconds > 0

    def note(self, count: int) -> None:
        """So many were taken after the last wait."""
        least, longest = timing().stream_gather_seconds, timing().stream_longest_gather_seconds
        if count < _DENSE_MESSAGES:
            self._seconds = 0.0
        elif self._seconds and count >= self._seconds * _BACKLOG_RATE:
            self._seconds = min(2 * self._seconds, longest)
        else:
            self._seconds = least


class SlotStream:
    """One replication connection, streaming one slot."""

    def __init__(
        self, dsn: Dsn, slot: str, publications: Sequence[str], in_progress: InProgress
    ) -> None:
        self._dsn = dsn
        self._in_progress = in_progress
        self._slot = slot
        self._publications = publications
        self._connection: psycopg.Connection[Any] | None = None
        self._pgconn: pq.abc.PGconn | None = None
        self._requests: list[float] = []
        self._pace: _Pace | None = None  # None: every message is taken at once
        self.server_end_lsn = Lsn(0)
        self.keepalive_count = 0
        self.reply_due = False  # the server asked for a sign of life

    def connect(self) -> Answering:
        """Connect; who answers on this very connection, and how far its WAL goes.

        Raises:
            SourceError: or one of its kinds; what fixes it depends on the kind.
        """
        try:
            self._connection = connect_replication(self._dsn, "penstock capture")
            self._pgconn = self._connection.pgconn
            self._pgconn.nonblocking = 1
            self._pace = None if _is_unix_socket(self._pgconn) else _Pace()
            system, timeline, lsn, database = self._ask_row(self._pgconn, b"IDENTIFY_SYSTEM")
            is_standby, started_at = self._ask_row(self._pgconn, _SERVER)
        except psycopg.Error as error:
            self.close()
            raise classify_source_error(error, self._dsn, self._slot) from None
        return Answering(
            system, int(timeline), Lsn.parse(lsn), database, is_standby == "t", started_at
        )

    def start(self, start_lsn: Lsn) -> None:
        """Stream every transaction that commits at or after `start_lsn`, once connected.

        From here on nobody else can use or move the slot.

        Raises:
            SourceError: or one of its kinds; what fixes it depends on the kind.
        """
        try:
            pgconn = self._connected()
            self._ask(pgconn, self._start_command(start_lsn), pq.ExecStatus.COPY_BOTH)
        except psycopg.Error as error:
            self.close()
            raise classify_source_error(error, self._dsn, self._slot) from None

    def _ask_row(self, pgconn: pq.abc.PGconn, command: bytes) -> list[str]:
        result = self._ask(pgconn, command, pq.ExecStatus.TUPLES_OK)
        while pgconn.get_result() is not None:
            pass  # libpq wants to be asked until there is none
        return [(result.get_value(0, column) or b"").decode() for column in range(result.nfields)]

    def _ask(self, pgconn: pq.abc.PGconn, command: bytes, wanted: pq.ExecStatus) -> pq.abc.PGresult:
        """Send a command and wait for its answer, without blocking other threads meanwhile."""
        pgconn.send_query(command)
        while pgconn.flush():
            _wait(pgconn, select.POLLOUT, 1.0)
        deadline = time.monotonic() + timing().stream_answer_seconds
        while pgconn.is_busy():
            if time.monotonic() > deadline:
                raise psycopg.OperationalError(f"no answer to {command.split()[0].decode()}")
            if _wait(pgconn, select.POLLIN, 1.0):
                pgconn.consume_input()
        result = pgconn.get_result()
        if result is None or result.status != wanted:
            raise error_from_result(result) if result else psycopg.OperationalError("no answer")
        return result

    def _start_command(self, start_lsn: Lsn) -> bytes:
        # Prepared transactions come at COMMIT PREPARED, as ordinary ones: the slot does not ask for
        # them earlier. Values come as text, which every version and type has.
        names = publication_names(self._publications)
        options = {
            "proto_version": "2",
            "publication_names": names,
            "messages": "true",
            "streaming": self._in_progress.value,
        }
        written = ", ".join(f"{key} '{value}'" for key, value in options.items())
        return f'START_REPLICATION SLOT "{self._slot}" LOGICAL {start_lsn} ({written})'.encode()

    def receive(self, messages: Messages, wait_seconds: float) -> int:
        """Hand over what has arrived, waiting for it at most `wait_seconds`; the number of messages.

        Raises:
            SourceError: the connection is gone.
        """
        pgconn = self._connected()
        is_dense = self._pace is not None and self._pace.wait()
        try:
            count = self._drain(pgconn, messages)
            if count == 0 and not is_dense and not self._readable(wait_seconds):
                return 0
            while count < _MOST_MESSAGES:
                pgconn.consume_input()  # a few dozen messages
                found = self._drain(pgconn, messages)
                if found == 0:
                    break
                count += found
        except psycopg.Error as error:
            raise classify_source_error(error, self._dsn) from None
        if self._pace is not None:
            self._pace.note(count)
        return count

    def _connected(self) -> pq.abc.PGconn:
        if self._pgconn is None:
            raise classify_source_error(psycopg.OperationalError("not connected"), self._dsn)
        return self._pgconn

    def _readable(self, wait_seconds: float) -> bool:
        return _wait(self._connected(), select.POLLIN, wait_seconds)

    def _drain(self, pgconn: pq.abc.PGconn, messages: Messages) -> int:
        """Take messages until libpq's buffer is empty, or a good many have come."""
        get, add = pgconn.get_copy_data, messages.add
        count = 0
        while count < _MOST_MESSAGES:
            size, raw = get(1)
            if size == 0:
                return count
            if size < 0:
                self._raise_end(pgconn)
            if raw[0] == _DATA:
                add(raw[_DATA_HEADER:])
                count += 1
            elif raw[0] == _KEEPALIVE:
                self._take_keepalive(raw)
        return count

    def _raise_end(self, pgconn: pq.abc.PGconn) -> None:
        result = pgconn.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            raise error_from_result(result)
        raise psycopg.OperationalError("the server ended the replication stream")

    def _take_keepalive(self, raw: memoryview) -> None:
        _, end_lsn, _, reply_wanted = _KEEPALIVE_LAYOUT.unpack(raw)
        self.server_end_lsn = Lsn(end_lsn)
        self.keepalive_count += 1
        if reply_wanted:
            now = time.monotonic()
            self._requests = [
                at for at in self._requests if now - at < timing().stream_shutdown_seconds
            ]
            self._requests.append(now)
            if len(self._requests) > _SHUTDOWN_REQUESTS:
                raise ServerShutsDown("the server is shutting down")
            self.reply_due = True

    def acknowledge(self, received_lsn: Lsn, acknowledged_lsn: Lsn, *, request_reply: bool) -> None:
        """Report to the server what has arrived and what it may forget. Also the sign of life.

        `acknowledged_lsn` must be safe: the server never sends what ends at or before it again.
        """
        pgconn = self._connected()
        sent_at = int((time.time() - _EPOCH_2000) * 1_000_000)
        status = _STATUS.pack(
            b"r", received_lsn, acknowledged_lsn, acknowledged_lsn, sent_at, request_reply
        )
        try:
            pgconn.put_copy_data(status)
            pgconn.flush()
        except psycopg.Error as error:
            raise classify_source_error(error, self._dsn) from None
        self.reply_due = False

    def close(self) -> None:
        """Hang up; the server keeps the slot."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._pgconn = None


def _is_unix_socket(pgconn: pq.abc.PGconn) -> bool:
    # libpq: a host that is a path, or the default directory where none is given.
    return not pgconn.hostaddr


def _wait(pgconn: pq.abc.PGconn, event: int, seconds: float) -> bool:
    """Whether the socket can be read from (POLLIN) or written to (POLLOUT) within that time."""
    fd = pgconn.socket
    if fd >= _MOST_SELECTED:
        poll = select.poll()
        poll.register(fd, event)
        return bool(poll.poll(seconds * 1000))
    # It waits less than a millisecond, where that is asked for.
    readers, writers = ([fd], []) if event == select.POLLIN else ([], [fd])
    return any(select.select(readers, writers, [], seconds))
