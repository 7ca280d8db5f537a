"""Records of the formats debezium and avro, through both halves of the sink, on a real broker with a real registry."""

from __future__ import annotations

import json
import subprocess
import uuid

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pydantic import ValidationError

from fix_envelopes import plain_schema, read_avro
from fix_event_sinks import START, open_sink, place_of, run_tasks
from fix_kafka import USERS
from fix_registry import GuardedRegistry
from penstock import vault
from penstock.changes.envelope import Origin
from penstock.errors import SinkError, SinkLoginRefused
from penstock.options import OnRefused
from penstock.sinks.documents.driver import DocumentDriver
from penstock.sinks.kafka.kind import KafkaKind
from penstock.sinks.kafka.options import KafkaOptions, RegistryOptions
from penstock.sinks.kafka.registry import Registry
from penstock.sinks.sink import Batch
from penstock.table import TableName
from penstock.testing import (
    changes,
    delete,
    insert,
    read_log,
    relation,
    table,
    transaction,
    truncate,
    update,
    write_log,
)

ORDERS = table(16400, "orders", {"id": "int4", "note": "text"}, key=["id"])
WIDER = table(16400, "orders", {"id": "int4", "note": "text", "n": "int8"}, key=["id"])
OTHER = table(16400, "orders", {"id": "int4", "note": "int4"}, key=["id"])
KEYLESS = table(16400, "orders", {"id": "int4", "note": "text"}, identity="f")
LINES = table(16500, "lines", {"id": "int4", "n": "numeric"}, key=["id"])


@pytest.fixture
def name():
    return f"f{uuid.uuid4().hex[:12]}"


@pytest.fixture
def sink_of(kafka, name, tmp_path):
    """Makes the driver half of a sink of a test's own topics."""
    made = []

    def sink_of(**options):
        given = {
            "servers": kafka.servers,
            "topic": f"{name}.{{schema}}.{{table}}",
            "progress_topic": f"{name}.progress",
            "partitions": 1,
        }
        place = place_of(name, KafkaOptions(**{**given, **options}), tmp_path / "state")
        made.append(DocumentDriver(KafkaKind(), place))
        return made[-1]

    (tmp_path / "vault").mkdir()
    with vault.using(vault.Vault(tmp_path / "vault")):
        yield sink_of
    for sink in made:
        sink.close()


def send(sink, log, *transactions):
    """Deliver transactions, each of (position, description, rows), as one batch."""
    position = open_sink(sink)
    for lsn, described, rows in transactions:
        write_log(log, [relation(described), *transaction(lsn, *rows)], position)
    slices = read_log(log, position)
    tables = frozenset({TableName("public", "orders"), TableName("public", "lines")})
    batch = Batch(1, position, slices[-1].head.end_lsn, 0, tables)
    sink.commit(batch, run_tasks(sink, batch, [slices]))
    sink.close()


def consumed(kafka, topic):
    return [(each.key(), each.value()) for each in kafka.records(topic)]


def test_debezium_records_have_keys_tombstones_and_headers(kafka, name, sink_of, tmp_path):
    rows = [
        insert(ORDERS, ["1", "a"]),
        update(ORDERS, ["2", "b"], key=["1"]),
        delete(ORDERS, key=["2"]),
    ]

    send(sink_of(format="debezium"), tmp_path / "log", (START + 0x100, ORDERS, rows))

    records = kafka.records(f"{name}.public.orders")
    shown = [
        (json.loads(one.key()), one.value() and json.loads(one.value())["op"]) for one in records
    ]
    assert shown == [
        ({"id": 1}, "c"),
        ({"id": 1}, "d"),
        ({"id": 1}, None),
        ({"id": 2}, "c"),
        ({"id": 2}, "d"),
        ({"id": 2}, None),
    ]
    headers = dict(records[0].headers())
    assert headers["content-type"] == b"application/vnd.debezium+json"
    assert (headers["op"], headers["source"]) == (b"insert", b"shop")


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_records_without_a_key_lie_in_one_partition_in_their_order(
    kafka, name, sink_of, tmp_path, delivery
):
    sink = sink_of(format="debezium", delivery=delivery, partitions=8)
    rows = [update(KEYLESS, ["1", str(n)], before=["1", str(n - 1)]) for n in range(1, 30)]

    send(sink, tmp_path / "log", (START + 0x100, KEYLESS, [*rows, truncate(KEYLESS)]))

    records = kafka.records(f"{name}.public.orders")
    events = [json.loads(one.value()) for one in records]
    assert {(one.key(), one.partition()) for one in records} == {(None, records[0].partition())}
    assert [each["after"] and int(each["after"]["note"]) for each in events] == [
        *range(1, 30),
        None,
    ]


