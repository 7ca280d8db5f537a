"""What a source's triggers say of one statement, made into the words of `penstock.schema.shape`. Pure.

A trigger has no time to spare: it sends what the catalogs hold, in pieces. Of tables that it has not
locked it names only what has changed; `penstock.schema.cascade` says which shape they have then.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from penstock.errors import SchemaUnreadable
from penstock.schema.lines import Parts, table_parts, type_parts
from penstock.schema.shape import Gone, IndexShape, SchemaChange, SequenceShape, Shape, read_change

if TYPE_CHECKING:
    from collections.abc import Callable


class ReportedIndex(Shape):
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


class ReportedSequence(Shape):
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


class ReportedComment(Shape):
    """The comment of a table, or of the column of that id, as it is now."""

    table_id: int
    column: int  # 0: the table's own
    text: str | None = None


class RowType(NamedTuple):
    """The type of a table's rows, which another table may have a column of."""

    table_id: int
    id: int
    spelled: str


@dataclass(frozen=True)
class Reported:
    """One message. `xid` is the subtransaction that sent it, 0 where it does not say.

    `snapshot`: what it saw, where that may be older than what others have changed since; "" where it does not say.
    """

    change: SchemaChange
    xid: int = 0
    snapshot: str = ""
    indexes: tuple[ReportedIndex, ...] = ()
    column_sequences: tuple[ReportedSequence, ...] = ()
    moved_tables: tuple[Gone, ...] = ()  # under the names that they have now
    dropped_indexes: tuple[Gone, ...] = ()
    row_types: tuple[RowType, ...] = ()
    comments: tuple[ReportedComment, ...] = ()


_PARTS: dict[str, TypeAdapter[Any]] = {
    "indexes": TypeAdapter(tuple[ReportedIndex, ...]),
    "column_sequences": TypeAdapter(tuple[ReportedSequence, ...]),
    "moved_tables": TypeAdapter(tuple[Gone, ...]),
    "dropped_indexes": TypeAdapter(tuple[Gone, ...]),
    "comments": TypeAdapter(tuple[ReportedComment, ...]),
}


def read_reported(content: str, where: str) -> Reported:
    """A message of the triggers, of this version's or of an older one's.

    Raises:
        SchemaUnreadable: it is none.
    """
    try:
        raw = _without_nulls(json.loads(content))
        created_in_stream = raw.pop("born", {})
        tables = [_in_parts(one) for one in raw.get("tables", ())]
        row_types = tuple(
            RowType(one["id"], one["row_type_id"], one["row_type"])
            for one in tables
            if "row_type" in one
        )
        raw["tables"] = [_table(one, created_in_stream) for one in tables]
        if "type_lines" in raw:
            types = [_type(one) for one in type_parts(raw.pop("type_lines"))]
            raw["types"] = [
                one for one in types if one["extension"] is None and one["kind"] != "other"
            ]
        parts = {
            name: kind.validate_json(json.dumps([_without_nulls(one) for one in raw.pop(name, ())]))
            for name, kind in _PARTS.items()
        }
        xid, snapshot = int(raw.pop("xid", 0)), str(raw.pop("snapshot", ""))
    except (ValueError, TypeError, AttributeError, KeyError, ValidationError) as error:
        raise SchemaUnreadable(
            f"a message of the source's triggers does not parse ({type(error).__name__})",
            where,
            "penstock init puts the triggers right",
        ) from None
    change = read_change(json.dumps(raw), where)
    return Reported(change, xid, snapshot, row_types=row_types, **parts)


# The fields of what triggers of version 6 say in rows of text, in their order, and how each is read.
_Fields = dict[str, "Callable[[str], Any]"]


def _flag(text: str) -> bool:
    return text == "true"


def _numbers(text: str) -> list[int]:
    """Of an array or a vector as Postgres writes them, or of JSON."""
    return [int(number) for number in text.strip("{}[]").replace(",", " ").split()]


_SEQUENCE: _Fields = {
    "id": int,
    "schema_name": str,
    "name": str,
    "type": str,
    "start": int,
    "increment": int,
    "minimum": int,
    "maximum": int,
    "cache": int,
    "cycles": _flag,
}
_ROWS: dict[str, _Fields] = {
    "columns": {
        "id": int,
        "name": str,
        "type": str,
        "type_id": int,
        "type_kind": str,
        "type_modifier": int,
        "not_null": _flag,
    },
    "details": {"id": int, "value": str, "missing": str, "identity": str, "generated": str},
    "sequences": {"column": int, "kind": str, "spelled": str, **_SEQUENCE},
    "comments": {"column": int, "text": str},
    "constraints": {
        "id": int,
        "name": str,
        "kind": str,
        "definition": str,
        "columns": _numbers,
        "index_id": int,
        "is_deferrable": _flag,
        "has_period": _flag,
    },
    "foreign_keys": {
        "id": int,
        "name": str,
        "columns": _numbers,
        "referenced_id": int,
        "referenced_schema": str,
        "referenced_name": str,
        "referenced_columns": json.loads,
        "on_update": str,
        "on_delete": str,
        "on_delete_columns": _numbers,
        "match": str,
        "is_deferrable": _flag,
        "is_deferred": _flag,
        "is_valid": _flag,
        "is_enforced": _flag,
        "has_period": _flag,
    },
    "indexes": {
        "id": int,
        "name": str,
        "is_unique": _flag,
        "definition": str,
        "numbers": _numbers,
        "key_count": int,
        "is_valid": _flag,
        "is_immediate": _flag,
        "is_identity": _flag,
        "has_expressions": _flag,
    },
    "types": {
        "id": int,
        "schema_name": str,
        "name": str,
        "spelled": str,
        "kind": str,
        "labels": json.loads,
        "base": str,
        "base_id": int,
        "extension": str,
    },
}
_KINDS = {"e": "enum", "d": "domain", "b": "other"}


