"""The kind `nats`: documents as messages of a JetStream stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.extras import require_package
from penstock.sinks.documents.contract import DocumentKind
from penstock.sinks.nats.options import NatsOptions, plain_name

if TYPE_CHECKING:
    from penstock.sinks.kind import SinkPlace
    from penstock.sinks.nats.sink import NatsSink

_USUAL_PORT = 4222


class NatsKind(DocumentKind[NatsOptions]):
    """Messages of JetStream."""

    name = "nats"
    options = NatsOptions

    def alone_at(self, options: NatsOptions, pipeline: str) -> frozenset[str]:
        """A stream drops what has the id of another message, and documents have the same ids at all sinks."""
        stream = options.stream or plain_name(pipeline)
        # Other logins may be other accounts, with streams of their own.
        login = next(
            (f", for {each}" for each in (options.credentials, options.nkey, options.user) if each),
            "",
        )
        return frozenset(f"stream {stream} of {_server(url)}{login}" for url in options.url)

    def sink(self, place: SinkPlace[NatsOptions]) -> NatsSink:
        """The sink, unopened.

        Raises:
            PackageMissing: the extra is not installed.
        """
        require_package("nats", "nats", f"sink {place.name}")
        from penstock.sinks.nats.sink import NatsSink

        return NatsSink(place)


def _server(url: str) -> str:
    """Host and port, however they are written."""
    address = url.partition("://")[2].lower()
    return address if address.rpartition(":")[2].isdecimal() else f"{address}:{_USUAL_PORT}"
