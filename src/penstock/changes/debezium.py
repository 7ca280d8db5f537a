"""Events of Debezium's Postgres connector as JSON, without schemas (`schemas.enable=false`). Pure; no rows in Python.

bool                     true, false
int2 int4 int8 oid       a number
float4 float8            a number; NaN and infinities a string
numeric(p,s) money       by `Decimals`: base64 of the unscaled value | a number | a string
numeric                  {"scale", "value": base64} | a number | a string
date                     days since 1970
time timestamp           microseconds; milliseconds of time(3), timestamp(3) and below
timestamptz              a string, ISO 8601 in UTC with Z
timetz                   the same, without a date
interval                 microseconds, a month being 365.25 / 12 days
bytea                    a string, base64
bit(1) varbit(1)         true, false
bit(n) varbit            a string, base64 of bytes, the lowest first, as many as hold the bits that are set
json jsonb, and the rest a string, Postgres's text
an array of these        an array
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock import __version__
from penstock.changes import epochs
from penstock.changes.arrayliterals import split_arrays
from penstock.changes.cells import gather
from penstock.changes.encoded import (
    UNAVAILABLE,
    UNAVAILABLE_UUID,
    Encoded,
    any_unfit,
    one_column,
)
from penstock.changes.jsonvalues import json_column, json_string
from penstock.changes.textcolumns import Part, digits, join
from penstock.changes.typed import ELEMENTS
from penstock.changes.unscaled import base64_of, scale_of, unscaled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.changes.cells import Cells
    from penstock.changes.envelope import Moments
    from penstock.changes.pgoutput import Column

_BYTEA, _TEXT, _MONEY, _BIT, _VARBIT, _NUMERIC, _UUID = 17, 25, 790, 1560, 1562, 1700, 2950
_WHOLE = (20, 21, 23)
_JSON_TYPES = (114, 3802)
_COUNTED = (epochs.DATE, epochs.TIME, epochs.TIMESTAMP, epochs.INTERVAL)
_MONEY_MODIFIER = 4 + (19 << 16) + 2

_UNAVAILABLE_BYTES = b'"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="'  # base64 of the placeholder


class Decimals(StrEnum):
    """How a numeric is written."""

    PRECISE = "precise"
    DOUBLE = "double"
    STRING = "string"


@dataclass(frozen=True)
class DebeziumEncoder:
    """Writes the events of one table."""

    columns: Sequence[Column]
    decimals: Decimals = Decimals.PRECISE
    null: bytes = b"null"

    def row(self, cells: Sequence[Cells], places: Sequence[int]) -> Encoded:
        """Objects with a field for each of these columns."""
        parts: list[Part] = [b"{"]
        masks = []
        for number, place in enumerate(places):
            column = self.columns[place]
            encoded = debezium_column(
                column.type_oid, column.type_modifier, gather(cells[place]), self.decimals
            ).with_unavailable(cells[place].is_unchanged, _unavailable(column.type_oid))
            comma = b"," if number else b""
            parts += [comma, json_string(column.name), b":", *encoded.parts]
            masks.append(encoded.unfit)
        return Encoded([*parts, b"}"], any_unfit(masks, len(cells[0])) if cells else None)

    def key(self, cells: Sequence[Cells], places: Sequence[int]) -> Encoded:
        """The same."""
        return self.row(cells, places)

    def event(
        self, op: str, before: list[Part] | None, after: list[Part] | None, moments: Moments
    ) -> list[Part]:
        """The envelope."""
        start, rest, at = _source(moments)
        return [
            b'{"before":',
            *(before or [b"null"]),
            b',"after":',
            *(after or [b"null"]),
            start,
            digits(moments.ordinal),
            rest,
            b',"transaction":null,"op":"%b",' % op.encode(),
            at,
            b"}",
        ]


def _source(moments: Moments) -> tuple[Part, Part, Part]:
    """`source` around the ordinal, and when it was; all of it is the same within a transaction."""
    one, of_row = moments.transactions()
    count = len(one)
    lsn = digits(one.commit_lsn.astype(np.int64))
    ts_ms, ts_us = digits(one.ts_ms), digits(one.ts_us)
    finer = [b'"ts_us":', ts_us, b',"ts_ns":', ts_us, b"000"]
    at = join([b'"ts_ms":', ts_ms, b",", *finer], count)
    start = join(
        [
            b',"source":{"version":%b,"connector":"postgresql","name":%b,"ts_ms":'
            % (json_string(__version__), json_string(moments.name)),
            ts_ms,
            b',"snapshot":"%b","db":%b,"sequence":"[\\"'
            % (b"true" if moments.snapshot else b"false", json_string(moments.database)),
            lsn,
            b'\\",\\"',
        ],
        count,
    )
    rest = join(
        [
            b'\\"]",',
            *finer,
            b',"schema":%b,"table":%b,"txId":' % tuple(map(json_string, moments.table)),
            b"null" if one.xid is None else digits(one.xid),
            b',"lsn":',
            lsn,
            b',"xmin":null}',
        ],
        count,
    )
    if of_row is None:
        return start[0].as_py(), rest[0].as_py(), at[0].as_py()
    return start.take(of_row), rest.take(of_row), at.take(of_row)


def _unavailable(type_oid: int) -> bytes:
    text = json_string(UNAVAILABLE.decode())
    if type_oid not in ELEMENTS:
        return _UNAVAILABLE_BYTES if type_oid == _BYTEA else text
    element = ELEMENTS[type_oid]
    if element in _WHOLE or element == epochs.DATE:
        text = b",".join(b"%d" % byte for byte in UNAVAILABLE)
    elif element == _BYTEA:
        text = _UNAVAILABLE_BYTES
    elif element == _UUID:
        text = json_string(UNAVAILABLE_UUID.decode())
    return b"[" + text + b"]"


def debezium_column(
    type_oid: int, type_modifier: int, values: pa.Array, decimals: Decimals = Decimals.PRECISE
) -> Encoded:
    """A column of Postgres's text as JSON."""
    if type_oid in ELEMENTS:
        return _arrays(type_oid, type_modifier, values, decimals)
    if type_oid in (_MONEY, _NUMERIC):
        return _numeric(type_oid, type_modifier, values, decimals)
    if type_oid in _COUNTED:
        found = epochs.epochs(type_oid, type_modifier, values)
        return Encoded([epochs.digits_of(found.values)], found.unfit)
    if type_oid in (_BIT, _VARBIT):
        return _bits(type_modifier, values)
    if type_oid in (epochs.TIMESTAMPTZ, epochs.TIMETZ):
        return _json(_TEXT, epochs.zoned_texts(type_oid, type_modifier, values))
    return _json(_TEXT if type_oid in _JSON_TYPES else type_oid, values)