def without_settings(kafka, name):
    """The login of a user who may do all but look at the settings of topics."""
    for topic in (f"{name}.public.orders", f"{name}.public.lines"):
        kafka.allow("writer", "TOPIC", topic, "CREATE", "WRITE", "DESCRIBE")
    kafka.allow("writer", "TOPIC", f"{name}.progress", "CREATE", "WRITE", "DESCRIBE", "READ")
    kafka.allow("writer", "TRANSACTIONAL_ID", f"penstock.shop.shop.{name}", "WRITE", "DESCRIBE")
    kafka.allow("writer", "GROUP", f"penstock.shop.shop.{name}", "READ", "DESCRIBE")
    conf = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "writer",
        "sasl.password": USERS["writer"],
    }
    return {"servers": kafka.login_servers, "conf": conf}


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_record_without_a_key_stops_its_table_alone_at_a_compacted_topic(
    kafka, name, sink_of, tmp_path, delivery
):
    sink = sink_of(format="debezium", delivery=delivery, config={"cleanup.policy": "compact"})

    send(
        sink,
        tmp_path / "log",
        (START + 0x100, ORDERS, [insert(ORDERS, ["1", "a"]), truncate(ORDERS)]),
        (START + 0x200, LINES, [insert(LINES, ["1", "2"])]),
    )

    assert len(consumed(kafka, f"{name}.public.lines")) == 1
    again = sink_of(format="debezium", delivery=delivery)
    open_sink(again)
    [(table, kept)] = again._keeper.stored.tables.items()
    assert table == TableName("public", "orders")
    assert kept.error.startswith("PEN-506 public.orders truncate at ")
    assert f"topic {name}.public.orders is compacted" in kept.error


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("is_shown", [True, False])
def test_what_only_the_broker_knows_to_be_refused_is_parked_by_its_topic(
    kafka, name, sink_of, tmp_path, delivery, is_shown
):
    options = {"format": "debezium", "delivery": delivery, "on_refused": OnRefused.PARK}
    sink = sink_of(**options, **({} if is_shown else without_settings(kafka, name)))
    position = open_sink(sink)
    transactions = [
        (ORDERS, [insert(ORDERS, ["1", "a"])]),
        (ORDERS, [truncate(ORDERS), insert(ORDERS, ["2", "b"]), truncate(ORDERS)]),
        (LINES, [insert(LINES, ["1", "2"])]),
    ]
    for number, (described, rows) in enumerate(transactions, 1):
        lsn = START + 0x100 * number
        write_log(tmp_path / "log", [relation(described), *transaction(lsn, *rows)], position)
    first, *others = read_log(tmp_path / "log", position)
    tables = frozenset({TableName("public", "orders"), TableName("public", "lines")})
    batch = Batch(1, position, first.head.end_lsn, 0, tables)
    sink.commit(batch, run_tasks(sink, batch, [[first]]))
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    place = ConfigResource(ResourceType.TOPIC, f"{name}.public.orders", incremental_configs=[entry])
    kafka.admin.incremental_alter_configs([place])[place].result(20)

    batch = Batch(2, batch.end_lsn, others[-1].head.end_lsn, 0, tables)
    if delivery == "exactly_once":  # of a transaction only the next attempt knows it
        with pytest.raises(SinkError, match="INVALID_RECORD"):
            sink.commit(batch, run_tasks(sink, batch, [others]))
        open_sink(sink)
    sink.commit(batch, run_tasks(sink, batch, [others]))

    assert len(consumed(kafka, f"{name}.public.lines")) == 1
    assert len(consumed(kafka, f"{name}.public.orders")) == 1
    parked = KafkaKind().parked(sink._sealed.place)
    assert [each.op for each in parked] == ["truncate", "insert", "truncate"]
    assert ("is compacted" if is_shown else "INVALID_RECORD") in parked[0].reason


def test_tombstones_can_be_left_out(kafka, name, sink_of, tmp_path):
    rows = [insert(ORDERS, ["1", "a"]), delete(ORDERS, key=["1"])]

    send(
        sink_of(format="debezium", tombstones=False),
        tmp_path / "log",
        (START + 0x100, ORDERS, rows),
    )

    assert all(value is not None for _, value in consumed(kafka, f"{name}.public.orders"))


