"""Decimals as Postgres prints them -> unscaled whole numbers as bytes: two's complement, big-endian, as few as
hold the number. So do Java's BigInteger, Kafka Connect's Decimal and Avro's decimal. All rows at once; pure.
"""

from __future__ import annotations

import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.textcolumns import raw_bytes

if TYPE_CHECKING:
    from penstock.changes.cells import Mask

_DECIMAL_DIGITS = 38
# Python takes no more digits at once, by default: its way takes quadratic time.
_DIGITS_AT_ONCE = 4000
# A longer value is made into base64 by itself.
_SHORT_BYTES = 64
_DECIMAL = r"^-?[0-9]+(\.[0-9]+)?$"
_ALPHABET = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8
)


@dataclass(frozen=True)
class Unscaled:
    """`values` are binary, null where the column is; `scales` count digits after the point. `unfit`: NaN and infinities."""

    values: pa.Array
    scales: npt.NDArray[np.int64]
    unfit: Mask


def scale_of(type_modifier: int) -> int | None:
    """How many digits after the point a numeric has; None where each value has its own."""
    if type_modifier < 4:
        return None
    scale = (((type_modifier - 4) & 0x7FF) ^ 1024) - 1024  # 11 bits, signed
    return max(scale, 0)


def precision_of(type_modifier: int) -> int:
    """How many digits such a numeric has at most, those before the point included."""
    declared = ((type_modifier - 4) >> 16) & 0xFFFF
    scale = (((type_modifier - 4) & 0x7FF) ^ 1024) - 1024
    return max(declared - min(scale, 0), scale)


def unscaled(values: pa.Array) -> Unscaled:
    """A column of numerics, binary text."""
    is_number = pc.match_substring_regex(values, pattern=_DECIMAL)
    unfit = np.asarray(pc.fill_null(pc.invert(is_number), False))
    if bool(unfit.any()):
        values = pc.if_else(is_number, values, pa.scalar(None, values.type))
    text = values.cast(pa.string())
    point = np.asarray(pc.fill_null(pc.find_substring(values, pattern=b"."), -1)).astype(np.int64)
    lengths = np.asarray(pc.fill_null(pc.binary_length(values), 0)).astype(np.int64)
    scales = np.where(point < 0, 0, lengths - point - 1)
    if bool((point >= 0).any()):
        text = pc.replace_substring(text, pattern=".", replacement="", max_replacements=1)
    return Unscaled(_numbers(text), scales, unfit)


def _numbers(text: pa.Array) -> pa.Array:
    try:
        wide = np.asarray(pc.fill_null(text.cast(pa.int64()), 0)).astype(">i8")
        return _shortest(wide.view(np.uint8).reshape(len(text), 8), text.is_valid())
    except pa.ArrowInvalid:
        pass  # longer than 64 bits
    longest = pc.max(pc.utf8_length(pc.utf8_ltrim(text, "-"))).as_py() or 0
    if longest <= _DECIMAL_DIGITS:  # of one more Arrow takes some, and has another number then
        wide_decimals = text.cast(pa.decimal128(_DECIMAL_DIGITS, 0))
        raw = np.frombuffer(wide_decimals.buffers()[1], np.uint8)
        begin = wide_decimals.offset * 16
        rows = raw[begin : begin + 16 * len(text)].reshape(len(text), 16)[:, ::-1]
        return _shortest(rows, text.is_valid())
    # Longer ones are rare, and made one by one.
    return pa.array(
        [None if each is None else _bytes(_whole(each)) for each in text.to_pylist()], pa.binary()
    )


def _whole(text: str) -> int:
    """The number, however many digits it has; Postgres's numerics have up to 147,455."""
    if text.startswith("-"):
        return -_whole(text[1:])
    if len(text) <= _DIGITS_AT_ONCE:
        return int(text)
    half = len(text) // 2
    return _whole(text[:-half]) * 10**half + _whole(text[-half:])  # type: ignore[no-any-return]


def _bytes(number: int) -> bytes:
    size = (number + (number < 0)).bit_length() // 8 + 1
    return number.to_bytes(size, "big", signed=True)


def _shortest(rows: npt.NDArray[np.uint8], is_valid: pa.Array) -> pa.Array:
    """Each row without the bytes in front that only repeat its sign."""
    width = rows.shape[1]
    sign = rows[:, :1] >> 7
    repeats = (rows[:, :-1] == sign * 255) & ((rows[:, 1:] >> 7) == sign)
    skipped = np.logical_and.accumulate(repeats, axis=1).sum(axis=1)
    return binary_of(rows, width - skipped, is_valid, at_end=True)


def binary_of(
    rows: npt.NDArray[np.uint8], lengths: npt.NDArray[np.int64], is_valid: pa.Array, *, at_end: bool
) -> pa.Array:
    """The first bytes of each row, or the last ones, as a binary array; null where nothing is valid."""
    places = np.arange(rows.shape[1])
    bound = lengths[:, None]
    kept = places >= rows.shape[1] - bound if at_end else places < bound
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    made = pa.Array.from_buffers(
        pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(rows[kept])]
    )
    return (
        made
        if pc.all(is_valid).as_py()
        else pc.if_else(is_valid, made, pa.scalar(None, pa.binary()))
    )


def base64_of(values: pa.Array) -> pa.Array:
    """Values as base64: short ones all at once, which takes the memory of the longest for each; others one by one."""
    lengths = np.asarray(pc.fill_null(pc.binary_length(values), 0)).astype(np.int64)
    is_long = lengths > _SHORT_BYTES
    if not bool(is_long.any()):
        return _short_base64_of(values, lengths)
    mask = pa.array(is_long)
    short = pc.if_else(mask, pa.scalar(b"", values.type), values)
    made = [binascii.b2a_base64(each, newline=False) for each in values.filter(mask).to_pylist()]
    return pc.replace_with_mask(
        _short_base64_of(short, np.where(is_long, 0, lengths)), mask, pa.array(made, pa.binary())
    )


def _short_base64_of(values: pa.Array, lengths: npt.NDArray[np.int64]) -> pa.Array:
    if len(values) == 0:
        return values
    width = max(3, -(-int(lengths.max()) // 3) * 3)
    rows = np.zeros((len(values), width), np.uint8)
    rows[np.arange(width) < lengths[:, None]] = np.frombuffer(
        raw_bytes(pc.fill_null(values, b"")), np.uint8
    )
    triples = rows.reshape(len(values), width // 3, 3).astype(np.uint32)
    joined = (triples[:, :, 0] << 16) | (triples[:, :, 1] << 8) | triples[:, :, 2]
    shifts = np.array([18, 12, 6, 0], np.uint32)
    letters = _ALPHABET[(joined[:, :, None] >> shifts) & 63].reshape(len(values), width // 3 * 4)
    meant = -(-lengths * 8 // 6)
    letters[np.arange(letters.shape[1]) >= meant[:, None]] = ord("=")
    return binary_of(letters, -(-lengths // 3) * 4, values.is_valid(), at_end=False)
