"""Where the pieces of a slice lie: offsets of a partition, read straight from the broker, also in tasks elsewhere."""

from __future__ import annotations

import functools
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import LogGone, LogUnreachable
from penstock.log.kafka.clients import Reading
from penstock.stopping import is_in_vain
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.log.kafka.clients import Settings

PIECES = 1
"""The partition of pieces."""

PIECE_BYTES = 1_000_000
"""How large a piece is at most."""


@dataclass(frozen=True)
class KafkaLocator:
    """The pieces of one slice."""

    settings: Settings
    topic: str
    offsets: tuple[int, ...]
    number: int  # of the entry

    @property
    def where(self) -> str:
        """The place, for errors."""
        return f"topic {self.topic}, entry {self.number}"

    def fetch(self, size: int) -> bytes:
        """The bytes of the slice.

        Raises:
            LogGone: they were deleted.
            LogUnreachable: the brokers are away.
        """
        return fetch(self.settings, self.topic, self.offsets, self.where)[:size]


def fetch(settings: Settings, topic: str, offsets: Sequence[int], where: str) -> bytes:
    """Pieces, one after the other; those of the next slice are on their way meanwhile."""
    fetcher = _fetcher(settings, topic, os.getpid(), threading.get_ident())
    return b"".join(fetcher.piece(offset, where) for offset in offsets)


@functools.lru_cache(maxsize=8)
def _fetcher(settings: Settings, topic: str, pid: int, thread: int) -> _Fetcher:  # noqa: ARG001
    """The one of this thread, kept for its next slice: neighbours are read one after the other."""
    return _Fetcher(settings, topic)


class _Fetcher:
    """Reads pieces, mostly in their order."""

    def __init__(self, settings: Settings, topic: str) -> None:
        # What is named by an entry is committed: there is nothing to wait for.
        conf = {
            "isolation.level": "read_uncommitted",
            "fetch.wait.max.ms": 10,
            # Nothing of an answer is handed over before all of it is there: over a slow link a large one is long in
            # coming, and lost with a task that gives up.
            "fetch.message.max.bytes": PIECE_BYTES,
            "queued.max.messages.kbytes": 8 * 1024,
        }
        self._reading = Reading(settings, f"topic {topic}", **conf)
        given = settings.conf.get("socket.timeout.ms")
        waits = int(given.get_secret_value()) / 1000 if given else timing().kafka_answer_seconds
        # Not before the client itself gives an answer up, and asks again. It says at once where nobody is there.
        self._patience = max(timing().log_read_seconds, settings.timeout) + waits
        self._topic = topic
        self._next = -1

    def piece(self, offset: int, where: str) -> bytes:
        if offset != self._next:
            self._next = -1
            self._reading.assign(self._topic, PIECES, offset)
        deadline = time.monotonic() + self._patience
        while (one := self._poll(where)) is None:
            if time.monotonic() > deadline or is_in_vain():
                # What is on its way comes all the same: who tries again in this process goes on waiting for it.
                self._next = offset
                raise LogUnreachable(
                    f"no answer within {self._patience:g} s", where, "nothing, it is tried again"
                )
        self._next = -1
        if one.offset() != offset:
            raise LogGone(
                f"the piece at {offset} is gone, {one.offset()} is the next",
                where,
                "nothing if a sink has passed it; else penstock teardown and init to begin anew",
            )
        self._next = offset + 1
        return bytes(one.value() or b"")

    def _poll(self, where: str) -> Any:
        try:
            return self._reading.poll(timing().broker_step_seconds, "reading pieces of a slice")
        except LogGone as error:
            self._next = -1
            raise LogGone(error.what, where, error.do) from None
