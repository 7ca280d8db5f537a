"""What people read: lines while it runs, and docs/benchmarks.md. Names no host and no path."""

from __future__ import annotations

import datetime as dt
import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

import psutil

from bench.native import Native, NativeDurable
from bench.ours import Penstock
from bench.processes import PENSTOCK

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.processes import ProcessUse
    from bench.workload import Result, Sizes, Workload

# Processes of the servers that did less than this are left out.
_LEAST_CPU_SECONDS = 0.05

_PARTS = {
    "capture": "capture, until the log was whole",
    "job": "Spark jobs, as the driver waited for them",
    "read": "reading the log, all tasks",
    "decode": "decoding, all tasks",
    "stage": "staging (COPY), all tasks",
    "cpu": "CPU of all tasks",
    "commit": "merging and committing, beside the next job",
    "enrol": "noticing tables, publishing and listing them",
    "describe": "taking the snapshot, reading the source's catalog",
    "create": "creating tables, until the first row is read",
    "transfer": "rows, keys and indexes, until the last table begins to catch up",
    "join": "from there until all tables stream",
}


@dataclass(frozen=True)
class Machine:
    """Where it ran."""

    cores: int
    memory_bytes: int
    system: str
    postgres: str
    spark: str
    python: str

    def __str__(self) -> str:
        return (
            f"{self.cores} cores, {self.memory_bytes / 2**30:.0f} GB of memory, {self.system};"
            f" Postgres {self.postgres}, Spark {self.spark}, Python {self.python}"
        )


def this_machine(postgres_version: str) -> Machine:
    """The machine we run on, by what matters for figures."""
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        system=f"{platform.system()} {platform.machine()}",
        postgres=postgres_version,
        spark=version("pyspark"),
        python=platform.python_version(),
    )


def result_lines(workload: Workload, result: Result) -> list[str]:
    """What is printed when one measurement has ended."""
    lines = [f"  {result.system}: {workload.figure(result)} ({result.seconds:.2f} s)"]
    lines += [f"    {note}" for note in result.notes]
    if result.parts:
        reported = ", ".join(f"{part} {seconds:.2f}" for part, seconds in _ordered(result.parts))
        lines.append(f"    its own seconds: {reported}")
    for use in worth_reporting(result.uses):
        lines.append(
            f"    {use.group:>8}  {use.label:<38} CPU {use.cpu_seconds:7.2f} s"
            + (f"   peak {use.peak_bytes / 1e6:7.1f} MB" if use.peak_bytes else "")
        )
    return lines


def verdict_line(workload: Workload, results: Sequence[Result]) -> str:
    """Ours beside native, and what is required."""
    native, ours = _of(results, workload.baseline), _of(results, Penstock.name)
    if ours is None:
        return ""
    ratio = _ratio(workload, native, ours)
    return f"  required: {workload.required}; {_verdict(workload, native, ours)}" + (
        f", ratio {ratio}" if ratio else ""
    )


def worth_reporting(uses: Iterable[ProcessUse]) -> list[ProcessUse]:
    """Every process of penstock, and those of the servers that did something."""
    return [use for use in uses if use.group == PENSTOCK or use.cpu_seconds >= _LEAST_CPU_SECONDS]


def page(
    machine: Machine,
    sizes: Sizes,
    measured: Sequence[tuple[Workload, Sequence[Result]]],
    minutes: float,
) -> str:
    """docs/benchmarks.md."""
    today = dt.datetime.now(dt.UTC).date().isoformat()
    lines = [
        "# Benchmarks",
        "",
        "Postgres's own logical replication (`CREATE SUBSCRIPTION`) and penstock, one after the other,",
        "in one run, between the same two servers on one machine. To reproduce: `make bench` on a quiet",
        f"machine; this took {minutes:.0f} minutes and wrote this page.",
        "",
        f"Measured {today} on {machine}.",
    ]
    if sizes.scale != 1.0:
        lines += ["", f"**Scaled down: {sizes.scale:g} of the full sizes. Do not quote.**"]
    lines += ["", *_overview(measured), "", *_METHOD]
    lines += _where_time_goes(measured)
    lines += ["", "## CPU and memory of every process", "", _CPU_NOTE]
    for workload, results in measured:
        lines += ["", f"### {workload.name}: {workload.title}"]
        for result in results:
            lines += ["", *_use_table(result)]
    lines += ["", "## Notes", ""]
    for workload, results in measured:
        for result in results:
            lines += [f"- {workload.name}, {result.system}: {note}." for note in result.notes]
    return "\n".join(lines) + "\n"


