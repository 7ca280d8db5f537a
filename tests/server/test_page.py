"""The page in a real browser: over status objects of every kind, and on a pipeline that runs."""

from __future__ import annotations

import itertools
import math
import os
import re
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from playwright.sync_api import expect

from fix_pipeline import pipeline_document, table_state, wait_for_state
from fix_wait import wait_until
from fix_watched import REFUSED, TOKEN, Served, ToyRun, make_status, served
from penstock.server.watched import Snapshot
from penstock.sinks.status import FlowStatus, SubscriptionStatus, TableStatus
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Page

    from fix_browser import OpenPage
    from fix_pipeline import Command
    from fix_postgres import Database, MakeDatabase
    from penstock.embedded.postgres import EmbeddedPostgres

# Where pictures for the documentation are put: PENSTOCK_PICTURES=docs/images.
PICTURES = os.environ.get("PENSTOCK_PICTURES")

# Copied slowly, a page each, in three ranges: some have arrived, and others have not, when pictures are taken.
BIG_ROWS = 12_000

HOSTILE = 'public.<img src=x onerror="document.title=1">&amp;\u202e'


def trusted(server: Served) -> str:
    return f"{server.url}#token={TOKEN}"


def test_page_says_at_a_glance_that_everything_is_delivered(
    toy_server: Served, open_page: OpenPage
):
    page = open_page(trusted(toy_server))

    expect(page.locator("#headline")).to_have_text("Everything is delivered.")
    expect(page.locator("#live")).to_have_text("live")
    expect(page.locator("#problems")).to_be_hidden()
    assert "token" not in page.url


def test_page_says_what_stands_still_and_what_to_do(toy_server: Served, open_page: OpenPage):
    page = open_page(trusted(toy_server))
    expect(page.locator("#rows tr")).to_have_count(1)

    toy_server.run.show(make_status({"public.orders": TableStatus("failed", error=REFUSED)}))

    expect(page.locator("#headline")).to_have_text("1 table stands still; the others go on.")
    expect(page.locator(".problem .do")).to_contain_text("fix the row at the target")
    expect(page.locator("#rows .pill")).to_have_text("failed")


def test_button_asks_before_it_acts(toy_server: Served, open_page: OpenPage):
    toy_server.run.show(make_status({"public.orders": TableStatus("failed", error=REFUSED)}))
    page = open_page(trusted(toy_server))

    page.locator(".problem button", has_text="Retry now").click()
    expect(page.locator("#ask-title")).to_have_text("Try public.orders again now?")
    page.keyboard.press("Escape")
    expect(page.locator("#ask")).to_be_hidden()
    assert toy_server.run.asked == []
    page.locator(".problem button", has_text="Retry now").click()
    page.locator("#ask-yes").click()

    expect(page.locator("#toast")).to_contain_text("is tried again now")
    assert toy_server.run.asked == [("retry", "warehouse", ["public.orders"], None)]


def test_action_without_a_token_asks_for_it_first(toy_server: Served, open_page: OpenPage):
    toy_server.run.show(make_status({"public.orders": TableStatus("failed", error=REFUSED)}))
    page = open_page(toy_server.url)
    expect(page.locator(".problem .what")).not_to_contain_text("981")

    page.locator("#rows button", has_text="Resync").click()
    page.locator("#ask-input").fill(TOKEN)
    page.keyboard.press("Enter")
    expect(page.locator("#ask-title")).to_have_text("Copy public.orders again?")
    page.locator("#ask-yes").click()

    expect(page.locator("#toast")).to_contain_text("resync")
    assert toy_server.run.asked == [("resync", ["public.orders"], None)]
    expect(page.locator(".problem .what")).to_contain_text("981")


def test_hostile_names_are_shown_as_text(toy_server: Served, open_page: OpenPage):
    toy_server.run.show(
        make_status(
            {HOSTILE: TableStatus("failed", error=f"PEN-506 {HOSTILE}: bad\n  Do: {HOSTILE}")}
        )
    )
    page = open_page(trusted(toy_server))

    expect(page.locator("#rows td.name")).to_contain_text('<img src=x onerror="document.title=1">')
    expect(page.locator(".problem")).to_contain_text("<img src=x")
    assert page.locator("main img").count() == 0
    assert page.title() != "1"


