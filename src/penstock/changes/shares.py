"""Which of several shares a change belongs to: the same for all changes of a key, in every process. Pure.

A share is found from the values' own bytes, all rows of a table at once, before any document is made of them.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.changes.cells import ABSENT
from penstock.changes.decode import TableChanges
from penstock.changes.documents import key_places, keyed
from penstock.changes.pgoutput import DELETE

if TYPE_CHECKING:
    from penstock.changes.cells import Cells, Mask
    from penstock.changes.decode import Piece
    from penstock.table import TableName

Hashes = npt.NDArray[np.uint64]

# Of a longer value only so many bytes count, at its end, where numbers and random ids differ.
_BYTES = 16
_FACTOR = np.uint64(0x100000001B3)  # of FNV-1a
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Share:
    """One of `count` shares; see `share_of_piece`."""

    number: int
    count: int
    shared_by: str

    def of(self, piece: Piece) -> Piece | None:
        """What of a piece belongs to it: a row that moves to another key goes by the new one."""
        return share_of_piece(piece, self.number, self.count, self.shared_by)

    def of_either_key(self, piece: Piece) -> Piece | None:
        """The same, with rows that only had a key of it before."""
        if not isinstance(piece, TableChanges):
            return self.of(piece)
        mask = self.has_keys(piece) | self.has_keys(piece, before=True)
        if bool(mask.all()):
            return piece
        return piece.take(np.flatnonzero(mask)) if bool(mask.any()) else None

    def has_keys(self, changes: TableChanges, *, before: bool = False) -> Mask:
        """Which rows have a key of it, after the change or before it."""
        places = key_places(keyed(changes.relation)) if self.shared_by == "key" else []
        if self.count == 1 or not places:
            return np.full(len(changes), self.of(changes) is not None)
        mask: Mask = _shares(changes, places, self.count, before=before) == self.number
        return mask


def share_of_piece(piece: Piece, number: int, count: int, shared_by: str) -> Piece | None:
    """What of a piece belongs to a share, None: nothing.

    Args:
        piece: changes of a table.
        number: which share.
        count: of how many.
        shared_by: what stays together: a `key`, and where there is none its table; a `table`, a `schema`.
    """
    if count == 1:
        return piece
    places = key_places(keyed(piece.relation)) if shared_by == "key" else []
    if not places or not isinstance(piece, TableChanges):
        return piece if _of_name(piece.relation.table, shared_by) % count == number else None
    rows = np.flatnonzero(_shares(piece, places, count) == number)
    if len(rows) == len(piece):
        return piece
    return piece.take(rows) if len(rows) else None


def _of_name(table: TableName, shared_by: str) -> int:
    name = table.schema if shared_by == "schema" else f"{table.schema}\0{table.name}"
    return zlib.crc32(name.encode())


def _shares(
    changes: TableChanges, places: list[int], count: int, *, before: bool = False
) -> npt.NDArray[Any]:
    hashes = np.full(len(changes), _of_name(changes.relation.table, "table"), np.uint64)
    is_delete = changes.operation == DELETE
    for place in places:
        new, old = changes.after[place], changes.before[place]
        # As a document's key has it: the old one of a delete, and of a value that was not sent again.
        is_old = is_delete | new.is_unchanged
        if before:
            is_old |= old.kind != ABSENT
        hashes = _hashed(new.where(~is_old, old), hashes)
    # Digits at the end of a number hardly reach the upper bits by themselves.
    return (hashes * _SPREAD >> np.uint64(33)) % np.uint64(count)


def _hashed(cells: Cells, hashes: Hashes) -> Hashes:
    """Add a column's values to hashes; one that is not known is not in a document's key either."""
    data = np.frombuffer(cells.data, np.uint8)
    length = np.where(cells.is_value, cells.length, 0)
    found = (hashes ^ length.astype(np.uint64)) * _FACTOR
    end = cells.start + length
    for back in range(1, min(_BYTES, int(length.max(initial=0))) + 1):
        has_it = length >= back
        byte = data[np.where(has_it, end - back, 0)].astype(np.uint64)
        found = np.where(has_it, (found ^ byte) * _FACTOR, found)
    return np.where(cells.is_value | cells.is_null, found, hashes)
