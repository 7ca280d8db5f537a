"""The backlog of inserts into Postgres, with the log on a broker beside the log on files."""

from __future__ import annotations

import uuid
from typing import Any

from bench.backlogs import Inserts
from bench.brokers import kafka, nats
from bench.ours import Penstock


class OnFiles(Penstock):
    """As shipped."""

    name = "log on files"


class OnBroker(Penstock):
    """The log somewhere else."""

    def followed(self, source: dict[str, Any]) -> dict[str, Any]:
        """See Penstock."""
        return {"source": source, "log": self.log()}

    def log(self) -> dict[str, Any]:
        """What the file says of the log."""
        raise NotImplementedError

    def watch_log(self) -> None:
        """There is no directory to watch."""


class OnKafka(OnBroker):
    """Topics of the broker that the sinks are measured with."""

    def log(self) -> dict[str, Any]:
        """See OnBroker."""
        own = uuid.uuid4().hex[:8]
        names = {"topic": f"log-{own}.{{source}}", "state_topic": f"state-{own}"}
        return {"kind": "kafka", "servers": kafka().servers, **names}


class OnNats(OnBroker):
    """Streams of the server that the sinks are measured with."""

    def log(self) -> dict[str, Any]:
        """See OnBroker."""
        own = uuid.uuid4().hex[:8]
        names = {"stream": f"log-{own}-{{source}}", "bucket": f"state-{own}"}
        return {"kind": "nats", "url": nats().url, **names}


class LogOnKafka(Inserts):
    """Kafka."""

    name = "log_kafka"
    required = "≥ 0.7 of the log on files"
    least_ratio = 0.7
    baseline = OnFiles.name
    systems = (OnFiles, OnKafka)

    @property
    def title(self) -> str:
        """See Workload."""
        return f"backlog of {self.count:,} inserts into Postgres, log on Kafka"


class LogOnNats(Inserts):
    """JetStream."""

    name = "log_nats"
    required = "≥ 0.5 of the log on files"
    least_ratio = 0.5
    baseline = OnFiles.name
    systems = (OnFiles, OnNats)

    @property
    def title(self) -> str:
        """See Workload."""
        return f"backlog of {self.count:,} inserts into Postgres, log on NATS"