SUBSCRIPTIONS = {
    "sub_ok": SubscriptionStatus(delivered=1200, lag_bytes=0),
    "sub_late": SubscriptionStatus("failing", error="it answered 500", lag_bytes=2_000_000),
    "sub_ended": SubscriptionStatus("suspended", error=f"given up: {HOSTILE}", lag_bytes=9_000_000),
    HOSTILE: SubscriptionStatus("disabled", error="it answered 410"),
}


def test_subscriptions_are_listed_with_how_they_stand_and_the_worst_first(
    toy_server: Served, open_page: OpenPage
):
    page = open_page(trusted(toy_server))
    expect(page.locator("#live")).to_have_text("live")
    expect(page.locator("#subscriptions")).to_be_hidden()

    toy_server.run.show(make_status(subscriptions=SUBSCRIPTIONS))

    rows = page.locator("#subscription-rows tr")
    expect(rows).to_have_count(4)
    expect(rows.nth(0)).to_contain_text("sub_ended")
    expect(rows.nth(0).locator(".pill")).to_have_text("suspended")
    expect(rows.nth(0)).to_contain_text("9.0 MB")
    expect(rows.nth(2).locator("td.name")).to_contain_text("it answered 500")
    expect(rows.nth(3)).to_contain_text("nothing")
    expect(page.locator("#subscription-count")).to_have_text("4")
    expect(rows.nth(1).locator("td.name")).to_contain_text("<img src=x")
    assert page.locator("main img").count() == 0
    expect(page.locator("#road")).to_contain_text("4, 1 active")
    toy_server.run.show(make_status(subscriptions={}))
    expect(page.locator("#subscriptions")).to_be_hidden()


@pytest.mark.parametrize("place", [".problem", "#subscription-rows"])
def test_ended_subscription_is_resumed_by_its_button_after_a_question(
    toy_server: Served, open_page: OpenPage, place: str
):
    toy_server.run.show(make_status(subscriptions={"sub_1": SubscriptionStatus("suspended")}))
    page = open_page(trusted(toy_server))
    asked: list[str] = []
    page.route(
        "**/subscriptions/**",
        lambda route: (
            asked.append(f"{route.request.method} {route.request.url}"),
            route.fulfill(json={"id": "sub_1"}),
        ),
    )

    page.locator(f"{place} button", has_text="Resume").click()
    expect(page.locator("#ask-title")).to_have_text("Deliver to subscription sub_1 again?")
    page.locator("#ask-yes").click()

    expect(page.locator("#toast")).to_contain_text("sub_1")
    assert asked == [f"POST {toy_server.url}subscriptions/sub_1/resume?sink=warehouse"]


def test_thousand_subscriptions_are_bounded_and_that_is_said(
    toy_server: Served, open_page: OpenPage
):
    many = {f"sub_{number:04}": SubscriptionStatus(lag_bytes=number) for number in range(1000)}
    many["sub_0500"] = SubscriptionStatus("cut_off", lost_to_lsn="0/A000")
    toy_server.run.show(make_status(subscriptions=many))
    page = open_page(trusted(toy_server))

    expect(page.locator("#subscription-rows tr")).to_have_count(100)
    expect(page.locator("#subscription-rows tr").first).to_contain_text("lost up to 0/A000")
    expect(page.locator("#subscription-more")).to_contain_text("and 900 more")


def test_receiver_that_fails_is_in_the_headline(toy_server: Served, open_page: OpenPage):
    toy_server.run.show(make_status(subscriptions={"sub_1": SubscriptionStatus("failing")}))
    page = open_page(trusted(toy_server))

    expect(page.locator("#headline")).to_have_text("Delivered, but for 1 receiver of webhooks.")


