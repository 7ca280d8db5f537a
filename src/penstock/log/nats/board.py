"""A board as a bucket of JetStream's. Who holds a role answers when somebody asks for it."""

from __future__ import annotations

import os
import time
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from nats import errors as nats_errors
from nats.js import api

from penstock.brokers.errors import OF_LOG
from penstock.brokers.nats.client import Connection
from penstock.errors import (
    LogAtRisk,
    LogError,
    LogRefused,
    LogUnreachable,
    PenstockError,
    SecondInstance,
)
from penstock.log.broker.board import MemoryBoard
from penstock.log.nats.connections import Settings
from penstock.log.nats.stream import StreamTail, delete, find, manager, require
from penstock.stopping import is_in_vain
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.log.nats.options import NatsLogOptions

_OPERATION = "KV-Operation"
_DELETES = "NATS deletes"


def board_risks(config: Any, place: str) -> Iterator[LogAtRisk]:
    """What limits of a bucket may do to what is on a board."""
    limits = {name: getattr(config, name) or 0 for name in ("max_age", "max_msgs", "max_bytes")}
    drops = config.discard != api.DiscardPolicy.NEW
    for name, limit in limits.items():
        if limit > 0:
            # Without the rest nobody knows that something is missing: what stands alone is no number in a row.
            is_deleting = name == "max_age" or drops
            does = "positions, requests and shapes of tables" if is_deleting else "more than that"
            yield LogAtRisk(
                f"{_DELETES if is_deleting else 'NATS refuses'} {does}: {name} of the bucket is {limit:g}",
                place,
                f"take {name} off stream KV_{place.removeprefix('bucket ')}",
            )


def refused_bucket(risk: LogAtRisk) -> LogRefused | None:
    """A bucket that deletes what is needed is none; None of other risks."""
    if not risk.what.startswith(_DELETES):
        return None
    return LogRefused(risk.what, risk.where, risk.do)


