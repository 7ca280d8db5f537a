"""Paths into JSON documents, and JSON that keeps every digit of a number."""

from __future__ import annotations

import functools
import json
from decimal import Decimal
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Document = TypeVar("_Document")

MISSING: Final = object()
"""What is at a path that leads nowhere."""

EACH: Final = "#"
_DEEPEST = 1000


@functools.lru_cache(maxsize=256)
def parse_path(text: str) -> tuple[str, ...]:
    """Keys, numbers of entries and #, with dots between; a backslash before a dot that belongs to a key."""
    steps: list[str] = []
    step, at = "", 0
    while at < len(text):
        if text[at] == "\\" and at + 1 < len(text):
            step, at = step + text[at + 1], at + 2
        elif text[at] == ".":
            steps, step, at = [*steps, step], "", at + 1
        else:
            step, at = step + text[at], at + 1
    steps.append(step)
    return tuple(steps) if all(steps) else ()


def read_path(document: Any, path: tuple[str, ...]) -> Any:
    """What is there; with # in the path the list of what is at each entry."""
    for depth, step in enumerate(path):
        if step == EACH and isinstance(document, list):
            rest = path[depth + 1 :]
            found = [read_path(one, rest) for one in document]
            return [one for one in found if one is not MISSING] if found else MISSING
        document = _entry(document, step)
        if document is MISSING:
            return MISSING
    return document


def _entry(document: Any, step: str) -> Any:
    if isinstance(document, dict):
        return document.get(step, MISSING)
    if isinstance(document, list) and step.isdigit() and int(step) < len(document):
        return document[int(step)]
    return MISSING


def set_path(document: Any, path: tuple[str, ...], value: Any) -> Any:
    """The document with a value there. Objects on the way are made; a number behind a list's end adds to it."""
    return change_path(document, path, lambda _: value)


def change_path(document: Any, path: tuple[str, ...], change: Callable[[Any], Any]) -> Any:
    """The document with what `change` makes of what is there, with # in the path for each entry.

    `change` is given MISSING where nothing is there; where it gives that back, all stays as it is.
    """
    if not path:
        return change(document)
    step, rest = path[0], path[1:]
    if isinstance(document, list):
        return _change_entry(document, step, rest, change)
    if not isinstance(document, dict) and document is not MISSING and document is not None:
        return _blocked(document, change, "a path goes on below what is neither object nor list")
    fields = document if isinstance(document, dict) else {}
    if step == EACH and EACH not in fields:
        # No list, so there are no entries; and an object that stands for one would be left as it is.
        return (
            _blocked(document, change, "# stands for the entries of what is no list")
            if fields
            else document
        )
    made = change_path(fields.get(step, MISSING), rest, change)
    return document if made is MISSING else {**fields, step: made}


def _change_entry(
    document: list[Any], step: str, rest: tuple[str, ...], change: Callable[[Any], Any]
) -> list[Any]:
    if step == EACH:
        return [change_path(one, rest, change) for one in document]
    if not step.isdigit() or int(step) > len(document) + _DEEPEST:
        return _blocked(document, change, "a path names a key in a list")
    place = int(step)
    inner = document[place] if place < len(document) else MISSING
    made = change_path(inner, rest, change)
    if made is MISSING:
        return document
    longer = document + [None] * (place + 1 - len(document))
    return [*longer[:place], made, *longer[place + 1 :]]


def _blocked(document: _Document, change: Callable[[Any], Any], why: str) -> _Document:
    """The path leads nowhere: an error, unless nothing was to be made there."""
    if change(MISSING) is not MISSING:
        raise ValueError(why)
    return document


def delete_path(document: Any, path: tuple[str, ...]) -> Any:
    """The document without what is there."""
    step, rest = path[0], path[1:]
    if isinstance(document, list) and step == EACH:
        return [delete_path(one, rest) for one in document] if rest else []
    if _entry(document, step) is MISSING:
        return document
    if isinstance(document, dict):
        if not rest:
            return {key: one for key, one in document.items() if key != step}
        return {**document, step: delete_path(document[step], rest)}
    place = int(step)
    inner = [delete_path(document[place], rest)] if rest else []
    return [*document[:place], *inner, *document[place + 1 :]]


def load_json(text: bytes) -> Any:
    """The document; numbers keep their digits.

    Raises:
        ValueError: it is no JSON. The text shows none of it.
    """
    try:
        return _DECODER.decode(text.decode())
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON") from None


class _Fraction(Decimal):
    """A number that is written as it was read."""

    __slots__ = ("written",)
    written: str

    def __new__(cls, text: str) -> _Fraction:
        made = super().__new__(cls, text)
        made.written = text
        return made

    def __str__(self) -> str:
        return self.written

    def __reduce__(self) -> tuple[type[_Fraction], tuple[str]]:
        return _Fraction, (self.written,)


def _refuse(name: str) -> Any:
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_float=_Fraction, parse_constant=_refuse)
_ENCODER = json.JSONEncoder(ensure_ascii=False)


def dump_json(document: Any) -> str:
    """The document as text, as jsonb writes it: blanks behind commas and colons."""
    try:
        return _ENCODER.encode(document)
    except TypeError:  # the library does not write our fractions
        return _dump(document)


def _dump(document: Any) -> str:
    if isinstance(document, dict):
        pairs = (f"{encode_basestring(str(k))}: {_dump(v)}" for k, v in document.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(document, list | tuple):
        return "[" + ", ".join(map(_dump, document)) + "]"
    return str(document) if isinstance(document, Decimal) else _ENCODER.encode(document)
