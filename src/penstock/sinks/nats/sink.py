"""Documents as messages of a JetStream stream: many on their way at once, each acknowledged, each with its document's id.

JetStream cannot hold penstock's position with the messages: penstock keeps it itself, when all are acknowledged. What
comes again after a crash has the same ids, and the server drops it within the stream's duplicate window.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from nats import errors as nats_errors

from penstock.brokers.nats.client import Connection
from penstock.changes.textcolumns import lsn_texts
from penstock.errors import DestinationRefuses, PenstockError, SecondInstance, SinkError
from penstock.findings import Finding
from penstock.sinks.documents.contract import DocumentSink, DocumentsRefused
from penstock.sinks.documents.patterns import Pattern, TablesOfBatch, sizes_of
from penstock.sinks.nats.options import Order, plain_name
from penstock.sinks.nats.stream import Stream, subject_filter
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.sinks.kind import SinkPlace
    from penstock.sinks.nats.options import NatsOptions

# What a message weighs beside its value: headers, whose size hardly varies.
_OVERHEAD_BYTES = 512
_DUPLICATES_AT_ONCE = 200
_LOOKED_AHEAD_BYTES = 16 * 1024 * 1024


class NatsSink(DocumentSink):
    """Publishes to one stream."""

    batch_bytes = 4 * 1024 * 1024

    def __init__(self, place: SinkPlace[NatsOptions]) -> None:
        options = place.options
        self._place = place
        self._options = options
        self._where = f"sink {place.name}"
        self._source = place.source_id
        self._pattern = Pattern(options.subject, place.pipeline, place.source_id)
        self._connection = Connection(options, self._where)
        self._stream = Stream(
            self._connection,
            options,
            options.stream or plain_name(place.pipeline),
            subject_filter(self._pattern),
        )
        self._sender = f"{place.pipeline}.{place.name}"
        self._claim = f"_PENSTOCK.{place.pipeline}.{place.source_id}.{place.name}"
        self._me = uuid.uuid4().hex.encode()
        self._acks: Acks | None = None
        self._largest = 0
        # Of the message that the next one is to stand behind; None while nobody knows which that is.
        self._last_id: str | None = None

    def open(self) -> None:
        """Connect, claim the sink, make sure of the stream."""
        if problem := self._no_order():
            raise problem
        self._connection.open()
        self._connection.run(self._take_claim(), "claiming the sink")
        limit = self._stream.require()
        payload = self._connection.max_payload
        self._largest = min(payload, limit) if limit else payload
        self._acks = Acks(self._connection, self._options.window)
        self._connection.run(self._acks.subscribe(), "subscribing to acknowledgements")

    def _no_order(self) -> DestinationRefuses | None:
        """Whether `order: strict` cannot be had: each source of a pipeline publishes to the sink's one stream."""
        place = self._place
        if self._options.order is not Order.STRICT or place.is_alone:
            return None
        return DestinationRefuses(
            f"{len(place.source_ids)} sources publish to stream {self._stream.name}; order: strict wants one",
            self._where,
            "take order: strict out, or give each source a pipeline and a stream of its own",
        )

    async def _take_claim(self) -> None:
        client = self._connection.client

        async def answer(message: Any) -> None:
            if message.data != self._me:
                await message.respond(self._me)

        # First to answer, then to ask: of two that begin at once, neither overlooks the other.
        await client.subscribe(self._claim, cb=answer)
        inbox = client.new_inbox()
        replies = await client.subscribe(inbox)
        await client.publish(self._claim, self._me, reply=inbox)
        await client.flush(timeout=5)
        try:
            # Ours is there by then, and so are those of others who are connected to the same server.
            await replies.next_msg(timeout=self._claim_seconds)
        except nats_errors.TimeoutError:
            await replies.unsubscribe()
            return
        raise SecondInstance("another process delivers there", self._where, "stop it first")

    @property
    def _claim_seconds(self) -> float:
        is_clustered = len(self._connection.client.discovered_servers) > 0
        return timing().nats_claim_seconds if is_clustered else timing().nats_claim_alone_seconds

    def deliver(self, documents: Iterator[pa.RecordBatch], state: str | None) -> None:
        """Publish, and wait for every acknowledgement."""
        del state  # penstock keeps it
        acks = self._require_acks()
        # All that went before is acknowledged. Which of it ends the stream is not known: of a batch that comes again
        # the server drops what it has, and that may stand before something else.
        self._last_id = None
        refused: dict[str, str] = {}
        acks.begin()
        for batches in _looked_ahead(documents):
            for batch in batches:
                refused |= self._too_large(batch)
            for batch in () if refused else batches:
                self._connection.run(self._publish(batch, acks), "publishing")
        acks.settle()
        self._require_own(acks.take_duplicates())
        if refused:
            raise DocumentsRefused(refused)

    def _require_own(self, numbers: list[int]) -> None:
        """See that what the server dropped stands in the stream as a message of this sink.

        Ids are the same at all sinks of a source, and a stream drops what has an id that it knows: of another sink, to
        another subject, it would be lost without a word.

        Raises:
            DestinationRefuses: it is another sink's.
        """
        for begin in range(0, len(numbers), _DUPLICATES_AT_ONCE):
            some = numbers[begin : begin + _DUPLICATES_AT_ONCE]
            found = self._connection.run(
                self._stream.headers_of(some), "looking at messages that were there already"
            )
            for headers in found:
                sender = headers.get("sink", self._sender)
                if sender != self._sender:
                    pipeline, _, sink = sender.partition(".")
                    raise DestinationRefuses(
                        f"stream {self._stream.name} has document {headers.get('Nats-Msg-Id')} already, from"
                        f" sink {sink} of pipeline {pipeline}, and drops what has the same id",
                        self._where,
                        "give this sink a stream of its own",
                    )

    def _require_acks(self) -> Acks:
        if self._acks is None or not self._connection.is_open:
            raise SinkError("the connection is gone", self._where, "nothing, penstock tries again")
        return self._acks

    def _too_large(self, batch: pa.RecordBatch) -> dict[str, str]:
        sizes = sizes_of(batch.column("value")) + _OVERHEAD_BYTES
        places = np.flatnonzero(sizes > self._largest).tolist()
        ids = batch.column("id")
        return {
            ids[
                place
            ].as_py(): f"a message of {int(sizes[place])} bytes, NATS takes {self._largest}"
            for place in places
        }

    async def _publish(self, batch: pa.RecordBatch, acks: Acks) -> None:
        publish = self._connection.client.publish
        is_strict = self._options.order is Order.STRICT
        for subject, value, headers in self._messages(batch):
            if acks.is_full:
                await acks.room()
            if is_strict and self._last_id is not None:
                headers["Nats-Expected-Last-Msg-Id"] = self._last_id
            await publish(subject, value, acks.next_reply(), headers)
            if is_strict and (self._last_id is not None or await acks.last_is_new()):
                self._last_id = headers["Nats-Msg-Id"]

    def _messages(self, batch: pa.RecordBatch) -> Iterator[tuple[str, bytes, dict[str, str]]]:
        subjects = TablesOfBatch.of(batch).each(self._pattern.of)
        values = batch.column("value").cast(pa.large_binary()).to_pylist()
        distinct, numbers = np.unique(batch.column("commit_lsn").to_numpy(), return_inverse=True)
        lsns = lsn_texts(distinct).cast(pa.string()).to_pylist()
        rows = zip(
            subjects,
            values,
            batch.column("id").to_pylist(),
            batch.column("op").to_pylist(),
            numbers.tolist(),
            strict=True,
        )
        for subject, value, one, op, number in rows:
            yield (
                subject,
                value,
                {
                    "Nats-Msg-Id": _header(one),
                    "op": op,
                    "commit_lsn": lsns[number],
                    "source": self._source,
                    "sink": self._sender,
                    "content-type": "application/json",
                },
            )

    def idle(self) -> None:
        """Notice that the connection is gone."""
        if self._acks is not None:
            self._require_acks()

    def interrupt(self) -> None:
        """Wait for the server no longer."""
        self._connection.give_up()

    def check(self) -> Iterator[Finding]:
        """What stands in the way. Changes nothing."""
        if problem := self._no_order():
            yield Finding(problem)
        try:
            self._connection.open()
            found = self._stream.find()
            if found is None and not self._options.create_stream:
                yield Finding(self._stream.absent())
            elif found is not None and (problem := self._stream.problem(found)):
                yield Finding(problem)
            elif found is not None:
                for warning in self._stream.warnings(found):
                    yield Finding(warning, "warning")
        except PenstockError as error:
            yield Finding(error)
        finally:
            self._connection.close()

    def close(self) -> None:
        """Hang up."""
        self._acks = None
        self._connection.close()


