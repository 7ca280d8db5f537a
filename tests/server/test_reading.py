"""What the server answers to those who only read: health, readiness, status, metrics, events."""

from __future__ import annotations

import http.client
import json
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from fix_watched import REFUSED, TOKEN, Served, ToyRun, make_status, served
from penstock.sinks.status import FlowStatus, SubscriptionStatus, TableStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

# Under load a request may take longer than a server needs; what counts is the quickest of some.
ATTEMPTS = 5


def test_health_says_that_the_process_lives(toy_server: Served):
    answer = toy_server.ask("GET", "/health")

    assert answer.status == 200
    assert answer.json["status"] == "ok"
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", ["/health", "/ready", "/status", "/metrics", "/", "/page.js"])
def test_head_is_answered_as_get_is_without_the_body(toy_server: Served, path: str):
    got, head = (toy_server.ask(method, path, token=TOKEN) for method in ("GET", "HEAD"))

    assert (head.status, head.body) == (got.status, b"")
    assert head.headers["content-type"] == got.headers["content-type"]
    if path != "/metrics":  # its figures move
        assert head.headers["content-length"] == got.headers["content-length"]


def test_head_says_that_it_is_not_ready_and_opens_no_stream(toy_server: Served):
    toy_server.run.show(make_status({"public.orders": TableStatus("failed", error=REFUSED)}))

    assert toy_server.ask("HEAD", "/ready").status == 503
    assert toy_server.ask("HEAD", "/api/events").status == 405


def test_head_from_another_machine_needs_the_token():
    with served(ToyRun(), host="0.0.0.0") as server:
        assert server.ask("HEAD", "/status").status == 401
        assert server.ask("HEAD", "/health").status == 200


def test_ready_while_everything_is_connected(toy_server: Served):
    answer = toy_server.ask("GET", "/ready")

    assert (answer.status, answer.json) == (200, {"status": "ready", "failures": []})


def test_not_ready_before_the_first_status(toy_server: Served):
    toy_server.run.show(None)

    assert toy_server.ask("GET", "/ready").status == 503
    assert toy_server.ask("GET", "/status").status == 503


def test_ready_names_what_is_not_connected_and_what_has_failed(toy_server: Served):
    status = make_status({"public.orders": TableStatus("failed", error=REFUSED)})
    status.sources["shop"].connected = False
    status.sinks["warehouse"].error = "PEN-501 sink warehouse: away\n  Do: start it"
    toy_server.run.show(status)

    answer = toy_server.ask("GET", "/ready", token=TOKEN)

    assert answer.status == 503
    assert [each["component"] for each in answer.json["failures"]] == [
        "source shop",
        "sink warehouse",
        "table public.orders at sink warehouse",
    ]
    assert answer.json["failures"][2]["error"] == REFUSED


def test_sink_that_is_not_connected_for_one_of_several_sources_is_not_ready(toy_server: Served):
    status = make_status()
    status.sources["us"] = replace(status.sources["shop"])
    status.sinks["warehouse"].sources["us"] = FlowStatus()
    toy_server.run.show(status)

    [failure] = toy_server.ask("GET", "/ready", token=TOKEN).json["failures"]

    assert failure == {"component": "sink warehouse", "error": "is not connected yet for us"}


@pytest.mark.parametrize("schema", ["public", "a/b", "a/1/changes", 'ü "q" <b>'])
def test_schema_of_any_name_is_shown(toy_server: Served, schema: str):
    path = f"/api/schema/{quote(schema, safe='')}/2"

    assert toy_server.ask("GET", path).json["schema"] == schema
    assert toy_server.ask("GET", f"{path}/changes").json == [f"{schema}.orders: column note added"]


def test_ready_fails_when_capture_has_not_reported_for_long(toy_server: Served):
    status = make_status()
    status.sources["shop"].reported_at = time.time() - 3600
    toy_server.run.show(status)

    [failure] = toy_server.ask("GET", "/ready", token=TOKEN).json["failures"]

    assert "not reported for 36" in failure["error"]


def test_capture_that_hangs_and_a_status_that_is_old_need_somebody(toy_server: Served):
    status = make_status()
    status.sources["shop"].reported_at = time.time() - 3600
    toy_server.run.show(status)
    toy_server.run.at -= 3600

    old, hung = toy_server.ask("GET", "/api/errors").json

    assert (old["part"], hung["part"], hung["level"]) == ("pipeline", "source", "error")
    assert "status was last read at" in old["what"]
    assert "capture has not reported since" in hung["what"]
    assert hung["do"]


