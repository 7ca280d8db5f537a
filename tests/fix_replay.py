"""A consumer's model of a source: documents played back into tables, and held against what the source has."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fix_documents import Number, parse
from penstock.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fix_postgres import Database


def place_of(document: dict[str, Any]) -> tuple[int, int, int]:
    """Where a document stands in the source's order; copied rows before changes of the same position."""
    ordinal = document["ordinal"]
    number = int(ordinal.digits) if isinstance(ordinal, Number) else int(ordinal)
    return Lsn.parse(document["commit_lsn"]), int(document["op"] != "read"), number


def assert_order_per_key(records: Iterable[tuple[Any, dict[str, Any]]]) -> None:
    """Documents of one key come in the source's order; (key, document) as they were consumed.

    One that came before, after a crash, is skipped.
    """
    seen: set[str] = set()
    last: dict[Any, tuple[int, int, int]] = {}
    for key, document in records:
        if document["id"] in seen:
            continue
        seen.add(document["id"])
        place = place_of(document)
        assert key not in last or last[key] <= place, f"{document['id']} of {key} came too late"
        last[key] = place


def replayed(documents: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """What tables hold after all documents, each once: rows as JSON, sorted, by table."""
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    by_id = {document["id"]: document for document in documents}
    for document in sorted(by_id.values(), key=place_of):
        table = tables.setdefault(document["table"], {})
        op, after = document["op"], document["after"]
        if op == "truncate":
            table.clear()
        elif op == "delete":
            table.pop(_text(document["key"]), None)
        elif op != "schema":
            key, before = document["key"], document["before"]
            old = _text({name: before[name] for name in key}) if before else _text(key)
            row = {name: table.get(old, {}).get(name) for name in document["unchanged"]} | after
            table.pop(old, None)
            table[_text(key)] = row
    return {name: sorted(map(_text, table.values())) for name, table in tables.items()}


def rows_of(source: Database, *tables: str) -> dict[str, list[str]]:
    """The same of the source itself."""
    return {
        table: sorted(
            _text(parse(text))
            for (text,) in source.query(f"SELECT row_to_json(t)::text FROM {table} t")
        )
        for table in tables
    }


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=lambda number: number.digits)
