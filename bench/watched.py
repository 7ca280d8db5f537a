"""What it costs to be watched: a scrape every 5 s, metrics and traces pushed at the default sampling."""

from __future__ import annotations

import http.server
import os
import socket
import threading
import urllib.request
from typing import TYPE_CHECKING, Any, Self

from bench.backlogs import Mixed
from bench.failure import BenchFailed
from bench.live import Idle
from bench.ours import Penstock

if TYPE_CHECKING:
    from bench.servers import Pair
    from bench.workload import Result

_SCRAPE_SECONDS = 5.0
_MOST_MORE_PERCENT = 0.3


class Unwatched(Penstock):
    """As shipped: nobody listens."""

    name = "penstock, not watched"


class Watched(Penstock):
    """With the HTTP server, scraped every 5 s, and OTLP pushed to a receiver that throws it away."""

    def __init__(self, pair: Pair, *, copies: bool = False) -> None:
        super().__init__(pair, copies=copies)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._receiver = _Receiver()
        self._ended = threading.Event()
        self._scraper = threading.Thread(target=self._scrape, daemon=True)
        self.scrape_count = 0

    def __enter__(self) -> Self:
        self._receiver.start()
        super().__enter__()
        self._scraper.start()
        return self

    def __exit__(self, *failure: Any) -> None:
        self._ended.set()
        if self._scraper.is_alive():
            self._scraper.join()
        try:
            super().__exit__(*failure)
        finally:
            self._receiver.stop()
        if failure[0] is None and not self.scrape_count:
            raise BenchFailed("penstock: no scrape has succeeded, so that nothing was measured")

    def start(self, *options: str) -> None:
        """See Penstock."""
        # Inherited by the command alone: this process pushes nothing.
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = self._receiver.url
        try:
            super().start(*options, "--listen", f"127.0.0.1:{self._port}")
        finally:
            del os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]

    def _scrape(self) -> None:
        while not self._ended.wait(_SCRAPE_SECONDS):
            url = f"http://127.0.0.1:{self._port}/metrics"
            with urllib.request.urlopen(url, timeout=10) as answer:
                if b"penstock_sink_lag_seconds" in answer.read():
                    self.scrape_count += 1


class _Receiver(http.server.ThreadingHTTPServer):
    """Takes what is pushed, and keeps nothing."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Take)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()


class _Take(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class WatchedMixed(Mixed):
    """The mixed backlog, watched and not watched."""

    name = "watched"
    required = "≥ 0.98 of the rate of a run that nobody watches"
    least_ratio = 0.98
    baseline = Unwatched.name
    systems = (Unwatched, Watched)

    @property
    def title(self) -> str:
        """See Workload."""
        return f"the same backlog of {self.count:,} changes, scraped and traced"


class WatchedIdle(Idle):
    """Nothing is written, and somebody scrapes."""

    name = "idle-watched"
    required = "at most 0.3% of a core more than a run that nobody watches"
    baseline = Unwatched.name
    systems = (Unwatched, Watched)

    @property
    def title(self) -> str:
        """See Workload."""
        return f"{super().title}, with a scrape every {_SCRAPE_SECONDS:.0f} s"

    def reached(self, native: Result | None, ours: Result) -> bool | None:
        """See Workload."""
        if native is None:
            return None
        return ours.figures["own"] - native.figures["own"] <= _MOST_MORE_PERCENT
