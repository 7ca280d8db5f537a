"""Subscriptions over HTTP: penstock's routes and pgstream's, with a sink that delivers and a receiver."""

from __future__ import annotations

import socket
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from fix_wait import wait_until
from fix_watched import TOKEN, ToyRun, served
from fix_webhooks import Hooks, Reply, change
from penstock.errors import SinkError
from penstock.sinks.webhook.signature import key_of, new_secret, signatures
from penstock.sinks.webhook.sink import WebhookSink
from penstock.sinks.webhook.store import Store
from penstock.sinks.webhook.subscriptions import WebhookSubscriptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fix_webhooks import Receiver


class Api:
    """Asks with the token."""

    def __init__(self, server: Any) -> None:
        self.server = server

    def __call__(self, method: str, path: str, body: Any = None, token: str | None = TOKEN) -> Any:
        return self.server.ask(method, path, body, token=token)


@pytest.fixture
def sink(hooks) -> Any:
    return hooks()


@pytest.fixture
def api(sink) -> Iterator[Api]:
    with served(ToyRun(subscribed={"hooks": sink.subscriptions})) as found:
        yield Api(found)


def _is_signed(receiver: Receiver, *secrets: str) -> bool:
    request = receiver.requests[-1]
    headers = request.headers
    wanted = signatures(
        [key_of(each) for each in secrets],
        headers["webhook-id"],
        int(headers["webhook-timestamp"]),
        request.body,
    )
    return headers["webhook-signature"] == wanted


def test_subscription_begins_after_the_position_that_the_answer_names(api, sink, receiver) -> None:
    sink.deliver(change(1, 1))
    answer = api("POST", "/subscriptions", {"url": receiver.url})
    assert answer.status == 201, answer.body
    assert answer.json["sources"]["shop"]["from_lsn"] == "0/1000"
    ids = sink.deliver(change(2, 2), change(3, 3))
    receiver.wait_for(lambda: len(receiver.ids) == 2)
    assert sorted(receiver.ids) == sorted(ids)
    assert _is_signed(receiver, answer.json["secret"])


def test_secret_is_shown_once(api, receiver) -> None:
    made = api("POST", "/subscriptions", {"url": receiver.url}).json
    secret = made["secret"]
    for path in ("/subscriptions", f"/subscriptions/{made['id']}", "/status", "/api/errors"):
        assert secret.encode() not in api("GET", path).body
    assert api("GET", f"/subscriptions/{made['id']}").json["is_signed"]


def test_new_secret_signs_beside_the_old_one(api, sink, receiver) -> None:
    old, new = new_secret(), new_secret()
    made = api("POST", "/subscriptions", {"url": receiver.url, "secret": old}).json
    answer = api("PATCH", f"/subscriptions/{made['id']}", {"secret": new})
    assert answer.status == 200
    assert new.encode() not in answer.body
    sink.deliver(change(1, 1))
    receiver.wait_for(lambda: receiver.requests)
    assert _is_signed(receiver, new, old)


def test_changed_subscription_takes_effect_while_it_is_delivered_to(api, sink, receiver) -> None:
    made = api("POST", "/subscriptions", {"url": receiver.url, "tables": ["orders"]}).json
    sink.deliver(change(1, 1), change(2, 2, table="audit"))
    receiver.wait_for(lambda: receiver.ids)
    changed = api("PATCH", f"/subscriptions/{made['id']}", {"tables": ["public.audit"]})
    assert changed.json["tables"] == ["public.audit"]
    sink.deliver(change(3, 3), change(4, 4, table="audit"))
    receiver.wait_for(lambda: len(receiver.ids) == 2)
    assert [one["table"] for one in receiver.documents] == ["orders", "audit"]


def test_removed_subscription_gets_nothing_more(api, sink, receiver) -> None:
    made = api("POST", "/subscriptions", {"url": receiver.url}).json
    sink.deliver(change(1, 1))
    receiver.wait_for(lambda: receiver.ids)
    assert api("DELETE", f"/subscriptions/{made['id']}").status == 204
    sink.deliver(change(2, 2))
    assert len(receiver.requests) == 1
    assert api("GET", f"/subscriptions/{made['id']}").status == 404
    assert api("DELETE", f"/subscriptions/{made['id']}").status == 404


