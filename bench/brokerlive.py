"""A broker as changes come: how soon a consumer has them, and what one very large transaction takes of memory."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from bench.brokers import AtLeastOnce, ExactlyOnce, IntoNats, kafka, warm_up_broker, write
from bench.failure import BenchFailed
from bench.live import LATENCY_RATE, Latency
from bench.probe import percentile
from bench.processes import PENSTOCK, Meter
from bench.workload import Result, Workload, growth

if TYPE_CHECKING:
    from bench.brokers import Broker
    from bench.servers import Pair

_MOST_P50_MS = 80.0
# What the second half of a large transaction may add to the memory of a process.
_MOST_GROWTH = 1.15
_BIG = "INSERT INTO orders SELECT * FROM bench_rows(1, %s)"


class KafkaLatency(Latency):
    """From the return of COMMIT until the poll of a consumer that reads committed records gives the record."""

    name = "kafka_latency"
    required = "p50 ≤ 80 ms"
    is_warm = False
    systems = (ExactlyOnce, AtLeastOnce)

    @property
    def title(self) -> str:
        """See Workload."""
        return f"{LATENCY_RATE} single-row transactions a second into Kafka, commit to a poll"

    def measure(self, pair: Pair, system: Any) -> Result:
        """See Workload."""
        count = round(self.seconds * LATENCY_RATE)
        warm_up_broker(pair, system)
        before = system.seconds()
        with Meter(pair, system.pid) as meter, _Consumer(system.topic) as consumer:
            began = time.perf_counter()
            committed = self.write(pair, count)
            polled = consumer.await_records(count, system)
            seconds = time.perf_counter() - began
        found = [1000 * (polled[number] - at) for number, at in committed.items()]
        result = Result(self.name, system.name, count, seconds, uses=meter.uses())
        result.parts = growth(before, system.seconds())
        for name, percent in (("p50", 50), ("p95", 95), ("p99", 99), ("max", 100)):
            result.figures[name] = percentile(found, percent)
        return result

    def reached(self, native: Result | None, ours: Result) -> bool | None:
        """See Workload."""
        del native
        return ours.figures["p50"] <= _MOST_P50_MS


class _Consumer(threading.Thread):
    """Notes when each record is polled, by the number in its key."""

    def __init__(self, topic: str) -> None:
        super().__init__(name="consumer", daemon=True)
        self._topic = topic
        self._ended = threading.Event()
        self._is_ready = threading.Event()
        self.polled: dict[int, float] = {}

    def __enter__(self) -> _Consumer:
        self.start()
        if not self._is_ready.wait(30):
            raise BenchFailed("the consumer has no partitions after 30 s")
        return self

    def __exit__(self, *reason: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        """Poll from the beginning: ids below 1 were for warmth."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": kafka().servers,
                "group.id": f"bench-{self._topic}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        try:
            partitions = (
                consumer.list_topics(self._topic, timeout=20).topics[self._topic].partitions
            )
            consumer.assign([TopicPartition(self._topic, number, 0) for number in partitions])
            self._is_ready.set()
            while not self._ended.is_set():
                record = consumer.poll(0.2)
                if record is not None and record.error() is None:
                    self.polled[int(record.key().rpartition(b":")[2])] = time.perf_counter()
        finally:
            consumer.close()

    def await_records(self, last: int, system: Broker) -> dict[int, float]:
        """Wait for the last one; when each came."""
        deadline = time.monotonic() + 60
        while last not in self.polled:
            system.check()
            if time.monotonic() > deadline:
                raise BenchFailed(f"penstock: record {last} not polled after 60 s")
            time.sleep(0.05)
        return self.polled


class BrokerBig(Workload):
    """INSERT ... SELECT of millions of rows: one transaction, which no sink may hold in memory."""

    name = "brokers_big"
    required = "memory of driver and tasks flat"
    is_warm = False
    is_optional = True
    systems = (ExactlyOnce, AtLeastOnce, IntoNats)

    @property
    def count(self) -> int:
        """How many rows."""
        return self.sizes.count(2_000_000, 1000)

    @property
    def title(self) -> str:
        """See Workload."""
        return f"one transaction of {self.count:,} rows into brokers"

    def measure(self, pair: Pair, system: Any) -> Result:
        """See Workload."""
        warm_up_broker(pair, system)
        before = system.seconds()
        with Meter(pair, system.pid) as meter:
            began = time.perf_counter()
            lsn = write(pair, _BIG, self.count)
            ended = system.await_delivered(lsn, 120 + self.count / 2000)
        result = Result(self.name, system.name, self.count, ended - began, uses=meter.uses())
        result.parts = growth(before, system.seconds())
        for use in result.uses:
            if use.group == PENSTOCK and use.halves is not None:
                first, second = use.halves
                result.figures[f"{use.label} first half"] = first / 1e6
                result.figures[f"{use.label} second half"] = second / 1e6
        return result

    def figure(self, result: Result) -> str:
        """See Workload."""
        halves = _halves(result)
        reported = (f"{label} {one:.0f} then {other:.0f} MB" for label, one, other in halves)
        return f"{result.per_second:,.0f} rows/s; " + ", ".join(reported)

    def reached(self, native: Result | None, ours: Result) -> bool | None:
        """See Workload."""
        del native
        return all(second <= _MOST_GROWTH * first for _, first, second in _halves(ours))


def _halves(result: Result) -> list[tuple[str, float, float]]:
    """The most memory of driver and workers in the first and second half of their work, in MB."""
    return [
        (label, first, result.figures[f"{label} second half"])
        for name, first in result.figures.items()
        if name.endswith(" first half")
        and (label := name.removesuffix(" first half")).startswith(("driver", "Python worker"))
    ]
