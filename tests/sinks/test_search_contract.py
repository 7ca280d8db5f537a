"""The search sink keeps the contract, on a real server."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from fix_search import ELASTICSEARCH_7, SearchServer
from penstock.embedded.search import OPENSEARCH_2
from penstock.lsn import Lsn
from penstock.sinks.search.kind import SearchKind
from penstock.sinks.search.options import SearchOptions
from penstock.sinks.search.sink import SearchSink
from penstock.testing import SinkContract

if TYPE_CHECKING:
    from pathlib import Path


class _SearchContract(SinkContract):
    is_exclusive = False  # who has stored a position that another has not seen is found out then
    shows_rows = True
    fault_points = (
        "search.between_requests",
        "documents.after_deliver",
        "deliver.after_job",
        "search.before_position",
        "search.after_position",
        "deliver.after_commit",
    )

    @pytest.fixture(autouse=True)
    def _server(self, server, monkeypatch) -> None:
        self.server = server
        self._refused: set[tuple[str, str]] = set()

        def refused(sink: SearchSink, batch: Any) -> dict[str, str]:
            # A real server refuses by fields, not by key: from here on all is as with those.
            return {
                row["id"]: "the test does not want it"
                for row in batch.to_pylist()
                if (row["table"], row["key"]) in self._refused
            }

        monkeypatch.setattr(SearchSink, "refused", refused)

    def refuse(self, options: SearchOptions, key: int) -> bool:
        self._refused.add(("orders", f'{{"id":{key}}}'))
        return True

    def accept(self, options: SearchOptions) -> None:
        self._refused.clear()

    def kind(self) -> SearchKind:
        return SearchKind()

    def options(self, directory: Path) -> SearchOptions:
        # What an earlier test has left in the index penstock is of another test's sink.
        self.server.call("DELETE", "/penstock")
        name = f"t{uuid.uuid4().hex[:12]}"
        return SearchOptions.model_validate(
            {"url": self.server.url, "index": f"{name}-{{schema}}-{{table}}"}
        )

    def delivered(self, options: SearchOptions) -> list[dict[str, Any]]:
        found = []
        for table in ("orders", "audit"):
            alias = options.index.replace("{schema}", "public").replace("{table}", table)
            found += [_document(table, each) for each in self.server.hits(alias)]
        return sorted(found, key=lambda one: (one["op"] != "read", one["place"]))


def _document(table: str, hit: dict[str, Any]) -> dict[str, Any]:
    """The change that a document is of, by its position."""
    lsn, ordinal = divmod(hit["_source"]["_position"], 128)
    assert hit["_version"] == hit["_source"]["_position"]
    one = {
        "id": f"shop:{Lsn(lsn)}:{ordinal}",
        "op": "change",
        "table": table,
        "key": {"id": hit["_source"]["id"]},
        "commit_lsn": str(Lsn(lsn)),
        "ordinal": ordinal,
        "place": (lsn, ordinal),
    }
    if hit["_source"]["note"] == "copied":
        number, row = divmod(hit["_source"]["id"] - 100, 3)
        at = number * (1 << 32) + row
        one |= {"op": "read", "id": f"shop:{Lsn(lsn)}:read:1c2d3e4f:16400:{at}", "place": (lsn, at)}
    return one


class TestOpenSearch(_SearchContract):
    kills_after = (2,)

    @pytest.fixture
    def server(self, opensearch) -> SearchServer:
        return opensearch


@pytest.fixture(scope="module", params=[OPENSEARCH_2, ELASTICSEARCH_7], ids=lambda one: one.name)
def other_server(request):
    with SearchServer(request.param).running() as server:
        yield server


@pytest.mark.long
class TestOtherServers(_SearchContract):
    @pytest.fixture
    def server(self, other_server) -> SearchServer:
        return other_server
