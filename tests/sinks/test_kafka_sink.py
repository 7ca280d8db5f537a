"""What a Kafka sink does beside the contract: refusals of a real broker, logins, rights, fencing, a broker that goes away."""

from __future__ import annotations

import json
import time
import uuid
import zlib

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from fix_kafka import USERS
from fix_wait import wait_until
from penstock.errors import (
    DestinationRefuses,
    SecondInstance,
    SinkError,
    SinkLoginRefused,
    SinkPrivilegeMissing,
)
from penstock.sink import DOCUMENTS, DocumentsRefused, SinkPlace
from penstock.sinks.chosen import ChosenTables
from penstock.sinks.kafka.kind import KafkaKind
from penstock.sinks.kafka.options import KafkaOptions
from penstock.table import Route, Routes, TableName, TableRule


def documents(*rows, table="orders", op="insert"):
    """A batch of documents, one for each key and note."""
    made = []
    for number, (key, note) in enumerate(rows):
        place = f"shop:0/1000:{table}:{key}:{number}"
        made.append(
            {
                "id": place,
                "key": f'{{"id":{key}}}',
                "value": json.dumps({"id": place, "key": {"id": key}, "note": note}),
                "schema": "public",
                "table": table,
                "op": op,
                "commit_lsn": 0x1000,
                "ordinal": number,
                "committed_at": None,
            }
        )
    return pa.RecordBatch.from_pylist(made, DOCUMENTS)


@pytest.fixture
def name():
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def sink_of(kafka, name, tmp_path):
    """Makes sinks of a test's own topics; those left open are closed in the end."""
    made = []

    def sink_of(sink_name=None, source="shop", sources=("shop",), **options):
        given = {"servers": kafka.servers, "topic": name, "progress_topic": f"{name}.progress"}
        options = KafkaOptions(**{**given, **options})
        place = SinkPlace(sink_name or name, options, "shop", source, sources, tmp_path)
        made.append(KafkaKind().sink(place))
        return made[-1]

    yield sink_of
    for sink in made:
        sink.close()


def notes(kafka, topic):
    return [json.loads(each.value())["note"] for each in kafka.records(topic)]


def make_topic(kafka, topic, partitions=1, **config):
    wanted = NewTopic(
        topic, partitions, 1, config={k.replace("_", "."): v for k, v in config.items()}
    )
    kafka.admin.create_topics([wanted])[topic].result(20)


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_too_large_record_is_refused_by_name_and_the_others_can_go(kafka, name, sink_of, delivery):
    make_topic(kafka, name, max_message_bytes="20000")
    sink = sink_of(delivery=delivery)
    sink.open()
    large = documents((1, "small"), (2, "x" * 30_000), (3, "small, too"))

    with pytest.raises(DocumentsRefused) as refused:
        sink.deliver(iter((large,)), "{}")
    assert notes(kafka, name) == []
    sink.deliver(iter((large.filter(pa.array([True, False, True])),)), "{}")

    [(id_, reason)] = refused.value.reasons.items()
    assert id_ == "shop:0/1000:orders:2:1"
    assert f"topic {name} takes 19900" in reason
    assert "xxx" not in reason
    assert notes(kafka, name) == ["small", "small, too"]


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_record_larger_than_the_files_own_limit_is_refused_by_name(kafka, name, sink_of, delivery):
    sink = sink_of(delivery=delivery, conf={"message.max.bytes": 20_000})
    sink.open()
    both = documents((1, "small"), (2, "x" * 30_000))

    with pytest.raises(DocumentsRefused) as refused:
        sink.deliver(iter((both,)), "{}")

    [(id_, reason)] = refused.value.reasons.items()
    assert id_ == "shop:0/1000:orders:2:1"
    assert f"topic {name} takes 20000" in reason


def test_records_that_are_small_alone_arrive_where_a_batch_of_them_would_be_too_large(
    kafka, name, sink_of
):
    make_topic(kafka, name, max_message_bytes="20000")
    sink = sink_of()
    sink.open()

    sink.deliver(iter((documents(*((key, "y" * 5000) for key in range(100))),)), "{}")

    assert len(notes(kafka, name)) == 100


