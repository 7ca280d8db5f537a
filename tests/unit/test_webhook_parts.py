"""Parts of the webhook sink that need no receiver: addresses, signatures, bodies, places, options."""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import json
import socket
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fix_webhooks import change
from penstock.errors import BadValue
from penstock.sinks.webhook.addresses import AddressRefused, AddressRule
from penstock.sinks.webhook.client import Meaning, _meaning, _seconds_of
from penstock.sinks.webhook.delivery import _is_alone
from penstock.sinks.webhook.doc import Doc
from penstock.sinks.webhook.formats import Format, message_of
from penstock.sinks.webhook.options import WebhookOptions, check_url
from penstock.sinks.webhook.receivers import problem_with
from penstock.sinks.webhook.rows import Place
from penstock.sinks.webhook.signature import key_of, new_secret, signatures
from penstock.sinks.webhook.track import Track
from penstock.sinks.webhook.typed import shape_by
from penstock.table import TableName


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1",
        "100.100.100.200", "169.254.169.254", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1",
        "255.255.255.255", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254",
        "fec0::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254",
        "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::808:808",
        "2002:7f00:1::", "2002:a9fe:a9fe::1", "168.63.129.16", "::ffff:168.63.129.16",
        "64:ff9b::a83f:8110", "192.0.0.8", "192.0.0.192", "192.88.99.1", "3fff::1", "2001:db8::1",
        "2001:3::1", "2001:20::1", "5f00::1", "2a00::5efe:7f00:1", "2a00::200:5efe:7f00:1",
        "2a00:1:2:3:0:5efe:169.254.169.254", "2a00::200:5efe:10.0.0.1", "2a00::5efe:168.63.129.16",
        "not an address", "",
    ],
)  # fmt: skip
def test_address_that_only_this_machine_can_reach_is_refused(address: str) -> None:
    assert not AddressRule().permits(address)


@pytest.mark.parametrize(
    "address",
    [
        "93.184.216.34", "2606:2800:220:1::1", "::ffff:8.8.8.8", "64:ff9b::808:808",
        "2a00::200:5efe:8.8.8.8", "2a00::100:5efe:7f00:1",
    ],
)  # fmt: skip
def test_public_address_is_permitted(address: str) -> None:
    assert AddressRule().permits(address)


def test_allowed_network_is_permitted_in_every_spelling_and_no_other() -> None:
    rule = WebhookOptions.model_validate({"allow": ["10.1.0.0/16", "::1"]}).addresses
    assert rule.permits("10.1.2.3")
    assert rule.permits("::ffff:10.1.2.3")
    assert rule.permits("::1")
    assert not rule.permits("10.2.0.1")
    assert not rule.permits("127.0.0.1")


def test_socket_is_made_for_permitted_addresses_alone() -> None:
    info = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 80))
    with pytest.raises(AddressRefused):
        AddressRule().make_socket(info)
    rule = WebhookOptions.model_validate({"allow": ["127.0.0.1"]}).addresses
    rule.make_socket(info).close()


def test_receiver_is_refused_only_where_none_of_its_addresses_is_permitted(monkeypatch) -> None:
    """The client asks again, of each address, and connects to those that are."""

    def resolve(host, port, **options):
        found = {"both.example": ("::1", "127.0.0.1"), "other.example": ("::1", "10.0.0.1")}
        return [(0, 0, 0, "", (each, port)) for each in found[host]]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    rule = WebhookOptions.model_validate({"allow": ["127.0.0.1"]}).addresses
    assert problem_with("http://both.example:9000/", rule) is None
    problem = problem_with("http://other.example:9000/", rule)
    assert problem is not None
    assert "allow: [::1]" in problem.do


def test_signature_is_the_one_of_standard_webhooks() -> None:
    # The example of the specification's libraries.
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    found = signatures([key_of(secret)], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_several_keys_sign_side_by_side() -> None:
    keys = [key_of(new_secret()), key_of(new_secret())]
    found = signatures(keys, "a", 1, b"x").split(" ")
    wanted = [base64.b64encode(hmac.digest(key, b"a.1.x", hashlib.sha256)).decode() for key in keys]
    assert found == [f"v1,{each}" for each in wanted]


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_c2hvcnQ=", "not base64 !", "whsec_" + "A" * 200]
)
def test_secret_that_is_none_is_refused_without_repeating_it(secret: str) -> None:
    with pytest.raises(BadValue) as raised:
        key_of(secret)
    held = secret.removeprefix("whsec_")
    assert not held or held not in str(raised.value)


