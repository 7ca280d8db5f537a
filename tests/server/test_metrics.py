"""Metrics: all instruments are exposed under the names of the documentation, with bounded labels, and pushed."""

from __future__ import annotations

import http.server
import re
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from fix_machine import program
from fix_watched import REFUSED, Served, ToyRun, make_status, served
from penstock.errors import error_classes
from penstock.metrics import (
    INSTRUMENTS,
    MOST_TABLES,
    NOTHING,
    OTHER_TABLES,
    BatchRecord,
    TaskRecord,
)
from penstock.server.observed import OBSERVED
from penstock.server.processes import Processes
from penstock.server.pushed import resource_of
from penstock.server.telemetry import Telemetry
from penstock.server.watched import Snapshot
from penstock.sinks.status import SubscriptionStatus, TableStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def a_batch(number: int = 1, table: str = "public.orders", rows: int = 100) -> BatchRecord:
    return BatchRecord(
        "shop",
        "warehouse",
        number,
        size_bytes=20_000,
        change_count=rows,
        began_at=1_700_000_000.0,
        job_seconds=0.05,
        commit_began_at=1_700_000_000.05,
        commit_seconds=0.02,
        has_job=True,
        rows={(table, "insert"): rows},
        read_bytes={"insert": 20_000},
        tasks=[TaskRecord(1_700_000_000.01, {"read": 0.001, "decode": 0.01, "stage": 0.02}, rows)],
    )


def busy(server: Served) -> None:
    """Give every instrument something to say."""
    tables = {
        "public.orders": TableStatus("copying", 10, 20, 1, 2, conflicts={"insert_exists": 2}),
        "public.bad": TableStatus("failed", error=REFUSED),
    }
    subscriptions = {"sub_1": SubscriptionStatus("suspended"), "sub_2": SubscriptionStatus()}
    server.run.show(make_status(tables, parked=2, subscriptions=subscriptions))
    server.telemetry.batch(a_batch())
    server.telemetry.retry("warehouse")
    server.telemetry.restart("spark")


