"""Masks, filters and routes at every kind of destination: what is there is what the rules leave, and nothing shows a secret."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from fix_pipeline import INITIAL
from fix_postgres import only_new
from fix_replay import place_of
from fix_transform import SALT, transformed
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fix_kafka import KafkaServer
    from fix_nats import NatsServer
    from fix_pipeline import RunningPipeline
    from fix_postgres import Database
    from fix_search import SearchServer
    from fix_webhooks import Receiver

    Make = Callable[..., RunningPipeline]

pytestmark = only_new

# Of this run alone: a server that tests share is searched for it as a whole.
CANARY = f"c4n4ry{uuid.uuid4().hex[:8]}"
MASKS = {
    "id": {"with": "hash"},
    "email": {"with": "email"},
    "note": {"with": "masking"},
    "extra": {"with": "masking", "when_missing": "skip"},
}
RULES = [
    {"transform": {"table": "people", "columns": MASKS}},
    {"filter": {"table": "people", "where": {"column": "total", "operator": "gte", "value": 100}}},
    {
        "route": {
            "table": "people",
            "target": "crm.customers",
            "columns": {"id": "customer", "email": "contact"},
            "drop": ["secret"],
        }
    },
]
COLUMNS = ("customer", "contact", "total", "note")

Rows = dict[str, tuple[Any, ...]]


class Destination(NamedTuple):
    """A sink, the rows that a consumer has there, and every byte that is there."""

    sink: dict[str, Any]
    rows: Callable[[], Rows]
    written: Callable[[], list[bytes]]


@pytest.fixture(autouse=True)
def _salted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SALT", SALT)


def row_of(values: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(values[name] for name in COLUMNS)


def played(documents: Iterable[dict[str, Any]]) -> Rows:
    """What a consumer of documents has; each of them is of the table's new name."""
    rows: Rows = {}
    for each in sorted(documents, key=place_of):
        assert (each["schema"], each["table"]) == ("crm", "customers")
        if each["op"] == "schema":
            continue
        if each["before"]:
            rows.pop(each["before"]["customer"], None)
        if each["op"] != "delete":
            assert each["unchanged"] == []
            rows[each["after"]["customer"]] = row_of(each["after"])
    return rows


def played_envelopes(events: Iterable[dict[str, Any] | None]) -> Rows:
    """What a consumer of Debezium's envelopes has; those of a key are in their order."""
    rows: Rows = {}
    for event in events:
        if event is None:
            continue
        if event["op"] == "d":
            rows.pop(event["before"]["customer"], None)
        else:
            rows[event["after"]["customer"]] = row_of(event["after"])
    return rows


def wanted(source: Database) -> Rows:
    """The rows that match at the source, masked one by one."""
    found = {}
    for key, email, total, note in source.query(
        "SELECT id, email, total, note FROM people WHERE total >= 100"
    ):
        masked = [
            value if value is None else transformed(MASKS[name], value)
            for name, value in (("id", key), ("email", email), ("note", note))
        ]
        found[masked[0]] = (masked[0], masked[1], total, masked[2])
    return found


def on_kafka(kafka: KafkaServer, form: str, delivery: str) -> Destination:
    place = f"m{uuid.uuid4().hex[:10]}"
    topic = f"{place}.crm.customers"

    def values() -> list[Any]:
        found = kafka.records(topic)
        return [None if each.value() is None else json.loads(each.value()) for each in found]

    def written() -> list[bytes]:
        # Those of transactions that were given up are there, too.
        names = [*kafka.topics(place), *kafka.topics(f"progress.{place}")]
        assert topic in names
        parts = [name.encode() for name in names]
        for each in kafka.records(*names, committed=False):
            parts += [each.key() or b"", each.value() or b"", repr(each.headers()).encode()]
        return parts

    sink = {
        "kind": "kafka",
        "servers": kafka.servers,
        "topic": f"{place}.{{schema}}.{{table}}",
        "partitions": 3,
        "delivery": delivery,
        "progress_topic": f"progress.{place}",
        "format": form,
    }
    rows = played if form == "json" else played_envelopes
    return Destination(sink, lambda: rows(values()), written)


def on_nats(server: NatsServer) -> Destination:
    place = f"m{uuid.uuid4().hex[:10]}"
    subject = f"{place}.{{schema}}.{{table}}"

    def written() -> list[bytes]:
        found = server.messages(place)
        return [
            part for m in found for part in (m.subject.encode(), m.data, repr(m.headers).encode())
        ]

    sink = {"kind": "nats", "url": server.url, "stream": place, "subject": subject}
    return Destination(sink, lambda: played(server.documents(place)), written)


