"""What is removed where one of the sinks cannot be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import SinkError, StateUnusable
from penstock.run.teardown import tear_down
from penstock.sinks.file.kind import FileKind

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_postgres import Database


def test_sink_that_does_not_answer_keeps_the_others_from_nothing(
    source: Database,
    pipeline_of: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[str] = []
    away = {"first", "third"}

    def forget(_: FileKind, place: Any) -> list[str]:
        asked.append(place.name)
        if place.name in away:
            raise SinkError(f"{place.name} is away", "there", "wait")
        return ["position"]

    monkeypatch.setattr(FileKind, "forget", forget)
    sinks = "".join(
        f"  {name}: {{kind: file, path: {tmp_path / name}}}\n"
        for name in ("first", "second", "third")
    )
    pipeline = pipeline_of(
        f"name: shop\nstate: {tmp_path / 'state'}\n"
        f'source: {{url: "{source.url}", tables: [public.t]}}\nsinks:\n{sinks}'
    )

    with pytest.raises(SinkError, match="first is away"):
        tear_down(pipeline)
    said = caplog.text
    away.clear()
    removed = tear_down(pipeline)

    assert asked == ["first", "second", "third"] * 2
    assert "removed position at sink second" in said
    assert "third is away" in said
    assert "position at sink first" in removed


def test_file_that_cannot_be_removed_keeps_the_rest_from_nothing(
    source: Database,
    pipeline_of: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def forget(_: FileKind, place: Any) -> list[str]:
        asked.append(place.name)
        if place.name == "first":
            raise PermissionError(13, "Permission denied", "/archive/.position.json")
        return []

    monkeypatch.setattr(FileKind, "forget", forget)
    pipeline = pipeline_of(
        f"name: shop\nstate: {tmp_path / 'state'}\n"
        f'source: {{url: "{source.url}", tables: [public.t]}}\n'
        f"sinks: {{first: {{kind: file, path: {tmp_path}/a}}, second: {{kind: file, path: {tmp_path}/b}}}}\n"
    )

    with pytest.raises(StateUnusable, match="cannot be removed: Permission denied") as failure:
        tear_down(pipeline)

    assert failure.value.where == "/archive/.position.json"
    assert asked == ["first", "second"]


def test_sink_whose_path_is_a_file_is_torn_down(
    source: Database, pipeline_of: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("somebody's")
    pipeline = pipeline_of(
        f"name: shop\nstate: {tmp_path / 'state'}\n"
        f'source: {{url: "{source.url}", tables: [public.t]}}\n'
        f"sinks: {{out: {{kind: file, path: {tmp_path}/out}}}}\n"
    )

    assert tear_down(pipeline) == []
    assert (tmp_path / "out").read_text() == "somebody's"
