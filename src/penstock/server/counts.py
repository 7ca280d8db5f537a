"""What a run has counted since it was started. Plain numbers, added to once a batch. From any thread."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from penstock.errors import recognise
from penstock.metrics import MOST_TABLES, OTHER_TABLES
from penstock.server.observed import copied
from penstock.timing import timing

if TYPE_CHECKING:
    from penstock.metrics import BatchRecord
    from penstock.run.status import PipelineStatus
    from penstock.server.watched import Snapshot

_log = logging.getLogger(__name__)


class Counts:
    """Rows, bytes, batches, retries, restarts, errors; and rates, from one snapshot to the next."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: Counter[tuple[str, str, str, str]] = Counter()  # sink, source, table, operation
        self._named: dict[tuple[str, str, str], str] = {}  # the label of each table
        self._joined: set[tuple[str, str, str]] = set()
        self._read: Counter[tuple[str, str, str]] = Counter()
        self._batches: Counter[tuple[str, str]] = Counter()
        self._jobs: Counter[str] = Counter()
        self._retries: Counter[str] = Counter()
        self._restarts: Counter[str] = Counter(capture=0, spark=0)
        self._errors: Counter[str] = Counter()
        self._standing: set[tuple[str, str]] = set()  # part and code, of errors that are there
        self._by_table: Counter[tuple[str, str]] = Counter()  # sink, table as `status` names it
        self._rated: tuple[float, Counter[tuple[str, str]]] = (time.time(), Counter())
        self._table_rates: dict[tuple[str, str], float] = {}
        self._copying: dict[str, tuple[float, int, int]] = {}  # when rows last came, all, the last
        self._copy_rates: dict[str, float] = {}

    def batch(self, record: BatchRecord, *, is_alone: bool) -> None:
        """Add a batch that has been committed."""
        place = (record.sink, record.source)
        with self._lock:
            self._batches[place] += 1
            self._jobs[record.sink] += record.has_job
            for (table, operation), count in record.rows.items():
                self._rows[*place, self._label(*place, table), operation] += count
                self._by_table[record.sink, table if is_alone else f"{record.source}/{table}"] += (
                    count
                )
            for operation, size in record.read_bytes.items():
                self._read[*place, operation] += size

    def _label(self, sink: str, source: str, table: str) -> str:
        """What a table is called in its series."""
        key = (sink, source, table)
        if key not in self._named:
            if len(self._named) >= MOST_TABLES:
                if not self._joined:
                    _log.warning(
                        "metrics: more than %d tables; rows of further ones are counted as %s",
                        MOST_TABLES,
                        OTHER_TABLES,
                    )
                self._joined.add(key)
                return OTHER_TABLES
            self._named[key] = table
        return self._named[key]

    def retry(self, sink: str) -> None:
        """Add one."""
        with self._lock:
            self._retries[sink] += 1

    def restart(self, process: str) -> None:
        """Add one."""
        with self._lock:
            self._restarts[process] += 1

    def take(self, snapshot: Snapshot) -> None:
        """Count errors that are new, and see how fast tables go."""
        with self._lock:
            standing = set(_standing(snapshot.status))
            self._errors.update(code for _, code in standing - self._standing)
            self._standing = standing
            at, before = self._rated
            if snapshot.at - at >= timing().table_rate_seconds:
                moved = self._by_table - before
                seconds = snapshot.at - at
                self._table_rates = {key: count / seconds for key, count in moved.items()}
                self._rated = (snapshot.at, self._by_table.copy())
            self._take_copies(snapshot)

    def _take_copies(self, snapshot: Snapshot) -> None:
        for name, sink in snapshot.status.sinks.items():
            rows = copied(sink, "rows_copied")
            at, before, grown = self._copying.get(name, (snapshot.at, 0, 0))
            self._copy_rates.setdefault(name, 0.0)
            self._retries[name] += 0  # a series that begins at 0 shows the first one as an increase
            if not rows:
                self._copying.pop(name, None)
                self._copy_rates[name] = 0.0
            elif rows != before:  # servers are asked less often than snapshots are made
                grown = max(0, rows - before) if before else 0
                if grown:
                    self._copy_rates[name] = grown / max(snapshot.at - at, 0.001)
                self._copying[name] = (snapshot.at, rows, grown)
            elif grown:
                # A copy that stands still is the slower the longer it does.
                slowed = grown / max(snapshot.at - at, 0.001)
                self._copy_rates[name] = min(self._copy_rates[name], slowed)

    def table_rates(self) -> dict[tuple[str, str], float]:
        """Rows a second, by sink and table; what is not there has none."""
        with self._lock:
            return dict(self._table_rates)

    def read(self, name: str) -> list[tuple[float, dict[str, str]]]:
        """The values of an instrument with their labels."""
        with self._lock:
            if name == "penstock.metrics.tables.joined":
                return [(len(self._joined), {})]
            keys, values = {
                "penstock.rows": (("sink", "source", "table", "operation"), self._rows),
                "penstock.read": (("sink", "source", "operation"), self._read),
                "penstock.batches": (("sink", "source"), self._batches),
                "penstock.spark.jobs": (("sink",), self._jobs),
                "penstock.retries": (("sink",), self._retries),
                "penstock.restarts": (("process",), self._restarts),
                "penstock.errors": (("code",), self._errors),
                "penstock.copy.rate": (("sink",), self._copy_rates),
            }[name]
            return [
                (value, dict(zip(keys, (key,) if isinstance(key, str) else key, strict=True)))
                for key, value in values.items()  # type: ignore[attr-defined]
            ]


def _standing(status: PipelineStatus) -> list[tuple[str, str]]:
    """Part and code of each error that is there now."""
    found = [("pipeline", status.error)]
    found += [(f"source {name}", each.error) for name, each in status.sources.items()]
    for name, sink in status.sinks.items():
        found.append((f"sink {name}", sink.error))
        found += [(f"{name} {table}", entry.error) for table, entry in sink.tables.items()]
    return [(part, _code(text)) for part, text in found if text]


def _code(text: str) -> str:
    known = recognise(text)
    return known.code if known is not None else "PEN-900"
