"""Records look as Debezium's Postgres connector documents them; values of every type are what its converters make."""

from __future__ import annotations

import base64
import json
import tracemalloc
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fix_envelopes import ORIGIN, records
from fix_pgvalues import DEBEZIUM, examples
from penstock import __version__
from penstock.changes.basetypes import spelled_type
from penstock.changes.debezium import DebeziumEncoder, Decimals, debezium_column
from penstock.changes.documents import keyed
from penstock.changes.encoded import one_column
from penstock.changes.pgoutput import Column, Injected, Relation
from penstock.lsn import Lsn
from penstock.modifiers.inject import Injection, PrimaryKeyOptions
from penstock.schema.shape import ColumnShape, TableShape, TypeShape
from penstock.sinks.kafka.formats import DebeziumFormat
from penstock.table import TableName
from penstock.testing import (
    UNCHANGED,
    changes,
    delete,
    insert,
    relation,
    table,
    transaction,
    truncate,
    update,
)

CUSTOMERS = table(
    16400,
    "customers",
    {"id": "int4", "first_name": "text", "last_name": "text", "email": "text"},
    key=["id"],
)
FULL = table(16500, "customers", {"id": "int4", "email": "text"}, identity="f")
LSN = 24023128
# 2019-05-28 08:45:04.863, in microseconds since 2000.
AT = 612_348_304_863_000


def of(described, *rows, decimals=Decimals.PRECISE):
    """Key and value of each record of a transaction, parsed."""
    messages = [relation(described), *transaction(LSN, *rows, xid=555, committed_at=AT)]
    found = records(changes(messages), lambda each: DebeziumEncoder(each.columns, decimals))
    for each in found:
        each["value"] = json.loads(each["value"])
        each["record_key"] = each["record_key"] and json.loads(each["record_key"])
    return found


def source(ordinal=0, **more):
    return {
        "version": __version__,
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": 1559033104863,
        "snapshot": "false",
        "db": "shopdb",
        "sequence": f'["{LSN}","{ordinal}"]',
        "ts_us": 1559033104863000,
        "ts_ns": 1559033104863000000,
        "schema": "public",
        "table": "customers",
        "txId": 555,
        "lsn": LSN,
        "xmin": None,
        **more,
    }


def envelope(op, before, after, ordinal=0):
    return {
        "before": before,
        "after": after,
        "source": source(ordinal),
        "transaction": None,
        "op": op,
        "ts_ms": 1559033104863,
        "ts_us": 1559033104863000,
        "ts_ns": 1559033104863000000,
    }


def test_create_update_and_delete_look_as_documented():
    anne = {"id": 1, "first_name": "Anne", "last_name": "Kretchmar", "email": "annek@noanswer.org"}
    changed = {**anne, "first_name": "Anne Marie"}

    created, updated, deleted = of(
        CUSTOMERS,
        insert(CUSTOMERS, ["1", "Anne", "Kretchmar", "annek@noanswer.org"]),
        update(CUSTOMERS, ["1", "Anne Marie", "Kretchmar", "annek@noanswer.org"]),
        delete(CUSTOMERS, key=["1"]),
    )

    assert created["value"] == envelope("c", None, anne)
    assert updated["value"] == envelope("u", None, changed, 1)
    assert deleted["value"] == envelope("d", {"id": 1}, None, 2)
    assert [each["record_key"] for each in (created, updated, deleted)] == [{"id": 1}] * 3
    assert [each["op"] for each in (created, updated, deleted)] == ["insert", "update", "delete"]


def test_fields_of_the_envelope_stand_in_the_documented_order():
    messages = [relation(CUSTOMERS), *transaction(LSN, insert(CUSTOMERS, ["1", "a", "b", "c"]))]

    (found,) = records(changes(messages), lambda each: DebeziumEncoder(each.columns))

    assert list(json.loads(found["value"])) == [
        "before",
        "after",
        "source",
        "transaction",
        "op",
        "ts_ms",
        "ts_us",
        "ts_ns",
    ]
    assert found["value"].startswith(b'{"before":null,"after":{"id":1,"first_name":"a"')


