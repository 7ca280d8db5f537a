"""Avro as another reader of it, fastavro, reads it; schemas that follow what tables declare."""

from __future__ import annotations

import base64
import io
import json
import struct

import fastavro
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fix_envelopes import plain_schema, read_avro, records
from fix_pgvalues import DEBEZIUM, INT64, NUMERIC_12_3, column, examples
from penstock.changes.avro import AvroEncoder, AvroSchemas, avro_type, varints
from penstock.changes.pgoutput import Column, Relation
from penstock.errors import RecordSchemaRefused
from penstock.sinks.kafka.registry import reread
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

ORDERS = table(16400, "orders", {"id": "int4", "note": "text"}, key=["id"])


def described(kind, name="v"):
    key = Column("id", 23, -1, True)
    return Relation(16400, TableName("public", "t"), "d", (key, column(name, kind)))


def of(shape, *rows):
    """Key and value of each record, read by the plain schema; or None and why it was refused."""
    schemas = AvroSchemas.of(shape, "shop", shape.table)
    pieces = changes([relation(shape), *transaction(0x1000, *rows)])
    found = records(pieces, lambda each: AvroEncoder(each.columns, 3, 0x01020304))
    value, key = plain_schema(schemas.value), schemas.key and plain_schema(schemas.key)
    read = []
    for each in found:
        if each["refused"]:
            read.append((None, each["refused"]))
            continue
        assert each["value"][:5] == b"\x00\x01\x02\x03\x04"
        raw_key = each["record_key"]
        assert raw_key is None or raw_key[:5] == b"\x00\x00\x00\x00\x03"
        read.append((raw_key and read_avro(raw_key, key), read_avro(each["value"], value)))
    return read


@examples
@given(st.lists(INT64, min_size=1, max_size=20))
def test_varints_are_what_avro_reads(numbers):
    schema = fastavro.parse_schema("long")

    found = [
        fastavro.schemaless_reader(io.BytesIO(raw), schema)
        for raw in varints(np.array(numbers, np.int64)).to_pylist()
    ]

    assert found == numbers


def wanted_of(kind, text, spelled):
    """What Debezium's JSON has, as Avro has it."""
    if text is None:
        return None
    if kind.startswith("numeric") and "(" not in kind:
        return text
    if kind.endswith("]"):
        return spelled
    if kind == "numeric(12,3)" or kind == "bytea":
        return base64.b64decode(spelled)
    if kind == "float8" and isinstance(spelled, str):
        return float(spelled)
    if kind == "bit(1)":
        return text
    return spelled


AVRO_KINDS = [kind for kind in DEBEZIUM if kind != "numeric[]"]


@pytest.mark.parametrize("kind", AVRO_KINDS)
def test_every_value_of_a_type_is_read_as_it_was(kind):
    shape = described(kind)

    @examples
    @given(st.lists(st.one_of(st.none(), DEBEZIUM[kind][2]), min_size=1, max_size=8))
    def holds(pairs):
        rows = [insert(shape, [str(n), pair and pair[0]]) for n, pair in enumerate(pairs)]
        found = [value["after"]["v"] for _, value in of(shape, *rows)]
        wanted = [wanted_of(kind, *(pair or (None, None))) for pair in pairs]
        if kind == "float8":
            pack = [None if each is None else struct.pack("<d", each) for each in found]
            assert pack == [None if each is None else struct.pack("<d", each) for each in wanted]
        else:
            assert found == wanted

    holds()


def test_array_of_numerics_keeps_their_digits():
    shape = described("numeric[]")

    (found,) = of(shape, insert(shape, ["1", "{1.50,NULL,NaN}"]))

    assert found[1]["after"]["v"] == ["1.50", None, "NaN"]


def test_records_of_every_operation_are_read_with_their_keys():
    found = of(
        ORDERS,
        insert(ORDERS, ["1", "a"]),
        update(ORDERS, ["1", None]),
        update(ORDERS, ["2", "b"], key=["1"]),
        delete(ORDERS, key=["2"]),
        truncate(ORDERS),
    )

    shown = [(key, value["op"], value["before"], value["after"]) for key, value in found]
    assert shown == [
        ({"id": 1}, "c", None, {"id": 1, "note": "a"}),
        ({"id": 1}, "u", None, {"id": 1, "note": None}),
        ({"id": 1}, "d", {"id": 1, "note": None}, None),
        ({"id": 2}, "c", None, {"id": 2, "note": "b"}),
        ({"id": 2}, "d", {"id": 2, "note": None}, None),
        (None, "t", None, None),
    ]
    source = found[0][1]["source"]
    assert source["sequence"] == '["4096","0"]'
    assert (source["lsn"], source["txId"], source["db"], source["snapshot"]) == (
        0x1000,
        1,
        "shopdb",
        "false",
    )


def test_values_of_logical_types_are_what_readers_make_of_them():
    shape = Relation(
        16400,
        TableName("public", "t"),
        "d",
        (Column("id", 23, -1, True), Column("n", 1700, NUMERIC_12_3, False), column("d", "date")),
    )
    schema = fastavro.parse_schema(json.loads(AvroSchemas.of(shape, "shop", shape.table).value))
    pieces = changes(
        [relation(shape), *transaction(0x1000, insert(shape, ["1", "-12.345", "2024-02-29"]))]
    )

    (found,) = records(pieces, lambda each: AvroEncoder(each.columns, 1, 2))

    after = read_avro(found["value"], schema)["after"]
    assert (str(after["n"]), str(after["d"])) == ("-12.345", "2024-02-29")


