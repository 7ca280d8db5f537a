"""SQL text that the source's catalog has spelled, parsed as far as penstock must. Knows no server.

A text is only ever put between parentheses, or where nothing can follow it. It must therefore be in balance
by itself: then it means there what it means alone, whoever has written it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_OPENING = {"(": ")", "[": "]"}

# Strings are as the server spells them: doubled quotes, or E'' with backslashes. No dollar quotes,
# no comments, no semicolon: the server never spells those, so that a text with one is forged.
# Nothing is taken in halves: what follows a token must not be able to belong to it.
_TOKEN = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<string>(?:[eE]'(?:[^'\\]|\\.|'')*' | [uU]&'(?:[^']|'')*' | [bBxXnN]?'(?:[^']|'')*')(?!'))
    | (?P<name>(?:[uU]&"(?:[^"]|"")*" | "(?:[^"]|"")*")(?!") | [^\W\d][\w$]*(?![\w$'"]))
    | (?P<number>(?:\d[\w.]*|\.\d+)(?![\w.'"]))
    | (?P<open>[(\[])
    | (?P<close>[)\]])
    | (?P<other>[^\s'"$;\w])
    """,
    re.VERBOSE | re.DOTALL,
)
_NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_CONSTANT = re.compile(
    # A type of Postgres's own is spelled without a schema.
    rf"""\(?(?:NULL|true|false|{_NUMBER}|\({_NUMBER}\)|E?'(?:[^'\\]|'')*'|ARRAY\[\])\)?
         (?:::["\w\ ]+(?:\(\d+(?:,\d+)?\))?(?:[\w\ ]*)(?:\[\])*)?""",
    re.VERBOSE | re.IGNORECASE,
)
_STRING = re.compile(r"""[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'""", re.DOTALL)
_NAME = r"""("(?:[^"]|"")*"|[^\W\d][\w$]*)"""
_QUALIFIED = re.compile(rf"{_NAME}\s*\.\s*(?={_NAME})")
# double precision, character varying(3)[], timestamp(3) with time zone, interval year to month, geometry(Point,4326)
_TYPE_WORDS = frozenset(
    {"varying", "precision", "with", "without", "time", "zone", "to"}
    | {"year", "month", "day", "hour", "minute", "second"}
)
_TYPE_GROUP = re.compile(r"\[\]|\([\w ,.'-]*\)")
_AFTER_CHECK = re.compile(r"(?: NO INHERIT)?(?: NOT VALID)?(?: NOT ENFORCED)?")


class UnreadableTextError(ValueError):
    """The text is not of the form that a server gives it."""


class Token(NamedTuple):
    """A piece of text: `kind` is string, name, number, other, or group for what parentheses hold."""

    kind: str
    start: int
    end: int


def is_constant(text: str) -> bool:
    """Whether it is a literal, with the name of a type of Postgres's own at the most."""
    return _CONSTANT.fullmatch(text) is not None


def enclosed(text: str) -> str:
    """An expression such that nothing before or after it becomes a part of it, nor it of that."""
    return text if is_constant(text) else f"({text})"


def qualified_names(text: str) -> set[tuple[str, str]]:
    """All names in a text that have a schema, or may have one."""
    found: set[tuple[str, str]] = set()
    for match in _QUALIFIED.finditer(_STRING.sub("''", text)):
        schema, name = (_plain(part) for part in match.groups())
        found.add((schema, name))
    return found