def test_key_that_changes_is_a_delete_of_the_old_one_and_a_create_of_the_new_one():
    found = of(CUSTOMERS, update(CUSTOMERS, ["2", "a", "b", "c"], key=["1"]))

    assert [each["op"] for each in found] == ["delete", "insert"]
    assert [each["value"]["op"] for each in found] == ["d", "c"]
    assert [each["record_key"] for each in found] == [{"id": 1}, {"id": 2}]
    assert found[0]["value"]["before"] == {"id": 1}
    assert found[0]["value"]["after"] is None
    assert found[1]["value"]["before"] is None
    assert found[1]["value"]["after"]["id"] == 2
    assert found[0]["id"] == found[1]["id"] + ":delete"
    assert [json.loads(each["key"]) for each in found] == [{"id": 1}, {"id": 2}]


def test_old_key_that_is_sent_though_it_did_not_change_makes_no_delete():
    found = of(CUSTOMERS, update(CUSTOMERS, ["1", "a", "b", "c"], key=["1"]))

    assert [each["value"]["op"] for each in found] == ["u"]
    assert found[0]["value"]["before"] is None


def test_replica_identity_full_gives_the_whole_old_row_and_values_that_were_not_sent_again():
    found = of(
        FULL,
        update(FULL, ["1", UNCHANGED], before=["1", "long"]),
        delete(FULL, before=["1", "long"]),
    )

    assert found[0]["value"]["before"] == {"id": 1, "email": "long"}
    assert found[0]["value"]["after"] == {"id": 1, "email": "long"}
    assert found[1]["value"]["before"] == {"id": 1, "email": "long"}
    assert [each["record_key"] for each in found] == [None, None]


def test_toasted_value_that_was_not_sent_is_the_placeholder_of_its_type():
    docs = table(
        16600, "docs", {"id": "int4", "t": "text", "b": "bytea", "a": "text[]"}, key=["id"]
    )

    (found,) = of(docs, update(docs, ["1", UNCHANGED, UNCHANGED, UNCHANGED]))

    assert found["value"]["after"] == {
        "id": 1,
        "t": "__debezium_unavailable_value",
        "b": "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==",
        "a": ["__debezium_unavailable_value"],
    }


@pytest.mark.parametrize(
    ("type_oid", "wanted"),
    [
        (1005, list(b"__debezium_unavailable_value")),  # int2[]
        (1007, list(b"__debezium_unavailable_value")),  # int4[]
        (1016, list(b"__debezium_unavailable_value")),  # int8[]
        (1182, list(b"__debezium_unavailable_value")),  # date[]
        (1001, ["X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="]),  # bytea[]
        # Java's UUID.nameUUIDFromBytes of it.
        (2951, ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]),  # uuid[]
    ],
)
def test_toasted_array_that_was_not_sent_has_elements_of_its_own_type(type_oid, wanted):
    columns = (Column("id", 23, -1, True), Column("v", type_oid, -1, False))
    shape = Relation(16600, TableName("public", "docs"), "d", columns)

    (found,) = of(shape, update(shape, ["1", UNCHANGED]))

    assert found["value"]["after"]["v"] == wanted


def test_truncate_has_no_key_and_no_rows():
    (found,) = of(CUSTOMERS, truncate(CUSTOMERS))

    assert found["value"] == envelope("t", None, None)
    assert found["record_key"] is None
    assert found["op"] == "truncate"


def test_events_of_several_transactions_say_their_own():
    messages = [
        relation(CUSTOMERS),
        *transaction(0x100, insert(CUSTOMERS, ["1", "a", "b", "c"]), xid=7, committed_at=AT),
        *transaction(0x200, insert(CUSTOMERS, ["2", "a", "b", "c"]), xid=8, committed_at=AT + 5000),
    ]

    found = records(changes(messages), lambda each: DebeziumEncoder(each.columns))

    sources = [json.loads(each["value"])["source"] for each in found]
    assert [(one["lsn"], one["txId"]) for one in sources] == [(0x100, 7), (0x200, 8)]
    assert sources[1]["ts_ms"] - sources[0]["ts_ms"] == 5
    assert found[1]["id"] == f"shop:{Lsn(0x200)}:0"


def spelled(kind, texts, decimals=Decimals.PRECISE):
    """A column as JSON, parsed."""
    oid, modifier, _ = DEBEZIUM[kind]
    values = pa.array([None if text is None else text.encode() for text in texts], pa.binary())
    encoded = debezium_column(oid, modifier, values, decimals)
    assert encoded.unfit is None or not encoded.unfit.any()
    column = one_column(encoded.parts, len(texts)).to_pylist()
    return [None if each is None else json.loads(each) for each in column]


