"""Transformers that draw from what the file gives, or a number: boolean, choice, integer, float."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator, model_validator

from penstock.errors import BadValue
from penstock.modifiers.transform.arrays import chosen
from penstock.modifiers.transform.pgtypes import INTEGER_LIMITS, REAL
from penstock.modifiers.transform.plain import EVERY
from penstock.modifiers.transform.transformer import Batch, Drawing, spelled
from penstock.options import fault, wanted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.modifiers.transform.pgtypes import ColumnType

_LIMITS = {
    2: (-(2**15), 2**15 - 1),
    4: (-(2**31), 2**31 - 1),
    8: (-(2**63), 2**63 - 1),
}
_LARGEST_REAL = 3.4e38


class Boolean(Drawing):
    """True or false."""

    takes: ClassVar = frozenset({"boolean"})

    def apply(self, batch: Batch) -> pa.Array:
        """The values, transformed."""
        return chosen("ft", batch.draws("boolean", self.generator).below(2))


class Choice(Drawing):
    """One of what the file lists."""

    takes: ClassVar = EVERY

    choices: tuple[str, ...]

    @field_validator("choices", mode="before")
    @classmethod
    def _as_text(cls, given: Any) -> Any:
        if not isinstance(given, list | tuple) or not given:
            raise wanted("a list with at least one value")
        return tuple(_text(one) for one in given)

    def apply(self, batch: Batch) -> pa.Array:
        """The values, transformed."""
        draws = batch.draws("choice", self.generator)
        results = [spelled(each, batch.type) for each in self.choices]
        return chosen(results, draws.below(len(results)))

    @property
    def fixed_results(self) -> tuple[str, ...]:
        """All results there can be."""
        return self.choices

    def longest(self, given: int | None) -> int:  # noqa: ARG002
        """How many characters the longest result has."""
        return max(map(len, self.choices))


def _text(one: Any) -> Any:
    if isinstance(one, bool):
        return "true" if one else "false"
    return str(one) if isinstance(one, int | float) else one


class Integer(Drawing):
    """A whole number between two, both included."""

    takes: ClassVar = frozenset({"integer", "number"})

    size: Literal[2, 4, 8] | None = None
    min_value: int | None = None
    max_value: int | None = None

    @field_validator("size", mode="before")
    @classmethod
    def _whole(cls, given: Any) -> Any:
        return int(given) if isinstance(given, str) and given.isdigit() else given

    @model_validator(mode="after")
    def _fits(self) -> Self:
        least, most = self._range(None)
        lowest, highest = _LIMITS[self.size or 8]
        if least < lowest or most > highest:
            what = f"goes beyond {self.size or 8} bytes, {lowest} to {highest}"
            raise fault(BadValue(what, do="set another size, or other limits"))
        if most < least:
            what = f"is {most}, below min_value, {least}"
            raise fault(BadValue(what, do=f"set max_value to {least} or more"), "max_value")
        return self

    def _range(self, type_: ColumnType | None) -> tuple[int, int]:
        oid = type_.oid if type_ is not None else 0
        lowest, highest = _LIMITS[self.size or 4]
        if self.size is None and oid in INTEGER_LIMITS and oid != 20:
            lowest, highest = INTEGER_LIMITS[oid]
        least = lowest if self.min_value is None else self.min_value
        return least, highest if self.max_value is None else self.max_value

    def depends_on(self, type_: ColumnType) -> object:
        """Its limits, where the rule says none."""
        return self._range(type_)

    def apply(self, batch: Batch) -> pa.Array:
        """The values, transformed."""
        numbers = batch.draws("integer", self.generator).between(*self._range(batch.type))
        return pa.array(numbers).cast(pa.string())

    def complaints(self, type_: ColumnType) -> Iterator[tuple[str, str]]:
        """What is wrong with it for a column of a type that it takes."""
        least, most = self._range(type_)
        lowest, highest = INTEGER_LIMITS.get(type_.oid, (least, most))
        if least < lowest or most > highest:
            yield (
                f"{least} to {most} goes beyond the column's type, {lowest} to {highest}",
                f"set min_value and max_value within {lowest} and {highest}",
            )
        yield from beyond_numeric(type_, max(abs(least), abs(most)))


class Float(Drawing):
    """A number between two, rounded to `precision` decimals."""

    takes: ClassVar = frozenset({"number"})

    min_value: float = -_LARGEST_REAL
    max_value: float = _LARGEST_REAL
    precision: int = Field(default=2, ge=0, le=15)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not (np.isfinite(self.min_value) and np.isfinite(self.max_value)):
            raise wanted("finite numbers")
        if self.max_value < self.min_value:
            what = f"is {self.max_value}, below min_value, {self.min_value}"
            raise fault(BadValue(what, do="swap the two"), "max_value")
        return self

    def apply(self, batch: Batch) -> pa.Array:
        """The values, transformed."""
        draws = batch.draws("float", self.generator)
        scale = 10**self.precision
        least, most = self.min_value * scale, self.max_value * scale
        if max(abs(least), abs(most)) < 2**53:
            # Whole hundredths, so that the text is exact.
            whole = draws.between(
                int(np.ceil(least)), max(int(np.floor(most)), int(np.ceil(least)))
            )
            return _with_point(whole, self.precision)
        numbers = self.min_value + draws.fraction() * (self.max_value - self.min_value)
        return pa.array(np.round(numbers, self.precision)).cast(pa.string())

    def complaints(self, type_: ColumnType) -> Iterator[tuple[str, str]]:
        """What is wrong with it for a column of a type that it takes."""
        most = max(abs(self.min_value), abs(self.max_value))
        if type_.oid == REAL and most > _LARGEST_REAL:
            yield (
                "the limits go beyond the column's type, real",
                f"set min_value and max_value within {_LARGEST_REAL}",
            )
        yield from beyond_numeric(type_, most)


def _with_point(whole: Any, precision: int) -> pa.Array:
    if precision == 0:
        return pa.array(whole).cast(pa.string())
    digits = pc.utf8_lpad(
        pa.array(np.abs(whole)).cast(pa.string()), width=precision + 1, padding="0"
    )
    sign = pc.if_else(pa.array(whole < 0), "-", "")
    before = pc.utf8_slice_codeunits(digits, start=0, stop=-precision)
    return pc.binary_join_element_wise(
        sign, before, ".", pc.utf8_slice_codeunits(digits, start=-precision), ""
    )


def beyond_numeric(type_: ColumnType, most: float) -> Iterator[tuple[str, str]]:
    """Why a number, and its negative, is too much for a numeric(p, s), which rounds it first."""
    found = type_.precision_and_scale
    if found is None:
        return
    limit = Decimal(1).scaleb(found[0] - found[1])
    if Decimal(most) >= limit - Decimal("0.5").scaleb(-found[1]):
        yield (
            f"the limits go beyond the column's type, numeric({found[0]},{found[1]})",
            f"set min_value and max_value below {limit:f}",
        )