def test_avro_schemas_follow_a_column_that_comes(kafka, registry, name, sink_of, tmp_path):
    sink = sink_of(format="avro", registry={"url": registry.url})

    send(
        sink,
        tmp_path / "log",
        (START + 0x100, ORDERS, [insert(ORDERS, ["1", "a"])]),
        (START + 0x200, WIDER, [insert(WIDER, ["2", "b", "7"])]),
    )

    topic = f"{name}.public.orders"
    assert registry.call("GET", f"/subjects/{topic}-value/versions") == [1, 2]
    assert registry.call("GET", f"/config/{topic}-value") == {"compatibilityLevel": "BACKWARD"}
    rows = []
    for key, value in consumed(kafka, topic):
        schema = plain_schema(registry.schema(int.from_bytes(value[1:5], "big")))
        key_schema = plain_schema(registry.schema(int.from_bytes(key[1:5], "big")))
        rows.append((read_avro(key, key_schema), read_avro(value, schema)["after"]))
    assert rows == [
        ({"id": 1}, {"id": 1, "note": "a"}),
        ({"id": 2}, {"id": 2, "note": "b", "n": 7}),
    ]


@pytest.mark.parametrize("on_refused", ["stop", "park"])
def test_change_that_the_registry_refuses_stops_its_table_alone_and_goes_on_once_allowed(
    kafka, registry, name, sink_of, tmp_path, on_refused
):
    options = {"format": "avro", "registry": {"url": registry.url}, "on_refused": on_refused}
    topic = f"{name}.public.orders"
    send(
        sink_of(**options),
        tmp_path / "log",
        (START + 0x100, ORDERS, [insert(ORDERS, ["1", "a"])]),
    )
    sink = sink_of(**options)

    send(
        sink,
        tmp_path / "log",
        (START + 0x200, OTHER, [insert(OTHER, ["2", "5"])]),
        (START + 0x300, LINES, [insert(LINES, ["1", "2.5"])]),
    )

    assert len(consumed(kafka, topic)) == 1
    assert len(consumed(kafka, f"{name}.public.lines")) == 1
    again = sink_of(**options)
    open_sink(again)
    (stopped,) = again.tables.detached
    assert stopped == TableName("public", "orders")
    text = again._keeper.stored.tables[stopped].error
    assert text.startswith("PEN-520 public.orders")
    assert f"{topic}-value" in text

    registry.call("PUT", f"/config/{topic}-value", {"compatibility": "NONE"})
    slices = read_log(tmp_path / "log", START + 0x108)
    batch = Batch(2, START + 0x108, slices[-1].head.end_lsn, 0, frozenset({stopped}))
    worker = again.worker(batch, [stopped])
    encoded = worker.format.documents(
        changes([relation(OTHER), *transaction(START + 0x200, insert(OTHER, ["2", "5"]))]),
        Origin("shop", "shop"),
    )
    assert encoded.column("refused").null_count == 1


def test_subject_with_a_schema_of_another_kind_stops_its_table_alone(
    kafka, registry, name, sink_of, tmp_path
):
    options = {"format": "avro", "registry": {"url": registry.url}}
    subject = f"{name}.public.orders-value"
    registry.call("POST", f"/subjects/{subject}/versions", {"schema": '"string"'})
    registry.call("PUT", f"/config/{subject}", {"compatibility": "BACKWARD"})

    send(
        sink_of(**options),
        tmp_path / "log",
        (START + 0x100, ORDERS, [insert(ORDERS, ["1", "a"])]),
        (START + 0x200, LINES, [insert(LINES, ["1", "2.5"])]),
    )

    assert len(consumed(kafka, f"{name}.public.lines")) == 1
    again = sink_of(**options)
    open_sink(again)
    (stopped,) = again.tables.detached
    assert stopped == TableName("public", "orders")
    text = again._keeper.stored.tables[stopped].error
    assert text.startswith("PEN-520 public.orders")
    assert "another kind" in text


def test_value_without_a_form_is_parked_and_a_retry_leaves_it_there(kafka, name, sink_of, tmp_path):
    sink = sink_of(format="debezium", on_refused=OnRefused.PARK)
    rows = [insert(LINES, ["1", "NaN"]), insert(LINES, ["2", "5"]), update(LINES, ["1", "6"])]

    send(sink, tmp_path / "log", (START + 0x100, LINES, rows))

    keys = [json.loads(key) for key, _ in consumed(kafka, f"{name}.public.lines")]
    assert keys == [{"id": 2}]
    place = sink._sealed.place
    first, second = KafkaKind().parked(place)
    assert "no form" in first.reason
    assert first.values["after"] == {"id": 1, "n": "NaN"}
    assert second.reason is None  # waits behind it
    assert second.values["op"] == "u"

    KafkaKind().ask_parked(place, "retry", [first.id, second.id])
    again = sink_of(format="debezium", on_refused=OnRefused.PARK)
    again.refresh_tables(open_sink(again))
    again.close()
    assert len(consumed(kafka, f"{name}.public.lines")) == 1
    assert [each.id for each in KafkaKind().parked(place)] == [first.id, second.id]

    KafkaKind().drop_parked(place, [first.id])
    KafkaKind().ask_parked(place, "retry", [second.id])
    again = sink_of(format="debezium", on_refused=OnRefused.PARK)
    again.refresh_tables(open_sink(again))
    assert KafkaKind().parked(place) == []
    *_, (key, value) = consumed(kafka, f"{name}.public.lines")
    assert (json.loads(key), json.loads(value)["op"]) == ({"id": 1}, "u")


