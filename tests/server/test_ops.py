"""What lies in ops/ fits the instruments that exist, and the documentation says what to do at each alarm."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import yaml

from fix_machine import program
from fix_pipeline import pipeline_document
from fix_wait import wait_until
from fix_watched import REFUSED, Served, make_status
from penstock.embedded.ports import free_port
from penstock.metrics import HISTOGRAM, INSTRUMENTS
from penstock.server.observed import _STATES, _SUBSCRIPTION_STATES, _WAL_STATUSES
from penstock.sinks.status import SubscriptionStatus, TableStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fix_pipeline import Command
    from fix_postgres import MakeDatabase
    from penstock.embedded.postgres import EmbeddedPostgres

ROOT = Path(__file__).parents[2]
RULES = ROOT / "ops" / "alerts.yml"
DASHBOARD = ROOT / "ops" / "grafana.json"
MONITOR = (ROOT / "docs" / "howto" / "monitor.md").read_text()


def series() -> set[str]:
    """Every name that a query may use."""
    names = {each.prometheus_name for each in INSTRUMENTS if each.kind != HISTOGRAM}
    for each in INSTRUMENTS:
        if each.kind == HISTOGRAM:
            names |= {f"{each.prometheus_name}_{end}" for end in ("bucket", "sum", "count")}
    return names


def rules() -> list[dict[str, Any]]:
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    return group["rules"]


def test_rules_use_instruments_that_exist():
    for rule in rules():
        used = set(re.findall(r"penstock_\w+", rule["expr"]))
        assert used <= series(), rule["alert"]
        states = _SUBSCRIPTION_STATES if "penstock_subscriptions" in used else _STATES
        for label, value in re.findall(r"(\w+)=~?\"([^\"]+)\"", rule["expr"]):
            known = {"state": states, "status": _WAL_STATUSES, "job": ("penstock",)}[label]
            assert set(value.split("|")) <= set(known), rule["alert"]


def test_every_rule_is_explained_and_no_other():
    section = MONITOR.partition("## What to do at each alarm")[2]
    explained = set(re.findall(r"`(Penstock\w+)`", section))

    assert explained == {rule["alert"] for rule in rules()}


def test_dashboard_uses_instruments_and_labels_that_exist():
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())
    ]
    labels = {label for each in INSTRUMENTS for label in each.labels} | {"pipeline", "le"}

    assert len(queries) > 15
    for query in queries:
        assert set(re.findall(r"penstock_\w+", query)) <= series(), query
        for group in re.findall(r"(?:by|on) \(([^)]*)\)", query):
            assert set(re.split(r", *", group)) <= labels, query
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


def test_every_instrument_is_documented_and_no_other():
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    rows = re.findall(
        r"^\| `(penstock_\w+)` \| `([\w.]+)`(?:, \S+)? \| (\w+) \| (.*?) \|", page, re.M
    )

    assert [row[:3] for row in rows] == [
        (each.prometheus_name, each.name, each.kind) for each in INSTRUMENTS
    ]
    for row, each in zip(rows, INSTRUMENTS, strict=True):
        assert re.findall(r"`(\w+)`", row[3]) == list(each.labels), each.name


def test_every_metric_of_pgstream_is_mapped():
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    names = """replication.lag pipeline.phase target.processing.lag target.processing.latency
        snapshot.generator.latency kafka.writer.batch.size kafka.writer.batch.bytes kafka.writer.latency
        kafka.reader.msg.bytes kafka.reader.fetch.latency kafka.reader.commit.latency kafka.reader.commit.batch.size
        postgres.querier.latency postgres.writer.dropped_queries batch.sender.dropped_batches
        batch.sender.dropped_messages search.store.doc.errors transformer.latency"""

    rows = re.findall(r"^\| (`pgstream\..*?) \| (.*) \|$", page, re.M)
    mapped = [name for left, _ in rows for name in re.findall(r"`([^`]+)`", left)]
    assert sorted(mapped) == sorted(f"pgstream.{name}" for name in names.split())
    known = {each.name for each in INSTRUMENTS}
    for _, right in rows:
        ours = re.findall(r"`(penstock[\w.]+)`", right)
        assert ours, right
        assert set(ours) <= known, right


def test_promtool_accepts_the_rules():
    done = subprocess.run(
        [program("promtool", "prometheus"), "check", "rules", str(RULES)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("state", "minutes", "alarm"),
    [
        ("suspended", 2, "PenstockSubscriptionStopped"),
        ("cut_off", 2, "PenstockSubscriptionStopped"),
        ("disabled", 2, "PenstockSubscriptionDisabled"),
        ("failing", 62, "PenstockSubscriptionFailing"),
        ("active", 62, None),
    ],
)
def test_subscription_that_is_not_delivered_to_raises_an_alarm(
    state: str, minutes: int, alarm: str | None, tmp_path: Path
):
    labels = {"pipeline": "shop", "sink": "hooks", "state": state}
    named = ",".join(f'{name}="{value}"' for name, value in labels.items())
    series = [
        {"series": f"penstock_subscriptions{{{named}}}", "values": "0x9 2x120"},
        {"series": 'up{job="penstock"}', "values": "1x130"},
    ]
    raised = 'count by (alertname) (ALERTS{alertstate="firing"})'
    expected = [{"labels": f'{{alertname="{alarm}"}}', "value": 1}] if alarm else []
    asked = {"expr": raised, "eval_time": f"{10 + minutes}m", "exp_samples": expected}
    document = {
        "rule_files": [str(RULES)],
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": [asked]}],
    }
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump(document))

    done = subprocess.run(
        [program("promtool", "prometheus"), "test", "rules", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def scraped(port: int, tmp_path: Path) -> Iterator[str]:
    """Prometheus itself, which scrapes a server every second; its rules wait a second at most."""
    text = re.sub(r"^( +for:) \S+$", r"\1 1s", RULES.read_text(), flags=re.M)
    (tmp_path / "alerts.yml").write_text(text)
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(tmp_path / "alerts.yml")],
        "scrape_configs": [
            {
                "job_name": "penstock",
                "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
            }
        ],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    own_port = free_port()
    process = subprocess.Popen(
        [
            program("prometheus"),
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{own_port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{own_port}"
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def prometheus(toy_server: Served, tmp_path: Path) -> Iterator[str]:
    with scraped(toy_server.port, tmp_path) as url:
        yield url


def _alerts(url: str) -> set[str]:
    try:
        with urllib.request.urlopen(f"{url}/api/v1/alerts", timeout=5) as answer:
            found = json.load(answer)["data"]["alerts"]
    except OSError:
        return set()
    return {each["labels"]["alertname"] for each in found if each["state"] == "firing"}


def _holds(url: str, query: str) -> bool:
    """Whether a query finds something."""
    asked = f"{url}/api/v1/query?query={urllib.parse.quote(query)}"
    try:
        with urllib.request.urlopen(asked, timeout=5) as got:
            return bool(json.load(got)["data"]["result"])
    except OSError:
        return False


@pytest.mark.long
def test_prometheus_scrapes_and_raises_the_alarms_of_a_fault(toy_server: Served, prometheus: str):
    is_scraped = partial(_holds, prometheus, 'penstock_sink_up{pipeline="shop"}')
    wait_until(is_scraped, 60, "the first scrape", 0.5)
    # Before it, there was nothing to be scraped, and a second of that is enough here.
    wait_until(lambda: not _alerts(prometheus), 30, "no alarm", 0.5)

    status = make_status({"public.orders": TableStatus("failed", error=REFUSED)}, parked=2)
    status.sources["shop"].wal_status = "unreserved"
    status.sources["shop"].retained_bytes = 20_000_000_000
    status.sources["shop"].connected = False
    status.sources["shop"].reported_at = time.time() - 600
    status.sinks["warehouse"].sources["shop"].lag_seconds = 300.0
    states = ("suspended", "disabled", "failing")
    subscriptions = {f"sub_{each}": SubscriptionStatus(each) for each in states}
    status.sinks["warehouse"].subscriptions = subscriptions
    toy_server.run.show(status)

    wanted = {
        "PenstockTableStopped",
        "PenstockParked",
        "PenstockSlotAtRisk",
        "PenstockSlotRetention",
        "PenstockSourceDown",
        "PenstockNoHeartbeat",
        "PenstockLag",
        "PenstockSubscriptionStopped",
        "PenstockSubscriptionDisabled",
        "PenstockSubscriptionFailing",
    }
    wait_until(lambda: wanted <= _alerts(prometheus), 60, "the alarms", 0.5)
    toy_server.run.show(make_status())
    wait_until(lambda: not _alerts(prometheus), 60, "the alarms to end", 0.5)


@pytest.mark.long
def test_alarms_are_raised_by_faults_of_a_real_run(
    pg_new: EmbeddedPostgres,
    make_database: MakeDatabase,
    penstock_command: Callable[..., Command],
    tmp_path: Path,
):
    source, target = make_database(pg_new, "source"), make_database(pg_new, "target")
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, total int)")
    target.execute("CREATE TABLE orders (id int PRIMARY KEY, total int CHECK (total < 1000))")
    document = pipeline_document(source, target, tmp_path, name="shop")
    path = tmp_path / "shop.yml"
    path.write_text(yaml.safe_dump({**document, "listen": "127.0.0.1:0"}))
    running = penstock_command("run", str(path), env={"PENSTOCK_TIMING": "0.1"})
    pattern = r"listening on http://127.0.0.1:(\d+)/"
    found = wait_until(lambda: re.search(pattern, running.stderr), 60, "the server")

    with scraped(int(found[1]), tmp_path) as url:
        wait_until(lambda: _holds(url, "penstock_source_up == 1"), 90, "capture", 0.5)
        wait_until(lambda: not _alerts(url), 60, "no alarm", 0.5)

        source.execute("INSERT INTO orders VALUES (1, 5000)")
        wait_until(lambda: "PenstockTableStopped" in _alerts(url), 60, "the alarm", 0.5)
        target.execute("ALTER TABLE orders DROP CONSTRAINT orders_total_check")
        wait_until(lambda: not _alerts(url), 120, "the table to go on", 0.5)

        [capture] = [
            each
            for each in psutil.Process(running.process.pid).children()
            if "penstock.run.capture_process" in " ".join(each.cmdline())
        ]
        capture.suspend()
        try:
            wait_until(lambda: "PenstockNoHeartbeat" in _alerts(url), 150, "the alarm", 0.5)
        finally:
            capture.resume()
        wait_until(lambda: not _alerts(url), 90, "capture to go on", 0.5)

        assert running.terminate() == 0
        wait_until(lambda: "PenstockDown" in _alerts(url), 60, "the alarm", 0.5)
