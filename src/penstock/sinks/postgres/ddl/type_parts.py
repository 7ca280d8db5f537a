"""What types are besides the values that they hold: collations, defaults, NOT NULL, names of multiranges.

A type of the target may go without some of these: the target lacks a collation, a default is not taken
over, or a version of penstock made it that did not know of them. Rows arrive all the same, so that this is
noted on tables and stops none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.schema.catalog import TYPE_DOCUMENT
from penstock.schema.lines import qualified
from penstock.schema.shape import TypeShape
from penstock.schema.spelling import is_same_but_for_casts
from penstock.table import TableName, as_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import psycopg

    Connection = psycopg.Connection[Any]

# An array's type gives way to whoever wants its name; nobody can be in its way.
_THERE = f"""
SELECT {TYPE_DOCUMENT.replace("%", "%%")}
FROM unnest(%s::text[], %s::text[]) AS w(schema_name, type_name)
JOIN pg_namespace tn ON tn.nspname = w.schema_name
JOIN pg_type t ON t.typnamespace = tn.oid AND t.typname = w.type_name
WHERE NOT EXISTS (SELECT FROM pg_type e WHERE e.typarray = t.oid)
"""


class TypePart(NamedTuple):
    """One thing that differs; `is_claim`: it is claimed of values."""

    type: str
    what: str
    is_default: bool = False
    is_claim: bool = False

    @property
    def line(self) -> str:
        """What is noted on tables that have the type."""
        return f"type {self.type} {self.what}"


def types_there(connection: Connection, names: Iterable[TableName]) -> dict[TableName, TypeShape]:
    """Those of the types that the target has."""
    rows = connection.execute(_THERE, as_columns(list(names))).fetchall()
    found = [TypeShape.model_validate(row[0], strict=False) for row in rows]
    return {each.qualified: each for each in found}


def type_notes(connection: Connection, types: Iterable[TypeShape]) -> list[str]:
    """A line for each thing that types of the target go without, or have otherwise."""
    wanted = {each.qualified: each for each in types if not each.is_array and not each.extension}
    if not wanted:
        return []
    found = types_there(connection, wanted)
    return [part.line for name, each in found.items() for part in other_parts(wanted[name], each)]


def other_parts(wanted: TypeShape, found: TypeShape) -> Iterator[TypePart]:
    """What is different about two types that hold the same values."""
    if wanted.kind != found.kind:
        return

    def differ(what: str, **flags: bool) -> TypePart:
        return TypePart(wanted.title, what, **flags)

    if wanted.collation != found.collation:
        yield differ(f"has collation {_against(found.collation, wanted.collation)}")
    if wanted.kind == "range" and multirange_of(wanted) != multirange_of(found):
        yield differ(f"has the multirange {_against(found.multirange, wanted.multirange)}")
    if wanted.not_null != found.not_null:
        what = "lacks NOT NULL" if wanted.not_null else "is NOT NULL, and not so at the source"
        yield differ(what, is_claim=True)
    if not wanted.has_hidden_default and not _is_same_default(wanted.default, found.default):
        yield differ(_of_default(wanted.default, found.default), is_default=True)
    yield from map(differ, _attributes_otherwise(wanted, found))


def _attributes_otherwise(wanted: TypeShape, found: TypeShape) -> Iterator[str]:
    """What is different about attributes of the same names and types."""
    there = {each.name: each for each in found.fields}
    for each in wanted.fields:
        other = there.get(each.name)
        if other is not None and other.collation != each.collation:
            against = _against(other.collation, each.collation)
            yield f"has attribute {each.name} with collation {against}"


def multirange_of(shape: TypeShape) -> TableName:
    """What the multirange of a range is called: Postgres's own way, unless it was said otherwise."""
    if shape.multirange is not None:
        return TableName(*qualified(shape.multirange))
    own = shape.name.replace("range", "multirange", 1)
    return TableName(shape.schema_name, own if own != shape.name else f"{shape.name}_multirange")


def _against(found: str | None, wanted: str | None) -> str:
    return f"{found or 'default'}, wanted {wanted or 'default'}"


def _is_same_default(one: str | None, other: str | None) -> bool:
    if one is None or other is None:
        return one is other
    return is_same_but_for_casts(one, other)


def _of_default(wanted: str | None, found: str | None) -> str:
    if wanted is None:
        return f"has default {found}, and none at the source"
    return (
        f"lacks its default {wanted}" if found is None else f"has default {found}, wanted {wanted}"
    )