def test_disabled_subscription_is_resumed(api, sink, receiver) -> None:
    receiver.script.append(Reply(410))
    made = api("POST", "/subscriptions", {"url": receiver.url}).json
    sink.deliver(change(1, 1))
    path = f"/subscriptions/{made['id']}"
    wait_until(lambda: api("GET", path).json["sources"]["shop"]["state"] == "disabled")
    sink.deliver(change(2, 2))
    answer = api("POST", f"{path}/resume")
    assert answer.json["sources"]["shop"]["from_lsn"] == "0/2000"
    ids = sink.deliver(change(3, 3))
    receiver.wait_for(lambda: receiver.ids == ids)


def test_fixed_subscription_is_shown_and_not_changed(hooks, receiver) -> None:
    sink = hooks(receiver.url)
    with served(ToyRun(subscribed={"hooks": sink.subscriptions})) as found:
        api = Api(found)
        (one,) = api("GET", "/subscriptions").json["subscriptions"]
        assert one["is_fixed"]
        assert one["sink"] == "hooks"
        answer = api("DELETE", f"/subscriptions/{one['id']}")
        assert answer.status == 400
        assert "pipeline file" in answer.json["error"]["what"]


def test_subscription_is_at_all_sources_each_with_its_position(tmp_path, receiver) -> None:
    sinks = []
    for source in ("eu", "us"):
        made = Hooks(tmp_path / source)
        made.place = replace(made.place, source_id=source, source_ids=("eu", "us"))
        made.sink = WebhookSink(made.place)
        sinks.append(made)
    subscriptions = WebhookSubscriptions([each.place for each in sinks])
    with pytest.raises(SinkError, match="has not been started"):
        subscriptions.create({"url": receiver.url})
    for each in sinks:
        each.sink.open()
    sinks[0].deliver(change(1, 1))
    made = subscriptions.create({"url": receiver.url})
    assert {name: each["from_lsn"] for name, each in made["sources"].items()} == {
        "eu": "0/1000",
        "us": None,
    }
    for each in sinks:
        each.deliver(change(2, 2))
    receiver.wait_for(lambda: len(receiver.ids) == 2)
    subscriptions.remove(made["id"])
    for each in sinks:
        each.deliver(change(3, 3))
        each.sink.close()
    assert len(receiver.ids) == 2


def test_subscription_that_one_source_cannot_keep_is_at_none(
    tmp_path, receiver, monkeypatch
) -> None:
    sinks = [Hooks(tmp_path / source) for source in ("eu", "us")]
    for source, each in zip(("eu", "us"), sinks, strict=True):
        each.place = replace(each.place, source_id=source, source_ids=("eu", "us"))
        each.sink = WebhookSink(each.place)
    subscriptions = WebhookSubscriptions([each.place for each in sinks])
    sinks[0].sink.open()
    with pytest.raises(SinkError, match="has not been started"):
        subscriptions.create({"url": receiver.url})
    assert subscriptions.all() == []

    sinks[1].sink.open()
    add = Store.add

    def add_or_fail(store: Store, *given: Any) -> None:
        if "us" in store.path.parts:
            raise sqlite3.OperationalError("disk I/O error")
        add(store, *given)

    monkeypatch.setattr(Store, "add", add_or_fail)
    with pytest.raises(SinkError, match="disk I/O error"):
        subscriptions.create({"url": receiver.url})
    assert subscriptions.all() == []
    for each in sinks:
        each.sink.close()


