"""Events of Debezium's envelope in Avro: schemas of tables, and rows in binary. Pure; no rows in Python.

Every column is nullable with null as its default, whatever the table says: a column that comes or goes is then a change
that readers of either schema can read (BACKWARD). Values are Debezium's, with Avro's logical types beside them:

    bool                     boolean
    int2 int4                int
    int8 oid                 long
    float4 float8            float double, NaN and infinities included
    numeric(p,s)             bytes, decimal(p,s)
    numeric money            string
    date                     int, date
    time(0..3)               int, time-millis          time        long, time-micros
    timestamp(0..3)          long, timestamp-millis    timestamp   long, timestamp-micros
    timestamptz timetz       string, ISO 8601 in UTC with Z
    interval                 long, microseconds
    uuid                     string, uuid
    bytea                    bytes
    an array of these        array of null or the type
    everything else          string, Postgres's text
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock import __version__
from penstock.changes import epochs
from penstock.changes.arrayliterals import split_arrays
from penstock.changes.cells import gather
from penstock.changes.debezium import of_arrays
from penstock.changes.documents import key_places
from penstock.changes.encoded import (
    UNAVAILABLE,
    UNAVAILABLE_UUID,
    Encoded,
    any_unfit,
    one_column,
)
from penstock.changes.textcolumns import Part, digits, join
from penstock.changes.typed import ELEMENTS, arrow_type, to_typed
from penstock.changes.unscaled import binary_of, precision_of, scale_of, unscaled
from penstock.errors import RecordSchemaRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.changes.cells import Cells
    from penstock.changes.envelope import Moments
    from penstock.changes.pgoutput import Column, Relation
    from penstock.table import TableName

_BOOL, _BYTEA, _INT8, _INT2, _INT4, _OID, _NUMERIC, _UUID = 16, 17, 20, 21, 23, 26, 1700, 2950
_FLOATS = {700: "float", 701: "double"}
_WHOLE = {_INT2: "int", _INT4: "int", _INT8: "long", _OID: "long"}
_COUNTED = (epochs.DATE, epochs.TIME, epochs.TIMESTAMP, epochs.INTERVAL)
_UUID_TYPE = {"type": "string", "logicalType": "uuid"}
_DATE_TYPE = {"type": "int", "logicalType": "date"}
_BRANCH = b"\x02"  # the second of a union: not null
_NULL = b"\x00"

_SOURCE = {
    "type": "record",
    "name": "Source",
    "namespace": "io.debezium.connector.postgresql",
    "fields": [
        {"name": "version", "type": "string"},
        {"name": "connector", "type": "string"},
        {"name": "name", "type": "string"},
        {"name": "ts_ms", "type": "long"},
        {"name": "snapshot", "type": ["null", "string"], "default": None},
        {"name": "db", "type": "string"},
        {"name": "sequence", "type": ["null", "string"], "default": None},
        {"name": "ts_us", "type": ["null", "long"], "default": None},
        {"name": "ts_ns", "type": ["null", "long"], "default": None},
        {"name": "schema", "type": "string"},
        {"name": "table", "type": "string"},
        {"name": "txId", "type": ["null", "long"], "default": None},
        {"name": "lsn", "type": ["null", "long"], "default": None},
        {"name": "xmin", "type": ["null", "long"], "default": None},
    ],
}
_TRANSACTION = {
    "type": "record",
    "name": "block",
    "namespace": "event",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "total_order", "type": "long"},
        {"name": "data_collection_order", "type": "long"},
    ],
}


@dataclass(frozen=True)
class AvroSchemas:
    """The schemas of one table's records, as JSON; `key` is None where it has no key."""

    key: str | None
    value: str

    @classmethod
    def of(cls, relation: Relation, prefix: str, target: TableName) -> AvroSchemas:
        """By its columns.

        Raises:
            RecordSchemaRefused: two columns would have the same name.
        """
        names = field_names(relation, target)
        columns = relation.columns
        namespace = ".".join(avro_name(part) for part in (*prefix.split("."), *target))
        nullable = [
            {"name": name, "type": ["null", avro_type(column)], "default": None}
            for name, column in zip(names, columns, strict=True)
        ]
        row = {"type": "record", "name": "Value", "fields": nullable}
        fields: list[dict[str, Any]] = [
            {"name": "before", "type": ["null", row], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "source", "type": _SOURCE},
            {"name": "transaction", "type": ["null", _TRANSACTION], "default": None},
            {"name": "op", "type": "string"},
            *(
                {"name": name, "type": ["null", "long"], "default": None}
                for name in ("ts_ms", "ts_us", "ts_ns")
            ),
        ]
        places = key_places(relation)
        key = [{"name": names[place], "type": avro_type(columns[place])} for place in places]
        return cls(
            _record("Key", namespace, key) if places else None,
            _record("Envelope", namespace, fields),
        )


