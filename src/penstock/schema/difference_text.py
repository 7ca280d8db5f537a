"""Differences in words, one line each: for people and for error messages. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.schema.difference import Difference


def describe_difference(difference: Difference) -> str:
    """One line, without what it is a difference of: `column a renamed to b`."""
    return " ".join(_WORDS.get(difference.op, _plain)(difference).split())


def describe_differences(differences: Iterable[Difference]) -> str:
    """All of them in a row."""
    return "; ".join(map(describe_difference, differences)) or "nothing"


def _plain(one: Difference) -> str:
    """What the op says: `drop_foreign_key` of f is `foreign key f dropped`."""
    verb, _, noun = one.op.partition("_")
    words = {"add": "added", "drop": "dropped", "create": "created", "change": "changed"}
    name = one.part or (f"{one.schema}.{one.name}" if one.schema else one.name)
    return f"{noun.replace('_', ' ')} {name} {words[verb]}"


def _renamed(one: Difference) -> str:
    noun = one.op.removeprefix("rename_").replace("_", " ")
    return f"{noun} {one.before} renamed to {one.after}"


def _added_column(one: Difference) -> str:
    words = [f"column {one.part} added:", one.after["type"]]
    if one.after.get("collation"):
        words.append(f"COLLATE {one.after['collation']}")
    if one.after.get("generated") is not None:
        words.append(f"GENERATED ALWAYS AS ({one.after['generated']})")
    if one.after.get("identity"):
        words.append(f"GENERATED {one.after['identity'].upper()} AS IDENTITY")
    if one.after.get("default") is not None:
        words.append(f"DEFAULT {one.after['default']}")
    if one.after["not_null"]:
        words.append("NOT NULL")
    return " ".join(words)


def _was(noun: str) -> Callable[[Difference], str]:
    return lambda one: f"column {one.part}: {noun} was {_none(one.before)}, is {_none(one.after)}"


def _none(value: Any) -> str:
    return "none" if value is None else str(value)


def _key(one: Difference) -> str:
    old, new = (
        "none" if key is None else f"({', '.join(key['columns'])})"
        for key in (one.before, one.after)
    )
    return f"primary key was {old}, is {new}"


def _label(one: Difference) -> str:
    place = ""
    if one.after["precedes"] is not None:
        place = f" before '{one.after['precedes']}'"
    elif one.after["follows"] is not None:
        place = f" after '{one.after['follows']}'"
    return f"label '{one.part}' added to type {one.schema}.{one.name}{place}"


def _not_null(one: Difference) -> str:
    return f"column {one.part}: {'NOT NULL' if one.after else 'NULL allowed'}"


def _foreign_key(one: Difference) -> str:
    columns = ", ".join(one.after["columns"])
    return f"foreign key {one.part} added: ({columns}) to {one.after['references']}"


_WORDS: dict[str, Callable[[Difference], str]] = {
    "rename_table": _renamed,
    "rename_column": _renamed,
    "rename_constraint": _renamed,
    "rename_index": _renamed,
    "rename_foreign_key": _renamed,
    "rename_type": _renamed,
    "rename_sequence": _renamed,
    "rename_label": lambda one: (
        f"label '{one.before}' of type {one.schema}.{one.name} renamed to '{one.after}'"
    ),
    "add_label": _label,
    "add_column": _added_column,
    "add_constraint": lambda one: f"constraint {one.part} added: {one.after}",
    "add_index": lambda one: (
        f"{'unique ' if one.after['is_unique'] else ''}index {one.part} added:"
        f" {one.after['definition']}"
    ),
    "add_foreign_key": _foreign_key,
    "column_type": _was("type"),
    "column_default": _was("default"),
    "column_identity": _was("identity"),
    "column_generated": _was("expression"),
    "column_collation": _was("collation"),
    "column_not_null": _not_null,
    "column_sequence": lambda one: f"column {one.part}: another sequence, or it counts differently",
    "column_comment": lambda one: f"column {one.part}: another comment",
    "table_comment": lambda one: f"table {one.schema}.{one.name}: another comment",
    "primary_key": _key,
    "replica_identity": lambda one: f"replica identity was {one.before}, is {one.after}",
}