def test_page_is_usable_with_a_thousand_tables(toy_server: Served, open_page: OpenPage):
    tables = {
        f"app_{number % 7}.t{number:04}": TableStatus(
            "streaming" if number % 100 else "failed", number, number, 1, 1
        )
        for number in range(1000)
    }
    toy_server.run.show(make_status(tables))
    page = open_page(trusted(toy_server))
    expect(page.locator("#rows tr")).to_have_count(1000)

    began = time.perf_counter()
    page.keyboard.press("/")
    page.keyboard.type("t0421")
    expect(page.locator("#rows tr")).to_have_count(1)
    took = time.perf_counter() - began
    page.keyboard.press("Escape")
    page.locator("#chips button", has_text="failed").click()
    expect(page.locator("#rows tr")).to_have_count(10)
    page.locator("#chips button", has_text="all").click()
    page.locator("[data-sort=name]").click()
    page.locator("[data-sort=name]").click()

    expect(page.locator("#rows td.name").first).to_have_text("app_6.t0993")
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Table")
    assert took < 3
    # A table that changes is drawn anew, the others stay where they are.
    tables["app_0.t0007"] = TableStatus("copying", 5, 5, 1, 4)
    page.evaluate("document.querySelector('#rows tr:last-child').dataset.kept = 'yes'")
    toy_server.run.show(make_status(tables))
    expect(page.locator("#rows .progress")).to_have_count(1)
    assert page.locator("#rows [data-kept]").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_fits_a_phone_and_its_text_can_be_read(
    toy_server: Served, open_page: OpenPage, scheme: str
):
    tables = {
        "public.a_table_with_quite_a_long_name_that_has_to_wrap": TableStatus(
            "failed", error=REFUSED
        )
    }
    toy_server.run.show(make_status(tables, parked=2, subscriptions=SUBSCRIPTIONS))
    page = open_page(trusted(toy_server), width=360, scheme=scheme)
    expect(page.locator("#rows tr")).to_have_count(1)
    expect(page.locator("#subscription-rows tr")).to_have_count(4)

    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate(CONTRAST) == []
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, input')].filter(e => e.offsetParent && !(e.textContent.trim()"
        " || e.getAttribute('aria-label') || e.closest('label'))).map(e => e.outerHTML)"
    )
    assert unnamed == []


# Text whose contrast to what lies behind it is below 4.5 to 1 (WCAG, AA).
CONTRAST = """() => {
  const parse = (c) => { const m = c.match(/[\\d.]+/g).map(Number); return m.length > 3 && m[3] === 0 ? null : m; };
  const light = ([r, g, b]) => [r, g, b].map(v => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; })
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const bad = [];
  for (const element of document.querySelectorAll('main *, header *')) {
    if (!element.offsetParent || ![...element.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
    let behind = element, back = null;
    while (behind && !back) { back = parse(getComputedStyle(behind).backgroundColor); behind = behind.parentElement; }
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(back || [255, 255, 255])];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) bad.push([element.className, element.textContent.slice(0, 30), ratio.toFixed(2)]);
  }
  return bad;
}"""


def test_page_says_when_the_run_has_ended(toy_server: Served, browser: object, open_page: OpenPage):
    page = open_page(trusted(toy_server))
    expect(page.locator("#live")).to_have_text("live")

    page.route("**/api/**", lambda route: route.abort())
    toy_server.server.stop()

    expect(page.locator("#headline")).to_contain_text("does not answer")
    page.close()


def test_charts_are_drawn_from_the_one_stream_and_fit_the_window(
    toy_server: Served, open_page: OpenPage, use_timing: Callable[..., None]
):
    use_timing(history_point_seconds=0.0)
    asked: list[str] = []
    page = open_page(trusted(toy_server))
    page.on("request", lambda request: asked.append(request.url))
    for changes in (0, 2000, 5000):
        status = make_status(lag_seconds=changes / 1000, changes_delivered=changes)
        toy_server.run.show(status)

    expect(page.locator("#lag-chart polyline")).to_have_count(1)
    expect(page.locator("#lag-chart .legend")).to_have_text("warehouse 5 s")
    expect(page.locator("#rate-chart polyline")).to_have_count(1)
    page.set_viewport_size({"width": 400, "height": 900})
    expect(page.locator("#lag-chart svg")).to_have_attribute("viewBox", re.compile(r"^0 0 3\d\d "))
    assert [url for url in asked if "history" in url or "events" in url] == []


@pytest.mark.parametrize("hours", [-3, 3])
def test_charts_are_drawn_though_the_clock_of_the_browser_is_wrong(
    toy_server: Served, browser: Browser, use_timing: Callable[..., None], hours: int
):
    use_timing(history_point_seconds=0.0)
    for changes in (0, 2000, 5000):
        toy_server.run.show(make_status(changes_delivered=changes))
    page = browser.new_page()
    page.add_init_script(
        f"const right = Date.now.bind(Date); Date.now = () => right() + {hours} * 3600_000"
    )
    page.goto(trusted(toy_server))

    expect(page.locator("#lag-chart polyline")).to_have_count(1)
    edges = page.evaluate("""() => {
      const chart = document.querySelector('#lag-chart svg'), width = chart.viewBox.baseVal.width;
      return [...chart.querySelector('polyline').points].every(({ x }) => x > width / 2 && x <= width); }""")
    assert edges
    page.close()


