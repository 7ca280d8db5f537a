"""The NATS sink keeps the contract, on a real server."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from penstock.sinks.nats.kind import NatsKind
from penstock.sinks.nats.options import NatsOptions
from penstock.sinks.nats.sink import NatsSink
from penstock.testing import SinkContract

if TYPE_CHECKING:
    from pathlib import Path


class TestNats(SinkContract):
    @pytest.fixture(autouse=True)
    def _server(self, nats_server, monkeypatch) -> None:
        self.server = nats_server
        self._refused: set[tuple[str, str]] = set()
        known = NatsSink._too_large

        def too_large(sink: NatsSink, batch: Any) -> dict[str, str]:
            # A real server refuses by size alone: from here on all is as with that.
            found = known(sink, batch)
            for row in batch.to_pylist():
                if (row["table"], row["key"]) in self._refused:
                    found[row["id"]] = "the test does not want it"
            return found

        monkeypatch.setattr(NatsSink, "_too_large", too_large)

    def kind(self) -> NatsKind:
        return NatsKind()

    def options(self, directory: Path) -> NatsOptions:
        name = f"t{uuid.uuid4().hex[:12]}"
        return NatsOptions(url=self.server.url, subject=f"{name}.{{schema}}.{{table}}", stream=name)

    def delivered(self, options: NatsOptions) -> list[dict[str, Any]]:
        return self.server.documents(options.stream)

    def refuse(self, options: NatsOptions, key: int) -> bool:
        self._refused.add(("orders", f'{{"id":{key}}}'))
        return True

    def accept(self, options: NatsOptions) -> None:
        self._refused.clear()
