"""Postgres's text -> typed Arrow columns, on request of row sinks. All rows at once; pure.

The Arrow type follows from what the table declares, never from values (`arrow_type`), so that a column has
one type for good. Conversion is exact: a value that the type cannot hold is not rounded or replaced. It is
null in the array and named in `unfit`, and who asked decides: to refuse the row, to park it, to stop.

    bool                              bool
    int2 int4 int8 oid                int16 int32 int64 uint32
    float4 float8                     float32 float64, NaN and infinities included
    numeric(p,s)                      decimal128 up to 38 digits, decimal256 up to 76
    date                              date32
    timestamp timestamptz             timestamp[us], timestamp[us, UTC]
    time                              time64[us]
    uuid                              fixed_size_binary(16)
    bytea                             binary
    an enum                           dictionary of strings
    an array of a type above, or text list of that type
    everything else                   string, Postgres's text

What does not fit: NaN in a numeric(p,s); infinity as a date or timestamp; timestamps after the year 294247;
24:00:00; arrays of more than one dimension or with bounds of their own; text that is not UTF-8.
`Unfit.TEXT` makes strings of all columns whose Postgres type has such values, and so loses none.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.arrayliterals import split_arrays
from penstock.changes.cells import gather
from penstock.changes.textcolumns import raw_bytes
from penstock.changes.typedtimes import to_dates, to_times, to_timestamps

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from penstock.changes.cells import Cells, Index

_BYTEA, _NUMERIC = 17, 1700
_BASE_TYPES = {
    16: pa.bool_(),
    _BYTEA: pa.binary(),
    20: pa.int64(),
    21: pa.int16(),
    23: pa.int32(),
    26: pa.uint32(),  # oid
    700: pa.float32(),
    701: pa.float64(),
    1082: pa.date32(),
    1083: pa.time64("us"),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", "UTC"),
    2950: pa.binary(16),  # uuid
}
# The types of arrays, and of their elements. OIDs of built-in types never change.
ELEMENTS = {
    199: 114,  # json
    1000: 16,
    1001: _BYTEA,
    1002: 18,  # "char"
    1003: 19,  # name
    1005: 21,
    1007: 23,
    1009: 25,  # text
    1014: 1042,  # bpchar
    1015: 1043,  # varchar
    1016: 20,
    1021: 700,
    1022: 701,
    1028: 26,
    1115: 1114,
    1182: 1082,
    1183: 1083,
    1185: 1184,
    1231: _NUMERIC,
    2951: 2950,
    3807: 3802,  # jsonb
}
# Types with values that their Arrow type lacks.
_LOSSY = frozenset({1082, 1083, 1114, 1184, _NUMERIC, *ELEMENTS})

_DECIMAL_128_DIGITS = 38
_DECIMAL_256_DIGITS = 76

_NIBBLES = np.full(256, 255, np.uint8)
_NIBBLES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16, dtype=np.uint8)
_UUID_DASHES = (8, 13, 18, 23)
_UUID_LENGTH = 36


class Unfit(StrEnum):
    """What becomes of values that an Arrow type cannot hold."""

    REPORT = "report"  # they are null, and named
    TEXT = "text"  # columns that may have such values are strings


@dataclass(frozen=True)
class TypedColumn:
    """The values, and the rows whose value the type cannot hold: null in `values`, not NULL at the source."""

    values: pa.Array
    unfit: Index


_NONE = np.zeros(0, np.int64)


def arrow_type(
    type_oid: int,
    type_modifier: int = -1,
    *,
    enums: Collection[int] = frozenset(),
    unfit: Unfit = Unfit.REPORT,
) -> pa.DataType:
    """The Arrow type of a column, by what its table declares.

    Args:
        type_oid: of the column.
        type_modifier: of the column: precision and scale of a numeric.
        enums: the oids of enums, which only the database knows.
        unfit: what becomes of values that an Arrow type cannot hold.
    """
    if type_oid in enums:
        return pa.dictionary(pa.int32(), pa.string())
    if unfit is Unfit.TEXT and type_oid in _LOSSY:
        return pa.string()
    if type_oid in ELEMENTS:
        return pa.list_(arrow_type(ELEMENTS[type_oid], type_modifier))
    if type_oid == _NUMERIC:
        return _decimal(type_modifier)
    return _BASE_TYPES.get(type_oid, pa.string())


def _decimal(type_modifier: int) -> pa.DataType:
    """By precision and scale; a numeric without them may have any number of digits, and is text."""
    if type_modifier < 4:
        return pa.string()
    declared = type_modifier - 4
    precision = (declared >> 16) & 0xFFFF
    scale = ((declared & 0x7FF) ^ 1024) - 1024  # 11 bits, signed
    # Formats want a scale from 0 to the precision: numeric(2,-3) goes up to 99000, (2,4) up to 0.0099.
    digits = precision - min(scale, 0) if scale <= precision else scale
    if digits > _DECIMAL_256_DIGITS:
        return pa.string()
    kind = pa.decimal128 if digits <= _DECIMAL_128_DIGITS else pa.decimal256
    return kind(digits, max(scale, 0))


def to_arrow(column: Cells, kind: pa.DataType) -> TypedColumn:
    """A column as an Arrow array of a type that `arrow_type` gave; what is not a value is null."""
    return to_typed(gather(column), kind)


def to_typed(values: pa.Array, kind: pa.DataType) -> TypedColumn:
    """The same, of a binary array."""
    if pa.types.is_list(kind):
        return _lists(values, kind.value_type)
    if pa.types.is_dictionary(kind):
        text = _or_halves(values, lambda some: some.cast(pa.string()))
        return TypedColumn(text.values.cast(kind), text.unfit)
    if pa.types.is_floating(kind):
        return _floats(values, kind)
    if pa.types.is_temporal(kind):
        array, unfit = _temporal(values, kind)
        return TypedColumn(array, unfit)
    return _or_halves(values, _CONVERTERS.get(kind, lambda some: some.cast(kind)))


def _temporal(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Index]:
    if pa.types.is_date(kind):
        return to_dates(values)
    return to_times(values) if pa.types.is_time(kind) else to_timestamps(values, kind)


def _or_halves(values: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> TypedColumn:
    """Convert all; if that is refused, find out by halving what does not fit."""
    try:
        return TypedColumn(convert(values), _NONE)
    except pa.ArrowInvalid:
        if len(values) == 1:
            nothing = convert(pa.nulls(1, values.type))
            return TypedColumn(nothing, np.zeros(1, np.int64))
    middle = len(values) // 2
    first = _or_halves(values[:middle], convert)
    second = _or_halves(values[middle:], convert)
    return TypedColumn(
        pa.concat_arrays([first.values, second.values]),
        np.concatenate((first.unfit, second.unfit + middle)),
    )


def _floats(values: pa.Array, kind: pa.DataType) -> TypedColumn:
    typed = _or_halves(values, lambda some: some.cast(kind))
    is_infinite = np.asarray(pc.fill_null(pc.is_inf(typed.values), False))
    if not bool(is_infinite.any()):
        return typed
    # Arrow makes an infinity of a number that is too large.
    is_stated = np.asarray(pc.fill_null(pc.ends_with(values, pattern=b"Infinity"), False))
    too_large = is_infinite & ~is_stated
    return _without(typed.values, np.union1d(typed.unfit, np.flatnonzero(too_large)))


def _without(values: pa.Array, unfit: Index) -> TypedColumn:
    """Null where values do not fit."""
    if len(unfit) == 0:
        return TypedColumn(values, _NONE)
    fits = np.ones(len(values), np.bool_)
    fits[unfit] = False
    return TypedColumn(pc.if_else(pa.array(fits), values, pa.scalar(None, values.type)), unfit)


def _bools(values: pa.Array) -> pa.Array:
    is_true = pc.equal(values, b"t")
    if pc.all(pc.or_(is_true, pc.equal(values, b"f"))).as_py() is False:
        raise pa.ArrowInvalid("neither t nor f")
    return is_true


def _bytes(values: pa.Array) -> pa.Array:
    """`\\x`, then two hexadecimal digits for each byte."""
    if pc.all(pc.starts_with(values, pattern=b"\\x")).as_py() is False:
        raise pa.ArrowInvalid("not hexadecimal")
    lengths = np.asarray(pc.fill_null(pc.binary_length(values), 0)).astype(np.int64)
    ends = np.cumsum(lengths)
    codes = np.frombuffer(raw_bytes(values), np.uint8)
    is_digit = np.ones(len(codes), np.bool_)
    begins = (ends - lengths)[lengths > 0]
    is_digit[begins] = is_digit[begins + 1] = False
    sizes = np.maximum(lengths - 2, 0)
    if bool((sizes % 2).any()):
        raise pa.ArrowInvalid("half a byte")
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(sizes // 2, out=offsets[1:])
    decoded = pa.Array.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(offsets), _decoded(codes[is_digit])]
    )
    return pc.if_else(values.is_valid(), decoded, pa.scalar(None, pa.binary()))


def _uuids(values: pa.Array) -> pa.Array:
    valid = values.drop_null()
    if pc.all(pc.equal(pc.binary_length(valid), _UUID_LENGTH)).as_py() is False:
        raise pa.ArrowInvalid("not 36 characters")
    codes = np.frombuffer(raw_bytes(valid), np.uint8).reshape(-1, _UUID_LENGTH)
    digits = np.ascontiguousarray(np.delete(codes, _UUID_DASHES, axis=1)).reshape(-1)
    decoded = pa.Array.from_buffers(pa.binary(16), len(valid), [None, _decoded(digits)])
    if len(valid) == len(values):
        return decoded
    is_valid = np.asarray(values.is_valid())
    places = pa.array(np.cumsum(is_valid) - 1, mask=~is_valid)
    return decoded.take(places)


def _decoded(digits: npt.NDArray[np.uint8]) -> pa.Buffer:
    nibbles = _NIBBLES[digits]
    if bool((nibbles == 255).any()):
        raise pa.ArrowInvalid("not a hexadecimal digit")
    return pa.py_buffer((nibbles[0::2] << 4) | nibbles[1::2])


def _lists(values: pa.Array, kind: pa.DataType) -> TypedColumn:
    arrays = split_arrays(values)
    elements = to_typed(gather(arrays.elements), kind)
    # One element that does not fit, and neither does its array.
    of_elements = np.searchsorted(arrays.offsets, elements.unfit, side="right") - 1
    unfit = np.union1d(arrays.unfit, of_elements)
    is_null = ~np.asarray(values.is_valid())
    is_null[unfit] = True
    lists = pa.ListArray.from_arrays(
        pa.array(arrays.offsets, pa.int32()),
        elements.values,
        mask=pa.array(is_null) if bool(is_null.any()) else None,
    )
    return TypedColumn(lists, unfit)


_CONVERTERS: dict[pa.DataType, Callable[[pa.Array], pa.Array]] = {
    pa.bool_(): _bools,
    pa.binary(): _bytes,
    pa.binary(16): _uuids,
}