def test_changes_of_a_subscription_at_the_same_time_all_count(sink, receiver) -> None:
    made = sink.subscriptions.create({"url": receiver.url})["id"]
    changes: list[dict[str, Any]] = [
        {"tables": ["public.orders"]},
        {"operations": ["insert"]},
        {"batch_size": 2},
        {"secret": new_secret()},
    ]
    for _ in range(5):
        none = {"tables": [], "operations": [], "batch_size": 1}
        sink.subscriptions.change(made, none)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda each: sink.subscriptions.change(made, each), changes))
        found = sink.subscriptions.get(made)
        assert (found["tables"], found["operations"], found["batch_size"]) == (
            ["public.orders"],
            ["insert"],
            2,
        )


WRONG_BODIES = [
    {},
    {"url": "nonsense"},
    {"url": "ftp://example.com/"},
    {"url": "http://10.0.0.1/"},
    {"url": "http://169.254.169.254/latest/meta-data"},
    {"url": "http://[::ffff:10.0.0.1]/"},
    {"url": "http://127.0.0.1/", "tables": ["a.b.c"]},
    {"url": "http://127.0.0.1/", "operations": ["upsert"]},
    {"url": "http://127.0.0.1/", "format": "xml"},
    {"url": "http://127.0.0.1/", "batch_size": 0},
    {"url": "http://127.0.0.1/", "secret": "short-secret"},
    {"url": "http://127.0.0.1/", "filter": "total > 100"},
    {"url": "http://127.0.0.1/", "tables": ["orders"], "filter": "read_csv('/etc/passwd')"},
    {"url": "http://127.0.0.1/", "sink": "other"},
    {"url": "http://127.0.0.1/", "nonsense": 1},
]


def test_body_that_cannot_be_is_refused_and_changes_nothing(api) -> None:
    for body in WRONG_BODIES:
        answer = api("POST", "/subscriptions", body)
        assert answer.status in (400, 422), (body, answer.body)
        assert answer.json["error"]["code"].startswith("PEN-")
        assert b"short-secret" not in answer.body
    assert api("GET", "/subscriptions").json["subscriptions"] == []


def test_filter_is_given_changed_and_taken_out(api, sink, receiver) -> None:
    wanted = {"url": receiver.url, "tables": ["orders"], "filter": "n >= 2"}
    made = api("POST", "/subscriptions", wanted).json
    assert made["filter"] == "n >= 2"
    sink.deliver(change(1, 1), change(2, 2))
    path = f"/subscriptions/{made['id']}"
    assert api("PATCH", path, {"filter": "n >= 4"}).json["filter"] == "n >= 4"
    assert api("PATCH", path, {"batch_size": 1}).json["filter"] == "n >= 4"
    sink.deliver(change(3, 3), change(4, 4))
    # What is not delivered yet follows a change.
    receiver.wait_for(lambda: len(receiver.ids) == 2)
    wrong = api("PATCH", path, {"filter": "n >="})
    assert (wrong.status, wrong.json["error"]["where"]) == (400, "filter")
    assert api("PATCH", path, {"filter": None}).json["filter"] is None
    sink.deliver(change(5, 1))
    receiver.wait_for(lambda: len(receiver.ids) == 3)
    assert [each["xid"] for each in receiver.documents] == [2, 4, 5]


def test_change_of_a_subscription_has_the_status_read_anew(api, receiver) -> None:
    made = api("POST", "/subscriptions", {"url": receiver.url}).json
    api("GET", "/subscriptions")
    api("POST", f"/subscriptions/{made['id']}/resume")

    assert api.server.run.asked == [("look again",)] * 2


def test_receiver_of_two_sinks_is_resumed_at_the_one_that_is_named(tmp_path, receiver) -> None:
    places = [Hooks(tmp_path / name, urls=[receiver.url]) for name in ("a", "b")]
    for each in places:
        each.sink.open()
        each.sink.close()
        store = each.store()
        store._db.execute("UPDATE subscriptions SET state = 'suspended'")
        store.close()
    sinks = {"a": places[0].subscriptions, "b": places[1].subscriptions}
    id_ = places[0].subscriptions.all()[0]["id"]

    with served(ToyRun(subscribed=sinks)) as found:
        api = Api(found)
        assert api("POST", f"/subscriptions/{id_}/resume?sink=b").status == 200
        assert api("POST", f"/subscriptions/{id_}/resume?sink=c").status == 400

    assert [each.stands()["state"] for each in places] == ["suspended", "active"]


