"""A receiver of webhooks that costs as little as Python lets it: `python -m bench.receiver`.

It prints its port. Every POST is answered 200; `GET` answers how many there were, and when each row of `orders` came for the
first time, by time.perf_counter.
"""

from __future__ import annotations

import asyncio
import json
import re
import time

_DONE = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
_KEY = re.compile(rb'"key":\{"id":(\d+)\}')


class Receiver(asyncio.Protocol):
    """One connection."""

    count = 0
    arrivals: dict[int, float] = {}  # noqa: RUF012 - of all connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = transport
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            if head.startswith(b"get"):
                self._buffer = b""
                self._report()
                return
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0])
            whole = end + 4 + length
            if len(self._buffer) < whole:
                return
            self._take(self._buffer[end + 4 : whole])
            self._buffer = self._buffer[whole:]
            self._transport.write(_DONE)  # type: ignore[attr-defined]

    def _take(self, body: bytes) -> None:
        Receiver.count += 1
        if (key := _KEY.search(body)) is not None:
            Receiver.arrivals.setdefault(int(key[1]), time.perf_counter())

    def _report(self) -> None:
        body = json.dumps({"count": Receiver.count, "arrivals": Receiver.arrivals}).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)  # type: ignore[attr-defined]


async def main() -> None:
    """Listen until killed."""
    server = await asyncio.get_running_loop().create_server(Receiver, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
