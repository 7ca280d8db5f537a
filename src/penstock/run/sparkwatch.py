"""Spark is started, and started anew when its JVM dies; not for ever."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.errors import PenstockError, SparkDies, SparkGone
from penstock.retry import BackOff
from penstock.spark.session import Spark
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.spark.options import SparkOptions

_log = logging.getLogger(__name__)

# What dies so often in so short a time will die again: for want of memory, or of what it is fed.
_MOST_DEATHS = 5


class SparkWatch:
    """Watches over one Spark, from the main thread. Starts happen in a thread of their own.

    Not in the main thread: pyspark would take its SIGINT, and a stop would have to wait.
    """

    def __init__(self, spark: Spark) -> None:
        self.on_restart: Callable[[], None] = lambda: None
        self.spark = spark
        self._back_off = BackOff(timing().process_retry_first_seconds)
        self._deaths: list[float] = []
        self._start_at = 0.0
        self._starter: _Starter | None = None

    def start(self, stop: threading.Event) -> None:
        """Start Spark, again if it is killed meanwhile; returns once it is up, or once there is a stop.

        Raises:
            PenstockError: it did not start.
        """
        starter = self._starter = self._begin()
        while not stop.is_set():
            if starter.is_alive():
                starter.join(timing().spark_poll_seconds)
                continue
            self._starter = None
            if starter.failure is None:
                return
            if not isinstance(starter.failure, SparkGone):
                raise starter.failure
            self._take_death(starter.failure)
            if not stop.wait(self._start_at - time.monotonic()):
                starter = self._starter = self._begin()

    def poll(self) -> None:
        """See whether Spark lives; have it started anew.

        Raises:
            SparkDies: it has died too often.
            SparkGone: it has died, and is not ours to start.
        """
        failure: BaseException | None = self.spark.take_loss()
        if self._starter is not None and not self._starter.is_alive():
            failure = failure or self._starter.failure
            self._starter = None
            if failure is None:
                _log.info("Spark runs again")
        if failure is not None:
            self._take_death(failure)
        is_due = not self.spark.is_up and time.monotonic() >= self._start_at
        if is_due and self._starter is None:
            self._starter = self._begin()

    def stop(self) -> None:
        """Stop Spark, also one that is being started."""
        self.spark.stop()
        if self._starter is not None:
            self._starter.join(timing().spark_stop_seconds)

    def _begin(self) -> _Starter:
        starter = _Starter(self.spark)
        starter.start()
        return starter

    def _take_death(self, failure: BaseException) -> None:
        """Wait before the next start, longer each time.

        Raises:
            SparkDies: there is no sense in a next start.
            SparkGone: it is not ours to start.
        """
        if not isinstance(failure, PenstockError) or not self.spark.can_start_again:
            raise failure
        now = time.monotonic()
        self._deaths = [at for at in self._deaths if now - at < timing().spark_deaths_seconds]
        if not self._deaths:
            self._back_off.succeed()
        self._deaths.append(now)
        if len(self._deaths) >= _MOST_DEATHS:
            raise SparkDies(
                f"Spark has died {len(self._deaths)} times within "
                f"{timing().spark_deaths_seconds / 60:.0f} minutes,"
                f" the last time: {failure.what}",
                failure.where,
                failure.do.removeprefix("nothing, penstock starts it again; "),
            )
        self.on_restart()
        wait = self._back_off.next_seconds()
        self._start_at = now + wait
        _log.warning("%s (starting it again in %.1f s)", str(failure).splitlines()[0], wait)


class _Starter(threading.Thread):
    """One start of Spark."""

    def __init__(self, spark: Spark) -> None:
        super().__init__(name="spark", daemon=True)
        self._spark = spark
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Start; keep what went wrong for the main thread."""
        try:
            self._spark.start()
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            self.failure = error


@contextmanager
def watched_spark(
    name: str,
    options: SparkOptions,
    log_path: Path,
    stop: threading.Event,
    given: Spark | None = None,
) -> Iterator[SparkWatch]:
    """Spark for as long as the block lasts; not up yet when there was a stop meanwhile.

    Args:
        given: to be used in place of one that is made here.

    Raises:
        PenstockError: it did not start.
    """
    watch = SparkWatch(given or Spark(name, options, log_path))
    try:
        watch.start(stop)
        yield watch
    finally:
        watch.stop()
