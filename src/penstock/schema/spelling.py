"""Compare SQL text that a server has spelled, as far as it can be without understanding it. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# A literal, a quoted name, a bare name or number, or any other character. Space does not count.
_TOKEN = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|[^\W\d][\w$]*|\d[\w.]*|[^\s]""")
_MODIFIER = re.compile(r"\([^()]*\)")
_LITERAL = re.compile(r"'(?:[^']|'')*'")
_CAST = re.compile(
    r"::(?:(?:character|bit) varying|double precision|(?:timestamp|time)(?:\(\d\))? with(?:out)? time zone"
    r"""|(?:"(?:[^"]|"")*"|\w+)(?:\.(?:"(?:[^"]|"")*"|\w+))?)(?:\([\d, -]+\))?(?:\[\])*"""
)


def is_same_but_for_names(before: str, after: str, renamed: Mapping[str, str]) -> bool:
    """Whether two expressions differ in nothing but that things in them were renamed."""
    if before == after:
        return not renamed or not any(name in renamed for name in _names(before))
    return [_rename(token, renamed) for token in _TOKEN.findall(before)] == [
        _rename(token, {}) for token in _TOKEN.findall(after)
    ]


def modifiers_of(type_text: str) -> list[str]:
    """What stands in parentheses, as in numeric(10,2)."""
    return _MODIFIER.findall(type_text)


def _names(text: str) -> list[str]:
    return [name for token in _TOKEN.findall(text) if (name := _name(token)) is not None]


def _name(token: str) -> str | None:
    if token.startswith('"'):
        return token[1:-1].replace('""', '"')
    return token if token[0].isalpha() or token[0] == "_" else None


def _rename(token: str, renamed: Mapping[str, str]) -> tuple[str, str]:
    name = _name(token)
    return ("text", token) if name is None else ("name", renamed.get(name, name))


def is_same_but_for_casts(one: str, other: str) -> bool:
    """Whether two texts differ in parentheses and casts alone.

    A server that parses what another one has spelled adds and moves some: BETWEEN, IN over varchar.
    """
    return one == other or _bare(one) == _bare(other)


def _bare(text: str) -> str:
    literals: list[str] = []

    def hide(found: re.Match[str]) -> str:
        literals.append(found.group())
        return f"\x00{len(literals) - 1}\x00"

    hidden = _CAST.sub("", _LITERAL.sub(hide, text))
    bare = re.sub(r"[\s()]", "", hidden)
    return re.sub("\x00(\\d+)\x00", lambda found: literals[int(found[1])], bare)
