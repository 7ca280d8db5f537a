"""A receiver of webhooks on a real socket, that answers from a script and remembers what it was sent."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.encryption import NO_KEYS, Keyring
from penstock.lsn import Lsn
from penstock.sink import SinkPlace
from penstock.sinks.webhook.options import WebhookOptions
from penstock.sinks.webhook.sink import WebhookSink
from penstock.sinks.webhook.store import Store, store_of
from penstock.sinks.webhook.subscriptions import WebhookSubscriptions
from penstock.sinks.webhook.typed import TYPED

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator
    from pathlib import Path


@dataclass
class Request:
    """One request. Names of headers are lower case."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: float
    connection: int  # a number for each
    status: int = 0  # what it was answered

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Reply:
    """What to answer: `resets` hangs up instead, `holds` waits until the receiver is released.

    Of the body `breaks` sends the beginning alone, and hangs up; `never_ends` the same, and does not.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0
    resets: bool = False
    holds: bool = False
    breaks: bool = False
    never_ends: bool = False


class Receiver:
    """Answers `reply` (a Reply, or a function of the request), or what `script` says next."""

    def __init__(self, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        self.requests: list[Request] = []
        self.script: deque[Reply] = deque()
        self.reply: Reply | Callable[[Request], Reply] = Reply()
        self.connections = 0
        self.in_flight = 0
        self.most_in_flight = 0
        self._tls = tls
        self._news = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._released = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port = port
        self._call(self._listen(port))

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/hook"

    def url_of(self, path: str) -> str:
        return self.url.replace("/hook", path)

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self, port: int) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        serving = self._loop.create_task(self._serve(reader, writer))
        serving.add_done_callback(lambda _: self._writers.discard(writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection = self.connections
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {}
                for line in head[1:]:
                    name, _, value = line.partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                path = head[0].split(" ")[1]
                request = Request(path, headers, body, time.monotonic(), connection)
                self.in_flight += 1
                self.most_in_flight = max(self.most_in_flight, self.in_flight)
                try:
                    is_open = await self._answer(request, writer)
                finally:
                    self.in_flight -= 1
                if not is_open:
                    return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        if self.script:
            reply = self.script.popleft()
        else:
            reply = self.reply if isinstance(self.reply, Reply) else self.reply(request)
        if reply.seconds:
            await asyncio.sleep(reply.seconds)
        if reply.holds:
            await self._released.wait()
        request.status = 0 if reply.resets else reply.status
        with self._news:
            self.requests.append(request)
            self._news.notify_all()
        if reply.resets:
            writer.transport.abort()
            return False
        size = len(reply.body) + (1000 if reply.breaks or reply.never_ends else 0)
        lines = [f"HTTP/1.1 {reply.status} X", f"content-length: {size}"]
        lines += [f"{name}: {value}" for name, value in reply.headers.items()]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + reply.body)
        await writer.drain()
        return not reply.breaks

    def release(self) -> None:
        self._loop.call_soon_threadsafe(self._released.set)

    def wait_for(self, is_there: Callable[[], Any], seconds: float = 30.0) -> None:
        """Wait until something holds, asked whenever a request has come."""
        with self._news:
            if not self._news.wait_for(is_there, seconds):
                statuses = [each.status for each in self.requests]
                raise AssertionError(f"did not come; answered so far: {statuses}")

    @property
    def accepted(self) -> list[Request]:
        return [each for each in list(self.requests) if 200 <= each.status < 300]

    @property
    def documents(self) -> list[dict[str, Any]]:
        """What was taken, in the order in which it came."""
        found: list[dict[str, Any]] = []
        for each in self.accepted:
            content = each.json
            found += content if isinstance(content, list) else [content]
        return found

    @property
    def ids(self) -> list[str]:
        return [each["id"] for each in self.documents]

    def close(self) -> None:
        async def end() -> None:
            if self._server is not None:
                self._server.close()
            # One that was just accepted is closed here: its task may not have begun.
            open_ones = list(self._writers)
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for writer in open_ones:
                writer.close()
            await asyncio.gather(
                *(writer.wait_closed() for writer in open_ones), return_exceptions=True
            )

        self._call(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()


def change(number: int, key: int | None, op: str = "insert", **given: Any) -> dict[str, Any]:
    """A document of `public.orders`, or of `table`, as one of a batch; `number` is its place in the source.

    `types`: of its columns, as oids.
    """
    table, types = given.pop("table", "orders"), given.pop("types", {"id": 23, "n": 23})
    lsn, after = Lsn(0x1000 * number), given.pop("after", {"id": key, "n": number})
    key_text = None if key is None else json.dumps({"id": key}, separators=(",", ":"))
    value = {
        "id": f"shop:{lsn}:0",
        "op": op,
        "schema": "public",
        "table": table,
        "commit_lsn": str(lsn),
        "ordinal": 0,
        "xid": number,
        "committed_at": "2026-01-01T00:00:00Z",
        "source": "shop",
        "key": None if key is None else {"id": key},
        "before": given.pop("before", None),
        "after": None if op in ("delete", "truncate") else after,
        "unchanged": given.pop("unchanged", []),
    }
    assert not given, given
    return {
        "id": value["id"],
        "key": key_text,
        "value": json.dumps(value, separators=(",", ":")),
        "schema": "public",
        "table": table,
        "op": op,
        "commit_lsn": int(lsn),
        "ordinal": 0,
        "committed_at": None if op == "read" else datetime(2026, 1, 1, tzinfo=UTC),
        "types": json.dumps([(name, oid, -1) for name, oid in types.items()]),
    }


def nested(document: dict[str, Any]) -> dict[str, Any]:
    """A document whose column `n` has JSON that is nested more deeply than Python reads."""
    deep = "[" * 50_000 + "]" * 50_000
    number = int(document["commit_lsn"]) // 0x1000
    return {**document, "value": document["value"].replace(f'"n":{number}', f'"n":{deep}')}


class Hooks:
    """A webhook sink with a state directory, and documents for it."""

    def __init__(self, directory: Path, keyring: Keyring = NO_KEYS, **options: Any) -> None:
        self.directory = directory
        given = {"allow": ["127.0.0.1"], **options}
        self.place: SinkPlace[WebhookOptions] = SinkPlace(
            "hooks",
            WebhookOptions.model_validate(given),
            "shop",
            "shop",
            ("shop",),
            directory,
            keyring=keyring,
        )
        self.sink = WebhookSink(self.place)
        self.number = 0

    def deliver(self, *documents: dict[str, Any]) -> list[str]:
        """One batch; the ids of its documents."""
        lsn = Lsn(documents[-1]["commit_lsn"]) if documents else Lsn(0x1000 * self.number)
        batch = pa.RecordBatch.from_pylist(list(documents), TYPED)
        self.sink.deliver(iter((batch,)), json.dumps({"delivered_lsn": str(lsn)}))
        return [each["id"] for each in documents]

    def insert(self, count: int, table: str = "orders") -> list[str]:
        """So many inserts of new keys, as one batch; their ids."""
        first, self.number = self.number + 1, self.number + count
        return self.deliver(
            *(change(number, number, table=table) for number in range(first, self.number + 1))
        )

    @property
    def subscriptions(self) -> WebhookSubscriptions:
        return WebhookSubscriptions([self.place])

    def stands(self, number: int = 0) -> dict[str, Any]:
        """How a subscription stands, as people see it."""
        found: dict[str, Any] = self.subscriptions.all()[number]["sources"]["shop"]
        return found

    def store(self) -> Store:
        """Another connection to its database."""
        store = store_of(self.place)
        store.open()
        return store


@pytest.fixture
def hooks(tmp_path: Path) -> Iterator[Callable[..., Hooks]]:
    """Makes a sink for receivers, opened; all share a state directory, as one run after another does."""
    made: list[Hooks] = []

    def make(*urls: Any, **options: Any) -> Hooks:
        for each in made:
            each.sink.close()
        made.append(Hooks(tmp_path / "state", urls=list(urls), **options))
        made[-1].sink.open()
        made[-1].number = made[-2].number if len(made) > 1 else 0
        return made[-1]

    yield make
    for each in made:
        each.sink.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def receivers() -> Iterator[Callable[..., Receiver]]:
    made: list[Receiver] = []

    def make(**options: Any) -> Receiver:
        made.append(Receiver(**options))
        return made[-1]

    yield make
    for each in made:
        each.close()
