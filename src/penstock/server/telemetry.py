"""Metrics and traces by OpenTelemetry: as text for Prometheus, pushed by OTLP where an endpoint is set.

All instruments are those of `penstock.metrics`; nothing else here names one.
"""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from penstock.metrics import COUNTER, GAUGE, HISTOGRAM, INSTRUMENTS, BatchTrace, Recorder
from penstock.server.counts import Counts
from penstock.server.observed import OBSERVED
from penstock.server.processes import Processes
from penstock.server.tracing import BatchSpan, tracer_provider

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opentelemetry.metrics import CallbackOptions

    from penstock.metrics import BatchRecord, Instrument
    from penstock.server.watched import Snapshot

METRICS_TYPE = CONTENT_TYPE_LATEST

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def wants_push(signal: str) -> bool:
    """Whether the environment names where metrics or traces are pushed to."""
    return bool(
        os.environ.get(_ENDPOINT) or os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
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
    ) -> None:
        self.counts = Counts()
        self._snapshot = snapshot
        self._version = version
        self._is_alone = is_alone
        self._processes = Processes()
        self._registry = CollectorRegistry()
        resource = Resource.create(
            {"service.name": "penstock", "service.version": version, "pipeline": pipeline}
        )
        readers: list[Any] = [
            PrometheusMetricReader(
                disable_target_info=True,
                scope_info_enabled=False,
                resource_attribute_filter=lambda key: key == "pipeline",
                registry=self._registry,
            )
        ]
        if wants_push("METRICS"):
            readers.append(_pushing_reader())
        self._meters = MeterProvider(readers, resource=resource)
        self._histograms: dict[str, Any] = {}
        self._make_instruments()
        self._traces = tracer_provider(resource) if wants_push("TRACES") else None
        self._tracer = self._traces.get_tracer("penstock") if self._traces is not None else None

    def text(self) -> bytes:
        """All metrics as Prometheus reads them."""
        return generate_latest(self._registry)

    def close(self) -> None:
        """Push what is left, and end."""
        self._meters.shutdown()
        if self._traces is not None:
            self._traces.shutdown()

    # -- what loops report ------------------------------------------------------------------------

    def begin(self, source: str, sink: str, number: int) -> BatchTrace:
        """A batch begins."""
        if self._tracer is None:
            return super().begin(source, sink, number)
        return BatchSpan(self._tracer, source, sink, number)

    def batch(self, record: BatchRecord) -> None:
        """A batch has been committed."""
        self.counts.batch(record, is_alone=self._is_alone)
        place = {"sink": record.sink, "source": record.source}
        self._histograms["penstock.batch.size"].record(record.size_bytes, place)
        self._histograms["penstock.batch.changes"].record(record.change_count, place)
        duration = self._histograms["penstock.batch.duration"]
        for part in ("read", "decode", "modify", "stage"):
            seconds = sum(task.seconds.get(part, 0.0) for task in record.tasks)
            if record.tasks:
                duration.record(seconds, {**place, "part": part})
        if record.has_job:
            duration.record(record.job_seconds, {**place, "part": "job"})
            longest = max((_task_seconds(task.seconds) for task in record.tasks), default=0.0)
            self._histograms["penstock.spark.job.overhead"].record(
                max(0.0, record.job_seconds - longest), {"sink": record.sink}
            )
        duration.record(record.commit_seconds, {**place, "part": "commit"})

    def retry(self, sink: str) -> None:
        """Delivery to a sink is tried again."""
        self.counts.retry(sink)

    def restart(self, process: str) -> None:
        """A process is started again."""
        self.counts.restart(process)

    # -- instruments ------------------------------------------------------------------------------

    def _make_instruments(self) -> None:
        meter = self._meters.get_meter("penstock", self._version)
        for each in INSTRUMENTS:
            if each.kind == HISTOGRAM:
                self._histograms[each.name] = meter.create_histogram(
                    each.name,
                    each.unit,
                    each.description,
                    explicit_bucket_boundaries_advisory=each.buckets,
                )
                continue
            callback = self._callback(each)
            create: Any = {
                COUNTER: meter.create_observable_counter,
                GAUGE: meter.create_observable_gauge,
            }[each.kind]
            create(each.name, [callback], each.unit, each.description)

    def _callback(
        self, instrument: Instrument
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        name = instrument.name

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(value, labels) for value, labels in self._values(name)]

        return observe

    def _values(self, name: str) -> Iterable[tuple[float, dict[str, str]]]:
        if name in OBSERVED:
            snapshot = self._snapshot()
            return () if snapshot is None else OBSERVED[name](snapshot.status)
        if name in _USED:
            read = _USED[name]
            return [(read(used), {"role": role}) for role, used in self._processes.usage().items()]
        if name == "penstock.build.info":
            return [(1, {"version": self._version, "python": platform.python_version()})]
        return self.counts.read(name)


_USED: dict[str, Callable[[Any], float]] = {
    "penstock.process.cpu.time": lambda used: used.cpu_seconds,
    "penstock.process.memory": lambda used: used.memory_bytes,
    "penstock.processes": lambda used: used.count,
}


def _task_seconds(seconds: Any) -> float:
    return float(sum(seconds.get(part, 0.0) for part in ("read", "decode", "modify", "stage")))


def _pushing_reader() -> Any:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    return PeriodicExportingMetricReader(OTLPMetricExporter())
