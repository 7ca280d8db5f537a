"""A backlog of inserts into a search server, beside a bare bulk loader that has the same documents ready in memory.

The loader sends requests of the same size, as many at once as one task of penstock's, to an index of the same mapping, with the same versions; its bodies are
made before the clock starts, so that it costs less than any client's own helper.
"""

from __future__ import annotations

import http.client
import json
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Any

from bench.brokers import Bare, Broker, BrokerBacklog, write
from bench.brokers import started as started_servers
from bench.failure import BenchFailed

if TYPE_CHECKING:
    from bench.processes import Meter
    from bench.servers import Pair
    from bench.workload import Result

_BULK_BYTES = 4_000_000
_CONCURRENCY = 2
_FIRST_VERSION = 1 << 40
_DOCUMENTS = """
SELECT '{"index":{"_id":"' || id || '","version":' || %(first)s + id || ',"version_type":"external_gte"}}'
  || E'\n' || row_to_json(o)::text || E'\n'
FROM (
  SELECT id, customer_id, status, total, note, created_at, meta::text AS meta, %(first)s + id AS _position
  FROM orders
) o ORDER BY id
"""


@cache
def server() -> Any:
    """One server for all figures, with a compiler that is warm."""
    from fix_search import OPENSEARCH_3, SearchServer

    made = SearchServer(OPENSEARCH_3, jvm=("-Xms1g", "-Xmx1g"))
    return started_servers.enter_context(made.running())


def _mapping() -> dict[str, Any]:
    """What penstock makes of the table."""
    from penstock.sinks.search.mapping import Mapper
    from penstock.sinks.search.options import SearchOptions
    from penstock.testing import table

    columns = {"id": "int8", "customer_id": "int4", "status": "text", "note": "text"}
    described = table(1, "orders", {**columns, "created_at": "timestamptz", "meta": "jsonb"})
    mapper = Mapper.of(SearchOptions(url="http://localhost"))
    properties = mapper.properties(described, "opensearch")
    properties["total"] = {"type": "scaled_float", "scaling_factor": 100.0}
    return {"mappings": {"dynamic": "strict", "properties": properties}}


class BareBulk(Bare):
    """Bodies in memory, and nothing to do but to send them."""

    def documents(self) -> list[Any]:
        """The rows of the source as parts of bulk requests."""
        rows = self._pair.source.execute(_DOCUMENTS, {"first": _FIRST_VERSION}).fetchall()
        return [text.encode() for (text,) in rows]

    def seconds_for(self, records: list[Any], meter: Meter | None = None) -> float:
        """Send everything; how long the requests took, and nothing beside them."""
        index = f"bare-{uuid.uuid4().hex[:8]}"
        server().must("PUT", f"/{index}", _mapping())
        bodies = _bodies(records)
        with ExitStack() as metered, ThreadPoolExecutor(_CONCURRENCY) as pool:
            if meter is not None:
                metered.enter_context(meter)
            began = time.perf_counter()
            list(pool.map(lambda body: self._send(index, body), bodies))
            seconds = time.perf_counter() - began
        server().must("POST", f"/{index}/_refresh")
        count = server().must("GET", f"/{index}/_count")["count"]
        server().must("DELETE", f"/{index}")
        if count != len(records):
            raise BenchFailed(f"bare: {count:,} documents, wanted {len(records):,}")
        return seconds

    def _send(self, index: str, body: bytes) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server().port, timeout=120)
        headers = {"Content-Type": "application/x-ndjson"}
        path = f"/{index}/_bulk?filter_path=errors"
        connection.request("POST", path, body, headers)
        answer = json.loads(connection.getresponse().read())
        connection.close()
        if answer.get("errors"):
            raise BenchFailed("bare: documents are refused")


def _bodies(records: list[bytes]) -> list[bytes]:
    """Requests of about as many bytes as penstock's."""
    bodies: list[bytes] = []
    some: list[bytes] = []
    size = 0
    for each in records:
        if size + len(each) > _BULK_BYTES:
            bodies.append(b"".join(some))
            some, size = [], 0
        some.append(each)
        size += len(each)
    return [*bodies, b"".join(some)]


class IntoSearch(Broker):
    """penstock with a search server."""

    def sink(self) -> dict[str, Any]:
        """See Broker."""
        server().call("DELETE", "/penstock")
        self.alias = f"ours-{uuid.uuid4().hex[:8]}-public-orders"
        return {
            "kind": "search",
            "url": server().url,
            "index": self.alias.replace("public", "{schema}").replace("orders", "{table}"),
            "bulk_bytes": _BULK_BYTES,
            "concurrency": _CONCURRENCY,
        }


class Search(BrokerBacklog):
    """A backlog, one document for each row."""

    name = "search"
    required = "≥ 0.8 of a bare bulk loader with the same documents and request sizes"
    least_ratio = 0.8
    systems = (BareBulk, IntoSearch)

    @property
    def count(self) -> int:
        """How many rows."""
        return self.sizes.count(500_000, 1000)

    def server(self) -> Any:
        """See BrokerBacklog."""
        return server()

    @property
    def title(self) -> str:
        """See Workload."""
        return f"backlog of {self.count:,} inserts into OpenSearch"

    def measure(self, pair: Pair, system: Any) -> Result:
        """See Workload."""
        if isinstance(system, BareBulk):
            write(pair, "CALL bench_inserts(%s, 1000)", self.count)
            records = system.documents()
            system.seconds_for(records)
            meter = self.meter_bare(pair)
            return self.of_bare(system.name, system.seconds_for(records, meter), meter)
        result = super().measure(pair, system)
        if isinstance(system, IntoSearch):
            server().must("POST", f"/{system.alias}/_refresh")
            found = server().must("GET", f"/{system.alias}/_count")["count"]
            if found != self.count:
                raise BenchFailed(f"penstock: {found:,} documents, wanted {self.count:,}")
            server().must("DELETE", f"/{system.alias}.1")
            time.sleep(1)  # segments that are merged for nobody
        return result

    def warm_up(self, pair: Pair, system: Any) -> None:
        """See BrokerBacklog."""
        super().warm_up(pair, system)
        server().must("DELETE", f"/{system.alias.replace('orders', 'warm')}.1")
        time.sleep(1)
