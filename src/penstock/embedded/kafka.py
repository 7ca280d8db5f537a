"""EmbeddedKafka: a broker of our own, one node, gone without a trace. For the demo; knows nothing of penstock's pipeline.

Its jars are those of a Kafka on this machine (`KAFKA_HOME`), or fetched once by Maven.
"""

from __future__ import annotations

import base64
import os
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

from penstock.embedded.guard import guarded
from penstock.embedded.java import java_home, serial_collector
from penstock.embedded.maven import fetched_jars
from penstock.embedded.ports import free_port
from penstock.errors import EmbeddedServerFailed
from penstock.timing import timing

VERSION = "4.3.1"
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=OPEN://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=OPEN://127.0.0.1:{port}
listener.security.protocol.map=OPEN:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=OPEN
controller.listener.names=CONTROLLER
log.dirs={home}/data
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=500
num.network.threads=1
num.io.threads=2
"""
_QUIET = """\
Configuration:
  Appenders:
    Console: {name: out, PatternLayout: {pattern: "%d %p %m%n"}}
  Loggers:
    Root: {level: WARN, AppenderRef: [{ref: out}]}
"""

_ATTEMPTS = 2


def kafka_jars() -> Path:
    """The directory of Kafka's jars; fetched by Maven where there is none.

    Raises:
        EmbeddedServerFailed: there is none, and none can be had.
    """
    if given := os.environ.get("KAFKA_HOME"):
        libs = Path(given) / "libs"
        if not any(libs.glob("kafka_2*.jar")):
            raise EmbeddedServerFailed(
                "KAFKA_HOME names a directory without libs/kafka_2*.jar",
                given,
                "set it to where Kafka 4 is unpacked, or take it out",
            )
        return libs
    return fetched_jars(
        f"kafka-{VERSION}",
        [f"org.apache.kafka:kafka_2.13:{VERSION}"],
        "unpack Kafka 4 (kafka.apache.org) and set KAFKA_HOME to it",
    )


class EmbeddedKafka:
    """One broker on a free port of 127.0.0.1, with a directory of its own that the caller removes."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def servers(self) -> str:
        """What clients are told."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Make its storage, start it, wait until it answers; once more, where it does not.

        Raises:
            EmbeddedServerFailed: it does not.
        """
        jars = kafka_jars()
        for attempt in range(_ATTEMPTS):
            home = self._home / str(attempt)
            home.mkdir(parents=True)
            self._launch(home, jars)
            if self._is_up():
                return
            self.close()
            said = (home / "log").read_text(errors="replace").strip().splitlines()
            port, self.port = self.port, free_port()
        raise EmbeddedServerFailed(
            f"Kafka does not answer in time; it said: {said[-1] if said else ''}",
            f"port {port}",
            "try again while the machine is less busy",
        )

    def _launch(self, home: Path, jars: Path) -> None:
        properties, quiet = home / "server.properties", home / "log4j2.yaml"
        properties.write_text(
            _PROPERTIES.format(port=self.port, controller=free_port(), home=home), encoding="utf-8"
        )
        quiet.write_text(_QUIET, encoding="utf-8")
        java = [str(java_home() / "bin" / "java"), "-Xmx512m", *serial_collector()]
        java += ["-XX:TieredStopAtLevel=1", f"-Dlog4j2.configurationFile={quiet}"]
        java += ["-cp", f"{jars}/*"]
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        form = ["kafka.tools.StorageTool", "format", "--standalone", "-t", cluster]
        with (home / "log").open("ab") as log:
            subprocess.run(  # noqa: S603
                [*java, *form, "-c", str(properties)], stdout=log, stderr=log, check=False
            )
            self._process = subprocess.Popen(  # noqa: S603
                guarded([*java, "kafka.Kafka", str(properties)]),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _is_up(self) -> bool:
        """Whether it can be used, within its time and as long as it lives."""
        from confluent_kafka.admin import AdminClient

        admin = AdminClient(self._client)
        deadline = time.monotonic() + timing().embedded_kafka_start_seconds / _ATTEMPTS
        while time.monotonic() < deadline and self._process and self._process.poll() is None:
            if self._answers(admin):
                return True
        return False

    @property
    def _client(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.servers,
            "log_level": 0,
            "reconnect.backoff.max.ms": 500,
        }

    def _answers(self, admin: Any) -> bool:
        """Whether it can be used: also who coordinates, which is decided when somebody first asks."""
        from confluent_kafka import KafkaException, Producer

        try:
            if not admin.list_topics(timeout=1).brokers:
                return False
            group = admin.describe_consumer_groups(["nobody"], request_timeout=5)["nobody"]
            if group.exception(10) is not None:
                return False
            Producer({**self._client, "transactional.id": "nobody"}).init_transactions(10)
        except (KafkaException, TimeoutError):
            return False
        return True

    def close(self) -> None:
        """Stop it. Safe to repeat."""
        process, self._process = self._process, None
        if process is not None:
            process.communicate()