def _doc(*args, **options) -> Doc:
    row = change(*args, **options)
    at = row["committed_at"]
    return Doc(**{**row, "committed_at": None if at is None else int(at.timestamp() * 1_000_000)})


def test_penstock_format_is_the_document_itself() -> None:
    doc = _doc(1, 7)
    message = message_of([doc], Format.PENSTOCK, "/o")
    assert message.body == doc.value.encode()
    assert message.headers["idempotency-key"] == message.headers["webhook-id"] == doc.id
    assert message.headers["content-type"] == "application/json"


def test_batch_is_an_array_also_of_one_and_its_id_says_which_documents_it_has() -> None:
    docs = [_doc(1, 7), _doc(2, 8), _doc(3, 9)]
    one = message_of(docs[:1], Format.PENSTOCK, "/o", is_batch=True)
    assert json.loads(one.body) == [json.loads(docs[0].value)]
    two, other = (
        message_of([docs[0], each], Format.PENSTOCK, "/o", is_batch=True) for each in docs[1:]
    )
    assert [each["id"] for each in json.loads(two.body)] == [docs[0].id, docs[1].id]
    assert len({one.id, two.id, other.id}) == 3
    assert message_of(docs[:2], Format.PENSTOCK, "/o", is_batch=True).id == two.id


def test_cloud_event_has_the_required_attributes_and_the_document_as_it_is() -> None:
    doc = _doc(1, 7)._replace(value='{"n":12345678901234567890.10}')
    message = message_of([doc], Format.CLOUDEVENTS, "/penstock/shop/shop")
    event = json.loads(message.body)
    assert event["specversion"] == "1.0"
    assert event["id"] == doc.id
    assert event["source"] == "/penstock/shop/shop"
    assert event["type"] == "penstock.insert"
    assert event["subject"] == "public.orders"
    assert event["time"] == "2026-01-01T00:00:00Z"
    assert b"12345678901234567890.10" in message.body
    assert message.headers["content-type"] == "application/cloudevents+json"
    batch = message_of([doc, doc], Format.CLOUDEVENTS, "/o", is_batch=True)
    assert batch.headers["content-type"] == "application/cloudevents-batch+json"
    assert len(json.loads(batch.body)) == 2


def test_pgstream_event_has_its_fields_and_exact_digits() -> None:
    doc = _doc(1, 7, "update", after={"id": 7, "n": 9007199254740993}, before={"id": 6})
    message = message_of([doc], Format.PGSTREAM, "/o")
    event = json.loads(message.body)["Data"]
    assert (event["action"], event["schema"], event["table"]) == ("U", "public", "orders")
    assert event["lsn"] == "0/1000" == message.headers["x-pgstream-lsn"]
    assert event["columns"] == [
        {"id": "", "name": "id", "type": "integer", "value": 7},
        {"id": "", "name": "n", "type": "integer", "value": 9007199254740993},
    ]
    assert event["identity"] == [{"id": "", "name": "id", "type": "integer", "value": 6}]
    assert event["metadata"] == {
        "schema_id": None,
        "table_pgstream_id": "",
        "id_col_pgstream_id": None,
        "version_col_pgstream_id": "",
    }
    assert event["timestamp"] == "2026-01-01 00:00:00.000000+00"
    exact = doc._replace(value=doc.value.replace("9007199254740993", "0.1000000000000000000001"))
    assert b"0.1000000000000000000001" in message_of([exact], Format.PGSTREAM, "/o").body


def test_pgstream_event_has_values_as_wal2json_writes_them_and_names_of_types() -> None:
    types = {"j": 3802, "at": 1184, "day": 1082, "raw": 17, "ok": 16, "mood": 99999, "e": 99998}
    after = {
        "j": {"a": [1.10, None]},
        "at": "2026-01-01T00:00:00.5+00:00",
        "day": "2026-01-01",
        "raw": "AQI=",
        "ok": True,
        "mood": "sad",
        "e": None,
    }
    doc = _doc(1, 7, "update", after=after, types=types)
    listed = [[*each, "mood"] if each[0] == "mood" else each for each in json.loads(doc.types)]
    event = json.loads(
        message_of([doc._replace(types=json.dumps(listed))], Format.PGSTREAM, "/o").body
    )["Data"]
    shown = {each["name"]: (each["type"], each["value"]) for each in event["columns"]}
    assert shown == {
        "j": ("jsonb", '{"a":[1.1,null]}'),
        "at": ("timestamp with time zone", "2026-01-01 00:00:00.5+00:00"),
        "day": ("date", "2026-01-01"),
        "raw": ("bytea", "AQI="),
        "ok": ("boolean", True),
        "mood": ("mood", "sad"),
        "e": ("", None),
    }
    unknown = json.loads(message_of([doc._replace(types=None)], Format.PGSTREAM, "/o").body)
    assert {each["type"] for each in unknown["Data"]["columns"]} == {""}


