"""Append slices to a log on a broker, durably, and let go of what every sink has passed. One writer at a time."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.encryption import NO_KEYS
from penstock.errors import LogError, LogUnreachable
from penstock.failpoints import fault_point
from penstock.log.broker.entry import Entry, entry_elsewhere
from penstock.log.broker.find import entries_from, require_owner
from penstock.log.contract import LastCommit
from penstock.log.slice import HEADER_BYTES, SliceKind, encode_slice, meta_bytes_of
from penstock.lsn import ZERO, Lsn
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from penstock.encryption import Encryptor, Keyring
    from penstock.errors import PenstockError
    from penstock.log.broker.transport import Appending, Transport
    from penstock.log.slice import SliceHead

_log = logging.getLogger(__name__)

# A slice that is shorter lies in its entry, and goes to tasks with its locator.
_INLINE_BYTES = 32 * 1024
# What is let go at once.
_UNIT_BYTES = 64 * 1024 * 1024
_UNIT_ENTRIES = 20_000
_NO_LIMIT = 1 << 62


@dataclass
class _Unit:
    """A run of entries that is let go as a whole."""

    base_lsn: Lsn
    first: int | None = None  # the number of its first entry
    first_piece: int | None = None  # the least number of a piece that it needs
    began_at: float = 0.0
    size: int = 0
    count: int = 0

    def take(self, number: int, at: float, size: int, pieces: Sequence[int]) -> None:
        if self.first is None:
            self.first, self.began_at = number, at
        if pieces:
            least = min(pieces)
            self.first_piece = least if self.first_piece is None else min(self.first_piece, least)
        self.size += size
        self.count += 1


class BrokerSpool:
    """The slices of a transaction that has not committed: pieces that no entry names yet."""

    def __init__(self, writer: BrokerWriter, name: str) -> None:
        self._writer = writer
        self.name = name
        self.parts: list[tuple[bytes, tuple[int, ...]]] = []  # header and meta, pieces
        self.size = 0

    @property
    def part_count(self) -> int:
        """How many slices it has."""
        return len(self.parts)

    def append(self, head: SliceHead, data: bytes, lengths: npt.NDArray[np.uint32]) -> None:
        """Write one slice.

        Raises:
            LogUnreachable: the broker is away.
        """
        raw, body = split_slice(encode_slice(head, data, lengths, self._writer.encryptor))
        self.parts.append((raw, self._writer.put_pieces(body)))
        self.size += len(body)

    def seal(self) -> None:
        """Nothing is left to do: every slice is durable as it is written."""

    def discard(self) -> None:
        """Its pieces are nobody's, and go with what is older."""
        self._writer.spools.pop(self.name, None)


