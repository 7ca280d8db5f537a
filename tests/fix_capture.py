"""Capture alone, in a thread: no Spark, and nobody delivers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from fix_pipeline import pipeline_document
from fix_wait import wait_until
from penstock.config import pipeline_from_document
from penstock.lsn import Lsn
from penstock.pipeline import log_of, wire_of
from penstock.run.capture_process import run_capture
from penstock.run.sources import mark_now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Capturing:
    """Capture of one source, in a thread; nobody delivers."""

    def __init__(
        self,
        url: str,
        directory: Path,
        acknowledge: str,
        tables: tuple[str, ...],
        tracking: str = "triggers",
        **top: Any,
    ) -> None:
        document = pipeline_document(
            url,
            None,
            directory,
            tables=tables,
            source_options={
                "acknowledge": acknowledge,
                "heartbeat_seconds": 0.2,
                "schema": {"tracking": tracking},
            },
            sink={"kind": "file", "path": str(directory / "out")},
        )
        self.file = pipeline_from_document({**document, **top}, "test")
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread()

    def start(self) -> None:
        """Start it, or start it again."""
        self._stop.clear()
        self.failure = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        wait_until(
            lambda: self.failure or wire_of(self.file).capturing_run(),
            what="capture to be started",
        )

    def _run(self) -> None:
        try:
            run_capture(self.file, self._stop)
        except BaseException as error:  # noqa: BLE001 - asserted on by the test
            self.failure = error

    def catch_up(self) -> None:
        """Wait until everything committed so far is in the log."""
        lsn = mark_now(self.file)
        wait_until(lambda: self.failure or self.durable_lsn >= lsn, what=f"the log to reach {lsn}")
        assert self.failure is None

    @property
    def durable_lsn(self) -> Lsn:
        return log_of(self.file).end_lsn() or Lsn(0)  # while it is being written to

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def ends_with(self, error: type[BaseException]) -> str:
        """Wait for its end; what it ended with."""
        wait_until(
            lambda: not self._thread.is_alive(), what=f"capture to end with {error.__name__}"
        )
        assert isinstance(self.failure, error), repr(self.failure)
        return str(self.failure)


@pytest.fixture
def capture_of(tmp_path: Path) -> Iterator[Callable[..., Capturing]]:
    """Start capture of a source; stopped when the test ends."""
    made: list[Capturing] = []

    def begin(
        url: str, acknowledge: str = "delivered", tables: tuple[str, ...] = ("*.*",), **top: Any
    ) -> Capturing:
        made.append(Capturing(url, tmp_path, acknowledge, tables, **top))
        made[-1].start()
        return made[-1]

    yield begin
    for capturing in made:
        capturing.stop()
