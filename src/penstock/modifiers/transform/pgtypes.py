"""Families of types, as far as a transformer cares which text a column may hold.

Executors know a type by its oid alone; the driver also has the catalog's picture, in which a domain
stands for the type below it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from penstock.schema.shape import ColumnShape, TableShape, TypeShape

Family = Literal[
    "text",
    "integer",
    "number",
    "boolean",
    "date",
    "timestamp",
    "uuid",
    "json",
    "hstore",
    "bytea",
    "text[]",
    "enum",
    "other",
    "unknown",
]

# pg_type.oid: what every Postgres has.
_FAMILIES: dict[int, Family] = {
    **dict.fromkeys((18, 19, 25, 1042, 1043), "text"),
    **dict.fromkeys((20, 21, 23), "integer"),
    **dict.fromkeys((700, 701, 1700), "number"),
    16: "boolean",
    17: "bytea",
    1082: "date",
    **dict.fromkeys((1114, 1184), "timestamp"),
    2950: "uuid",
    **dict.fromkeys((114, 3802), "json"),
    **dict.fromkeys((1009, 1014, 1015), "text[]"),
}
_OIDS = {
    "text": 25,
    "character varying": 1043,
    "character": 1042,
    "name": 19,
    "smallint": 21,
    "integer": 23,
    "bigint": 20,
    "real": 700,
    "double precision": 701,
    "numeric": 1700,
    "boolean": 16,
    "bytea": 17,
    "date": 1082,
    "timestamp without time zone": 1114,
    "timestamp with time zone": 1184,
    "uuid": 2950,
    "json": 114,
    "jsonb": 3802,
}
# Types of which no value is a person's words, name, address or the like: numbers, times, intervals, ranges of
# those, geometry, bits, and what Postgres itself counts and names by. Network addresses are none of them.
_PLAIN_OTHERS = frozenset(
    (
        *(1186, 1083, 1266, 790, 1560, 1562),  # interval, time, timetz, money, bit, varbit
        *(600, 601, 602, 603, 604, 628, 718),  # point, lseg, path, box, polygon, line, circle
        *(3904, 3906, 3908, 3910, 3912, 3926),  # ranges
        *(4451, 4532, 4533, 4534, 4535, 4536),  # multiranges
        *(22, 26, 27, 28, 29, 30, 2970, 3220, 5038, 5069),  # oid, xid, tid, pg_lsn and so on
        *(24, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191),  # regclass and so on
        # Arrays of numbers, times, uuid, and of the types above.
        *(1000, 1005, 1016, 1007, 1021, 1022, 1231, 1115, 1182, 1185, 2951),
        *(1187, 1183, 1270, 791, 1561, 1563, 1017, 1018, 1019, 1020, 1027, 629, 719),
        *(3905, 3907, 3909, 3911, 3913, 3927, 6150, 6151, 6152, 6153, 6155, 6157),
        *(1008, 2207, 2208, 2209, 2210, 2211, 3735, 3770, 4090, 4097, 4192),
        *(1006, 1010, 1011, 1012, 1013, 1028, 271, 2949, 3221, 5039),
    )
)
_FREE_FAMILIES = frozenset({"text", "text[]", "json", "hstore", "bytea", "unknown"})
_FIRST_OF_USERS = 16384

INTEGER_LIMITS = {21: (-(2**15), 2**15 - 1), 23: (-(2**31), 2**31 - 1), 20: (-(2**63), 2**63 - 1)}
BYTEA, TIMESTAMPTZ, REAL, NUMERIC, INT8 = 17, 1184, 700, 1700, 20
_BPCHAR = 1042
_WITH_LENGTH = (_BPCHAR, 1043)


@dataclass(frozen=True)
class ColumnType:
    """A column's type: its family, and what Postgres's own types say of size."""

    oid: int
    modifier: int
    family: Family
    is_caseless: bool = False  # citext: values that differ in case are equal

    @property
    def is_padded(self) -> bool:
        """Whether blanks at a value's end are no part of it: char(n)."""
        return self.oid == _BPCHAR

    @property
    def longest(self) -> int | None:
        """How many characters fit, where the type says so."""
        if self.oid in _WITH_LENGTH and self.modifier >= 4:
            return self.modifier - 4
        return 63 if self.oid == 19 else None

    @property
    def precision_and_scale(self) -> tuple[int, int] | None:
        """Of numeric(p, s)."""
        if self.oid != NUMERIC or self.modifier < 4:
            return None
        scale = (self.modifier - 4) & 0x7FF
        return (self.modifier - 4) >> 16, scale - 0x800 if scale >= 0x400 else scale


def type_by_oid(oid: int, modifier: int = -1) -> ColumnType:
    """What an executor knows: `unknown` is a type that is not Postgres's own."""
    unknown: Family = "unknown" if oid >= _FIRST_OF_USERS else "other"
    return ColumnType(oid, modifier, _FAMILIES.get(oid, unknown))


def type_of(column: ColumnShape, shape: TableShape) -> ColumnType:
    """What the catalog says; a domain is what it is made over."""
    found = type_by_oid(column.type_id, column.type_modifier)
    if found.family != "unknown":
        return found
    return _type_of_users(column.type_id, column.type_modifier, shape)


def may_hold_text(column: ColumnShape, shape: TableShape) -> bool:
    """Whether a column's values may be personal data, as far as their type says: what is not known to be harmless may."""
    return _may_hold_text(type_of(column, shape), shape)


def _may_hold_text(type_: ColumnType, shape: TableShape) -> bool:
    if type_.family != "other":
        return type_.family in _FREE_FAMILIES
    if type_.oid < _FIRST_OF_USERS:
        return type_.oid not in _PLAIN_OTHERS
    one = next((each for each in shape.types if each.id == type_.oid), None)
    if one is None or not (one.is_array or one.kind == "range"):
        return True
    # Arrays of enums, say; a domain among the parts is what it is made over.
    parts = (_type_by_id(each, shape) for each in one.parts)
    return not one.parts or any(_may_hold_text(each, shape) for each in parts)


def _type_by_id(oid: int, shape: TableShape) -> ColumnType:
    found = type_by_oid(oid)
    return _type_of_users(oid, -1, shape) if found.family == "unknown" else found


def _type_of_users(oid: int, modifier: int, shape: TableShape) -> ColumnType:
    one = next((each for each in shape.types if each.id == oid), None)
    if one is None:
        return ColumnType(oid, modifier, "unknown")
    if one.kind == "domain":
        return _base_of(one, shape)
    family: Family = "other"
    if one.kind == "enum":
        family = "enum"
    elif one.extension in ("hstore", "citext") and one.name == one.extension:
        family = "hstore" if one.name == "hstore" else "text"
    return ColumnType(oid, modifier, family, is_caseless=family == "text")


def _modifier(oid: int, size: str) -> int:
    """pg_attribute.atttypmod, of what stands in parentheses."""
    if oid in _WITH_LENGTH and size.isdigit():
        return int(size) + 4
    if oid == NUMERIC and size:
        precision, scale = map(int, size.split(","))
        return ((precision << 16) | (scale & 0x7FF)) + 4
    return -1


def _base_of(domain: TypeShape, shape: TableShape) -> ColumnType:
    name, _, rest = domain.base.partition("(")
    size = rest.partition(")")[0]
    oid = _OIDS.get(name.strip())
    if oid is not None:
        return ColumnType(oid, _modifier(oid, size), _FAMILIES[oid])
    for each in shape.types:
        if domain.base in (each.spelled, each.title):
            return _type_of_users(each.id, -1, shape)
    return ColumnType(domain.id, -1, "unknown")
