"""Documents -> events as pgstream's webhook notifier sends them: what wal2json says, with pgstream's ids.

    {"Data": {"action", "timestamp", "lsn", "schema", "table", "columns": [{"id", "name", "type", "value"}, …],
     "identity": […], "metadata": {"schema_id", "table_pgstream_id", "id_col_pgstream_id", "version_col_pgstream_id"}, "xid"}}

Ids are those of `inject:`, in the document's metadata; empty without it. Changes of tables are messages (`M`) whose content is
penstock's own document: it has what has changed, pgstream's has the statement.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from penstock.lsn import Lsn
from penstock.sinks.webhook.doc import Digits, json_text, time_of
from penstock.sql.type_names import type_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.sinks.webhook.doc import Doc

_ACTIONS = {"insert": "I", "read": "I", "update": "U", "delete": "D", "truncate": "T"}
_JSON, _JSONB, _TIMESTAMP, _TIMESTAMPTZ = 114, 3802, 1114, 1184


def pgstream_event(doc: Doc) -> str:
    """The body of a request."""
    parsed = json.loads(doc.value, parse_int=Digits, parse_float=Digits)
    event: dict[str, Any] = {
        "action": _ACTIONS.get(doc.op, "M"),
        "timestamp": _timestamp(doc.committed_at),
        "lsn": "0/0" if doc.op == "read" else str(Lsn(doc.commit_lsn)),
        "schema": doc.schema,
        "table": doc.table,
    }
    if event["action"] == "M":
        event |= {"prefix": "penstock.schema", "content": doc.value}
        return f'{{"Data":{json_text(event)}}}'
    types = _types(doc.types)
    injected = parsed.get("metadata") or {}
    ids = injected.get("column_ids") or {}
    event["columns"] = _columns(parsed.get("after"), types, ids)
    old = parsed.get("before") or (parsed["key"] if doc.op not in ("insert", "read") else None)
    event["identity"] = _columns(old, types, ids)
    event["metadata"] = {
        "schema_id": None,
        "table_pgstream_id": injected.get("table_id", ""),
        "id_col_pgstream_id": injected.get("identity"),
        "version_col_pgstream_id": "",  # the LSN is
    }
    if parsed.get("xid") is not None:
        event["xid"] = parsed["xid"]
    return f'{{"Data":{json_text(event)}}}'


@lru_cache(maxsize=256)
def _types(types: str | None) -> dict[str, tuple[int, str]]:
    return {
        name: (oid, type_name(oid, modifier) or (own[0] if own else ""))
        for name, oid, modifier, *own in json.loads(types or "[]")
    }


def _columns(
    values: Mapping[str, Any] | None, types: Mapping[str, tuple[int, str]], ids: Mapping[str, str]
) -> list[dict[str, Any]]:
    columns = []
    for name, value in (values or {}).items():
        oid, known = types.get(name, (0, ""))
        shown = _as_wal2json(value, oid)
        columns.append({"id": ids.get(name, ""), "name": name, "type": known, "value": shown})
    return columns


def _as_wal2json(value: Any, oid: int) -> Any:
    """Numbers and booleans as they are; everything else as Postgres's text."""
    if value is None:
        return None
    if oid in (_JSON, _JSONB):
        return json_text(value)
    if oid in (_TIMESTAMP, _TIMESTAMPTZ) and isinstance(value, str):
        return value.replace("T", " ", 1)
    return value


def _timestamp(microseconds: int | None) -> str:
    if microseconds is None:
        return ""
    return time_of(microseconds).strftime("%Y-%m-%d %H:%M:%S.%f+00")
