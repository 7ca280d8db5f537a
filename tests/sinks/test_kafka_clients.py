"""How clients of Kafka end: by who made them, in its own thread; never by the garbage collector, never after a fork."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.brokers.kafka.client import FENCED, Clients
from penstock.brokers.kafka.producer import HeldProducer
from penstock.embedded.ports import free_port
from penstock.errors import PenstockError
from penstock.sink import SinkPlace
from penstock.sinks.kafka.kind import KafkaKind
from penstock.sinks.kafka.options import KafkaOptions
from penstock.sinks.kafka.topics import Topics


@pytest.fixture
def options():
    """Of a broker that is not there."""
    return KafkaOptions(servers=f"127.0.0.1:{free_port()}", topic="t", timeout=1.0)


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def ask_in_vain(clients):
    with pytest.raises(PenstockError):
        clients.ask(
            lambda: clients.admin.describe_consumer_groups(["g"], request_timeout=0.2)["g"],
            "asking",
        )


def test_question_that_fails_leaves_nothing_that_refers_to_the_client(options, no_collector):
    clients = Clients(options, "sink test")
    ask_in_vain(clients)
    admin = weakref.ref(clients.admin)

    clients.close()

    assert admin() is None


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_sink_that_could_not_deliver_leaves_no_client(options, tmp_path, no_collector, delivery):
    given = KafkaOptions(**{**options.model_dump(), "delivery": delivery})
    others = clients_alive()
    sink = KafkaKind().sink(SinkPlace("bus", given, "shop", "shop", ("shop",), tmp_path))
    with pytest.raises(PenstockError):
        sink.open()
    assert clients_alive() > others

    sink.close()

    assert clients_alive() == others


def clients_alive():
    """Clients that Python knows of and that are not ended."""
    found = set()
    for each in gc.get_objects():
        if isinstance(each, (AdminClient, Producer, Consumer)):
            try:
                each.list_topics(timeout=0)
            except RuntimeError:  # closed
                continue
            except KafkaException:  # it tried
                found.add(id(each))
            else:
                found.add(id(each))
    return found


def test_collector_at_work_in_a_clients_own_thread_does_not_end_the_process(options):
    """librdkafka aborts where a client is ended from its own thread, which calls back when an answer comes late."""
    program = textwrap.dedent(
        f"""
        import gc, time
        from penstock.errors import PenstockError
        from penstock.brokers.kafka.client import Clients
        from penstock.sinks.kafka.options import KafkaOptions

        def fail():
            clients = Clients(KafkaOptions(servers={options.servers!r}, timeout=0.3), "test")
            try:
                clients.ask(
                    lambda: clients.admin.describe_consumer_groups(["g"], request_timeout=1)["g"],
                    "asking",
                )
            except PenstockError:
                clients.close()
                return
            raise SystemExit("it was answered")

        gc.collect()
        gc.disable()
        fail()
        some = [[] for _ in range(5000)]  # the next one to allocate collects
        gc.enable()
        time.sleep(2)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr


def test_process_that_ends_while_a_question_is_open_does_end(kafka):
    program = textwrap.dedent(
        f"""
        import gc
        from penstock.brokers.kafka.client import Clients
        from penstock.sinks.kafka.options import KafkaOptions

        clients = Clients(KafkaOptions(servers={kafka.servers!r}), "test")
        gc.disable()
        cycle = [clients, clients.admin]
        cycle.append(cycle)
        clients.metadata(clients.admin, "asking")
        for number in range(50):
            clients.admin.describe_consumer_groups([f"g{{number}}"], request_timeout=30)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_forked_process_leaves_its_parents_clients_alone(kafka, tmp_path, delivery):
    name = f"fork_{delivery}"
    options = KafkaOptions(
        servers=kafka.servers, topic=name, progress_topic=f"{name}.p", delivery=delivery
    )
    sink = KafkaKind().sink(SinkPlace(name, options, "shop", "shop", ("shop",), tmp_path))
    sink.open()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # to wait for threads that are not there takes for ever
        sink.close()
        os._exit(0)

    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    sink.close()


class Silent:
    """A client whose `flush` fails as it does where a callback has taken the error away."""

    def __init__(self, client):
        self._client = client

    def __getattr__(self, name):
        return getattr(self._client, name)

    def __len__(self):
        return len(self._client)

    def flush(self, _seconds):
        self._client.flush(30)
        raise SystemError("returned NULL without setting an exception")


def test_producer_that_was_fenced_says_so_where_its_client_says_nothing(kafka):
    topic = f"fenced-{free_port()}"
    kafka.admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    clients = Clients(KafkaOptions(servers=kafka.servers, topic=topic), "test")
    first, second = HeldProducer(clients), HeldProducer(clients)
    for held in (first, second):
        held.make(clients.conf(**{"transactional.id": topic}))
        held.in_steps("init_transactions", "beginning")
    first.client.begin_transaction()
    first.client.produce(topic, b"1")
    client, first._client = first.client, Silent(first.client)

    with pytest.raises(KafkaException) as raised:
        first.flush("producing")

    assert raised.value.args[0].code() in FENCED
    first._client = client
    del client
    for held in (first, second):
        held.discard()
    clients.close()


def test_topic_that_was_just_made_is_waited_for_until_the_broker_knows_it(kafka):
    topic = f"late-{free_port()}"
    options = KafkaOptions(servers=kafka.servers, topic=topic)
    clients = Clients(options, "test")
    topics = Topics(clients, options)

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(topics.partitions, topic)
        with pytest.raises(TimeoutError):
            asked.result(0.2)
        kafka.admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(30)

        assert asked.result(30) == 3
    clients.close()