ROUTES = [
    ("GET", "/subscriptions"),
    ("POST", "/subscriptions"),
    ("PATCH", "/subscriptions/x"),
    ("DELETE", "/subscriptions/x"),
    ("GET", "/subscriptions/x"),
    ("POST", "/subscriptions/x/resume"),
    ("POST", "/webhooks/subscribe"),
    ("POST", "/webhooks/unsubscribe"),
]


def test_every_route_that_changes_something_needs_the_token(api) -> None:
    paths = api("GET", "/openapi.json").json["paths"]
    there = {
        (method.upper(), path.replace("{id_}", "x"))
        for path, methods in paths.items()
        for method in methods
        if path.startswith(("/subscriptions", "/webhooks"))
    }
    assert there == set(ROUTES)
    for method, path in ROUTES:
        if method == "GET":
            continue
        body = None if method == "DELETE" else {"url": "http://127.0.0.1/"}
        assert api(method, path, body, token=None).status == 401, path


def test_subscriptions_are_read_on_loopback_without_what_may_be_secret(api, receiver) -> None:
    url = f"{receiver.url}/key-7f3a?token=hidden"
    wanted = {"url": url, "tables": ["public.orders"], "filter": "n > 981"}
    made = api("POST", "/subscriptions", wanted).json

    listed = api("GET", "/subscriptions", token=None)
    one = api("GET", f"/subscriptions/{made['id']}", token=None)
    whole = api("GET", f"/subscriptions/{made['id']}")

    assert (listed.status, one.status) == (200, 200)
    assert one.json["url"] == f"http://127.0.0.1:{receiver.port}"
    assert one.json["tables"] == ["public.orders"]
    assert listed.json["subscriptions"] == [{"sink": "hooks", **one.json}]
    for answer in (listed, one):
        for secret in (made["secret"], "hidden", "7f3a", "981", "filter"):
            assert secret.encode() not in answer.body
    assert (whole.json["url"], whole.json["filter"]) == (url, "n > 981")
    assert api("GET", "/subscriptions/x", token=None).status == 404
    assert api("GET", "/subscriptions", token="wrong").status == 401


def test_error_of_a_subscription_is_for_those_with_the_token(api, sink, receiver) -> None:
    receiver.script.append(Reply(410))
    made = api("POST", "/subscriptions", {"url": receiver.url}).json
    sink.deliver(change(1, 1))
    path = f"/subscriptions/{made['id']}"
    wait_until(lambda: api("GET", path).json["sources"]["shop"]["state"] == "disabled")

    assert "410" in api("GET", path).json["sources"]["shop"]["error"]
    without = api("GET", path, token=None).json["sources"]["shop"]
    assert (without["state"], without["error"]) == ("disabled", None)


def test_subscriptions_are_not_read_from_other_machines_without_the_token(sink) -> None:
    with served(ToyRun(subscribed={"hooks": sink.subscriptions}), host="0.0.0.0") as found:
        for path in ("/subscriptions", "/subscriptions/x"):
            assert Api(found)("GET", path, token=None).status == 401


def test_pgstream_receiver_subscribes_and_unsubscribes_as_it_knows(api, sink, receiver) -> None:
    body = {"url": receiver.url, "event_types": ["I"], "schema": "public", "table": "orders"}
    assert api("POST", "/webhooks/subscribe", body).status == 201
    sink.deliver(change(1, 1), change(2, 1, "update"), change(3, 1, table="audit"))
    receiver.wait_for(lambda: receiver.requests)
    (request,) = receiver.requests
    assert request.json["Data"]["action"] == "I"
    assert request.json["Data"]["columns"] == [
        {"id": "", "name": "id", "type": "integer", "value": 1},
        {"id": "", "name": "n", "type": "integer", "value": 1},
    ]
    assert request.headers["x-pgstream-lsn"] == "0/1000"

    again = {**body, "event_types": ["I", "U"]}
    assert api("POST", "/webhooks/subscribe", again).status == 201
    assert len(api("GET", "/subscriptions").json["subscriptions"]) == 1
    sink.deliver(change(4, 1, "update"))
    receiver.wait_for(lambda: len(receiver.requests) == 2)

    assert api("POST", "/webhooks/unsubscribe", body).status == 200
    sink.deliver(change(5, 5))
    assert len(receiver.requests) == 2
    assert api("POST", "/webhooks/unsubscribe", body).status == 200


