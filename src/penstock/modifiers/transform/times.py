"""Transformers that draw a moment: date, timestamp, unix_timestamp."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import field_validator, model_validator

from penstock.errors import BadValue
from penstock.modifiers.transform.numbers import beyond_numeric
from penstock.modifiers.transform.pgtypes import INT8, INTEGER_LIMITS, TIMESTAMPTZ
from penstock.modifiers.transform.transformer import Batch, Drawing
from penstock.options import fault, wanted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.modifiers.transform.pgtypes import ColumnType

Part = Literal[
    "nanosecond",
    "microsecond",
    "millisecond",
    "second",
    "minute",
    "hour",
    "day",
    "month",
    "year",
]
_FINEST = ("nanosecond", "microsecond")  # what is drawn anyway
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_LAST = "2099-12-31"


def _moment(given: Any) -> dt.datetime:
    if isinstance(given, dt.datetime):
        moment = given
    elif isinstance(given, dt.date):
        moment = dt.datetime.combine(given, dt.time())
    else:
        try:
            moment = dt.datetime.fromisoformat(str(given))
        except ValueError:
            raise wanted("a date or a time such as 2024-01-31 or 2024-01-31T10:00:00Z") from None
    if moment.year < 1:
        raise wanted("a year from 1 to 9999")
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)


def _require_order(least: Any, most: Any, key: str) -> None:
    if most < least:
        what = "is before the earliest"
        raise fault(BadValue(what, do="swap the two"), key)


class Date(Drawing):
    """A day between two, both included."""

    takes: ClassVar = frozenset({"date", "timestamp", "text"})

    min_value: dt.date = dt.date(1970, 1, 1)
    max_value: dt.date = dt.date.fromisoformat(_LAST)

    @field_validator("min_value", "max_value", mode="before")
    @classmethod
    def _day(cls, given: Any) -> dt.date:
        return _moment(given).date()

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _require_order(self.min_value, self.max_value, "max_value")
        return self

    def apply(self, batch: Batch) -> pa.Array:
        """The values, transformed."""
        days = [(one - _EPOCH.date()).days for one in (self.min_value, self.max_value)]
        drawn = batch.draws("date", self.generator).between(*days).astype(np.int32)
        text = pa.array(drawn).view(pa.date32()).cast(pa.string())
        if batch.type.family != "timestamp":
            return text
        zone = "+00" if batch.type.oid == TIMESTAMPTZ else ""
        return pc.binary_join_element_wise(text, f"00:00:00{zone}", " ")

    def longest(self, given: int | None) -> int:  # noqa: ARG002
        """How many characters the longest result has."""
        return 10


class Timestamp(Drawing):
    """A moment between two, in UTC, cut to a unit."""

    takes: ClassVar = frozenset({"date", "timestamp"})

    truncate_part: Part = "microsecond"
    min_timestamp: dt.datetime = _EPOCH
    max_timestamp: dt.datetime = _moment(_LAST)

    @field_validator("min_timestamp", "max_timestamp", mode="before")
    @classmethod
    def _instant(cls, given: Any) -> dt.datetime:
        return _moment(given)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _require_order(self.min_timestamp, self.max_timestamp, "max_timestamp")
        return self

    def apply(self, batch: Batch) -> pa.Array:
        """The values, transformed."""
        ends = [(one - _EPOCH) // _MICROSECOND for one in (self.min_timestamp, self.max_timestamp)]
        drawn = batch.draws("timestamp", self.generator).between(*ends)
        moments = pa.array(drawn).view(pa.timestamp("us"))
        if self.truncate_part not in _FINEST:
            moments = pc.floor_temporal(moments, unit=self.truncate_part)
        if batch.type.family == "date":
            return moments.cast(pa.date32()).cast(pa.string())
        text = _without_zeros(moments.cast(pa.string()))
        return pc.binary_join_element_wise(text, "+00" if batch.type.oid == TIMESTAMPTZ else "", "")


def _without_zeros(text: pa.Array) -> pa.Array:
    """As Postgres writes it: no zeros at the end of a fraction, and no fraction of zeros alone."""
    # A cast of microseconds always writes six digits, so the fraction is there to cut from.
    return pc.replace_substring_regex(text, pattern=r"\.?0*$", replacement="")


class UnixTimestamp(Drawing):
    """Seconds since 1970 between two moments."""

    takes: ClassVar = frozenset({"integer", "number", "text"})

    min_value: int = 0
    max_value: int = 2**31 - 1

    @field_validator("min_value", "max_value", mode="before")
    @classmethod
    def _seconds(cls, given: Any) -> int:
        if isinstance(given, int) and not isinstance(given, bool):
            return given
        if isinstance(given, str) and given.lstrip("-").isdigit():
            return int(given)
        return int((_moment(given) - _EPOCH).total_seconds())

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _require_order(self.min_value, self.max_value, "max_value")
        lowest, highest = INTEGER_LIMITS[INT8]
        if self.min_value < lowest or self.max_value > highest:
            what = f"goes beyond 8 bytes, {lowest} to {highest}"
            raise fault(BadValue(what, do="set other limits"))
        return self

    def apply(self, batch: Batch) -> pa.Array:
        """The values, transformed."""
        draws = batch.draws("unix_timestamp", self.generator)
        return pa.array(draws.between(self.min_value, self.max_value)).cast(pa.string())

    def longest(self, given: int | None) -> int:  # noqa: ARG002
        """How many characters the longest result has."""
        return max(len(str(self.min_value)), len(str(self.max_value)))

    def complaints(self, type_: ColumnType) -> Iterator[tuple[str, str]]:
        """What is wrong with it for a column of a type that it takes."""
        lowest, highest = INTEGER_LIMITS.get(type_.oid, (self.min_value, self.max_value))
        if self.min_value < lowest or self.max_value > highest:
            yield (
                f"{self.min_value} to {self.max_value} goes beyond the column's type",
                f"set min_value and max_value within {lowest} and {highest}",
            )
        yield from beyond_numeric(type_, max(abs(self.min_value), abs(self.max_value)))
