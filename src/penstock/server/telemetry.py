"""What a run counts while somebody watches: for those who scrape it, and pushed where an endpoint is set.

All instruments are those of `penstock.metrics`; nothing else here names one.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from penstock.metrics import BatchTrace, Recorder
from penstock.server.counts import Counts
from penstock.server.observed import CAPTURED, OBSERVED
from penstock.server.processes import Processes
from penstock.server.scraped import Scraped
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.metrics import BatchRecord
    from penstock.server.pushed import Pushed
    from penstock.server.tracing import Traces
    from penstock.server.watched import Snapshot

_log = logging.getLogger(__name__)

Values = Callable[[str], Iterable[tuple[float, dict[str, str]]]]
"""The values of an instrument that is read, with their labels."""


_PUSHED_PROTOCOL = "http/protobuf"


def _wants_push(signal: str) -> bool:
    """Whether the environment names where metrics or traces are pushed to."""
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    return any(os.environ.get(name) for name in names)


def _warn_of_protocol() -> None:
    """Say so where another protocol is wanted than the one that is pushed: the collector's port would be another one."""
    for variable in (
        "OTEL_EXPORTER_OTLP_PROTOCOL",
        "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    ):
        protocol = os.environ.get(variable) or _PUSHED_PROTOCOL
        if protocol != _PUSHED_PROTOCOL:
            _log.warning(
                "%s is %s, and metrics and traces are pushed as %s alone: name the collector's port for that, mostly 4318",
                variable,
                protocol,
                _PUSHED_PROTOCOL,
            )


class Telemetry(Recorder):
    """Counts what loops report, and reads the rest off the last snapshot."""

    is_on = True

    def __init__(
        self,
        pipeline: str,
        version: str,
        snapshot: Callable[[], Snapshot | None],
        *,
        is_alone: bool,
        halves: frozenset[str] = frozenset({"capture", "deliver"}),
    ) -> None:
        self.counts = Counts()
        self._snapshot = snapshot
        self._version = version
        self._is_alone = is_alone
        self._halves = halves
        self._processes = Processes()
        self._scraped = Scraped(pipeline, self._values)
        self._pushed: Pushed | None = None
        self._traces: Traces | None = None
        if _wants_push("METRICS") or _wants_push("TRACES"):
            _warn_of_protocol()
        # OpenTelemetry's SDK takes its time to be imported, and its memory.
        if _wants_push("METRICS"):
            from penstock.server.pushed import Pushed

            self._pushed = Pushed(pipeline, version, self._values)
        if _wants_push("TRACES"):
            from penstock.server.tracing import Traces

            self._traces = Traces(pipeline, version)

    def text(self) -> bytes:
        """All metrics as Prometheus reads them."""
        return self._scraped.text()

    def close(self) -> None:
        """Push what is left, and end. A collector that does not answer is not waited for."""
        threads = [
            threading.Thread(target=each.close, daemon=True)
            for each in (self._pushed, self._traces)
            if each is not None
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + timing().push_end_seconds
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            _log.warning(
                "the last metrics and traces are not pushed: the collector does not answer"
            )

    # -- what loops report ------------------------------------------------------------------------

    def begin(self, source: str, sink: str, number: int) -> BatchTrace:
        """A batch begins."""
        if self._traces is None:
            return super().begin(source, sink, number)
        return self._traces.begin(source, sink, number)

    def batch(self, record: BatchRecord) -> None:
        """A batch has been committed."""
        self.counts.batch(record, is_alone=self._is_alone)
        for name, value, labels in _measured(record):
            self._scraped.record(name, value, labels)
            if self._pushed is not None:
                self._pushed.record(name, value, labels)

    def retry(self, sink: str) -> None:
        """Delivery to a sink is tried again."""
        self.counts.retry(sink)

    def error(self, part: str, text: str) -> None:
        """An error has come up."""
        self.counts.error(part, text)

    def restart(self, process: str) -> None:
        """A process is started again."""
        self.counts.restart(process)

    # -- what instruments read --------------------------------------------------------------------

    def _values(self, name: str) -> Iterable[tuple[float, dict[str, str]]]:
        if name in OBSERVED:
            half = "capture" if name in CAPTURED else "deliver"
            snapshot = self._snapshot() if half in self._halves else None
            return () if snapshot is None else OBSERVED[name](snapshot.status)
        if name in _USED:
            read = _USED[name]
            return [(read(used), {"role": role}) for role, used in self._processes.usage().items()]
        if name == "penstock.build.info":
            return [(1, {"version": self._version, "python": platform.python_version()})]
        if name == "penstock.copy.rate" and "deliver" not in self._halves:
            return ()
        return self.counts.read(name)


_USED: dict[str, Callable[[Any], float]] = {
    "penstock.process.cpu.time": lambda used: used.cpu_seconds,
    "penstock.process.memory": lambda used: used.memory_bytes,
    "penstock.processes": lambda used: used.count,
}


def _measured(record: BatchRecord) -> Iterator[tuple[str, float, dict[str, str]]]:
    """The values of a batch for histograms."""
    place = {"sink": record.sink, "source": record.source}
    yield "penstock.batch.size", record.size_bytes, place
    yield "penstock.batch.changes", record.change_count, place
    if record.tasks:
        for part in ("read", "decode", "modify", "stage"):
            seconds = sum(task.seconds.get(part, 0.0) for task in record.tasks)
            yield "penstock.batch.duration", seconds, {**place, "part": part}
    if record.has_job:
        yield "penstock.batch.duration", record.job_seconds, {**place, "part": "job"}
        longest = max((_task_seconds(task.seconds) for task in record.tasks), default=0.0)
        overhead = max(0.0, record.job_seconds - longest)
        yield "penstock.spark.job.overhead", overhead, {"sink": record.sink}
    yield "penstock.batch.duration", record.commit_seconds, {**place, "part": "commit"}


def _task_seconds(seconds: Any) -> float:
    return float(sum(seconds.get(part, 0.0) for part in ("read", "decode", "modify", "stage")))