class NatsBoard(MemoryBoard):
    """The board of one pipeline."""

    def __init__(self, options: NatsLogOptions, bucket: str, pipeline: str) -> None:
        super().__init__(f"bucket {bucket}", options.timeout, pipeline)
        self._bucket = bucket
        self._options = options
        near = Settings.of(options).options.model_copy(
            update={"timeout": min(timing().board_report_seconds, options.timeout)}
        )
        self._connection = Connection(near, self._place, OF_LOG)
        self._tail: StreamTail | None = None
        self._next = 1
        self._listening: dict[str, list[Any]] = {}  # subscriptions by role
        self._opened_by = 0

    @property
    def _stream(self) -> str:
        return f"KV_{self._bucket}"

    def _is_connected(self) -> bool:
        return super()._is_connected() and self._connection.is_open

    def _exists(self) -> bool:
        self._open()
        return find(self._connection, self._stream) is not None

    def _open(self) -> None:
        """Connect; a connection that a parent process had is not ours."""
        if not self._connection.is_open or self._opened_by != os.getpid():
            self._connection.open()
            self._opened_by = os.getpid()

    def _connect(self) -> None:
        self._open()
        wanted = api.StreamConfig(
            name=self._stream,
            subjects=[f"$KV.{self._bucket}.>"],
            storage=api.StorageType.FILE,
            num_replicas=self._options.replicas,
            max_msgs_per_subject=1,
            discard=api.DiscardPolicy.NEW,
            allow_rollup_hdrs=True,
            deny_delete=True,
            allow_direct=True,
        )
        found = require(self._connection, wanted, may_create=self._options.create_streams)
        for risk in board_risks(found, self._place):
            if refused := refused_bucket(risk):
                raise refused
        own = found.max_msg_size or 0
        largest = self._connection.client.max_payload
        self._limit_pieces(min(own, largest) if own > 0 else largest)
        self._tail = StreamTail(self._connection, self._stream, f"$KV.{self._bucket}.>", 1)
        self._next = 1
        for role, run in self._held.items():
            self._connection.run(self._answer(role, run), "holding a role")

    def _catch_up(self) -> None:
        found = find(self._connection, self._stream)
        if found is None:
            self._pid = 0
            raise LogUnreachable("it is not there", self._place, "nothing, penstock makes it anew")
        last = found.state.last_seq
        self._take_until(lambda: self._next > last)

    def _take_next(self, seconds: float) -> bool:
        assert self._tail is not None, "connected first"
        message = self._tail.poll_message(seconds)
        if message is None:
            return False
        found = message.metadata
        self._next = found.sequence.stream + 1
        is_gone = (message.headers or {}).get(_OPERATION) == "DEL"
        key = message.subject.removeprefix(f"$KV.{self._bucket}.")
        value = None if is_gone else bytes(message.data)
        self._take_read(found.sequence.stream, key, value, found.timestamp.timestamp())
        return True

    def _post(self, key: str, value: bytes | None) -> int:
        async def publish() -> int:
            jetstream = self._connection.client.jetstream(timeout=timing().board_report_seconds)
            headers = {_OPERATION: "DEL"} if value is None else None
            done = await jetstream.publish(
                f"$KV.{self._bucket}.{key}", value or b"", headers=headers
            )
            return int(done.seq)

        return self._connection.run(publish(), "reporting")

    def _drop_piece(self, piece: str) -> None:
        """A mark that it is gone would stay in the stream for good."""
        work = manager(self._connection).purge_stream(
            self._stream, subject=f"$KV.{self._bucket}.{piece}"
        )
        self._connection.run(work, "reporting")

    # --- roles ---------------------------------------------------------------------------------

    def _keep_roles(self) -> None:
        """Nothing is due: who holds one answers when asked."""

    def _subject(self, role: str) -> str:
        return f"_PENSTOCK.{self._pipeline}.{role.replace('/', '.')}"

    def _subject_of_run(self, run: str) -> str:
        return f"_PENSTOCK.{self._pipeline}.run.{run}"

    async def _answer(self, role: str, run: str) -> None:
        me = run.encode()

        async def answer(message: Any) -> None:
            if message.data != me:
                await message.respond(me)

        client = self._connection.client
        self._listening[role] = [
            await client.subscribe(subject, cb=answer)
            for subject in (self._subject(role), self._subject_of_run(run))
        ]

    async def _ask(self, role: str, me: bytes) -> str | None:
        """Who else answers for a role."""
        client = self._connection.client
        inbox = client.new_inbox()
        replies = await client.subscribe(inbox)
        try:
            await client.publish(self._subject(role), me, reply=inbox)
            await client.flush(timeout=5)
            is_clustered = len(client.discovered_servers) > 0
            seconds = (
                timing().nats_claim_seconds if is_clustered else timing().nats_claim_alone_seconds
            )
            found = await replies.next_msg(timeout=seconds)
        except nats_errors.TimeoutError:
            return None
        finally:
            await replies.unsubscribe()
        # A server says that nobody listens with an empty message.
        return found.data.decode() or None

    def _holder(self, role: str) -> str | None:
        if role in self._held:
            return self._held[role]
        return self._connection.run(self._ask(role, b"?"), "asking who works")

    @contextmanager
    def hold(self, role: str) -> Iterator[None]:
        """Hold a role alone.

        Raises:
            SecondInstance: another process holds it.
        """
        run = uuid.uuid4().hex
        with self._lock:
            self._require_connected(creates=True)
            if role in self._held:
                raise self._second()
            # First to answer, then to ask: of two that begin at once, neither overlooks the other.
            self._connection.run(self._answer(role, run), "holding a role")
            try:
                if self._connection.run(self._ask(role, run.encode()), "asking who works"):
                    raise self._second()
                former = self._last_run(role)
                if former is not None and self._lives(former):
                    raise self._second()
                self._hold(role, run)
            except PenstockError:
                self._leave(role)
                raise
        try:
            yield
        finally:
            with self._lock:
                self._leave(role)

    def _lives(self, run: str) -> bool:
        """Whether a run that did not answer is there and merely slow; one that was suspended for a session is given up.

        The server knows at once that nobody listens any more.
        """
        deadline = time.monotonic() + timing().nats_session_seconds
        subject = self._subject_of_run(run)

        async def ask() -> bool | None:
            try:
                await self._connection.client.request(subject, b"?", timeout=1)
            except nats_errors.NoRespondersError:
                return False
            except nats_errors.TimeoutError:
                return None
            return True

        while time.monotonic() < deadline and not is_in_vain():
            found = self._connection.run(ask(), "asking who works")
            if found is not None:
                return found
        return False

    def _second(self) -> SecondInstance:
        return SecondInstance(
            "another process works for this pipeline", self._place, "stop it first"
        )

    def _leave(self, role: str) -> None:
        """Answer no more."""
        self._leave_role(role)
        for listening in self._listening.pop(role, ()):
            if self._connection.is_open:
                with suppress(LogError):  # a connection that is gone answers no more, either
                    self._connection.run(listening.unsubscribe(), "leaving a role")

    def forget(self) -> list[str]:
        """Delete the bucket."""
        with self._lock:
            self._open()
            self._require_own()
            was_there = delete(self._connection, self._stream)
            self._connection.close()
            self._pid = 0
            return [f"bucket {self._bucket}"] if was_there else []