def _json(type_oid: int, values: pa.Array) -> Encoded:
    made = json_column(type_oid, values)
    parts: list[Part] = [made.values]
    return Encoded([made.prefix, made.values, made.suffix] if made.prefix or made.suffix else parts)


def _numeric(type_oid: int, type_modifier: int, values: pa.Array, decimals: Decimals) -> Encoded:
    if type_oid == _MONEY:  # `-$1,234.50`
        values = pc.replace_substring_regex(values, pattern=r"[$,]", replacement="")
        type_modifier = _MONEY_MODIFIER
    if decimals is Decimals.STRING:
        return _json(_TEXT, values)
    if decimals is Decimals.DOUBLE:
        return _json(_NUMERIC, _as_doubles(values))
    has_scale = scale_of(type_modifier) is not None
    found = unscaled(values if has_scale else _without_zeros(values))
    text = base64_of(found.values)
    if has_scale:
        return _quoted([b'"', text, b'"'], found.unfit)
    scales = pa.array(found.scales).cast(pa.string()).cast(pa.binary())
    return _quoted([b'{"scale":', scales, b',"value":"', text, b'"}'], found.unfit, like=text)


def _without_zeros(values: pa.Array) -> pa.Array:
    """Numbers without zeros at the end of their fraction, and 0 for 0.00: as Debezium has those without a scale."""
    has_point = pc.fill_null(pc.match_substring(values, pattern=b"."), False)
    if not pc.any(has_point).as_py():
        return values
    shorter = pc.ascii_rtrim(pc.ascii_rtrim(values.cast(pa.string()), "0"), ".")
    return pc.if_else(has_point, shorter.cast(values.type), values)


def _quoted(parts: list[Part], unfit: Any, like: pa.Array | None = None) -> Encoded:
    """Parts of a value; one column where some are null."""
    column = like if like is not None else parts[1]
    if column.null_count == 0:  # type: ignore[union-attr]
        return Encoded(parts, unfit)
    joined = join(parts, len(column))
    return Encoded([pc.if_else(column.is_valid(), joined, pa.scalar(None, joined.type))], unfit)  # type: ignore[union-attr]


def _as_doubles(values: pa.Array) -> pa.Array:
    """The nearest number of 64 bits, as it is printed; NaN and infinities as Java and Postgres spell them."""
    text = values.cast(pa.string()).cast(pa.float64()).cast(pa.string())
    for arrows, spelled in (("nan", "NaN"), ("inf", "Infinity")):
        text = pc.replace_substring(text, pattern=arrows, replacement=spelled)
    return text.cast(pa.binary())


def _bits(type_modifier: int, values: pa.Array) -> Encoded:
    if type_modifier == 1:  # of a varbit as well
        spelled = pc.if_else(pc.equal(values, b"1"), b"true", pa.scalar(b"false", values.type))
        return Encoded([spelled])
    packed = pa.array([bits_of(value) for value in values.to_pylist()], pa.binary())
    return _quoted([b'"', base64_of(packed), b'"'], None)


def bits_of(value: bytes | None) -> bytes | None:
    """A bit string as bytes: the last bits in the first byte, and no bytes in which none is set."""
    if value is None:
        return None
    number = int(value or b"0", 2)
    return number.to_bytes(-(-number.bit_length() // 8), "little")


def _arrays(type_oid: int, type_modifier: int, values: pa.Array, decimals: Decimals) -> Encoded:
    """Of one dimension; others stay Postgres's text, in a string."""
    arrays = split_arrays(values)
    elements = gather(arrays.elements)
    encoded = debezium_column(ELEMENTS[type_oid], type_modifier, elements, decimals)
    texts = pc.fill_null(one_column(encoded.parts, len(elements)).cast(pa.binary()), b"null")
    lists = pa.ListArray.from_arrays(pa.array(arrays.offsets, pa.int32()), texts)
    inside = pc.binary_join(lists, pa.scalar(b",", pa.binary()))
    made = join([b"[", inside, b"]"], len(values))
    if len(arrays.unfit):
        is_text = np.zeros(len(values), np.bool_)
        is_text[arrays.unfit] = True
        as_text = one_column(_json(_TEXT, values).parts, len(values))
        made = pc.if_else(pa.array(is_text), as_text, made)
    made = pc.if_else(values.is_valid(), made, pa.scalar(None, made.type))
    return Encoded([made], of_arrays(encoded, arrays.offsets, len(values)))


def of_arrays(elements: Encoded, offsets: Any, count: int) -> Any:
    """Arrays with an element that does not fit."""
    unfit = np.zeros(count, np.bool_)
    if elements.unfit is not None:
        bad = np.flatnonzero(elements.unfit)
        unfit[np.searchsorted(offsets, bad, side="right") - 1] = True
    return unfit
