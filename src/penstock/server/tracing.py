"""A trace for each batch that is sampled: the batch, its job, a span for each task, the commit.

Tasks report in their receipts when they began and how long each part took, and the driver makes their
spans: executors need neither the library nor a way to the collector. The job carries the trace's id as a local
property of Spark's, so that Spark's own records can be matched.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from penstock.metrics import BatchTrace
from penstock.server.pushed import resource_of

if TYPE_CHECKING:
    from penstock.metrics import BatchRecord, TaskRecord

# Of a hundred batches. Another share: OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG.
_SAMPLED = 0.05


class Traces:
    """Makes traces, samples and pushes them, as the environment says."""

    def __init__(self, pipeline: str, version: str) -> None:
        own = (
            None
            if os.environ.get("OTEL_TRACES_SAMPLER")
            else ParentBased(TraceIdRatioBased(_SAMPLED))
        )
        self._provider = TracerProvider(
            sampler=own,
            resource=resource_of(pipeline, version),
            shutdown_on_exit=False,  # `close` does, and waits no longer than a stop may take
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("penstock", version)

    def begin(self, source: str, sink: str, number: int) -> BatchTrace:
        """A batch begins."""
        return BatchSpan(self._tracer, source, sink, number)

    def close(self) -> None:
        """Push what is left, and end."""
        self._provider.shutdown()


class BatchSpan(BatchTrace):
    """The trace of one batch."""

    def __init__(self, tracer: trace.Tracer, source: str, sink: str, number: int) -> None:
        self._tracer = tracer
        self._span = tracer.start_span(
            "batch",
            attributes={
                "penstock.source": source,
                "penstock.sink": sink,
                "penstock.batch": number,
            },
        )
        found = self._span.get_span_context()
        self.trace_id = format(found.trace_id, "032x")
        if self._span.is_recording():
            self.traceparent = f"00-{self.trace_id}-{found.span_id:016x}-01"

    def end(self, record: BatchRecord | None) -> None:
        """Make the spans of what the batch consisted of, and end its own."""
        if not self._span.is_recording():
            return
        if record is None:
            self._span.set_status(trace.StatusCode.ERROR, "not committed")
            self._span.end()
            return
        self._span.set_attributes(
            {"penstock.changes": record.change_count, "penstock.bytes": record.size_bytes}
        )
        here = trace.set_span_in_context(self._span)
        if record.has_job:
            job = self._child(here, "job", record.began_at, record.job_seconds)
            within = trace.set_span_in_context(job)
            for task in record.tasks:
                self._task(within, task)
        self._child(here, "commit", record.commit_began_at, record.commit_seconds)
        self._span.end()

    def _task(self, within: Any, task: TaskRecord) -> None:
        seconds = {part: took for part, took in task.seconds.items() if part != "cpu"}
        attributes = {f"penstock.{part}_seconds": took for part, took in task.seconds.items()}
        self._child(
            within,
            "task",
            task.began_at,
            sum(seconds.values()),
            {**attributes, "penstock.changes": task.change_count},
        )

    def _child(
        self,
        within: Any,
        name: str,
        began_at: float,
        seconds: float,
        attributes: dict[str, Any] | None = None,
    ) -> trace.Span:
        began = int(began_at * 1_000_000_000)
        span = self._tracer.start_span(
            name, context=within, attributes=attributes, start_time=began
        )
        span.end(began + int(seconds * 1_000_000_000))
        return span