def test_limit_that_was_raised_is_seen_without_a_restart(kafka, name, sink_of):
    make_topic(kafka, name, max_message_bytes="20000")
    sink = sink_of()
    sink.open()
    large = documents((2, "x" * 30_000))
    with pytest.raises(DocumentsRefused):
        sink.deliver(iter((large,)), "{}")
    entry = ConfigEntry("max.message.bytes", "90000", incremental_operation=AlterConfigOpType.SET)
    place = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    kafka.admin.incremental_alter_configs([place])[place].result(20)

    sink.deliver(iter((large,)), "{}")

    assert notes(kafka, name) == ["x" * 30_000]


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_topic_that_is_missing_and_may_not_be_made_refuses_its_documents_alone(
    kafka, name, sink_of, delivery
):
    make_topic(kafka, f"{name}.audit")
    sink = sink_of(topic=f"{name}.{{table}}", create_topics=False, delivery=delivery)
    sink.open()
    both = [documents((1, "o")), documents((1, "a"), table="audit")]

    with pytest.raises(DocumentsRefused) as refused:
        sink.deliver(iter(both), "{}")
    sink.deliver(iter(both[1:]), "{}")

    assert list(refused.value.reasons) == ["shop:0/1000:orders:1:0"]
    assert "create_topics is false" in next(iter(refused.value.reasons.values()))
    assert notes(kafka, f"{name}.audit") == ["a"]


def test_missing_topic_is_made_with_partitions_and_settings(kafka, name, sink_of):
    sink = sink_of(partitions=5, config={"retention.ms": 12345678})
    sink.open()

    sink.deliver(iter((documents((1, "o")),)), "{}")

    place = ConfigResource(ResourceType.TOPIC, name)
    settings = kafka.admin.describe_configs([place])[place].result(20)
    assert settings["retention.ms"].value == "12345678"
    assert len(kafka.admin.list_topics(timeout=20).topics[name].partitions) == 5


def test_every_record_of_a_key_lies_in_one_partition_whatever_the_delivery(kafka, name, sink_of):
    once = sink_of(partitions=5)
    once.open()
    once.deliver(iter((documents(*((key, "once") for key in range(50))),)), "{}")
    at_least = sink_of(delivery="at_least_once")
    at_least.open()
    at_least.deliver(iter((documents(*((key, "more") for key in range(50))),)), None)

    by_key = {}
    for record in kafka.records(name):
        by_key.setdefault(record.key(), set()).add(record.partition())
    assert len(by_key) == 50
    assert all(len(partitions) == 1 for partitions in by_key.values())
    assert len(set.union(*by_key.values())) == 5


def test_partition_of_a_key_is_the_one_that_other_clients_choose_for_it(kafka, name, sink_of):
    sink = sink_of(partitions=5)
    sink.open()
    sink.deliver(iter((documents(*((key, "ours") for key in range(20))),)), "{}")
    other = Producer({"bootstrap.servers": kafka.servers, "partitioner": "murmur2"})
    for key in range(20):
        other.produce(name, b'{"note":"theirs"}', f"public.orders:{key}")
    other.flush(20)

    by_key = {}
    for record in kafka.records(name):
        by_key.setdefault(record.key(), set()).add(record.partition())
    assert all(len(partitions) == 1 for partitions in by_key.values())


def test_what_was_not_committed_is_seen_by_nobody_who_reads_committed(kafka, name, sink_of):
    sink = sink_of(partitions=1)
    sink.open()

    def broken():
        yield documents((1, "half"))
        sink._producing.producer.flush(20)
        raise OSError

    with pytest.raises(OSError):  # noqa: PT011
        sink.deliver(broken(), "{}")
    assert sink.open() is None
    sink.deliver(iter((documents((1, "whole")),)), '{"a":1}')

    assert notes(kafka, name) == ["whole"]
    assert [json.loads(each.value())["note"] for each in kafka.records(name, committed=False)] == [
        "half",
        "whole",
    ]


def test_position_is_found_among_those_of_many_pipelines(kafka, name, sink_of):
    mine = sink_of()
    mine.open()
    mine.deliver(iter(()), '{"mine":1}')
    others = sink_of("another")
    others.open()
    for number in range(100):
        others.deliver(iter(()), json.dumps({"other": number}))
    mine.close()
    others.close()

    assert sink_of().open() == '{"mine":1}'
    assert sink_of("another").open() == '{"other": 99}'


