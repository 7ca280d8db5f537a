"""What is removed where one of the sinks cannot be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import SinkError
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