def _record(name: str, namespace: str, fields: list[dict[str, Any]]) -> str:
    record = {"type": "record", "name": name, "namespace": namespace, "fields": fields}
    return json.dumps(record, separators=(",", ":"))


def avro_name(name: str) -> str:
    """A name that Avro takes: letters, digits and `_`, no digit in front."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return plain if plain and not plain[0].isdigit() else f"_{plain}"


def field_names(relation: Relation, target: TableName) -> list[str]:
    """The names of columns in Avro.

    Raises:
        RecordSchemaRefused: two would have the same.
    """
    names = [avro_name(column.name) for column in relation.columns]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise RecordSchemaRefused(
                f"two columns would be called {name} in Avro",
                str(target),
                "rename one of them with a route in modifiers, or leave the table out",
            )
    return names


def avro_type(column: Column) -> Any:
    """The type of a column that is not null, by what its table declares."""
    return _type(column.type_oid, column.type_modifier)


def _type(type_oid: int, modifier: int) -> Any:
    if type_oid in ELEMENTS:
        return {"type": "array", "items": ["null", _type(ELEMENTS[type_oid], modifier)]}
    if type_oid == _NUMERIC and scale_of(modifier) is not None:
        scale, precision = scale_of(modifier), precision_of(modifier)
        return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    is_short = epochs.is_in_milliseconds(type_oid, modifier)
    simple: Mapping[int, Any] = {
        _BOOL: "boolean",
        _BYTEA: "bytes",
        _UUID: _UUID_TYPE,
        epochs.DATE: _DATE_TYPE,
        epochs.TIME: _logical("int", "time-millis")
        if is_short
        else _logical("long", "time-micros"),
        epochs.TIMESTAMP: _logical("long", "timestamp-millis" if is_short else "timestamp-micros"),
        epochs.INTERVAL: "long",
        **_WHOLE,
        **_FLOATS,
    }
    return simple.get(type_oid, "string")


def _logical(base: str, name: str) -> dict[str, str]:
    return {"type": base, "logicalType": name}


@dataclass(frozen=True)
class AvroEncoder:
    """Writes the events of one table, behind the header of Confluent's wire format."""

    columns: Sequence[Column]
    key_id: int
    value_id: int
    null: bytes = _NULL

    def row(self, cells: Sequence[Cells], places: Sequence[int]) -> Encoded:
        """Records of all columns; null where nothing is known."""
        known = set(places)
        parts: list[Part] = []
        masks = []
        for place, column in enumerate(self.columns):
            if place not in known:
                parts.append(_NULL)
                continue
            encoded = _nullable(column, cells[place])
            parts += encoded.parts
            masks.append(encoded.unfit)
        return Encoded(parts, any_unfit(masks, len(cells[0])) if cells else None)

    def key(self, cells: Sequence[Cells], places: Sequence[int]) -> Encoded:
        """Records of the key's columns, which are never null."""
        parts: list[Part] = [_header(self.key_id)]
        masks = []
        for place in places:
            column = self.columns[place]
            encoded = avro_column(column.type_oid, column.type_modifier, gather(cells[place]))
            parts += encoded.parts
            masks.append(encoded.unfit)
        return Encoded(parts, any_unfit(masks, len(cells[0])))

    def event(
        self, op: str, before: list[Part] | None, after: list[Part] | None, moments: Moments
    ) -> list[Part]:
        """The envelope."""
        one, of_row = moments.transactions()
        found = (
            varints(one.ts_ms),
            join([_BRANCH, varints(one.ts_us), _BRANCH, varints(one.ts_us * 1000)], len(one)),
            self._ends(one),
            digits(one.commit_lsn.astype(np.int64)),
        )
        ts_ms, finer, ends, lsn = (
            each[0].as_py() if of_row is None else each.take(of_row) for each in found
        )
        sequence = join([b'["', lsn, b'","', digits(moments.ordinal), b'"]'], len(moments))
        return [
            _header(self.value_id),
            *([_BRANCH, *before] if before is not None else [_NULL]),
            *([_BRANCH, *after] if after is not None else [_NULL]),
            *map(_constant, (__version__, "postgresql", moments.name)),
            ts_ms,
            _BRANCH + _constant("true" if moments.snapshot else "false"),
            _constant(moments.database) + _BRANCH,
            *_strings(sequence),
            finer,
            *map(_constant, moments.table),
            ends,
            _NULL + _NULL + _constant(op) + _BRANCH,  # xmin and transaction before it
            ts_ms,
            finer,
        ]

    def _ends(self, one: Moments) -> pa.Array:
        """txId and lsn."""
        xid: list[Part] = [_NULL] if one.xid is None else [_BRANCH, varints(one.xid)]
        return join([*xid, _BRANCH, varints(one.commit_lsn.astype(np.int64))], len(one))