@pytest.mark.parametrize("kind", DEBEZIUM)
def test_every_value_of_a_type_is_what_debezium_makes_of_it(kind):
    @examples
    @given(st.lists(st.one_of(st.none(), DEBEZIUM[kind][2]), min_size=1, max_size=8))
    def holds(pairs):
        found = spelled(kind, [pair and pair[0] for pair in pairs])
        assert found == [pair and pair[1] for pair in pairs]

    holds()


@pytest.mark.parametrize(
    ("decimals", "wanted"),
    [
        ("precise", "MDk="),
        ("double", 12.345),
        ("string", "12.345"),
    ],
)
def test_numeric_is_written_as_the_option_says(decimals, wanted):
    assert spelled("numeric(12,3)", ["12.345"], Decimals(decimals)) == [wanted]


@pytest.mark.parametrize("decimals", ["double", "string"])
@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_numeric_that_is_no_number_is_a_string_of_postgres_spelling(decimals, text):
    (found,) = spelled("numeric", [text], Decimals(decimals))

    assert found == text


def test_numeric_that_is_no_number_has_no_precise_form_and_is_refused_by_name():
    prices = table(16700, "prices", {"id": "int4", "n": "numeric"}, key=["id"])

    found = of(prices, insert(prices, ["1", "NaN"]), insert(prices, ["2", "5"]))

    assert "no form" in found[0]["refused"]
    assert found[0]["value"]["after"] == {"id": 1, "n": "NaN"}  # penstock's own JSON, for people
    assert found[1]["refused"] is None


def test_money_is_a_decimal_of_two_digits():
    values = pa.array([b"$1,234.11", b"-$1,234.11", None], pa.binary())

    column = one_column(debezium_column(790, -1, values).parts, 3).to_pylist()

    assert column == [b'"AeIT"', b'"/h3t"', None]


def test_bits_are_bytes_from_the_lowest_on():
    values = pa.array(
        [b"000000110000001000000001", b"", None, b"00000", b"000000000101"], pa.binary()
    )

    column = one_column(debezium_column(1562, -1, values).parts, 5).to_pylist()

    assert column == [b'"AQID"', b'""', None, b'""', b'"BQ=="']


@pytest.mark.parametrize("type_oid", [1560, 1562])
def test_one_bit_is_a_truth_value(type_oid):
    values = pa.array([b"1", b"0", None], pa.binary())

    column = one_column(debezium_column(type_oid, 1, values).parts, 3).to_pylist()

    assert column == [b"true", b"false", None]


def test_numeric_without_a_scale_has_no_zeros_at_the_end_of_its_fraction():
    found = spelled("numeric", ["1.50", "100.00", "0.00", "100", "-2.0", None])

    assert found == [
        {"scale": 1, "value": "Dw=="},
        {"scale": 0, "value": "ZA=="},
        {"scale": 0, "value": "AA=="},
        {"scale": 0, "value": "ZA=="},
        {"scale": 0, "value": "/g=="},
        None,
    ]


def test_array_of_two_dimensions_stays_text():
    assert spelled("int4[]", ["{{1,2},{3,4}}", "{1}", "[0:1]={5,6}"]) == [
        "{{1,2},{3,4}}",
        [1],
        "[0:1]={5,6}",
    ]


