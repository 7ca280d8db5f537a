"""A backlog of inserts into a broker, beside a bare client that has the same documents ready in memory.

The bare client is the most that can be had: the same records in the same batches to the same broker, and nothing to
decode. Everything shares the machine: broker, source, Spark. Both send as much once before the clock starts: else the
second to come is measured while the server's compiler still works on what the first one did not need.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import uuid
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import yaml

from bench.failure import BenchFailed
from bench.ours import Penstock
from bench.processes import BESIDE, Meter
from bench.servers import connect, one
from bench.workload import Result, Workload, growth

sys.path.append(str(Path(__file__).parents[1] / "tests"))

if TYPE_CHECKING:
    from bench.servers import Pair

Record = tuple[bytes, str, list[tuple[str, Any]]]

_LSN = "0/16B3748"
# As many rows as 32 MiB of the log hold.
_KAFKA_BATCH = 120_000
_WINDOW = 1000
_WARM = 20_000
_SERVER = "broker or search server"
_INSERTS = "CALL bench_inserts(%s, 1000)"
_WARM_TABLE = "CREATE TABLE warm (LIKE orders INCLUDING ALL)"
_WARM_INSERTS = "INSERT INTO warm SELECT * FROM bench_rows(%s, %s)"
_WARM_STEP = 1000
_DOCUMENTS = """
SELECT id, '{"id":"bench:' || %(lsn)s || ':' || id || '","op":"insert","schema":"public","table":"orders","commit_lsn":"'
  || %(lsn)s || '","ordinal":' || id || ',"xid":1234,"committed_at":"2026-01-01T00:00:00.000000+00:00",'
  || '"source":"bench","key":{"id":' || id || '},"before":null,"after":' || row_to_json(o)::text || ',"unchanged":[]}'
