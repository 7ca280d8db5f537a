"""The index `penstock`: how far sinks have got, and how their tables changed.

    position of a sink   `_id` <pipeline>.<source>.<sink>: `state`, opaque
    a schema             `_id` <that of its sink>.schema:<schema>:<version>: id, version, schema_name, schema (all of it, JSON
                         as text), created_at, acked; `state` is the position from which on it was so
    a change of a table  `_id` <that of its sink>:<that of its document>: id, table_name, created_at, acked, `state` (what
                         has changed, JSON as text); and whose it is: each sink on the server follows it by itself
    an index of a table  `_id` <that of its sink>.index:<oid of the table>: `state` is the index that it had last. Where
                         it is gone, somebody has removed it.
    indexes to remove    `_id` <that of its sink>.retired: `state` is a list (JSON); others have their place, and they go soon

A position is written only over the one that was read or written last: a second process that delivers is found out.
"""

from __future__ import annotations

import json
import logging
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penstock.errors import DestinationRefuses, SecondInstance
from penstock.lsn import Lsn
from penstock.sinks.search.client import CONFLICT, NOT_FOUND
from penstock.sinks.search.indexes import EXISTS, quoted
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.sinks.describe import WholeSchema
    from penstock.sinks.search.client import Answer, Client

_log = logging.getLogger(__name__)

INDEX = "penstock"
KEPT_SCHEMAS = 100  # versions of each, as many as the source keeps
_REFUSED = 400
_MOST_HITS = 10_000  # that a server gives at once
_KEYWORD = {"type": "keyword"}
_MAPPING: dict[str, Any] = {
    "settings": {"index": {"number_of_shards": 1, "auto_expand_replicas": "0-1"}},
    "mappings": {
        "dynamic": "strict",
        "properties": {
            "id": _KEYWORD,
            "version": {"type": "long"},
            "pipeline": _KEYWORD,
            "source": _KEYWORD,
            "sink": _KEYWORD,
            "schema_name": _KEYWORD,
            "table_name": _KEYWORD,
            "schema": {"type": "text"},
            "created_at": {"type": "date"},
            "acked": {"type": "boolean"},
            "state": {"type": "keyword", "index": False, "doc_values": False},
            "shared_by": _KEYWORD,
            "writer": _KEYWORD,
        },
    },
}


