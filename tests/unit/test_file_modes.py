"""Who may read what penstock keeps, and what it delivers into files."""

from __future__ import annotations

import os
import stat

import pytest

from penstock.config import pipeline_from_document
from penstock.errors import BadValue
from penstock.lsn import Lsn
from penstock.sinks.file.options import FileOptions
from penstock.state.directory import StateDirectory
from penstock.state.reports import DeliveryReport
from penstock.state.wire import FileWire


@pytest.fixture(autouse=True)
def lax_umask():
    """Modes hold by themselves, also in a process that has set no umask."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path):
    return oct(stat.S_IMODE(path.stat().st_mode))


def test_state_and_its_reports_are_for_its_user_alone(tmp_path):
    state = StateDirectory(tmp_path / "state", "shop")

    state.claim()
    FileWire(state).publish(DeliveryReport(delivered_lsn=Lsn(1)), "one")

    assert mode_of(state.path) == mode_of(state.path / "sinks") == "0o700"
    assert mode_of(state.path / "pipeline.json") == "0o600"
    assert mode_of(state.path / "sinks" / "one.json") == "0o600"


@pytest.mark.parametrize(
    ("found", "left"), [(0o755, "0o750"), (0o2775, "0o2770"), (0o700, "0o700")]
)
def test_state_of_an_earlier_version_shuts_others_out_and_keeps_its_group(tmp_path, found, left):
    state = StateDirectory(tmp_path / "state", "shop")
    state.path.mkdir()
    state.path.chmod(found)

    state.claim()

    assert mode_of(state.path) == left


@pytest.mark.parametrize(
    ("given", "mode", "directory_mode"),
    [
        ("0640", 0o640, 0o750),
        ("640", 0o640, 0o750),
        (0o640, 0o640, 0o750),
        ("0600", 0o600, 0o700),
        ("0644", 0o644, 0o755),
        ("0660", 0o660, 0o750),
    ],
)
def test_mode_of_documents_lets_its_readers_into_their_directory(
    tmp_path, given, mode, directory_mode
):
    options = FileOptions(path=tmp_path, mode=given)

    assert (options.mode, options.directory_mode) == (mode, directory_mode)


@pytest.mark.parametrize(
    "given", ["0400", "0666", "0755", "rw", 640, 644, True, None, "4640", "09"]
)
def test_mode_that_makes_no_sense_is_refused(tmp_path, given):
    document = {
        "name": "shop",
        "source": {"url": "postgresql://db1/shop", "tables": ["public.*"]},
        "sinks": {"out": {"kind": "file", "path": str(tmp_path), "mode": given}},
    }

    with pytest.raises(BadValue, match="mode"):
        pipeline_from_document(document, "test")
