"""What a client of search servers makes of connections that end, and of servers that are none."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from penstock.errors import DestinationRefuses
from penstock.sinks.kind import SinkPlace
from penstock.sinks.search.client import Client
from penstock.sinks.search.kind import SearchKind
from penstock.sinks.search.options import SearchOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_DONE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
_TOO_LARGE = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


def _client(url: str) -> Client:
    given: dict[str, Any] = {"url": url, "timeout": 10}
    if url.startswith("https"):
        given["tls"] = {"verify": False}
    return Client(SearchOptions.model_validate(given), "sink find")


def _certificate(path: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(private + made.public_bytes(Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


def _read(connection: socket.socket, *, whole: bool) -> None:
    """One request; its head alone, unless all of it is wanted."""
    with connection.makefile("rb") as stream:
        size = 0
        while (line := stream.readline()) not in (b"\r\n", b""):
            if line.lower().startswith(b"content-length:"):
                size = int(line.partition(b":")[2])
        if whole:
            stream.read(size)


@pytest.fixture
def serve() -> Iterator[Callable[..., int]]:
    """Starts servers that answer one request on each connection and end it, for so many connections; their ports."""
    threads = []

    def serve(
        count: int, answer: bytes, *, tls: ssl.SSLContext | None = None, whole: bool = True
    ) -> int:
        listening = socket.create_server(("127.0.0.1", 0))
        listening.settimeout(30)

        def run() -> None:
            with listening:
                for _ in range(count):
                    accepted, _ = listening.accept()
                    with accepted if tls is None else tls.wrap_socket(accepted, True) as connection:
                        _read(connection, whole=whole)
                        connection.sendall(answer)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        port: int = listening.getsockname()[1]
        return port

    yield serve
    for each in threads:
        each.join(40)


@pytest.mark.parametrize("is_tls", [False, True])
@pytest.mark.parametrize("size", [10, 4_000_000])
def test_connection_that_the_server_ended_while_it_lay_idle_is_made_anew(
    serve, tmp_path, is_tls, size
) -> None:
    port = serve(4, _DONE, tls=_certificate(tmp_path / "pem") if is_tls else None)
    client = _client(f"http{'s' if is_tls else ''}://127.0.0.1:{port}")
    for _ in range(4):
        assert client.bulk("/_bulk", b"x" * size).status == 200
    client.close()


def test_request_that_is_refused_before_it_is_sent_has_its_answer(serve) -> None:
    client = _client(f"http://127.0.0.1:{serve(3, _TOO_LARGE, whole=False)}")
    for _ in range(3):
        # As a proxy does that takes no requests of this size: it ends the connection.
        assert client.bulk("/_bulk", b"x" * 20_000_000).status == 413


@pytest.mark.parametrize("content", [b"{}", b"[]", b'{"version":"3"}', b"<html></html>", b'"no"'])
def test_server_that_is_no_search_server_is_named(serve, tmp_path, content) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content)
    options = SearchOptions.model_validate({"url": f"http://127.0.0.1:{serve(1, answer)}"})
    place = SinkPlace("find", options, "shop", "shop", ("shop",), tmp_path / "state")
    (found,) = SearchKind().check({"shop": place}, {})
    assert isinstance(found.error, DestinationRefuses)
    assert "neither OpenSearch nor Elasticsearch" in str(found.error)
    assert options.url in str(found.error)


def test_address_of_ip_6_without_a_port() -> None:
    connection = _client("http://[2001:db8::5]")._another()
    assert (connection.host, connection.port) == ("2001:db8::5", 80)
