"""Every instrument of penstock, and what the loops report for them. Knows no library that measures.

A loop reports a batch to a `Recorder`. The one here does nothing, so that a pipeline that nobody watches
pays nothing; `penstock.server.telemetry` has the one that counts. What is in the status is read from there when
somebody asks; the rest is reported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

# So many tables have series of their own; the others are counted together.
MOST_TABLES = 200
OTHER_TABLES = "(others)"


@dataclass(frozen=True)
class Instrument:
    """One metric: OpenTelemetry's name and unit, and what Prometheus makes of them."""

    name: str
    kind: str
    unit: str
    description: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def prometheus_name(self) -> str:
        """The name at /metrics."""
        name = self.name.replace(".", "_")
        suffix = {"s": "_seconds", "By": "_bytes", "{row}/s": "_per_second"}.get(self.unit, "")
        name = name if name.endswith(suffix) else name + suffix
        return f"{name}_total" if self.kind == COUNTER else name


_TIMES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_SIZES = tuple(float(4**power) for power in range(5, 15))  # 1 kiB to 256 MiB
_CHANGES = tuple(float(10**power) for power in range(8))

SOURCE, SINK, FLOW = ("source",), ("sink",), ("sink", "source")

INSTRUMENTS = (
    # -- where everything stands ------------------------------------------------------------------
    Instrument(
        "penstock.source.position",
        GAUGE,
        "By",
        "LSN of the source as a number; position is current, received, durable or acknowledged.",
        ("source", "position"),
    ),
    Instrument(
        "penstock.source.up", GAUGE, "", "1 while capture is connected to the source.", SOURCE
    ),
    Instrument(
        "penstock.source.report.age",
        GAUGE,
        "s",
        "Since capture last reported; it does so every 10 s.",
        SOURCE,
    ),
    Instrument("penstock.slot.active", GAUGE, "", "1 while somebody reads the slot.", SOURCE),
    Instrument(
        "penstock.slot.retained", GAUGE, "By", "WAL that the server keeps for the slot.", SOURCE
    ),
    Instrument(
        "penstock.slot.wal.status",
        GAUGE,
        "",
        "1 for the status that the server gives the slot's WAL: reserved, extended, unreserved, lost.",
        ("source", "status"),
    ),
    Instrument(
        "penstock.source.transactions",
        COUNTER,
        "{transaction}",
        "Transactions that capture has written to the log since it was started.",
        SOURCE,
    ),
    Instrument("penstock.log.size", GAUGE, "By", "What the log holds on disk.", SOURCE),
    Instrument(
        "penstock.log.age",
        GAUGE,
        "s",
        "Age of the oldest commit in the log that a sink, or a stopped table there, has yet to get; 0 when all have all.",
        SOURCE,
    ),
    Instrument("penstock.sink.position", GAUGE, "By", "Delivered LSN as a number.", FLOW),
    Instrument(
        "penstock.sink.lag",
        GAUGE,
        "s",
        "Age of the oldest commit that is not delivered, or of the last that is where capture hangs or does not keep up.",
        FLOW,
    ),
    Instrument(
        "penstock.sink.lag.size", GAUGE, "By", "WAL between the source and what is delivered.", FLOW
    ),
    Instrument("penstock.sink.up", GAUGE, "", "1 while the sink has no error.", SINK),
    Instrument("penstock.sink.paused", GAUGE, "", "1 while a person has paused the sink.", SINK),
    Instrument("penstock.sink.changes", COUNTER, "{change}", "Changes delivered.", FLOW),
    Instrument("penstock.sink.parked", GAUGE, "{change}", "Changes that wait, parked.", SINK),
    Instrument("penstock.tables", GAUGE, "{table}", "Tables by their state.", ("sink", "state")),
    Instrument(
        "penstock.subscriptions",
        GAUGE,
        "{subscription}",
        "Subscriptions of webhooks by their state: active, failing, suspended, disabled, cut_off.",
        ("sink", "state"),
    ),
    Instrument(
        "penstock.conflicts",
        COUNTER,
        "{row}",
        "Rows that were there already, or were not there: insert_exists, update_missing, delete_missing.",
        ("sink", "kind"),
    ),
    # -- copies -----------------------------------------------------------------------------------
    Instrument("penstock.copy.rows", GAUGE, "{row}", "Rows copied of tables being copied.", SINK),
    Instrument("penstock.copy.size", GAUGE, "By", "Bytes copied of tables being copied.", SINK),
    Instrument("penstock.copy.rate", GAUGE, "{row}/s", "Rows a second of copies under way.", SINK),
    Instrument(
        "penstock.copy.ranges",
        GAUGE,
        "{range}",
        "Ranges of tables being copied; progress is done or total.",
        ("sink", "progress"),
    ),
    # -- batches ----------------------------------------------------------------------------------
    Instrument(
        "penstock.rows",
        COUNTER,
        "{row}",
        "Rows delivered by the stream, by operation: insert, update, delete, truncate.",
        ("sink", "source", "table", "operation"),
    ),
    Instrument(
        "penstock.metrics.tables.joined",
        GAUGE,
        "{table}",
        f"Tables without series of their own: above {MOST_TABLES} they are counted as {OTHER_TABLES}.",
    ),
    Instrument(
        "penstock.read",
        COUNTER,
        "By",
        "Bytes of changes read from the log, by operation.",
        ("sink", "source", "operation"),
    ),
    Instrument("penstock.batches", COUNTER, "{batch}", "Batches committed.", FLOW),
    Instrument("penstock.batch.size", HISTOGRAM, "By", "Bytes of a batch.", FLOW, _SIZES),
    Instrument(
        "penstock.batch.changes",
        HISTOGRAM,
        "{change}",
        "Changes of a batch.",
        FLOW,
        _CHANGES,
    ),
    Instrument(
        "penstock.batch.duration",
        HISTOGRAM,
        "s",
        "Time of a batch: read, decode, modify, stage (sums over its tasks), job and commit (on the clock).",
        ("sink", "source", "part"),
        _TIMES,
    ),
    Instrument("penstock.spark.jobs", COUNTER, "{job}", "Spark jobs of batches.", SINK),
    Instrument(
        "penstock.spark.job.overhead",
        HISTOGRAM,
        "s",
        "Time of a job beyond its longest task: planning, scheduling, results.",
        SINK,
        _TIMES,
    ),
    # -- what goes wrong --------------------------------------------------------------------------
    Instrument(
        "penstock.retries",
        COUNTER,
        "{attempt}",
        "Attempts after an error that time fixes, also requests to receivers of webhooks.",
        SINK,
    ),
    Instrument("penstock.errors", COUNTER, "{error}", "Errors that came up, by code.", ("code",)),
    Instrument(
        "penstock.restarts",
        COUNTER,
        "{restart}",
        "Processes started again after they died: capture, spark.",
        ("process",),
    ),
    # -- our processes ----------------------------------------------------------------------------
    Instrument(
        "penstock.process.cpu.time",
        COUNTER,
        "s",
        "CPU time of penstock's processes, also of those that have ended, by role: run, capture, spark, worker.",
        ("role",),
    ),
    Instrument("penstock.process.memory", GAUGE, "By", "Resident memory, by role.", ("role",)),
    Instrument("penstock.processes", GAUGE, "{process}", "Processes, by role.", ("role",)),
    Instrument("penstock.build.info", GAUGE, "", "1; what runs.", ("version", "python")),
)


