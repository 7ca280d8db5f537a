"""From Postgres through Spark to real brokers: a consumer plays the documents back, and has what the source has."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from fix_documents import parse
from fix_pipeline import ALWAYS_COPIED
from fix_postgres import only_new
from fix_replay import assert_order_per_key, replayed, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_kafka import KafkaServer
    from fix_nats import NatsServer
    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]

pytestmark = only_new

TABLES = ("orders", "lines", '"Odd.Name"')


def consumed(server: Any, place: str) -> list[tuple[Any, dict[str, Any]]]:
    """Every record of all topics or subjects of a test, with what it is in order by."""
    if hasattr(server, "servers"):
        records = server.records(*server.topics(f"{place}."))
        return [(each.key(), parse(each.value())) for each in records]
    return [(each.subject, parse(each.data)) for each in server.messages(place)]


@pytest.fixture(params=["exactly_once", "at_least_once", "nats"])
def broker(request: pytest.FixtureRequest) -> tuple[Any, str, dict[str, Any]]:
    """A server, the place of this test there, and the sink's options."""
    place = f"e{uuid.uuid4().hex[:10]}"
    if request.param == "nats":
        nats: NatsServer = request.getfixturevalue("nats_server")
        subject = f"{place}.{{schema}}.{{table}}"
        return nats, place, {"kind": "nats", "url": nats.url, "stream": place, "subject": subject}
    kafka: KafkaServer = request.getfixturevalue("kafka")
    sink = {
        "kind": "kafka",
        "servers": kafka.servers,
        "topic": f"{place}.{{schema}}.{{table}}",
        "partitions": 3,
        "delivery": request.param,
        "progress_topic": f"progress.{place}",
    }
    return kafka, place, sink


def test_consumer_that_plays_documents_back_has_what_the_source_has(
    source: Database, make_pipeline: Make, broker: tuple[Any, str, dict[str, Any]]
) -> None:
    server, place, sink = broker
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, n int, big text)")
    source.execute("CREATE TABLE lines (a int, b text, n numeric, PRIMARY KEY (a, b))")
    source.execute('CREATE TABLE "Odd.Name" (id text PRIMARY KEY, j jsonb)')
    source.execute("ALTER TABLE orders ALTER big SET STORAGE EXTERNAL")
    source.execute(
        "INSERT INTO orders SELECT g, 0, repeat('x', 3000) FROM generate_series(1, 80) g"
    )

    pipeline = make_pipeline(source, sink=sink, source_options=ALWAYS_COPIED)
    source.execute("INSERT INTO lines SELECT g, 'l,' || g, g / 7.0 FROM generate_series(1, 200) g")
    for number in range(5):
        source.execute(f"UPDATE orders SET n = {number} WHERE id % 3 = {number % 3}")
    source.execute("UPDATE orders SET id = id + 1000 WHERE id <= 10")
    source.execute("DELETE FROM orders WHERE id BETWEEN 20 AND 30")
    pipeline.catch_up()
    pipeline.stop()
    pipeline.start()
    source.execute('INSERT INTO "Odd.Name" VALUES (\'k"1\', \'{"a": 9007199254740993}\')')
    source.execute("ALTER TABLE lines ADD c int DEFAULT 3")
    source.execute("INSERT INTO lines SELECT g, 'later', 0, g FROM generate_series(1, 20) g")
    source.execute("DELETE FROM lines WHERE b = 'later' AND a > 10")
    source.execute("UPDATE lines SET c = 4 WHERE a < 5")
    pipeline.catch_up()
    pipeline.stop()

    records = consumed(server, place)
    documents = [document for _, document in records]
    assert_order_per_key(records)
    ids = [document["id"] for document in documents]
    assert len(ids) == len(set(ids))
    assert [one["op"] for one in documents].count("schema") == 1
    wanted = rows_of(source, *TABLES)
    # A column that came with a default is in the documents of rows from then on.
    source_lines = [json.loads(row) for row in wanted.pop("lines")]
    found = replayed(documents)
    found_lines = [json.loads(row) for row in found.pop("lines")]
    assert sorted(json.dumps({"c": ["3"], **one}, sort_keys=True) for one in found_lines) == sorted(
        json.dumps(one, sort_keys=True) for one in source_lines
    )
    assert found["orders"] == wanted["orders"]
    assert found["Odd.Name"] == wanted['"Odd.Name"']


def test_state_directory_that_is_lost_loses_and_doubles_nothing_on_kafka(
    source: Database, make_pipeline: Make, kafka: KafkaServer
) -> None:
    import shutil

    place = f"e{uuid.uuid4().hex[:10]}"
    sink = {
        "kind": "kafka",
        "servers": kafka.servers,
        "topic": f"{place}.{{table}}",
        "progress_topic": f"progress.{place}",
    }
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, n int)")
    pipeline = make_pipeline(source, sink=sink, source_options=ALWAYS_COPIED)
    source.execute("INSERT INTO orders SELECT g, 0 FROM generate_series(1, 100) g")
    pipeline.catch_up()
    pipeline.stop()
    source.execute("UPDATE orders SET n = 1")
    shutil.rmtree(pipeline.file.state)

    pipeline.start()
    source.execute("DELETE FROM orders WHERE id > 50")
    pipeline.catch_up()
    pipeline.stop()

    documents = [document for _, document in consumed(kafka, place)]
    assert len(documents) == len({one["id"] for one in documents}) == 100 + 100 + 50
    assert replayed(documents) == rows_of(source, "orders")


def test_ddl_and_rows_on_one_topic_have_the_keys_of_pgstream(
    source: Database, make_pipeline: Make, kafka: KafkaServer
) -> None:
    """pgstream's Test_PostgresToKafka and its variant with primary keys."""
    place = f"e{uuid.uuid4().hex[:10]}"
    sink = {
        "kind": "kafka",
        "servers": kafka.servers,
        "topic": place,
        "partitions": 1,
        "progress_topic": f"progress.{place}",
    }
    source.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    pipeline = make_pipeline(source, sink=sink)

    source.execute("ALTER TABLE orders ADD name text")
    source.execute("INSERT INTO orders VALUES (1, 'a')")
    pipeline.catch_up()
    pipeline.stop()

    found = [(each.key(), parse(each.value())["op"]) for each in kafka.records(place)]
    assert found == [(b"public", "schema"), (b"public.orders:1", "insert")]
