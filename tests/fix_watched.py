"""A run that is watched, without the run: status objects of the product's own, and a real server on loopback."""

from __future__ import annotations

import http.client
import json
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import BadValue, RowRefused
from penstock.listen import Address, ServerOptions, Token
from penstock.run.status import PipelineStatus, SourceStatus
from penstock.server.last_hour import LastHour
from penstock.server.serve import Server
from penstock.server.telemetry import Telemetry
from penstock.server.watched import Snapshot
from penstock.sinks.status import FlowStatus, SinkStatus, TableStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TOKEN = "a-token-of-the-tests-0123456789"

REFUSED = str(
    RowRefused(
        "public.orders key (id=981): null value in column customer_id",
        "sink warehouse",
        "fix the row at the target, then penstock tables shop.yml retry",
    )
)


def make_status(tables: dict[str, TableStatus] | None = None, **sink: Any) -> PipelineStatus:
    """A pipeline that streams one source into one sink."""
    flow = FlowStatus("0/2A00", 0, 0.0, 12_345, log_age_seconds=0.0)
    filled = SinkStatus(
        delivered_lsn="0/2A00",
        lag_bytes=0,
        lag_seconds=0.0,
        changes_delivered=12_345,
        sources={"shop": flow},
        tables=tables if tables is not None else {"public.orders": TableStatus()},
    )
    for name, value in sink.items():
        setattr(filled, name, value)
    source = SourceStatus(
        slot="penstock_shop_12345678",
        slot_active=True,
        current_lsn="0/2A00",
        received_lsn="0/2A00",
        durable_lsn="0/2A00",
        acknowledged_lsn="0/2900",
        retained_bytes=4096,
        wal_status="reserved",
        connected=True,
        reported_at=time.time(),
        transactions=77,
    )
    return PipelineStatus("shop", "streaming", {"shop": source}, {"warehouse": filled})


@dataclass
class ToyRun:
    """Implements `Watched` over a status that the test sets; remembers what was asked of it."""

    status: PipelineStatus | None = field(default_factory=make_status)
    name: str = "shop"
    log: str = "files"
    halves: frozenset[str] = frozenset({"capture", "deliver"})
    on_snapshot: Callable[[Snapshot], None] = lambda _: None
    on_error: Callable[[str, str], None] = lambda _part, _text: None
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)
    schema_versions: list[dict[str, Any]] = field(default_factory=list)
    subscribed: dict[str, Any] = field(default_factory=dict)
    version_number: int = 0
    at: float = 0.0

    def __post_init__(self) -> None:
        self.show(self.status)

    def show(self, status: PipelineStatus | None) -> None:
        """Make it the last snapshot."""
        self.status = status
        self.version_number += 1
        self.at = time.time()
        if status is not None:
            self.on_snapshot(Snapshot(status, self.version_number, self.at))

    def snapshot(self) -> Snapshot | None:
        return None if self.status is None else Snapshot(self.status, self.version_number, self.at)

    def hurry(self) -> None:
        pass

    def poll_again(self) -> None:
        self.asked.append(("look again",))

    def change_tables(self, action: str, names: Sequence[str], source: str | None) -> list[str]:
        self.asked.append((action, list(names), source))
        return [f"{name}: {action}" for name in names]

    def retry_tables(self, sink: str, names: Sequence[str], source: str | None) -> list[str]:
        self.asked.append(("retry", sink, list(names), source))
        return [f"{name}: is tried again now" for name in names]

    def pause(self, sink: str, *, is_paused: bool) -> str:
        if self.status is None or sink not in self.status.sinks:
            raise BadValue(f"no sink {sink!r}, wanted warehouse", "sink", "name a sink of the file")
        self.asked.append(("pause" if is_paused else "resume", sink))
        return f"sink {sink}: {'paused' if is_paused else 'goes on'}"

    def parked(
        self, sink: str | None, source: str | None, table: str | None, most: int
    ) -> tuple[int, list[dict[str, Any]]]:
        return len(self.entries), self.entries[:most]

    def change_parked(
        self,
        action: str,
        sink: str | None,
        source: str | None,
        table: str | None,
        ids: Sequence[str],
    ) -> int:
        self.asked.append((f"parked {action}", sink, source, table, list(ids)))
        return len(self.entries)

    def subscriptions(self) -> dict[str, Any]:
        return self.subscribed

    def versions(self, source: str | None, schema: str | None) -> list[dict[str, Any]]:
        return self.schema_versions

    def changes_of_version(self, source: str | None, schema: str, number: int) -> list[str]:
        return [f"{schema}.orders: column note added"]

    def version(self, source: str | None, schema: str, number: int) -> dict[str, Any]:
        return {"schema": schema, "version": number, "tables": []}


@dataclass(frozen=True)
class Answer:
    """What the server said."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Served:
    """A server on a free port of loopback."""

    run: ToyRun
    server: Server
    telemetry: Telemetry
    history: LastHour

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def port(self) -> int:
        return int(self.url.rstrip("/").rpartition(":")[2])

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """One request over a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        content = None if body is None else json.dumps(body)
        if content is not None:
            sent.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, content, sent)
            found = connection.getresponse()
            named = {name.lower(): value for name, value in found.getheaders()}
            return Answer(found.status, named, found.read())
        finally:
            connection.close()


@contextmanager
def served(run: ToyRun, *, token: str | None = TOKEN, host: str = "127.0.0.1") -> Iterator[Served]:
    """Serve a run for as long as the block lasts."""
    options = ServerOptions(Address(host, 0), Token(token) if token is not None else None)
    telemetry = Telemetry(run.name, "1.2.3", run.snapshot, is_alone=True, halves=run.halves)
    history = LastHour()

    def take(snapshot: Snapshot) -> None:
        telemetry.counts.take(snapshot)
        history.take(snapshot)

    run.on_snapshot = take
    server = Server(run, options, telemetry, history)
    server.start()
    try:
        yield Served(run, server, telemetry, history)
    finally:
        server.stop()
        telemetry.close()


@pytest.fixture
def toy_run() -> ToyRun:
    return ToyRun()


@pytest.fixture
def toy_server(toy_run: ToyRun) -> Iterator[Served]:
    with served(toy_run) as found:
        yield found