@dataclass
class TaskRecord:
    """One task of a batch, as its receipt reports it."""

    began_at: float  # by the executor's clock
    seconds: Mapping[str, float]
    change_count: int = 0


@dataclass
class BatchRecord:
    """One batch that has been committed. Times by the driver's clock, seconds since 1970."""

    source: str
    sink: str
    number: int
    size_bytes: int = 0
    change_count: int = 0
    began_at: float = 0.0
    job_seconds: float = 0.0
    commit_began_at: float = 0.0
    commit_seconds: float = 0.0
    has_job: bool = False
    rows: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by table and operation
    read_bytes: Mapping[str, int] = field(default_factory=dict)  # by operation
    tasks: Sequence[TaskRecord] = ()


class BatchTrace:
    """The trace of one batch. This one is of nobody's interest."""

    trace_id: str | None = None
    traceparent: str | None = None  # as W3C writes it, where the batch is sampled

    def end(self, record: BatchRecord | None) -> None:
        """The batch is committed, or (None) is not and will be delivered by another one."""


_NO_TRACE = BatchTrace()


class Recorder:
    """What loops report to. Methods are called once a batch or less, from any thread, and never raise."""

    is_on = False

    def begin(self, source: str, sink: str, number: int) -> BatchTrace:
        """A batch begins."""
        del source, sink, number
        return _NO_TRACE

    def batch(self, record: BatchRecord) -> None:
        """A batch has been committed."""

    def retry(self, sink: str) -> None:
        """Delivery to a sink is tried again."""

    def error(self, part: str, text: str) -> None:
        """An error has come up, in a part of the pipeline such as `sink warehouse`; not again while it stays the same."""

    def restart(self, process: str) -> None:
        """A process that died is started again: capture or spark."""


NOTHING = Recorder()
"""For a pipeline that nobody watches."""