def _header(schema_id: int) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big")


def _constant(text: str) -> bytes:
    raw = text.encode()
    return bytes(varints(np.array([len(raw)]))[0].as_py()) + raw


def _nullable(column: Column, cells: Cells) -> Encoded:
    """Values of a union with null: which branch, then the value."""
    values = gather(cells)
    encoded = avro_column(column.type_oid, column.type_modifier, values)
    if values.null_count == 0:
        return Encoded([_BRANCH, *encoded.parts], encoded.unfit)
    whole = one_column([_BRANCH, *encoded.parts], len(values))
    marked = Encoded(
        [pc.if_else(values.is_valid(), whole, pa.scalar(None, whole.type))], encoded.unfit
    )
    return marked.with_unavailable(cells.is_unchanged, _unavailable(avro_type(column)))


def _unavailable(kind: Any) -> bytes | None:
    """What stands for a value that was not sent; None where the type has nothing that could."""
    text = _constant(UNAVAILABLE.decode())
    if kind in ("string", "bytes", _UUID_TYPE):
        return _BRANCH + text
    element = kind["items"][1] if isinstance(kind, dict) and "items" in kind else None
    if element in ("string", "bytes"):
        elements = [text]
    elif element == _UUID_TYPE:
        elements = [_constant(UNAVAILABLE_UUID.decode())]
    elif element in ("int", "long", _DATE_TYPE):
        elements = varints(np.frombuffer(UNAVAILABLE, np.uint8)).to_pylist()
    else:
        return None
    block = b"".join(_BRANCH + each for each in elements)
    return _BRANCH + bytes(varints(np.array([len(elements)]))[0].as_py()) + block + _NULL


def avro_column(type_oid: int, modifier: int, values: pa.Array) -> Encoded:
    """A column of Postgres's text as Avro's binary; what stands where it is null means nothing."""
    if type_oid in ELEMENTS:
        return _arrays(type_oid, modifier, values)
    if type_oid == _NUMERIC and scale_of(modifier) is not None:
        found = unscaled(values)
        return Encoded(_strings(found.values), found.unfit)
    if type_oid in _COUNTED:
        counted = epochs.epochs(type_oid, modifier, values)
        return Encoded([_numbers(counted.values)], counted.unfit)
    if type_oid in (epochs.TIMESTAMPTZ, epochs.TIMETZ):
        return Encoded(_strings(epochs.zoned_texts(type_oid, modifier, values)))
    if type_oid in _WHOLE or type_oid in _FLOATS or type_oid in (_BOOL, _BYTEA):
        return _typed(type_oid, values)
    return _texts(values)


