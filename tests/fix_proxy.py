"""A TCP proxy that fails on demand, to stand between penstock and a server."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fix_postgres import Database

# on, 0 seconds: close() then resets the connection instead of ending it politely.
_RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Forwards 127.0.0.1:port to a server, until set otherwise."""

    def __init__(self, server_port: int, server_host: str = "127.0.0.1") -> None:
        self.server = (server_host, server_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.accepted_count = 0
        self._flowing = threading.Event()
        self._flowing.set()
        self.bytes_per_second = 0  # 0: as fast as it goes
        self._refusing = False
        self._closed = False
        self._lock = threading.Lock()
        self._pairs: set[_Pair] = set()
        threading.Thread(target=self._accept, daemon=True, name="proxy").start()

    def url(self, database: Database) -> str:
        """The database's URL with our port in place of the server's."""
        parts = urlsplit(database.url)
        login = parts.netloc.rsplit("@", 1)[0]
        return urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{self.port}"))

    def cut(self) -> None:
        """Reset every connection; new ones are taken."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            pair.reset()

    def refuse(self) -> None:
        """Reset every connection, and every new one as soon as it comes."""
        self._refusing = True
        self.cut()

    def blackhole(self) -> None:
        """Forward nothing more, and close nothing: what a pulled cable does."""
        self._flowing.clear()

    def heal(self) -> None:
        """Forward again, held bytes first, and take new connections."""
        self._refusing = False
        self._flowing.set()

    def close(self) -> None:
        """End the proxy with all its connections."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted_count += 1
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        pair = _Pair(client)
        with self._lock:
            self._pairs.add(pair)
        try:
            if self._refusing or self._closed:
                pair.reset()
            elif self._may_flow(pair):
                pair.upstream = socket.create_connection(self.server, timeout=10)
                pair.upstream.settimeout(None)
                back = threading.Thread(
                    target=self._pump, args=(pair, pair.upstream, client), daemon=True
                )
                back.start()
                self._pump(pair, client, pair.upstream)
                back.join()
        except OSError:
            pair.reset()
        finally:
            pair.close()
            with self._lock:
                self._pairs.discard(pair)

    def _pump(self, pair: _Pair, reader: socket.socket, writer: socket.socket) -> None:
        try:
            while self._may_flow(pair):
                data = reader.recv(65536)
                if not self._may_flow(pair):
                    return
                if not data:
                    writer.shutdown(socket.SHUT_WR)
                    return
                self._slow_down(len(data))
                writer.sendall(data)
        except OSError:
            pair.reset()

    def _slow_down(self, count: int) -> None:
        if self.bytes_per_second:
            time.sleep(count / self.bytes_per_second)

    def _may_flow(self, pair: _Pair) -> bool:
        while not self._flowing.wait(0.05):
            if pair.dead:
                return False
        return not pair.dead


class _Pair:
    """The two sockets of one forwarded connection."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.upstream: socket.socket | None = None
        self.dead = False

    def _sockets(self) -> list[socket.socket]:
        return [s for s in (self.client, self.upstream) if s is not None]

    def reset(self) -> None:
        self.dead = True
        for one in self._sockets():
            with contextlib.suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                # Wakes a thread in recv() without notice to the peer; close() then gives it.
                one.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        for one in self._sockets():
            one.close()


@pytest.fixture
def make_proxy() -> Iterator[Callable[[int], Proxy]]:
    """Makes proxies to a port of 127.0.0.1, closed after the test."""
    made: list[Proxy] = []

    def make(server_port: int) -> Proxy:
        made.append(Proxy(server_port))
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()


@pytest.fixture
def proxy(source: Database, make_proxy: Callable[[int], Proxy]) -> Proxy:
    """A proxy before the server of `source`."""
    return make_proxy(source.server.port)