def test_transaction_that_was_left_open_for_one_source_holds_up_no_other(kafka, name, sink_of):
    """Positions of both are in one partition, and nobody has opened the other source yet."""
    place = {
        source: zlib.crc32(f"penstock.shop.{source}.{name}".encode()) % 16
        for source in (f"s{number}" for number in range(40))
    }
    ours, other = next(
        (one, two) for one in place for two in place if one != two and place[one] == place[two]
    )
    sources = (ours, other)
    sink = sink_of(source=ours, sources=sources, timeout=10.0)
    sink.open()
    sink.deliver(iter(()), '{"ours":1}')
    sink.close()
    killed = sink_of(source=other, sources=sources)
    killed.open()
    killed._begin()
    killed._store(b'{"never":1}')
    killed._producing.flush()
    killed._in_transaction = False  # a killed process aborts nothing
    killed.close()

    begun_at = time.monotonic()
    assert sink_of(source=ours, sources=sources, timeout=10.0).open() == '{"ours":1}'

    assert time.monotonic() - begun_at < 8
    assert sink_of(source=other, sources=sources).open() is None


def test_newcomer_that_was_let_in_fences_the_first_who_says_that_it_is_not_alone(
    kafka, name, sink_of
):
    first, second = sink_of(), sink_of()
    first.open()
    with pytest.raises(SecondInstance):
        second.open()
    second._claim._join()  # as if both had asked at the same moment
    second._init()

    with pytest.raises(SecondInstance):
        first.deliver(iter((documents((1, "late")),)), '{"late":1}')

    assert notes(kafka, name) == []


def opened(sink):
    """Open it as penstock does: what passes with time is tried again."""

    def opens():
        try:
            return [sink.open()]
        except SinkError as error:
            if error.remedy.name != "TIME":
                raise
            return []

    [state] = wait_until(opens, 60, "the sink to open")
    return state


@pytest.mark.long  # a broker is started twice, and clients take their time to give up
def test_broker_that_goes_away_is_waited_for_and_nothing_is_doubled(own_kafka, name, sink_of):
    sink = sink_of(servers=own_kafka.servers, timeout=8.0, partitions=1)
    sink.open()
    sink.deliver(iter((documents((1, "before")),)), '{"n":1}')
    own_kafka.kill()

    with pytest.raises(SinkError) as failed:
        sink.deliver(iter((documents((2, "while")),)), '{"n":2}')
    assert failed.value.remedy.name == "TIME"
    with pytest.raises(SinkError):
        sink.open()
    own_kafka.start()

    assert opened(sink) == '{"n":1}'
    sink.deliver(iter((documents((2, "after")),)), '{"n":2}')
    assert notes(own_kafka, name) == ["before", "after"]


@pytest.mark.long
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_slow_link_is_no_broker_that_does_not_answer(proxied_kafka, name, sink_of, delivery):
    server, proxy = proxied_kafka
    sink = sink_of(
        servers=server.servers, timeout=4.0, delivery=delivery, conf={"batch.size": "50000"}
    )
    opened(sink)
    sink.deliver(iter((documents((0, "quick")),)), '{"n":1}')
    proxy.bytes_per_second = 150_000

    sink.deliver(iter((documents(*[(n, "x" * 10_000) for n in range(1, 200)]),)), '{"n":2}')

    proxy.bytes_per_second = 0
    assert len(notes(server, name)) == 200


@pytest.mark.long
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_broker_that_takes_nothing_any_more_is_given_up_after_the_time_out(
    proxied_kafka, name, sink_of, delivery
):
    server, proxy = proxied_kafka
    sink = sink_of(servers=server.servers, timeout=3.0, delivery=delivery)
    opened(sink)
    sink.deliver(iter((documents((0, "quick")),)), '{"n":1}')
    proxy.blackhole()

    begin = time.monotonic()
    with pytest.raises(SinkError) as failed:
        sink.deliver(iter((documents((1, "never")),)), '{"n":2}')
    took = time.monotonic() - begin
    proxy.heal()

    assert failed.value.remedy.name == "TIME"
    assert 3 <= took < 30


def login(kafka, password=None, user="writer"):
    return {
        "servers": kafka.login_servers,
        "timeout": 10.0,
        "conf": {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": password or USERS[user],
        },
    }


