"""What a run has counted since it was started. Plain numbers, added to once a batch. From any thread."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import error_classes, recognise
from penstock.server.labels import Table, TableLabels
from penstock.server.observed import copied
from penstock.server.problems import ended_subscription
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.metrics import BatchRecord
    from penstock.run.status import PipelineStatus
    from penstock.server.watched import Snapshot

# So many errors are remembered after they have gone.
MOST_PAST_ERRORS = 100


@dataclass(frozen=True)
class PastError:
    """An error that came up, whether it is still there or not."""

    at: float  # seconds since 1970
    part: str  # sink warehouse, table public.orders at sink warehouse, …
    code: str
    text: str


class _CopyPace:
    """How fast something is copied, by when the number of its rows last changed.

    Servers are asked less often than snapshots are made; a copy that stands still is the slower the longer it does.
    """

    def __init__(self) -> None:
        self._at = 0.0
        self._rows = self._grown = 0
        self._rate = 0.0

    def after(self, at: float, rows: int) -> float:
        """Rows a second, when so many are copied at that time."""
        if not rows:
            self._rows, self._grown, self._rate = 0, 0, 0.0
        elif rows != self._rows:
            self._grown = max(0, rows - self._rows) if self._rows else 0
            if self._grown:
                self._rate = self._grown / max(at - self._at, 0.001)
            self._at, self._rows = at, rows
        elif self._grown:
            self._rate = min(self._rate, self._grown / max(at - self._at, 0.001))
        return self._rate


class Counts:
    """Rows, bytes, batches, retries, restarts, errors; and rates, from one snapshot to the next."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: Counter[tuple[str, str, str, str]] = Counter()  # sink, source, table, operation
        self._labels = TableLabels()
        self._read: Counter[tuple[str, str, str]] = Counter()
        self._batches: Counter[tuple[str, str]] = Counter()
        self._jobs: Counter[str] = Counter()
        self._retries: Counter[str] = Counter()
        self._restarts: Counter[str] = Counter(capture=0, spark=0)
        # A series that begins at 0 shows the first one as an increase. There are as many as there are codes.
        self._errors: Counter[str] = Counter(dict.fromkeys(error_classes(), 0))
        self._standing: set[tuple[str, str]] = set()  # part and code, of errors that are there
        # Those that loops have told, and that no snapshot has shown yet; with the time.
        self._counted: dict[tuple[str, str], float] = {}
        self._past: deque[PastError] = deque(maxlen=MOST_PAST_ERRORS)
        self._by_table: Counter[tuple[str, str]] = Counter()  # sink, table as `status` names it
        self._rated: tuple[float, Counter[tuple[str, str]]] = (time.time(), Counter())
        self._table_rates: dict[tuple[str, str], float] = {}
        self._copying: dict[str, _CopyPace] = {}
        self._copy_rates: dict[str, float] = {}
        self._tables_copying: dict[tuple[str, str], _CopyPace] = {}
        self._table_copy_rates: dict[tuple[str, str], float] = {}

    def batch(self, record: BatchRecord, *, is_alone: bool) -> None:
        """Add a batch that has been committed."""
        place = (record.sink, record.source)
        with self._lock:
            self._batches[place] += 1
            self._jobs[record.sink] += record.has_job
            for (table, operation), count in record.rows.items():
                shown = table if is_alone else f"{record.source}/{table}"
                label = self._labels.label(Table(*place, table), shown)
                self._rows[*place, label, operation] += count
                self._by_table[record.sink, shown] += count
            for operation, size in record.read_bytes.items():
                self._read[*place, operation] += size

    def retry(self, sink: str) -> None:
        """Add one."""
        with self._lock:
            self._retries[sink] += 1

    def restart(self, process: str) -> None:
        """Add one."""
        with self._lock:
            self._restarts[process] += 1

    def error(self, part: str, text: str) -> None:
        """Add one, where it happens: it may be gone before a snapshot is made."""
        with self._lock:
            now = time.time()
            self._add_error(now, part, text)
            self._counted[part, _code(text)] = now

    def _add_error(self, at: float, part: str, text: str) -> None:
        code = _code(text)
        self._errors[code] += 1
        self._past.append(PastError(at, part, code, text))

    def past_errors(self) -> list[PastError]:
        """The last errors that came up, newest first."""
        with self._lock:
            return list(reversed(self._past))

    def _take_errors(self, snapshot: Snapshot) -> None:
        """Count errors that no snapshot has shown before, but for those that were counted where they happened."""
        standing = _standing(snapshot.status)
        for (part, code), text in standing.items():
            if (part, code) not in self._standing and (part, code) not in self._counted:
                self._add_error(snapshot.at, part, text)
        self._standing = set(standing)
        oldest = snapshot.at - timing().watch_stale_seconds
        self._counted = {
            key: at for key, at in self._counted.items() if key not in standing and at > oldest
        }

    def take(self, snapshot: Snapshot) -> None:
        """Count errors that are new, and see how fast tables go."""
        with self._lock:
            self._take_errors(snapshot)
            at, before = self._rated
            if snapshot.at - at >= timing().table_rate_seconds:
                moved = self._by_table - before
                seconds = snapshot.at - at
                self._table_rates = {key: count / seconds for key, count in moved.items()}
                self._rated = (snapshot.at, self._by_table.copy())
            self._take_copies(snapshot)
            self._forget(self._labels.take(snapshot))

    def _forget(self, gone: Mapping[Table, str]) -> None:
        """End the series of tables that are gone: the next one of the name begins at 0, as after a restart."""
        for key in [key for key in self._rows if Table(*key[:3]) in gone]:
            del self._rows[key]
        for table, shown in gone.items():
            for counted in (self._by_table, self._rated[1]):
                counted.pop((table.sink, shown), None)

    def _take_copies(self, snapshot: Snapshot) -> None:
        tables: dict[tuple[str, str], _CopyPace] = {}
        for name, sink in snapshot.status.sinks.items():
            self._retries[name] += 0  # as with errors
            pace = self._copying.setdefault(name, _CopyPace())
            self._copy_rates[name] = pace.after(snapshot.at, copied(sink, "rows_copied"))
            for table, entry in sink.tables.items():
                if entry.state == "copying":
                    key = (name, table)
                    tables[key] = self._tables_copying.get(key) or _CopyPace()
                    self._table_copy_rates[key] = tables[key].after(snapshot.at, entry.rows_copied)
        self._tables_copying = tables
        self._table_copy_rates = {
            key: rate for key, rate in self._table_copy_rates.items() if key in tables
        }

    def table_rates(self) -> dict[tuple[str, str], float]:
        """Rows a second, streamed or copied, by sink and table; what is not there has none."""
        with self._lock:
            return self._table_rates | self._table_copy_rates

    def read(self, name: str) -> list[tuple[float, dict[str, str]]]:
        """The values of an instrument with their labels."""
        with self._lock:
            if name == "penstock.metrics.tables.joined":
                return [(self._labels.joined_count, {})]
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


def _standing(status: PipelineStatus) -> dict[tuple[str, str], str]:
    """Errors that are there now, by part and code."""
    found = [("pipeline", status.error)]
    found += [(f"source {name}", each.error) for name, each in status.sources.items()]
    for name, sink in status.sinks.items():
        found.append((f"sink {name}", sink.error))
        found += [
            (f"table {table} at sink {name}", entry.error) for table, entry in sink.tables.items()
        ]
        for shown, each in sink.subscriptions.items():
            if (ended := ended_subscription(name, shown, each)) is not None:
                found.append((f"subscription {shown} at sink {name}", str(ended)))
    return {(part, _code(text)): text for part, text in found if text}


def _code(text: str) -> str:
    known = recognise(text)
    return known.code if known is not None else "PEN-900"
