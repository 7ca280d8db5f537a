"""Metrics as Prometheus scrapes them. They are put together when somebody asks, and cost nothing until then.

Not through OpenTelemetry's SDK, which would keep every value a second time and takes twice as long for a scrape.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from penstock.metrics import COUNTER, HISTOGRAM, INSTRUMENTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from prometheus_client import Metric

    from penstock.metrics import Instrument
    from penstock.server.telemetry import Values

METRICS_TYPE = CONTENT_TYPE_LATEST

_PIPELINE = "pipeline"  # a label of every series


class Scraped:
    """Every instrument: `values` gives those of one that is read; histograms are recorded here. From any thread.

    The text of an instrument is kept until its values change: most of a scrape are buckets, and while nothing
    is delivered they stay as they are.
    """

    def __init__(self, pipeline: str, values: Values) -> None:
        self._pipeline = pipeline
        self._values = values
        self._histograms = {
            each.name: Histogram(
                each.prometheus_name,
                each.description,
                (_PIPELINE, *each.labels),
                registry=None,
                buckets=each.buckets,
            )
            for each in INSTRUMENTS
            if each.kind == HISTOGRAM
        }
        self._recorded: Counter[str] = Counter()  # values in each histogram
        self._lock = threading.Lock()
        self._texts: dict[str, tuple[Any, bytes]] = {}  # what it was made from, and the text

    def record(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """Add a value to a histogram."""
        self._histograms[name].labels(**{_PIPELINE: self._pipeline}, **labels).observe(value)
        with self._lock:
            self._recorded[name] += 1

    def text(self) -> bytes:
        """All of them, in Prometheus's text format."""
        return b"".join(map(self._text, INSTRUMENTS))

    def _text(self, instrument: Instrument) -> bytes:
        name = instrument.name
        # Counted before it is read: what comes in meanwhile makes the text anew the next time.
        found: Any = (
            self._recorded[name] if instrument.kind == HISTOGRAM else list(self._values(name))
        )
        before, text = self._texts.get(name, (None, b""))
        if before != found:
            is_recorded = instrument.kind == HISTOGRAM
            made = self._histogram(name) if is_recorded else self._family(instrument, found)
            text = generate_latest(_Only(made))
            self._texts[name] = (found, text)
        return text

    def _histogram(self, name: str) -> Metric:
        [family] = self._histograms[name].collect()
        # When a series began would be a series beside it.
        family.samples = [each for each in family.samples if not each.name.endswith("_created")]
        return family

    def _family(self, instrument: Instrument, values: list[tuple[float, dict[str, str]]]) -> Metric:
        kind: Any = CounterMetricFamily if instrument.kind == COUNTER else GaugeMetricFamily
        family: Any = kind(
            instrument.prometheus_name,
            instrument.description,
            labels=(_PIPELINE, *instrument.labels),
        )
        for value, labels in values:
            family.add_metric((self._pipeline, *map(labels.__getitem__, instrument.labels)), value)
        return family  # type: ignore[no-any-return]


class _Only(Collector):
    """One instrument, for the library to write."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return [self._family]