class Acks:
    """Counts what was published and what is acknowledged. One inbox for all: a reply says by its subject which it is."""

    def __init__(self, connection: Connection, window: int) -> None:
        self._connection = connection
        self._window = window
        self._sent = 0
        self._acked = 0
        self._last_ack = b""
        self._duplicates: list[int] = []
        self._error: dict[str, Any] | None = None
        self._inbox = ""
        self._moved: asyncio.Event | None = None
        self._denials = 0

    def begin(self) -> None:
        """From here on messages of one batch go."""
        self._denials = self._connection.denials

    async def subscribe(self) -> None:
        """Listen."""
        client = self._connection.client
        self._moved = asyncio.Event()
        self._inbox = client.new_inbox()
        await client.subscribe(f"{self._inbox}.*", cb=self._take)

    async def _take(self, message: Any) -> None:
        self._acked += 1
        self._connection.move_on()
        data = self._last_ack = message.data
        if not data or b'"error":' in data:  # and not a stream of that name
            # The first one is the cause: in strict order all later ones are refused because of it.
            self._error = self._error or _error_of(message)
        elif b'"duplicate"' in data and (found := json.loads(data)).get("duplicate"):
            self._duplicates.append(int(found["seq"]))
        assert self._moved is not None
        self._moved.set()

    def next_reply(self) -> str:
        """Where the next message is acknowledged."""
        self._sent += 1
        return f"{self._inbox}.{self._sent}"

    @property
    def is_full(self) -> bool:
        """Whether as many are on their way as may be."""
        return self._sent - self._acked >= self._window

    def take_duplicates(self) -> list[int]:
        """Where in the stream the messages stand that it had already, since the last time."""
        found, self._duplicates = self._duplicates, []
        return found

    async def room(self) -> None:
        """Wait until some are acknowledged.

        Raises:
            SinkError: the stream refuses one.
            SinkPrivilegeMissing: the server does not allow it.
        """
        await self._until(self._sent - self._window + max(1, self._window // 4))

    async def last_is_new(self) -> bool:
        """Wait until all are acknowledged; whether the last one is in the stream now, and was not before.

        Raises:
            SinkError: the stream refuses one.
            SinkPrivilegeMissing: the server does not allow it.
        """
        await self._until(self._sent)
        return not json.loads(self._last_ack).get("duplicate", False)

    def settle(self) -> None:
        """Wait until all are acknowledged.

        Raises:
            SinkError: one is not.
            SinkPrivilegeMissing: the server does not allow it.
        """
        while self._acked < self._sent or self._error:
            before = self._acked
            self._connection.run(
                self._until(min(self._sent, before + self._window)), "waiting for acknowledgements"
            )

    async def _until(self, count: int) -> None:
        assert self._moved is not None
        while self._acked < count and self._error is None:
            self._moved.clear()
            if not self._connection.is_open:
                raise self._refused("the connection is gone")
            # Nobody acknowledges what was not allowed; no more than that is said of it.
            if denied := self._connection.denied_since(self._denials, "publishing"):
                raise denied
            try:
                await asyncio.wait_for(self._moved.wait(), 0.5)
            except TimeoutError:
                continue
        if self._error is not None:
            raise self._refused(f"{self._error.get('err_code')}: {self._error.get('description')}")

    def _refused(self, what: str) -> SinkError:
        return SinkError(
            f"a message was not taken: {what}",
            self._connection.place,
            "nothing, penstock tries again by itself; where the stream is full, raise its limits or"
            " have its messages taken away",
        )


def _looked_ahead(documents: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """A few batches at once, mostly all: what is refused is known before anything is published. A table that stops is
    published again from its first document on, perhaps when the server has forgotten the ids."""
    some: list[pa.RecordBatch] = []
    for batch in documents:
        some.append(batch)
        if sum(each.nbytes for each in some) >= _LOOKED_AHEAD_BYTES:
            yield some
            some = []
    if some:
        yield some


def _error_of(message: Any) -> dict[str, Any]:
    try:
        return dict(json.loads(message.data)["error"])
    except (ValueError, KeyError, TypeError):
        return {"err_code": 503, "description": "no stream takes the subject"}


# Line ends, a blank at the end, and what looks like one of those that were replaced: else two ids would be one.
_NO_HEADER = re.compile(r"[\r\n]|\s\Z|%(?=[0-9a-f]{2})")


def _header(text: str) -> str:
    """A header's value has no line ends, and no blank at its end; ids hold names of tables, which may."""
    return _NO_HEADER.sub(lambda each: "".join(f"%{byte:02x}" for byte in each[0].encode()), text)