@pytest.mark.parametrize(
    ("kind", "text"),
    [("numeric(12,3)", "NaN"), ("int4[]", "{{1},{2}}"), ("timestamp", "294276-12-31 00:00:00")],
)
def test_value_that_has_no_form_is_refused_and_the_others_are_not(kind, text):
    shape = described(kind)

    refused, taken = of(shape, insert(shape, ["1", text]), insert(shape, ["2", None]))

    assert refused[0] is None
    assert "no form" in refused[1]
    assert taken[1]["after"] == {"id": 2, "v": None}


@pytest.mark.parametrize(
    ("type_oid", "wanted"),
    [
        (25, "__debezium_unavailable_value"),
        (1009, ["__debezium_unavailable_value"]),  # text[]
        (1001, [b"__debezium_unavailable_value"]),  # bytea[]
        (1005, list(b"__debezium_unavailable_value")),  # int2[]
        (1007, list(b"__debezium_unavailable_value")),  # int4[]
        (1016, list(b"__debezium_unavailable_value")),  # int8[]
        (1182, list(b"__debezium_unavailable_value")),  # date[]
        # Java's UUID.nameUUIDFromBytes of it.
        (2951, ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]),  # uuid[]
    ],
)
def test_toasted_value_that_was_not_sent_is_the_placeholder_of_its_type(type_oid, wanted):
    columns = (Column("id", 23, -1, True), Column("v", type_oid, -1, False))
    shape = Relation(16400, TableName("public", "t"), "d", columns)

    (found,) = of(shape, update(shape, ["1", UNCHANGED]))

    assert found[1]["after"]["v"] == wanted


def test_toasted_value_whose_type_has_no_placeholder_is_refused():
    columns = (Column("id", 23, -1, True), Column("v", 1022, -1, False))  # float8[]
    shape = Relation(16400, TableName("public", "t"), "d", columns)

    (found,) = of(shape, update(shape, ["1", UNCHANGED]))

    assert found[0] is None
    assert "no form" in found[1]


def test_column_is_nullable_and_null_by_default_whatever_it_is():
    schema = json.loads(AvroSchemas.of(ORDERS, "shop", ORDERS.table).value)

    row = schema["fields"][0]["type"][1]
    assert schema["namespace"] == "shop.public.orders"
    assert all(field["type"][0] == "null" and field["default"] is None for field in row["fields"])


def test_names_that_avro_does_not_take_have_underscores_and_two_alike_are_refused():
    odd = table(1, TableName("public", "9 lives"), {"a b": "int4", "é": "int4"}, key=["a b"])
    schemas = AvroSchemas.of(odd, "shop", odd.table)
    fastavro.parse_schema(json.loads(schemas.value))
    assert json.loads(schemas.key)["fields"][0]["name"] == "a_b"

    same = table(1, "t", {"a b": "int4", "a-b": "int4"}, key=["a b"])
    with pytest.raises(RecordSchemaRefused, match="a_b"):
        AvroSchemas.of(same, "shop", same.table)


def test_text_that_is_no_utf8_is_refused():
    assert avro_type(column("v", "text")) == "string"

    refused, _ = of(ORDERS, insert(ORDERS, ["1", b"\xff"]), insert(ORDERS, ["2", "fine"]))

    assert refused[0] is None


def test_a_column_of_nothing_but_nulls_has_no_bytes_but_its_branch():
    found = of(ORDERS, insert(ORDERS, ["1", None]), insert(ORDERS, ["2", None]))

    assert [value["after"]["note"] for _, value in found] == [None, None]


def numeric(precision, scale):
    return (1700, 4 + (precision << 16) + scale)


@pytest.mark.parametrize(
    ("before", "after", "is_misread"),
    [
        (numeric(12, 3), numeric(14, 3), False),
        (numeric(12, 3), numeric(12, 4), True),
        ((1114, -1), (1114, 3), True),
        ((1082, -1), (23, -1), True),
        ((23, -1), (20, -1), False),
        ((2950, -1), (25, -1), False),
        ((1009, -1), (1007, -1), False),  # the registry sees that itself
    ],
)
def test_change_that_only_the_meaning_shows_is_found(before, after, is_misread):
    def schema(kind):
        columns = (Column("id", 23, -1, True), Column("v", *kind, False))
        shape = Relation(1, TableName("public", "t"), "d", columns)
        return AvroSchemas.of(shape, "shop", shape.table).value

    assert bool(reread(schema(before), schema(after))) is is_misread
    assert reread(schema(before), schema(before)) is None


@pytest.mark.parametrize(
    "foreign",
    [
        '"string"',
        '["null","string"]',
        '{"type":"enum","name":"Envelope","symbols":["a"]}',
        '{"type":"record","name":"Envelope","fields":[]}',
        '{"type":"record","name":"Envelope","fields":[{"name":"before","type":"string"}]}',
        'syntax = "proto3";',
    ],
)
def test_schema_that_somebody_else_registered_is_said_to_be_of_another_kind(foreign):
    ours = AvroSchemas.of(ORDERS, "shop", ORDERS.table).value

    assert "another kind" in reread(foreign, ours)
