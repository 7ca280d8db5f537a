"""Names of people, chosen from fixed lists: first_name, last_name, full_name.

The lists are Faker's en_US ones (names/LICENSE), as files of our own: with another edition of them every
masked name would change, and rows that were masked before would not match those after.
"""

from __future__ import annotations

import functools
from importlib import resources
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from penstock.modifiers.transform.arrays import chosen
from penstock.modifiers.transform.transformer import Batch, Drawing
from penstock.modifiers.transform.words import letters
from penstock.options import wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.modifiers.transform.draws import Draws

Gender = Literal["any", "male", "female"]


@functools.cache
def names(kind: str) -> tuple[str, ...]:
    """One of the lists: male, female, any (both), last."""
    if kind == "any":
        return tuple(sorted({*names("male"), *names("female")}))
    text = resources.files(f"{__package__}.names").joinpath(f"{kind}.txt").read_text("ascii")
    return tuple(text.split())


class _Name(Drawing):
    """What names have in common."""

    preserve_length: bool = False
    max_length: int = Field(default=100, ge=1)

    @field_validator("max_length")
    @classmethod
    def _long_enough(cls, given: int) -> int:
        if given < 3:
            raise wanted("3 or more: there is no shorter name")
        return given

    def _pick(self, draws: Draws, kind: str, number: int, lengths: Any, most: int) -> pa.Array:
        """Of each row a name: of the length wanted, where that is given."""
        table = [one for one in names(kind) if len(one) <= most]
        if lengths is None:
            return chosen(table, draws.below(len(table), number))
        return _of_lengths(draws, table, number, np.clip(lengths, 0, most))


def _of_lengths(draws: Draws, table: Sequence[str], number: int, lengths: Any) -> pa.Array:
    # By length: the table in that order, where each length begins, and how many there are.
    ordered = sorted(table, key=len)
    sizes = np.array([len(one) for one in ordered])
    begin = np.searchsorted(sizes, lengths, "left")
    count = np.searchsorted(sizes, lengths, "right") - begin
    places = begin + draws.below(np.maximum(count, 1).astype(np.uint64), number)
    found = chosen(ordered, np.minimum(places, len(ordered) - 1))
    if bool((count > 0).all()):
        return found
    # No name is so long, or so short: letters that look like one.
    made = pc.utf8_capitalize(letters(draws, lengths, "aeioulmnrst").cast(pa.string()))
    return pc.if_else(pa.array(count > 0), found, made.cast(pa.binary()))


class FirstName(_Name):
    """A first name."""

    dynamic: ClassVar = frozenset({"gender"})

    gender: Gender = "any"

    @field_validator("gender", mode="before")
    @classmethod
    def _any_case(cls, given: Any) -> Any:
        return given.lower() if isinstance(given, str) else given

    def apply(self, batch: Batch) -> pa.Array:
        """The values, transformed."""
        draws = batch.draws("first_name", self.generator)
        lengths = _lengths(batch) if self.preserve_length else None
        genders = self.from_column("gender", batch)
        if genders is None:
            return self._pick(draws, self.gender, 0, lengths, self.max_length)
        said = pc.utf8_lower(pc.fill_null(genders, self.gender.encode()).cast(pa.string()))
        by_gender = {
            kind: self._pick(draws, kind, 0, lengths, self.max_length)
            for kind in ("male", "female", "any")
        }
        is_of = [pc.equal(pc.utf8_slice_codeunits(said, start=0, stop=1), one) for one in "mf"]
        return pc.case_when(
            pc.make_struct(*is_of), by_gender["male"], by_gender["female"], by_gender["any"]
        )

    def longest(self, given: int | None) -> int | None:
        """How many characters the longest result has."""
        return given if self.preserve_length else _longest(self.gender, self.max_length)


class LastName(_Name):
    """A family name."""

    def apply(self, batch: Batch) -> pa.Array:
        """The values, transformed."""
        lengths = _lengths(batch) if self.preserve_length else None
        draws = batch.draws("last_name", self.generator)
        return self._pick(draws, "last", 0, lengths, self.max_length)

    def longest(self, given: int | None) -> int | None:
        """How many characters the longest result has."""
        return given if self.preserve_length else _longest("last", self.max_length)


class FullName(_Name):
    """A first name and a family name."""

    gender: Gender = "any"

    @field_validator("max_length")
    @classmethod
    def _room_for_two(cls, given: int) -> int:
        if given < 7:
            raise wanted("7 or more: there is no shorter full name")
        return given

    def apply(self, batch: Batch) -> pa.Array:
        """The values, transformed."""
        draws = batch.draws("full_name", self.generator)
        first_most = max(3, min(self.max_length - 1, 100) // 2)
        last_most = self.max_length - 1 - first_most
        lengths = _lengths(batch) if self.preserve_length else None
        first_length = None if lengths is None else np.clip(lengths // 2, 1, None)
        last_length = None if lengths is None else np.clip(lengths - 1 - lengths // 2, 0, None)
        first = self._pick(draws, self.gender, 0, first_length, first_most)
        last = self._pick(draws, "last", 1, last_length, last_most)
        return pc.binary_join_element_wise(first, last, b" ")

    def longest(self, given: int | None) -> int | None:
        """How many characters the longest result has."""
        if self.preserve_length:
            return None if given is None else max(given, 2)
        both = _longest(self.gender, 100) + 1 + _longest("last", 100)
        return min(both, self.max_length)


def _lengths(batch: Batch) -> Any:
    return np.asarray(pc.utf8_length(batch.text())).astype(np.int64)


def _longest(kind: str, most: int) -> int:
    return max(len(one) for one in names(kind) if len(one) <= most)