def _in_parts(raw: dict[str, Any]) -> dict[str, Any]:
    """A table that is said in lines, in parts as older triggers say them."""
    if "lines" not in raw:
        return raw
    parts = table_parts(raw.pop("lines"), raw.pop("type_lines", ""))
    return {**parts, **raw}  # types that are made of others are complete, and not in lines


def _table(raw: dict[str, Any], created_in_stream: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """One table. What an older trigger or a refresh has described is complete already."""
    if "depends" not in raw:
        return raw
    parts: Parts = {
        name: _named(raw.pop(name, None) or [], fields) for name, fields in _ROWS.items()
    }
    columns = _columns(parts)
    for number, collation in raw.pop("collations", {}).items():
        columns[int(number)]["collation"] = collation
    for one in parts["comments"]:
        (columns[one["column"]] if one["column"] else raw)["comment"] = one["text"]
    free_sequences = raw.pop("free_sequences", [])
    table = {
        **raw,
        "columns": sorted(columns.values(), key=itemgetter("id")),
        "constraints": sorted(parts["constraints"], key=itemgetter("kind", "name")),
        "foreign_keys": sorted(map(_without_nulls, parts["foreign_keys"]), key=itemgetter("name")),
        "types": sorted(map(_type, parts["types"]), key=itemgetter("schema_name", "name")),
        "sequences": free_sequences,
        **created_in_stream.get(str(raw["id"]), {}),
    }
    _complete_indexes(table, parts["indexes"])
    return table


def _named(rows: list[Any], fields: _Fields) -> list[dict[str, Any]]:
    """Rows with the names of their fields. Types that are made of others have them already."""
    return [
        row
        if isinstance(row, dict)
        else {
            name: None if value is None else read(value)
            for (name, read), value in zip(fields.items(), row, strict=True)
        }
        for row in rows
    ]


def _type(raw: dict[str, Any]) -> dict[str, Any]:
    if "base_id" not in raw:
        return raw
    base_id = raw.pop("base_id")
    labels = [{"id": int(number), "name": name} for number, name in raw.pop("labels") or ()]
    return {
        **raw,
        "kind": _KINDS[raw["kind"]],
        "labels": labels,
        "base": raw["base"] or "",
        "parts": [base_id] if base_id else [],
    }


def _columns(parts: Parts) -> dict[int, dict[str, Any]]:
    """The columns by their ids, with what is reported beside them."""
    columns = {column["id"]: column for column in parts["columns"]}
    for detail in parts["details"]:
        column, value = columns[detail["id"]], detail["value"]
        column["identity"], column["generated"] = detail["identity"], detail["generated"]
        column["expression" if detail["generated"] else "default"] = value
        column["missing"] = detail["missing"]
    for owned in parts["sequences"]:
        column = columns[owned["column"]]
        is_serial = column.get("default") == _next_value(owned["spelled"])
        if owned["kind"] == "i" or is_serial:
            column.setdefault("sequence", {name: owned[name] for name in _SEQUENCE})
    return columns


def _complete_indexes(table: dict[str, Any], reported: list[dict[str, Any]]) -> None:
    indexes = {index["id"]: index for index in sorted(reported, key=itemgetter("name"))}
    used = _used_by_indexes(indexes, table.pop("depends"))
    for constraint in table["constraints"]:
        constraint["columns"] = constraint["columns"] or []
        found = {*constraint["columns"], *used.get(constraint["index_id"], ())}
        constraint["used"] = _columns_alone(found)
    own = {each["index_id"] for each in table["constraints"] if each["kind"] != "c"}
    identity = [number for number, index in indexes.items() if index["is_identity"]]
    table["identity_index_id"] = identity[0] if identity else 0
    table["indexes"] = [
        {
            **{key: index[key] for key in _INDEX_KEYS},
            "columns": [n for n in index["numbers"][: index["key_count"]] if n > 0],
            "used": _columns_alone(used[number]),
        }
        for number, index in indexes.items()
        if number not in own
    ]


def _used_by_indexes(
    indexes: dict[int, dict[str, Any]], depends: list[tuple[int, int]]
) -> dict[int, set[int]]:
    """The columns that each index needs; what its expressions name is known by its dependencies."""
    used = {number: set(index["numbers"]) for number, index in indexes.items()}
    for number, column in depends:
        if number in used and indexes[number]["has_expressions"]:
            used[number].add(column)
    return used


def _columns_alone(numbers: set[int]) -> list[int]:
    """Without the table itself and what is no column of the table's own."""
    return sorted(number for number in numbers if number > 0)


_INDEX_KEYS = ("id", "name", "is_unique", "definition", "is_valid", "is_immediate")


def _next_value(spelled: str) -> str:
    quoted = spelled.replace("'", "''")
    return f"nextval('{quoted}'::regclass)"


def _without_nulls(raw: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if value is not None}
