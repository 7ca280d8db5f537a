"""Postgres's text -> JSON text, a whole column at a time. Pure; knows values and types, no rows.

    int2 int4 int8 oid numeric float4 float8   a number, digit for digit; NaN and infinities a string
    bool                                       true, false
    bytea                                      a string, base64
    timestamp timestamptz                      a string, ISO 8601: T between, offsets with minutes
    date time timetz                           a string, ISO 8601
    json jsonb                                 itself, on one line
    everything else, and any other type's OID  a string, Postgres's text

`infinity` and years BC have no ISO 8601 form and stay Postgres's text, as does a value that is not
what its type says. Bytes that are not UTF-8 (a SQL_ASCII database can hold them) become `\\udc80` to
`\\udcff`, as Python's surrogateescape has them, so that nothing is lost.
"""

from __future__ import annotations

import binascii
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.textcolumns import LARGEST_BYTES, raw_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

# What JSON takes for a number; Postgres prints others only for what JSON lacks.
_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$"

# An escape makes six bytes of one.
_ROOMY = LARGEST_BYTES // 8


@dataclass(frozen=True)
class JsonColumn:
    """The values as JSON text: of each, `prefix`, itself, `suffix`. A null is not wrapped.

    Prefix and suffix are empty where there are nulls, so whoever joins columns can treat them as
    constants and nulls as `null`.
    """

    prefix: bytes
    values: pa.Array
    suffix: bytes


def json_column(type_oid: int, values: pa.Array) -> JsonColumn:
    """A column of binary values, as Postgres prints them, as JSON.

    Args:
        type_oid: of the column; OIDs of built-in types never change.
        values: an Arrow binary array; nulls stay nulls.
    """
    if values.nbytes > _ROOMY:
        values = values.cast(pa.large_binary())
    return _ENCODERS.get(type_oid, _text)(values)


def json_string(text: str) -> bytes:
    """One string as JSON, UTF-8."""
    return json.dumps(text, ensure_ascii=False).encode()


def _scalar(value: bytes, like: pa.Array) -> pa.Scalar:
    return pa.scalar(value, like.type)


def _wrap(values: pa.Array, prefix: bytes, suffix: bytes) -> pa.Array:
    """Prefix and suffix around each value that is not null."""
    return pc.binary_join_element_wise(
        _scalar(prefix, values), values, _scalar(suffix, values), _scalar(b"", values)
    )


def _quoted(values: pa.Array, suffix: bytes = b'"') -> JsonColumn:
    if values.null_count == 0:
        return JsonColumn(b'"', values, suffix)
    return JsonColumn(b"", _wrap(values, b'"', suffix), b"")


def _bare(values: pa.Array) -> JsonColumn:
    return JsonColumn(b"", values, b"")


def _text(values: pa.Array) -> JsonColumn:
    return _quoted(_escape(values))


def _escape(values: pa.Array) -> pa.Array:
    """The inside of a JSON string."""
    raw = raw_bytes(values)
    if len(raw) == 0:
        return values
    # Most columns need nothing, and a check is far cheaper than replacing. The backslash first: the
    # others bring backslashes of their own.
    seen = bytes(raw)
    for plain, escaped in ((b"\\", b"\\\\"), (b'"', b'\\"')):
        if plain in seen:
            values = pc.replace_substring(values, pattern=plain, replacement=escaped)
    codes = np.frombuffer(raw, np.uint8)
    if int(codes.min()) < 0x20:
        for code in np.unique(codes[codes < 0x20]).tolist():
            escaped = json.dumps(chr(code))[1:-1].encode()
            values = pc.replace_substring(values, pattern=bytes([code]), replacement=escaped)
    return _utf8(values)


def _utf8(values: pa.Array) -> pa.Array:
    try:
        values.cast(pa.large_string() if pa.types.is_large_binary(values.type) else pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [None if value is None else _spell_lone_bytes(value) for value in values.to_pylist()],
            values.type,
        )
    return values


def _spell_lone_bytes(value: bytes) -> bytes:
    text = value.decode(errors="surrogateescape")
    return "".join(
        f"\\u{ord(char):04x}" if "\udc80" <= char <= "\udcff" else char for char in text
    ).encode()


def _number(values: pa.Array) -> JsonColumn:
    is_number = pc.match_substring_regex(values, pattern=_NUMBER)
    if pc.all(is_number).as_py() is not False:
        return _bare(values)
    return _bare(pc.if_else(is_number, values, _wrap(_escape(values), b'"', b'"')))


def _bool(values: pa.Array) -> JsonColumn:
    is_true, is_false = (pc.equal(values, _scalar(one, values)) for one in (b"t", b"f"))
    spelled = pc.if_else(is_true, _scalar(b"true", values), _scalar(b"false", values))
    is_known = pc.or_(is_true, is_false)
    if pc.all(is_known).as_py() is not False:
        return _bare(spelled)
    return _bare(pc.if_else(is_known, spelled, _wrap(_escape(values), b'"', b'"')))


def _bytea(values: pa.Array) -> JsonColumn:
    # One at a time: Arrow has no kernel for it, and the work is in the bytes, not in the loop.
    encoded = [None if value is None else _base64(value) for value in values.to_pylist()]
    return _quoted(_escape(pa.array(encoded, values.type)))


def _base64(value: bytes) -> bytes:
    try:
        if value.startswith(b"\\x"):
            return binascii.b2a_base64(binascii.unhexlify(value[2:]), newline=False)
    except binascii.Error:
        pass  # not what bytea prints; it stays what it is
    return value


def _timestamp(values: pa.Array) -> JsonColumn:
    return _quoted(_with_t(_escape(values)))


def _timestamptz(values: pa.Array) -> JsonColumn:
    return _with_offset(_with_t(_escape(values)))


def _timetz(values: pa.Array) -> JsonColumn:
    return _with_offset(_escape(values))


def _with_t(values: pa.Array) -> pa.Array:
    """T between date and time; a year BC stays as it is, and infinity has no space."""
    divided = pc.replace_substring(values, pattern=b" ", replacement=b"T", max_replacements=1)
    if b"BC" not in bytes(raw_bytes(values)):
        return divided
    return pc.if_else(pc.ends_with(values, pattern=b" BC"), values, divided)


def _with_offset(values: pa.Array) -> JsonColumn:
    """Postgres leaves the minutes of an offset out when they are zero; ISO 8601 wants them here."""
    sign = pc.binary_slice(values, -3, -2)
    is_short = pc.or_(pc.equal(sign, _scalar(b"+", values)), pc.equal(sign, _scalar(b"-", values)))
    if pc.all(is_short).as_py() is not False:
        return _quoted(values, b':00"')
    return _quoted(pc.if_else(is_short, _wrap(values, b"", b":00"), values))


def _json(values: pa.Array) -> JsonColumn:
    seen = bytes(raw_bytes(values))
    # Inside JSON's strings a line break is always escaped, so these stand between tokens.
    for line_break in (b"\n", b"\r"):
        if line_break in seen:
            values = pc.replace_substring(values, pattern=line_break, replacement=b" ")
    return _bare(_utf8(values))


_ENCODERS: dict[int, Callable[[pa.Array], JsonColumn]] = {
    16: _bool,
    17: _bytea,
    20: _number,  # int8
    21: _number,  # int2
    23: _number,  # int4
    26: _number,  # oid
    114: _json,
    700: _number,  # float4
    701: _number,  # float8
    1114: _timestamp,
    1184: _timestamptz,
    1266: _timetz,
    1700: _number,  # numeric
    3802: _json,  # jsonb
}