class Store:
    """What is kept there of one sink and source."""

    def __init__(self, client: Client, pipeline: str, source: str, sink: str) -> None:
        self._client = client
        self._owner = {"pipeline": pipeline, "source": source, "sink": sink}
        self._id = f"{pipeline}.{source}.{sink}"
        self._writer = uuid.uuid4().hex
        self._last_writer: str | None = None
        self._seen: tuple[int, int] | None = None

    def open(self) -> str | None:
        """Make the index where it is missing; the state that was stored last.

        Raises:
            DestinationRefuses: there is an index of the name that is somebody else's.
        """
        self._make()
        answer = self._client.ask("GET", f"/{INDEX}/_mapping")
        for content in answer.content.values():
            has = content.get("mappings", {}).get("properties", {})
            wanted = _MAPPING["mappings"]["properties"]
            if any(has.get(name, {}).get("type") != each["type"] for name, each in wanted.items()):
                raise DestinationRefuses(
                    f"index {INDEX} was not made by penstock, which keeps positions under that name",
                    self._client.where,
                    "have it under another name, or remove it",
                )
        return self.read()

    def _make(self) -> None:
        """Make the index where it is missing: the server itself would, with fields of its own choosing."""
        answer = self._client.ask("HEAD", f"/{INDEX}", None, NOT_FOUND)
        if answer.status == NOT_FOUND:
            answer = self._client.ask("PUT", f"/{INDEX}", _MAPPING, _REFUSED)
            if (
                answer.status == _REFUSED and answer.error_type != EXISTS
            ):  # else somebody was quicker
                raise self._client.explained(answer, f"making index {INDEX}")

    def _put(self, path: str, body: Any) -> None:
        """Write a document; somebody may have removed the index."""
        self._make()
        self._client.ask("PUT", path, body)

    def read(self) -> str | None:
        """The state, None where there is none."""
        answer = self._client.ask("GET", f"/{INDEX}/_doc/{quoted(self._id)}", None, NOT_FOUND)
        self._seen = None
        if answer.status == NOT_FOUND:
            return None
        self._seen = answer.content["_seq_no"], answer.content["_primary_term"]
        self._last_writer = answer.content["_source"].get("writer")
        return str(answer.content["_source"]["state"])

    def write(self, state: str) -> None:
        """Store the state over the one that was seen last; anew where somebody has removed that.

        Raises:
            SecondInstance: somebody else has stored one since.
        """
        answer = self._write(state)
        if answer.status in (CONFLICT, NOT_FOUND):
            seen, stored = self._seen, self.read()
            if stored == state and self._last_writer == self._writer:
                return  # the write was repeated, since its answer got lost
            if stored is not None or seen is None:
                self._seen = seen
                raise self._second()
            _log.warning("somebody has removed the position from index %s: stored anew", INDEX)
            answer = self._write(state)
        if answer.status == CONFLICT:
            raise self._second()
        self._seen = answer.content["_seq_no"], answer.content["_primary_term"]

    def _write(self, state: str) -> Answer:
        if self._seen is None:
            self._make()
            condition = "op_type=create"
        else:
            condition = f"if_seq_no={self._seen[0]}&if_primary_term={self._seen[1]}"
        path = f"/{INDEX}/_doc/{quoted(self._id)}?{condition}"
        body = {**self._owner, "id": self._id, "state": state, "writer": self._writer}
        return self._client.ask("PUT", path, body, CONFLICT, NOT_FOUND)

    def _second(self) -> SecondInstance:
        return SecondInstance(
            "another process has stored a position there meanwhile",
            self._client.where,
            "stop the other penstock that delivers this pipeline, and start again",
        )

    def forget(self) -> bool:
        """Remove what there is of the sink, and the index with the last of all sinks; whether there was anything."""
        own = [{"term": {name: value}} for name, value in self._owner.items()]
        is_there = False
        while ids := self._search({"bool": {"filter": own}}):
            is_there = True
            for one in ids:
                path = f"/{INDEX}/_doc/{quoted(one)}"
                self._client.ask("DELETE", path, None, NOT_FOUND)
        if is_there and not self._search({"exists": {"field": "sink"}}):
            self._client.ask("DELETE", f"/{INDEX}", None, NOT_FOUND)
        return is_there

    def _search(self, query: dict[str, Any]) -> list[str]:
        """Ids of documents of the index; some, where there are many."""
        if self._client.ask("POST", f"/{INDEX}/_refresh", None, NOT_FOUND).status == NOT_FOUND:
            return []
        path = f"/{INDEX}/_search?allow_partial_search_results=false"
        body = {"size": 1000, "query": query, "_source": False}
        answer = self._client.ask("POST", path, body)
        return [each["_id"] for each in answer.content["hits"]["hits"]]

    # --- changes of tables ---------------------------------------------------------------------

    def _logged(self, document: str) -> str:
        return f"/{INDEX}/_doc/{quoted(f'{self._id}:{document}')}"

    def is_logged(self, document: str, *, is_done: bool = False) -> bool:
        """Whether the sink has begun with a change of a table; or, `is_done`, has dealt with it."""
        answer = self._client.ask("GET", self._logged(document), None, NOT_FOUND)
        if answer.status == NOT_FOUND:
            return False
        return bool(answer.content["_source"]["acked"]) or not is_done

    def log(self, change: dict[str, Any], *, is_done: bool) -> None:
        """Keep a change of a table, that the sink has dealt with it or is about to."""
        body = {
            **self._owner,
            "id": change["id"],
            "table_name": str(TableName(change["schema"], change["table"])),
            "state": json.dumps(change.get("difference", []), ensure_ascii=False),
            "created_at": change["committed_at"],
            "acked": is_done,
        }
        self._put(self._logged(change["id"]), body)

    # --- schemas -------------------------------------------------------------------------------

    def keep_schema(self, schema: WholeSchema, lsn: Lsn) -> None:
        """Have a schema as it is at a position as its last version; nothing where it is that already.

        The number is the source's, where it counts; else ours, one more than the last. May be repeated.
        """
        last = self._last_schema(schema.name)
        text = json.dumps(schema.content, ensure_ascii=False)
        number = schema.version or 0
        if last is not None:
            last_lsn = Lsn.parse(last["state"])
            if last_lsn > lsn or (last["schema"] == text and last["version"] >= number):
                return
            # The same transaction again; or the same version, of which the sink has other tables by now.
            is_same = last_lsn == lsn or last["version"] == number
            number = max(number, last["version"] + (not is_same))
        number = number or 1
        body = {
            **self._owner,
            "id": f"{schema.name}:{number}",
            "version": number,
            "schema_name": schema.name,
            "schema": text,
            "created_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "acked": True,
            "state": str(lsn),
        }
        self._put(self._schema(schema.name, number), body)
        if number > KEPT_SCHEMAS:
            self._client.ask(
                "DELETE", self._schema(schema.name, number - KEPT_SCHEMAS), None, NOT_FOUND
            )

    def _schema(self, schema: str, version: int) -> str:
        return f"/{INDEX}/_doc/{quoted(f'{self._id}.schema:{schema}:{version}')}"

    def _last_schema(self, schema: str) -> dict[str, Any] | None:
        """The last version that is kept of a schema."""
        if self._client.ask("POST", f"/{INDEX}/_refresh", None, NOT_FOUND).status == NOT_FOUND:
            return None
        own = {**self._owner, "schema_name": schema}
        body = {
            "size": 1,
            "query": {
                "bool": {
                    "filter": [{"term": {name: value}} for name, value in own.items()],
                    # Changes of tables had the schema's name, too, and may still be there.
                    "must_not": [{"exists": {"field": "table_name"}}],
                }
            },
            "sort": [{"version": "desc"}],
            "_source": ["schema", "state", "version"],
        }
        path = f"/{INDEX}/_search?allow_partial_search_results=false"
        hits = self._client.ask("POST", path, body).content["hits"]["hits"]
        return hits[0]["_source"] if hits else None

    # --- indexes -------------------------------------------------------------------------------

    def _index(self, oid: int | str) -> str:
        return f"{self._id}.index:{oid}"

    def index(self, oid: int) -> str | None:
        """The index that a table had last, there or not."""
        path = f"/{INDEX}/_doc/{quoted(self._index(oid))}"
        answer = self._client.ask("GET", path, None, NOT_FOUND)
        return None if answer.status == NOT_FOUND else str(answer.content["_source"]["state"])

    def indexes(self) -> list[str]:
        """The indexes that tables had last, there or not."""
        self._client.ask("POST", f"/{INDEX}/_refresh")
        own = [{"term": {name: value}} for name, value in self._owner.items()]
        body = {
            "size": _MOST_HITS,
            "query": {"bool": {"filter": [*own, {"prefix": {"id": self._index("")}}]}},
            "_source": ["state"],
        }
        path = f"/{INDEX}/_search?allow_partial_search_results=false"
        hits = self._client.ask("POST", path, body).content["hits"]["hits"]
        return sorted(each["_source"]["state"] for each in hits)

    def keep_index(self, oid: int, index: str) -> None:
        """Know that a table has an index."""
        one = self._index(oid)
        body = {**self._owner, "id": one, "state": index}
        self._put(f"/{INDEX}/_doc/{quoted(one)}", body)

    def where_index(self, oid: int) -> str:
        """Where that stands, for people."""
        return f"/{INDEX}/_doc/{quoted(self._index(oid))}"

    @property
    def _retired(self) -> str:
        return f"/{INDEX}/_doc/{quoted(self._id + '.retired')}"

    def retired(self) -> list[str]:
        """Indexes that are to be removed."""
        answer = self._client.ask("GET", self._retired, None, NOT_FOUND)
        if answer.status == NOT_FOUND:
            return []
        return [str(each) for each in json.loads(answer.content["_source"]["state"])]

    def keep_retired(self, indexes: Collection[str]) -> None:
        """Know of them until they are removed: who has to may be killed."""
        if not indexes:
            self._client.ask("DELETE", self._retired, None, NOT_FOUND)
            return
        body = {**self._owner, "id": f"{self._id}.retired", "state": json.dumps(sorted(indexes))}
        self._put(self._retired, body)

    # --- how keys are shared out ---------------------------------------------------------------

    @property
    def _sharing(self) -> str:
        return f"/{INDEX}/_doc/{quoted(self._id + '.sharing')}"

    def shared_by_table(self) -> bool:
        """Whether all rows of a table are to be one task's."""
        return self._client.ask("GET", self._sharing, None, NOT_FOUND).status != NOT_FOUND

    def share_by_table(self) -> None:
        """Have it so from the next batch on."""
        self._put(self._sharing, {"id": f"{self._id}.sharing", "shared_by": "table"})

    def forget_sharing(self) -> None:
        """Have it as ever."""
        self._client.ask("DELETE", self._sharing, None, NOT_FOUND)
