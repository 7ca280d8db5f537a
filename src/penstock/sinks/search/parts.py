"""What both halves of a sink are made of, for one process: client, indexes, store."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import DestinationRefuses, SinkTooOld
from penstock.sinks.search.bulk import Bulk
from penstock.sinks.search.client import given_back, taken
from penstock.sinks.search.indexes import Indexes
from penstock.sinks.search.names import Names
from penstock.sinks.search.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.sinks.kind import SinkPlace
    from penstock.sinks.search.client import Client
    from penstock.sinks.search.options import SearchOptions
    from penstock.table import TableName

_OLDEST = {"opensearch": (2, 0), "elasticsearch": (7, 10)}
_engines: dict[str, str] = {}


@dataclass
class Parts:
    """Of one sink and source."""

    place: SinkPlace[SearchOptions]
    client: Client
    indexes: Indexes
    store: Store
    bulk: Bulk
    names: Names

    @property
    def engine(self) -> str:
        """opensearch or elasticsearch, as the server says; asked once.

        Raises:
            SinkTooOld: it is of a version that lacks what penstock needs.
            DestinationRefuses: it is another kind of server.
        """
        url = self.place.options.url
        if url not in _engines:
            _engines[url] = self._ask_engine()
        return _engines[url]

    def _ask_engine(self) -> str:
        answer = self.client.ask("GET", "/").content
        told = answer.get("version") if isinstance(answer, dict) else None
        if not isinstance(told, dict) or "number" not in told:
            raise DestinationRefuses(
                "what answers there is neither OpenSearch nor Elasticsearch",
                f"{self.client.where} at {self.place.options.url}",
                "see host, port and path of url",
            )
        engine = str(told.get("distribution", "elasticsearch"))
        number = str(told["number"])
        found = tuple(int(each) for each in number.split(".")[:2] if each.isdigit())
        oldest = _OLDEST.get(engine, _OLDEST["elasticsearch"])
        if found < oldest:
            raise SinkTooOld(
                f"{engine} {number}, wanted {oldest[0]}.{oldest[1]} or later",
                self.client.where,
                "upgrade the server",
            )
        return engine

    def alias(self, table: TableName) -> str:
        """What a table of the source is searched as."""
        return self.names.alias(self.place.routes.of(table) or table)


# By sink: what this process knows of its indexes.
_known: dict[tuple[str, ...], dict[str, set[str]]] = {}


def make_parts(place: SinkPlace[SearchOptions]) -> Parts:
    """The parts, with connections that lie idle in this process."""
    options = place.options
    where = f"sink {place.name}"
    client = taken(options, where)
    owner = {"pipeline": place.pipeline, "source": place.source_id, "sink": place.name}
    known = _known.setdefault((options.url, *owner.values()), {})
    store = Store(client, place.pipeline, place.source_id, place.name)
    return Parts(
        place,
        client,
        Indexes(client, options, owner, store, known),
        store,
        Bulk(client, options.bulk_bytes, options.concurrency),
        Names(options.index, place.pipeline, place.source_id),
    )


@contextmanager
def parts_of(place: SinkPlace[SearchOptions]) -> Iterator[Parts]:
    """The parts, for a moment."""
    parts = make_parts(place)
    try:
        yield parts
    except BaseException:
        parts.client.close()
        raise
    given_back(place.options, parts.client)


def ask_for_copy(
    place: SinkPlace[SearchOptions], table: TableName, former: TableName | None = None
) -> bool:
    """Have a table copied anew; whether it will be. The request is durable, and done after what runs now.

    `former`: what it was called before the batch that is under way.
    """
    from penstock.sinks.documents.workspace import copying_of
    from penstock.sinks.search.kind import SearchKind

    copying = copying_of(SearchKind(), place)
    if table in copying.asked():
        return True
    return copying.ask_under({table, former or table})