@pytest.mark.parametrize("digits", [39, 4299, 4301, 131_072])
@pytest.mark.parametrize("sign", ["", "-"])
def test_numeric_may_have_as_many_digits_as_postgres_takes(digits, sign):
    found = spelled("numeric", [f"{sign}{'7' * digits}.25", "1", None])

    unscaled = int.from_bytes(base64.b64decode(found[0]["value"]), "big", signed=True)
    wanted = (7 * (10**digits - 1) // 9) * 100 + 25
    assert found[0]["scale"] == 2
    assert unscaled == (-wanted if sign else wanted)
    assert found[1:] == [{"scale": 0, "value": "AQ=="}, None]


@pytest.mark.parametrize("length", [62, 63, 64, 65, 66, 300_000 // 8])
def test_long_bit_string_is_base64_as_a_short_one_is(length):
    values = pa.array([b"1" * (8 * length), None, b"1", b"0" * 7 + b"1"], pa.binary())

    found = one_column(debezium_column(1562, -1, values).parts, 4).to_pylist()

    assert base64.b64decode(json.loads(found[0])) == b"\xff" * length
    assert found[1:] == [None, b'"AQ=="', b'"AQ=="']


def test_one_long_value_among_short_ones_takes_memory_for_itself_only():
    values = pa.array([b"1" * 300_000, *[b"1"] * 2000], pa.binary())

    tracemalloc.start()
    debezium_column(1562, -1, values)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert most < 10_000_000


def known(relation, *ids):
    """The same table, with a primary key that somebody knows."""
    columns = tuple(replace(column, id=number) for number, column in enumerate(relation.columns, 1))
    injected = Injected(relation.oid, primary_key=ids, in_documents=False)
    return replace(relation, columns=columns, injected=injected)


def test_key_with_replica_identity_full_is_the_primary_key_where_it_is_known():
    messages = [
        relation(FULL),
        *transaction(
            LSN,
            insert(FULL, ["1", "a"]),
            update(FULL, ["1", "b"], before=["1", "a"]),
            update(FULL, ["2", "b"], before=["1", "b"]),
            delete(FULL, before=["2", "b"]),
            truncate(FULL),
        ),
    ]
    pieces = [replace(each, relation=known(each.relation, 1)) for each in changes(messages)]

    found = DebeziumFormat().documents(pieces, ORIGIN).to_pylist()

    events = [json.loads(each["value"]) for each in found]
    assert [each["op"] for each in events] == ["c", "u", "d", "c", "d", "t"]
    keys = [each["record_key"] and json.loads(each["record_key"])["id"] for each in found]
    assert keys == [1, 1, 1, 2, 2, None]
    assert events[1]["before"] == {"id": 1, "email": "a"}
    assert events[2]["before"] == {"id": 1, "email": "b"}  # the whole old row, as with every delete
    assert events[4]["before"] == {"id": 2, "email": "b"}
    assert [each["key"] for each in found[:2]] == ['{"id":1}'] * 2


def test_key_of_which_a_column_does_not_come_is_none():
    assert keyed(known(FULL, 1, 7)) == known(FULL, 1, 7)
    assert keyed(FULL) == FULL


@pytest.mark.parametrize(
    ("spelled_as", "wanted"),
    [
        ("numeric(12,3)", (1700, 4 + (12 << 16) + 3)),
        ("numeric", (1700, -1)),
        ("integer", (23, -1)),
        ("timestamp(3) without time zone", (1114, 3)),
        ("timestamp with time zone", (1184, -1)),
        ("bit varying(1)", (1562, 1)),
        ("integer[]", (1007, -1)),
        ("text", None),
        ("character varying(20)", None),
        ("shop.money", None),
    ],
)
def test_type_below_a_domain_is_known_by_its_spelling(spelled_as, wanted):
    assert spelled_type(spelled_as) == wanted


def test_value_of_a_domain_is_written_as_the_type_below_it():
    column = {"type_kind": "d", "not_null": False}
    shape = TableShape(
        id=16500,
        schema_name="public",
        name="customers",
        columns=(
            ColumnShape(id=1, name="id", type="integer", type_id=23, type_kind="b", not_null=True),
            ColumnShape(id=2, name="price", type="price", type_id=50_001, **column),
        ),
        types=(
            TypeShape(
                id=50_000,
                schema_name="public",
                name="cents",
                kind="domain",
                base="numeric(9,2)",
                parts=(1700,),
            ),
            TypeShape(
                id=50_001,
                schema_name="public",
                name="price",
                kind="domain",
                base="cents",
                parts=(50_000,),
            ),
        ),
    )
    described = replace(
        FULL, columns=(FULL.columns[0], replace(FULL.columns[1], name="price", type_oid=50_001))
    )
    rule = Injection(PrimaryKeyOptions(), shape)
    pieces = changes([relation(described), *transaction(LSN, insert(described, ["1", "12.50"]))])

    batch = DebeziumFormat().documents([rule.apply(each) for each in pieces], ORIGIN)

    (value,) = batch.column("value").to_pylist()
    assert json.loads(value)["after"] == {"id": 1, "price": "BOI="}