FROM orders o ORDER BY id
"""


# Brokers that a workload has started; who runs workloads ends them.
started = ExitStack()


@cache
def kafka() -> Any:
    """One broker for all figures, warm: the first one measured must not pay for its compiler."""
    from confluent_kafka import Producer

    from fix_kafka import KafkaServer

    server = started.enter_context(KafkaServer(jvm=("-Xmx1g",)).running())
    _make_topic(server, "warm")
    producer = Producer({"bootstrap.servers": server.servers, "enable.idempotence": True})
    for number in range(300_000):
        producer.produce("warm", b"x" * 500, str(number))
        if not number % 10_000:
            producer.flush()
    producer.flush()
    return server


@cache
def nats() -> Any:
    """One server for all figures."""
    from fix_nats import NatsServer

    return started.enter_context(NatsServer().running())


def _make_topic(server: Any, name: str) -> None:
    from confluent_kafka.admin import NewTopic

    server.admin.create_topics([NewTopic(name, 3, 1)])[name].result(30)


class Bare:
    """A client with documents in memory. Knows its documents once the rows are written."""

    name = "bare"
    pid = None

    def __init__(self, pair: Pair, *, copies: bool = False) -> None:
        del copies
        self._pair = pair

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        """Nothing to stop."""

    def documents(self) -> list[Record]:
        """The rows of the source as records, headers and keys included."""
        rest = [("op", "insert"), ("commit_lsn", _LSN), ("source", "bench")]
        rest.append(("content-type", "application/json"))
        rows = self._pair.source.execute(_DOCUMENTS, {"lsn": _LSN}).fetchall()
        return [
            (text.encode(), f"public.orders:{key}", [("id", f"bench:{_LSN}:{key}"), *rest])
            for key, text in rows
        ]

    def deliver(self, records: list[Record]) -> None:
        """Send everything and wait for it."""
        raise NotImplementedError


class BareKafka(Bare):
    """Idempotent, as `at_least_once` is."""

    conf: ClassVar[dict[str, Any]] = {}

    def deliver(self, records: list[Record]) -> None:
        """See Bare."""
        from confluent_kafka import Producer

        topic = f"bare-{uuid.uuid4().hex}"
        _make_topic(kafka(), topic)
        self._producer = Producer(
            {
                "bootstrap.servers": kafka().servers,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 131_072,
                **self.conf,
            }
        )
        self.begin()
        for first in range(0, len(records), _KAFKA_BATCH):
            self.send(topic, records[first : first + _KAFKA_BATCH])

    def begin(self) -> None:
        """Before the first batch."""

    def send(self, topic: str, records: list[Record]) -> None:
        """One batch."""
        produce, poll = self._producer.produce, self._producer.poll
        for value, key, headers in records:
            while True:
                try:
                    produce(topic, value, key, headers=headers)
                    break
                except BufferError:
                    poll(0.05)
        self._producer.flush()


class BareTransactions(BareKafka):
    """One transaction a batch, as `exactly_once` has."""

    conf: ClassVar[dict[str, Any]] = {"transactional.id": "bare", "transaction.timeout.ms": 600_000}

    def begin(self) -> None:
        """See BareKafka."""
        self._producer.init_transactions(30)

    def send(self, topic: str, records: list[Record]) -> None:
        """See BareKafka."""
        self._producer.begin_transaction()
        super().send(topic, records)
        self._producer.commit_transaction(60)


class BareNats(Bare):
    """Publishes with the same window, and counts acknowledgements in one inbox.

    The client's own `publish_async` is no measure: it took five times as long as penstock here.
    """

    def deliver(self, records: list[Record]) -> None:
        """See Bare."""
        messages = [
            (value, {"Nats-Msg-Id" if name == "id" else name: text for name, text in headers})
            for value, _, headers in records
        ]
        asyncio.run(self._publish(messages))

    async def _publish(self, messages: list[tuple[bytes, dict[str, str]]]) -> None:
        import nats as client

        connection = await client.connect(nats().url, pending_size=16 * 1024 * 1024)
        jetstream = connection.jetstream()
        name = f"bare{uuid.uuid4().hex[:8]}"
        await jetstream.add_stream(name=name, subjects=[f"{name}.>"])
        inbox, moved = connection.new_inbox(), asyncio.Event()
        sent = acked = 0

        async def take(_message: Any) -> None:
            nonlocal acked
            acked += 1
            moved.set()

        async def until(count: int) -> None:
            while acked < count:
                moved.clear()
                await moved.wait()

        await connection.subscribe(inbox, cb=take)
        for value, headers in messages:
            if sent - acked >= _WINDOW:
                await until(sent - _WINDOW + _WINDOW // 4)
            sent += 1
            await connection.publish(f"{name}.public.orders", value, inbox, headers)
        await until(sent)
        await jetstream.delete_stream(name)
        await connection.close()


class Broker(Penstock):
    """penstock with a sink at a broker."""

    def sink(self) -> dict[str, Any]:
        """The sink as the file has it."""
        raise NotImplementedError

    def write_file(self) -> None:
        """See Penstock."""
        document = {
            "name": "bench",
            "state": str(self._state),
            "source": {
                "url": self._pair.source_dsn,
                "tables": ["public.*"],
                "snapshot": "never",
            },
            "sinks": {"target": self.sink()},
        }
        self._path.write_text(yaml.safe_dump(document), encoding="utf-8")

    def await_delivered(self, lsn: str, seconds: float) -> float:
        """Wait until everything up to a position is delivered; when, by time.perf_counter."""
        wanted = _number(lsn)
        deadline = time.monotonic() + seconds
        while _number(self._report("sinks/target").get("delivered_lsn") or "0/0") < wanted:
            self.check()
            if time.monotonic() > deadline:
                raise BenchFailed(f"penstock: {lsn} not delivered after {seconds:.0f} s")
            time.sleep(0.01)
        return time.perf_counter()


class ExactlyOnce(Broker):
    """Kafka, by transactions."""

    delivery: ClassVar[str] = "exactly_once"

    def sink(self) -> dict[str, Any]:
        """See Broker."""
        self.topic = f"ours-{uuid.uuid4().hex}"
        _make_topic(kafka(), self.topic)
        return {
            "kind": "kafka",
            "servers": kafka().servers,
            "topic": self.topic,
            # The broker outlives a workload, and the position of the one before is another database's.
            "progress_topic": f"progress-{self.topic}",
            "delivery": self.delivery,
        }


class AtLeastOnce(ExactlyOnce):
    """Kafka, by tasks."""

    delivery: ClassVar[str] = "at_least_once"


class IntoNats(Broker):
    """NATS."""

    def sink(self) -> dict[str, Any]:
        """See Broker."""
        name = f"ours{uuid.uuid4().hex[:8]}"
        return {
            "kind": "nats",
            "url": nats().url,
            "stream": name,
            "subject": f"{name}.{{schema}}.{{table}}",
            "window": _WINDOW,
        }


class BrokerBacklog(Workload):
    """Inserts, from the release of the system until all of them are delivered."""

    is_warm = False  # nothing is visible at a Postgres target: it is warmed by its own backlog
    baseline = "bare"
    least_ratio: float
    least_per_second = 2000  # else it is given up, after a minute
    _bare_cpu = 0.0
    _bare_seconds = 0.0

    def server(self) -> Any:
        """What both deliver to."""
        raise NotImplementedError

    @property
    def count(self) -> int:
        """How many rows."""
        return self.sizes.count(1_000_000, 1000)

    @property
    def warm_count(self) -> int:
        """How many rows each system has sent before."""
        return self.count

    def prepare(self, pair: Pair) -> None:
        """See Workload."""
        super().prepare(pair)
        pair.source.execute(_WARM_TABLE)

    def measure(self, pair: Pair, system: Any) -> Result:
        """See Workload."""
        if isinstance(system, Bare):
            return self._measure_bare(pair, system)
        self.warm_up(pair, system)
        system.hold()
        lsn = write(pair, _INSERTS, self.count)
        before = system.seconds()
        with Meter(pair, system.pid, beside={_SERVER: self.server().pid}) as meter:
            began = time.perf_counter()
            system.release()
            ended = system.await_delivered(lsn, 60 + self.count / self.least_per_second)
        result = Result(self.name, system.name, self.count, ended - began, uses=meter.uses())
        result.parts = growth(before, system.seconds())
        self._note_bound(result)
        return result

    def warm_up(self, pair: Pair, system: Any) -> None:
        """Have a backlog of another table delivered."""
        system.hold()
        with connect(pair.source_dsn, "bench writer") as writer:
            writer.execute("SET synchronous_commit = off")
            for first in range(1, self.warm_count + 1, _WARM_STEP):
                last = min(first + _WARM_STEP - 1, self.warm_count)
                writer.execute(_WARM_INSERTS, (first, last))
            lsn = str(one(writer, "SELECT pg_current_wal_insert_lsn()"))
        system.release()
        system.await_delivered(lsn, 60 + self.warm_count / self.least_per_second)

    def _measure_bare(self, pair: Pair, system: Bare) -> Result:
        write(pair, _INSERTS, self.count)
        records = system.documents()
        system.deliver(records[: self.warm_count])
        with self.meter_bare(pair) as meter:
            began = time.perf_counter()
            system.deliver(records)
            seconds = time.perf_counter() - began
        return self.of_bare(system.name, seconds, meter)

    def meter_bare(self, pair: Pair) -> Meter:
        """Of a client that is this process, and of what it delivers to."""
        return Meter(pair, None, beside={"bare client": os.getpid(), _SERVER: self.server().pid})

    def of_bare(self, name: str, seconds: float, meter: Meter) -> Result:
        """The result of a bare client."""
        result = Result(self.name, name, self.count, seconds, uses=meter.uses())
        self._bare_seconds = seconds
        self._bare_cpu = sum(use.cpu_seconds for use in result.uses if use.group == BESIDE)
        return result

    def _note_bound(self, result: Result) -> None:
        """What these cores allow: the work of the bare client and its server, and the walsender's, if nothing else cost anything."""
        walsender = sum(use.cpu_seconds for use in result.uses if use.label == "walsender")
        least = (self._bare_cpu + walsender) / len(os.sched_getaffinity(0))
        if not self._bare_cpu:
            return  # it was not measured
        result.notes.append(
            f"the bare client and its server used {self._bare_cpu:.2f} s of CPU, the walsender here {walsender:.2f} s:"
            f" on these cores {least:.2f} s, a ratio of {min(1.0, self._bare_seconds / least):.2f}, if penstock cost nothing"
        )

    def figure(self, result: Result) -> str:
        """See Workload."""
        return f"{result.per_second:,.0f} rows/s"

    def ratio(self, native: Result, ours: Result) -> float | None:
        """See Workload."""
        return ours.per_second / native.per_second

    def reached(self, native: Result | None, ours: Result) -> bool | None:
        """See Workload."""
        return None if native is None else self.ratio(native, ours) >= self.least_ratio  # type: ignore[operator]


