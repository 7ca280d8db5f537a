"""Reports travel as small JSON files: typed at both ends, and torn ones are none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from penstock.lsn import Lsn
from penstock.run.sinkreports import SinkReports
from penstock.source.partitions import Partition
from penstock.state.directory import StateDirectory
from penstock.state.reports import (
    CaptureReport,
    CopyRequest,
    DeliveryReport,
    Failure,
    MembershipReport,
    SeenMembers,
    SeenPartitions,
    SourceErrors,
    TableReport,
)
from penstock.state.wire import FileWire

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.state.reports import Report

CAPTURE = CaptureReport(
    slot="penstock_shop",
    connected=True,
    received_lsn=Lsn(0x10),
    durable_lsn=Lsn(0x20),
    acknowledged_lsn=Lsn(0),
    last_commit_lsn=Lsn(0x18),
    last_committed_at=9,
    last_commit_may_be_skipped=True,
    server_started_at="2026-01-01",
    transactions=3,
    log_bytes=4,
    error=None,
    at=1.5,
)
MEMBERS = MembershipReport(
    published={'public."A b"': 7},
    entries={7: (8, 9)},
    left_out={"public.x": "no key"},
    partitions={7: {11: Partition("public.a", True)}},
    since_lsn=Lsn(0x10),
    lsn=Lsn(0x20),
    at=1.5,
)
DELIVERY = DeliveryReport(
    run="r1",
    delivered_lsn=Lsn(0x1_0000_0000),
    safe_lsn=Lsn(0x20),
    committed_at=5,
    changes_delivered=6,
    tables={"public.t": TableReport("failed", "PEN-503 \udce4")},
    error="PEN-501",
    seconds={"job": 0.5},
    at=1.5,
)

# As every version so far has them: names of files, and keys.
STORED: list[tuple[Report, str, str, dict[str, Any]]] = [
    (
        CAPTURE,
        "",
        "capture.json",
        {
            "slot": "penstock_shop",
            "connected": True,
            "received_lsn": "0/10",
            "durable_lsn": "0/20",
            "acknowledged_lsn": "0/0",
            "last_commit_lsn": "0/18",
            "last_committed_at": 9,
            "last_commit_may_be_skipped": True,
            "server_started_at": "2026-01-01",
            "transactions": 3,
            "log_bytes": 4,
            "error": None,
            "warning": None,
            "at": 1.5,
        },
    ),
    (
        MEMBERS,
        "",
        "tables.json",
        {
            "published": {'public."A b"': 7},
            "entries": {"7": [8, 9]},
            "left_out": {"public.x": "no key"},
            "delayed": [],
            "partitions": {"7": {"11": ["public.a", True]}},
            "since_lsn": "0/10",
            "lsn": "0/20",
            "at": 1.5,
        },
    ),
    (
        DELIVERY,
        "warehouse",
        "sinks/warehouse.json",
        {
            "run": "r1",
            "delivered_lsn": "1/0",
            "safe_lsn": "0/20",
            "committed_at": 5,
            "changes_delivered": 6,
            "tables": {"public.t": {"state": "failed", "error": "PEN-503 \udce4"}},
            "error": "PEN-501",
            "seconds": {"job": 0.5},
            "parked": 0,
            "subscriptions": {},
            "copies": {},
            "requests_taken": 0,
            "at": 1.5,
        },
    ),
    (
        SeenMembers({"public.t": 7}, {7: (8,)}),
        "warehouse",
        "sinks/warehouse.members.json",
        {"oids": {"public.t": 7}, "entries": {"7": [8]}},
    ),
    (
        SeenPartitions({7: {11: Partition("public.a", False)}}, (12,)),
        "warehouse",
        "sinks/warehouse.partitions.json",
        {"partitions": {"7": {"11": ["public.a", False]}}, "left": [12], "came": []},
    ),
    (
        CopyRequest(3, ("public.t",)),
        "warehouse",
        "sinks/warehouse.requests.json",
        {"number": 3, "tables": ["public.t"]},
    ),
    (SourceErrors({"a": "PEN-201"}), "", "sources.json", {"errors": {"a": "PEN-201"}}),
    (
        Failure("PEN-201", 1.5),
        "capture",
        "capture.failed.json",
        {"error": "PEN-201", "at": 1.5},
    ),
]


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    made = StateDirectory(tmp_path / "state", "shop")
    made.claim()
    return made


@pytest.fixture
def wire(state: StateDirectory) -> FileWire:
    return FileWire(state)


@pytest.mark.parametrize(
    ("report", "of", "file", "stored"), STORED, ids=lambda each: str(each)[:20]
)
def test_report_is_stored_under_the_names_and_keys_of_earlier_versions(
    state: StateDirectory,
    wire: FileWire,
    report: Report,
    of: str,
    file: str,
    stored: dict[str, Any],
):
    assert wire.latest(type(report), of) is None
    assert wire.published_at(type(report), of) == 0.0

    assert wire.publish(report, of)

    assert json.loads((state.path / file).read_text()) == stored
    assert wire.latest(type(report), of) == report
    assert wire.published_at(type(report), of) > 0.0
    wire.withdraw(type(report), of)
    assert wire.latest(type(report), of) is None


def test_report_with_fewer_or_more_keys_is_one(state: StateDirectory, wire: FileWire):
    """That of an earlier version, and that of a later one."""
    path = state.path / "sinks" / "s.json"
    path.write_text('{"delivered_lsn": "0/8", "safe_lsn": "0/8", "to_come": 1}')

    assert wire.latest(DeliveryReport, "s") == DeliveryReport(delivered_lsn=Lsn(8), safe_lsn=Lsn(8))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"safe_lsn": "0/8"',
        "[]",
        '"0/8"',
        "null",
        '{"safe_lsn": 8}',
        '{"safe_lsn": "eight"}',
        '{"tables": {"public.t": "streaming"}}',
        '{"changes_delivered": []}',
        "\0" * 50,
    ],
)
def test_torn_or_strange_content_is_no_report(state: StateDirectory, wire: FileWire, text: str):
    (state.path / "sinks" / "s.json").write_text(text)

    assert wire.latest(DeliveryReport, "s") is None


def test_every_cut_of_a_report_is_none_or_the_whole(state: StateDirectory, wire: FileWire):
    wire.publish(DELIVERY, "s")
    path = state.path / "sinks" / "s.json"
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])

        assert wire.latest(DeliveryReport, "s") is None


def test_slot_is_told_what_the_run_that_delivers_now_reports_of_every_sink(
    state: StateDirectory, wire: FileWire
):
    reports = SinkReports(wire, ["one", "two"])
    for name, lsn in (("one", 8), ("two", 16)):
        wire.publish(
            DeliveryReport(run="before", delivered_lsn=Lsn(lsn + 1), safe_lsn=Lsn(lsn)), name
        )
    assert (reports.safe_lsn(), reports.once_delivered_lsn()) == (0, 17)

    with state.lock("deliver"):
        run = wire.delivering_run()
        assert reports.is_delivering()
        wire.publish(DeliveryReport(run=run, safe_lsn=Lsn(24)), "one")
        assert reports.safe_lsn() == 0  # the other one has not been opened
        wire.publish(DeliveryReport(run=run, safe_lsn=Lsn(20)), "two")
        assert reports.safe_lsn() == 20

    assert not reports.is_delivering()
    assert (
        reports.safe_lsn() == 20
    )  # it was true when that run ended, and nobody has delivered since
    (state.path / "sinks" / "one.json").write_text("{")
    assert reports.safe_lsn() == 0