def test_pgstream_event_has_the_ids_that_are_injected() -> None:
    doc = _doc(1, 7, "update", before={"id": 6})
    injected = (
        '{"table_id":"16400","column_ids":{"id":"16400-1","n":"16400-2"},"identity":["16400-1"]}'
    )
    doc = doc._replace(value=f'{doc.value[:-1]},"metadata":{injected}}}')
    event = json.loads(message_of([doc], Format.PGSTREAM, "/o").body)["Data"]
    assert [each["id"] for each in event["columns"]] == ["16400-1", "16400-2"]
    assert [each["id"] for each in event["identity"]] == ["16400-1"]
    assert event["metadata"]["table_pgstream_id"] == "16400"
    assert event["metadata"]["id_col_pgstream_id"] == ["16400-1"]


def test_copied_row_has_no_position_for_pgstream() -> None:
    message = message_of([_doc(1, 7, "read")], Format.PGSTREAM, "/o")
    assert json.loads(message.body)["Data"]["lsn"] == "0/0"
    assert "x-pgstream-lsn" not in message.headers


@pytest.mark.parametrize(
    ("op", "action"), [("insert", "I"), ("delete", "D"), ("truncate", "T"), ("schema", "M")]
)
def test_pgstream_actions(op: str, action: str) -> None:
    event = json.loads(message_of([_doc(1, 7, op)], Format.PGSTREAM, "/o").body)["Data"]
    assert event["action"] == action


def test_id_with_any_name_in_it_fits_into_a_header() -> None:
    doc = _doc(1, 7)._replace(id="shop:0/1:schema:1:odd\r\nname ü")
    message = message_of([doc], Format.PENSTOCK, "/o")
    assert message.id.isascii()
    assert message.id.isprintable()
    assert " " not in message.id


def test_idempotency_key_is_the_id_of_the_document_where_a_header_can_hold_it() -> None:
    schema = _doc(1, 7)._replace(id="shop:0/1:schema:1:public.orders")
    message = message_of([schema], Format.PENSTOCK, "/o")
    assert message.headers["idempotency-key"] == schema.id
    for odd in ("ü", "a\r\nb", "ends with a blank "):
        message = message_of([schema._replace(id=f"shop:{odd}")], Format.PENSTOCK, "/o")
        assert message.headers["idempotency-key"] == message.id
    batch = message_of([schema, _doc(2, 8)], Format.PENSTOCK, "/o", is_batch=True)
    assert batch.headers["idempotency-key"] == batch.id


def test_id_has_no_full_stop_since_that_ends_it_in_what_is_signed() -> None:
    schema = _doc(1, 7)._replace(id="shop:0/1:schema:1:public.orders")
    other = schema._replace(id="shop:0/1:schema:1:public%2Eorders")
    message = message_of([schema], Format.PENSTOCK, "/o")
    assert message.headers["webhook-id"] == message.id == "shop:0/1:schema:1:public%2Eorders"
    assert message_of([other], Format.PENSTOCK, "/o").id != message.id
    batch = message_of([schema, _doc(2, 8)], Format.PENSTOCK, "/o", is_batch=True)
    assert "." not in batch.id


@given(st.lists(st.booleans(), max_size=30), st.randoms())
def test_place_is_the_first_document_that_is_not_settled(is_settled, random) -> None:
    track = Track(Place(1))
    tickets = [track.begin(Place(1, number + 1)) for number in range(len(is_settled))]
    settled = [ticket for ticket, is_it in zip(tickets, is_settled, strict=True) if is_it]
    random.shuffle(settled)
    for ticket in settled:
        track.settle(ticket)
    prefix = is_settled.index(False) if False in is_settled else len(is_settled)
    assert track.place == Place(1, prefix)
    assert len(track) == len(is_settled) - prefix


@pytest.mark.parametrize(
    "url",
    [
        "", "ftp://a/b", "https://", "//a/b", "https://user:secret@a/b", "https://a/b#c",
        "https://a b/", "https://a/\nb", "https://a:99999/", 7, None, "https://a/" + "x" * 3000,
    ],
)  # fmt: skip
def test_url_that_cannot_be_asked_is_refused_without_repeating_it(url) -> None:
    with pytest.raises(BadValue) as raised:
        check_url(url)
    assert "secret@" not in str(raised.value)


