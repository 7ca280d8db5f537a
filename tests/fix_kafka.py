"""A Kafka broker for tests: one node, KRaft, from jars that Maven fetches once into pytest's cache.

Three listeners: one without a login, whose user may do everything; one with users and passwords
(`USERS`), who may do what `allow` lets them; and the controller's.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fix_machine import memory_disk, missing
from fix_wait import wait_until
from penstock.embedded.java import java_home
from penstock.embedded.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

KAFKA_VERSION = "4.3.1"
USERS = {"writer": "wr1ter-pass"}
_CACHE = Path(__file__).parents[1] / ".pytest_cache" / f"kafka-{KAFKA_VERSION}"
_POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>penstock</groupId><artifactId>kafka-for-tests</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
<version>{version}</version></dependency></dependencies></project>"""
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=OPEN://127.0.0.1:{port},LOGIN://127.0.0.1:{login_port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=OPEN://127.0.0.1:{port},LOGIN://127.0.0.1:{login_port}
listener.security.protocol.map=OPEN:PLAINTEXT,LOGIN:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=OPEN
controller.listener.names=CONTROLLER
sasl.enabled.mechanisms=PLAIN
listener.name.login.sasl.enabled.mechanisms=PLAIN
listener.name.login.plain.sasl.jaas.config={plain} required {users};
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
log.dirs={directory}/data
num.partitions=3
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
num.network.threads=1
num.io.threads=2
{more}
"""


def kafka_jars() -> Path:
    """Where Kafka's jars are; fetched by the first of several processes that asks."""
    _CACHE.parent.mkdir(parents=True, exist_ok=True)
    with _CACHE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _CACHE.exists():
            _fetch()
    return _CACHE