def test_half_that_only_captures_is_ready_whatever_sinks_say():
    run = ToyRun(halves=frozenset({"capture"}))
    status = make_status()
    status.sinks["warehouse"].error = "PEN-501 sink warehouse: away"
    run.show(status)

    with served(run) as server:
        assert server.ask("GET", "/ready").status == 200


def test_status_is_the_json_of_the_command(toy_server: Served):
    answer = toy_server.ask("GET", "/status", token=TOKEN)

    assert answer.json == toy_server.run.status.as_dict()


def test_text_of_errors_is_for_those_with_the_token(toy_server: Served):
    status = make_status({"public.orders": TableStatus("failed", error=REFUSED)})
    toy_server.run.show(status)

    without, with_token = (
        toy_server.ask("GET", "/status"),
        toy_server.ask("GET", "/status", token=TOKEN),
    )

    assert b"981" in with_token.body
    assert b"=981" not in without.body
    shown = without.json["sinks"]["warehouse"]["tables"]["public.orders"]["error"]
    assert shown.startswith("PEN-")
    for path in ("/ready", "/api/errors", "/api/tables"):
        assert b"=981" not in toy_server.ask("GET", path).body


def test_errors_come_with_what_to_do_and_what_the_api_can(toy_server: Served):
    toy_server.run.show(
        make_status({"public.orders": TableStatus("failed", error=REFUSED)}, parked=3)
    )

    table, parked = toy_server.ask("GET", "/api/errors", token=TOKEN).json

    assert (table["part"], table["name"], table["actions"]) == (
        "table",
        "public.orders",
        ["retry", "resync"],
    )
    assert table["do"].startswith("fix the row")
    assert (parked["level"], parked["actions"]) == ("warning", ["parked"])


def test_errors_that_have_gone_are_remembered(toy_server: Served):
    toy_server.run.show(make_status({"public.orders": TableStatus("failed", error=REFUSED)}))
    toy_server.run.show(make_status())
    toy_server.telemetry.error("sink warehouse", "PEN-501 sink warehouse: away\n  Do: nothing")
    assert toy_server.ask("GET", "/api/errors", token=TOKEN).json == []

    found = toy_server.ask("GET", "/api/errors?past=true", token=TOKEN).json

    assert [(each["part"], each["code"]) for each in found] == [
        ("sink warehouse", "PEN-501"),
        ("table public.orders at sink warehouse", "PEN-506"),
    ]
    assert found[1]["text"] == REFUSED
    assert found[0]["at"] >= found[1]["at"] > time.time() - 60
    assert b"=981" not in toy_server.ask("GET", "/api/errors?past=true").body
    for _ in range(150):
        toy_server.telemetry.error("sink warehouse", REFUSED)
    assert len(toy_server.ask("GET", "/api/errors?past=true").json) == 100


def test_subscriptions_that_are_not_delivered_to_are_among_the_errors(toy_server: Served):
    subscriptions = {
        "sub_1": SubscriptionStatus(),
        "sub_2": SubscriptionStatus("failing", error="the receiver answered 500"),
        "sub_3": SubscriptionStatus("cut_off", error="documents up to 0/A000 are gone"),
    }
    toy_server.run.show(make_status(subscriptions=subscriptions))

    cut_off, failing = toy_server.ask("GET", "/api/errors", token=TOKEN).json
    without = toy_server.ask("GET", "/api/errors")

    assert cut_off["what"] == "subscription sub_3 is cut_off: documents up to 0/A000 are gone"
    assert "penstock webhooks" in cut_off["do"]
    assert (failing["level"], failing["sink"]) == ("warning", "warehouse")
    assert b"sub_2 is failing" in without.body
    assert b"0/A000" not in without.body
    assert (cut_off["code"], cut_off["subscription"]) == ("PEN-526", "sub_3")
    assert cut_off["actions"] == ["resume-subscription"]
    assert (failing["code"], failing["actions"]) == (None, [])


def test_subscription_that_ends_is_counted_and_remembered_once(toy_server: Served):
    for error in (None, "given up after 3 s: the receiver answered 500", "the same, put otherwise"):
        state = "active" if error is None else "suspended"
        each = SubscriptionStatus(state, error=error)
        toy_server.run.show(make_status(subscriptions={"sub_1": each}))

    [past] = toy_server.ask("GET", "/api/errors?past=true", token=TOKEN).json
    [without] = toy_server.ask("GET", "/api/errors?past=true").json

    assert past["part"] == "subscription sub_1 at sink warehouse"
    assert past["code"] == "PEN-526"
    assert "answered 500" in past["text"]
    assert "PEN-526" in without["text"]
    assert "500" not in without["text"]


