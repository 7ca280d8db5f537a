"""Both halves of a pipeline that are started at once for the first time. No Spark."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from fix_postgres import only_new
from penstock.config import pipeline_from_document
from penstock.errors import SecondInstance
from penstock.pipeline import build_sinks
from penstock.run.start import start

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_postgres import Database
    from penstock.config import PipelineFile

pytestmark = only_new


def pipeline_of(source: Database, path: Path) -> PipelineFile:
    document: dict[str, Any] = {
        "name": "test",
        "state": str(path / "state"),
        "source": {"url": source.url, "tables": ["public.*"]},
        "sinks": {"archive": {"kind": "file", "path": str(path / "archive")}},
    }
    return pipeline_from_document(document, "test").of("test")


def test_one_waits_while_the_other_looks_at_the_sinks(source: Database, tmp_path: Path) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    pipeline = pipeline_of(source, tmp_path)
    [sink] = build_sinks(pipeline)
    sink.open()
    let_go = threading.Timer(0.3, sink.close)
    let_go.start()
    try:
        started = start(pipeline)
    finally:
        let_go.join()

    assert source.value("SELECT slot_name FROM pg_replication_slots") == started.subscription.slot


def test_sink_that_stays_with_another_is_an_error_and_leaves_the_state_to_it(
    source: Database, tmp_path: Path, use_timing: Callable[..., None]
) -> None:
    use_timing(state_lock_patience_seconds=0.2)
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    pipeline = pipeline_of(source, tmp_path)
    [sink] = build_sinks(pipeline)
    sink.open()
    try:
        with pytest.raises(SecondInstance):
            start(pipeline)
    finally:
        sink.close()

    assert (tmp_path / "state").is_dir()
    assert source.query("SELECT FROM pg_publication") == []
