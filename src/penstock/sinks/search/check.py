"""What stands in the way of a search sink, for `penstock check`. Changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.sinks.search.parts import Parts


def findings(parts: Parts) -> Iterator[Finding]:
    """Whether the server answers us, is new enough, and has its shards."""
    try:
        _ = parts.engine
        health = parts.client.ask("GET", "/_cluster/health").content
        if health.get("status") == "red":
            yield Finding(parts.client.unavailable("the cluster is red: shards are not there"))
        settings = parts.client.ask("GET", "/_cluster/settings?flat_settings=true").content
        for scope in ("persistent", "transient"):
            if str(settings.get(scope, {}).get("cluster.blocks.read_only", "")) == "true":
                yield Finding(parts.client.read_only("cluster.blocks.read_only is set"))
    except PenstockError as error:
        yield Finding(error)