def documented_rights(name):
    """The rights that docs/howto/kafka.md lists, and no others: kind, name, operations."""
    full = f"penstock.shop.shop.{name}"
    of_topics = ["CREATE", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS"]
    return [
        ("TRANSACTIONAL_ID", full, ["WRITE", "DESCRIBE"]),
        ("GROUP", full, ["READ", "DESCRIBE", "DELETE"]),
        ("TOPIC", f"{name}.orders", of_topics),
        ("TOPIC", f"{name}.progress", [*of_topics, "READ"]),
    ]


def chosen(*tables):
    """What `check` is told of the source."""
    return {"shop": ChosenTables([TableName("public", each) for each in tables], [], [], {}, {})}


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_wrong_password_is_an_error_for_a_person_and_is_not_shown(kafka, sink_of, delivery):
    sink = sink_of(**login(kafka, "wr0ng-secret"), delivery=delivery)

    with pytest.raises(SinkLoginRefused) as refused:
        sink.open()
    [finding] = sink.check()

    assert "wr0ng-secret" not in str(refused.value)
    assert finding.code == "PEN-502"


def test_user_without_rights_is_told_which_are_missing(kafka, name, sink_of):
    sink = sink_of(**login(kafka))

    with pytest.raises((SinkPrivilegeMissing, DestinationRefuses, SinkError)) as refused:
        sink.open()
    found = [each.code for each in sink.check()]

    assert "AUTHORIZATION_FAILED" in str(refused.value)
    assert set(found) == {"PEN-503"}


@pytest.mark.parametrize(
    ("foreign", "lacks"), [("DESCRIBE", "lacks Write"), ("CREATE", "lacks Describe")]
)
def test_user_with_the_documented_rights_delivers_and_a_foreign_topic_is_refused(
    kafka, name, sink_of, foreign, lacks
):
    progress = f"{name}.progress"
    for kind, its_name, operations in documented_rights(name):
        kafka.allow("writer", kind, its_name, *operations)
    make_topic(kafka, f"{name}.audit")
    kafka.allow("writer", "TOPIC", f"{name}.audit", foreign)
    sink = sink_of(**login(kafka), topic=f"{name}.{{table}}")
    sink.open()
    both = [documents((1, "o")), documents((1, "a"), table="audit")]

    with pytest.raises(DocumentsRefused) as refused:
        sink.deliver(iter(both), "{}")
    sink.deliver(iter(both[:1]), "{}")

    assert list(refused.value.reasons) == ["shop:0/1000:audit:1:0"]
    assert "may not write to topic" in next(iter(refused.value.reasons.values()))
    assert notes(kafka, f"{name}.orders") == ["o"]
    assert list(sink.check()) == []
    assert list(sink.check_tables([TableName("public", "orders")])) == []
    [finding] = sink.check_tables([TableName("public", each) for each in ("orders", "audit")])
    assert (finding.code, finding.severity) == ("PEN-503", "error")
    assert f"{lacks} on topic {name}.audit" in finding.what
    sink.close()
    assert sink.forget() == [f"position in topic {progress}"]


def test_user_who_may_not_write_the_position_is_told_so_and_does_not_wait_for_ever(
    kafka, name, sink_of
):
    make_topic(kafka, f"{name}.progress")
    for kind, its_name, operations in documented_rights(name):
        is_position = its_name == f"{name}.progress"
        allowed = [each for each in operations if not (is_position and each == "WRITE")]
        kafka.allow("writer", kind, its_name, *allowed)
    sink = sink_of(**login(kafka), topic=f"{name}.{{table}}")

    sink.open()
    with pytest.raises(SinkPrivilegeMissing) as refused:
        sink.deliver(iter((documents((1, "o")),)), "{}")

    assert f"may not write to topic {name}.progress" in refused.value.what


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_topic_whose_right_is_taken_away_meanwhile_refuses_its_documents_alone(
    kafka, name, sink_of, delivery
):
    for kind, its_name, operations in documented_rights(name):
        kafka.allow("writer", kind, its_name, *operations)
    kafka.allow("writer", "TOPIC", f"{name}.audit", "CREATE", "WRITE", "DESCRIBE")
    sink = sink_of(**login(kafka), topic=f"{name}.{{table}}", delivery=delivery)
    sink.open()
    both = [documents((1, "o")), documents((1, "a"), table="audit")]
    sink.deliver(iter(both), "{}")
    kafka.disallow("writer", "TOPIC", f"{name}.audit", "WRITE")

    if delivery == "exactly_once":  # of a transaction only the next attempt knows it
        with pytest.raises(SinkError, match="AUTHORIZATION_FAILED"):
            sink.deliver(iter(both), "{}")
        sink.open()
    with pytest.raises(DocumentsRefused) as refused:
        sink.deliver(iter(both), "{}")

    assert list(refused.value.reasons) == ["shop:0/1000:audit:1:0"]


@pytest.fixture
def auditor(kafka):
    """A user who may also see the ACLs of the cluster."""
    kafka.allow("auditor", "BROKER", "kafka-cluster", "DESCRIBE")
    return "auditor"


@pytest.mark.parametrize(
    ("kind", "operation", "says"),
    [
        (None, None, None),
        ("TOPIC", "WRITE", "lacks Write on topic {name}.orders"),
        ("PROGRESS", "WRITE", "lacks Write on topic {name}.progress"),
        ("PROGRESS", "READ", "lacks Read on topic {name}.progress"),
        ("GROUP", "READ", "lacks Read on group penstock.shop.shop.{name}"),
        ("TRANSACTIONAL_ID", "WRITE", "lacks Write on transactional id penstock.shop.shop.{name}"),
    ],
)
def test_check_names_each_right_that_is_missing_and_nothing_to_who_has_all(
    kafka, name, tmp_path, auditor, kind, operation, says
):
    for topic in ("orders", "progress"):
        make_topic(
            kafka,
            f"{name}.{topic}",
            **({"cleanup_policy": "compact"} if topic == "progress" else {}),
        )
    for its_kind, its_name, operations in documented_rights(name):
        is_meant = (its_kind if its_name != f"{name}.progress" else "PROGRESS") == kind
        left = [each for each in operations if not (is_meant and each == operation)]
        kafka.allow(auditor, its_kind, its_name, *left)
    given = {"topic": f"{name}.{{table}}", "progress_topic": f"{name}.progress"}
    options = KafkaOptions(**login(kafka, user=auditor), **given)
    place = SinkPlace(name, options, "shop", "shop", ("shop",), tmp_path)

    found = list(KafkaKind().check({"shop": place}, chosen("orders")))

    assert [each.what for each in found if each.severity == "error"] == (
        [] if says is None else [f"penstock's user {says.format(name=name)}"]
    )


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_topics_of_tables_that_may_not_be_made_are_found_by_check(
    kafka, name, tmp_path, auditor, delivery
):
    for kind, its_name, operations in documented_rights(name):
        kafka.allow(auditor, kind, its_name, *operations)
    options = KafkaOptions(
        **login(kafka, user=auditor),
        topic=f"{name}.{{table}}",
        progress_topic=f"{name}.progress",
        delivery=delivery,
    )
    routes = Routes((Route(TableRule.parse("public.lines"), TableName("public", "orders")),))
    place = SinkPlace(name, options, "shop", "shop", ("shop",), tmp_path, routes=routes)

    found = list(KafkaKind().check({"shop": place}, chosen("lines", "secrets")))

    assert [each.code for each in found] == ["PEN-503"]
    assert f"making topic {name}.secrets" in found[0].what


def test_rules_that_name_another_principal_are_no_error_of_check(kafka, name, tmp_path, auditor):
    """The name of a login need not be that of its principal, as Confluent Cloud's API keys are not."""
    for topic in ("orders", "progress"):
        compact = {"cleanup_policy": "compact"} if topic == "progress" else {}
        make_topic(kafka, f"{name}.{topic}", **compact)
    for kind, its_name, operations in documented_rights(name):
        user = "writer" if kind == "TRANSACTIONAL_ID" else auditor
        kafka.allow(user, kind, its_name, *operations)
    given = {"topic": f"{name}.{{table}}", "progress_topic": f"{name}.progress"}
    options = KafkaOptions(**login(kafka, user=auditor), **given)
    place = SinkPlace(name, options, "shop", "shop", ("shop",), tmp_path)

    (found,) = KafkaKind().check({"shop": place}, chosen("orders"))

    assert found.severity == "warning"
    assert "lacks Describe and Write on transactional id" in found.what


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_topics_that_cannot_be_made_as_the_options_say_are_all_found_by_check(
    kafka, name, tmp_path, delivery
):
    options = KafkaOptions(
        servers=kafka.servers,
        topic=f"{name}.{{table}}",
        progress_topic=f"{name}.progress",
        config={"cleanup.policy": "sometimes"},
        delivery=delivery,
    )
    place = SinkPlace(name, options, "shop", "shop", ("shop",), tmp_path)

    found = list(KafkaKind().check({"shop": place}, chosen("lines", "orders")))

    assert [each.severity for each in found] == ["error", "error"]
    for topic, each in zip(("lines", "orders"), found, strict=True):
        assert f"making topic {name}.{topic}: Kafka says INVALID_CONFIG" in each.what


def test_setting_that_librdkafka_does_not_know_is_named_without_its_value(sink_of):
    sink = sink_of(conf={"sasl.pasword": "s3cret"})

    with pytest.raises(DestinationRefuses, match=r"sasl\.pasword") as refused:
        sink.open()

    assert "s3cret" not in str(refused.value)


def test_more_replicas_than_brokers_are_found_by_check(sink_of):
    found = [each.what for each in sink_of(replication_factor=3).check()]

    assert any("replication_factor is 3" in each for each in found)


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_partitions_and_limits_of_topics_that_are_there_are_reported_by_check(
    kafka, name, sink_of, delivery
):
    make_topic(kafka, f"{name}.orders", partitions=2, max_message_bytes="20000")
    make_topic(kafka, f"{name}.lines", partitions=5)
    make_topic(kafka, f"{name}.of.somebody.else", partitions=1)

    found = list(sink_of(topic=f"{name}.{{table}}", partitions=5, delivery=delivery).check())

    assert [each.severity for each in found] == ["warning", "warning"]
    assert f"topic {name}.orders has 2 partitions; wanted 5" in found[0].what
    assert f"topic {name}.orders takes records of up to 19900 bytes" in found[1].what


def test_topic_of_positions_that_is_not_compacted_is_found_by_check(kafka, name, sink_of):
    make_topic(kafka, f"{name}.progress", partitions=16)

    (found,) = sink_of(progress_topic=f"{name}.progress").check()

    assert found.severity == "error"
    assert f"cleanup.policy of topic {name}.progress is delete, wanted compact" in found.what


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_topics_that_differ_in_dots_and_underscores_alone_are_found_by_check_and_refused_by_name(
    kafka, name, tmp_path, sink_of, delivery
):
    make_topic(kafka, f"{name}.eu.lines")
    given = {
        "servers": kafka.servers,
        "topic": f"{name}.{{schema}}.{{table}}",
        "progress_topic": f"{name}.progress",
        "delivery": delivery,
    }
    place = SinkPlace(name, KafkaOptions(**given), "shop", "shop", ("shop",), tmp_path)
    tables = [("sales", "eu_orders"), ("sales_eu", "orders"), ("sales", "orders")]
    followed = ChosenTables([TableName(*each) for each in tables], [], [], {}, {})

    found = [each.what for each in KafkaKind().check({"shop": place}, {"shop": followed})]
    met = [
        each.what
        for each in sink_of(topic=f"{name}.eu_{{table}}", delivery=delivery).check_tables(
            [TableName("public", "lines")]
        )
    ]
    sink = sink_of(topic=f"{name}.eu_{{table}}", delivery=delivery)
    sink.open()
    with pytest.raises(DocumentsRefused) as refused:
        sink.deliver(iter((documents((1, "a"), table="lines"),)), "{}")

    (pair,) = found
    assert f"topic {name}.sales_eu.orders collides with {name}.sales.eu_orders" in pair
    assert f"topic {name}.eu_lines collides with {name}.eu.lines, which is there" in met[0]
    (reason,) = refused.value.reasons.values()
    assert f"collides with existing topic: {name}.eu.lines" in reason


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_topic_with_too_long_a_name_is_found_by_check_and_refused_with_its_length(
    name, sink_of, delivery
):
    table = "ü" * 60
    sink = sink_of(topic=f"{name}.{{table}}", delivery=delivery)

    (found,) = sink.check_tables([TableName("public", table)])
    sink.open()
    with pytest.raises(DocumentsRefused) as refused:
        sink.deliver(iter((documents((1, "a"), table=table),)), "{}")

    length = len(name) + 1 + 60 * 6
    assert f"has {length} characters, Kafka takes 249" in found.what
    assert f"has {length} characters" in next(iter(refused.value.reasons.values()))