def test_pgstream_empty_fields_mean_all(api, sink, receiver) -> None:
    assert api("POST", "/webhooks/subscribe", {"url": receiver.url}).status == 201
    sink.deliver(change(1, 1), change(2, 1, "delete"), change(3, 1, table="audit"))
    receiver.wait_for(lambda: len(receiver.requests) == 3)


def test_pgstream_body_that_cannot_be_is_refused(api) -> None:
    known = {"url": "http://127.0.0.1/"}
    bodies: list[Any] = [{}, {"url": ""}, {"url": "nonsense"}, {"url": None}, [], "nonsense"]
    bodies += [{**known, "event_types": each} for each in (["X"], "I", [1])]
    bodies += [{**known, "schema": 5}, {**known, "table": "x" * 400}]
    for body in bodies:
        answer = api("POST", "/webhooks/subscribe", body)
        assert answer.status == 400, (body, answer.body)
        assert answer.json["error"]
        assert b"xxxx" not in answer.body
    assert api("POST", "/webhooks/unsubscribe", {**known, "schema": 5}).status == 400
    assert api("GET", "/subscriptions").json["subscriptions"] == []


def test_pgstream_body_of_its_own_client_is_taken(api, sink, receiver) -> None:
    body = {"url": receiver.url, "event_types": None, "schema": None, "table": None}
    assert api("POST", "/webhooks/subscribe", body).status == 201
    assert api("POST", "/webhooks/unsubscribe", body).status == 200
    assert api("GET", "/subscriptions").json["subscriptions"] == []
    body["event_types"] = ["M", "D"]
    assert api("POST", "/webhooks/subscribe", body).status == 201
    sink.deliver(change(1, 1), change(2, None, "schema"), change(3, 1, "delete"))
    receiver.wait_for(lambda: len(receiver.requests) == 2)
    assert [each.json["Data"]["action"] for each in receiver.requests] == ["M", "D"]


def test_pgstream_receiver_that_was_disabled_subscribes_again(api, sink, receiver) -> None:
    body = {"url": receiver.url}
    assert api("POST", "/webhooks/subscribe", body).status == 201
    receiver.script.append(Reply(410))
    sink.deliver(change(1, 1))
    wait_until(lambda: sink.stands()["state"] == "disabled")
    assert api("POST", "/webhooks/subscribe", body).status == 201
    assert sink.stands()["state"] == "active"
    assert sink.stands()["from_lsn"] == "0/1000"
    sink.deliver(change(2, 2))
    receiver.wait_for(lambda: len(receiver.requests) == 2)


def test_pgstream_receiver_that_subscribes_four_times_at_once_has_one_subscription(
    sink, monkeypatch
) -> None:
    known, all_at_once = socket.getaddrinfo, threading.Barrier(4)

    def resolve(host: Any, *args: Any, **options: Any) -> Any:
        all_at_once.wait(10)
        return known("127.0.0.1", *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with ThreadPoolExecutor(4) as pool:
        given = ("http://receiver.example/", "public", "orders", ["I"])
        for each in [pool.submit(sink.subscriptions.subscribe, *given) for _ in range(4)]:
            each.result()
    (one,) = sink.subscriptions.all()
    assert one["tables"] == ["public.orders"]


def test_server_without_such_a_sink_has_no_such_routes() -> None:
    with served(ToyRun()) as found:
        assert Api(found)("POST", "/subscriptions", {"url": "http://127.0.0.1/"}).status == 404
        assert "/subscriptions" not in found.ask("GET", "/openapi.json").json["paths"]
