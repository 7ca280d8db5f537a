"""Search servers for tests: one node each, from jars that Maven fetches once into pytest's cache.

OpenSearch is started as the demo does it; Elasticsearch comes as its core, its HTTP module and the one with scaled_float, with a
launcher of its own.
"""

from __future__ import annotations

import fcntl
import http.client
import http.server
import json
import ssl
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fix_broker import BrokerProcess
from fix_machine import missing
from penstock.embedded import search as embedded
from penstock.embedded.ports import free_port
from penstock.embedded.search import JVM, OPENSEARCH_2, OPENSEARCH_3, Node, Version
from penstock.errors import EmbeddedServerFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_CACHE = Path(__file__).parents[1] / ".pytest_cache"

_ELASTICSEARCH = """
import java.nio.file.Paths;
import java.util.Arrays;
import org.elasticsearch.common.settings.Settings;
import org.elasticsearch.env.Environment;
import org.elasticsearch.index.mapper.MapperExtrasPlugin;
import org.elasticsearch.node.Node;
import org.elasticsearch.transport.Netty4Plugin;

public class Launch extends Node {
    Launch(Settings settings) {
        super(new Environment(settings, null), Arrays.asList(Netty4Plugin.class, MapperExtrasPlugin.class), true);
    }
    public static void main(String[] args) throws Exception {
        Settings.Builder settings = Settings.builder().loadFromPath(Paths.get(args[0]));
        Launch node = new Launch(settings.build());
        node.start();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try { node.close(); } catch (Exception error) { error.printStackTrace(); }
        }));
        Thread.currentThread().join();
    }
}
"""


class Elasticsearch(Version):
    """Its launcher is given the file."""

    def arguments(self, home: Path, port: int) -> list[str]:
        """See Version."""
        del port
        return [str(home / "config" / "elasticsearch.yml")]


ELASTICSEARCH_7 = Elasticsearch(
    "elasticsearch-7.17.28-extras",
    (
        "org.elasticsearch:elasticsearch:7.17.28",
        "org.elasticsearch.plugin:mapper-extras-client:7.17.28",
        "org.elasticsearch.plugin:transport-netty4-client:7.17.28",
        "org.apache.logging.log4j:log4j-core:2.17.1",
    ),
    17,
    launcher=_ELASTICSEARCH,
)


