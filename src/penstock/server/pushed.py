"""Metrics that are pushed by OTLP, where the environment names an endpoint. Imported only then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource

from penstock.metrics import COUNTER, HISTOGRAM, INSTRUMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from opentelemetry.metrics import CallbackOptions

    from penstock.server.telemetry import Values


def resource_of(pipeline: str, version: str) -> Resource:
    """What everything is pushed in the name of. What the environment says wins, such as OTEL_SERVICE_NAME."""
    own = {"service.name": "penstock", "service.version": version, "pipeline": pipeline}
    # `create` has what it is given win over the environment.
    return Resource.create(own).merge(OTELResourceDetector().detect())


class Pushed:
    """Every instrument: `values` gives those of one that is read; histograms are recorded here."""

    def __init__(self, pipeline: str, version: str, values: Values) -> None:
        self._values = values
        self._pipeline = pipeline
        self._provider = MeterProvider(
            [PeriodicExportingMetricReader(OTLPMetricExporter())],
            resource=resource_of(pipeline, version),
            shutdown_on_exit=False,  # `close` does, and waits no longer than a stop may take
        )
        self._histograms: dict[str, Any] = {}
        meter = self._provider.get_meter("penstock", version)
        for each in INSTRUMENTS:
            if each.kind == HISTOGRAM:
                self._histograms[each.name] = meter.create_histogram(
                    each.name,
                    each.unit,
                    each.description,
                    explicit_bucket_boundaries_advisory=each.buckets,
                )
                continue
            create: Any = (
                meter.create_observable_counter
                if each.kind == COUNTER
                else meter.create_observable_gauge
            )
            create(each.name, [self._callback(each.name)], each.unit, each.description)

    def record(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """Add a value to a histogram."""
        self._histograms[name].record(value, self._labels(labels))

    def close(self) -> None:
        """Push what is left, and end."""
        self._provider.shutdown()

    def _callback(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            return [
                Observation(value, self._labels(labels)) for value, labels in self._values(name)
            ]

        return observe

    def _labels(self, labels: Mapping[str, str]) -> dict[str, str]:
        # Attributes of the resource become labels in few collectors; rules and dashboards want this one.
        return {"pipeline": self._pipeline, **labels}
