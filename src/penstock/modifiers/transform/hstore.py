"""The text of an hstore: "key"=>"value", "key"=>NULL."""

from __future__ import annotations

import re

_PAIR = re.compile(
    r'\s*"((?:[^"\\]|\\.)*)"\s*=>\s*(?:"((?:[^"\\]|\\.)*)"|(NULL))\s*(,|$)', re.S | re.I
)


def parse_hstore(text: str) -> dict[str, str | None]:
    """Its pairs, as Postgres writes them.

    Raises:
        ValueError: it is none. The text shows none of it.
    """
    pairs: dict[str, str | None] = {}
    at = 0
    while at < len(text):
        match = _PAIR.match(text, at)
        if match is None:
            raise ValueError("it is no hstore")
        pairs[_unescaped(match[1])] = None if match[3] else _unescaped(match[2])
        at = match.end()
    return pairs


def format_hstore(pairs: dict[str, str | None]) -> str:
    """The text of pairs."""
    return ", ".join(f"{_quoted(key)}=>{_quoted(value)}" for key, value in pairs.items())


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.S)


def _quoted(text: str | None) -> str:
    if text is None:
        return "NULL"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