def _plain(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()


def tokens(text: str) -> list[Token]:
    """The tokens of a text outside of all parentheses, each pair of which is one token.

    Raises:
        UnreadableTextError: it is not in balance, or has what no server spells.
    """
    found: list[Token] = []
    closing: list[str] = []
    begun, place = 0, 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None or text.startswith(("--", "/*"), place):
            raise UnreadableTextError
        kind, word = str(match.lastgroup), match[0]
        if kind == "open":
            if not closing:
                begun = place
            closing.append(_OPENING[word])
        elif kind == "close":
            if not closing or closing.pop() != word:
                raise UnreadableTextError
            if not closing:
                found.append(Token("group", begun, match.end()))
        elif not closing and kind != "space":
            found.append(Token(kind, place, match.end()))
        place = match.end()
    if closing:
        raise UnreadableTextError
    return found


def is_type(text: str) -> bool:
    """Whether it is a type and nothing more, as a server spells one."""
    try:
        found = tokens(text)
    except UnreadableTextError:
        return False
    words = [text[each.start : each.end] for each in found]
    place = _name_end(found, words)
    if not place:
        return False
    for token, word in zip(found[place:], words[place:], strict=True):
        is_known = word in _TYPE_WORDS if token.kind == "name" else _TYPE_GROUP.fullmatch(word)
        if not is_known:
            return False
    return True


def is_name(text: str) -> bool:
    """Whether it is a name, with a schema or without, and nothing more."""
    try:
        found = tokens(text)
    except UnreadableTextError:
        return False
    words = [text[each.start : each.end] for each in found]
    return bool(words) and _name_end(found, words) == len(found)


def _name_end(found: list[Token], words: list[str]) -> int:
    """How many tokens at the beginning are a name with or without its schema; 0: there is none."""
    if not found or found[0].kind != "name":
        return 0
    if len(found) > 2 and words[1] == ".":
        return 3 if found[2].kind == "name" else 0
    return 1


def require_expression(text: str) -> None:
    """See that the text can be put between parentheses.

    Raises:
        UnreadableTextError: it cannot.
    """
    if not tokens(text):
        raise UnreadableTextError


def expressions_of_constraint(definition: str) -> list[str]:
    """The expressions in what follows the name of a constraint.

    Raises:
        UnreadableTextError: it is not of the form that a server gives it.
    """
    found = tokens(definition)
    if any(definition[each.start : each.end] == "," for each in found):
        raise UnreadableTextError  # ALTER TABLE would take it for the next action
    head = _word(definition, found, 0)
    if head == "CHECK":
        if len(found) < 2 or found[1].kind != "group" or not definition.startswith("CHECK ("):
            raise UnreadableTextError
        if not _AFTER_CHECK.fullmatch(definition[found[1].end :]):
            raise UnreadableTextError
        return [_inside(definition, found[1])]
    if head == "EXCLUDE" and _word(definition, found, 1) == "USING":
        return _of_index(definition, found, 2, is_constraint=True)
    if head in ("PRIMARY", "UNIQUE"):
        return []
    raise UnreadableTextError


def is_constraint(definition: str) -> bool:
    """Whether it is of the form that a server gives a constraint."""
    try:
        expressions_of_constraint(definition)
    except UnreadableTextError:
        return False
    return True


def expressions_of_index(definition: str) -> list[str]:
    """The expressions in what follows the word USING of an index.

    Raises:
        UnreadableTextError: it is not of the form that a server gives it.
    """
    return _of_index(definition, tokens(definition), 0, is_constraint=False)


def _of_index(definition: str, found: list[Token], place: int, *, is_constraint: bool) -> list[str]:
    """`place` is where the name of the access method is."""
    if len(found) < place + 2 or found[place].kind != "name" or found[place + 1].kind != "group":
        raise UnreadableTextError
    expressions = _of_elements(_inside(definition, found[place + 1]))
    for number in range(place + 2, len(found)):
        if _word(definition, found, number) != "WHERE":
            continue
        rest = found[number + 1 :]
        if not rest or (is_constraint and rest[0].kind != "group"):
            raise UnreadableTextError
        end = rest[0].end if is_constraint else rest[-1].end
        expressions.append(definition[rest[0].start : end])
        break
    return expressions


def _of_elements(text: str) -> list[str]:
    expressions: list[str] = []
    element: list[Token] = []
    for each in [*tokens(text), None]:
        if each is not None and text[each.start : each.end] != ",":
            element.append(each)
            continue
        if not element:
            raise UnreadableTextError
        end = _call_end(text, element)
        if end:
            expressions.append(text[element[0].start : end])
        element = []
    return expressions


def _call_end(text: str, element: list[Token]) -> int:
    """Where an expression at the beginning of an index's element ends; 0 where there is a column."""
    if element[0].kind == "group":
        return element[0].end
    place = 0
    while place + 2 < len(element) and text[element[place + 1].start] == ".":
        place += 2
    if place + 1 < len(element) and element[place + 1].kind == "group":
        # A column is followed by a space and the name of an operator class, not by parentheses.
        return element[place + 1].end
    if place:
        raise UnreadableTextError  # a column has no schema
    return 0


def _inside(text: str, group: Token) -> str:
    return text[group.start + 1 : group.end - 1]


def _word(text: str, found: list[Token], place: int) -> str:
    return text[found[place].start : found[place].end] if place < len(found) else ""
