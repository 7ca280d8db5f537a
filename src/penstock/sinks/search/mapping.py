"""A table's shape -> the mapping of its index, and how values of each type are written. Pure.

int2 int4 int8 oid            long
float4 float8                 double; NaN and infinities are in the document, and not found by a search
numeric                       scaled_float of up to 15 digits, else keyword; or as `numeric_as` says; above 1,000 characters
                              it is written as a string
bool                          boolean
date timestamp timestamptz    date; infinity and years that ISO 8601 lacks are in the document, and not found
bytea                         keyword, base64, of up to 384 bytes: digests and keys are found, not pictures
text varchar bpchar name xml  keyword, and `.text` for words; above 8,191 characters `.text` alone
json jsonb                    text; or `json_as: flat`, flat_object of OpenSearch, flattened of Elasticsearch
point                         keyword; or `point_as: geo`, geo_point
int4range int8range           integer_range, long_range; or `range_as: keyword`
tsrange tstzrange daterange   date_range; or `range_as: keyword`; see `ranges`
vector halfvec                of pgvector, with declared dimensions: knn_vector of OpenSearch, dense_vector of
                              Elasticsearch; or `vector_as: text`
arrays of these               the same: a field may hold many values
everything else               keyword, Postgres's text
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.arrayliterals import split_arrays
from penstock.changes.cells import gather
from penstock.changes.encoded import one_column
from penstock.changes.jsonvalues import json_column
from penstock.changes.typed import ELEMENTS
from penstock.sinks.search.names import ORDINAL, POSITION, TABLE, field_name, is_shared
from penstock.sinks.search.options import Fields, Json, Numeric, Point, Range, Vector
from penstock.sinks.search.ranges import RANGES, range_column

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.changes.cells import Mask
    from penstock.changes.pgoutput import Column, Relation
    from penstock.sinks.search.options import SearchOptions

_TEXT = 25
_NUMERIC, _POINT = 1700, 600
_JSON = (114, 3802)
# In characters: Lucene takes terms of 32,766 bytes, and a character may have four.
_MOST_KEYWORD = 8191
_EXACT_DIGITS = 15
# In characters: of a number that is longer OpenSearch refuses the document. As a string it takes it.
_MOST_NUMBER = 1000
# By name: an extension's types have another oid in each database.
_VECTORS = ("vector", "halfvec")
_VECTOR = r"^\[[-+0-9.eE,]+\]$"
VECTOR_TYPES = {
    "opensearch": ("knn_vector", "dimension"),
    "elasticsearch": ("dense_vector", "dims"),
}
_KEYWORD = {"type": "keyword", "ignore_above": _MOST_KEYWORD}
# Of an index of an earlier state it is `binary`, which nobody can search for: the documents are the same.
_BYTEA = {"type": "keyword", "ignore_above": 512}
_WORDS = {**_KEYWORD, "fields": {"text": {"type": "text"}}}
_LONG = {"type": "long"}
_DOUBLE = {"type": "double", "ignore_malformed": True}
_DATE = {"type": "date", "format": "strict_date_optional_time", "ignore_malformed": True}

_TYPES: dict[int, dict[str, Any]] = {
    16: {"type": "boolean"},
    17: _BYTEA,
    20: _LONG,
    21: _LONG,
    23: _LONG,
    26: _LONG,
    700: _DOUBLE,
    701: _DOUBLE,
    1082: _DATE,
    1114: _DATE,
    1184: _DATE,
    **dict.fromkeys((18, 19, 25, 142, 1042, 1043), _WORDS),
}


@dataclass(frozen=True)
class Mapper:
    """How columns are searched and written, by what people have said of it."""

    fields: Fields
    numeric: Numeric
    json_as: Json
    point: Point
    ranges: Range
    vector: Vector = Vector.VECTOR
    names_table: bool = (
        False  # in each document, where documents of several tables are searched as one
    )

    @classmethod
    def of(cls, options: SearchOptions) -> Mapper:
        """What the options say."""
        return cls(
            options.fields,
            options.numeric_as,
            options.json_as,
            options.point_as,
            options.range_as,
            options.vector_as,
            is_shared(options.index),
        )

    def field(self, column: Column, table_id: int) -> str:
        """What a column is called in documents."""
        if self.fields is Fields.IDS:
            return f"{table_id}-{column.id}"
        return field_name(column.name)

    def properties(self, relation: Relation, engine: str) -> dict[str, Any]:
        """The fields of a table's documents."""
        found: dict[str, Any] = {POSITION: _LONG, ORDINAL: _LONG}
        if self.names_table:
            found[TABLE] = {"type": "keyword"}
        for column in relation.columns:
            found[self.field(column, relation.oid)] = self.type_of(column, engine)
        if self.fields is Fields.IDS:
            for column in relation.columns:
                path = self.field(column, relation.oid)
                found[field_name(column.name)] = {"type": "alias", "path": path}
        return found

    def is_vector(self, column: Column) -> bool:
        """Whether a column is searched as a vector. Such a field takes no null: it is left out.

        Without dimensions that are declared each row may have others, which no field can hold.
        """
        is_declared = column.type_name in _VECTORS and column.type_modifier > 0
        return is_declared and self.vector is Vector.VECTOR

    def type_of(self, column: Column, engine: str) -> dict[str, Any]:
        """What a column is searched as."""
        if self.is_vector(column):
            kind, dimensions = VECTOR_TYPES[engine]
            return {"type": kind, dimensions: column.type_modifier}
        oid = ELEMENTS.get(column.type_oid, column.type_oid)
        if oid == _NUMERIC:
            return self._numeric(column.type_modifier)
        if oid in _JSON:
            flat = "flat_object" if engine == "opensearch" else "flattened"
            return {"type": "text"} if self.json_as is Json.TEXT else {"type": flat}
        if oid in RANGES and self.ranges is Range.RANGE:
            return RANGES[oid].mapping
        is_place = oid == _POINT and self.point is Point.GEO
        return {"type": "geo_point"} if is_place else _TYPES.get(oid, _KEYWORD)

    def _numeric(self, type_modifier: int) -> dict[str, Any]:
        if self.numeric is Numeric.DOUBLE:
            return _DOUBLE
        if self.numeric is Numeric.SCALED and type_modifier >= 4:
            declared = type_modifier - 4
            precision, scale = (declared >> 16) & 0xFFFF, ((declared & 0x7FF) ^ 1024) - 1024
            if precision <= _EXACT_DIGITS and 0 <= scale <= _EXACT_DIGITS:
                factor = float(10**scale)
                return {"type": "scaled_float", "scaling_factor": factor, "ignore_malformed": True}
        return _KEYWORD

    def values(self, column: Column, values: pa.Array) -> tuple[pa.Array, Mask | None]:
        """A column of Postgres's text as JSON, null where it is NULL; and which rows have no form."""
        if self.is_vector(column):
            # What it is not stays a string, which the server refuses: as it is it might break a whole request.
            strings = self._scalars(_TEXT, values)
            is_vector = pc.match_substring_regex(values, pattern=_VECTOR)
            return pc.if_else(is_vector, values.cast(strings.type), strings), None
        element = ELEMENTS.get(column.type_oid)
        if element is not None:
            return self._arrays(element, values)
        return self._scalars(column.type_oid, values), None

    def _scalars(self, oid: int, values: pa.Array) -> pa.Array:
        if oid in _JSON and self.json_as is Json.TEXT:
            oid = _TEXT
        if oid == _POINT and self.point is Point.GEO:
            # (x,y) as [x,y]: longitude before latitude, as GeoJSON has it.
            opened = pc.replace_substring(values, pattern=b"(", replacement=b"[")
            return pc.replace_substring(opened, pattern=b")", replacement=b"]")
        if oid in RANGES and self.ranges is Range.RANGE:
            return range_column(oid, values)
        encoded = json_column(oid, values)
        whole = one_column([encoded.prefix, encoded.values, encoded.suffix], len(values))
        if oid == _NUMERIC:
            is_long = pc.greater(pc.binary_length(values), _MOST_NUMBER)
            if pc.any(is_long).as_py():
                return pc.if_else(is_long, self._scalars(_TEXT, values).cast(whole.type), whole)
        return whole

    def _arrays(self, element: int, values: pa.Array) -> tuple[pa.Array, Mask | None]:
        arrays = split_arrays(values)
        texts = self._scalars(element, gather(arrays.elements)).cast(pa.binary())
        texts = pc.fill_null(texts, b"null")
        lists = pa.ListArray.from_arrays(pa.array(arrays.offsets, pa.int32()), texts)
        inner = pc.binary_join(lists, b",")
        whole = pc.binary_join_element_wise(b"[", inner, b"]", b"")
        is_null = ~np.asarray(values.is_valid())
        if bool(is_null.any()):
            whole = pc.if_else(pa.array(is_null), pa.scalar(None, whole.type), whole)
        unfit = None
        if len(arrays.unfit):
            unfit = np.zeros(len(values), np.bool_)
            unfit[arrays.unfit] = True
        return whole, unfit


def signature(properties: Mapping[str, Any]) -> str:
    """What tells two mappings apart."""
    return json.dumps(properties, sort_keys=True)


def conflicts(has: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Fields that are there with another type than is wanted."""
    return sorted(
        name for name, wish in wanted.items() if name in has and _differs(has[name], wish)
    )


def missing(has: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that are not there yet, and aliases that lead elsewhere."""
    return {
        name: wish
        for name, wish in wanted.items()
        if name not in has or (wish["type"] == "alias" and has[name].get("path") != wish["path"])
    }


def _differs(one: Mapping[str, Any], wish: Mapping[str, Any]) -> bool:
    if one.get("type", "object") != wish["type"]:
        return not (one.get("type") == "binary" and wish == _BYTEA)
    return any(one.get(each) != wish.get(each) for each in ("scaling_factor", "dimension", "dims"))
