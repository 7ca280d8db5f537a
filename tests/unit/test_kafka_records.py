"""Which key, topic and headers the record of a document has."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pyarrow as pa
import pytest

from penstock.changes.documents import documents
from penstock.changes.pgoutput import Injected
from penstock.changes.shares import Share
from penstock.errors import PackageMissing
from penstock.sink import DOCUMENTS, SinkPlace
from penstock.sinks.chosen import ChosenTables
from penstock.sinks.documents.patterns import Pattern, TablesOfBatch, escaped, problem_of
from penstock.sinks.kafka.kind import KafkaKind, _meetings, topics_of
from penstock.sinks.kafka.options import KafkaOptions, RecordKey
from penstock.sinks.kafka.records import Layout, record_keys
from penstock.sinks.nats.kind import NatsKind
from penstock.table import Route, Routes, TableName, TableRule
from penstock.testing import (
    UNCHANGED,
    changes,
    delete,
    insert,
    relation,
    table,
    transaction,
    update,
)


def document(key, table="orders", schema="public", op="insert", lsn=0x1000, ordinal=0):
    return {
        "id": f"shop:{lsn}:{ordinal}",
        "key": None if key is None else json.dumps(key, separators=(",", ":"), ensure_ascii=False),
        "value": "{}",
        "schema": schema,
        "table": table,
        "op": op,
        "commit_lsn": lsn,
        "ordinal": ordinal,
        "committed_at": None,
    }


def keys_of(how, *documents):
    batch = pa.RecordBatch.from_pylist(documents, DOCUMENTS)
    return record_keys(batch, TablesOfBatch.of(batch), RecordKey(how))


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ("schema", ["public", "public", "public"]),
        ("table", ["public.orders", "public.orders", "public"]),
        ("primary_key", ["public.orders:7", "public.orders", "public"]),
    ],
)
def test_key_is_made_of_what_the_option_says_and_of_ddl_the_schema(how, wanted):
    found = keys_of(
        how, document({"id": 7}), document(None, op="truncate"), document(None, op="schema")
    )

    assert found == wanted


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ({"id": 7}, "7"),
        ({"id": -7}, "-7"),
        ({'a": b': 7}, "7"),
        ({"a": "7"}, "7"),
        ({"a": 1, "b": "x"}, "1,x"),
        ({"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}, "1,2,3,4,5"),
        ({"a": "x,y"}, "x\\,y"),
        ({"a": "x", "b": "y,z"}, "x,y\\,z"),
        ({"a": "back\\slash"}, "back\\\\slash"),
        ({"a": 'a "quote"'}, 'a "quote"'),
        ({"a": ""}, ""),
        ({"a": "ä€😀"}, "ä€😀"),
        ({"a": "{braces}"}, "{braces}"),
        ({'odd"na,me': 5}, "5"),
        ({"a": [1, 2]}, "[1\\,2]"),
        ({"a": True}, "true"),
        ({"a": "\ud800"}, "\\ud800"),
    ],
)
def test_values_of_a_key_stand_behind_the_table_with_escapes(key, wanted):
    row = document(key)
    row["key"] = json.dumps(key, separators=(",", ":"))

    assert keys_of("primary_key", row) == [f"public.orders:{wanted}"]


def test_number_of_a_key_is_kept_digit_for_digit():
    row = document({"id": 0})
    row["key"] = '{"id":12345678901234567890.10,"b":"x,"}'

    assert keys_of("primary_key", row) == ["public.orders:12345678901234567890.10,x\\,"]


def test_number_of_a_key_may_have_more_digits_than_python_takes_at_once():
    digits = "7" * 5000
    row = {**document({}), "key": f'{{"a":{digits},"b":"x,y"}}'}

    (found,) = keys_of("primary_key", row)

    assert found == f"public.orders:{digits},x\\,y"


def test_names_with_dots_and_colons_do_not_run_into_each_other():
    one, other = document({"i": 1}, "b.c", "a"), document({"i": 1}, "c", "a.b")

    assert keys_of("primary_key", one, other) == ["a.b\\.c:1", "a\\.b.c:1"]


def test_topic_holds_escaped_names():
    pattern = Pattern("x.{schema}.{table}", "shop", "eu")

    assert pattern.of("public", "order_lines") == "x.public.order_lines"
    assert pattern.of("a.b", "c") == "x.a-2eb.c"
    assert pattern.of("a", "b.c") == "x.a.b-2ec"
    assert pattern.of("a-2eb", "ä") == "x.a-2d2eb.-c3-a4"
    assert escaped("Orders") == "Orders"


@pytest.mark.parametrize("pattern", ["{tabel}", "a b", "", "x/{table}", "{schema"])
def test_pattern_that_no_topic_can_have_is_refused(pattern):
    assert problem_of(pattern, r"[A-Za-z0-9._-]*")


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ("json", "shop.a-2eb.Wei-c3-9f -f0-9f-98-80".replace(" ", "-20")),
        ("debezium", "shop.a.b.Wei____"),
    ],
)
def test_topics_are_called_as_debezium_calls_them_where_records_are_as_debezium_s(
    form, wanted, tmp_path
):
    topics = topics_of(place_of(tmp_path, format=form))

    assert topics.of("a.b", "Weiß 😀") == wanted


def place_of(directory, source="shop", sources=("shop",), **options):
    given = {"servers": "b:1", "topic": "{pipeline}.{schema}.{table}"}
    options = KafkaOptions(**{**given, **options})
    return SinkPlace("bus", options, "shop", source, sources, directory)


def test_tables_that_would_share_a_topic_of_debezium_s_are_refused(tmp_path):
    tables = [
        TableName("a", "b c"),
        TableName("a", "b_c"),
        TableName("a.b", "c"),
        TableName("x", "y"),
    ]
    to_x = Routes((Route(TableRule.parse("a.b_c"), TableName("x", "y")),))

    place = place_of(tmp_path, format="debezium")
    found = KafkaKind().clashes(place, tables)
    routed = KafkaKind().clashes(replace(place, routes=to_x), tables)

    assert sorted(found) == tables[:2]
    assert "would all be topic shop.a.b_c" in str(found[tables[0]])
    assert routed == {}
    assert [each.severity for each in KafkaKind().occupied(place, tables)] == ["error"]
    assert KafkaKind().clashes(place_of(tmp_path), tables) == {}


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"format": "debezium"}, "warning"),
        ({"format": "avro", "registry": {"url": "http://r"}}, "error"),
        ({"tombstones": True}, "warning"),
        ({"topic": "{source}.{schema}.{table}", "format": "debezium"}, None),
        ({"format": "debezium", "tombstones": False}, None),
        ({}, None),
    ],
)
def test_sources_whose_keys_meet_in_a_topic_are_found_by_check(tmp_path, options, wanted):
    places = {each: place_of(tmp_path, each, ("eu", "us"), **options) for each in ("eu", "us")}
    chosen = {
        "eu": ChosenTables([TableName("public", "orders")], [], [], {}, {}),
        "us": ChosenTables(
            [TableName("public", "orders"), TableName("us", "more")], [], [], {}, {}
        ),
    }

    found = list(_meetings(places, chosen))

    assert [each.severity for each in found] == ([wanted] if wanted else [])
    assert all("sources eu and us go to topic shop.public.orders" in each.what for each in found)


def test_headers_say_what_the_document_is():
    layout = Layout(Pattern("t", "shop", "eu"), RecordKey.TABLE, "application/json", False)
    batch = pa.RecordBatch.from_pylist([document({"id": 1}, lsn=0x1_0000_00AB)], DOCUMENTS)

    [(topic, value, key, headers, _)] = layout.rows(batch, TablesOfBatch.of(batch))

    assert (topic, value, key) == ("t", b"{}", "public.orders")
    assert headers == [
        ("id", "shop:4294967467:0"),
        ("op", "insert"),
        ("commit_lsn", b"1/AB"),
        ("source", "eu"),
        ("content-type", "application/json"),
    ]


def test_delete_is_followed_by_a_tombstone_where_they_are_wanted():
    layout = Layout(Pattern("t", "shop", "eu"), RecordKey.PRIMARY_KEY, "application/json", True)
    rows = [
        document({"id": 1}, op="delete"),
        document({"id": 2}),
        document(None, "keyless", op="delete"),
    ]
    batch = pa.RecordBatch.from_pylist(rows, DOCUMENTS)

    found = [(value, key) for _, value, key, _, _ in layout.rows(batch, TablesOfBatch.of(batch))]

    assert found == [
        (b"{}", "public.orders:1"),
        (None, "public.orders:1"),
        (b"{}", "public.orders:2"),
        (b"{}", "public.keyless"),
    ]


def test_record_of_a_table_with_full_identity_has_the_primary_key_where_the_document_has_none():
    full = table(16500, "orders", {"id": "int4", "note": "text"}, identity="f")
    rows = [
        insert(full, ["1", "a"]),
        update(full, ["2", UNCHANGED], before=["1", "a"]),
        delete(full, before=["1", "b"]),
    ]
    found = [
        replace(
            each,
            relation=replace(
                each.relation,
                columns=tuple(replace(one, id=n) for n, one in enumerate(each.relation.columns, 1)),
                injected=Injected(16500, primary_key=(1,), in_documents=False),
            ),
        )
        for each in changes([relation(full), *transaction(0x1000, *rows)])
    ]
    layout = Layout(Pattern("t", "shop", "eu"), RecordKey.PRIMARY_KEY, "application/json", True)

    batch = documents(found, "shop")
    records = list(layout.rows(batch, TablesOfBatch.of(batch)))

    assert [key for _, _, key, _, _ in records] == [
        f"public.orders:{number}" for number in (1, 2, 1, 1)
    ]
    assert [value is None for _, value, *_ in records] == [False, False, False, True]
    assert [json.loads(value)["key"] for _, value, *_ in records[:3]] == [None] * 3
    shares = [Share(number, 4, "key") for number in range(4)]
    own = [documents([p for e in found if (p := share.of(e))], "shop") for share in shares]
    assert sorted(key for each in own for key in each.column("key").to_pylist()) == [
        '{"id":1}',
        '{"id":1}',
        '{"id":2}',
    ]
    assert sum(len(each) > 0 for each in own) == 2


def test_records_of_many_documents_take_time_that_grows_linearly():
    rows = [document({"id": number}, ordinal=number) for number in range(100_000)]
    batch = pa.RecordBatch.from_pylist(rows, DOCUMENTS)
    layout = Layout(Pattern("t", "shop", "eu"), RecordKey.PRIMARY_KEY, "application/json", False)

    began = time.process_time()
    count = sum(1 for _ in layout.rows(batch, TablesOfBatch.of(batch)))

    assert count == 100_000
    assert time.process_time() - began < 2  # measured: 0.2 s


@pytest.mark.parametrize("servers", ["h:99999", "h:0", "h:one", "a:1;b:2", ",", "a:1,", "[::1"])
def test_servers_that_lead_nowhere_are_refused(servers):
    with pytest.raises(ValueError, match="host:port of one broker or more"):
        KafkaOptions(servers=servers)


@pytest.mark.parametrize("servers", ["h", "h:9092", "a:1, b:2", "[::1]:9092,10.0.0.1:9092"])
def test_servers_may_be_written_as_clients_take_them(servers):
    assert KafkaOptions(servers=servers).servers == servers


def test_transaction_shorter_than_the_client_takes_is_refused():
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        KafkaOptions(servers="h:1", transaction_timeout=0.5)


@pytest.mark.parametrize(
    "key", ["transactional.id", "acks", "partitioner", "bootstrap.servers", "logger"]
)
def test_setting_that_would_break_a_promise_is_refused(key):
    with pytest.raises(ValueError, match="set by penstock itself"):
        KafkaOptions(servers="h:1", conf={key: "x"})


def test_settings_do_not_print_themselves():
    options = KafkaOptions(servers="h:1", conf={"sasl.password": "s3cret", "linger.ms": 5})

    assert "s3cret" not in repr(options)
    assert options.conf["linger.ms"].get_secret_value() == "5"


@pytest.mark.parametrize("kind", [KafkaKind(), NatsKind()])
def test_missing_package_is_named_with_the_command_that_installs_it(monkeypatch, kind, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    place = SinkPlace("bus", None, "shop", "shop", ("shop",), tmp_path)

    with pytest.raises(PackageMissing, match=rf"pip install 'penstock\[{kind.name}\]'"):
        kind.sink(place)
    [finding] = kind.check({"shop": place}, {})

    assert finding.code == "PEN-519"


def test_keys_of_several_tables_and_rows_without_one_are_told_apart():
    found = keys_of(
        "primary_key",
        document({"id": 1}),
        document({"no": 1, "b": 2}, table="lines"),
        document(None, table="log"),
        document({"id": 2}),
    )

    assert found == ["public.orders:1", "public.lines:1,2", "public.log", "public.orders:2"]
