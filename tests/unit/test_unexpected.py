"""What is no PenstockError ends a thread's loop and reaches whoever waits for it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.run.membership import MembershipWatch
from penstock.snapshot.copier import Copier
from penstock.snapshot.round import Round
from penstock.table import TableName

if TYPE_CHECKING:
    from penstock.errors import PenstockError

T = TableName("public", "t")


class Copying:
    """One table is due until it has failed."""

    is_review_due = False

    def __init__(self) -> None:
        self.failed: dict[TableName, PenstockError] = {}

    def due(self) -> dict[TableName, int]:
        return {} if self.failed else {T: 1}

    def claim(self) -> bool:
        return True

    def after_attach(self, _: object) -> bool:
        return False

    def fail(self, table: TableName, error: PenstockError, _: object) -> None:
        self.failed[table] = error

    def open(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""

    def release(self) -> None:
        """There is no other copier."""


def test_round_that_ends_unexpectedly_fails_its_tables_and_ends_the_copier(
    monkeypatch: pytest.MonkeyPatch,
):
    def run(_: Round) -> None:
        raise TypeError("a defect")

    monkeypatch.setattr(Round, "run", run)
    copying, stop = Copying(), threading.Event()
    source = SimpleNamespace(snapshot=SimpleNamespace(url=None, parallel=1), url=None)
    spark = SimpleNamespace(parallel=1)
    copier = Copier(cast("Any", spark), "target", cast("Any", copying), cast("Any", source), stop)
    limit = threading.Timer(20, stop.set)  # or a copier that goes on would go on for ever
    limit.start()

    with pytest.raises(TypeError, match="a defect"):
        copier.run()

    limit.cancel()
    assert str(copying.failed[T]).startswith("PEN-900 sink target: unexpected TypeError")


def test_watch_that_ends_unexpectedly_is_noticed(monkeypatch: pytest.MonkeyPatch):
    def poll(_: MembershipWatch) -> None:
        raise TypeError("a defect")

    monkeypatch.setattr(MembershipWatch, "_poll", poll)
    watch = MembershipWatch(*cast("Any", [None] * 5))
    watch.start()
    watch.stop()

    with pytest.raises(TypeError, match="a defect"):
        watch.raise_if_failed()
