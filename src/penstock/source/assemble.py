"""Put messages together into slices: whole transactions, self-contained, bounded. No socket, no file.

Messages arrive one by one and are kept as raw bytes. Only their kind is read, and what shows
where transactions begin and end. Memory is one slice's buffer, whatever the size of a transaction:
one that outgrows it goes to the log in parts, one that the server streams before its commit goes to
a spool of its own.

A transaction that changes the shape of tables has its slices to itself, cut where the shape changes,
and marks in the last one's head say what changed (`notes`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from penstock.changes.pgoutput import (
    BEGIN,
    COMMIT,
    KNOWN_KINDS,
    MESSAGE,
    RELATION,
    ROW_KINDS,
    STREAM_ABORT,
    STREAM_COMMIT,
    STREAM_START,
    STREAM_STOP,
    Begin,
    parse_begin,
    parse_commit,
    parse_stream_abort,
    parse_stream_commit,
    parse_stream_start,
)
from penstock.errors import DecodeError
from penstock.log.slice import SliceHead, SliceKind
from penstock.lsn import Lsn
from penstock.source.buffer import SliceBuffer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.changes.pgoutput import Commit
    from penstock.log.contract import SliceTaker, Spool
    from penstock.source.notes import Note, Notes

SLICE_BYTES = 8 * 1024 * 1024
# Rows can be tiny; a task's arrays grow with their number.
SLICE_MESSAGES = 100_000
# What a streamed transaction may keep in memory between two blocks of it.
_KEPT_BYTES = 256 * 1024


def _is_full(buffer: SliceBuffer) -> bool:
    return len(buffer.data) >= SLICE_BYTES or len(buffer.lengths) >= SLICE_MESSAGES


@dataclass
class _Streamed:
    """A transaction that arrives before it commits."""

    buffer: SliceBuffer
    spool: Spool
    aborted: list[int] = field(default_factory=list)
    noted: list[Note] = field(default_factory=list)


class Assembler:
    """Takes messages, gives slices to the log.

    `received_lsn` is the end of the last commit taken; `in_transaction` says whether the messages
    stop in the middle of one. One assembler lives as long as one connection.
    """

    def __init__(self, log: SliceTaker, notes: Notes | None = None) -> None:
        self._log = log
        self._notes = notes
        self._noted: list[Note] = []  # of the open transaction
        self.received_lsn = log.durable_lsn
        self.transaction_count = 0
        self._main = SliceBuffer()
        self._streamed: dict[int, _Streamed] = {}
        self._current: SliceBuffer = self._main
        self._current_xid = 0
        self._open: Begin | None = None
        # Where the whole transactions in the main buffer end.
        self._whole_messages = 0
        self._whole_bytes = 0
        self._first_commit_lsn = Lsn(0)
        self._last_commit_lsn = Lsn(0)
        self._committed_at = 0
        self._oldest_at = 0.0

    @property
    def in_transaction(self) -> bool:
        """Whether the next message belongs to a transaction that has begun to arrive."""
        return self._open is not None or self._current is not self._main

    @property
    def has_open_parts(self) -> bool:
        """Whether the log holds a beginning of a transaction that has not ended."""
        return self._open is not None and self._main.part_count > 0

    @property
    def has_whole(self) -> bool:
        """Whether a slice could be sealed now."""
        return self._whole_messages > 0

    @property
    def waiting_seconds(self) -> float:
        """How long the oldest unsealed transaction has waited."""
        return time.monotonic() - self._oldest_at if self._whole_messages else 0.0

    def add(self, message: memoryview) -> None:
        """Take the next message of the stream."""
        kind = message[0]
        buffer = self._current
        if kind in ROW_KINDS:
            buffer.data += message
            buffer.lengths.append(len(message))
            if len(buffer.data) >= SLICE_BYTES or len(buffer.lengths) >= SLICE_MESSAGES:
                self._overflow()
        elif kind == BEGIN:
            self._begin(message)
        elif kind == COMMIT:
            self._commit(message)
        elif kind == RELATION:
            self._add_relation(message)
        elif kind == STREAM_START:
            self._start_stream(parse_stream_start(message))
        elif kind == STREAM_STOP:
            self._stop_stream()
        elif kind == STREAM_COMMIT:
            self._commit_streamed(message)
        elif kind == STREAM_ABORT:
            self._abort_streamed(*parse_stream_abort(message))
        else:
            self._add_other(message)

    def _add_other(self, message: memoryview) -> None:
        """Truncate, Type, Origin, and what pg_logical_emit_message wrote, which can be large."""
        kind = message[0]
        if kind not in KNOWN_KINDS:
            raise DecodeError(f"a message of kind {kind}, which pgoutput does not have")
        if kind == MESSAGE and self.in_transaction and self._notes is not None:
            carries_xid = self._current.carries_xids
            self._note(
                self._notes.of_message(
                    message, carries_xid=carries_xid, xid=self._open_xid, pending=self._pending
                )
            )
        self._current.add(message)
        if kind == MESSAGE and not self.in_transaction:
            self._end_of_message(message)
        if _is_full(self._current):
            self._overflow()

    def _add_relation(self, message: memoryview) -> None:
        if self._notes is not None:
            carries_xid = self._current.carries_xids
            self._note(
                self._notes.of_relation(message, carries_xid=carries_xid, pending=self._pending)
            )
        self._current.add_relation(message)

    @property
    def _open_xid(self) -> int:
        """The transaction whose messages arrive."""
        return self._open.xid if self._open is not None else self._current_xid

    @property
    def _pending(self) -> list[Note]:
        """What the transaction whose messages arrive has noted so far, and not taken back."""
        if self._current is self._main:
            return self._noted
        return self._streamed[self._current_xid].noted

    def _note(self, note: Note | None) -> None:
        """Remember a document of the transaction whose messages arrive; its rows are cut here."""
        if note is None:
            return
        if self._current is not self._main:
            if self._current.count_rows():
                self._spool_part(self._streamed[self._current_xid])
        elif self._open is not None:
            self.seal()  # the transactions before
            if self._main.count_rows():
                self._append_part(SliceKind.PART, self._log.durable_lsn)
        self._pending.append(replace(note, ordinal=self._current.row_count))

    def _begin(self, message: memoryview) -> None:
        if self._open is not None:
            raise DecodeError("a transaction begins inside another")
        self._open = parse_begin(message)
        self._main.row_count = self._main.part_count = 0
        self._main.add(message)

    def _commit(self, message: memoryview) -> None:
        if self._open is None:
            raise DecodeError("a Commit message without its Begin")
        commit = parse_commit(message)
        self._main.add(message)
        self.received_lsn = commit.end_lsn
        self.transaction_count += 1
        marks = self._marks(self._noted, commit, self._open.xid)
        self._noted = []
        if self._main.part_count:
            self._append_part(SliceKind.LAST, commit.end_lsn, marks)
        else:
            if self._whole_messages == 0:
                self._oldest_at = time.monotonic()
            self._first_commit_lsn = self._first_commit_lsn or commit.commit_lsn
            self._last_commit_lsn = commit.commit_lsn
            self._committed_at = commit.committed_at
            self._mark_whole()
            if marks:
                self.seal(marks)
        self._open = None
        if _is_full(self._main):
            self.seal()

    def _marks(self, noted: list[Note], commit: Commit, xid: int) -> list[dict[str, object]]:
        if not noted or self._notes is None:
            return []
        return [mark.as_json() for mark in self._notes.commit(noted, commit, xid)]

    def _end_of_message(self, message: memoryview) -> None:
        # M | flags u8 | lsn u64 | …: a message outside any transaction is its own position.
        lsn = Lsn(int.from_bytes(message[2:10], "big"))
        self.received_lsn = max(self.received_lsn, lsn)
        if self._whole_messages == 0:
            self._oldest_at = time.monotonic()
        self._mark_whole()

    def _mark_whole(self) -> None:
        self._whole_messages = len(self._main.lengths)
        self._whole_bytes = len(self._main.data)

    def seal(self, marks: Sequence[dict[str, object]] = ()) -> None:
        """Make the whole transactions received so far durable, as one slice."""
        if self._whole_messages == 0:
            return
        data, lengths, meta, _ = self._main.cut(self._whole_messages, self._whole_bytes)
        if marks:
            meta["schema"] = list(marks)
        self._log.append(
            SliceHead(
                kind=SliceKind.WHOLE,
                # An open transaction has not moved this: only commits do.
                end_lsn=self.received_lsn,
                first_commit_lsn=self._first_commit_lsn,
                last_commit_lsn=self._last_commit_lsn,
                committed_at=self._committed_at,
                meta=meta,
            ),
            data,
            lengths,
        )
        self._whole_messages = self._whole_bytes = 0
        self._first_commit_lsn = self._last_commit_lsn = Lsn(0)
        self._committed_at = 0

    def mark(self, end_lsn: Lsn) -> None:
        """Record that nothing happened up to `end_lsn`, so that an idle source still advances.

        What was received may go further than that, and need not be on disk yet.
        """
        self.seal()
        if end_lsn > self.received_lsn:
            self.received_lsn = end_lsn
            self._log.append(
                SliceHead(kind=SliceKind.MARKER, end_lsn=end_lsn), b"", np.zeros(0, np.uint32)
            )

    def _overflow(self) -> None:
        if self._current is not self._main:
            self._spool_part(self._streamed[self._current_xid])
            return
        self.seal()
        if _is_full(self._main):
            self._append_part(SliceKind.PART, self._log.durable_lsn)

    def _append_part(
        self, kind: SliceKind, end_lsn: Lsn, marks: Sequence[dict[str, object]] = ()
    ) -> None:
        """Seal what has arrived of the open transaction."""
        if self._open is None:
            raise DecodeError("rows that belong to no transaction")
        self.seal()
        buffer = self._main
        data, lengths, meta, row_count = buffer.cut(len(buffer.lengths), len(buffer.data))
        meta["part"] = buffer.part_count
        if marks:
            meta["schema"] = list(marks)
        self._log.append(
            SliceHead(
                kind=kind,
                end_lsn=end_lsn,
                first_commit_lsn=self._open.commit_lsn,
                last_commit_lsn=self._open.commit_lsn,
                committed_at=self._open.committed_at,
                xid=self._open.xid,
                first_ordinal=buffer.row_count,
                meta=meta,
            ),
            data,
            lengths,
        )
        buffer.row_count += row_count
        buffer.part_count += 1

    def _stop_stream(self) -> None:
        # Many transactions may be open at once; what waits in memory is little for each.
        if len(self._current.data) >= _KEPT_BYTES and self._current_xid in self._streamed:
            self._spool_part(self._streamed[self._current_xid])
        self._current, self._current_xid = self._main, 0

    def _start_stream(self, xid: int) -> None:
        if xid not in self._streamed:
            spool = self._log.begin_spool(xid, self.received_lsn)
            self._streamed[xid] = _Streamed(SliceBuffer(carries_xids=True), spool)
        self._current, self._current_xid = self._streamed[xid].buffer, xid

    def _spool_part(self, streamed: _Streamed) -> None:
        buffer = streamed.buffer
        data, lengths, meta, row_count = buffer.cut(len(buffer.lengths), len(buffer.data))
        streamed.spool.append(
            SliceHead(
                kind=SliceKind.PART,
                end_lsn=Lsn(0),
                first_ordinal=buffer.row_count,
                carries_xids=True,
                meta=meta,
            ),
            data,
            lengths,
        )
        buffer.row_count += row_count

    def _commit_streamed(self, message: memoryview) -> None:
        commit = parse_stream_commit(message)
        streamed = self._streamed.get(commit.xid)
        if streamed is None:
            raise DecodeError(f"a Stream Commit of transaction {commit.xid}, which never started")
        self.seal()
        aborted = set(streamed.aborted)
        marks = self._marks(streamed.noted, commit, commit.xid)
        self._spool_part(streamed)
        del self._streamed[
            commit.xid
        ]  # a spool that cannot be sealed is removed as one without commit
        streamed.spool.seal()
        # The server takes these as sent from now on, and will not repeat them outside the stream.
        for oid, described_at in streamed.buffer.described_at.items():
            if described_at > self._main.described_at.get(oid, 0):
                raw = streamed.buffer.relations[oid]
                self._main.relations[oid] = raw[:1] + raw[5:]
                self._main.described_at[oid] = described_at
        self.received_lsn = commit.end_lsn
        self.transaction_count += 1
        self._log.append(
            SliceHead(
                kind=SliceKind.STREAMED,
                end_lsn=commit.end_lsn,
                first_commit_lsn=commit.commit_lsn,
                last_commit_lsn=commit.commit_lsn,
                committed_at=commit.committed_at,
                xid=commit.xid,
                meta={
                    "spool": streamed.spool.name,
                    "parts": streamed.spool.part_count,
                    "aborted": sorted(aborted),
                    **({} if streamed.buffer.row_count else {"empty": True}),
                    **({"schema": marks} if marks else {}),
                },
            ),
            b"",
            np.zeros(0, np.uint32),
        )

    def _abort_streamed(self, xid: int, subxid: int) -> None:
        streamed = self._streamed.get(xid)
        if streamed is None:
            return  # rolled back before any of it was sent
        if subxid == xid:
            streamed.spool.discard()
            del self._streamed[xid]
        else:
            streamed.aborted.append(subxid)
            streamed.noted = [note for note in streamed.noted if note.subxid != subxid]

    def discard(self) -> None:
        """Remove what is not durable: the connection is gone, and the server will repeat it."""
        for streamed in self._streamed.values():
            streamed.spool.discard()
        self._streamed.clear()