class Kafka(BrokerBacklog):
    """Exactly once."""

    name = "kafka"
    required = "≥ 0.6 of a bare transactional producer"
    least_ratio = 0.6
    systems = (BareTransactions, ExactlyOnce)

    def server(self) -> Any:
        """See BrokerBacklog."""
        return kafka()

    @property
    def title(self) -> str:
        """See Workload."""
        return f"backlog of {self.count:,} inserts into Kafka, exactly once"


class KafkaAtLeastOnce(BrokerBacklog):
    """At least once."""

    name = "kafka_at_least_once"
    required = "≥ 0.7 of a bare idempotent producer"
    least_ratio = 0.7
    systems = (BareKafka, AtLeastOnce)

    def server(self) -> Any:
        """See BrokerBacklog."""
        return kafka()

    @property
    def title(self) -> str:
        """See Workload."""
        return f"backlog of {self.count:,} inserts into Kafka, at least once"


class Nats(BrokerBacklog):
    """JetStream."""

    name = "nats"
    required = "≥ 0.6 of a bare publisher with the same window"
    least_ratio = 0.6
    systems = (BareNats, IntoNats)

    def server(self) -> Any:
        """See BrokerBacklog."""
        return nats()

    @property
    def title(self) -> str:
        """See Workload."""
        return f"backlog of {self.count:,} inserts into NATS"


def write(pair: Pair, statement: str, count: int) -> str:
    """Write rows; where the source stands then."""
    with connect(pair.source_dsn, "bench writer") as writer:
        writer.execute("SET synchronous_commit = off")
        writer.execute(statement, (count,))
        return str(one(writer, "SELECT pg_current_wal_insert_lsn()"))


def warm_up_broker(pair: Pair, system: Broker) -> None:
    """Send rows through; their ids are negative."""
    warm = write(pair, "INSERT INTO orders SELECT * FROM bench_rows(-%s, -1)", _WARM)
    system.await_delivered(warm, 60)


def _number(lsn: str) -> int:
    high, low = lsn.split("/")
    return int(high, 16) << 32 | int(low, 16)