class BrokerWriter:
    """The log's only writer.

    What is appended is durable when `append` returns. After an error it is not known what the broker has: `restart` asks.
    """

    def __init__(self, transport: Transport, owner: str, keyring: Keyring = NO_KEYS) -> None:
        self._transport = transport
        self._owner = owner
        self._keyring = keyring
        self.encryptor: Encryptor | None = None
        self.durable_lsn = ZERO
        self.torn_bytes = 0
        self.last_commit: LastCommit | None = None
        self.spools: dict[str, BrokerSpool] = {}
        self._log_id = ""
        self._units: list[_Unit] = []
        self._next_number = 0  # after the last entry that is known
        self._next_piece = 0
        self._start_lsn = ZERO
        # Spools are written by one thread while slices are by another.
        self._lock = threading.Lock()

    def open(self, start_lsn: Lsn) -> None:
        """Go on where the log ends, or begin anew at `start_lsn` when it does not reach that far.

        Raises:
            LogUnreachable: the broker is away.
            LogRefused, StateOfAnother: a person must fix something.
            LogKeyMissing: something is encrypted with a key that is not given; nothing was appended.
        """
        self.encryptor = self._keyring.encryptor()
        self._start_lsn = start_lsn
        self._units, self.spools = [], {}
        self.durable_lsn, self.last_commit, self._log_id = ZERO, None, ""
        self._next_number = 0
        self._transport.open_for_writing()
        self._go_on()

    def restart(self) -> None:
        """Go on from where the log ends after something could not be written."""
        with self._lock:
            self.spools.clear()
            self._transport.open_for_writing()
            self._go_on()

    def _go_on(self) -> None:
        """Read what is in the log and not known yet, and begin it where that is missing."""
        bounds = self._transport.bounds()
        begin = max(self._next_number, bounds.first if bounds else 0)
        for kept, entry in entries_from(self._transport, begin):
            self._require_own(entry)
            if entry.head is not None and entry.head.mark is not None:
                self._keyring.require(entry.head.mark.key_id, self._transport.place)
            size = len(kept.data) + (entry.head.body_bytes if entry.head and entry.pieces else 0)
            self._note(kept.number, entry, size, kept.at)
        if not self._units:
            self._log_id = uuid.uuid4().hex
        # An older state of the log may have been put back. What lies between is delivered, or the slot would not
        # stand at `start_lsn`.
        self.durable_lsn = max(self.durable_lsn, self._start_lsn)
        # Parts that a predecessor has left are nobody's from here on; nor can it append after this.
        self._begin()

    def _require_own(self, entry: Entry) -> None:
        if not self._log_id:
            self._log_id = entry.log_id
        require_owner(entry, self._owner, self._transport.place)
        if entry.log_id != self._log_id:
            raise LogError(
                "two logs lie in one place",
                self._transport.place,
                "stop penstock, delete the topic or stream, and start it again",
            )

    def _begin(self) -> None:
        """Write that the log begins here."""
        entry = Entry(self._log_id, self.durable_lsn, owner=self._owner)
        with self._transport.append() as group:
            group.entries([entry.encode()])
        [number] = group.numbers
        self._units.append(_Unit(self.durable_lsn))
        self._note(number, entry, 0, time.time())

    def append(self, head: SliceHead, data: bytes, lengths: npt.NDArray[np.uint32]) -> None:
        """Make one slice durable.

        Raises:
            LogUnreachable: it may not be, and the caller must `restart`.
        """
        if head.kind is not SliceKind.PART and head.end_lsn < self.durable_lsn:
            # Whoever reads on from here would take what lies between for delivered.
            raise LogError(
                f"a slice that ends at {head.end_lsn} is to follow one that ends at {self.durable_lsn}",
                self._transport.place,
                "report this: it is a defect of penstock; nothing was written",
            )
        encoded = encode_slice(head, data, lengths, self.encryptor)
        with self._lock:
            self._append(head, encoded)

    def _append(self, head: SliceHead, encoded: bytes) -> None:
        raw, body = split_slice(encoded)
        spool = self._spool_of(head)
        parts = [] if spool is None else spool.parts
        entries: list[Entry] = []
        with self._transport.append() as group:
            for part_raw, pieces in parts:
                assert spool is not None
                entries.append(self._entry(part_raw, pieces, spool.name))
            if len(body) < _INLINE_BYTES:
                entries.append(self._entry(encoded, ()))
            else:
                entries.append(self._entry(raw, tuple(group.pieces(self._cut(body)))))
            fault_point("capture.torn_slice")
            entries = [self._placed(group, each) for each in entries]
            group.entries([_encoded(each) for each in entries])
        now = time.time()
        for number, entry in zip(group.numbers, entries, strict=True):
            assert entry.head is not None
            size = len(entry.raw) + (entry.head.body_bytes if entry.pieces else 0)
            self._note(number, entry, size, now)
        if spool is not None:
            self.spools.pop(spool.name, None)

    def _spool_of(self, head: SliceHead) -> BrokerSpool | None:
        if head.kind is not SliceKind.STREAMED:
            return None
        return self.spools[str(head.meta["spool"])]

    def _entry(self, raw: bytes, pieces: tuple[int, ...], spool: str = "") -> Entry:
        return Entry.decode(
            Entry(
                self._log_id,
                self.durable_lsn,
                raw=raw,
                pieces=pieces,
                spool=spool,
                owner=self._owner,
            ).encode(),
            self._transport.place,
        )

    def _placed(self, group: Appending, entry: Entry) -> Entry:
        """The entry, which knows its pieces where it is too long for one message."""
        data = entry.encode()
        if len(data) <= self._transport.piece_bytes:
            return entry
        return replace(entry, elsewhere=tuple(group.pieces(self._cut(data))))

    def _cut(self, body: bytes) -> list[bytes]:
        step = self._transport.piece_bytes
        return [body[begin : begin + step] for begin in range(0, len(body), step)]

    def put_pieces(self, body: bytes) -> tuple[int, ...]:
        """Make the body of a slice durable that no entry names yet."""
        with self._lock:
            with self._transport.append() as group:
                numbers = tuple(group.pieces(self._cut(body)))
            self._next_piece = max([self._next_piece, *(number + 1 for number in numbers)])
            return numbers

    def _note(self, number: int, entry: Entry, size: int, at: float) -> None:
        """Know of an entry that is in the log."""
        self._next_number = number + 1
        pieces = (*entry.pieces, *entry.elsewhere)
        self._next_piece = max([self._next_piece, *(piece + 1 for piece in pieces)])
        if not self._units:
            self._units.append(_Unit(entry.base_lsn))
        unit = self._units[-1]
        unit.take(number, at, size, pieces)
        if entry.end_lsn is None:
            return
        self.durable_lsn = entry.end_lsn
        if entry.head is not None:
            self.last_commit = LastCommit.of(entry.head) or self.last_commit
        is_old = at > unit.began_at + timing().log_unit_seconds
        if is_old or unit.size >= _UNIT_BYTES or unit.count >= _UNIT_ENTRIES:
            self._units.append(_Unit(self.durable_lsn))

    def begin_spool(self, xid: int, begin_lsn: Lsn) -> BrokerSpool:
        """A place for a transaction that arrives before its commit."""
        # Where the transaction began to arrive: xids repeat after wraparound.
        spool = BrokerSpool(self, f"{begin_lsn:016X}-{xid}")
        self.spools[spool.name] = spool
        return spool

    def flush(self) -> None:
        """Nothing waits: what was appended is durable."""

    def end_segment(self) -> None:
        """Make all that is durable discardable, between two transactions."""
        with self._lock:
            if self._units[-1].count > 1 or self._units[-1].base_lsn < self.durable_lsn:
                self._begin()

    def cut(self) -> None:
        """The same; what the log holds of transactions that have not ended is nobody's already."""
        self.end_segment()

    def discard_before(self, lsn: Lsn) -> int:
        """Let go of units whose every slice ends at or before `lsn`; how many."""
        with self._lock:
            count = 0
            for unit in self._units[1:]:
                if unit.first is None or unit.base_lsn > lsn:
                    break
                count += 1
            if not count:
                return 0
            kept = self._units[count:]
            needed = [unit.first_piece for unit in kept if unit.first_piece is not None]
            for spool in list(self.spools.values()):
                needed += [min(pieces) for _, pieces in spool.parts if pieces]
            first = kept[0].first
            assert first is not None
            self._transport.discard(first, min(needed, default=self._next_piece))
            self._units = kept
            return count

    def size_bytes(self) -> int:
        """What the log holds, as far as it was written by penstock; the broker's own overhead is not known."""
        spooled = sum(spool.size for spool in list(self.spools.values()))
        return sum(unit.size for unit in self._units) + spooled

    def free_bytes(self) -> int:
        """Not known of a broker."""
        return _NO_LIMIT

    def risk(self, needed_lsn: Lsn) -> PenstockError | None:
        """What may delete what a sink at a position needs, by the broker's settings."""
        if needed_lsn >= self.durable_lsn:
            return None
        passed = sum(unit.base_lsn <= needed_lsn for unit in self._units)
        needed = self._units[max(0, passed - 1) :]
        try:
            return self._transport.risk(needed[0].began_at, sum(unit.size for unit in needed))
        except LogUnreachable:
            return None  # capture says so

    def close(self) -> None:
        """Append no more."""
        self._transport.close_writing()


def _encoded(entry: Entry) -> bytes:
    return entry_elsewhere(list(entry.elsewhere)) if entry.elsewhere else entry.encode()


def split_slice(encoded: bytes) -> tuple[bytes, bytes]:
    """Header and meta of a slice, and its body."""
    at = HEADER_BYTES + meta_bytes_of(encoded)
    return encoded[:at], encoded[at:]
