"""Who may do what: every action without the token, with a wrong one, from elsewhere, with hostile bodies."""

from __future__ import annotations

import http.client
import logging
import socket
import ssl
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from fix_terminal import encrypted_key, run_at_a_terminal
from fix_watched import REFUSED, TOKEN, Served, ToyRun, make_status, served
from penstock.errors import BadValue, ServerFailed, SourceError
from penstock.listen import Address, ServerOptions, Token
from penstock.server import serve
from penstock.server.access import MOST_BODY_BYTES
from penstock.server.serve import Server, watched_run
from penstock.sinks.status import TableStatus

if TYPE_CHECKING:
    from pathlib import Path

ACTIONS = [
    ("/api/tables/add", {"names": ["public.a"]}),
    ("/api/tables/remove", {"names": ["public.a"]}),
    ("/api/tables/resync", {"names": ["public.a"]}),
    ("/api/tables/retry", {"sink": "warehouse", "names": ["public.a"]}),
    ("/api/sinks/warehouse/pause", None),
    ("/api/sinks/warehouse/resume", None),
    ("/api/parked/retry", {}),
    ("/api/parked/drop", {"ids": ["1"]}),
]
HOSTILE = "public.<img src=x onerror=alert(1)>\u202e\"'; DROP TABLE x; --\x1b[31m"


def test_actions_listed_here_are_all_there_are(toy_server: Served):
    routes = toy_server.ask("GET", "/openapi.json").json["paths"]
    posted = {
        path.replace("{sink}", "warehouse") for path, each in routes.items() if "post" in each
    }

    assert posted == {path for path, _ in ACTIONS}
    assert not any({"put", "delete", "patch"} & set(each) for each in routes.values())


@pytest.mark.parametrize(("path", "body"), ACTIONS)
def test_action_is_carried_out_with_the_token_alone(toy_server: Served, path: str, body: object):
    own = {"Origin": f"http://127.0.0.1:{toy_server.port}"}
    without = toy_server.ask("POST", path, body)
    wrong = toy_server.ask("POST", path, body, token=TOKEN + "x")
    elsewhere = toy_server.ask(
        "POST", path, body, token=TOKEN, headers={"Origin": "https://a.test"}
    )
    opaque = toy_server.ask("POST", path, body, token=TOKEN, headers={"Origin": "null"})
    fetched = toy_server.ask(
        "POST", path, body, token=TOKEN, headers={"Sec-Fetch-Site": "cross-site"}
    )

    assert [each.status for each in (without, wrong, elsewhere, opaque, fetched)] == [
        401,
        401,
        403,
        403,
        403,
    ]
    assert toy_server.run.asked == []
    assert toy_server.ask("POST", path, body, token=TOKEN, headers=own).status == 200
    assert len(toy_server.run.asked) == 1


def test_without_a_token_in_the_file_there_are_no_actions():
    with served(ToyRun(), token=None) as server:
        answer = server.ask("POST", "/api/sinks/warehouse/pause")
        guessed = server.ask("POST", "/api/sinks/warehouse/pause", token="")

        assert answer.status == 403
        assert "token" in answer.json["error"]["do"]
        assert guessed.status == 401
        assert server.run.asked == []
        assert server.ask("GET", "/status").status == 200


def test_parked_changes_name_keys_and_need_the_token(toy_server: Served):
    toy_server.run.entries = [{"key": {"id": 981}}]

    assert toy_server.ask("GET", "/api/parked").status == 401
    assert toy_server.ask("GET", "/api/parked", token=TOKEN).json["parked"] == [
        {"key": {"id": 981}}
    ]


def test_reading_from_other_machines_needs_the_token():
    with served(ToyRun(), host="0.0.0.0") as server:
        reading = [
            server.ask("GET", path).status for path in ("/status", "/metrics", "/api/events")
        ]
        open_to_all = [server.ask("GET", path).status for path in ("/", "/health", "/ready")]

        assert reading == [401, 401, 401]
        assert open_to_all == [200, 200, 200]
        assert server.ask("GET", "/status", token=TOKEN).status == 200


def test_loopback_answers_no_other_name(toy_server: Served):
    # A page elsewhere may have its own name point at 127.0.0.1.
    for host in ("evil.test", "evil.test:8750", "10.0.0.1", ""):
        answer = toy_server.ask("GET", "/status", headers={"Host": host})
        assert answer.status in (400, 421), host
    for host in ("localhost", f"localhost:{toy_server.port}", "[::1]:80"):
        assert toy_server.ask("GET", "/status", headers={"Host": host}).status == 200


