"""A receiver of webhooks: a small HTTP server that checks signatures, and is away for a moment."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.server
import secrets
import threading
from typing import TYPE_CHECKING, ClassVar

from penstock.demo.destinations import Destination
from penstock.demo.keeper import Keeper
from penstock.errors import SidesDiffer
from penstock.extras import require_package

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from email.message import Message
    from pathlib import Path

# From which request on it answers so many times that it is away.
_AWAY_FROM, _AWAY_FOR = 400, 2


class _Receiver(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, keeper: Keeper, key: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.keeper = keeper
        self.key = key
        self.lock = threading.Lock()
        self.request_count = self.away_count = self.forged_count = 0

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no news."""

    def is_away(self) -> bool:
        with self.lock:
            self.request_count += 1
            if self.request_count < _AWAY_FROM or self.away_count >= _AWAY_FOR:
                return False
            self.away_count += 1
            return True


class _Request(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Receiver

    def do_POST(self) -> None:
        """Answer 503 while away, else take the document once its signature is checked."""
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.server.is_away():
            self._answer(503)
        elif not _is_genuine(self.server.key, self.headers, body):
            with self.server.lock:
                self.server.forged_count += 1
            self._answer(401)
        else:
            self.server.keeper.take(body)
            self._answer(204)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Not on this terminal."""


def _is_genuine(key: bytes, headers: Message, body: bytes) -> bool:
    """As Standard Webhooks says."""
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    mine = "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    return hmac.compare_digest(mine, headers["webhook-signature"])


class Demonstrated(Destination):
    """One receiver."""

    title = "a webhook receiver"
    reader = "receiver"
    pipeline: ClassVar[str] = """\
name: shop
state: ./shop-state                 # log, positions, what waits for receivers
source:
  url: ${SHOP_URL}
  tables: ["public.*"]
sinks:
  hooks:
    kind: webhook
    urls:
      - url: ${HOOK_URL}
        secret: ${HOOK_SECRET}      # signs each request
    allow: [127.0.0.1]              # only public addresses otherwise
"""
    exports = """\
export HOOK_URL=https://example.com/hook
export HOOK_SECRET=whsec_$(openssl rand -base64 32)
"""
    page = "docs/howto/webhooks.md"

    def __init__(self) -> None:
        self._keeper = Keeper()
        self._key = secrets.token_bytes(32)
        self._server: _Receiver | None = None

    def require(self) -> None:
        """See Destination."""
        require_package("aiohttp", "webhook", "penstock demo")

    def start(self, home: Path) -> str:
        """See Destination."""
        del home
        self._server = _Receiver(self._keeper, self._key)
        threading.Thread(target=self._server.serve_forever, name="receiver", daemon=True).start()
        return f"a receiver of webhooks on port {self._server.server_port}"

    @property
    def variables(self) -> Mapping[str, str]:
        """See Destination."""
        assert self._server is not None
        return {
            "HOOK_URL": f"http://127.0.0.1:{self._server.server_port}/",
            "HOOK_SECRET": "whsec_" + base64.b64encode(self._key).decode(),
        }

    def row_counts(self) -> dict[str, int]:
        """See Destination."""
        return self._keeper.row_counts()

    def rows(self, table: str) -> list[str]:
        """See Destination."""
        return self._keeper.rows(table)

    def prove(self) -> Sequence[str]:
        """See Destination."""
        assert self._server is not None
        if self._server.forged_count:
            raise SidesDiffer(
                f"{self._server.forged_count} requests had a signature that does not hold",
                "receiver",
                "keep this output and report it",
            )
        line = (
            f"{self._server.request_count:,} requests, {self._keeper.copied_count:,} with a copied row;"
            " every signature holds;"
            f"\n  {self._server.away_count} were answered 503 and came again,"
            f" {self._keeper.repeated_count} documents came twice"
        )
        return [line]

    def close(self) -> None:
        """See Destination."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
