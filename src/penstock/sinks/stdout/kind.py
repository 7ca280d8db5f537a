"""The kind `stdout`: documents on standard output. Its position lies in the state directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.sinks.documents.contract import DocumentKind
from penstock.sinks.stdout.options import StdoutOptions

if TYPE_CHECKING:
    from penstock.sinks.kind import SinkPlace
    from penstock.sinks.stdout.sink import StdoutSink


class StdoutKind(DocumentKind[StdoutOptions]):
    """Documents that are printed."""

    name = "stdout"
    options = StdoutOptions

    def sink(self, place: SinkPlace[StdoutOptions]) -> StdoutSink:
        """The sink, unopened."""
        from penstock.sinks.stdout.sink import StdoutSink

        return StdoutSink(place.name)