def test_page_elsewhere_cannot_read_and_is_given_no_leave_to(toy_server: Served):
    foreign = toy_server.ask("GET", "/status", headers={"Origin": "https://a.test"})
    embedded = toy_server.ask(
        "GET", "/status", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    )
    link = toy_server.ask(
        "GET", "/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    )
    asked_before = toy_server.ask(
        "OPTIONS", "/api/tables/add", headers={"Origin": "https://a.test"}
    )

    assert [each.status for each in (foreign, embedded, link, asked_before)] == [403, 403, 200, 403]
    assert "access-control-allow-origin" not in foreign.headers
    assert link.headers["x-frame-options"] == "DENY"
    assert "default-src 'none'" in link.headers["content-security-policy"]


def test_huge_body_is_refused_before_it_is_read(toy_server: Served):
    answer = toy_server.ask(
        "POST", "/api/tables/add", {"names": ["x" * MOST_BODY_BYTES]}, token=TOKEN
    )

    assert answer.status == 413
    assert toy_server.run.asked == []


def test_huge_body_without_a_length_is_cut_off(toy_server: Served):
    with socket.create_connection(("127.0.0.1", toy_server.port), timeout=10) as sending:
        head = (
            f"POST /api/tables/add HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
            "Transfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n"
        )
        sending.sendall(head.encode())
        block = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
        try:
            for _ in range(64):
                sending.sendall(block)
        except OSError:
            pass  # it has hung up, as it should
        said = sending.recv(4096)

    assert b" 413 " in said.partition(b"\r\n")[0]
    assert toy_server.run.asked == []


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {"names": []},
        {"names": "public.a"},
        {"names": [1]},
        {"names": ["a"], "other": 1},
        {"names": ["x" * 400]},
        {"names": ["public.a\x00b"]},
        {"names": ["a"] * 1001},
    ],
)
def test_body_that_is_not_as_described_is_refused(toy_server: Served, body: object):
    answer = toy_server.ask("POST", "/api/tables/add", body, token=TOKEN)

    assert answer.status == 422
    assert answer.json["error"]["code"] == "PEN-621"
    assert toy_server.run.asked == []


@pytest.mark.parametrize("action", ["retry", "drop"])
def test_empty_list_of_parked_changes_does_not_mean_all_of_them(toy_server: Served, action: str):
    answer = toy_server.ask("POST", f"/api/parked/{action}", {"ids": []}, token=TOKEN)

    assert answer.status == 422
    assert toy_server.run.asked == []


def test_headers_sent_twice_are_refused(toy_server: Served):
    with socket.create_connection(("127.0.0.1", toy_server.port), timeout=10) as sending:
        sending.sendall(
            f"GET /status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
            f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
        )
        assert b" 400 " in sending.recv(4096).partition(b"\r\n")[0]


def test_hostile_name_is_logged_as_one_line_of_text(
    toy_server: Served, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "penstock")

    answer = toy_server.ask(
        "POST",
        "/api/tables/add",
        {"names": [HOSTILE]},
        token=TOKEN,
        headers={"X-Penstock-User": "anna"},
    )

    assert answer.status == 200
    [line] = [each.getMessage() for each in caplog.records if "admin:" in each.getMessage()]
    assert "asked for by anna from 127.0.0.1" in line
    assert "\x1b" not in line
    assert "\u202e" not in line


def test_hostile_names_come_as_json_and_never_as_a_page(toy_server: Served):
    toy_server.run.show(make_status({HOSTILE: TableStatus()}))

    answer = toy_server.ask("GET", "/api/tables")

    assert answer.headers["content-type"] == "application/json"
    assert HOSTILE in answer.json["warehouse"]
    assert toy_server.ask("GET", "/metrics").status == 200


def test_error_of_an_action_says_what_to_do(toy_server: Served):
    answer = toy_server.ask("POST", "/api/sinks/nowhere/pause", token=TOKEN)

    assert answer.status == 400
    assert answer.json["error"]["do"] == "name a sink of the file"


def test_tls_by_cert_and_key(tmp_path: Path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    made = ["-subj", "/CN=localhost", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command.split(), *made], check=True, capture_output=True)
    with served(ToyRun()) as plain:
        options = ServerOptions(Address("127.0.0.1", 0), Token(TOKEN), cert, key)
        server = Server(plain.run, options, plain.telemetry, plain.history)
        server.start()
        try:
            port = int(server.url.rstrip("/").rpartition(":")[2])
            context = ssl.create_default_context(cafile=str(cert))
            with (
                socket.create_connection(("127.0.0.1", port)) as raw,
                context.wrap_socket(raw, server_hostname="localhost") as secure,
            ):
                secure.sendall(
                    b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                )
                said = secure.recv(4096)
        finally:
            server.stop()

    assert server.url.startswith("https://")
    assert b" 200 " in said.partition(b"\r\n")[0]


def test_cert_that_cannot_be_used_is_a_clear_error(tmp_path: Path):
    bad = tmp_path / "cert.pem"
    bad.write_text("no certificate")
    with served(ToyRun()) as plain:
        options = ServerOptions(Address("127.0.0.1", 0), None, bad, bad)
        with pytest.raises(ServerFailed, match="cert and key cannot be used"):
            Server(plain.run, options, plain.telemetry, plain.history).start()


