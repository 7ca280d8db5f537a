"""What a source's triggers say of one statement, made into the words of `penstock.schema.shape`. Pure.

A trigger has no time to spare: it sends what the catalogs hold, in pieces. Of tables that it has not
locked it names only what has changed; `penstock.schema.cascade` says what they look like then.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from penstock.errors import SchemaUnreadable
from penstock.schema.shape import Gone, IndexShape, SchemaChange, SequenceShape, Shape, read_change


class ToldIndex(Shape):
    """An index that was made or altered, of a table that is not described.

    `numbers` are those of its columns, 0 for an expression; the first `key_count` are its key.
    """

    id: int
    table_id: int
    name: str
    is_unique: bool
    definition: str | None = None  # where the table was locked
    numbers: tuple[int, ...] = ()
    key_count: int = 0
    is_valid: bool = True
    is_immediate: bool = True
    constraint_id: int | None = None
    depends: tuple[int, ...] = ()

    def shape(self, definition: str) -> IndexShape:
        """The index as a table's picture has it."""
        return IndexShape(
            id=self.id,
            name=self.name,
            is_unique=self.is_unique,
            definition=definition,
            columns=tuple(n for n in self.numbers[: self.key_count] if n > 0),
            used=tuple(sorted({n for n in (*self.numbers, *self.depends) if n > 0})),
            is_valid=self.is_valid,
            is_immediate=self.is_immediate,
        )


class ToldSequence(Shape):
    """A sequence that was altered, and the column that owns it."""

    table_id: int
    column: int
    kind: str  # pg_depend.deptype: 'i' of an identity, 'a' of a serial column
    spelled: str
    sequence: SequenceShape

    @property
    def default(self) -> str:
        """What a serial column has as its default."""
        return _next_value(self.spelled)


class RowType(NamedTuple):
    """The type of a table's rows, which another table may have a column of."""

    table_id: int
    id: int
    spelled: str


@dataclass(frozen=True)
class Told:
    """One message. `xid` is the subtransaction that sent it, 0 where it does not say."""

    change: SchemaChange
    xid: int = 0
    indexes: tuple[ToldIndex, ...] = ()
    column_sequences: tuple[ToldSequence, ...] = ()
    moved_tables: tuple[Gone, ...] = ()  # under the names that they have now
    dropped_indexes: tuple[Gone, ...] = ()
    row_types: tuple[RowType, ...] = ()


_PARTS: dict[str, TypeAdapter[Any]] = {
    "indexes": TypeAdapter(tuple[ToldIndex, ...]),
    "column_sequences": TypeAdapter(tuple[ToldSequence, ...]),
    "moved_tables": TypeAdapter(tuple[Gone, ...]),
    "dropped_indexes": TypeAdapter(tuple[Gone, ...]),
}


def read_told(content: str, where: str) -> Told:
    """A message of the triggers, of this version's or of an older one's.

    Raises:
        SchemaUnreadable: it is none.
    """
    try:
        raw = _without_nulls(json.loads(content))
        born = raw.pop("born", {})
        row_types = tuple(
            RowType(one["id"], one["row_type_id"], one["row_type"])
            for one in raw.get("tables", ())
            if "row_type" in one
        )
        raw["tables"] = [_table(one, born) for one in raw.get("tables", ())]
        parts = {
            name: kind.validate_json(json.dumps([_without_nulls(one) for one in raw.pop(name, ())]))
            for name, kind in _PARTS.items()
        }
        xid = int(raw.pop("xid", 0))
    except (ValueError, TypeError, AttributeError, KeyError, ValidationError) as error:
        raise SchemaUnreadable(
            f"a message of the source's triggers does not parse ({type(error).__name__})",
            where,
            "penstock init puts the triggers right",
        ) from None
    return Told(read_change(json.dumps(raw), where), xid, row_types=row_types, **parts)


def _table(raw: dict[str, Any], born: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """One table. What an older trigger or a refresh has described is complete already."""
    if "depends" not in raw:
        return raw
    table = _without_nulls(raw)
    columns = {column["id"]: column for column in table.get("columns", ())}
    for detail in table.pop("details", ()):
        column, value = columns[detail["id"]], detail["value"]
        column["identity"], column["generated"] = detail["identity"], detail["generated"]
        column["expression" if detail["generated"] else "default"] = value
        column["missing"] = detail["missing"]
    for number, collation in table.pop("collations", {}).items():
        columns[int(number)]["collation"] = collation
    comments = table.pop("comments", {})
    table["comment"] = comments.pop("0", None)
    for number, comment in comments.items():
        columns[int(number)]["comment"] = comment
    for owned in table.pop("sequences", ()):
        column = columns[owned["column"]]
        is_serial = column.get("default") == _next_value(owned["spelled"])
        if owned["kind"] == "i" or is_serial:
            column.setdefault("sequence", owned["sequence"])
    table["sequences"] = table.pop("free_sequences", [])
    _complete_indexes(table)
    table["columns"] = list(columns.values())
    return {**table, **born.get(str(table["id"]), {})}


def _complete_indexes(table: dict[str, Any]) -> None:
    indexes = {index["id"]: index for index in table.get("indexes", ())}
    used = {number: set(index["numbers"]) for number, index in indexes.items()}
    for number, column in table.pop("depends", ()):
        if number in used and indexes[number]["has_expressions"]:
            used[number].add(column)
    own: set[int] = set()
    for constraint in table.get("constraints", ()):
        constraint["columns"] = constraint["columns"] or []
        found = {*constraint["columns"], *used.get(constraint["index_id"], ())}
        constraint["used"] = sorted(number for number in found if number > 0)
        if constraint["kind"] != "c":
            own.add(constraint["index_id"])
    identity = [number for number, index in indexes.items() if index["is_identity"]]
    table["identity_index_id"] = identity[0] if identity else 0
    table["indexes"] = [
        {
            **{key: index[key] for key in _INDEX_KEYS},
            "columns": [n for n in index["numbers"][: index["key_count"]] if n > 0],
            "used": sorted(n for n in used[number] if n > 0),
        }
        for number, index in indexes.items()
        if number not in own
    ]


_INDEX_KEYS = ("id", "name", "is_unique", "definition", "is_valid", "is_immediate")


def _next_value(spelled: str) -> str:
    quoted = spelled.replace("'", "''")
    return f"nextval('{quoted}'::regclass)"


def _without_nulls(raw: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if value is not None}
