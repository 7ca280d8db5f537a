"""Sinks that a person holds."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.config import pipeline_from_document
from penstock.pipeline import top_wire_of
from penstock.run.pauses import PauseWatch, set_pause

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_sink_that_is_paused_is_said_to_be_at_each_start_and_when_it_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    pipeline = pipeline_from_document(
        {
            "name": "shop",
            "state": str(tmp_path / "state"),
            "source": {"url": "postgresql://x@127.0.0.1:1/none", "tables": ["public.*"]},
            "sinks": {"out": {"kind": "file", "path": str(tmp_path / "out")}},
        },
        "test",
    )
    set_pause(pipeline, "out", is_paused=True)
    watch = PauseWatch(top_wire_of(pipeline), "out")

    assert watch()
    assert watch()
    set_pause(pipeline, "out", is_paused=False)
    watch._asked_at = float("-inf")
    assert not watch()

    said = [each.getMessage() for each in caplog.records]
    assert said == [
        "sink out is paused: nothing is delivered to it until penstock sinks PIPELINE.yml resume out",
        "sink out goes on",
    ]
