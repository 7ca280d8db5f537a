"""Start the server in a thread, and stop it. What it needs beyond penstock is imported here, when it is wanted."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import socket
import ssl
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from penstock import __version__
from penstock.errors import ServerFailed
from penstock.metrics import NOTHING
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.listen import ServerOptions
    from penstock.metrics import Recorder
    from penstock.server.watched import Watched
    from penstock.sinks.subscriptions import Subscriptions

_log = logging.getLogger(__name__)

_NEEDED = ("fastapi", "uvicorn", "opentelemetry.sdk", "prometheus_client", "psutil")


@contextmanager
def watched_run(watched: Watched, options: ServerOptions, *, is_alone: bool) -> Iterator[Recorder]:
    """Serve for as long as the block lasts, where the file says so; what loops report to.

    Without an address and without an endpoint for OTLP nothing is started, and nothing counted.

    Raises:
        ServerFailed: what it needs is not installed, or the address cannot be listened on.
    """
    pushes = any(name.startswith("OTEL_EXPORTER_OTLP_") for name in os.environ)
    if options.listen is None and not pushes:
        yield NOTHING
        return
    if options.listen is None and _missing():
        _log.warning("metrics are not pushed: penstock[server] is not installed")
        yield NOTHING
        return
    _require_installed()
    from penstock.server.last_hour import LastHour
    from penstock.server.telemetry import Telemetry

    telemetry = Telemetry(
        watched.name,
        __version__,
        watched.snapshot,
        is_alone=is_alone,
        halves=watched.halves,
    )
    history = LastHour()

    def take(snapshot: Any) -> None:
        telemetry.counts.take(snapshot)
        history.take(snapshot)

    watched.on_snapshot, watched.on_error = take, telemetry.error
    try:
        if options.listen is None:
            yield telemetry
            return
        server = Server(watched, options, telemetry, history)
        server.start()
        try:
            yield telemetry
        finally:
            server.stop()
    finally:
        telemetry.close()


def _missing() -> list[str]:
    found = []
    for name in _NEEDED:
        try:
            if importlib.util.find_spec(name) is None:
                found.append(name)
        except ModuleNotFoundError:  # of the package around it
            found.append(name)
    return found


def _require_installed() -> None:
    if missing := _missing():
        raise ServerFailed(
            f"listen: needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'}"
            " not installed",
            "listen",
            "pip install 'penstock[server]', or take listen: out of the file",
        )


def _quiet_server(config: Any) -> Any:
    """A server of uvicorn's that sleeps while nobody asks for anything: as shipped it wakes ten times a
    second, and costs more than all that is asked of it."""
    import uvicorn

    class Quiet(uvicorn.Server):
        woken: asyncio.Event | None = None
        loop: asyncio.AbstractEventLoop | None = None

        async def main_loop(self) -> None:
            """Until somebody wants it to exit."""
            self.woken, self.loop = asyncio.Event(), asyncio.get_running_loop()
            while not self.should_exit:
                await self.woken.wait()

        def wake(self) -> None:
            """Have it exit now; from another thread."""
            self.should_exit = True
            if self.loop is not None and self.woken is not None:
                with suppress(RuntimeError):  # it has ended
                    self.loop.call_soon_threadsafe(self.woken.set)

    return Quiet(config)


@contextmanager
def served_subscriptions(
    name: str, sinks: Mapping[str, Subscriptions], options: ServerOptions
) -> Iterator[str]:
    """Serve the routes of subscriptions alone for as long as the block lasts; where.

    Raises:
        ServerFailed: what it needs is not installed, or the address cannot be listened on.
    """
    _require_installed()

    class Alone(Server):
        def _app(self) -> Any:
            from penstock.server.app import build_subscriptions_app

            return build_subscriptions_app(name, sinks, __version__)

    unwatched: Any = None
    server = Alone(unwatched, options, None, None)
    server.start()
    try:
        yield server.url
    finally:
        server.stop()


class Server:
    """One server, in a thread of its own. The socket is bound by `start`, so that a fault is raised there."""

    def __init__(
        self, watched: Watched, options: ServerOptions, telemetry: Any, history: Any
    ) -> None:
        assert options.listen is not None
        self._watched = watched
        self._options = options
        self._telemetry = telemetry
        self._history = history
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._uvicorn: Any = None
        self.url = ""

    def start(self) -> None:
        """Listen; returns when requests are answered.

        Raises:
            ServerFailed: the address is taken, or not one of this machine's; cert or key cannot be used.
        """
        import uvicorn

        from penstock.server.access import Access
        from penstock.server.connection import Connection

        listening = self._bind()
        config = uvicorn.Config(
            Access(self._app(), self._options),
            log_config=None,
            log_level="critical",  # faults of clients, as many as they care to send; ours are logged by Access
            access_log=False,
            server_header=False,
            date_header=False,  # kept up to date by a tick of uvicorn's; ours is made for each answer
            lifespan="off",
            ws="none",
            http=Connection,
            loop="asyncio",
            proxy_headers=False,  # who asks is who has connected, whatever a header says
            timeout_keep_alive=10,
            timeout_graceful_shutdown=1,
            ssl_certfile=str(self._options.cert) if self._options.cert else None,
            ssl_keyfile=str(self._options.key) if self._options.key else None,
            # A wrong one for a key that is encrypted: without any OpenSSL would ask at the terminal, and wait.
            ssl_keyfile_password=" ",  # noqa: S106 - nobody's
        )
        self._load(config, listening)
        self._uvicorn = _quiet_server(config)
        self._thread = threading.Thread(
            target=self._serve, args=(listening,), name="http server", daemon=True
        )
        self._thread.start()
        deadline = time.monotonic() + timing().server_start_seconds
        while not self._uvicorn.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                listening.close()
                raise ServerFailed("the server did not start", self.url, "see the lines above")
            time.sleep(0.01)
        if (weakness := self._options.weakness()) is not None:
            _log.warning("%s", weakness)
        _log.info("listening on %s", self.url)

    def _app(self) -> Any:
        from penstock.server.app import build_app

        return build_app(
            self._watched,
            self._telemetry,
            self._history,
            __version__,
            lambda: self._is_closing,
            has_token=self._options.token is not None,
        )

    def _bind(self) -> socket.socket:
        address = self._options.listen
        assert address is not None
        try:
            found = socket.getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            listening = socket.socket(found[0][0], socket.SOCK_STREAM)
            try:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listening.bind(found[0][4])
                listening.listen(128)
            except OSError:
                listening.close()
                raise
        except (OSError, UnicodeError) as error:  # a name that no name server is asked for
            why = error.strerror or error if isinstance(error, OSError) else "not a name of a host"
            raise ServerFailed(
                f"cannot listen: {why}",
                f"listen {address}",
                "stop what listens there, or choose another address with listen: or --listen",
            ) from None
        host = f"[{address.host}]" if ":" in address.host else address.host
        scheme = "https" if self._options.cert else "http"
        self.url = f"{scheme}://{host}:{listening.getsockname()[1]}/"
        return listening

    def _load(self, config: Any, listening: socket.socket) -> None:
        try:
            config.load()
        except (OSError, ssl.SSLError) as error:
            listening.close()
            raise ServerFailed(
                f"cert and key cannot be used: {error.strerror or type(error).__name__}",
                f"listen {self._options.listen}",
                "give a PEM certificate and its unencrypted key, readable for this user",
            ) from None

    def _serve(self, listening: socket.socket) -> None:
        # Signals are the command's: outside of the main thread uvicorn leaves them alone.
        asyncio.run(self._uvicorn.serve([listening]))

    def stop(self) -> None:
        """End; who still waits for an answer gets none."""
        self._is_closing = True
        if self._uvicorn is not None:
            self._uvicorn.wake()
        if self._thread is not None:
            self._thread.join(timing().server_stop_seconds)
            if self._thread.is_alive():
                self._uvicorn.force_exit = True
                self._thread.join(timing().server_stop_seconds)
