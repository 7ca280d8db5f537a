"""Rules of `modifiers:` in tests: read as the file reads them, and applied without server or Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.config import pipeline_from_document
from penstock.modifiers.chain import Chain, chain_for
from penstock.modifiers.modifier import modify
from penstock.schema.shape import ColumnShape, ConstraintShape, LabelShape, TableShape, TypeShape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.changes.decode import Piece

TYPES = {
    "bool": ("boolean", 16),
    "int2": ("smallint", 21),
    "int4": ("integer", 23),
    "int8": ("bigint", 20),
    "numeric": ("numeric", 1700),
    "float4": ("real", 700),
    "float8": ("double precision", 701),
    "text": ("text", 25),
    "varchar": ("character varying(20)", 1043),
    "bpchar": ("character(6)", 1042),
    "date": ("date", 1082),
    "time": ("time without time zone", 1083),
    "timestamp": ("timestamp without time zone", 1114),
    "timestamptz": ("timestamp with time zone", 1184),
    "uuid": ("uuid", 2950),
    "bytea": ("bytea", 17),
    "json": ("json", 114),
    "jsonb": ("jsonb", 3802),
    "interval": ("interval", 1186),
    "inet": ("inet", 869),
    "cidr": ("cidr", 650),
    "macaddr": ("macaddr", 829),
    "timetz": ("time with time zone", 1266),
    "money": ("money", 790),
}
ENUM_OID, DOMAIN_OID, ENUM_DOMAIN_OID, CITEXT_OID = 70001, 70002, 70003, 70004
_ENUM = TypeShape(
    id=ENUM_OID,
    schema_name="public",
    name="size",
    kind="enum",
    labels=tuple(LabelShape(id=n, name=each) for n, each in enumerate(("small", "big", "huge"))),
    spelled="public.size",
)
_DOMAIN = TypeShape(
    id=DOMAIN_OID, schema_name="public", name="price", kind="domain", base="numeric(10,2)"
)
_ENUM_DOMAIN = TypeShape(
    id=ENUM_DOMAIN_OID,
    schema_name="public",
    name="its_size",
    kind="domain",
    base="public.size",
    parts=(ENUM_OID,),
)
_CITEXT = TypeShape(
    id=CITEXT_OID,
    schema_name="public",
    name="citext",
    kind="other",
    extension="citext",
    spelled="public.citext",
)
OWN_TYPES = {
    "citext": ("public.citext", CITEXT_OID),
    "size": ("public.size", ENUM_OID),
    "price": ("public.price", DOMAIN_OID),
    "its_size": ("public.its_size", ENUM_DOMAIN_OID),
}


def shape(
    name: str, columns: Mapping[str, str], key: Sequence[str] = ("id",), identity: str = "d"
) -> TableShape:
    """A table of `public`; types by the names above."""
    known = {**TYPES, **OWN_TYPES}
    made = tuple(
        ColumnShape(
            id=number,
            name=column,
            type=known[kind][0],
            type_id=known[kind][1],
            type_kind="b",
            not_null=column in key,
        )
        for number, (column, kind) in enumerate(columns.items(), start=1)
    )
    numbers = tuple(column.id for column in made if column.name in key)
    primary = ConstraintShape(
        id=1,
        name=f"{name}_pkey",
        kind="p",
        definition=f"PRIMARY KEY ({', '.join(key)})",
        columns=numbers,
        used=numbers,
    )
    return TableShape(
        id=16400,
        schema_name="public",
        name=name,
        replica_identity=identity,
        columns=made,
        constraints=(primary,) if key else (),
        types=(_ENUM, _DOMAIN, _ENUM_DOMAIN, _CITEXT),
    )


def document(*rules: dict[str, Any], sinks: dict[str, Any] | None = None) -> dict[str, Any]:
    """A pipeline with these rules."""
    return {
        "name": "test",
        "source": {"url": "postgresql://u@h/d", "tables": ["*.*"]},
        "modifiers": list(rules),
        "sinks": sinks or {"lines": {"kind": "stdout"}},
    }


def chain(*rules: dict[str, Any], sink: str = "lines", sinks: Any = None) -> Chain:
    """The rules as one sink has them."""
    pipeline = pipeline_from_document(document(*rules, sinks=sinks), "test")
    made = chain_for(pipeline.modifiers, sink)
    assert made is not None
    return made


def modified(rules: Sequence[dict[str, Any]], described: TableShape, pieces: Sequence[Piece]):
    """The pieces after the rules."""
    bound = chain(*rules).bound({described.table: described})
    return modify(bound, pieces)
