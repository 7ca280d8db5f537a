"""Whether a server still has what it has sent: the last commit, asked for once more.

A source that was restored from a snapshot of its disk has its system identifier and its timeline, and
after some writes its WAL reaches as far as before, with other contents. Its slot was restored, too, so
that it sends again what came after the snapshot; the first transaction of that shows whose it is.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.changes.pgoutput import BEGIN, Begin, parse_begin
from penstock.lsn import ZERO, Lsn
from penstock.source.identity import restored
from penstock.timing import timing

if TYPE_CHECKING:
    import threading

    from penstock.log.contract import LastCommit
    from penstock.source.stream import SlotStream


class _First:
    """Takes messages, and keeps the first transaction's beginning."""

    def __init__(self) -> None:
        self.begin: Begin | None = None

    def add(self, message: memoryview) -> None:
        if self.begin is None and message[0] == BEGIN:
            self.begin = parse_begin(message)


def _receive_first(stream: SlotStream, until: Lsn, stop: threading.Event) -> Begin | None:
    """The first transaction that the slot sends; None when there is none up to a position."""
    first = _First()
    ask_at = 0.0
    while first.begin is None and stream.server_end_lsn < until and not stop.is_set():
        now = time.monotonic()
        if now >= ask_at or stream.reply_due:
            ask_at = now + timing().last_commit_ask_seconds
            stream.acknowledge(ZERO, ZERO, request_reply=True)
        stream.receive(first, timing().last_commit_wait_seconds)
    return first.begin


def require_commit(
    stream: SlotStream,
    last: LastCommit,
    confirmed_lsn: Lsn,
    durable_lsn: Lsn,
    place: str,
    stop: threading.Event,
) -> None:
    """See that what the slot sends up to `durable_lsn` is what was received: it ends with `last`.

    `stream` is connected and sends transactions when they have committed. Nothing is acknowledged. A
    slot that stands after `last` must send nothing up to `durable_lsn`. Nor need one send a `last` that
    may be skipped; another transaction in its place is still noticed.

    Raises:
        SourceRestored: another transaction stands there, or none.
    """
    is_due = last.commit_lsn >= confirmed_lsn
    stream.start(max(last.commit_lsn, confirmed_lsn))
    found = _receive_first(stream, durable_lsn, stop)
    if stop.is_set():
        return
    if found is not None and found.commit_lsn >= durable_lsn:
        found = None  # new, and not ours to judge
    if found is None and is_due and not last.may_be_skipped:
        raise restored(f"the commit at {last.commit_lsn}, which was received, is not there", place)
    if found is not None and (
        not is_due or (found.commit_lsn, found.committed_at) != (last.commit_lsn, last.committed_at)
    ):
        raise restored(f"the commit at {found.commit_lsn} is not what was received there", place)