def test_page_says_where_the_log_is_and_how_fast_a_table_is_copied(
    toy_server: Served, open_page: OpenPage
):
    toy_server.run.log = "kafka"
    now = time.time()
    for rows in (100, 300, 1300):
        tables = {"public.big": TableStatus("copying", rows, rows * 10, 1, 9)}
        toy_server.telemetry.counts.take(Snapshot(make_status(tables), 1, now + rows / 100))
    toy_server.run.at = now + 13
    page = open_page(trusted(toy_server))
    toy_server.telemetry.counts.take(Snapshot(make_status(tables), 1, now + 13))
    toy_server.run.status = make_status(tables)
    toy_server.run.version_number += 1

    expect(page.locator("#road .title", has_text="durable")).to_have_text("durable in Kafka")
    expect(page.locator("#rows tr td.num").nth(0)).to_have_text("100")


def test_charts_say_how_many_sinks_they_leave_out(
    toy_server: Served, open_page: OpenPage, use_timing: Callable[..., None]
):
    use_timing(history_point_seconds=0.0)
    page = open_page(trusted(toy_server))
    one = make_status()
    toy_server.run.show(one)
    expect(page.locator("#lag-chart polyline")).to_have_count(1)
    expect(page.locator("#lag-chart .more")).to_have_count(0)

    sinks = {f"sink{number}": one.sinks["warehouse"] for number in range(8)}
    toy_server.run.show(replace(one, sinks={**one.sinks, **sinks}))

    expect(page.locator("#lag-chart .more")).to_have_text("and 3 more")
    expect(page.locator("#rate-chart .more")).to_have_text("and 3 more")


def test_schema_changes_are_loaded_when_they_come_into_view(
    toy_server: Served, open_page: OpenPage
):
    version = {
        "schema_name": "public",
        "version": 2,
        "created_at": "2026-01-01T00:00:00+00:00",
        "acked": True,
        "lsn": "0/2A00",
        "source": "shop",
    }
    toy_server.run.schema_versions = [{**version, "version": 1}, version]
    page = open_page(trusted(toy_server), width=390)
    expect(page.locator("#live")).to_have_text("live")
    page.locator("#schema-title").scroll_into_view_if_needed()

    expect(page.locator("#schema-list li")).to_have_count(2)
    expect(page.locator("#schema-list li").first).to_contain_text("public version 2")
    page.locator("#schema-list button").first.click()
    expect(page.locator("#schema-list .changes").first).to_have_text(
        "public.orders: column note added"
    )


def test_schema_changes_of_several_sources_are_in_the_order_of_time(
    toy_server: Served, open_page: OpenPage
):
    status = make_status()
    status.sources["us"] = replace(status.sources["shop"])
    toy_server.run.show(status)
    toy_server.run.schema_versions = [
        {
            "schema_name": "public",
            "version": version,
            "created_at": created_at,
            "acked": True,
            "lsn": "0/2A00",
            "source": source,
        }
        for source, version, created_at in (
            ("shop", 1, "2026-01-01T00:00:00+00:00"),
            ("shop", 2, "2026-03-01T01:30:00+02:00"),
            ("us", 1, "2026-02-01T00:00:00+00:00"),
            ("us", 2, "2026-03-01T00:00:00+00:00"),
        )
    ]
    page = open_page(trusted(toy_server))
    expect(page.locator("#live")).to_have_text("live")
    page.locator("#schema-title").scroll_into_view_if_needed()

    wanted = ["us: 2", "shop: 2", "us: 1", "shop: 1"]
    expect(page.locator("#schema-list b")).to_have_text(
        [each.replace(":", ": public version") for each in wanted]
    )


