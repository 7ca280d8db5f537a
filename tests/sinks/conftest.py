"""Fixtures of the sinks that write documents."""

from __future__ import annotations

import pytest

from fix_event_sinks import file_sink, write_transactions


@pytest.fixture
def log(tmp_path):
    """A log of four transactions."""
    write_transactions(tmp_path / "log", range(1, 5))
    return tmp_path / "log"


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def sink_of(directory):
    """Makes file sinks on the directory; those left open are closed in the end."""
    made = []

    def sink_of(**options):
        made.append(file_sink(directory, **options))
        return made[-1]

    yield sink_of
    for sink in made:
        sink.close()