def samples(server: Served) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = server.ask("GET", "/metrics").body.decode()
    return {
        (each.name, tuple(sorted(each.labels.items()))): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


def test_every_instrument_is_exposed_under_its_name_with_its_labels(toy_server: Served):
    busy(toy_server)
    text = toy_server.ask("GET", "/metrics").body.decode()
    names = set(re.findall(r"^# TYPE (\S+) ", text, re.M))

    assert names == {each.prometheus_name for each in INSTRUMENTS}
    labels: dict[str, set[str]] = {}
    for name, given in samples(toy_server):
        base = re.sub(r"_(bucket|count|sum)$", "", name)
        labels.setdefault(base, set()).update(key for key, _ in given)
    for each in INSTRUMENTS:
        found = labels[each.prometheus_name] - {"le"}
        assert found == {*each.labels, "pipeline"}, each.name


def test_values_are_those_of_status_and_batches(toy_server: Served):
    busy(toy_server)
    found = samples(toy_server)
    place = (("pipeline", "shop"), ("sink", "warehouse"), ("source", "shop"))

    assert found["penstock_sink_position_bytes", place] == 0x2A00
    assert found["penstock_batches_total", place] == 1
    assert found["penstock_batch_size_bytes_sum", place] == 20_000
    rows = (*place[:1], *place[1:], ("operation", "insert"), ("table", "public.orders"))
    assert found["penstock_rows_total", tuple(sorted(rows))] == 100
    commit = tuple(sorted((*place, ("part", "commit"))))
    assert found["penstock_batch_duration_seconds_sum", commit] == pytest.approx(0.02)
    assert found["penstock_restarts_total", (("pipeline", "shop"), ("process", "spark"))] == 1
    failed = (("pipeline", "shop"), ("sink", "warehouse"), ("state", "failed"))
    assert found["penstock_tables", failed] == 1
    suspended = (("pipeline", "shop"), ("sink", "warehouse"), ("state", "suspended"))
    assert found["penstock_subscriptions", suspended] == 1
    assert found["penstock_errors_total", (("code", "PEN-506"), ("pipeline", "shop"))] == 1


def test_error_is_counted_when_it_appears_not_while_it_stays(toy_server: Served):
    for error in (REFUSED, REFUSED, None, REFUSED):
        toy_server.run.show(make_status({"public.a": TableStatus("failed", error=error)}))

    assert (
        samples(toy_server)["penstock_errors_total", (("code", "PEN-506"), ("pipeline", "shop"))]
        == 2
    )


def errors_of(server: Served, code: str) -> float:
    return samples(server)["penstock_errors_total", (("code", code), ("pipeline", "shop"))]


def test_every_code_has_a_series_that_begins_at_zero(toy_server: Served):
    found = {
        dict(labels)["code"]: value
        for (name, labels), value in samples(toy_server).items()
        if name == "penstock_errors_total"
    }

    assert found == dict.fromkeys(error_classes(), 0)


def test_error_that_comes_and_goes_between_two_snapshots_is_counted_once(toy_server: Served):
    before = errors_of(toy_server, "PEN-506")
    toy_server.run.show(make_status())
    toy_server.telemetry.error("sink warehouse", REFUSED)
    toy_server.run.show(make_status())
    assert errors_of(toy_server, "PEN-506") == before + 1

    toy_server.telemetry.error("sink warehouse", REFUSED)
    for _ in range(2):
        toy_server.run.show(make_status(error=REFUSED))
    assert errors_of(toy_server, "PEN-506") == before + 2, "the snapshot shows what was told"
    toy_server.run.show(make_status())
    toy_server.run.show(make_status(error=REFUSED))
    assert errors_of(toy_server, "PEN-506") == before + 3, "this one only a snapshot has shown"


def test_table_that_is_copied_has_a_rate(toy_server: Served):
    def shown(rows: int, at: float) -> float:
        status = make_status({"public.big": TableStatus("copying", rows, rows * 10, 1, 9)})
        toy_server.telemetry.counts.take(Snapshot(status, 1, at))
        return toy_server.telemetry.counts.table_rates().get(("warehouse", "public.big"), 0.0)

    assert shown(0, 1000.0) == 0.0
    assert shown(100, 1001.0) == 0.0, "nobody knows since when"
    assert shown(300, 1003.0) == pytest.approx(100.0)
    assert shown(300, 1004.0) == pytest.approx(100.0), "nothing new was asked"
    assert shown(300, 1013.0) == pytest.approx(20.0)
    status = make_status({"public.big": TableStatus("streaming", 300)})
    toy_server.telemetry.counts.take(Snapshot(status, 2, 1014.0))
    assert toy_server.telemetry.counts.table_rates() == {}


def test_tables_above_the_limit_are_counted_together_and_that_is_said(
    toy_server: Served, caplog: pytest.LogCaptureFixture
):
    for number in range(MOST_TABLES + 50):
        toy_server.telemetry.batch(a_batch(number, f"public.t{number}", 1))

    found = samples(toy_server)

    tables = {dict(given)["table"] for name, given in found if name == "penstock_rows_total"}
    assert len(tables) == MOST_TABLES + 1
    [others] = [
        value
        for (name, given), value in found.items()
        if name == "penstock_rows_total" and dict(given)["table"] == OTHER_TABLES
    ]
    assert others == 50
    assert found["penstock_metrics_tables_joined", (("pipeline", "shop"),)] == 50
    assert [each.getMessage() for each in caplog.records].count(
        f"metrics: more than {MOST_TABLES} tables; rows of further ones are counted as {OTHER_TABLES}"
    ) == 1


def rows_by_table(server: Served) -> dict[str, float]:
    return {
        dict(given)["table"]: value
        for (name, given), value in samples(server).items()
        if name == "penstock_rows_total"
    }


def test_tables_that_are_gone_for_an_hour_make_room_for_others(toy_server: Served):
    counts = toy_server.telemetry.counts
    here = {f"public.t{number}": TableStatus() for number in range(MOST_TABLES)}

    def take(tables: dict[str, TableStatus], at: float, **sink: object) -> None:
        counts.take(Snapshot(make_status(tables, **sink), 1, at))

    for number in range(MOST_TABLES + 1):
        toy_server.telemetry.batch(a_batch(number, f"public.t{number}", 5))
    left = {name: each for name, each in here.items() if name not in ("public.t0", "public.t1")}
    left["public.t200"] = TableStatus()
    take({**here, "public.t200": TableStatus()}, 1000.0)
    take(left, 2000.0)
    take({**left, "public.t2": TableStatus("removed")}, 5599.0)
    take({}, 5599.5, error="PEN-501 sink warehouse: does not answer")
    before = rows_by_table(toy_server)
    assert before["public.t0"] == 5
    toy_server.telemetry.batch(a_batch(1, "public.t1", 5))  # it is there all the same
    take({**left, "public.t2": TableStatus("removed")}, 5600.0)
    toy_server.telemetry.batch(a_batch(2, "public.t200", 7))
    toy_server.telemetry.batch(a_batch(3, "public.t201", 9))
    after = rows_by_table(toy_server)

    assert "public.t0" not in after
    assert (after["public.t1"], after["public.t2"], after["public.t200"]) == (10, 5, 7)
    assert after[OTHER_TABLES] == 5 + 9
    rose = {name: value - before.get(name, 0) for name, value in after.items()}
    assert min(rose.values()) >= 0
    assert sum(rose.values()) == 5 + 7 + 9
    [joined] = [
        value for (name, _), value in samples(toy_server).items() if name.endswith("tables_joined")
    ]
    assert joined == 1

    take({**left, "public.t2": TableStatus("removed")}, 9999.0)
    assert "public.t2" not in rows_by_table(toy_server)
    toy_server.telemetry.batch(a_batch(4, "public.t2", 1))
    assert rows_by_table(toy_server)["public.t2"] == 1


@pytest.mark.parametrize(
    ("half", "wanted", "other"),
    [
        ("capture", "penstock_slot_retained_bytes", "penstock_sink_lag_seconds"),
        ("deliver", "penstock_sink_lag_seconds", "penstock_slot_retained_bytes"),
    ],
)
def test_half_exports_the_series_that_are_its_own(half: str, wanted: str, other: str):
    with served(ToyRun(halves=frozenset({half}))) as server:
        busy(server)
        names = {name for name, _ in samples(server)}

    assert wanted in names
    assert other not in names
    assert "penstock_process_memory_bytes" in names


def test_cpu_time_of_a_role_does_not_fall_when_a_process_ends(use_timing: Callable[..., None]):
    use_timing(process_usage_seconds=-1.0, process_list_seconds=-1.0)
    processes = Processes()
    burn = "import time\nwhile time.process_time() < 0.2: pass\nprint(1, flush=True)\ninput()"
    child = subprocess.Popen(
        [sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    during = processes.usage()["worker"]
    child.communicate(b"\n")

    after = processes.usage()["worker"]

    assert during.cpu_seconds >= 0.15
    assert after.cpu_seconds >= during.cpu_seconds
    assert during.count == after.count + 1  # other tests of this process have children as well


def test_copy_that_stands_still_has_no_rate_for_long(toy_server: Served):
    counts = toy_server.telemetry.counts

    def rate_at(at: float, rows: int) -> float:
        status = make_status({"public.orders": TableStatus("copying", rows, rows, 1, 2)})
        counts.take(Snapshot(status, int(at), 1000.0 + at))
        return counts.read("penstock.copy.rate")[0][0]

    rate_at(0, 100)
    assert rate_at(2, 300) == 100
    assert rate_at(3, 300) == 100
    assert rate_at(202, 300) == 1
    assert ("penstock_retries_total", (("pipeline", "shop"), ("sink", "warehouse"))) in samples(
        toy_server
    )


def test_no_key_and_no_text_of_an_error_is_in_metrics(toy_server: Served):
    busy(toy_server)

    body = toy_server.ask("GET", "/metrics").body
    assert b"(id=" not in body
    assert b"customer_id" not in body


def test_promtool_finds_nothing_wrong(toy_server: Served):
    busy(toy_server)
    text = toy_server.ask("GET", "/metrics").body

    done = subprocess.run(
        [program("promtool", "prometheus"), "check", "metrics"],
        input=text,
        capture_output=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, b"")


def test_every_instrument_that_is_read_off_the_status_exists():
    assert set(OBSERVED) <= {each.name for each in INSTRUMENTS}


def test_recorder_of_a_run_that_nobody_watches_does_nothing():
    trace = NOTHING.begin("shop", "warehouse", 1)
    NOTHING.batch(a_batch())
    trace.end(None)

    assert (trace.trace_id, trace.traceparent, NOTHING.is_on) == (None, None, False)


class _Collector(http.server.ThreadingHTTPServer):
    """A small OTLP receiver: keeps what is pushed, by path."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Take)
        self.taken: list[tuple[str, bytes]] = []


class _Take(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        self.server.taken.append((self.path, body))  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Collector]:
    server = _Collector()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_collector_that_does_not_answer_delays_no_stop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
        telemetry = Telemetry("shop", "1.2.3", ToyRun().snapshot, is_alone=True)
        telemetry.begin("shop", "warehouse", 7).end(a_batch(7))

        began = time.monotonic()
        telemetry.close()

        assert time.monotonic() - began < 5
        assert "the collector does not answer" in caplog.text


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "penstock"),
        ({"OTEL_SERVICE_NAME": "shop-cdc"}, "shop-cdc"),
        ({"OTEL_SERVICE_NAME": ""}, "penstock"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=theirs,team=data"}, "theirs"),
    ],
)
def test_name_of_the_service_is_what_the_environment_says(
    given: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
):
    for key in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(key, raising=False)
    for key, value in given.items():
        monkeypatch.setenv(key, value)

    found = resource_of("shop", "1.2.3").attributes

    assert (found["service.name"], found["pipeline"]) == (name, "shop")
    assert found.get("team") == ("data" if "OTEL_RESOURCE_ATTRIBUTES" in given else None)


@pytest.mark.parametrize(
    ("variable", "protocol", "is_said"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", True),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/json", True),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc", True),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", False),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "", False),
    ],
)
def test_protocol_that_is_not_pushed_is_said_at_the_start(
    variable: str,
    protocol: str,
    is_said: bool,
    collector: _Collector,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setenv(variable, protocol)
    Telemetry("shop", "1.2.3", ToyRun().snapshot, is_alone=True).close()

    said = [each.getMessage() for each in caplog.records if variable in each.getMessage()]
    assert len(said) == is_said
    assert all(protocol in each and "http/protobuf" in each for each in said)


def test_metrics_and_traces_are_pushed_where_an_endpoint_is_set(collector: _Collector):
    run = ToyRun()
    telemetry = Telemetry("shop", "1.2.3", run.snapshot, is_alone=True)
    trace = telemetry.begin("shop", "warehouse", 7)
    record = a_batch(7)

    telemetry.batch(record)
    trace.end(record)
    lost = telemetry.begin("shop", "warehouse", 8)
    lost.end(None)
    telemetry.close()

    pushed = [
        metric
        for path, body in collector.taken
        if path == "/v1/metrics"
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ]
    assert {"penstock.sink.lag", "penstock.batch.duration", "penstock.rows"} <= {
        metric.name for metric in pushed
    }
    for metric in pushed:
        [kind] = [each for _, each in metric.ListFields() if hasattr(each, "data_points")]
        for point in kind.data_points:
            labels = {each.key: each.value.string_value for each in point.attributes}
            assert labels["pipeline"] == "shop", metric.name
    spans = [
        span
        for path, body in collector.taken
        if path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert trace.traceparent is not None
    whole = [span for span in spans if span.trace_id.hex() == trace.trace_id]
    assert sorted(span.name for span in whole) == ["batch", "commit", "job", "task"]
    ids = {span.span_id: span.name for span in whole}
    parents = {span.name: ids.get(span.parent_span_id) for span in whole}
    assert parents == {"batch": None, "job": "batch", "task": "job", "commit": "batch"}
    [task] = [span for span in whole if span.name == "task"]
    assert task.end_time_unix_nano - task.start_time_unix_nano == pytest.approx(
        31_000_000, abs=1000
    )
