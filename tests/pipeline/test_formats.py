"""Debezium's envelope from Postgres through Spark to Kafka, in JSON and in Avro: played back, it is what the source has."""

from __future__ import annotations

import base64
import json
import random
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from fix_envelopes import plain_schema, read_avro
from fix_pipeline import ALWAYS_COPIED
from fix_postgres import only_new

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_kafka import KafkaServer
    from fix_pipeline import RunningPipeline
    from fix_postgres import Database
    from fix_registry import RegistryServer

    Make = Callable[..., RunningPipeline]

pytestmark = only_new

UNAVAILABLE = "__debezium_unavailable_value"
MICROSECONDS = """to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""


def read(form: str, raw: bytes | None, schemas: dict[int, Any], registry: Any) -> Any:
    if raw is None:
        return None
    if form == "debezium":
        return json.loads(raw)
    number = int.from_bytes(raw[1:5], "big")
    if number not in schemas:
        schemas[number] = plain_schema(registry.schema(number))
    return read_avro(raw, schemas[number])


def played_back(form: str, records: list[Any], registry: Any) -> dict[str, dict[str, Any]]:
    """The rows of a table by key, from its records in the order in which each partition has them."""
    schemas: dict[int, Any] = {}
    rows: dict[str, dict[str, Any]] = {}
    last: dict[str, tuple[int, ...]] = {}
    for record in records:
        key = json.dumps(read(form, record.key(), schemas, registry), sort_keys=True)
        event = read(form, record.value(), schemas, registry)
        if event is None:
            assert key not in rows, "a tombstone follows a delete"
            continue
        place = tuple(int(each) for each in json.loads(event["source"]["sequence"]))
        if event["op"] == "r":
            place = (place[0], -1)
        assert key not in last or last[key] <= place, f"{key} came too late"
        last[key] = place
        if event["op"] == "d":
            rows.pop(key, None)
            continue
        before = rows.get(key, {})
        rows[key] = {
            name: before.get(name) if value == UNAVAILABLE else value
            for name, value in event["after"].items()
        }
    return rows


def numeric(form: str, value: Any) -> str | None:
    if value is None:
        return None
    raw = base64.b64decode(value) if form == "debezium" else value
    return str(int.from_bytes(raw, "big", signed=True))


def work(source: Database, dice: random.Random, count: int, has_c: bool) -> None:
    """Random changes; keys change only of rows whose long value is sent with them."""
    for _ in range(count):
        one = dice.randint(1, 60)
        choice = dice.choice(["insert", "insert", "update", "toast", "move", "delete"])
        if choice == "insert":
            more = (", c", f", {dice.randint(0, 9)}") if has_c else ("", "")
            source.execute(
                f"INSERT INTO orders (id, n, at, day, big, tags{more[0]}) VALUES ({one}, {dice.random() * 1000:.2f},"
                f" now(), 'infinity', repeat('y', {dice.choice([3, 3000])}), '{{a,NULL,\"b c\"}}'{more[1]})"
                " ON CONFLICT (id) DO UPDATE SET n = orders.n + 1"
            )
        elif choice == "update":
            source.execute(f"UPDATE orders SET n = -n, day = '0044-03-15 BC' WHERE id = {one}")
        elif choice == "toast":
            source.execute(f"UPDATE orders SET big = repeat('z', 2500) WHERE id = {one}")
        elif choice == "move":
            source.execute(
                f"UPDATE orders SET id = id + 1000, big = 'short' WHERE id = {one}"
                f" AND NOT EXISTS (SELECT FROM orders WHERE id = {one + 1000})"
            )
        else:
            source.execute(f"DELETE FROM orders WHERE id = {one}")


@pytest.mark.parametrize(
    ("form", "delivery", "identity"),
    [
        ("debezium", "exactly_once", "DEFAULT"),
        ("avro", "at_least_once", "DEFAULT"),
        ("avro", "at_least_once", "FULL"),
        pytest.param("debezium", "at_least_once", "DEFAULT", marks=pytest.mark.long),
        pytest.param("avro", "exactly_once", "DEFAULT", marks=pytest.mark.long),
        pytest.param("debezium", "exactly_once", "FULL", marks=pytest.mark.long),
    ],
)
def test_consumer_of_envelopes_has_what_the_source_has(
    source: Database,
    make_pipeline: Make,
    kafka: KafkaServer,
    registry: RegistryServer,
    form: str,
    delivery: str,
    identity: str,
) -> None:
    place = f"v{uuid.uuid4().hex[:10]}"
    sink: dict[str, Any] = {
        "kind": "kafka",
        "servers": kafka.servers,
        "topic": f"{place}.{{schema}}.{{table}}",
        "partitions": 3,
        "delivery": delivery,
        "progress_topic": f"progress.{place}",
        "format": form,
    }
    if form == "avro":
        sink["registry"] = {"url": registry.url}
    dice = random.Random(7)
    source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, n numeric(12,2), at timestamptz, day date, big text, tags text[])"
    )
    source.execute("ALTER TABLE orders ALTER big SET STORAGE EXTERNAL")
    source.execute(f"ALTER TABLE orders REPLICA IDENTITY {identity}")
    work(source, dice, 40, has_c=False)

    pipeline = make_pipeline(source, sink=sink, source_options=ALWAYS_COPIED)
    work(source, dice, 60, has_c=False)
    pipeline.catch_up()
    source.execute("ALTER TABLE orders ADD c int")
    work(source, dice, 40, has_c=True)
    source.execute("ALTER TABLE orders DROP tags, ADD tags text[]")
    source.execute("UPDATE orders SET n = n + 1")
    pipeline.catch_up()
    pipeline.stop()

    records = kafka.records(f"{place}.public.orders")
    rows = played_back(form, records, registry)
    found = sorted(
        (
            row["id"],
            numeric(form, row["n"]),
            row["at"],
            row["day"],
            row["big"],
            row.get("c"),
        )
        for row in rows.values()
    )
    wanted = sorted(
        source.query(
            "SELECT id, replace(trim_scale(n * 100)::text, '.', ''), "
            + MICROSECONDS
            + ", CASE WHEN day = 'infinity' THEN 2147483647 ELSE day - date '1970-01-01' END, big, c FROM orders"
        )
    )
    assert found == wanted
    assert {"r", "c", "u", "d"} <= {
        read(form, each.value(), {}, registry)["op"] for each in records if each.value()
    }
