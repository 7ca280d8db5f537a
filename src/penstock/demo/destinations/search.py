"""An OpenSearch node, and somebody who searches it."""

from __future__ import annotations

import http.client
import json
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.demo.destinations import Destination
from penstock.demo.keeper import as_written, read_exactly
from penstock.demo.shop import TABLES
from penstock.embedded.search import EmbeddedSearch, newest_version, search_jars
from penstock.errors import EmbeddedServerFailed, SidesDiffer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_KEYS = {
    "customers": ("id",),
    "products": ("sku",),
    "orders": ("id",),
    "order_items": ("order_id", "line"),
}
# Columns of JSON, which documents have as text.
_JSON = {"customers": ("preferences",)}
_PAGE = 1000
_NOT_FOUND = 404


class Demonstrated(Destination):
    """One node; an index for each table."""

    title = "an OpenSearch node"
    reader = "index"
    pipeline: ClassVar[str] = """\
name: shop
state: ./shop-state                 # the log; the position is in the index penstock
source:
  url: ${SHOP_URL}
  tables: ["public.*"]
sinks:
  find:
    kind: search
    url: ${SEARCH_URL}
    index: "{schema}-{table}"
    replicas: 0                     # one node has no room for any
"""
    exports = "export SEARCH_URL=http://search-1:9200\n"
    page = "docs/howto/search.md"

    def __init__(self) -> None:
        self._server: EmbeddedSearch | None = None
        # Of each table, as it was read last.
        self._document_counts: dict[str, int] = {}
        self._statuses: Counter[str] = Counter()
        self._faults: dict[str, list[str]] = {}

    def require(self) -> None:
        """See Destination."""
        search_jars(newest_version())

    def start(self, home: Path) -> str:
        """See Destination."""
        self._server = EmbeddedSearch(home / "search")
        self._server.start()
        _, _, version = self._server.node.version.name.partition("-")
        return f"an OpenSearch {version} node on port {self._server.node.port}"

    @property
    def variables(self) -> Mapping[str, str]:
        """See Destination."""
        assert self._server is not None
        return {"SEARCH_URL": self._server.node.url}

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        """What is answered, None where there is no such index."""
        assert self._server is not None
        try:
            status, content = self._server.node.call(method, path, body)
        except (OSError, http.client.HTTPException) as error:
            status, content = 0, type(error).__name__.encode()
        if status == _NOT_FOUND:
            return None
        if status != http.client.OK:
            raise EmbeddedServerFailed(
                f"OpenSearch answers {status or content.decode()}",
                f"{method} {path}",
                "try again, and report it if it stays",
            )
        return read_exactly(content)

    def row_counts(self) -> dict[str, int]:
        """See Destination."""
        found = {table: self._ask("GET", f"/public-{table}/_count") for table in TABLES}
        return {table: int(each["count"]) for table, each in found.items() if each is not None}

    def rows(self, table: str) -> list[str]:
        """See Destination."""
        found = []
        self._faults[table] = []
        if table == "orders":
            self._statuses.clear()
        for hit in self._hits(f"public-{table}"):
            row = hit["_source"]
            self._check(table, hit, row.pop("_position", None))
            for name in _JSON.get(table, ()):
                row[name] = read_exactly(row[name])
            if table == "orders":
                self._statuses[row["status"]] += 1
            found.append(as_written(row))
        self._document_counts[table] = len(found)
        return found

    def _hits(self, alias: str) -> Iterator[Any]:
        """Every document that a search finds, page by page."""
        if self._ask("POST", f"/{alias}/_refresh") is None:
            return
        query = {"size": _PAGE, "version": True, "sort": ["_doc"], "query": {"match_all": {}}}
        page = self._ask("POST", f"/{alias}/_search?scroll=1m", query)
        while page["hits"]["hits"]:
            yield from page["hits"]["hits"]
            more = {"scroll": "1m", "scroll_id": page["_scroll_id"]}
            page = self._ask("POST", "/_search/scroll", more)
        self._ask("DELETE", "/_search/scroll", {"scroll_id": page["_scroll_id"]})

    def _check(self, table: str, hit: dict[str, Any], position: Any) -> None:
        key = ",".join(str(hit["_source"].get(name)) for name in _KEYS[table])
        if hit["_id"] != key:
            self._faults[table].append(f"a document of {table} is not under the key of its row")
        if hit["_version"] != position:
            self._faults[table].append(f"a document of {table} has another version than its change")

    def prove(self) -> Sequence[str]:
        """See Destination."""
        faults = [each for found in self._faults.values() for each in found]
        for status, count in self._statuses.items():
            query = {"query": {"term": {"status": status}}}
            found = int(self._ask("POST", "/public-orders/_count", query)["count"])
            if found != count:
                what = f"a search for {json.dumps(status)} finds {found} orders, wanted {count}"
                faults.append(what)
        if faults:
            what = f"{len(faults)} faults, the first: {faults[0]}"
            raise SidesDiffer(what, "index", "keep this output and report it")
        counts = ", ".join(f"{count:,} {status}" for status, count in self._statuses.most_common())
        line = (
            f"{sum(self._document_counts.values()):,} documents, each under its row's key and its last change's version;"
            f"\n  searched by status, orders are {counts}"
        )
        return [line]

    def close(self) -> None:
        """See Destination."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
