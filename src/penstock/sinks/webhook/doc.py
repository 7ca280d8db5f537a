"""One document as it is on its way to a receiver, and its values as they are written in JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, NamedTuple


class Doc(NamedTuple):
    """One document; the fields are the columns of `penstock.sink.DOCUMENTS`, and the types of its table's columns as JSON."""

    id: str
    key: str | None
    value: str
    schema: str
    table: str
    op: str
    commit_lsn: int
    ordinal: int
    committed_at: int | None  # microseconds since 1970
    types: str | None = None  # None where nobody knows them


class Digits(float):
    """A number of JSON that keeps its digits: `json` writes a float by its repr."""

    def __new__(cls, text: str) -> Digits:
        """The number, and how it was written."""
        made = super().__new__(cls, 0.0)
        made.text = text
        return made

    text: str

    def __repr__(self) -> str:
        return self.text


def json_text(value: Any) -> str:
    """JSON of parsed JSON, whose numbers are as they were."""
    if isinstance(value, Digits):
        return value.text
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{json_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(json_text, value)) + "]"
    return json.dumps(value)


def time_of(microseconds: int) -> datetime:
    """Microseconds since 1970."""
    seconds, rest = divmod(microseconds, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest)