def _fetch() -> None:
    maven = shutil.which("mvn")
    if maven is None:
        missing("no mvn to fetch Kafka with")
    with tempfile.TemporaryDirectory(dir=_CACHE.parent) as directory:
        Path(directory, "pom.xml").write_text(_POM.format(version=KAFKA_VERSION))
        plugin = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
        done = subprocess.run(
            [maven, "-q", "-B", plugin, f"-DoutputDirectory={directory}/lib"],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        if done.returncode != 0:
            missing(f"mvn cannot fetch Kafka {KAFKA_VERSION}: {done.stdout.strip()[-300:]}")
        Path(directory, "lib").rename(_CACHE)


class KafkaServer:
    """One broker. `stop` and `start` again keep its ports and its data; `kill` is a power cut."""

    def __init__(self, settings: dict[str, Any] | None = None) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="penstock-kafka-", dir=memory_disk()))
        self.port, self.login_port = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None
        users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
        more = "\n".join(f"{key}={value}" for key, value in (settings or {}).items())
        self._file = self._directory / "server.properties"
        self._file.write_text(
            _PROPERTIES.format(
                port=self.port,
                login_port=self.login_port,
                controller=free_port(),
                plain=_PLAIN,
                users=users,
                directory=self._directory,
                more=more,
            )
        )
        quiet = self._directory / "log4j2.yaml"
        quiet.write_text(
            "Configuration:\n  Appenders:\n    Console:\n      name: out\n      PatternLayout:\n"
            '        pattern: "%d %p %m%n"\n'
            "  Loggers:\n    Root:\n      level: WARN\n      AppenderRef:\n        - ref: out\n"
        )
        self._java = [str(java_home() / "bin" / "java"), "-Xmx512m", "-XX:+UseSerialGC"]
        self._java += [f"-Dlog4j2.configurationFile={quiet}", "-cp", f"{kafka_jars()}/*"]
        form = ["kafka.tools.StorageTool", "format", "--standalone", "-t", _cluster_id()]
        subprocess.run(
            [*self._java, *form, "-c", str(self._file)],
            check=True,
            capture_output=True,
            timeout=180,
        )

    @property
    def servers(self) -> str:
        """Where it listens, without a login."""
        return f"127.0.0.1:{self.port}"

    @property
    def login_servers(self) -> str:
        """Where it listens for users with passwords."""
        return f"127.0.0.1:{self.login_port}"

    @cached_property
    def admin(self) -> Any:
        """A client that may do everything."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def start(self) -> None:
        """Start the broker, and wait until it answers."""
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(self._file)],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._answers, 180, "Kafka to answer", 0.1)
        # Who coordinates is decided when somebody first asks: not within a test's patience.
        wait_until(self._coordinates, 180, "Kafka to know its coordinators", 0.1)

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException

        assert self._process is not None
        assert self._process.poll() is None, (self._directory / "log").read_text()[-2000:]
        with suppress(KafkaException):
            return bool(_quiet_admin(self.servers).list_topics(timeout=1).brokers)
        return False

    def _coordinates(self) -> bool:
        from confluent_kafka import KafkaException, Producer

        with suppress(KafkaException, TimeoutError):
            asked = self.admin.describe_consumer_groups(["nobody"], request_timeout=5)
            asked["nobody"].result(10)
            producer = Producer(
                {"bootstrap.servers": self.servers, "transactional.id": "nobody", "log_level": 0}
            )
            producer.init_transactions(10)
            return True
        return False

    def stop(self) -> None:
        """Stop the broker."""
        self._end("terminate")

    def kill(self) -> None:
        """End the broker without notice."""
        self._end("kill")

    def _end(self, how: str) -> None:
        if self._process is not None:
            getattr(self._process, how)()
            self._process.wait(60)
            self._process = None

    def remove(self) -> None:
        """Stop it, and leave nothing."""
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def allow(self, user: str, kind: str, name: str, *operations: str) -> None:
        """Let a user do things to a topic, a group, a transactional id or the cluster."""
        from confluent_kafka import admin as a

        rules = [
            a.AclBinding(
                a.ResourceType[kind],
                name,
                a.ResourcePatternType.LITERAL,
                f"User:{user}",
                "*",
                a.AclOperation[operation],
                a.AclPermissionType.ALLOW,
            )
            for operation in operations
        ]
        for done in self.admin.create_acls(rules).values():
            done.result(10)
        # The broker learns of them a moment later.
        wait_until(lambda: self._knows(rules), 60, "Kafka to know the rights")

    def _knows(self, rules: list[Any]) -> bool:
        from confluent_kafka import admin as a

        one = rules[0]
        wanted = a.AclBindingFilter(
            one.restype,
            one.name,
            one.resource_pattern_type,
            one.principal,
            None,
            a.AclOperation.ANY,
            a.AclPermissionType.ALLOW,
        )
        found = self.admin.describe_acls(wanted).result(10)
        return {rule.operation for rule in rules} <= {each.operation for each in found}

    def records(
        self, *topics: str, committed: bool = True, servers: str | None = None
    ) -> list[Any]:
        """All records of topics up to now, as a consumer reads them: partition by partition."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": servers or self.servers,
                "group.id": f"reader-{uuid.uuid4().hex}",
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
                "auto.offset.reset": "earliest",
            }
        )
        try:
            known = consumer.list_topics(timeout=10).topics
            places = [
                TopicPartition(topic, number, 0)
                for topic in topics
                if topic in known
                for number in sorted(known[topic].partitions)
            ]
            consumer.assign(places)
            # An end that is reached may lie before the last record: commits arrive a little later.
            ends = self._ends(places)
            found, at = [], dict.fromkeys(ends, 0)
            deadline = time.monotonic() + 30
            while any(at[place] < end for place, end in ends.items()):
                assert time.monotonic() < deadline, "a transaction stays open"
                # Not `consume`: it waits for its whole time where there are fewer records.
                one = consumer.poll(0.5)
                if one is None:
                    continue
                place = one.topic(), one.partition()
                if one.error():
                    assert one.error().name() == "_PARTITION_EOF", one.error()
                    at[place] = max(at[place], one.offset())
                else:
                    at[place] = one.offset() + 1
                    found.append(one)
            return found
        finally:
            consumer.close()

    def _ends(self, places: list[Any]) -> dict[tuple[str, int], int]:
        """Where partitions end, open transactions included."""
        from confluent_kafka import IsolationLevel
        from confluent_kafka.admin import OffsetSpec

        if not places:
            return {}
        asked = self.admin.list_offsets(
            {place: OffsetSpec.latest() for place in places},
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
        )
        return {
            (place.topic, place.partition): future.result(20).offset
            for place, future in asked.items()
        }

    def documents(self, *topics: str, committed: bool = True) -> list[dict[str, Any]]:
        """The values of all records with one, parsed."""
        found = self.records(*topics, committed=committed)
        return [json.loads(each.value()) for each in found if each.value() is not None]

    def topics(self, prefix: str) -> list[str]:
        """Topics that are there."""
        return sorted(
            name for name in self.admin.list_topics(timeout=10).topics if name.startswith(prefix)
        )


def _cluster_id() -> str:
    import base64

    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _quiet_admin(servers: str) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": servers, "log_level": 0})


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    """One broker for the whole run; each test has topics of its own."""
    pytest.importorskip("confluent_kafka") if not os.environ.get("CI") else None
    server = KafkaServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def own_kafka() -> Iterator[KafkaServer]:
    """A broker that a test may stop."""
    server = KafkaServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()
