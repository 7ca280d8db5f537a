"""What a log needs of a broker: an ordered row of entries that one process extends, and pieces beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from penstock.errors import PenstockError
    from penstock.log.contract import Locator


@dataclass(frozen=True)
class Kept:
    """An entry as the broker has it: its number, and when it was appended, in seconds since 1970."""

    number: int
    data: bytes
    at: float


@dataclass(frozen=True)
class Bounds:
    """Numbers of entries: none is before `first`, none at or after `end`. Some in between are nobody's."""

    first: int
    end: int


class Appending(Protocol):
    """A group of pieces and entries that are durable together, once the block has ended."""

    def pieces(self, data: Sequence[bytes]) -> list[int]:
        """Add pieces; their numbers."""
        ...

    def entries(self, data: Sequence[bytes]) -> None:
        """Add entries; their numbers are known when the block has ended."""
        ...

    @property
    def numbers(self) -> list[int]:
        """Those of the entries."""
        ...


class Tail(Protocol):
    """Reads entries from a number on, and goes on with those that come. In one thread at a time."""

    @property
    def has_caught_up(self) -> bool:
        """Whether it has ever read all there was."""
        ...

    def poll(self, seconds: float) -> Kept | None:
        """The next one, waited for so long at most.

        Raises:
            LogGone: it was deleted.
            LogUnreachable: the broker is away.
        """
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Transport(Protocol):
    """A log on one broker. All methods raise LogUnreachable while the broker is away."""

    @property
    def place(self) -> str:
        """Where it is, for errors."""
        ...

    @property
    def read_seconds(self) -> float:
        """How long the next entry is waited for, in seconds."""
        ...

    @property
    def piece_bytes(self) -> int:
        """How large a piece or an entry may be; known to who has opened it for writing."""
        ...

    def open_for_writing(self) -> None:
        """Make what is missing, and be the only one that appends from now on.

        Raises:
            LogRefused: something must be fixed first.
        """
        ...

    def append(self) -> AbstractContextManager[Appending]:
        """Append a group; on an exception nothing of it is ever read.

        Raises:
            SecondInstance: somebody else has opened it for writing since.
        """
        ...

    def bounds(self) -> Bounds | None:
        """Where the row begins and ends now; None: there is none."""
        ...

    def tail(self, number: int) -> Tail:
        """Read from an entry on."""
        ...

    def fetch(self, pieces: Sequence[int]) -> bytes:
        """Pieces, one after the other."""
        ...

    def locator(self, pieces: tuple[int, ...], number: int) -> Locator:
        """What a task reads the pieces of an entry with."""
        ...

    def discard(self, entries_before: int, pieces_before: int) -> None:
        """Let go of what comes before these numbers."""
        ...

    def risk(self, oldest_at: float, size_bytes: int) -> PenstockError | None:
        """What may delete the oldest entry, which is still needed, by the broker's settings as they are now."""
        ...

    def close_writing(self) -> None:
        """Append no more."""
        ...
