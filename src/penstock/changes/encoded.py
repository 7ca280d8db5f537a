"""What encoders of columns have in common: the parts of a value, and rows whose value has none. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.textcolumns import Part, join

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.changes.cells import Cells, Mask
    from penstock.changes.envelope import Moments

UNAVAILABLE = b"__debezium_unavailable_value"
"""In place of a TOASTed value that an UPDATE left alone and the server did not send.

Of an array of whole numbers or dates its bytes, one by one, and of one of uuids `UNAVAILABLE_UUID`: as Debezium has it,
so that elements keep their type."""

UNAVAILABLE_UUID = b"b68a35a7-17ad-35b3-af2a-ae46edb4545a"
"""What Java's `UUID.nameUUIDFromBytes` makes of it."""


@dataclass(frozen=True)
class Encoded:
    """The values of a column, in parts; a null is null in all of them that are columns, and then there is only one.

    `unfit`: rows whose value the format cannot hold; what stands for them means nothing.
    """

    parts: list[Part]
    unfit: Mask | None = None

    def with_unavailable(self, mask: Mask, placeholder: bytes | None) -> Encoded:
        """Another text in some rows; where there is none, they do not fit."""
        if not bool(mask.any()):
            return self
        if placeholder is None:
            return Encoded(self.parts, mask if self.unfit is None else self.unfit | mask)
        whole = one_column(self.parts, len(mask))
        marked = pc.if_else(pa.array(mask), pa.scalar(placeholder, whole.type), whole)
        return Encoded([marked], self.unfit)


def one_column(parts: Sequence[Part], count: int) -> pa.Array:
    """The parts as one column; nulls stay nulls."""
    columns = [part for part in parts if not isinstance(part, bytes)]
    if not columns:
        return pa.repeat(pa.scalar(b"".join(parts), pa.binary()), count)
    if len(parts) == 1:
        return columns[0]
    joined = join(parts, count)
    is_valid = columns[0].is_valid()
    if pc.all(is_valid).as_py() is not False:
        return joined
    return pc.if_else(is_valid, joined, pa.scalar(None, joined.type))


def any_unfit(masks: Sequence[Mask | None], count: int) -> Mask:
    """The rows of all masks."""
    found = np.zeros(count, np.bool_)
    for mask in masks:
        if mask is not None:
            found |= mask
    return found


class EnvelopeEncoder(Protocol):
    """Writes the events of one table: how values, rows and what is around them look. See `envelope`."""

    @property
    def null(self) -> bytes:
        """What a null is in a row."""

    def row(self, cells: Sequence[Cells], places: Sequence[int]) -> Encoded:
        """Rows of the table of which the columns at these places are known."""

    def key(self, cells: Sequence[Cells], places: Sequence[int]) -> Encoded:
        """Their keys, of the columns at these places."""

    def event(
        self, op: str, before: list[Part] | None, after: list[Part] | None, moments: Moments
    ) -> list[Part]:
        """The whole of it."""
