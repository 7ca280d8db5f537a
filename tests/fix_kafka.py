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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fix_broker import BrokerProcess
from fix_machine import missing
from fix_wait import wait_until
from penstock.embedded.java import java_home
from penstock.embedded.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fix_proxy import Proxy

KAFKA_VERSION = "4.3.1"
USERS = {"writer": "wr1ter-pass", "auditor": "aud1tor-pass"}
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
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
group.min.session.timeout.ms=500
{more}
"""
# Small, and quick to start: most of its life is its start.
_JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


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


class KafkaServer(BrokerProcess):
    """One broker, with lines of its properties where a test wants others."""

    name = "Kafka"
    start_seconds = 180

    def __init__(self, settings: dict[str, Any] | None = None, jvm: Sequence[str] = _JVM) -> None:
        super().__init__()
        self.port, self.login_port = free_port(), free_port()
        users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
        more = "\n".join(f"{key}={value}" for key, value in (settings or {}).items())
        self._file = self.directory / "server.properties"
        self._file.write_text(
            _PROPERTIES.format(
                port=self.port,
                login_port=self.login_port,
                controller=free_port(),
                plain=_PLAIN,
                users=users,
                directory=self.directory,
                more=more,
            )
        )
        quiet = self.directory / "log4j2.yaml"
        quiet.write_text(
            "Configuration:\n  Appenders:\n    Console:\n      name: out\n      PatternLayout:\n"
            '        pattern: "%d %p %m%n"\n'
            "  Loggers:\n    Root:\n      level: WARN\n      AppenderRef:\n        - ref: out\n"
        )
        self._java = [str(java_home() / "bin" / "java"), *jvm]
        self._java += [f"-Dlog4j2.configurationFile={quiet}", "-cp", f"{kafka_jars()}/*"]
        self._admin: Any = None
        self._is_formatted = False

    def command(self) -> list[str]:
        """See BrokerProcess."""
        return [*self._java, "kafka.Kafka", str(self._file)]

    def start(self) -> None:
        """See BrokerProcess; its storage is made the first time."""
        if not self._is_formatted:
            form = ["kafka.tools.StorageTool", "format", "--standalone", "-t", _cluster_id()]
            subprocess.run(
                [*self._java, *form, "-c", str(self._file)],
                check=True,
                capture_output=True,
                timeout=180,
            )
            self._is_formatted = True
        super().start()

    @property
    def servers(self) -> str:
        """Where it listens, without a login."""
        return f"127.0.0.1:{self.port}"

    @property
    def login_servers(self) -> str:
        """Where it listens for users with passwords."""
        return f"127.0.0.1:{self.login_port}"

    @property
    def admin(self) -> Any:
        """A client that may do everything."""
        from confluent_kafka.admin import AdminClient

        if self._admin is None:
            self._admin = AdminClient(self._client())
        return self._admin

    def _client(self) -> dict[str, Any]:
        """Settings of a client that is quick to see a broker that has come back."""
        return {
            "bootstrap.servers": self.servers,
            "log_level": 0,
            "reconnect.backoff.max.ms": 500,
        }

    def answers(self) -> bool:
        """Also who coordinates: that is decided when somebody first asks, not within a test's patience."""
        from confluent_kafka import KafkaException, Producer

        try:
            if not self.admin.list_topics(timeout=1).brokers:
                return False
            group = self.admin.describe_consumer_groups(["nobody"], request_timeout=5)["nobody"]
            if group.exception(10) is not None:
                return False
            Producer({**self._client(), "transactional.id": "nobody"}).init_transactions(10)
        except (KafkaException, TimeoutError):
            return False
        return True

    def gone(self) -> None:
        """See BrokerProcess. A client that knew it dead does not find its coordinators again."""
        from penstock.brokers.kafka.client import end_client

        super().gone()
        admin, self._admin = self._admin, None
        if admin is not None:
            # Never by the garbage collector, which may be at work in this client's own thread.
            end_client(admin, lambda: admin.__exit__(None, None, None))

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

    def disallow(self, user: str, kind: str, name: str, operation: str) -> None:
        """Take back what `allow` has let a user do."""
        from confluent_kafka import admin as a

        wanted = a.AclBindingFilter(
            a.ResourceType[kind],
            name,
            a.ResourcePatternType.LITERAL,
            f"User:{user}",
            None,
            a.AclOperation[operation],
            a.AclPermissionType.ALLOW,
        )
        for done in self.admin.delete_acls([wanted]).values():
            assert done.result(10), "it was allowed"
        gone = lambda: not self.admin.describe_acls(wanted).result(10)  # noqa: E731
        wait_until(gone, 60, "Kafka to know the rights")

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

    # The tool takes one that begins with a hyphen for an option.
    return base64.urlsafe_b64encode(b"k" + uuid.uuid4().bytes[1:]).decode().rstrip("=")


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    """One broker for the whole run; each test has topics of its own."""
    pytest.importorskip("confluent_kafka") if not os.environ.get("CI") else None
    with KafkaServer().running() as server:
        yield server


@pytest.fixture
def proxied_kafka(make_proxy: Callable[[int], Proxy]) -> Iterator[tuple[KafkaServer, Proxy]]:
    """A broker that clients reach through a proxy only."""
    proxy = make_proxy(0)
    server = KafkaServer({"advertised.listeners": f"OPEN://127.0.0.1:{proxy.port}"})
    proxy.server = ("127.0.0.1", server.port)
    with server.running():
        yield server, proxy


@pytest.fixture
def own_kafka() -> Iterator[KafkaServer]:
    """A broker that a test may stop."""
    with KafkaServer().running() as server:
        yield server
