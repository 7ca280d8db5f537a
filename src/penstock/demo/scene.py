"""The pipeline at work, and pictures of both sides until it has caught up."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

from penstock.demo.shop import MIGRATION, TABLES, row_counts
from penstock.demo.view import Picture
from penstock.errors import RunError, recognise
from penstock.lsn import Lsn
from penstock.run.sources import mark_now
from penstock.run.status import read_status
from penstock.run.supervise import run_pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from penstock.config import PipelineFile
    from penstock.demo.proof import Watcher
    from penstock.demo.shop import Migration
    from penstock.demo.writer import Writer
    from penstock.run.start import Started
    from penstock.sinks.status import SinkStatus

    Connection = psycopg.Connection[Any]

# Counted from Spark's start. The writer begins before, so that there is something to catch up with.
_WRITE_SECONDS = 10.0
_PICTURE_SECONDS = 0.25
_PATIENCE_SECONDS = 120.0
_LATE_SECONDS = 1.0


class Side(Protocol):
    """Where the pipeline delivers to, as far as pictures show it."""

    def row_counts(self) -> dict[str, int]:
        """Rows of each table; empty before anything has arrived."""

    def polls(self) -> tuple[int, int] | None:
        """How often somebody looked for half a transaction, and saw one; None where nobody does."""


class Watched:
    """A Postgres target, and who watches it."""

    def __init__(self, connection: Connection, watcher: Watcher) -> None:
        self._connection = connection
        self._watcher = watcher

    def row_counts(self) -> dict[str, int]:
        """See Side."""
        return row_counts(self._connection)

    def polls(self) -> tuple[int, int] | None:
        """See Side."""
        return self._watcher.poll_count, self._watcher.torn_count


class Interrupted(Exception):
    """A person has seen enough."""


class PipelineThread(threading.Thread):
    """`penstock run`, in a thread, so that the view has the main one."""

    def __init__(self, pipeline: PipelineFile) -> None:
        super().__init__(name="demo pipeline", daemon=True)
        self.pipeline = pipeline
        self._stop_pipeline = threading.Event()
        self._prepared = threading.Event()
        self._slot = ""
        self._failure: BaseException | None = None

    def begin(self) -> str:
        """Start; the name of the slot, once there is one and no change can be missed."""
        self.start()
        self._prepared.wait()
        self.raise_if_failed()
        return self._slot

    def run(self) -> None:
        """Run the pipeline; keep what went wrong for the main thread."""
        try:
            run_pipeline(
                self.pipeline, self._stop_pipeline, log_level="warning", on_ready=self._on_ready
            )
        except BaseException as error:  # noqa: BLE001 - handed to the main thread, which raises it
            self._failure = error
        finally:
            self._prepared.set()

    def _on_ready(self, started: Started) -> None:
        self._slot = started.subscription.slot
        self._prepared.set()

    def raise_if_failed(self) -> None:
        """Raise what ended the pipeline."""
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Stop the pipeline and wait until Spark is gone. Safe to repeat."""
        self._stop_pipeline.set()
        if self.is_alive():
            self.join()


class Scene:
    """Polls both sides while the writer works and the pipeline runs."""

    def __init__(
        self,
        running: PipelineThread,
        writer: Writer,
        source: Connection,
        target: Side,
        interrupted: threading.Event,
        migration: Migration = MIGRATION,
    ) -> None:
        self._running = running
        self._writer = writer
        self._source = source
        self._target = target
        self._interrupted = interrupted
        self._migration = migration
        self._sink = self._read_sink()

    @property
    def delivered_count(self) -> int:
        """Changes delivered at the last poll."""
        return self._sink.changes_delivered

    @property
    def copied_count(self) -> int:
        """Rows that were copied, before their tables were followed."""
        return sum(table.rows_copied for table in self._sink.tables.values())

    def pictures(self) -> Iterator[Picture]:
        """Both sides as time goes by. The writer is stopped on the way; the last one is the end.

        Raises:
            Interrupted: by a person.
            PenstockError: a part failed, or nothing arrives.
        """
        yield from self._until(Lsn(1))
        yield from self._for(_WRITE_SECONDS / 2)
        self._migrate()
        yield self._picture(f"a migration: {self._migration.title}")
        yield from self._for(_WRITE_SECONDS / 2)
        self._writer.stop()
        yield from self._until(mark_now(self._running.pipeline))
        yield from self._until_read()
        yield self._picture("writer stopped, everything has arrived")

    def wait(self) -> None:
        """A moment.

        Raises:
            Interrupted: by a person.
            PenstockError: a part failed.
        """
        self._wait(_PICTURE_SECONDS)

    def _for(self, seconds: float) -> Iterator[Picture]:
        enough = time.monotonic() + seconds
        while time.monotonic() < enough:
            self._wait(_PICTURE_SECONDS)
            yield self._picture(self._phase())

    def _migrate(self) -> None:
        """Change a table under the writer's hands, as its owner would."""
        with self._source.transaction():
            self._source.execute("SET LOCAL ROLE shop_owner")
            self._source.execute(self._migration.statements.encode())

    def _until(self, wanted_lsn: Lsn) -> Iterator[Picture]:
        """Pictures until the target has everything up to a position."""
        patience_ends = time.monotonic() + _PATIENCE_SECONDS
        while self._delivered_lsn() < wanted_lsn or not self._all_stream():
            yield self._picture(self._phase())
            self._wait(_PICTURE_SECONDS)
            if time.monotonic() > patience_ends:
                raise RunError(
                    f"the target stands at {self._delivered_lsn()} after {_PATIENCE_SECONDS:g} s,"
                    f" wanted {wanted_lsn}",
                    "penstock demo",
                    "try again while the machine is less busy",
                )

    def _until_read(self) -> Iterator[Picture]:
        """Pictures until whoever reads the destination has as many rows: it may be a moment behind."""
        patience_ends = time.monotonic() + _PATIENCE_SECONDS
        while self._target.row_counts() != row_counts(self._source):
            yield self._picture(self._phase())
            self._wait(_PICTURE_SECONDS)
            if time.monotonic() > patience_ends:
                return  # the proof says what is missing

    def _phase(self) -> str:
        if self._sink.delivered_lsn is None:
            return "Spark starts, changes wait in the log"
        if not self._all_stream():
            return "copying what was there before"
        return "catching up" if (self._sink.lag_seconds or 0.0) > _LATE_SECONDS else "streaming"

    def _wait(self, seconds: float) -> None:
        if self._interrupted.wait(seconds):
            raise Interrupted
        self._running.raise_if_failed()
        self._writer.raise_if_failed()
        self._sink = self._read_sink()

    def _read_sink(self) -> SinkStatus:
        """What `penstock status` would say of the only sink."""
        [sink] = read_status(self._running.pipeline).sinks.values()
        for reported in (sink.error, *(table.error for table in sink.tables.values())):
            if reported:
                raise recognise(reported) or RunError(reported, "penstock demo", "try again")
        return sink

    def _all_stream(self) -> bool:
        states = [table.state for table in self._sink.tables.values()]
        return len(states) == len(TABLES) and set(states) == {"streaming"}

    def _delivered_lsn(self) -> Lsn:
        reported = self._sink.delivered_lsn
        return Lsn(0) if reported is None else Lsn.parse(reported)

    def _picture(self, phase: str) -> Picture:
        return Picture(
            phase=phase,
            source_rows=row_counts(self._source),
            target_rows=self._target.row_counts(),
            written_count=self._writer.change_count,
            delivered_count=self._sink.changes_delivered,
            lag_seconds=self._sink.lag_seconds,
            polls=self._target.polls(),
        )