def test_action_of_an_ended_subscription_goes_to_its_own_id_where_there_are_several_sources(
    toy_server: Served,
):
    ended = {"eu/sub_1": SubscriptionStatus("disabled", error="it answered 410")}
    toy_server.run.show(make_status(subscriptions=ended))

    [found] = toy_server.ask("GET", "/api/errors", token=TOKEN).json

    assert found["what"].startswith("subscription eu/sub_1 is disabled")
    assert found["subscription"] == "sub_1"
    assert "resume sub_1" in found["do"]


def test_status_of_a_thousand_tables_is_answered_within_50_ms(toy_server: Served):
    tables = {
        f"public.t{number:04}": TableStatus(
            "streaming", 1000, 2000, 4, 4, changed_at="2026-01-01T00:00:00", conflicts={"a": 0}
        )
        for number in range(1000)
    }
    took = []

    for _ in range(ATTEMPTS):
        toy_server.run.show(make_status(tables))
        # The server's and our own CPU: what else the machine does is not counted.
        began = time.process_time()
        answer = toy_server.ask("GET", "/status")
        took.append(time.process_time() - began)

    assert len(answer.json["sinks"]["warehouse"]["tables"]) == 1000
    assert min(took) < 0.05, took


def test_openapi_names_every_route_and_its_page_needs_nothing_from_elsewhere(toy_server: Served):
    routes = toy_server.ask("GET", "/openapi.json").json["paths"]
    page = toy_server.ask("GET", "/docs")

    assert {"/status", "/api/tables/resync", "/api/sinks/{sink}/pause"} <= set(routes)
    assert page.status == 200
    assert b"http://" not in page.body
    assert b"https://" not in page.body


@contextmanager
def _events(server: Served, token: str | None = None) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connection.request("GET", "/api/events", headers=headers)
    with closing(connection), connection.getresponse() as response:
        yield response


def _next_event(response: http.client.HTTPResponse) -> dict:
    lines = []
    while line := response.readline().decode().strip():
        lines.append(line)
    [data] = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return json.loads(data)


def test_events_bring_everything_first_and_then_what_has_changed(toy_server: Served):
    tables = {"public.a": TableStatus(), "public.b": TableStatus(), "public.c": TableStatus()}
    toy_server.run.show(make_status(tables))
    with _events(toy_server, TOKEN) as response:
        first = _next_event(response)

        fewer = {"public.a": TableStatus(), "public.b": TableStatus("copying")}
        toy_server.run.show(make_status(fewer))
        second = _next_event(response)

    assert first["is_whole"]
    assert set(first["tables"]["warehouse"]) == {"public.a", "public.b", "public.c"}
    assert not second["is_whole"]
    assert set(second["tables"]["warehouse"]) == {"public.b", "public.c"}
    assert second["tables"]["warehouse"]["public.c"] is None


def test_server_stops_at_once_though_a_page_is_open():
    with ExitStack() as stack, served(ToyRun()) as server:
        _next_event(stack.enter_context(_events(server)))

        began = time.monotonic()
        server.server.stop()

        assert time.monotonic() - began < 5


def test_history_keeps_an_hour_and_gives_rates(toy_server: Served):
    status = make_status()
    began = time.time() - 4000
    for number in range(1000):
        sink = replace(status.sinks["warehouse"], changes_delivered=number * 500, lag_seconds=0.5)
        toy_server.run.status = replace(status, sinks={"warehouse": sink})
        toy_server.run.at = began + 5 * number
        toy_server.run.on_snapshot(toy_server.run.snapshot())

    found = toy_server.ask("GET", "/api/history").json["warehouse"]

    assert len(found["at"]) == 720
    assert found["changes_per_second"][-1] == pytest.approx(100)
    assert found["lag_seconds"][-1] == 0.5


def test_answers_hold_no_secret(toy_server: Served):
    for path in ("/", "/status", "/ready", "/metrics", "/openapi.json", "/api/errors"):
        assert TOKEN.encode() not in toy_server.ask("GET", path, token=TOKEN).body
    assert TOKEN not in repr(asdict(toy_server.server._options))
