"""Values of a column beside those of a rule, compared as what the column's type says they are, all rows at once.

Numbers exactly, instants as instants, enums in their order, text by its bytes. A value of the rule that cannot
be of the type is an error of the rule. Postgres's text in, true, false or null out.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import MAX_PREC, Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.cells import Cells
from penstock.changes.typed import to_arrow
from penstock.errors import RuleUnfit
from penstock.modifiers.filter.advice import advice
from penstock.modifiers.filter.spelled import (
    interval_length,
    mac_address,
    network_address,
    time_with_zone,
)
from penstock.modifiers.filter.where import ORDERED, SEARCHES, Condition
from penstock.sql.column_types import ColumnType, Family, without_padding

if TYPE_CHECKING:
    from collections.abc import Callable

# What Arrow's cast to a decimal reads without rounding; others are compared one by one.
_FAST_DECIMAL = pa.decimal128(38, 18)
_LARGEST_FAST = Decimal(10) ** 20
_EXACT = Context(prec=MAX_PREC)
_FORMER, _LATER = -(2**63), 2**63 - 1  # -infinity and infinity among instants
_TEMPORAL = {
    Family.DATE: pa.date32(),
    Family.TIME: pa.time64("us"),
    Family.TIMESTAMP: pa.timestamp("us"),
    Family.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
}
_UNORDERED = (Family.BOOL, Family.NETWORK, Family.MAC, Family.TIMETZ)
_TEXTS = (Family.TEXT, Family.PADDED, Family.CITEXT)
_SEARCHED = (*_TEXTS, Family.ENUM, Family.DOCUMENT)
_MIDNIGHT = 86_400_000_000  # of the day after, in microseconds


class Comparable(Protocol):
    """A column that has been read."""

    def equal(self, value: Any) -> pa.Array:
        """Where it is that value."""

    def less(self, value: Any) -> pa.Array:
        """Where it is less."""


class _Plain:
    """An Arrow array whose own order is the type's."""

    def __init__(self, values: pa.Array) -> None:
        self._values = values

    def equal(self, value: Any) -> pa.Array:
        return pc.equal(self._values, pa.scalar(value, self._values.type))

    def less(self, value: Any) -> pa.Array:
        return pc.less(self._values, pa.scalar(value, self._values.type))


class _Numerics:
    """Numbers of any number of digits, NaN and infinities."""

    def __init__(self, values: pa.Array) -> None:
        self._values = values
        try:
            self._fast: pa.Array | None = values.cast(pa.string()).cast(_FAST_DECIMAL)
        except pa.ArrowInvalid:
            self._fast = None

    def equal(self, value: Decimal) -> pa.Array:
        if self._fast is not None and _is_fast(value):
            return pc.equal(self._fast, pa.scalar(value, _FAST_DECIMAL))
        return self._each(lambda found: _rank(found) == _rank(value))

    def less(self, value: Decimal) -> pa.Array:
        if self._fast is not None and _is_fast(value):
            return pc.less(self._fast, pa.scalar(value, _FAST_DECIMAL))
        return self._each(lambda found: _rank(found) < _rank(value))

    def _each(self, test: Callable[[Decimal], bool]) -> pa.Array:
        """Those that Arrow cannot hold are few."""
        return _of_each(self._values, lambda text: test(Decimal(text)))


class _Intervals:
    """Intervals by their length: 1 month is 30 days, and 1 day is 24 hours, as where Postgres compares them."""

    def __init__(self, values: pa.Array) -> None:
        self._values = values

    def equal(self, value: Decimal) -> pa.Array:
        return _of_each(self._values, lambda text: interval_length(text) == value)

    def less(self, value: Decimal) -> pa.Array:
        return _of_each(self._values, lambda text: interval_length(text) < value)


def _of_each(values: pa.Array, test: Callable[[str], bool]) -> pa.Array:
    """Every different value once."""
    encoded = values.dictionary_encode()
    answers = [test(text.decode()) for text in encoded.dictionary.to_pylist()]
    return pa.array(answers, pa.bool_()).take(encoded.indices)


def _is_fast(value: Decimal) -> bool:
    # A context would round to 28 digits.
    if not value.is_finite() or value.copy_abs() >= _LARGEST_FAST:
        return False
    exponent = value.normalize(_EXACT).as_tuple().exponent
    return isinstance(exponent, int) and exponent >= -18


