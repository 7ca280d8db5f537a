"""What a column is for a rule: numbers, instants, text and so on, domains seen through, enums with their labels.

From what the catalog says on the driver; tasks are sent the answer, since changes say no more than oids.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import RuleUnfit
from penstock.schema.shape import ColumnShape, TableShape

if TYPE_CHECKING:
    from penstock.changes.pgoutput import Relation
    from penstock.schema.shape import TypeShape


class Family(StrEnum):
    """Types that are compared alike."""

    BOOL = "boolean"
    INTEGER = "integer"
    NUMERIC = "numeric"
    FLOAT4 = "real"
    FLOAT8 = "double precision"
    TEXT = "text"
    PADDED = "character"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamp with time zone"
    UUID = "uuid"
    BYTEA = "bytea"
    ENUM = "enum"
    CITEXT = "citext"
    INTERVAL = "interval"
    NETWORK = "network address"  # inet, cidr
    MAC = "macaddr"
    TIMETZ = "time with time zone"
    DOCUMENT = "document"  # json, jsonb, xml: text that can be searched, not compared
    OTHER = "other"


_FAMILIES = {
    "boolean": Family.BOOL,
    "smallint": Family.INTEGER,
    "integer": Family.INTEGER,
    "bigint": Family.INTEGER,
    "oid": Family.INTEGER,
    "numeric": Family.NUMERIC,
    "real": Family.FLOAT4,
    "double precision": Family.FLOAT8,
    "text": Family.TEXT,
    "character varying": Family.TEXT,
    "name": Family.TEXT,
    '"char"': Family.TEXT,
    "character": Family.PADDED,
    "bpchar": Family.PADDED,
    "date": Family.DATE,
    "time without time zone": Family.TIME,
    "timestamp without time zone": Family.TIMESTAMP,
    "timestamp with time zone": Family.TIMESTAMPTZ,
    "time with time zone": Family.TIMETZ,
    "interval": Family.INTERVAL,
    "inet": Family.NETWORK,
    "cidr": Family.NETWORK,
    "macaddr": Family.MAC,
    "macaddr8": Family.MAC,
    "uuid": Family.UUID,
    "bytea": Family.BYTEA,
    "json": Family.DOCUMENT,
    "jsonb": Family.DOCUMENT,
    "xml": Family.DOCUMENT,
}
_RANGES = {"smallint": 2**15, "integer": 2**31, "bigint": 2**63, "oid": 2**32}
_MODIFIER = re.compile(r"\([^)]*\)")
_NUMBERS = re.compile(r"\((-?[0-9]+(?:,-?[0-9]+)*)\)")
_DEPTH = 20


@dataclass(frozen=True)
class ColumnType:
    """One column's type. `name` is Postgres's own, without a modifier; `spelled` as the table declares it."""

    family: Family
    name: str
    spelled: str
    labels: tuple[str, ...] = ()
    is_array: bool = False
    base: str | None = None  # of an enum, how it is spelled with its schema
    declared: str = (
        ""  # with its modifier, domains seen through; "" of a type that is not Postgres's own
    )

    @property
    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest whole number."""
        size = _RANGES[self.name]
        return (0, size - 1) if self.name == "oid" else (-size, size - 1)

    @property
    def modifier(self) -> tuple[int, ...]:
        """The numbers in parentheses behind the type: precision and scale, a length."""
        found = _NUMBERS.search(self.declared)
        return tuple(map(int, found[1].split(","))) if found else ()

    @property
    def element(self) -> ColumnType | None:
        """Of an array of one of Postgres's own types, what its elements are."""
        is_known = self.is_array and self.declared.endswith("[]")
        return _own_type(self.declared[:-2], self.declared[:-2]) if is_known else None


def column_type(shape: TableShape, column: ColumnShape) -> ColumnType:
    """What a column of a table is."""
    types = {each.id: each for each in shape.types}
    found = types.get(column.type_id)
    text = column.type
    for _ in range(_DEPTH):
        if found is None:
            break
        if found.kind == "enum" and not found.is_array:
            labels = tuple(label.name for label in found.labels)
            spelled = found.spelled or (column.type if text == column.type else None)
            return ColumnType(Family.ENUM, column.type, column.type, labels, base=spelled)
        if found.extension == found.name == "citext":
            return ColumnType(Family.CITEXT, found.name, column.type)
        if found.kind != "domain" or found.is_array:
            return ColumnType(Family.OTHER, column.type, column.type, is_array=found.is_array)
        text, found = found.base, _base_of(found, types)
    return _own_type(text, column.type)


def _own_type(text: str, spelled: str) -> ColumnType:
    name = " ".join(_MODIFIER.sub("", text).split())
    # An interval may say which fields it has: interval day to second.
    known = re.sub("^interval [a-z ]+$", "interval", name.removeprefix("pg_catalog."))
    family = _FAMILIES.get(known, Family.OTHER)
    return ColumnType(family, name, spelled, is_array=name.endswith("[]"), declared=text)


def require_stored(shape: TableShape, name: str) -> None:
    """See that a column is none that the source computes.

    Raises:
        RuleUnfit: it is.
    """
    for column in shape.columns:
        if column.name == name and column.generated:
            raise RuleUnfit(
                f"column {name} is generated: the source computes it, and it is not in the stream",
                str(shape.table),
                f"name the columns that it is computed from: {column.expression}"
                if column.expression
                else "name the columns that it is computed from",
            )


def without_padding(values: pa.Array) -> pa.Array:
    """Values of a char(n) as text, which the blanks at their end are no part of. Binary, which need not be UTF-8."""
    return pc.ascii_rtrim(values.view(pa.string()), characters=" ").view(pa.binary())


_NAMES_BY_OID = {
    16: "boolean",
    17: "bytea",
    18: '"char"',
    19: "name",
    20: "bigint",
    21: "smallint",
    23: "integer",
    25: "text",
    26: "oid",
    114: "json",
    142: "xml",
    700: "real",
    701: "double precision",
    1042: "character",
    1043: "character varying",
    1082: "date",
    1083: "time without time zone",
    1114: "timestamp without time zone",
    1184: "timestamp with time zone",
    1700: "numeric",
    2950: "uuid",
    3802: "jsonb",
}


def shape_of(relation: Relation) -> TableShape:
    """A table as far as the stream describes it: of types that are not Postgres's own nothing is known."""
    columns = [
        ColumnShape(
            id=number,
            name=column.name,
            type=_NAMES_BY_OID.get(column.type_oid, "other"),
            type_id=column.type_oid,
            type_kind="b",
            type_modifier=column.type_modifier,
            not_null=column.in_identity,
        )
        for number, column in enumerate(relation.columns, start=1)
    ]
    return TableShape(
        id=relation.oid,
        schema_name=relation.table.schema,
        name=relation.table.name,
        replica_identity=relation.replica_identity,
        columns=tuple(columns),
    )


def _base_of(domain: TypeShape, types: dict[int, TypeShape]) -> TypeShape | None:
    """The type that a domain is made over, where that is not Postgres's own."""
    base = _MODIFIER.sub("", domain.base)
    for part in domain.parts:
        each = types.get(part)
        if each is not None and base in (each.spelled, each.title):
            return each
    return None
