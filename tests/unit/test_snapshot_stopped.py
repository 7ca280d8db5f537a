"""`penstock snapshot` that a signal stops does not say that tables were copied."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from penstock.config import pipeline_from_document
from penstock.run import snapshot
from penstock.run.status import PipelineStatus
from penstock.sinks.status import SinkStatus, TableStatus

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("states", "left"),
    [
        ({}, "any table"),
        ({"public.a": "streaming", "public.b": "copying"}, "1 tables"),
        ({"public.a": "streaming", "public.b": "streaming"}, None),
    ],
)
def test_snapshot_that_is_stopped_says_what_is_not_copied(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    states: dict[str, str],
    left: str | None,
) -> None:
    stop = threading.Event()
    pipeline = pipeline_from_document(
        {
            "name": "shop",
            "state": str(tmp_path / "state"),
            "source": {"url": "postgresql://x@127.0.0.1:1/none", "tables": ["public.*"]},
            "sinks": {"out": {"kind": "file", "path": str(tmp_path / "out")}},
        },
        "test",
    )
    tables = {name: TableStatus(state=state) for name, state in states.items()}
    status = PipelineStatus("shop", "stopped", {}, {"out": SinkStatus(tables=tables)})
    for module in ("penstock.run.snapshot", "penstock.run.requests"):
        monkeypatch.setattr(f"{module}.read_status", lambda *_, **__: status)
    monkeypatch.setattr(snapshot, "run_pipeline", lambda *_, **__: stop.set())

    copied = snapshot.run_snapshot(pipeline, [], stop)

    assert copied == [name for name, state in states.items() if state == "streaming"]
    said = [each.getMessage() for each in caplog.records]
    assert said == ([f"stopped before {left} had been copied and had caught up"] if left else [])
