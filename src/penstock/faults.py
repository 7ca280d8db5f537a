"""What pydantic found wrong, as one PenstockError with its place. Shows no secret.

Pydantic's own texts are written for programmers and quote the input, so only their kind and their
path of keys are used. Those of a validator are whoever's wrote it, for people.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock.document import Document, named, shown
from penstock.errors import BadValue, NotThereYet, PenstockError, UnknownKey

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    from penstock.document import Path

_SECRET_KEYS = {"url", "password", "salt", "key_hex", "token"}
# Elsewhere a `key` is none.
_SECRET_PATHS = {("log", "key")}

_WANTED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "model_type": "a mapping",
    "string_type": "text",
    "tuple_type": "a list",
}


def first_fault(error: ValidationError, document: Document) -> PenstockError:
    """The fault that stands first in the document."""
    details = error.errors(include_url=False, include_input=False)
    placed = [_placed(detail, document) for detail in details]
    return min(placed, key=lambda line_and_fault: line_and_fault[0])[1]


def _placed(detail: ErrorDetails, document: Document) -> tuple[int, PenstockError]:
    context: dict[str, Any] = detail.get("ctx", {})
    asked: Path = (*detail["loc"], *context.get("below", ()))
    path = document.find(asked)
    mark = document.marks[path]
    name = _name(path, document)
    in_key = asked[-1:] == ("[key]",)  # how pydantic marks a fault of the key itself
    if detail["type"] == "missing":
        key = asked[-1]
        missing = f"{name}.{key}" if path else str(key)
        return mark.line, BadValue(f"{missing} is missing", mark.where, f"add {key}: to {name}")
    if detail["type"] == "fault":
        error: PenstockError = context["error"]
        # What was written, not what came of it: the rest may be the value of a variable.
        what = error.what.replace(repr(document.value_at(path)), _found(path, document))
        if in_key:
            what = what.replace(repr(path[-1]), shown(mark.key))
        # Our own sentences go on from the key's name; those of a rule or a URL stand alone.
        joint = " " if isinstance(error, UnknownKey | NotThereYet) else ": "
        return mark.line, type(error)(f"{name}{joint}{what}", mark.where, error.do)
    if detail["type"] in ("value_error", "assertion_error"):
        # A validator of somebody's own: the text is theirs, and says what it wants.
        said = str(context.get("error", "")) or "is not accepted"
        if _is_secret(path):
            said = "is not accepted; why is not shown, since it may be quoted there"
        return mark.line, BadValue(f"{name}: {said}", mark.where, f"change {name}")
    wanted = _WANTED.get(detail["type"]) or detail["msg"].removeprefix("Input should be ")
    if in_key:
        return mark.line, BadValue(
            f"{name} is not allowed as a key, wanted {wanted}", mark.where, f"write {wanted}"
        )
    found = _found(path, document)
    return mark.line, BadValue(
        f"{name} is {found}, wanted {wanted}", mark.where, f"set {name} to {wanted}"
    )


def _name(path: Path, document: Document) -> str:
    """`sinks.warehouse.tables` or `source.tables[2]`, keys as they were written."""
    name = ""
    for depth, step in enumerate(path, start=1):
        if isinstance(step, int):
            name += f"[{step}]"
        else:
            name += f".{named(document.marks[path[:depth]].key)}"
    return name.removeprefix(".") or "the pipeline"


def _is_secret(path: Path) -> bool:
    return path[:2] in _SECRET_PATHS or any(str(step).lower() in _SECRET_KEYS for step in path)


def _found(path: Path, document: Document) -> str:
    if _is_secret(path):
        return "a value that is not shown"
    written = document.marks[path].text
    if written is not None:
        return f"the value of {shown(written)}"
    value = document.value_at(path)
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return shown(value)
    return "nothing" if value is None else json.dumps(value)
