"""A schema registry for tests: Apicurio's, which speaks Confluent's REST interface and checks compatibility.

Fetched once by Maven into pytest's cache. It keeps its schemas in memory.
"""

from __future__ import annotations

import base64
import fcntl
import http.client
import http.server
import json
import shutil
import ssl
import subprocess
import tarfile
import tempfile
import threading
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fix_machine import missing
from fix_wait import wait_until
from penstock.embedded.java import java_home
from penstock.embedded.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = "2.6.13.Final"
_CACHE = Path(__file__).parents[1] / ".pytest_cache" / f"apicurio-{VERSION}"
_PATH = "/apis/ccompat/v7"


def registry_home() -> Path:
    """Where the registry is; fetched by the first of several processes that asks."""
    _CACHE.parent.mkdir(parents=True, exist_ok=True)
    with _CACHE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _CACHE.exists():
            _fetch()
    return _CACHE


def _fetch() -> None:
    maven = shutil.which("mvn")
    if maven is None:
        missing("no mvn to fetch a schema registry with")
    with tempfile.TemporaryDirectory(dir=_CACHE.parent) as directory:
        plugin = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
        artifact = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
        done = subprocess.run(
            [maven, "-q", "-B", plugin, f"-Dartifact={artifact}", f"-DoutputDirectory={directory}"],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        if done.returncode != 0:
            missing(f"mvn cannot fetch Apicurio {VERSION}: {done.stdout.strip()[-300:]}")
        (archive,) = Path(directory).glob("*.tar.gz")
        with tarfile.open(archive) as content:
            content.extractall(f"{directory}/home", filter="data")
        Path(directory, "home").rename(_CACHE)


class RegistryServer:
    """One registry."""

    def __init__(self) -> None:
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop

    @property
    def url(self) -> str:
        """Of Confluent's interface."""
        return f"http://127.0.0.1:{self.port}{_PATH}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        home = registry_home()
        self._process = subprocess.Popen(
            [
                str(java_home() / "bin" / "java"),
                *("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                f"-Dquarkus.http.port={self.port}",
                "-Dquarkus.http.host=127.0.0.1",
                *("-jar", str(home / f"apicurio-registry-app-{VERSION}-runner.jar")),
            ],
            cwd=home,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        wait_until(self._answers, 180, "the registry to answer", 0.2)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "the registry has ended"
        with suppress(OSError):
            self.call("GET", "/subjects")
            return True
        return False

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Ask it something."""
        request = urllib.request.Request(
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/vnd.schemaregistry.v1+json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read())

    def schema(self, number: int) -> str:
        """The schema of an id."""
        return str(self.call("GET", f"/schemas/ids/{number}")["schema"])

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
        self._log.close()


class GuardedRegistry:
    """Another front of a registry: one that wants a login, and TLS where it is given a certificate."""

    def __init__(self, server: RegistryServer, login: str, certificate: Path | None = None) -> None:
        wanted = "Basic " + base64.b64encode(login.encode()).decode()

        class Front(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(size) if size else None
                if self.headers.get("Authorization") != wanted:
                    status, content = 401, b"{}"
                else:
                    behind = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
                    kind = {"Content-Type": self.headers.get("Content-Type") or ""}
                    behind.request(self.command, _PATH + self.path, body, kind)
                    answer = behind.getresponse()
                    status, content = answer.status, answer.read()
                    behind.close()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = _pass  # noqa: N815

            def log_message(self, *args: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Front)
        scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            scheme = "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@pytest.fixture(scope="session")
def registry() -> Iterator[RegistryServer]:
    """One registry for the whole run; each test has subjects of its own."""
    server = RegistryServer()
    try:
        server.start()
        yield server
    finally:
        server.stop()
