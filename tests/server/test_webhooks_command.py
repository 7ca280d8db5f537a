"""penstock webhooks: what it prints and does, and the server that it is."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from fix_wait import wait_until
from fix_watched import TOKEN
from fix_webhooks import Reply
from penstock.cli.main import app
from penstock.config import read_pipeline
from penstock.errors import BadValue, SinkError
from penstock.run.subscriptions import subscriptions_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "shop.yml"
    made.write_text(
        f"name: shop\nstate: {tmp_path}/state\ntoken: {TOKEN}\n"
        'source: {url: "postgresql://nobody@127.0.0.1:1/shop", tables: ["public.*"]}\n'
        "sinks: {hooks: {kind: webhook, allow: [127.0.0.1]}, lines: {kind: stdout}}\n"
    )
    return made


@pytest.fixture
def subscriptions(path: Path) -> Any:
    (found,) = subscriptions_of(read_pipeline(path)).values()
    return found


def printed(*words: str) -> str:
    done = CliRunner().invoke(app, ["webhooks", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_list_shows_everybody_and_no_secret(path, subscriptions, receiver) -> None:
    assert "nobody" in printed(str(path))
    made = subscriptions.create({"url": receiver.url})
    shown = printed(str(path), "list")
    assert made["id"] in shown.replace("\n", "")
    assert made["secret"] not in shown
    (one,) = json.loads(printed(str(path), "list", "--json"))
    assert one["sink"] == "hooks"
    assert one["sources"]["shop"]["state"] == "active"
    assert "secret" not in one


def test_receivers_of_the_file_are_shown_before_the_first_run(path) -> None:
    path.write_text(
        path.read_text().replace("kind: webhook,", 'kind: webhook, urls: "https://a/b",')
    )
    (one,) = json.loads(printed(str(path), "list", "--json"))
    assert one["is_fixed"]
    assert one["sources"]["shop"]["state"] == "pending"
    with pytest.raises(BadValue, match="pipeline file"):
        printed(str(path), "remove", one["id"])
    assert not (path.parent / "state").exists()


def test_test_sends_a_signed_request(path, subscriptions, receiver) -> None:
    subscriptions.create({"url": receiver.url})
    assert "taken" in printed(str(path), "test", receiver.url)
    (request,) = receiver.requests
    assert request.json["op"] == "test"
    assert request.headers["webhook-signature"].startswith("v1,")


def test_test_of_a_receiver_is_sent_by_the_sink_that_knows_it(path, receiver) -> None:
    path.write_text(
        path.read_text().replace(
            "sinks: {hooks: {kind: webhook, allow: [127.0.0.1]}",
            f"sinks: {{first: {{kind: webhook}}, hooks: {{kind: webhook, urls: '{receiver.url}',"
            " allow: [127.0.0.1]}",
        )
    )
    assert "taken" in printed(str(path), "test", receiver.url)


def test_test_works_where_an_event_loop_runs(subscriptions, receiver) -> None:
    async def within() -> str:
        return str(subscriptions.test(receiver.url))

    with ThreadPoolExecutor(1) as pool:
        assert "taken" in pool.submit(asyncio.run, within()).result()


def test_test_of_what_does_not_take_it_fails_with_the_reason(path, receiver) -> None:
    receiver.reply = Reply(404)
    with pytest.raises(SinkError, match="answered 404"):
        printed(str(path), "test", receiver.url)
    with pytest.raises(SinkError, match="private"):
        printed(str(path), "test", "http://10.0.0.1/")


def test_resume_and_remove(path, subscriptions, receiver) -> None:
    made = subscriptions.create({"url": receiver.url})
    assert "delivered to again" in printed(str(path), "resume", made["id"])
    assert "removed" in printed(str(path), "remove", made["id"])
    assert subscriptions.all() == []
    with pytest.raises(BadValue, match="no subscription"):
        printed(str(path), "remove", made["id"])


@pytest.mark.parametrize("words", [("test",), ("resume",), ("list", "--sink", "lines"), ("serve",)])
def test_what_is_missing_is_named(path, words) -> None:
    with pytest.raises(BadValue):
        printed(str(path), *words)


def test_serve_answers_alone_until_it_is_stopped(path, receiver) -> None:
    command = [sys.executable, "-m", "penstock", "webhooks", str(path), "serve"]
    server = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert server.stderr is not None
        line = ""
        while "listening on http" not in line:
            line = server.stderr.readline()
            assert line, "it ended"
        port = int(line.rstrip().rstrip("/").rpartition(":")[2])

        def ask(method: str, where: str, body: Any = None, token: str | None = TOKEN) -> Any:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            headers = {"content-type": "application/json"}
            if token is not None:
                headers["authorization"] = f"Bearer {token}"
            with closing(connection):
                connection.request(method, where, json.dumps(body) if body else None, headers)
                answer = connection.getresponse()
                return answer.status, json.loads(answer.read() or b"null")

        assert ask("GET", "/health")[0] == 200
        assert ask("POST", "/subscriptions", {"url": receiver.url}, token=None)[0] == 401
        status, made = ask("POST", "/subscriptions", {"url": receiver.url})
        assert status == 201
        (without,) = ask("GET", "/subscriptions", token=None)[1]["subscriptions"]
        assert without["url"] == receiver.url.removesuffix("/hook")
        (one,) = ask("GET", "/subscriptions")[1]["subscriptions"]
        assert one["id"] == made["id"]
        server.terminate()
        wait_until(lambda: server.poll() is not None)
        assert server.returncode == 0
    finally:
        server.kill()
        server.communicate()