def search_jars(version: Version) -> Path:
    """Where a server's jars are; fetched by the first of several processes that asks."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / f"{version.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return embedded.search_jars(version, _CACHE)
        except EmbeddedServerFailed as error:
            missing(str(error))


class SearchServer(BrokerProcess):
    """One node. `settings` are lines of its configuration where a test wants others."""

    name = "Search"
    start_seconds = 180

    def __init__(
        self, version: Version = OPENSEARCH_3, jvm: Sequence[str] = JVM, **settings: Any
    ) -> None:
        super().__init__()
        self.version = version
        self.port = free_port()
        self._node = Node(version, self.directory, self.port)
        self._node.configure(
            "".join(f"{key.replace('__', '.')}: {value}\n" for key, value in settings.items())
        )
        jars = search_jars(version)
        try:
            self._command = self._node.command(jars, jvm)
        except EmbeddedServerFailed as error:
            missing(str(error))

    def command(self) -> list[str]:
        """See BrokerProcess."""
        return self._command

    @property
    def url(self) -> str:
        """Where it listens."""
        return self._node.url

    def answers(self) -> bool:
        """Whether it takes documents."""
        return self._node.answers()

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """One request; the status and what was answered."""
        status, content = self._node.call(method, path, body)
        return status, json.loads(content or b"{}")

    def must(self, method: str, path: str, body: Any = None) -> Any:
        """One request that works."""
        status, content = self.call(method, path, body)
        assert status < 300, content
        return content

    def hits(self, index: str) -> list[dict[str, Any]]:
        """All documents of an index or alias as a search finds them, with their versions."""
        status, _ = self.call("POST", f"/{index}/_refresh")
        if status == 404:
            return []
        found: list[dict[str, Any]] = []
        after: Any = None
        while True:
            query: dict[str, Any] = {
                "size": 5000,
                "version": True,
                "query": {"match_all": {}},
                "sort": [{"_position": "asc"}, {"_doc": "asc"}],
            }
            if after is not None:
                query["search_after"] = after
            page = self.must("POST", f"/{index}/_search", query)["hits"]["hits"]
            found += page
            if len(page) < 5000:
                return found
            after = page[-1]["sort"]

    def rows(self, index: str) -> dict[str, dict[str, Any]]:
        """What documents say, by id, without what penstock adds."""
        return {
            each["_id"]: {
                name: value
                for name, value in each["_source"].items()
                if name not in ("_position", "_ordinal")
            }
            for each in self.hits(index)
        }

    def indexes(self, pattern: str) -> list[str]:
        """Indexes that are there, aliases not among them."""
        return sorted(
            each["index"] for each in self.must("GET", f"/_cat/indices/{pattern}?format=json")
        )


@pytest.fixture(scope="session")
def opensearch() -> Iterator[SearchServer]:
    """One server for the whole run; each test has indexes of its own."""
    with SearchServer().running() as server:
        yield server


@pytest.fixture(
    scope="session",
    params=[
        OPENSEARCH_3,
        pytest.param(OPENSEARCH_2, marks=pytest.mark.long),
        pytest.param(ELASTICSEARCH_7, marks=pytest.mark.long),
    ],
    ids=lambda version: version.name,
)
def search_server(request: pytest.FixtureRequest) -> Iterator[SearchServer]:
    """Each of the servers that penstock is tested with; the newest quickly, the others in the long tests."""
    if request.param is OPENSEARCH_3:
        yield request.getfixturevalue("opensearch")
        return
    with SearchServer(request.param).running() as server:
        yield server


@pytest.fixture
def own_search() -> Iterator[SearchServer]:
    """A server that a test may stop."""
    with SearchServer().running() as server:
        yield server


class SearchFront:
    """Another front of a server: it may want a login, answer for it, and has TLS where it is given a certificate.

    `answer` is asked first, with method, path and size of a request: a status that it gives is answered.
    """

    def __init__(
        self, server: SearchServer, login: str | None = None, certificate: Path | None = None
    ) -> None:
        front = self
        self.answer: Callable[[str, str, int], int | None] = lambda *_: None
        # Asked next, with the path: what it gives is answered as JSON, with status 200.
        self.content: Callable[[str], Any] = lambda _: None
        self.requests: list[tuple[str, str, int]] = []
        self.puts: dict[
            str, Any
        ] = {}  # what was last put where, of the indexes that `content` answers for

        class Front(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(size) if size else None
                asked = self.command, self.path, size
                front.requests.append(asked)
                status, content = front.answer(*asked), b"{}"
                if login is not None and self.headers.get("Authorization") != login:
                    status = 401
                if status is None and (given := front.content(self.path)) is not None:
                    status, content = 200, json.dumps(given).encode()
                    if self.command == "PUT":
                        front.puts[self.path] = json.loads(body or b"null")
                if status is None:
                    behind = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
                    kind = {"Content-Type": self.headers.get("Content-Type") or "application/json"}
                    behind.request(self.command, self.path, body, kind)
                    answer = behind.getresponse()
                    status, content = answer.status, answer.read()
                    behind.close()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _pass  # noqa: N815

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


@pytest.fixture
def search_front(search_server: SearchServer) -> Iterator[Callable[..., SearchFront]]:
    """Makes fronts of the server."""
    made: list[SearchFront] = []

    def front(**options: Any) -> SearchFront:
        made.append(SearchFront(search_server, **options))
        return made[-1]

    yield front
    for each in made:
        each.close()
