"""What a source's triggers say of a table in lines of text, by names. Pure.

A line is a row as Postgres writes rows, its first field says of what (`penstock.source.tracking.lines`).
Names are spelled as for a statement, with quotes where they need them, and what a definition says is
said nowhere else.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    _Fields = dict[str, Callable[[str], Any]]

Parts = dict[str, list[dict[str, Any]]]

# Types below have the same id in every database. Those that a column can have are base types but for these.
FIRST_UNFIXED_ID = 10000
_RANGES = {3904, 3906, 3908, 3910, 3912, 3926}
_MULTIRANGES = {4451, 4532, 4533, 4534, 4535, 4536}
_ROW_TYPES = {71, 75, 81, 83, 1248, 2842, 2843, 4066, 6101}

_PIECE = re.compile(r'[(),]|"(?:[^"\\]|\\.|"")*"|[^(),"]+', re.DOTALL)


def rows_of(text: str) -> list[list[str | None]]:
    """Rows as Postgres writes them, one after the other."""
    rows: list[list[str | None]] = []
    row: list[str | None] = []
    value: str | None = None
    for piece in _PIECE.findall(text):
        if piece == "(":
            row, value = [], None
        elif piece in {",", ")"}:
            row.append(value)
            value = None
            if piece == ")":
                rows.append(row)
        elif piece.startswith('"'):
            value = piece[1:-1].replace('""', '"').replace("\\\\", "\\")
        else:
            value = piece
    return rows


def unquoted(name: str) -> str:
    """The name that is spelled so."""
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _flag(text: str) -> bool:
    return text == "t"


def _numbers(text: str) -> list[int]:
    """Of an array or a vector."""
    return [int(number) for number in text.strip("{}").replace(",", " ").split()]


# The fields of each kind of line, in their order, and how each is read.
_FIELDS: dict[str, _Fields] = {
    "t": {
        "name": str,
        "schema_name": unquoted,
        "kind": str,
        "replica_identity": str,
        "filenode": int,
        "row_type_id": int,
        "row_type": str,
    },
    "c": {
        "id": int,
        "name": str,
        "type": str,
        "type_id": int,
        "type_modifier": int,
        "not_null": _flag,
        "identity": str,
        "generated": str,
        "missing": str,
    },
    "d": {"id": int, "value": str},
    "w": {"column": int, "text": str},
    "o": {
        "id": int,
        "name": str,
        "kind": str,
        "definition": str,
        "columns": _numbers,
        "index_id": int,
        "is_deferrable": _flag,
        "is_deferred": _flag,
        "is_valid": _flag,
        "parent_id": int,
        "referenced_id": int,
        "on_update": str,
        "on_delete": str,
        "match": str,
    },
    "i": {
        "id": int,
        "is_unique": _flag,
        "definition": str,
        "numbers": _numbers,
        "key_count": int,
        "is_valid": _flag,
        "is_immediate": _flag,
        "is_identity": _flag,
        "has_expressions": _flag,
    },
    "e": {
        "column": int,
        "id": int,
        "kind": str,
        "spelled": str,  # None for an index, as all that follows
        "type": str,
        "start": int,
        "increment": int,
        "minimum": int,
        "maximum": int,
        "cache": int,
        "cycles": _flag,
    },
}
_TYPE_FIELDS: _Fields = {
    "id": int,
    "kind": str,
    "spelled": str,
    "labels": str,
    "base": str,
    "base_id": int,
    "extension": str,
}
_OWN_SCHEMAS = ("pg_catalog", "information_schema")


def _named(row: list[str | None], fields: _Fields) -> dict[str, Any]:
    return {
        name: None if value is None else read(value)
        for (name, read), value in zip(fields.items(), row, strict=True)
    }


def table_parts(text: str, type_text: str) -> dict[str, Any]:
    """A table in the parts in which older triggers say it, with names for what they are.

    Raises:
        ValueError, KeyError, TypeError: it is none.
    """
    found: Parts = {kind: [] for kind in _FIELDS}
    for kind, *row in rows_of(text):
        found[str(kind)].append(_named(row, _FIELDS[str(kind)]))
    (table,) = found["t"]
    return {
        **table,
        "filenode": table["filenode"] or 0,
        **_column_parts(found, type_text),
        "comments": found["w"],
        **_constraint_parts(found),
        "indexes": [_index(each) for each in found["i"]],
        "types": type_parts(type_text),
    }


def _column_parts(found: Parts, type_text: str) -> dict[str, Any]:
    """Columns, what is said of them beside that, and the sequences that they count with."""
    kinds = {int(str(row[0])): row[1] for row in rows_of(type_text)}
    values = {each["id"]: each["value"] for each in found["d"]}
    return {
        "columns": [_column(each, kinds) for each in found["c"]],
        "details": [_detail(each, values.get(each["id"])) for each in found["c"]],
        "sequences": [_sequence(each) for each in found["e"] if each["spelled"]],
        "depends": [(each["id"], each["column"]) for each in found["e"]],
    }


def _constraint_parts(found: Parts) -> dict[str, Any]:
    numbers = {each["name"]: each["id"] for each in found["c"]}
    own = {each["id"] for each in found["o"]}
    return {
        "constraints": [_constraint(each) for each in found["o"] if each["kind"] != "f"],
        # One that leads to a partitioned table has rows for its partitions too.
        "foreign_keys": [
            _foreign_key(each, numbers)
            for each in found["o"]
            if each["kind"] == "f" and each["parent_id"] not in own
        ],
    }


def type_parts(text: str) -> list[dict[str, Any]]:
    """Enums, domains and base types; those of Postgres's own are left out."""
    found = []
    for row in rows_of(text):
        one = _named(row, _TYPE_FIELDS)
        schema_name, name = qualified(one["spelled"])
        labels = [
            (number, label, float(str(at))) for number, at, label in rows_of(one["labels"] or "")
        ]
        one["labels"] = [each[:2] for each in sorted(labels, key=lambda each: each[2])]
        if schema_name not in _OWN_SCHEMAS:
            found.append({**one, "schema_name": schema_name, "name": name})
    return found


