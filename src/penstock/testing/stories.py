"""What may befall a table beside plain changes: rows that move to another key, and TRUNCATEs. For the sink's contract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.testing.scene import ORDERS
from penstock.testing.stream import insert, truncate, update

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Story:
    """Transactions of public.orders, and what they come to; changes by their places among all of them.

    `rows`: what is there at the end, by id the note and the row's last change. `waiting`: changes that are not
    delivered while the destination refuses row 2, and each change is a document.
    """

    name: str
    transactions: Sequence[Sequence[bytes]]
    rows: dict[int, tuple[str, int]]
    waiting: Sequence[int] = ()


def _insert(key: int, note: str = "new") -> bytes:
    return insert(ORDERS, [str(key), note])


def _move(before: int, after: int) -> bytes:
    return update(ORDERS, [str(after), "moved"], key=[str(before)])


# Row 2 is made by the second transaction of both.
MOVED = Story(
    "a refused row gets another key",
    [
        [_insert(1)],
        [_insert(2)],
        [_move(2, 6)],
        [_insert(3), update(ORDERS, ["6", "sent"])],
    ],
    rows={1: ("new", 0), 3: ("new", 3), 6: ("sent", 4)},
    waiting=(1, 2, 4),
)
EMPTIED = Story(
    "the table of a refused row is emptied",
    [
        [_insert(1)],
        [_insert(2)],
        [_insert(3), truncate(ORDERS)],
        [_insert(4), _insert(5)],
        [_move(4, 7)],
    ],
    rows={5: ("new", 5), 7: ("moved", 6)},
    waiting=(1, 3, 4, 5, 6),
)
EVERYTHING = Story(
    "rows that move, and a table that is emptied",
    [
        [_insert(1), _insert(2)],
        [_move(2, 6), update(ORDERS, ["1", "paid"])],
        [truncate(ORDERS), _insert(3)],
        [_move(3, 4), _insert(3, "again")],
    ],
    rows={3: ("again", 7), 4: ("moved", 6)},
)
