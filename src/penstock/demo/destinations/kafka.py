"""A Kafka broker, and a consumer that reads what is committed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.demo.destinations import Destination
from penstock.demo.keeper import Keeper
from penstock.demo.shop import TABLES
from penstock.embedded.kafka import EmbeddedKafka, kafka_jars
from penstock.errors import SidesDiffer
from penstock.extras import require_package

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class Demonstrated(Destination):
    """One broker; three partitions for each table."""

    title = "a Kafka broker"
    reader = "consumer"
    pipeline: ClassVar[str] = """\
name: shop
state: ./shop-state                 # the log; the position is in Kafka
source:
  url: ${SHOP_URL}
  tables: ["public.*"]
sinks:
  bus:
    kind: kafka
    servers: ${KAFKA_SERVERS}
    topic: "shop.{table}"
    partitions: 3
    delivery: exactly_once
"""
    exports = "export KAFKA_SERVERS=kafka-1:9092,kafka-2:9092\n"
    page = "docs/howto/kafka.md"

    def __init__(self) -> None:
        self._keeper = Keeper()
        self._broker: EmbeddedKafka | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._consume, name="consumer", daemon=True)

    def require(self) -> None:
        """See Destination."""
        require_package("confluent_kafka", "kafka", "penstock demo")
        kafka_jars()

    def start(self, home: Path) -> str:
        """See Destination."""
        self._broker = EmbeddedKafka(home / "kafka")
        self._broker.start()
        self._thread.start()
        return f"a Kafka broker on port {self._broker.port}"

    @property
    def variables(self) -> Mapping[str, str]:
        """See Destination."""
        assert self._broker is not None
        return {"KAFKA_SERVERS": self._broker.servers}

    def _consume(self) -> None:
        from confluent_kafka import Consumer

        assert self._broker is not None
        settings: dict[str, Any] = {
            "bootstrap.servers": self._broker.servers,
            "group.id": "demo",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 500,
            "allow.auto.create.topics": False,
            "log_level": 0,
        }
        consumer = Consumer(settings)
        try:
            # Topics are made by penstock, once it has something for them.
            consumer.subscribe([f"^shop\\.({'|'.join(TABLES)})$"])
            while not self._stop.is_set():
                # One by one: of a batch, librdkafka loses records where the group rebalances meanwhile, as it does
                # with each topic that is made.
                record = consumer.poll(0.1)
                if record is not None and record.error() is None:
                    self._keeper.take(record.value())
        finally:
            consumer.close()

    def row_counts(self) -> dict[str, int]:
        """See Destination."""
        return self._keeper.row_counts()

    def rows(self, table: str) -> list[str]:
        """See Destination."""
        return self._keeper.rows(table)

    def prove(self) -> Sequence[str]:
        """See Destination."""
        if self._keeper.repeated_count:
            raise SidesDiffer(
                f"{self._keeper.repeated_count} records were there twice, wanted each once",
                "consumer",
                "keep this output and report it",
            )
        counts = (
            f"{self._keeper.document_count:,} records, {self._keeper.copied_count:,} of copied rows"
        )
        return [f"{counts}; each exactly once"]

    def close(self) -> None:
        """See Destination."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.close()
