"""The kind `search`: rows as documents of OpenSearch or Elasticsearch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import DestinationRefuses
from penstock.sinks.documents.contract import DocumentKind
from penstock.sinks.search.options import SearchOptions

if TYPE_CHECKING:
    from penstock.sinks.documents.contract import DocumentSink
    from penstock.sinks.documents.format import DocumentFormat
    from penstock.sinks.kind import SinkPlace


class SearchKind(DocumentKind[SearchOptions]):
    """Documents of indexes."""

    name = "search"
    options = SearchOptions
    needs_ids = True
    worker_modules = ("penstock.sinks.documents.worker", "penstock.sinks.search.format")

    def sink(self, place: SinkPlace[SearchOptions]) -> DocumentSink:
        """The sink, unopened.

        Raises:
            DestinationRefuses: several sources would share indexes.
        """
        from penstock.sinks.search.sink import SearchSink

        if not place.is_alone and "{source}" not in place.options.index:
            raise DestinationRefuses(
                "several sources, and index: does not say which one a document is of",
                f"sink {place.name}",
                "write {source} into index:",
            )
        return SearchSink(place)

    def format(self, place: SinkPlace[SearchOptions]) -> DocumentFormat:
        """The rows themselves."""
        from penstock.sinks.search.format import SearchFormat

        return SearchFormat(place)
