"""What a subscription that the file does not name any more has not had, for the line that says so."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.lsn import Lsn
from penstock.sinks.webhook.entries import Documents
from penstock.sinks.webhook.outbox import RETAINING
from penstock.sinks.webhook.rows import Place
from penstock.sinks.webhook.wants import Want
from penstock.text import counted

if TYPE_CHECKING:
    from penstock.sinks.webhook.rows import Kept
    from penstock.sinks.webhook.store import Store

# Each is read and decoded: some seconds for all of them.
_MOST_ENTRIES = 1000


@dataclass
class Waiting:
    """Documents of the outbox that one wants and has not had; of a filter nothing is computed."""

    count: int = 0
    to_lsn: int = 0
    is_all: bool = True


def waiting_of(store: Store, kept: Kept) -> Waiting:
    """What waits for a subscription."""
    found = Waiting()
    if kept.state not in RETAINING:
        return found
    want = Want.of(replace(kept, wanted={**kept.wanted, "filter": None}), {})
    place = kept.place
    for _ in range(_MOST_ENTRIES):
        entry = store.entry(place.seq)
        if entry is None:
            return found
        from_row = place.row if entry.seq == place.seq else 0
        rows, _ = Documents(entry).wanted(want, from_row)
        if rows:
            found.count += len(rows)
            found.to_lsn = entry.commit_lsn
        place = Place(entry.seq + 1)
    found.is_all = store.entry(place.seq) is None
    return found


def describe_loss(store: Store, kept: Kept) -> str | None:
    """What is lost when a subscription is forgotten; None where nothing is. Says no URL."""
    waiting = waiting_of(store, kept)
    parked = store.parked_counts().get(kept.id, 0)
    if not waiting.count and not parked:
        return None
    lost = []
    if waiting.count:
        more = "" if waiting.is_all else "more than "
        after = kept.delivered_lsn or kept.from_lsn
        span = f"{f'after {after} ' if after else ''}up to {Lsn(waiting.to_lsn)}"
        lost.append(f"{more}{counted(waiting.count, 'document')} {span} that waited for it")
    if parked:
        lost.append(f"{counted(parked, 'document')} parked for it")
    return " and ".join(lost)
