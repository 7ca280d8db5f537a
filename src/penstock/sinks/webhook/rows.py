"""What the database of a webhook sink holds, as objects."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Place(NamedTuple):
    """How far a subscription is: entries of the outbox before `seq`, and `row` documents of that one."""

    seq: int
    row: int = 0


@dataclass(frozen=True)
class Kept:
    """A subscription as it is stored. `secrets`: [secret, until when or null], the newest first.

    `lost_*_lsn`: between which positions documents were deleted before it had them, the last time that some were.
    `held_until`: in seconds since 1970, where the receiver has said when it wants to be asked again.
    """

    id: str
    is_fixed: bool
    wanted: Mapping[str, Any]
    secrets: tuple[tuple[str, float | None], ...] = field(repr=False)
    created_at: str
    from_lsn: str | None
    epoch: int
    state: str
    place: Place
    delivered_lsn: str | None
    delivered: int
    failing_since: float | None
    error: str | None
    lost_after_lsn: str | None
    lost_to_lsn: str | None
    held_until: float | None


@dataclass
class Progress:
    """What a delivery has to say of a subscription since it last did."""

    id: str
    epoch: int
    place: Place
    delivered: int  # since then
    delivered_lsn: str | None
    failing_since: float | None
    error: str | None
    state: str
    parked: list[tuple[str, str, str | None]] = field(default_factory=list)  # document, id, reason
    unparked: list[int] = field(default_factory=list)
    refused_again: dict[int, str | None] = field(default_factory=dict)  # None: behind another
    held_until: float | None = None


class Entry(NamedTuple):
    """One entry of the outbox."""

    seq: int
    documents: bytes
    commit_lsn: int
    types: str | None = None  # JSON, a list; None of an entry of an earlier version


class ParkedRow(NamedTuple):
    """One parked document, as JSON of its columns; `reason` is None of one that waits behind another."""

    document: str
    number: int
    subscription: str
    id: str
    reason: str | None
    parked_at: str
    request: str | None


def secrets_now(secrets: Iterable[tuple[str, float | None]]) -> list[str]:
    """Those that still count."""
    now = time.time()
    return [secret for secret, until in secrets if until is None or until > now]
