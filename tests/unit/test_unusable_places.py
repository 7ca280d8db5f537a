"""Directories that cannot be used: found before anything is tried, and without changing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.config import pipeline_from_document
from penstock.errors import StateOfAnother, StateUnusable
from penstock.run.check import find
from penstock.state.directory import StateDirectory

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("below", ["", "state", "deep/state"])
def test_state_that_a_file_is_in_the_way_of_is_unusable(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("somebody's")
    state = StateDirectory(tmp_path / "file" / below, "shop")

    fault = state.fault()

    assert isinstance(fault, StateUnusable)
    with pytest.raises(StateUnusable):
        state.claim()


def test_state_that_cannot_be_written_is_unusable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = StateDirectory(tmp_path / "state", "shop")
    monkeypatch.setattr("os.access", lambda *_: False)  # root may do anything

    fault = state.fault()

    assert fault is not None
    assert "Permission denied" in fault.what


def test_state_of_another_is_no_state_of_ours_and_nothing_is_made(tmp_path: Path) -> None:
    StateDirectory(tmp_path / "theirs", "other").claim()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").touch()
    (tmp_path / "empty").mkdir()

    faults = {
        name: StateDirectory(tmp_path / name, "shop").fault()
        for name in ("theirs", "full", "empty", "none")
    }

    assert isinstance(faults["theirs"], StateOfAnother)
    assert isinstance(faults["full"], StateOfAnother)
    assert (faults["empty"], faults["none"]) == (None, None)
    assert list((tmp_path / "empty").iterdir()) == []
    assert not (tmp_path / "none").exists()
    assert StateDirectory(tmp_path / "theirs", "other").fault() is None


@pytest.mark.parametrize("several", [False, True])
def test_check_finds_places_that_cannot_be_used(tmp_path: Path, several: bool) -> None:
    (tmp_path / "file").touch()
    source, other = (
        {"url": f"postgresql://x@127.0.0.1:1/{name}", "tables": ["public.t"]}
        for name in ("eu", "us")
    )
    document = {
        "name": "shop",
        "state": str(tmp_path / "file" / "state"),
        **({"sources": {"eu": source, "us": other}} if several else {"source": source}),
        "sinks": {"out": {"kind": "file", "path": str(tmp_path / "file")}},
    }

    codes = [each.code for each in find(pipeline_from_document(document, "test"))]

    assert codes.count("PEN-304") == 1
    assert codes.count("PEN-503") == (2 if several else 1)
    assert (tmp_path / "file").read_bytes() == b""