_LISTEN = """
import sys
from pathlib import Path
from penstock.errors import ServerFailed
from penstock.listen import Address, ServerOptions
from penstock.server.serve import served_subscriptions
options = ServerOptions(Address("127.0.0.1", 0), None, *map(Path, sys.argv[1:]))
try:
    with served_subscriptions("shop", {}, options):
        pass
except ServerFailed as error:
    print(error.what)
"""


def test_encrypted_key_is_a_clear_error_and_nobody_at_a_terminal_is_asked(tmp_path: Path):
    said = run_at_a_terminal(_LISTEN, *encrypted_key(tmp_path))

    assert "cert and key cannot be used" in said


def test_address_that_is_taken_is_a_clear_error(toy_server: Served):
    options = ServerOptions(Address("127.0.0.1", toy_server.port))

    with pytest.raises(ServerFailed, match="Address already in use"):
        Server(toy_server.run, options, toy_server.telemetry, toy_server.history).start()


@pytest.mark.parametrize("host", ["a..b", "x" * 70])
def test_name_that_can_be_none_of_a_host_is_a_clear_error(toy_server: Served, host: str):
    options = ServerOptions(Address(host, 0), Token(TOKEN))

    with pytest.raises(ServerFailed, match="cannot listen: not a name of a host"):
        Server(toy_server.run, options, toy_server.telemetry, toy_server.history).start()


def test_missing_extra_is_a_clear_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serve, "_NEEDED", ("fastapi", "a_package_that_is_not_there"))

    with (
        pytest.raises(ServerFailed, match=r"a_package_that_is_not_there.*\n.*penstock\[server\]"),
        watched_run(ToyRun(), ServerOptions(Address("127.0.0.1", 0)), is_alone=True),
    ):
        pass


def test_nothing_is_started_and_nothing_counted_where_nobody_asks(monkeypatch: pytest.MonkeyPatch):
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)

    with watched_run(ToyRun(), ServerOptions(), is_alone=True) as recorder:
        assert not recorder.is_on


@pytest.mark.parametrize(
    "text", ["", "8750", "1:30", ":", "a b:1", "host:99999", "[::1", "[nonsense]:1", "h:x"]
)
def test_address_that_means_nothing_is_refused(text: str):
    with pytest.raises(BadValue, match="is no address"):
        ServerOptions().at(text)


def test_address_that_others_reach_needs_a_token():
    with pytest.raises(BadValue, match="wanted a token"):
        ServerOptions().at("0.0.0.0:8750")

    assert ServerOptions(token=Token(TOKEN)).at("0.0.0.0:8750").listen == Address("0.0.0.0", 8750)
    assert ServerOptions().at("[::1]:1").listen == Address("::1", 1)


def test_short_token_is_warned_of_at_the_start_and_works_on_loopback(
    caplog: pytest.LogCaptureFixture,
):
    with served(ToyRun(), token="short") as server:
        assert server.ask("GET", "/api/parked", token="short").status == 200
        assert server.ask("GET", "/api/parked", token="shorter").status == 401

    [said] = [each for each in caplog.messages if "shorter than 16 characters" in each]
    assert "short " not in said


def test_short_token_is_refused_where_others_reach_the_server():
    with pytest.raises(BadValue, match="at least 16 characters"):
        ServerOptions(token=Token("short")).at("0.0.0.0:8750")


def test_wrong_tokens_are_reported_once_and_not_repeated(
    toy_server: Served, caplog: pytest.LogCaptureFixture
):
    for _ in range(5):
        assert toy_server.ask("GET", "/status", token="a-guess").status == 401

    lines = [each.getMessage() for each in caplog.records]
    assert lines == ["refused a wrong token, the last from 127.0.0.1"]


def test_server_on_another_address_of_loopback_answers_to_it():
    with served(ToyRun(), host="127.0.0.2") as server:
        connection = http.client.HTTPConnection("127.0.0.2", server.port, timeout=10)
        connection.request("GET", "/health")
        status = connection.getresponse().status
        connection.close()

    assert status == 200


def test_ready_names_nothing_to_strangers_from_other_machines():
    run = ToyRun()
    run.show(make_status({"public.orders": TableStatus("failed", error=REFUSED)}))
    with served(run, host="0.0.0.0") as server:
        stranger = server.ask("GET", "/ready").json["failures"]
        known = server.ask("GET", "/ready", token=TOKEN).json["failures"]

    assert stranger == [{"component": "table"}]
    assert known[0]["component"] == "table public.orders at sink warehouse"


def test_error_of_a_server_is_given_by_its_code_to_who_has_no_token():
    class Away(ToyRun):
        def versions(self, source: str | None, schema: str | None) -> list[dict[str, Any]]:
            raise SourceError("role shop_reader may not", "postgresql://db.internal/shop", "grant")

    with served(Away()) as server:
        stranger, known = (
            server.ask("GET", "/api/schema"),
            server.ask("GET", "/api/schema", token=TOKEN),
        )

    assert (stranger.status, known.status) == (409, 409)
    assert b"db.internal" in known.body
    assert b"db.internal" not in stranger.body
    assert stranger.json["error"]["code"] == known.json["error"]["code"]
