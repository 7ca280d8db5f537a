"""Find a position among the entries of a log, by what they say themselves: their numbers are not trusted."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.brokers.errors import WAIT
from penstock.errors import LogUnreachable, StateOfAnother
from penstock.log.broker.entry import Entry
from penstock.log.contract import LogSpan
from penstock.lsn import ZERO
from penstock.stopping import is_in_vain
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.log.broker.transport import Bounds, Kept, Tail, Transport
    from penstock.lsn import Lsn

# So many are rather read than searched.
_FEW = 512
_FIRST_STEP = 16


def decoded(transport: Transport, kept: Kept) -> Entry:
    """An entry, wherever it lies."""
    where = f"{transport.place}, entry {kept.number}"
    found = Entry.decode(kept.data, where)
    if found.elsewhere:
        whole = Entry.decode(transport.fetch(found.elsewhere), where)
        found = replace(whole, elsewhere=found.elsewhere)
    return found


def require_owner(entry: Entry, owner: str, place: str) -> None:
    """See that an entry is of the log of one source of one pipeline.

    Raises:
        StateOfAnother: it is not.
    """
    if entry.owner and entry.owner != owner:
        raise StateOfAnother(
            f"the log belongs to {entry.owner}, wanted {owner}",
            place,
            "choose another name for it under log:, such as one with {pipeline} and {source} in it",
        )


def next_of(tail: Tail, transport: Transport) -> Kept | None:
    """The next entry; None when all there was has been read.

    Raises:
        LogUnreachable: neither comes.
    """
    seconds = transport.read_seconds
    deadline = time.monotonic() + seconds
    while True:
        kept = tail.poll(0.0 if tail.has_caught_up else timing().broker_step_seconds)
        if kept is not None or tail.has_caught_up:
            return kept
        if time.monotonic() > deadline or is_in_vain():
            raise LogUnreachable(
                f"no answer within {seconds:g} s",
                transport.place,
                WAIT,
            )


def entries_from(transport: Transport, number: int) -> Iterator[tuple[Kept, Entry]]:
    """The entries from a number up to the present end."""
    tail = transport.tail(number)
    try:
        while (kept := next_of(tail, transport)) is not None:
            yield kept, decoded(transport, kept)
    finally:
        tail.close()


def first_entry(transport: Transport) -> tuple[Kept, Entry] | None:
    """The oldest one; None where there is none."""
    bounds = transport.bounds()
    if bounds is None:
        return None
    return next(entries_from(transport, bounds.first), None)


def last_end(transport: Transport, bounds: Bounds) -> Lsn | None:
    """Where all entries end; None where there are none that count."""
    step, until = _FIRST_STEP, bounds.end
    while until > bounds.first:
        begin = max(bounds.first, bounds.end - step)
        ends = [entry.end_lsn for _, entry in entries_from(transport, begin)]
        known = [end for end in ends if end is not None]
        if known:
            return known[-1]
        until, step = begin, step * 8
    return None


def span_of(transport: Transport) -> LogSpan:
    """From where to where the log goes; zeros where there is none."""
    bounds = transport.bounds()
    found = first_entry(transport) if bounds is not None else None
    if bounds is None or found is None:
        return LogSpan(ZERO, ZERO, is_emptied=bounds is not None and bounds.end > 0)
    end = last_end(transport, bounds)
    return LogSpan(found[1].base_lsn, max(found[1].base_lsn, end or ZERO))


def number_before(transport: Transport, bounds: Bounds, after: Lsn) -> int:
    """The number of an entry that all that ends after a position comes behind; the first one if need be."""
    low, high = bounds.first, bounds.end
    while high - low > _FEW:
        middle = (low + high) // 2
        found = _counting_from(transport, middle)
        if found is None or found[1] > after or found[0] >= high:
            high = middle
        else:
            low = found[0]
    return low


def entry_after(transport: Transport, lsn: Lsn) -> Kept | None:
    """The oldest entry that holds something after a position; None where there is none."""
    bounds = transport.bounds()
    if bounds is None:
        return None
    begun: Kept | None = None  # of a transaction in parts the first
    for kept, entry in entries_from(transport, number_before(transport, bounds, lsn)):
        begun = begun or kept
        if entry.head is None or (entry.end_lsn is not None and entry.end_lsn <= lsn):
            begun = None
        elif entry.end_lsn is not None:
            return begun
    return None


def _counting_from(transport: Transport, number: int) -> tuple[int, Lsn] | None:
    """The first entry from a number on that is no part: its number, and where it ends."""
    for kept, entry in entries_from(transport, number):
        if (end := entry.end_lsn) is not None:
            return kept.number, end
    return None