@pytest.mark.parametrize("ca", ["missing", "rubbish", "."])
def test_certificate_of_a_registry_that_cannot_be_read_is_an_error_for_a_person(tmp_path, ca):
    (tmp_path / "rubbish").write_text("no certificate")
    registry = registry_of(tmp_path, url="https://127.0.0.1:1", ca=tmp_path / ca)

    with pytest.raises(SinkLoginRefused) as refused:
        registry.id_of("a-value", '"string"', "t")

    assert "registry.ca cannot be used" in refused.value.what


@pytest.mark.parametrize("url", ["http://h:99999", "http://h:one", "http://[::1", "http://:80"])
def test_url_of_a_registry_that_leads_nowhere_is_refused(url):
    with pytest.raises(ValidationError, match="a host"):
        RegistryOptions(url=url)


def registry_of(tmp_path, **options):
    return Registry(RegistryOptions(**options), "sink bus")


def test_registry_wants_the_login_that_the_file_gives(registry, name, tmp_path):
    guarded = GuardedRegistry(registry, "ann:s3cret")
    try:
        good = registry_of(tmp_path, url=guarded.url, username="ann", password="s3cret")
        bad = registry_of(tmp_path, url=guarded.url, username="ann", password="wr0ng")

        assert good.id_of(f"{name}-value", '"string"', "t") > 0
        assert list(good.findings()) == []
        with pytest.raises(SinkLoginRefused) as raised:
            bad.id_of(f"{name}-other", '"string"', "t")
        (finding,) = bad.findings()
    finally:
        guarded.close()

    assert isinstance(finding.error, SinkLoginRefused)
    assert "wr0ng" not in str(raised.value) + repr(bad)


def test_registry_travels_to_tasks_without_its_password(tmp_path):
    import pickle

    kept = registry_of(tmp_path, url="http://127.0.0.1:1", username="ann", password="s3cret-word")
    with vault.using(vault.Vault(tmp_path)):
        sent = pickle.dumps(kept)
        assert b"s3cret-word" not in sent
        assert pickle.loads(sent) == kept


def test_registry_that_does_not_answer_is_for_time_and_check_says_so():
    silent = Registry(RegistryOptions(url="http://127.0.0.1:1", timeout=2), "sink bus")

    with pytest.raises(SinkError, match="does not answer"):
        silent.id_of("t-value", '"string"', "t")
    (finding,) = silent.findings()
    assert "does not answer" in str(finding.error)


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": "avro"},
        {"format": "avro", "registry": {"url": "http://r"}, "topic": "all"},
        {"format": "avro", "registry": {"url": "ftp://r"}},
        {"format": "avro", "registry": {"url": "http://ann:pw@r"}},
        {"format": "avro", "registry": {"url": "http://r", "username": "ann"}},
        {"format": "json", "registry": {"url": "http://r"}},
        {"format": "debezium", "key": "table"},
        {"format": "debezium", "topic": "events"},
        {"format": "debezium", "topic": "events.{table}", "tombstones": True},
        {"format": "json", "decimals": "string"},
        {"format": "json", "key": "table", "tombstones": True},
    ],
)
def test_options_that_do_not_go_together_are_refused(wrong):
    with pytest.raises(ValidationError):
        KafkaOptions(servers="b:1", **wrong)


def test_registry_with_a_certificate_is_trusted_by_its_ca_alone(registry, name, tmp_path):
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=127.0.0.1 -addext"
    subprocess.run(
        [
            *command.split(),
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            tmp_path / "key",
            "-out",
            tmp_path / "ca",
        ],
        check=True,
        capture_output=True,
    )
    both = tmp_path / "both"
    both.write_bytes((tmp_path / "key").read_bytes() + (tmp_path / "ca").read_bytes())
    guarded = GuardedRegistry(registry, "ann:pw", both)
    login = {"url": guarded.url, "username": "ann", "password": "pw"}
    try:
        with pytest.raises(SinkLoginRefused, match="TLS"):
            Registry(RegistryOptions(**login), "sink bus").id_of(f"{name}-a", '"string"', "t")
        trusting = Registry(RegistryOptions(**login, ca=tmp_path / "ca"), "sink bus")
        assert trusting.id_of(f"{name}-b", '"string"', "t") > 0
    finally:
        guarded.close()
