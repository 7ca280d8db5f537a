"""A task prepares one chunk while its sink takes the one before; order and errors stay as they are."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from penstock import testing
from penstock.errors import DecodeError, SinkError
from penstock.sinks.sink import Receipt
from penstock.spark.jobs import Span, run_task

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.changes.decode import Piece

T = testing.table(1, "t", {"id": "int4"}, key=("id",))
COUNT = 4


@dataclass
class Half:
    """Notes what is asked of it; what is prepared is the number of the chunk."""

    steps: list[str] = field(default_factory=list)
    may_take: threading.Event = field(default_factory=threading.Event)
    fails: str = ""
    number: int = 0

    def begin(self, task: int) -> Half:
        return self

    def prepare(self, pieces: Sequence[Piece]) -> int:
        self.number += 1
        self._step(f"prepare {self.number}", DecodeError)
        if self.number == 2:
            self.may_take.set()
        return self.number

    def take(self, work: int) -> None:
        # The first one is taken for as long as the second is prepared.
        assert self.may_take.wait(20)
        self._step(f"take {work}", lambda what: SinkError(what, "sink s", "nothing"))

    def finish(self) -> Receipt:
        self._step("finish", DecodeError)
        return Receipt(0)

    def _step(self, step: str, error: Any) -> None:
        if self.fails == step:
            raise error(step)
        self.steps.append(step)


def run(half: Half, tmp_path: Path) -> None:
    messages = [
        m
        for n in range(COUNT)
        for m in testing.transaction(0x2000 + 0x100 * n, testing.insert(T, [str(n)]))
    ]
    end = testing.write_log(tmp_path / "log", [testing.relation(T), *messages], 0x1000)
    slices = testing.read_log(tmp_path / "log", 0x1000)
    run_task(half, Span(0x1000, end), 0, [slices] * COUNT)


def test_next_chunk_is_prepared_while_one_is_taken(tmp_path: Path):
    half = Half()
    run(half, tmp_path)
    assert [each for each in half.steps if each.startswith("take")] == [
        f"take {n}" for n in range(1, COUNT + 1)
    ]
    assert half.steps.index("prepare 2") < half.steps.index("take 1")
    assert half.steps[-1] == "finish"


@pytest.mark.parametrize(("fails", "error"), [("prepare 3", DecodeError), ("take 2", SinkError)])
def test_nothing_is_taken_after_a_failure_and_no_thread_is_left(tmp_path: Path, fails, error):
    half = Half(fails=fails)
    before = threading.active_count()
    with pytest.raises(error):
        run(half, tmp_path)
    taken = [each for each in half.steps if each.startswith("take")]
    assert taken == ["take 1", "take 2"][: 2 if fails == "prepare 3" else 1]
    assert threading.active_count() == before
    assert "finish" not in half.steps
