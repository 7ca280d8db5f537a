"""What is parked for a subscription, and what must not overtake it.

By position, not by key alone: when deliveries begin again, documents come again from before what is parked. They were sent
before it, and are sent again; behind it they would bring back what is older.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock.sinks.documents.parked import WHOLE_TABLE, keys_of
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.sinks.documents.parked import Key
    from penstock.sinks.webhook.rows import ParkedRow

_Position = tuple[int, int]


class Held:
    """Parked documents, as far as others wait behind them. A row is a document with its fields by name."""

    def __init__(self, parked: Iterable[ParkedRow] = ()) -> None:
        self._ids: set[str] = set()
        # The first of each key; None stands for the whole table.
        self._first: dict[TableName, dict[Key | None, _Position]] = {}
        for each in parked:
            self.add(json.loads(each.document))

    def __bool__(self) -> bool:
        return bool(self._ids)

    def __contains__(self, id_: str) -> bool:
        return id_ in self._ids

    def add(self, row: Mapping[str, Any]) -> None:
        """Hold what comes behind this document."""
        self._ids.add(row["id"])
        first = self._first.setdefault(_table_of(row), {})
        at = _position_of(row)
        keys: list[Key | None] = [None] if row["key"] is None else [*keys_of(row)]
        for key in keys:
            first[key] = min(at, first.get(key, at))

    def waits(self, row: Mapping[str, Any]) -> bool:
        """Whether a document must wait: something is parked that concerns it, and stands before it or is the same."""
        first = self._first.get(_table_of(row))
        if not first:
            return False
        if row["op"] in WHOLE_TABLE or row["key"] is None:
            known = list(first.values())
        else:
            known = [first[key] for key in (None, *keys_of(row)) if key in first]
        at = _position_of(row)
        return any(each <= at for each in known)


def _table_of(row: Mapping[str, Any]) -> TableName:
    return TableName(row["schema"], row["table"])


def _position_of(row: Mapping[str, Any]) -> _Position:
    return row["commit_lsn"], row["ordinal"]