def test_options_of_the_file() -> None:
    options = WebhookOptions.model_validate(
        {"urls": ["https://a/b", {"url": "https://c/d", "tables": ["t"], "batch_size": 10}],
         "give_up_after": "3d"}
    )  # fmt: skip
    assert [each.url for each in options.urls] == ["https://a/b", "https://c/d"]
    assert options.give_up_after == 3 * 86400
    single = WebhookOptions.model_validate({"urls": "https://a/b", "give_up_after": "90min"})
    assert len(single.urls) == 1
    assert single.give_up_after == 5400


@pytest.mark.parametrize(
    "given",
    [
        {"urls": [{"url": "https://a/b", "format": "pgstream", "batch_size": 2}]},
        {"urls": [{"url": "https://a/b", "secret": "short"}]},
        {"urls": [{"url": "https://a/b", "secret": []}]},
        {"urls": [{"url": "https://a/b", "secret": [new_secret() for _ in range(3)]}]},
        {"urls": [{"url": "https://a/b", "id": "a/b"}]},
        {"urls": [{"url": "https://a/b", "id": "sub_1"}]},
        {"urls": [{"url": "https://a/b", "id": "a"}, {"url": "https://c/d", "id": "a"}]},
        {"urls": [{"url": "https://a/b", "filter": "total > 100"}]},
        {"urls": [{"url": "https://a/b", "tables": ["t"], "filter": "total >"}]},
        {"urls": [{"url": "https://a/b", "tables": ["t"], "filter": 5}]},
        {"urls": [{"url": "https://a/b", "operations": ["upsert"]}]},
        {"allow": ["nonsense"]},
        {"give_up_after": "soon"},
        {"concurrency": 0},
        {"max_body_bytes": 999},
        {"max_body_bytes": "much"},
        {"wrong": 1},
    ],
)
def test_options_that_cannot_be_are_refused(given) -> None:
    with pytest.raises(ValidationError):
        WebhookOptions.model_validate(given)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("7200", 7200.0), ("0000000000120", 120.0), ("00", 0.0), (" 5 ", 5.0), ("999999999999", 86400.0), ("soon", None), ("-1", None), (None, None)],
)  # fmt: skip
def test_retry_after_is_honoured_up_to_a_day(given: str | None, seconds: float | None) -> None:
    assert _seconds_of(given) == seconds


def test_upgrade_that_nobody_asked_for_is_no_refusal_of_a_document() -> None:
    assert _meaning(101, None).meaning is Meaning.LATER
    assert _meaning(400, None).meaning is Meaning.REFUSED


def test_retry_after_may_be_a_date() -> None:
    at = time.time() + 7200
    found = _seconds_of(email.utils.formatdate(at, usegmt=True))
    assert found is not None
    assert 7190 < found <= 7200


def test_retry_after_may_be_a_date_as_c_writes_it(monkeypatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        found = _seconds_of(time.asctime(time.gmtime(time.time() + 7200)))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found is not None
    assert 7190 < found <= 7200


@pytest.mark.parametrize(
    ("key", "before", "is_alone"),
    [
        ({"id": 1}, None, False),
        ({"id": 1}, {"id": 1}, False),
        ({"id": 1}, {"id": 2}, True),
        ({"id": 1}, {"n": 2}, False),
        ({"id": ',"after":{"key":{"id":1},"before":null,'}, {"id": "x"}, True),
        ({"id": {"key": {"id": 1}, "before": None, "after": 1}}, {"id": {}}, True),
        ({"id": {"key": {"id": 1}, "before": None, "after": 1}}, None, False),
        ({"id": 1.10}, {"id": 1.1}, False),
    ],
)
def test_update_is_alone_when_it_changes_a_key_whatever_a_value_says(
    key, before, is_alone: bool
) -> None:
    text = json.dumps(key, separators=(",", ":"))
    for after in ({**key, "n": 1}, {**key, "j": {"key": key, "before": None, "after": 1}}):
        doc = _doc(2, 1, "update", before=before, after=after)
        value = doc.value.replace('"key":{"id":1}', f'"key":{text}', 1)
        doc = doc._replace(key=text, value=value)
        assert json.loads(doc.value)["key"] == key
        assert _is_alone(doc) is is_alone


def test_name_of_a_table_that_looks_like_the_head_of_a_document_changes_nothing() -> None:
    row = _doc(2, 1, "update", before={"id": 2}, table='","key":{"id":1},"before":null,"a":"')
    assert _is_alone(row)


def test_types_may_have_names_of_their_own_beside_them() -> None:
    shape = shape_by('[["a",23,-1],["mood",99999,-1,"mood"]]', TableName("public", "t"))
    assert [each.name for each in shape.columns] == ["a", "mood"]