def _column(line: dict[str, Any], kinds: dict[int, str | None]) -> dict[str, Any]:
    keys = ("id", "name", "type", "type_id", "type_modifier", "not_null")
    number = line["type_id"]
    return {
        **{key: line[key] for key in keys},
        "type_kind": kinds.get(number) or fixed_kind(number),
    }


def fixed_kind(type_id: int) -> str:
    """pg_type.typtype of a type that every database has under that id."""
    if type_id in _RANGES:
        return "r"
    if type_id in _MULTIRANGES:
        return "m"
    return "c" if type_id in _ROW_TYPES else "b"


def _detail(line: dict[str, Any], value: str | None) -> dict[str, Any]:
    return {key: line[key] for key in ("id", "missing", "identity", "generated")} | {"value": value}


def _sequence(line: dict[str, Any]) -> dict[str, Any]:
    schema_name, name = qualified(line["spelled"])
    return {**line, "schema_name": schema_name, "name": name}


# A name as Postgres spells it, and a list of such.
_NAME = r'(?:"(?:[^"]|"")+"|[a-z_][a-z0-9_]*)'
_NAMES = rf"(?:PERIOD )?{_NAME}(?:, (?:PERIOD )?{_NAME})*"
_QUALIFIED = re.compile(rf"(?:({_NAME})\.)?({_NAME})")
_LISTED = re.compile(rf"(PERIOD )?({_NAME})")
_WITHOUT_OVERLAPS = re.compile(rf"[A-Z ]+\({_NAMES} WITHOUT OVERLAPS\)")
_FOREIGN_KEY = re.compile(
    rf"FOREIGN KEY \(({_NAMES})\) REFERENCES ((?:{_NAME}\.)?{_NAME})\(({_NAMES})\)(.*)", re.DOTALL
)
_SET_COLUMNS = re.compile(rf"ON DELETE SET (?:NULL|DEFAULT) \(({_NAMES})\)")
_INDEX = re.compile(
    rf"CREATE (?:UNIQUE )?INDEX ({_NAME}) ON (?:ONLY )?{_NAME}\.{_NAME} USING (.*)", re.DOTALL
)


def qualified(spelled: str) -> tuple[str, str]:
    """Schema and name. What stands without a schema is in the only one that is searched."""
    found = _QUALIFIED.match(spelled)
    if found is None or found[1] is None:
        return "pg_catalog", spelled
    return unquoted(found[1]), unquoted(found[2])


def _constraint(line: dict[str, Any]) -> dict[str, Any]:
    keys = ("id", "name", "kind", "definition", "columns", "index_id", "is_deferrable")
    has_period = line["kind"] in "pu" and _WITHOUT_OVERLAPS.match(line["definition"]) is not None
    return {**{key: line[key] for key in keys}, "has_period": has_period}


def _foreign_key(line: dict[str, Any], numbers: dict[str, int]) -> dict[str, Any]:
    found = _FOREIGN_KEY.fullmatch(line["definition"])
    if found is None:
        raise ValueError("a foreign key that does not read as one")
    _, referenced, names, rest = found.groups()
    schema_name, name = qualified(referenced)
    columns = _LISTED.findall(names)
    chosen = _SET_COLUMNS.search(rest)
    keys = ("id", "name", "columns", "referenced_id", "on_update", "on_delete", "match")
    flags = ("is_deferrable", "is_deferred", "is_valid")
    return {
        **{key: line[key] for key in (*keys, *flags)},
        "referenced_schema": schema_name,
        "referenced_name": name,
        "referenced_columns": [unquoted(column) for _, column in columns],
        "on_delete_columns": [
            numbers[unquoted(column)] for _, column in _LISTED.findall(chosen[1] if chosen else "")
        ],
        "is_enforced": not rest.endswith(" NOT ENFORCED"),
        "has_period": any(period for period, _ in columns),
    }


def _index(line: dict[str, Any]) -> dict[str, Any]:
    """One without a definition is a constraint's, whose name and definition it has."""
    if line["definition"] is None:
        return {**line, "name": ""}
    found = _INDEX.fullmatch(line["definition"])
    if found is None:
        raise ValueError("an index that does not read as one")
    return {**line, "name": unquoted(found[1]), "definition": found[2]}