# Text that leaves its cell, or lies over another one's; lines of a name that hold next to nothing.
CROWDED = """() => {
  const bad = [];
  for (const row of document.querySelectorAll('tbody tr')) {
    const cells = [...row.cells].filter(cell => cell.offsetParent && cell.textContent.trim());
    const boxes = cells.map(cell => { const range = document.createRange(); range.selectNodeContents(cell); return range.getBoundingClientRect(); });
    cells.forEach((cell, at) => {
      if (cell.scrollWidth > cell.clientWidth + 1) bad.push(['leaves', cell.textContent.slice(0, 40)]);
      if (cell.matches('.name') && cell.clientWidth < 150) bad.push(['narrow', cell.textContent.slice(0, 40), cell.clientWidth]);
      boxes.slice(at + 1).forEach((other, more) => {
        const box = boxes[at];
        if (box.left < other.right - 1 && other.left < box.right - 1 && box.top < other.bottom - 1 && other.top < box.bottom - 1)
          bad.push(['overlaps', cell.textContent.slice(0, 40), cells[at + 1 + more].textContent.slice(0, 40)]);
      });
    });
  }
  for (const box of document.querySelectorAll('.verdict, .stop, .problem'))
    if (box.scrollWidth > box.clientWidth + 1) bad.push(['leaves', box.textContent.slice(0, 40)]);
  return bad;
}"""


@pytest.mark.parametrize("width", [1280, 820, 390])
def test_long_names_and_keys_neither_leave_their_place_nor_lie_over_another(
    toy_server: Served, open_page: OpenPage, width: int
):
    long = "public.a_table_with_quite_a_long_name_that_has_to_wrap_" + "x" * 60
    entry = {
        "sink": "warehouse",
        "source": "shop",
        "table": "public.orders",
        "id": "7",
        "op": "insert",
        "key": {"id": 981, "tenant": "a text of some length that is part of the key"},
        "parked_at": "2026-11-19 20:00:00.123456+00",
        "reason": "PEN-310 value too long for type character varying(10)",
        "request": "retry",
    }
    toy_server.run.entries = [entry, {**entry, "id": "8", "table": long}]
    tables = {
        long: TableStatus("failed", 1200, 99999, 4, 4, error=REFUSED),
        "public.later": TableStatus("pending", request="resync"),
        "public.big": TableStatus("copying", 1_234_567, 99_999_999, 3, 9),
    }
    status = make_status(tables, parked=2)
    events = replace(status.sinks["warehouse"], tables={}, parked=0)
    status.sinks["bus_of_events_with_a_name_that_is_long_as_well"] = events
    toy_server.run.show(status)
    page = open_page(trusted(toy_server), width=width)
    page.locator("#parked-show").click()
    expect(page.locator("#parked-list tbody tr")).to_have_count(2)

    assert page.evaluate(CROWDED) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # Beside several sinks the log is no bigger than what it says.
    assert page.locator("#road .column").nth(1).locator(".stop").bounding_box()["height"] < 200


def test_parked_changes_are_shown_and_dropped_after_a_question(
    toy_server: Served, open_page: OpenPage
):
    toy_server.run.entries = [
        {
            "sink": "warehouse",
            "source": "shop",
            "table": "public.orders",
            "id": "7",
            "op": "update",
            "key": {"id": 981},
            "parked_at": "2026-01-01",
            "reason": "refused",
            "request": None,
        }
    ]
    toy_server.run.show(make_status(parked=1))
    page = open_page(trusted(toy_server))

    page.locator("#parked-show").click()
    expect(page.locator("#parked-list tbody tr")).to_have_count(1)
    page.locator("#parked-list button", has_text="Drop").click()
    page.locator("#ask-yes").click()

    expect(page.locator("#toast")).to_contain_text("1 change: dropped")
    assert toy_server.run.asked == [("parked drop", "warehouse", "shop", None, ["7"])]


def test_api_page_lists_the_routes(toy_server: Served, open_page: OpenPage):
    page = open_page(f"{toy_server.url}docs")

    expect(page.locator("article", has_text="/api/tables/resync")).to_be_visible()


def test_status_that_grows_old_is_shown_as_old(toy_server: Served, open_page: OpenPage):
    page = open_page(trusted(toy_server))
    expect(page.locator("#headline")).to_have_text("Everything is delivered.")

    # It is not old yet when it is sent, and nothing comes after it.
    toy_server.run.at -= timing().watch_stale_seconds - 2
    toy_server.run.version_number += 1

    expect(page.locator("#headline")).to_contain_text("old: the run may hang", timeout=20_000)
    expect(page.locator("#spoken")).to_have_text("What is shown is old: the run may hang.")


