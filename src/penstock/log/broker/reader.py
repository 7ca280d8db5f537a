"""Read a log on a broker after a position. Any number of readers, on any machine, beside the writer."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.encryption import NO_KEYS
from penstock.errors import LogGone
from penstock.log.broker.find import decoded, next_of, number_before, require_owner
from penstock.log.contract import Slice
from penstock.log.slice import SliceKind, damaged, streamed_heads
from penstock.timing import timing

if TYPE_CHECKING:
    from penstock.encryption import Keyring
    from penstock.log.broker.entry import Entry
    from penstock.log.broker.transport import Kept, Tail, Transport
    from penstock.log.contract import Locator
    from penstock.lsn import Lsn


@dataclass(frozen=True)
class Inline:
    """The bytes of a small slice: they are shorter than the way to the broker."""

    body: bytes
    where: str

    def fetch(self, size: int) -> bytes:
        """The bytes."""
        return self.body[:size]


class BrokerReader:
    """Hands out slices after a position, whole transactions only.

    Slices that merely straddle the position are handed out, too: delivery drops what the sink has.
    """

    def __init__(
        self, transport: Transport, after: Lsn, owner: str, keyring: Keyring = NO_KEYS
    ) -> None:
        self._transport = transport
        self._owner = owner
        self._keyring = keyring
        self._after = after
        self._read_lsn = after
        self._log_id = ""
        self._tail: Tail | None = None
        self._waiting: Kept | None = None
        self._poll_at = 0.0
        self._parts: list[Slice] = []
        self._spooled: dict[str, list[Slice]] = {}

    def read(self, limit_bytes: int) -> list[Slice]:
        """The next slices, about `limit_bytes` of messages, empty when there is nothing new.

        Raises:
            LogGone: the log begins after the position asked for, or is another one.
            StateOfAnother: it is that of another source, or pipeline.
            LogUnreachable: the broker is away.
            LogError: the log is damaged.
            LogKeyMissing: it is encrypted with a key that is not given.
        """
        slices: list[Slice] = []
        size = 0
        while size < limit_bytes or self._parts:
            kept = self._next()
            if kept is None:
                break
            ready = self._whole(kept, decoded(self._transport, kept))
            slices += ready
            size += sum(each.head.data_bytes for each in ready)
        return slices

    def may_have_news(self) -> bool:
        """Whether `read` could find something; far cheaper, to be asked again and again."""
        if self._tail is None:
            return time.monotonic() >= self._poll_at
        if self._waiting is None:
            self._waiting = self._tail.poll(0.0)
        return self._waiting is not None

    def close(self) -> None:
        """Let go of it."""
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def _next(self) -> Kept | None:
        if self._tail is None and not self._open():
            self._poll_at = time.monotonic() + timing().log_absent_seconds
            return None
        if self._waiting is not None:
            kept, self._waiting = self._waiting, None
            return kept
        assert self._tail is not None
        return next_of(self._tail, self._transport)

    def _open(self) -> bool:
        """Go to the position; whether there is a log."""
        bounds = self._transport.bounds()
        if bounds is None or bounds.end == 0:
            return False
        tail = self._transport.tail(bounds.first)
        kept = next_of(tail, self._transport)
        if kept is None:
            # All of it was deleted. Whether something is missing, the next entry says: it has where the log ended.
            tail.close()
            return False
        first = decoded(self._transport, kept)
        require_owner(first, self._owner, self._transport.place)
        if first.base_lsn > self._after:
            tail.close()
            raise self._gone(f"the log begins at {first.base_lsn}", str(self._after))
        self._log_id, self._read_lsn = first.log_id, first.base_lsn
        start = number_before(self._transport, bounds, self._after)
        if start > kept.number:
            tail.close()
            tail = self._transport.tail(start)
            self._read_lsn = self._after  # what is before was searched, not read
        else:
            self._waiting = kept
        self._tail = tail
        return True

    def _whole(self, kept: Kept, entry: Entry) -> list[Slice]:
        """The slices that became readable with this entry."""
        self._require_next(entry)
        head = entry.head
        if head is None:
            # Somebody begins to write: what its predecessor has left unended comes again.
            self._parts, self._spooled = [], {}
            self._read_lsn = max(self._read_lsn, entry.base_lsn)
            return []
        found = Slice(head, self._locator(kept, entry), keyring=self._keyring)
        if head.mark is not None:
            self._keyring.require(head.mark.key_id, found.locator.where)
        if entry.is_part:
            self._keep_part(entry.spool, found)
            return []
        parts, self._parts = self._parts, []
        self._read_lsn = head.end_lsn
        if head.kind is SliceKind.STREAMED:
            parts = self._spooled.pop(str(head.meta["spool"]), [])
        if head.end_lsn <= self._after:
            return []
        if head.kind is SliceKind.STREAMED:
            return _streamed(found, parts)
        return _last(found, parts) if head.kind is SliceKind.LAST else [found]

    def _keep_part(self, spool: str, part: Slice) -> None:
        if spool:
            self._spooled.setdefault(spool, []).append(part)
        else:
            # A first part where others wait: those were cut short by a lost connection.
            self._parts = [*self._parts, part] if part.head.meta["part"] else [part]

    def _locator(self, kept: Kept, entry: Entry) -> Locator:
        if entry.inline is not None:
            return Inline(entry.inline, f"{self._transport.place}, entry {kept.number}")
        return self._transport.locator(entry.pieces, kept.number)

    def _require_next(self, entry: Entry) -> None:
        """See that an entry is of this log, and that nothing is missing before it."""
        require_owner(entry, self._owner, self._transport.place)
        if entry.log_id != self._log_id:
            raise self._gone(
                "another log is there", f"the one that was read up to {self._read_lsn}"
            )
        if entry.base_lsn > max(self._read_lsn, self._after):
            raise self._gone(
                f"the log goes on at {entry.base_lsn}", f"what comes after {self._read_lsn}"
            )

    def _gone(self, found: str, wanted: str) -> LogGone:
        return LogGone(
            f"{found}, wanted {wanted}: what lies between was deleted, by retention or by hand",
            self._transport.place,
            "penstock teardown and init to begin anew; with acknowledge: delivered the slot still has it: delete"
            " the topic or stream of the log while penstock is stopped, and it is sent again",
        )


def _last(found: Slice, parts: list[Slice]) -> list[Slice]:
    """All slices of a transaction in parts, the last one in hand."""
    _require_count(parts, int(found.head.meta["part"]), found.locator.where)
    # Only the commit knew where the transaction ends.
    end_lsn = found.head.end_lsn
    return [*(replace(part, head=replace(part.head, end_lsn=end_lsn)) for part in parts), found]


def _streamed(commit: Slice, parts: list[Slice]) -> list[Slice]:
    """The slices of a transaction that arrived before its commit."""
    head = commit.head
    _require_count(parts, int(head.meta["parts"]), commit.locator.where)
    aborted = tuple(head.meta["aborted"])
    heads = streamed_heads(head, [part.head for part in parts])
    return [
        replace(part, head=each, aborted_xids=aborted)
        for each, part in zip(heads, parts, strict=True)
    ]


def _require_count(parts: list[Slice], wanted: int, where: str) -> None:
    if len(parts) != wanted:
        raise damaged(where, f"{len(parts)} parts before, wanted {wanted}")