def on_webhook(receiver: Receiver) -> Destination:
    def written() -> list[bytes]:
        return [
            part
            for each in list(receiver.requests)
            for part in (each.path.encode(), repr(each.headers).encode(), each.body)
        ]

    sink = {"kind": "webhook", "urls": [receiver.url], "allow": ["127.0.0.1"]}
    documents = lambda: [json.loads(each.body) for each in receiver.accepted]  # noqa: E731
    return Destination(sink, lambda: played(documents()), written)


def on_search(server: SearchServer) -> Destination:
    server.call("DELETE", "/penstock")
    place = f"m{uuid.uuid4().hex[:8]}"

    def rows() -> Rows:
        found = server.rows(f"{place}-crm-customers")
        assert all(name == each["customer"] for name, each in found.items())
        return {name: row_of(each) for name, each in found.items()}

    def written() -> list[bytes]:
        mappings = json.dumps(server.must("GET", "/_mapping")).encode()
        found = [
            server.must("GET", f"/{index}/_search?size=10000")
            for index in (f"{place}-*", "penstock*")
        ]
        return [mappings, *(json.dumps(each).encode() for each in found)]

    sink = {"kind": "search", "url": server.url, "index": f"{place}-{{schema}}-{{table}}"}
    return Destination(sink, rows, written)


KINDS = ["kafka json", "kafka debezium", "nats", "webhook", "search"]


@pytest.fixture(
    params=[
        KINDS[0],
        *(pytest.param(kind, marks=pytest.mark.long, id=kind) for kind in KINDS[1:]),
    ]
)
def destination(request: pytest.FixtureRequest) -> Destination:
    ask = request.getfixturevalue
    made: dict[str, Callable[[], Destination]] = {
        "kafka json": lambda: on_kafka(ask("kafka"), "json", "exactly_once"),
        "kafka debezium": lambda: on_kafka(ask("kafka"), "debezium", "at_least_once"),
        "nats": lambda: on_nats(ask("nats_server")),
        "webhook": lambda: on_webhook(ask("receiver")),
        "search": lambda: on_search(ask("opensearch")),
    }
    return made[request.param]()


def people(numbers: Sequence[int], total: str) -> str:
    chosen = ", ".join(map(str, numbers))
    return (
        f"INSERT INTO people SELECT '{CANARY}' || n, '{CANARY}' || n || '@x.org', {total}, '{CANARY} ' || n"
        f" FROM unnest(ARRAY[{chosen}]) n"
    )


@pytest.mark.parametrize("identity", ["FULL", pytest.param("DEFAULT", marks=pytest.mark.long)])
def test_destination_has_what_the_rules_leave_and_no_byte_of_what_they_hide(
    source: Database, make_pipeline: Make, destination: Destination, identity: str
) -> None:
    source.execute(
        "CREATE TABLE people (id text PRIMARY KEY, email text, total int, note text,"
        f" secret text DEFAULT '{CANARY}')"
    )
    source.execute(f"ALTER TABLE people REPLICA IDENTITY {identity}")
    source.execute(people(range(1, 21), "n * 10"))
    source.execute(f"UPDATE people SET email = NULL WHERE id = '{CANARY}11'")
    pipeline = make_pipeline(source, sink=destination.sink, source_options=INITIAL, modifiers=RULES)
    pipeline.catch_up()
    wait_until(lambda: destination.rows() == wanted(source), 60, "the copy", 0.5)
    assert len(wanted(source)) == 11

    source.execute(people(range(30, 40), "n * 5"))
    for assignment, number in (
        (f"email = '{CANARY}new@x.org'", 12),
        ("total = 1", 13),  # out
        ("total = 500", 3),  # in
        (f"id = '{CANARY}moved'", 14),
        (f"id = '{CANARY}gone', total = 2", 15),  # out, under another key
        ("note = NULL", 16),
        ("total = total + 1", 4),  # stays out
    ):
        source.execute(f"UPDATE people SET {assignment} WHERE id = '{CANARY}{number}'")
    source.execute(f"DELETE FROM people WHERE id IN ('{CANARY}17', '{CANARY}5')")
    source.execute(f"UPDATE people SET total = 700 WHERE id = '{CANARY}13'")  # and in again
    pipeline.catch_up()
    assert destination.rows() == wanted(source), "the stream"

    source.execute(f"ALTER TABLE people ADD COLUMN extra text DEFAULT '{CANARY}'")
    source.execute(f"ALTER TABLE people ALTER COLUMN secret SET DEFAULT '{CANARY} again'")
    source.execute(people([50], "1000"))
    pipeline.catch_up()
    pipeline.stop()
    assert destination.rows() == wanted(source), "after a migration"

    written = destination.written()
    assert any(transformed(MASKS["id"], f"{CANARY}moved").encode() in part for part in written)
    shown = [part[:400] for part in written if CANARY.encode() in part or SALT.encode() in part]
    assert shown == []
