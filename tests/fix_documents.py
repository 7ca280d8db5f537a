"""Documents as tests read them: one line each, numbers digit for digit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from penstock.changes.documents import documents, json_lines
from penstock.testing import changes, relation, transaction

if TYPE_CHECKING:
    from penstock.changes.pgoutput import Relation

LSN = 0x16B3748


class Number(NamedTuple):
    """A JSON number, digit for digit."""

    digits: str


def parse(line: str | bytes) -> Any:
    """One document; numbers as Number, and no NaN outside quotes."""
    return json.loads(line, parse_float=Number, parse_int=Number, parse_constant=pytest.fail)


def lines_of(messages: list[bytes]) -> list[str]:
    """The documents of whole transactions, as text. Only a line feed ends a line."""
    return bytes(json_lines(documents(changes(messages), "shop"))).decode().split("\n")[:-1]


def parsed_lines(described: Relation, *rows: bytes) -> list[Any]:
    """The documents of one transaction on one table."""
    return [parse(line) for line in lines_of([relation(described), *transaction(LSN, *rows)])]