def _rank(value: Decimal) -> tuple[int, Decimal]:
    """NaN is above everything else, and equal to itself."""
    return (1, Decimal(0)) if value.is_nan() else (0, value)


def _float_keys(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Whole numbers in the order of the floats: NaN last, 0 and -0 the same."""
    numbers = values.cast(pa.string()).cast(kind).cast(pa.float64())
    plain = np.asarray(pc.fill_null(numbers, 0.0)) + 0.0
    return pa.array(_keys_of(plain), mask=~np.asarray(numbers.is_valid()))


def _keys_of(floats: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, Any]:
    bits = floats.view(np.int64)
    keys = np.where(bits >= 0, bits, np.int64(-(2**63)) - bits)
    return np.where(np.isnan(floats), np.int64(2**63 - 1), keys)


def _float_key(value: float, kind: pa.DataType) -> int:
    one = np.array([value], np.float32 if kind == pa.float32() else np.float64).astype(np.float64)
    return int(_keys_of(one + 0.0)[0])


def _instants(values: pa.Array, family: Family) -> pa.Array:
    """Microseconds, or days; infinities before and after all others."""
    kind = _TEMPORAL[family]
    typed = to_arrow(Cells.from_arrow(values), kind)
    narrow = pa.int32() if family is Family.DATE else pa.int64()
    numbers = typed.values.view(narrow).cast(pa.int64())
    if not len(typed.unfit):
        return numbers
    found = np.array(pc.fill_null(numbers, 0))
    is_null = ~np.asarray(values.is_valid())
    for row in typed.unfit.tolist():
        text = values[row].as_py()
        # What is left is after all that Arrow can hold; 24:00 is the last of times.
        late = _MIDNIGHT if family is Family.TIME else _LATER - 1
        found[row] = {b"-infinity": _FORMER, b"infinity": _LATER}.get(text, late)
    return pa.array(found, mask=is_null)


def _ranks(values: pa.Array, labels: tuple[str, ...]) -> pa.Array:
    known = pa.array([label.encode() for label in labels], pa.binary())
    ranks = pc.index_in(values, value_set=known)
    if ranks.null_count > values.null_count:
        raise RuleUnfit(
            f"a label that the enum had not when its {len(labels)} labels were read",
            "",
            "nothing, if the enum has just been altered; else penstock tables resync",
        )
    return ranks


def _as_text(values: pa.Array) -> pa.Array:
    return values.view(pa.string())


def comparable(values: pa.Array, kind: ColumnType) -> Comparable:
    """A column, read as its type.

    Raises:
        RuleUnfit: a label of an enum is not known.
    """
    if kind.family is Family.NUMERIC:
        return _Numerics(values)
    if kind.family is Family.INTERVAL:
        return _Intervals(values)
    return _Plain(_in_order(values, kind))


def _in_order(values: pa.Array, kind: ColumnType) -> pa.Array:
    """Values whose order in Arrow is that of the type; bytes where that is the order."""
    family = kind.family
    if family is Family.INTEGER:
        return values.cast(pa.string()).cast(pa.int64())
    if family in (Family.FLOAT4, Family.FLOAT8):
        return _float_keys(values, _float_type(family))
    if family in _TEMPORAL:
        return _instants(values, family)
    if family is Family.ENUM:
        return _ranks(values, kind.labels)
    if family is Family.PADDED:
        return without_padding(values)
    return values


def _float_type(family: Family) -> pa.DataType:
    return pa.float32() if family is Family.FLOAT4 else pa.float64()


def read_value(text: str, kind: ColumnType) -> Any:
    """A value of the rule as one of the column's type, as `Comparable` takes it.

    Raises:
        RuleUnfit: it cannot be one.
    """
    try:
        return _READERS[kind.family](text, kind)
    except (ValueError, InvalidOperation, OverflowError):
        raise RuleUnfit(
            f"a value that cannot be {article(kind.spelled)}", "", "write one that can"
        ) from None


def is_read(kind: ColumnType) -> bool:
    """Whether `read_value` knows the type."""
    return kind.family in _READERS


def article(name: str) -> str:
    """The name of a type in a sentence."""
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _read_bool(text: str, _: ColumnType) -> bytes:
    if text.lower() not in ("true", "false", "t", "f"):
        raise ValueError
    return text.lower()[:1].encode()


def _read_integer(text: str, kind: ColumnType) -> int:
    if not re.fullmatch(r"\s*[+-]?[0-9]+\s*", text):
        raise ValueError
    first, last = kind.bounds
    if not first <= int(text) <= last:
        raise ValueError
    return int(text)


def _read_numeric(text: str, _: ColumnType) -> Decimal:
    value = Decimal(text.strip())
    if value.is_snan() or "_" in text or not text.isascii():
        raise ValueError
    return value


def _read_float(text: str, kind: ColumnType) -> int:
    if "_" in text or not text.isascii():
        raise ValueError
    type_ = _float_type(kind.family)
    with np.errstate(over="ignore"):
        value = float(np.array(float(text), type_.to_pandas_dtype()))
    # What becomes infinite or 0 is refused by Postgres, too.
    is_written = re.match(r"\s*[+-]?[0-9.]", text) is not None
    has_digits = re.search("[1-9]", text.lower().partition("e")[0]) is not None
    if is_written and (np.isinf(value) or (value == 0 and has_digits)):
        raise ValueError
    return _float_key(value, type_)


def _read_date(text: str, _: ColumnType) -> int:
    if (infinite := _infinity(text)) is not None:
        return infinite
    return (date.fromisoformat(text.strip()) - date(1970, 1, 1)).days


def _read_time(text: str, _: ColumnType) -> int:
    value = time.fromisoformat(text.strip())
    if value.tzinfo is not None:
        raise ValueError
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return seconds * 1_000_000 + value.microsecond


def _read_timestamp(text: str, _: ColumnType) -> int:
    if (infinite := _infinity(text)) is not None:
        return infinite
    value = _moment(text)
    if value.tzinfo is not None:
        raise ValueError
    return _microseconds(value.replace(tzinfo=UTC))


def _read_timestamptz(text: str, _: ColumnType) -> int:
    if (infinite := _infinity(text)) is not None:
        return infinite
    value = _moment(text)
    # Whose midnight would it be? Only a zone says so.
    if value.tzinfo is None:
        raise ValueError
    return _microseconds(value)


def _infinity(text: str) -> int | None:
    return {"infinity": _LATER, "-infinity": _FORMER}.get(text.strip().lower())


def _moment(text: str) -> datetime:
    written = text.strip()
    if re.search(r"[+-][0-9]{2}$", written) and ":" in written:
        written += ":00"  # an offset of hours, as Postgres prints it
    return datetime.fromisoformat(written)


def _microseconds(value: datetime) -> int:
    since = value - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds


def _read_bytea(text: str, _: ColumnType) -> bytes:
    if not text.lower().startswith("\\x"):
        raise ValueError
    return b"\\x" + bytes.fromhex(text[2:]).hex().encode()


def _read_label(text: str, kind: ColumnType) -> int:
    return kind.labels.index(text)


_READERS: dict[Family, Callable[[str, ColumnType], Any]] = {
    Family.BOOL: _read_bool,
    Family.INTEGER: _read_integer,
    Family.NUMERIC: _read_numeric,
    Family.FLOAT4: _read_float,
    Family.FLOAT8: _read_float,
    Family.TEXT: lambda text, _: text.encode(),
    Family.PADDED: lambda text, _: text.rstrip(" ").encode(),
    Family.DATE: _read_date,
    Family.TIME: _read_time,
    Family.TIMESTAMP: _read_timestamp,
    Family.TIMESTAMPTZ: _read_timestamptz,
    Family.UUID: lambda text, _: str(uuid.UUID(text)).encode(),
    Family.BYTEA: _read_bytea,
    Family.ENUM: _read_label,
    Family.CITEXT: lambda text, _: text.encode(),
    Family.INTERVAL: lambda text, _: interval_length(text),
    Family.NETWORK: lambda text, kind: network_address(text, kind.name).encode(),
    Family.MAC: lambda text, kind: mac_address(text, kind.name).encode(),
    Family.TIMETZ: lambda text, _: time_with_zone(text).encode(),
}
_DO_OTHERWISE = 'take another operator, or say it in SQL: where: "…"'
# Why types cannot be compared, and what to do.
_INSTEAD = {
    "json": "json has no equality in Postgres either: take contains, or SQL over a part, doc->>'key' = '…'",
    "jsonb": "equal documents can be spelled differently: take contains, or SQL over a part, doc->>'key' = '…'",
    "xml": "xml has no equality in Postgres either: take contains",
    "money": "its text depends on the source's lc_monetary: say in SQL what text it is to be, price = '$1.00'",
}


def check_condition(condition: Condition, kind: ColumnType) -> None:
    """See that a condition can be asked of a column.

    Raises:
        RuleUnfit: it cannot.
    """
    operator, family = condition.operator, kind.family
    if operator == "is_null":
        return
    if operator in SEARCHES:
        if family not in _SEARCHED:
            raise _unfit(condition, kind, "text, an enum, json or xml")
        if operator == "matches":
            _check_pattern(condition)
        return
    if family not in _READERS:
        raise _unfit(condition, kind, "a type that can be compared", _INSTEAD.get(kind.name))
    if operator in ORDERED and family in _UNORDERED:
        raise _unfit(condition, kind, "a type that has an order")
    if condition.ignores_case and family not in _TEXTS:
        raise _unfit(condition, kind, "text, to ignore case")
    _check_values(condition, kind)


def _check_values(condition: Condition, kind: ColumnType) -> None:
    for value in condition.values:
        try:
            read_value(value, kind)
        except RuleUnfit as error:
            raise RuleUnfit(
                f"column {condition.column}: {error.what}",
                error.where,
                advice(value, kind) or error.do,
            ) from None


def _unfit(
    condition: Condition, kind: ColumnType, wanted: str, instead: str | None = None
) -> RuleUnfit:
    return RuleUnfit(
        f"operator {condition.operator} on column {condition.column} of type {kind.spelled},"
        f" wanted {wanted}",
        "",
        instead or _DO_OTHERWISE,
    )


def _check_pattern(condition: Condition) -> None:
    try:
        pc.match_substring_regex(pa.array([b""]), pattern=condition.values[0])
    except pa.ArrowInvalid:
        raise RuleUnfit(
            f"column {condition.column}: a pattern that is no regular expression (RE2)",
            "",
            "see github.com/google/re2/wiki/Syntax",
        ) from None


def compare(condition: Condition, values: pa.Array, kind: ColumnType) -> pa.Array:
    """What a condition is for each row: true, false, or null where the value is NULL."""
    operator = condition.operator
    if operator == "is_null":
        return pc.is_null(values)
    if kind.family is Family.CITEXT:
        condition = replace(condition, ignores_case=True)
    if operator in SEARCHES:
        return _search(
            condition, without_padding(values) if kind.family is Family.PADDED else values
        )
    if condition.ignores_case:
        values = pc.utf8_lower(_as_text(values)).cast(pa.binary())
    column = comparable(values, kind)
    wanted = [
        # By the same tables as the column: Python's are others.
        read_value(pc.utf8_lower(each).as_py() if condition.ignores_case else each, kind)
        for each in condition.values
    ]
    return _compared(operator, column, wanted)


def _compared(operator: str, column: Comparable, wanted: list[Any]) -> pa.Array:
    first, last = wanted[0], wanted[-1]
    if operator in ("eq", "in", "ne"):
        answer = column.equal(first)
        for other in wanted[1:]:
            answer = pc.or_kleene(answer, column.equal(other))
        return pc.invert(answer) if operator == "ne" else answer
    if operator in ("lt", "gte"):
        return column.less(first) if operator == "lt" else pc.invert(column.less(first))
    at_most = pc.or_kleene(column.less(last), column.equal(last))
    if operator == "gt":
        return pc.invert(at_most)
    if operator == "between":
        return pc.and_kleene(pc.invert(column.less(first)), at_most)
    return at_most


def _search(condition: Condition, values: pa.Array) -> pa.Array:
    wanted, ignores = condition.values[0], condition.ignores_case
    text = _as_text(values)
    if condition.operator == "contains":
        return pc.match_substring(text, pattern=wanted, ignore_case=ignores)
    if condition.operator == "starts_with":
        return pc.starts_with(text, pattern=wanted, ignore_case=ignores)
    return pc.match_substring_regex(text, pattern=wanted, ignore_case=ignores)
