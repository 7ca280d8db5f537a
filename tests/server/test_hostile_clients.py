"""Clients that are slow, silent or many, and paths that lead elsewhere: the others are answered all the same."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from fix_wait import wait_until
from fix_watched import TOKEN, Served, ToyRun, make_status, served
from penstock.server.connection import MOST_CONNECTIONS
from penstock.sinks.status import TableStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def connect(server: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has hung up; waits for that."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_silent_connections_are_closed_and_others_are_answered(
    use_timing: Callable[..., None], toy_server: Served
):
    use_timing(server_head_seconds=0.3)
    with ExitStack() as stack:
        silent = [stack.enter_context(connect(toy_server)) for _ in range(70)]
        silent[0].sendall(b"GET /health HTTP/1.1\r\nHost: local")

        assert all(is_closed(each) for each in silent)
        assert toy_server.ask("GET", "/health").status == 200


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_connections_that_are_kept_open_keep_no_probe_from_its_answer(
    toy_server: Served, sent: bytes
):
    connections = toy_server.server._uvicorn.server_state.connections
    with ExitStack() as stack:
        for _ in range(MOST_CONNECTIONS + 30):
            kept = stack.enter_context(connect(toy_server))
            if sent:
                kept.sendall(sent)
                assert kept.recv(4096).startswith(b"HTTP/1.1 200")

        assert toy_server.ask("GET", "/health").status == 200
        assert toy_server.ask("GET", "/ready").status == 200
        wait_until(lambda: len(connections) <= MOST_CONNECTIONS, what="room to be made")


def test_action_is_logged_with_the_address_that_connected(
    toy_server: Served, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "penstock")
    headers = {"X-Forwarded-For": "203.0.113.9"}
    toy_server.ask("POST", "/api/sinks/warehouse/pause", token=TOKEN, headers=headers)

    [line] = [each.getMessage() for each in caplog.records if "admin:" in each.getMessage()]
    assert line.endswith("from 127.0.0.1")


def test_head_that_comes_a_byte_at_a_time_is_not_waited_for(
    use_timing: Callable[..., None], toy_server: Served
):
    use_timing(server_head_seconds=0.5)
    with connect(toy_server) as slow:

        def is_given_up() -> bool:
            try:
                slow.sendall(b"G")
            except OSError:
                return True
            return False

        wait_until(is_given_up, 20, "the server to hang up", 0.05)


def test_client_that_reads_nothing_is_given_up(use_timing: Callable[..., None], toy_server: Served):
    use_timing(server_reading_seconds=0.3, server_event_seconds=0.01)
    connections = toy_server.server._uvicorn.server_state.connections
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", toy_server.port))
        deaf.sendall(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: connections, what="the connection")
        turn = iter(range(100_000))

        def is_given_up() -> bool:
            rows = next(turn)
            toy_server.run.show(
                make_status({f"public.t{n}": TableStatus("copying", rows) for n in range(1000)})
            )
            return not connections

        wait_until(is_given_up, 30, "the server to hang up", 0.02)


def test_reads_that_wait_for_a_server_keep_nobody_from_acting():
    class Stuck(ToyRun):
        is_released = threading.Event()

        def versions(self, source: str | None, schema: str | None) -> list[dict[str, object]]:
            self.asked.append(("versions",))
            assert self.is_released.wait(30)
            return []

    run = Stuck()
    with served(run) as server:
        readers = [
            threading.Thread(target=server.ask, args=("GET", "/api/schema")) for _ in range(4)
        ]
        for reader in readers:
            reader.start()
        try:
            wait_until(lambda: len(run.asked) >= 2, what="the source to be asked")

            assert server.ask("POST", "/api/sinks/warehouse/pause", token=TOKEN).status == 200
            assert server.ask("GET", "/health").status == 200
        finally:
            run.is_released.set()
            for reader in readers:
                reader.join(20)


def test_defect_is_answered_without_its_text(caplog: pytest.LogCaptureFixture):
    class Broken(ToyRun):
        def change_tables(self, action: str, names: Sequence[str], source: str | None) -> list[str]:
            raise ZeroDivisionError("a value of a row")

    with served(Broken()) as server:
        answer = server.ask("POST", "/api/tables/add", {"names": ["public.a"]}, token=TOKEN)

    assert answer.status == 500
    assert answer.json["error"]["code"] == "PEN-900"
    assert "ZeroDivisionError" in answer.json["error"]["what"]
    assert b"a value" not in answer.body
    [line] = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert line.startswith("POST /api/tables/add: an unexpected ZeroDivisionError in ")
    assert "a value" not in line


@pytest.mark.parametrize(
    "path",
    [
        "/../../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/page/../../serve.py",
        "/page.js/../access.py",
        "//etc/passwd",
        "/page.js%00.html",
    ],
)
def test_path_leads_to_no_other_file(toy_server: Served, path: str):
    answer = toy_server.ask("GET", path)

    assert answer.status == 404
    assert b"root:" not in answer.body


def test_name_of_a_schema_may_look_like_a_path_and_is_none(toy_server: Served):
    answer = toy_server.ask("GET", "/api/schema/%2e%2e%2f%2e%2e%2fetc/1")

    assert answer.json == {"schema": "../../etc", "version": 1, "tables": []}


def test_page_behind_a_proxy_with_tls_may_act():
    with served(ToyRun(), host="0.0.0.0") as server:
        headers = {"Host": "pipelines.test", "Origin": "https://pipelines.test"}
        own = server.ask("POST", "/api/sinks/warehouse/pause", token=TOKEN, headers=headers)
        other = server.ask(
            "POST",
            "/api/sinks/warehouse/pause",
            token=TOKEN,
            headers={**headers, "Origin": "https://pipelines.test.evil.test"},
        )

    assert (own.status, other.status) == (200, 403)


def test_request_that_is_no_http_writes_nothing_to_the_log(
    toy_server: Served, caplog: pytest.LogCaptureFixture
):
    with connect(toy_server) as stranger:
        stranger.sendall(b"\x16\x03\x01\x02\x00 not http\r\n\r\n")
        assert b" 400 " in stranger.recv(4096).partition(b"\r\n")[0]

    assert caplog.records == []