def test_capture_that_hangs_and_a_sink_with_a_stopped_table_are_not_green(
    toy_server: Served, open_page: OpenPage
):
    status = make_status({"public.orders": TableStatus("failed", error=REFUSED)})
    toy_server.run.show(status)
    page = open_page(trusted(toy_server))
    expect(page.locator("#road .column").last.locator(".dot.bad")).to_have_count(1)

    status = make_status()
    status.sources["shop"].reported_at = time.time() - 600
    toy_server.run.show(status)

    expect(page.locator("#headline")).to_have_text("source shop needs you.")
    expect(page.locator(".problem")).to_contain_text("capture has not reported since")


@pytest.mark.parametrize("part", ["source shop", "sink warehouse"])
def test_what_is_not_connected_is_not_green(toy_server: Served, open_page: OpenPage, part: str):
    if part == "source shop":
        status = make_status()
        status.sources["shop"].connected = False
    else:
        nowhere = {"delivered_lsn": None, "lag_seconds": None, "lag_bytes": None}
        status = make_status(sources={"shop": FlowStatus()}, **nowhere)
    toy_server.run.show(status)
    page = open_page(trusted(toy_server))

    expect(page.locator("#headline")).to_have_text(f"Not connected: {part}.")
    expect(page.locator("#verdict")).to_have_class("verdict warn")
    expect(page.locator("#road")).to_contain_text("not connected")
    [failure] = toy_server.ask("GET", "/ready").json["failures"]
    assert failure["component"] == part


def test_table_that_is_copied_is_the_news_while_a_sink_is_nowhere_yet(
    toy_server: Served, open_page: OpenPage
):
    tables = {"public.big": TableStatus("copying", 5, 5, 1, 4)}
    toy_server.run.show(make_status(tables, sources={"shop": FlowStatus()}, lag_seconds=None))
    page = open_page(trusted(toy_server))

    expect(page.locator("#headline")).to_have_text("Copying 1 table, 25% there.")


@pytest.mark.parametrize(
    ("answer", "said", "do"),
    [
        (
            {
                "status": 421,
                "json": {
                    "error": {"what": "Host 'a.test' is not this server", "do": "use 127.0.0.1"}
                },
            },
            "Host 'a.test' is not this server.",
            "Do: use 127.0.0.1",
        ),
        ({"status": 502, "body": "<h1>Bad Gateway</h1>"}, "It is answered 502", "proxy"),
    ],
)
def test_server_that_refuses_is_not_said_to_have_stopped(
    toy_server: Served, browser: Browser, answer: dict[str, object], said: str, do: str
):
    # Not `open_page`: a browser says by itself on the console how it was answered.
    page = browser.new_page()
    page.route("**/api/events", lambda route: route.fulfill(**answer))
    page.goto(trusted(toy_server))

    expect(page.locator("#headline")).to_contain_text(said)
    expect(page.locator("#subline")).to_contain_text(do)
    expect(page.locator("#live")).to_have_text("refused, trying again")
    page.close()


def test_token_in_the_address_may_hold_a_percent_sign(open_page: OpenPage):
    token = "50%off-and-long-enough-to-be-used"
    with served(ToyRun(), token=token) as server:
        page = open_page(f"{server.url}#token={token}")

        expect(page.locator("#token-button")).to_have_text("Forget token")


def test_wrong_token_is_refused_in_its_question_and_cancel_is_an_answer(
    browser: Browser,
):
    with served(ToyRun(), host="0.0.0.0") as server:
        # Not `open_page`: a browser says by itself on the console that it was answered 401.
        page = browser.new_page()
        page.goto(server.url.replace("0.0.0.0", "127.0.0.1"))
        expect(page.locator("#ask-title")).to_have_text("The token of the pipeline file")
        page.locator("#ask-no").click()
        expect(page.locator("#ask")).to_be_hidden()
        expect(page.locator("#headline")).to_contain_text("needs the token")
        expect(page.locator("#ask")).to_be_hidden()

        page.locator("#token-button").click()
        page.locator("#ask-input").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#ask-error")).to_have_text("The token is wrong.")
        page.locator("#ask-input").fill(TOKEN)
        page.keyboard.press("Enter")

        expect(page.locator("#headline")).to_have_text("Everything is delivered.")
        expect(page.locator("#ask")).to_be_hidden()
        page.locator("footer a", has_text="metrics").click()
        expect(page.locator("body")).to_contain_text("penstock_build_info")
        page.close()