def _typed(type_oid: int, values: pa.Array) -> Encoded:
    typed = to_typed(values, arrow_type(type_oid))
    unfit = np.zeros(len(values), np.bool_)
    unfit[typed.unfit] = True
    if type_oid == _BYTEA:
        return Encoded(_strings(typed.values), unfit)
    if type_oid in _WHOLE:
        return Encoded([_numbers(typed.values.cast(pa.int64()))], unfit)
    kind = {_BOOL: "u1", 700: "<f4", 701: "<f8"}[type_oid]
    plain = pc.fill_null(typed.values, False if type_oid == _BOOL else 0.0)
    numbers = np.asarray(plain).astype(kind)
    width = numbers.dtype.itemsize
    offsets = np.arange(0, (len(numbers) + 1) * width, width, dtype=np.int32)[: len(numbers) + 1]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(numbers))]
    return Encoded([pa.Array.from_buffers(pa.binary(), len(numbers), buffers)], unfit)


def _texts(values: pa.Array) -> Encoded:
    """Strings of Avro are UTF-8: what is not, as a database in SQL_ASCII can hold it, does not fit."""
    typed = to_typed(values, pa.string())
    unfit = np.zeros(len(values), np.bool_)
    unfit[typed.unfit] = True
    return Encoded(_strings(typed.values.cast(pa.binary())), unfit)


def _strings(values: pa.Array) -> list[Part]:
    """Length and bytes; an empty one in place of a null."""
    lengths = np.asarray(pc.fill_null(pc.binary_length(values), 0)).astype(np.int64)
    if values.null_count:
        values = pc.fill_null(values, b"")
    return [varints(lengths), values]


def _numbers(values: pa.Array) -> pa.Array:
    return varints(np.asarray(pc.fill_null(values, 0)).astype(np.int64))


def varints(numbers: npt.NDArray[Any]) -> pa.Array:
    """Whole numbers as Avro has them: zig-zag, seven bits a byte, the lowest first."""
    signed = numbers.astype(np.int64)
    left = ((signed << 1) ^ (signed >> 63)).view(np.uint64)
    most = int(left.max()) if len(left) else 0
    width = max(1, -(-most.bit_length() // 7))
    shifts = np.arange(0, 7 * width, 7, dtype=np.uint64)
    rows = ((left[:, None] >> shifts) & np.uint64(127)).astype(np.uint8)
    lengths = np.ones(len(left), np.int64)
    for place in range(1, width):
        lengths += left >= np.uint64(1 << (7 * place))
    rows[np.arange(width) < lengths[:, None] - 1] |= 128
    return binary_of(rows, lengths, _ALL, at_end=False)


_ALL = pa.array([True])


def _arrays(type_oid: int, modifier: int, values: pa.Array) -> Encoded:
    """One block of all elements; of one dimension, others do not fit."""
    arrays = split_arrays(values)
    elements = gather(arrays.elements)
    encoded = avro_column(ELEMENTS[type_oid], modifier, elements)
    items = one_column([_BRANCH, *encoded.parts], len(elements)).cast(pa.binary())
    items = pc.if_else(elements.is_valid(), items, pa.scalar(_NULL, pa.binary()))
    lists = pa.ListArray.from_arrays(pa.array(arrays.offsets, pa.int32()), items)
    inside = pc.binary_join(lists, pa.scalar(b"", pa.binary()))
    counts = np.diff(arrays.offsets)
    ends = pa.array(counts > 0)
    made = pc.if_else(
        ends, join([varints(counts), inside, _NULL], len(values)), pa.scalar(_NULL, pa.binary())
    )
    unfit = of_arrays(encoded, arrays.offsets, len(values))
    unfit[arrays.unfit] = True
    return Encoded([made], unfit)
