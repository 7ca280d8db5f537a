"""A sink that breaks the contract is shown which promise, and for which documents."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Literal

import pytest

from penstock.sink import DocumentKind, DocumentSink, LocalPath, SinkOptions, json_lines
from penstock.testing import SinkContract

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from penstock.sink import SinkPlace

    Write = Callable[[Path, bytes], None]


class _Options(SinkOptions):
    kind: Literal["broken"] = "broken"
    path: LocalPath


class _Sink(DocumentSink):
    """Appends lines to a file, in a way of the test's."""

    def __init__(self, path: Path, write: Write) -> None:
        self._path = path
        self._write = write

    def open(self) -> None:
        self._path.touch()

    def deliver(self, documents: Iterator[pa.RecordBatch], state: str | None) -> None:
        for batch in documents:
            self._write(self._path, bytes(json_lines(batch)))


class _Kind(DocumentKind[_Options]):
    name = "broken"
    options = _Options

    def __init__(self, write: Write) -> None:
        self._write = write

    def sink(self, place: SinkPlace[_Options]) -> _Sink:
        return _Sink(place.options.path, self._write)


class _Contract(SinkContract):
    def __init__(self, write: Write) -> None:
        self._write = write

    def kind(self) -> _Kind:
        return _Kind(self._write)

    def options(self, directory: Path) -> _Options:
        return _Options(path=directory / "lines")

    def delivered(self, options: _Options) -> list[dict[str, Any]]:
        return [json.loads(line) for line in options.path.read_text().splitlines()]


def _append(path: Path, lines: bytes) -> None:
    with path.open("ab") as file:
        file.write(lines)


def _append_twice(path: Path, lines: bytes) -> None:
    _append(path, lines + lines)


def _lose_the_first(path: Path, lines: bytes) -> None:
    _append(path, b"".join(lines.splitlines(keepends=True)[1:]))


def _turn_round(path: Path, lines: bytes) -> None:
    _append(path, b"".join(reversed(lines.splitlines(keepends=True))))


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (_append_twice, "twice: shop:0/1100:0, shop:0/1100:1"),
        (_lose_the_first, "missing: shop:0/1100:0, shop:0/1200:0"),
        (_turn_round, "in another order: found shop:0/1100:3, shop:0/1100:2"),
    ],
)
def test_documents_that_are_not_as_they_should_be_are_named(
    write: Write, says: str, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError) as raised:
        _Contract(write).test_every_change_arrives_once_and_in_order(tmp_path)

    assert says in str(raised.value)


def test_order_of_a_key_that_is_broken_names_the_key(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"not in the source's order: .*'orders'"):
        _Contract(_turn_round).test_batch_of_several_tasks_keeps_the_order_of_each_key(tmp_path)


def test_sink_that_claims_nothing_is_told_how_to(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="raise SecondInstance, or set is_exclusive = False"):
        _Contract(_append).test_second_instance_is_refused(tmp_path)


def test_sink_that_stores_state_but_doubles_is_told_what_must_be_stored_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Sink, "stores_state", True)  # which `open` does not return

    with pytest.raises(AssertionError, match=r"documents came twice although .* stores_state"):
        _Contract(_append).test_kill_between_any_two_steps_loses_nothing(tmp_path)


def test_point_at_which_nothing_is_killed_is_named(tmp_path: Path) -> None:
    class Elsewhere(_Contract):
        fault_points = ("stage.before_copy",)

    with pytest.raises(AssertionError, match=r"stage\.before_copy is not passed 1 times"):
        Elsewhere(_append).test_kill_between_any_two_steps_loses_nothing(tmp_path)


def test_sink_that_raises_where_it_was_to_be_killed_is_told_where_to_look(tmp_path: Path) -> None:
    here = os.getpid()

    def fail_elsewhere(path: Path, lines: bytes) -> None:
        if os.getpid() != here:
            raise ValueError(path)
        _append(path, lines)

    with pytest.raises(AssertionError, match=r"raised an exception .* in the captured stderr"):
        _Contract(fail_elsewhere).test_kill_between_any_two_steps_loses_nothing(tmp_path)