def test_schema_changes_are_loaded_again_when_the_token_is_given(
    toy_server: Served, open_page: OpenPage
):
    page = open_page(toy_server.url)
    page.locator("#schema-title").scroll_into_view_if_needed()
    expect(page.locator("#schema-list")).to_contain_text("No version yet")
    toy_server.run.schema_versions = [
        {
            "schema_name": "public",
            "version": 1,
            "created_at": "2026-01-01T00:00:00+00:00",
            "acked": True,
            "lsn": "0/2A00",
            "source": "shop",
        }
    ]

    page.locator("#token-button").click()
    page.locator("#ask-input").fill(TOKEN)
    page.keyboard.press("Enter")

    expect(page.locator("#schema-list")).to_contain_text("public version 1")


def test_dangerous_question_is_not_answered_by_enter(toy_server: Served, open_page: OpenPage):
    page = open_page(trusted(toy_server))

    page.locator("#rows button", has_text="Remove").click()
    expect(page.locator("#ask-no")).to_be_focused()
    assert page.locator("#ask-yes").evaluate(BACKGROUND) == page.locator("body").evaluate(BAD)
    page.keyboard.press("Enter")

    expect(page.locator("#ask")).to_be_hidden()
    assert toy_server.run.asked == []


BACKGROUND = "e => getComputedStyle(e).backgroundColor"
BAD = """e => { const one = document.createElement('i'); one.style.color = 'var(--bad)'; e.append(one);
  const found = getComputedStyle(one).color; one.remove(); return found; }"""


def test_focus_stays_on_the_button_of_a_row_that_changes(toy_server: Served, open_page: OpenPage):
    page = open_page(trusted(toy_server))
    button = page.locator("#rows button", has_text="Resync")
    button.focus()

    toy_server.run.show(make_status({"public.orders": TableStatus("copying", 5, 5, 1, 4)}))
    expect(page.locator("#rows .pill.copying")).to_have_count(1)

    expect(button).to_be_focused()


def test_sorted_columns_say_which_way_and_can_be_sorted_on_a_phone(
    toy_server: Served, open_page: OpenPage
):
    page = open_page(trusted(toy_server), width=360)
    button = page.locator("[data-sort=rate]")

    button.click()
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Rows/s")
    button.click()
    expect(page.locator("th[aria-sort=ascending]")).to_have_text("Rows/s")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_screen_reader_is_told_the_verdict_without_moving_figures(
    toy_server: Served, open_page: OpenPage
):
    page = open_page(trusted(toy_server))
    toy_server.run.show(make_status(lag_seconds=30.0))

    expect(page.locator("#headline")).to_have_text("Behind by 30 s.")
    expect(page.locator("#spoken")).to_have_text("Behind.")
    assert page.locator("#verdict[aria-live]").count() == 0


def test_tab_that_is_hidden_asks_for_nothing(toy_server: Served, open_page: OpenPage):
    connections = toy_server.server._uvicorn.server_state.connections
    page = open_page(trusted(toy_server))
    expect(page.locator("#live")).to_have_text("live")

    page.evaluate(HIDE, True)
    wait_until(
        lambda: all(each.is_waiting for each in list(connections)), 20, "the stream to end", 0.05
    )
    toy_server.run.show(make_status({"public.orders": TableStatus("failed", error=REFUSED)}))
    page.evaluate(HIDE, False)

    expect(page.locator("#rows .pill.failed")).to_have_count(1)


HIDE = """hidden => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
  document.dispatchEvent(new Event('visibilitychange')); }"""


@contextmanager
def _orders_come_in(source: Database) -> Iterator[None]:
    """Changes at a rate that goes up and down, until the block ends."""
    is_over = threading.Event()

    def write() -> None:
        with source.connect() as connection:
            for turn in itertools.count():
                rows = round(40 + 30 * math.sin(turn / 7))
                connection.execute(
                    "INSERT INTO customers SELECT n, 'c' FROM generate_series(%s::int, %s) n",
                    (1000 + turn * 100, 1000 + turn * 100 + rows),
                )
                if is_over.wait(0.1):
                    return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        is_over.set()
        writer.join(30)


