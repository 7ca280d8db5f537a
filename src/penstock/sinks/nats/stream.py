"""The stream that documents go to: what it takes, and how it is made where it is missing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from nats.js import api
from nats.js.errors import NotFoundError

from penstock.brokers.nats.options import Storage
from penstock.errors import DestinationRefuses, SinkPrivilegeMissing
from penstock.sinks.nats.options import Discard, Order
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.brokers.nats.client import Connection
    from penstock.sinks.documents.patterns import Pattern
    from penstock.sinks.nats.options import NatsOptions


def subject_filter(pattern: Pattern) -> str:
    """What covers every subject of a pattern: of a token that depends on the table, any."""
    known = pattern.text.replace("{pipeline}", pattern.pipeline).replace("{source}", pattern.source)
    return ".".join("*" if "{" in token else token for token in known.split("."))


def covers(wider: str, narrower: str) -> bool:
    """Whether one filter takes everything that another does."""
    wide, narrow = wider.split("."), narrower.split(".")
    if wide[-1] == ">":
        return len(narrow) >= len(wide) and covers(
            ".".join(wide[:-1]) or "", ".".join(narrow[: len(wide) - 1]) or ""
        )
    return len(wide) == len(narrow) and all(
        one in ("*", other) for one, other in zip(wide, narrow, strict=True)
    )


class Stream:
    """One stream, by name."""

    def __init__(
        self, connection: Connection, options: NatsOptions, name: str, filter_: str
    ) -> None:
        self._connection = connection
        self._options = options
        self.name = name
        self._filter = filter_

    def find(self) -> Any:
        """Its configuration, None where it is not there."""
        return self._connection.run(self._find(), f"asking for stream {self.name}")

    async def _find(self) -> Any:
        manager = self._connection.client.jsm(timeout=timing().broker_ask_seconds)
        try:
            return (await manager.stream_info(self.name)).config
        except NotFoundError:
            return None

    def require(self) -> int:
        """Make sure that it is there and takes our subjects; how large a message may be, 0: no limit of its own.

        Raises:
            DestinationRefuses: it is not, or does not.
        """
        found = self.find()
        if found is None:
            if not self._options.create_stream:
                raise self.absent()
            found = self._connection.run(self._create(), f"making stream {self.name}")
        if problem := self.problem(found):
            raise problem
        return max(0, found.max_msg_size or 0)

    async def headers_of(self, numbers: Sequence[int]) -> list[dict[str, str]]:
        """Headers of messages, but for those that are gone.

        Raises:
            SinkPrivilegeMissing: they may not be read.
        """
        # Who is not allowed to ask gets no answer: that is to be seen before the wait as a whole is over.
        seconds = min(timing().broker_ask_seconds, self._connection.timeout / 2)
        manager = self._connection.client.jsm(timeout=seconds)

        async def one(number: int) -> dict[str, str]:
            try:
                found = await manager.get_msg(self.name, number)
            except NotFoundError:
                return {}
            self._connection.move_on()
            return dict(found.headers or {})

        try:
            return list(await asyncio.gather(*map(one, numbers)))
        except TimeoutError:
            if not self._connection.was_denied:
                raise
            raise SinkPrivilegeMissing(
                "the server dropped messages as duplicates, and penstock's user may not look whether they"
                f" are its own: no right to publish to $JS.API.STREAM.MSG.GET.{self.name}",
                self._connection.place,
                "grant it",
            ) from None

    def absent(self) -> DestinationRefuses:
        """What to say where it may not be made."""
        return DestinationRefuses(
            f"stream {self.name} is not there, and create_stream is false",
            self._connection.place,
            "make the stream, or set create_stream: true",
        )

    def problem(self, found: Any) -> DestinationRefuses | None:
        """What is wrong with a stream that is there."""
        if found.no_ack:
            return DestinationRefuses(
                f"stream {self.name} has no_ack and acknowledges nothing: what it does not take would be lost",
                self._connection.place,
                "make another stream, or set no_ack to false",
            )
        subjects: Iterable[str] = found.subjects or ()
        if any(covers(each, self._filter) for each in subjects):
            return self._no_order(found)
        return DestinationRefuses(
            f"stream {self.name} takes {', '.join(subjects) or 'nothing'}; wanted {self._filter}",
            self._connection.place,
            f"add the subject {self._filter} to the stream, or choose another subject or stream",
        )

    def warnings(self, found: Any) -> Iterator[DestinationRefuses]:
        """How a stream that is there does less than the file asks for."""
        options, place = self._options, self._connection.place
        window = found.duplicate_window or 0
        if window < options.duplicate_window:
            yield DestinationRefuses(
                f"stream {self.name} knows ids for {window:g} s; wanted {options.duplicate_window:g} s:"
                " what comes again after a longer outage is in it twice",
                place,
                "raise duplicate_window of the stream, or write into the file what it has",
            )
        is_limited = any(
            (limit or 0) > 0
            for limit in (found.max_msgs, found.max_bytes, found.max_msgs_per_subject)
        )
        if options.discard is Discard.NEW and found.discard == api.DiscardPolicy.OLD and is_limited:
            yield DestinationRefuses(
                f"stream {self.name} has discard: old; wanted new: when it is full it throws away what"
                " nobody may have read yet",
                place,
                "set discard of the stream to new, or write discard: old if that is meant",
            )
        for what, do in self._less_durable(found):
            yield DestinationRefuses(f"stream {self.name} {what}", place, do)

    def _less_durable(self, found: Any) -> Iterator[tuple[str, str]]:
        """What may lose messages that it has acknowledged; and what helps."""
        options = self._options
        if found.retention == api.RetentionPolicy.INTEREST:
            yield (
                "has the retention interest: a message is gone at once where no consumer is there for it",
                "make the consumers before penstock starts, or a stream with the retention limits",
            )
        if options.storage is Storage.FILE and found.storage == api.StorageType.MEMORY:
            yield (
                "lies in memory; wanted file: what it has is lost when its servers are started anew",
                "make another stream, or write storage: memory if that is meant",
            )
        if (found.num_replicas or 1) < options.replicas:
            yield (
                f"has {found.num_replicas or 1} replicas; wanted {options.replicas}",
                "raise the number of replicas of the stream, or write into the file what it has",
            )

    def _no_order(self, found: Any) -> DestinationRefuses | None:
        """Whether `order: strict` cannot be had."""
        replicas = found.num_replicas or 1
        if self._options.order is not Order.STRICT or replicas == 1:
            return None
        # Measured with nats-server 2.15: where a message of a window was refused, replicas neither take nor answer
        # the later ones when they come again.
        return DestinationRefuses(
            f"stream {self.name} has {replicas} replicas; order: strict wants 1",
            self._connection.place,
            "take order: strict out, or choose a stream with one replica",
        )

    async def _create(self) -> Any:
        options = self._options
        manager = self._connection.client.jsm(timeout=timing().broker_ask_seconds)
        made = await manager.add_stream(
            api.StreamConfig(
                name=self.name,
                subjects=[self._filter],
                storage=api.StorageType(options.storage.value),
                num_replicas=options.replicas,
                max_bytes=options.max_bytes or -1,
                max_msgs=options.max_messages or -1,
                max_age=options.max_age or 0,
                discard=api.DiscardPolicy(options.discard.value),
                duplicate_window=options.duplicate_window,
            )
        )
        return made.config