_METHOD = [
    "## How it is measured",
    "",
    "- Table `orders(id bigint primary key, customer_id int, status text, total numeric(12,2), note text,",
    "  created_at timestamptz, meta jsonb)`, about 250 bytes a row on the wire. Every measurement has fresh",
    "  databases; the table is the same on both sides, made before anything is followed. penstock runs with",
    "  `snapshot: never` but for the copies.",
    "- Servers: fsync on, shared_buffers 512 MB; no checkpoint and no autovacuum while the clock runs (both",
    "  are done by hand before it starts), WAL files made beforehand. Everything else as shipped.",
    "- Native as shipped: its apply worker commits with synchronous_commit off, so it does not wait for the",
    "  target's disk. penstock does, once per batch. The row with synchronous_commit on is native with the",
    "  same promise.",
    "- Backlogs: the pipeline is up, has passed a few hundred rows through the same table, and is held back",
    "  while the backlog is written: native by `ALTER SUBSCRIPTION … DISABLE`, penstock by SIGSTOP to its",
    "  capture process. The clock runs from ENABLE or SIGCONT until the last change is visible to another",
    "  session. What had reached the buffers of a held-back socket by then is described under Notes.",
    "- A history: the mixed backlog once more, into a table of kind `history` with the keys that penstock",
    "  makes; compared with penstock itself on a clone, in the same run. The rows that are still so are",
    "  those of the source in the end.",
    "- With triggers: the mixed backlog once more, by penstock without tracking of schema changes and then as",
    "  shipped, with its event triggers at the source.",
    "- Several sources: databases of one server, each with a third of the rows, into one table with",
    "  `source_id_column`; compared with one such source that has them all.",
    "- Latency: from the return of COMMIT at the source until a session at the target, which asks every",
    "  millisecond, sees the row.",
    "- Steady: one session commits with synchronous_commit off, paced by the clock; lag is counted in commits",
    "  that the target does not show yet.",
    "- One large transaction: a thousand rows all over the table are looked for ten times a second; when one",
    "  is seen, all must be, and count(*) at once gives the full number.",
    "- Copies: the tables wait at the source, in a schema that nobody follows; the system is up and another",
    "  table has gone through it. Native: from CREATE SUBSCRIPTION with copy_data, as shipped (two workers",
    "  for tables, rows as text), into tables that were made with their keys before, until each is",
    "  synchronised. penstock: the schema is renamed to one that matches. Its figure, and the ratio, is the",
    "  copy: from the moment that the tables are listed to be copied, so with the snapshot, the read of",
    "  the source's catalog and the creation of tables, until the last has its rows and its key and begins",
    "  to catch up. The second figure is all, from the rename until every table streams. Tables that appear",
    "  are noticed by two polls, each taken every 2 s. In the end a row is written to every table at the",
    "  source and must arrive.",
    "- Rules: the backlog of inserts once more, without and with a filter, SQL or masks; rows are compared with",
    "  those that match at the source, masked columns are left out of the comparison.",
    "- Brokers, search and webhooks: servers of one node on the same cores. The bare client has the same",
    "  documents ready in memory and sends them in the same batches: the most that can be had.",
    "- A log on a broker: the backlog of inserts once more into Postgres, beside the log on files.",
    "- After every workload row count and checksum of both sides are compared; a difference fails the run.",
    "- Writers and probes share the cores with everything else, for native and penstock alike.",
]

_CPU_NOTE = (
    "While the clock ran. Memory is resident memory at its peak: of penstock's processes since they started,"
    " of the servers' processes as sampled, shared buffers included. Processes named bench are the"
    " benchmark's own."
)


def _overview(measured: Sequence[tuple[Workload, Sequence[Result]]]) -> list[str]:
    lines = [
        "| workload | native | penstock | ratio | required | reached |",
        "|---|---|---|---|---|---|",
    ]
    for workload, results in measured:
        native, ours = _of(results, workload.baseline), _of(results, Penstock.name)
        reported = workload.figure(native) if native else ""
        if native is not None and native.system != Native.name:
            reported += f" ({native.system})"
        durable = _of(results, NativeDurable.name)
        if durable is not None:
            reported += f"; {workload.figure(durable)} with synchronous_commit on"
        cells = [
            workload.title,
            reported,
            workload.figure(ours) if ours else "",
            _ratio(workload, native, ours) if ours else "",
            workload.required,
            _verdict(workload, native, ours) if ours else "",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _where_time_goes(measured: Sequence[tuple[Workload, Sequence[Result]]]) -> list[str]:
    ours = [
        (w.name if r.system == Penstock.name else f"{w.name}: {r.system}", r)
        for w, results in measured
        for r in results
        if r.parts
    ]
    if not ours:
        return []
    lines = [
        "",
        "## Where penstock's time goes",
        "",
        "Seconds, by its own report. Tasks run side by side, and commits beside jobs, so they do not add up.",
        "",
        "| | " + " | ".join(name for name, _ in ours) + " |",
        "|---|" + "---|" * len(ours),
        "| whole | " + " | ".join(f"{result.seconds:.2f}" for _, result in ours) + " |",
    ]
    for part in dict.fromkeys([*_PARTS, *(part for _, r in ours for part in r.parts)]):
        cells = [f"{r.parts[part]:.2f}" if part in r.parts else "" for _, r in ours]
        if any(cells):
            lines.append(f"| {_PARTS.get(part, part)} | " + " | ".join(cells) + " |")
    return lines


def _use_table(result: Result) -> list[str]:
    uses = worth_reporting(result.uses)
    total = sum(use.cpu_seconds for use in uses)
    lines = [
        f"| {result.system}, {result.seconds:.2f} s | CPU seconds | peak memory, MB |",
        "|---|---|---|",
    ]
    lines += [
        f"| {use.group}: {use.label} | {use.cpu_seconds:.2f} |"
        + (f" {use.peak_bytes / 1e6:.0f} |" if use.peak_bytes else " |")
        for use in uses
    ]
    return [*lines, f"| all | {total:.2f} | |"]


def _ordered(parts: dict[str, float]) -> list[tuple[str, float]]:
    known = [part for part in _PARTS if part in parts]
    return [(part, parts[part]) for part in [*known, *(p for p in parts if p not in _PARTS)]]


def _of(results: Sequence[Result], system: str) -> Result | None:
    return next((result for result in results if result.system == system), None)


def _ratio(workload: Workload, native: Result | None, ours: Result) -> str:
    ratio = None if native is None else workload.ratio(native, ours)
    return "" if ratio is None else f"{ratio:.2f}"


def _verdict(workload: Workload, native: Result | None, ours: Result) -> str:
    reached = workload.reached(native, ours)
    return "" if reached is None else "yes" if reached else "**no**"
