"""`penstock.run`, `penstock.status` and `penstock.check`: what the commands do, for a program or a notebook.

The caller's process is not ours: nothing here ends it, or changes its signal handlers, its logging, its umask.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.config import PipelineFile, read_pipeline
from penstock.errors import SecondInstance
from penstock.run.check import find
from penstock.run.status import read_status
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from penstock.findings import Finding
    from penstock.run.status import PipelineStatus

# What tasks connect with is kept in one place of the process, as is pyspark's context.
_one_run = threading.Lock()

_LEVELS = ("debug", "info", "warning", "error")


def run(
    pipeline: str | Path | PipelineFile,
    spark: SparkSession | None = None,
    until_caught_up: bool = False,
    *,
    stop: threading.Event | None = None,
) -> None:
    """Create what is missing, copy what is not copied yet, then stream: as `penstock run` does.

    Returns once it is stopped, or has caught up. From any thread; one run at a time in a process. All work is
    done in other threads, so that a KeyboardInterrupt stops it at a consistent point.

    Args:
        pipeline: the path of a pipeline file, or one that was read.
        spark: a session to run jobs on. It is left as it was, and is not stopped. Without one, Spark is
            started as the pipeline file says, and stopped.
        until_caught_up: return once everything is delivered that was committed when the run began.
        stop: stops the run once it is set, from any thread. It is not set here.

    Raises:
        PenstockError: what ended it; everything delivered is whole, the rest waits.
        KeyboardInterrupt: with `until_caught_up`, after the run was stopped: it has not caught up. Without,
            a KeyboardInterrupt ends the run, and is not raised. A second one is raised at once.
    """
    inner_stop = threading.Event()
    thread = _RunThread(_prepared(_read(pipeline), spark, until_caught_up, inner_stop))
    try:
        thread.begin()
        while not thread.has_ended(timing().supervise_poll_seconds):
            if stop is not None and stop.is_set():
                inner_stop.set()
    # pyspark's handler of SIGINT may raise errors of its own.
    except BaseException as interrupt:
        inner_stop.set()
        thread.wait()
        if until_caught_up or not isinstance(interrupt, KeyboardInterrupt):
            raise
    thread.raise_if_failed()


def status(pipeline: str | Path | PipelineFile) -> PipelineStatus:
    """Where every table and every sink stands, as `penstock status` shows it.

    A server that does not answer is reported in the status.

    Raises:
        PenstockError: the pipeline file cannot be used.
    """
    return read_status(_read(pipeline))


def check(pipeline: str | Path | PipelineFile) -> list[Finding]:
    """What stands in the pipeline's way, or may, as `penstock check` lists it. Changes nothing.

    Raises:
        PenstockError: the pipeline file cannot be used.
    """
    return find(_read(pipeline))


def _read(pipeline: str | Path | PipelineFile) -> PipelineFile:
    return pipeline if isinstance(pipeline, PipelineFile) else read_pipeline(Path(pipeline))


def _prepared(
    pipeline: PipelineFile,
    session: SparkSession | None,
    until_caught_up: bool,
    stop: threading.Event,
) -> Callable[[], None]:
    # Not above: `status` and `check` do without Spark, and so do those who only import them.
    from penstock.run.supervise import run_pipeline
    from penstock.spark.borrowed import BorrowedSpark

    spark = None
    if session is not None:
        spark = BorrowedSpark(session, pipeline.name, pipeline.top, encrypts=pipeline.log.encrypt)

    def prepared() -> None:
        run_pipeline(
            pipeline, stop, log_level=_level(), until_caught_up=until_caught_up, spark=spark
        )

    return prepared


def _level() -> str:
    """The level of the caller's own logging, for the processes that capture."""
    wanted = logging.getLogger("penstock").getEffectiveLevel()
    above = [name for name in _LEVELS if logging.getLevelNamesMapping()[name.upper()] >= wanted]
    return above[0] if above else _LEVELS[-1]


class _RunThread(threading.Thread):
    """One run, and how it ended."""

    def __init__(self, job: Callable[[], None]) -> None:
        # A daemon: a program that ends in the midst of a run need not wait for it.
        super().__init__(name="penstock run", daemon=True)
        self._job = job
        self._failure: BaseException | None = None
        # Waited for before `join`: one that a signal interrupts takes the thread for ended, up to Python 3.12.
        self._ended = threading.Event()

    def begin(self) -> None:
        """Start, if no other run is under way.

        Raises:
            SecondInstance: one is.
        """
        if not _one_run.acquire(blocking=False):
            raise SecondInstance(
                "penstock.run is running in this process already, and can do so once",
                "penstock.run",
                "stop that run, or run this pipeline in another process",
            )
        try:
            self.start()
        except BaseException:
            if self.ident is None:
                _one_run.release()
            raise

    def has_ended(self, seconds: float) -> bool:
        """Whether it has, within this time."""
        if not self._ended.wait(seconds):
            return False
        self.join()
        return True

    def wait(self) -> None:
        """Wait for its end, if it has begun."""
        if self.ident is not None:
            self._ended.wait()
            self.join()

    def run(self) -> None:
        """Run; keep what went wrong for the caller."""
        try:
            self._job()
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            self._failure = error
        finally:
            _one_run.release()
            self._ended.set()

    def raise_if_failed(self) -> None:
        """Raise what ended the run."""
        if self._failure is not None:
            raise self._failure