def _picture(page: Page, name: str, directory: Path) -> None:
    """At two widths, light and dark."""
    page.locator("#schema-load").click()
    expect(page.locator("#schema-list button").first).to_be_visible(timeout=20_000)
    page.locator("h1").click()  # no button is in focus
    expect(page.locator("#toast")).not_to_have_class("on", timeout=20_000)
    for width in (1280, 390):
        for scheme in ("light", "dark"):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            page.evaluate("window.scrollTo(0, 0)")
            path = directory / f"{name}-{width}-{scheme}.png"
            page.screenshot(path=path, full_page=width == 1280)
            assert path.stat().st_size > 10_000


@pytest.mark.long
def test_story_of_a_pipeline_seen_and_fixed_through_its_page(
    pg_new: EmbeddedPostgres,
    make_database: MakeDatabase,
    penstock_command: Callable[..., Command],
    open_page: OpenPage,
    tmp_path: Path,
):
    source, target = make_database(pg_new, "source"), make_database(pg_new, "target")
    source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, total int);"
        "CREATE TABLE customers (id int PRIMARY KEY, name text);"
        "CREATE TABLE big (id int PRIMARY KEY, note text) WITH (fillfactor = 10);"
        "INSERT INTO orders SELECT n, n FROM generate_series(1, 500) n;"
        "INSERT INTO customers SELECT n, 'c' FROM generate_series(1, 300) n;"
        f"INSERT INTO big SELECT n, repeat('x', 700) FROM generate_series(1, {BIG_ROWS}) n"
    )
    snapshot = {"mode": "initial", "max_rows_per_second": 800}
    document = pipeline_document(
        source,
        target,
        tmp_path,
        tables=("public.orders", "public.customers"),
        name="shop",
        source_options={"snapshot": snapshot, "schema": {"tracking": "triggers"}},
    )
    path = tmp_path / "shop.yml"
    path.write_text(yaml.safe_dump({**document, "listen": "127.0.0.1:0", "token": TOKEN}))
    # So that a table that has stopped waits for the button.
    patient = (
        "0.1 slow_retry_first_seconds=900 slow_retry_last_seconds=900 history_point_seconds=0.5"
    )
    running = penstock_command("run", str(path), env={"PENSTOCK_TIMING": patient})
    found = wait_until(
        lambda: re.search(r"listening on (http://\S+)", running.stderr), 60, "the server"
    )
    page = open_page(f"{found[1]}#token={TOKEN}")
    wait_for_state(target, "orders", "streaming", deadline_seconds=90)
    wait_for_state(target, "customers", "streaming")
    expect(page.locator("#rows .pill.streaming")).to_have_count(2, timeout=20_000)
    expect(page.locator("#headline")).to_have_text("Everything is delivered.", timeout=20_000)

    # A table is added through the page, and copied while one looks on.
    page.locator("#add-table").click()
    page.locator("#ask-input").fill("public.big")
    page.keyboard.press("Enter")
    expect(page.locator("#rows .pill.copying")).to_have_count(1, timeout=30_000)
    # Another one stops at a row that the target refuses.
    target.execute("ALTER TABLE orders ADD CHECK (total < 1000)")
    source.execute("ALTER TABLE orders ADD note text")
    source.execute("INSERT INTO orders VALUES (9001, 5000)")
    expect(page.locator("#rows .pill.failed")).to_have_count(1, timeout=30_000)
    expect(page.locator(".problem").first).to_contain_text("key (id=9001)")
    with _orders_come_in(source):
        expect(page.locator("#rows .progress i:not([style*=' 0%'])")).to_have_count(
            1, timeout=30_000
        )
        _picture(page, "page", Path(PICTURES) if PICTURES else tmp_path)
    page.set_viewport_size({"width": 1280, "height": 900})
    wait_for_state(target, "big", "streaming", deadline_seconds=90)
    assert table_state(target, "orders") == "failed"

    # Fixed at the target, and tried again by the button.
    target.execute("ALTER TABLE orders DROP CONSTRAINT orders_total_check")
    page.locator(".problem button", has_text="Retry now").click()
    page.locator("#ask-yes").click()
    wait_for_state(target, "orders", "streaming")

    expect(page.locator("#headline")).to_have_text("Everything is delivered.", timeout=20_000)
    assert target.query("SELECT total FROM orders WHERE id = 9001") == [(5000,)]
    assert "admin: tables retry public.orders" in running.stderr
    assert TOKEN not in running.stderr
    page.close()
    assert running.terminate() == 0
