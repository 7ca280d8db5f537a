"""A reader of documents as anybody could write one: keeps the newest state of each row.

A document counts if it is newer than what is known of its key, so that repeats and any order between keys do no harm. Knows
documents and nothing else of penstock.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from typing import Any

Place = tuple[int, int, int]


class Keeper:
    """Takes documents from any thread."""

    def __init__(self) -> None:
        self.document_count = 0
        self.copied_count = 0
        self.repeated_count = 0
        self._lock = threading.Lock()
        self._ids: set[str] = set()
        # Deleted rows stay, as None: an older document may come later.
        self._rows: dict[tuple[str, str], tuple[Place, dict[str, Any] | None]] = {}
        self._renames: list[tuple[Place, str, str, str]] = []

    def take(self, text: str | bytes) -> None:
        """One document."""
        document = read_exactly(text)
        with self._lock:
            if document["id"] in self._ids:
                self.repeated_count += 1
                return
            self._ids.add(document["id"])
            self.document_count += 1
            self.copied_count += document["op"] == "read"
            if document["op"] == "schema":
                self._note_renames(document)
            else:
                self._keep(document)

    def _keep(self, document: dict[str, Any]) -> None:
        place, table, key = _place(document), document["table"], document["key"]
        before = document["before"] or {}
        old = {name: before.get(name, value) for name, value in key.items()}
        if old != key:
            self._set(table, old, place, None)
        self._set(table, key, place, document["after"])

    def _set(
        self, table: str, key: dict[str, Any], place: Place, row: dict[str, Any] | None
    ) -> None:
        at = (table, json.dumps(key, sort_keys=True))
        if at not in self._rows or self._rows[at][0] < place:
            self._rows[at] = (place, row)

    def _note_renames(self, document: dict[str, Any]) -> None:
        for each in document["difference"]:
            if each["op"] == "rename_column":
                renamed = (document["table"], each["before"], each["after"])
                self._renames.append((_place(document), *renamed))

    def row_counts(self) -> dict[str, int]:
        """How many rows there are of each table."""
        with self._lock:
            return dict(Counter(table for (table, _), (_, row) in self._rows.items() if row))

    def rows(self, table: str) -> list[str]:
        """The rows of a table as JSON, with the names that columns have now."""
        with self._lock:
            kept = [each for (name, _), each in self._rows.items() if name == table]
            renames = sorted(self._renames)
        found = []
        for place, row in kept:
            if row is None:
                continue
            for changed_at, of_table, before, after in renames:
                if of_table == table and place < changed_at and before in row:
                    row = {after if name == before else name: row[name] for name in row}  # noqa: PLW2901
            found.append(as_written(row))
        return found


class _Number(str):
    """A number with its digits: some have more than a float holds."""


def read_exactly(text: str | bytes) -> Any:
    """JSON whose numbers keep their digits; `as_written` is the way back."""
    return json.loads(text, parse_int=_Number, parse_float=_Number)


def _place(document: dict[str, Any]) -> Place:
    """Where a document stands in the source's order; copied rows before changes of the same position."""
    high, low = document["commit_lsn"].split("/")
    is_change = int(document["op"] != "read")
    return (int(high, 16) << 32) + int(low, 16), is_change, int(document["ordinal"])


def as_written(value: Any) -> str:
    """JSON, every number as it was read."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{as_written(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(as_written, value)) + "]"
    return json.dumps(value)
