"""What a NATS sink does beside the contract: logins, limits of a real server, one that goes away, what comes again."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor

import nats
import nkeys
import pyarrow as pa
import pytest
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType
from pydantic import ValidationError

from fix_nats import NatsServer
from penstock.errors import (
    DestinationRefuses,
    SecondInstance,
    SinkError,
    SinkLoginRefused,
    SinkPrivilegeMissing,
)
from penstock.sink import DOCUMENTS, DocumentsRefused, SinkPlace
from penstock.sinks.documents.patterns import Pattern
from penstock.sinks.nats.kind import NatsKind
from penstock.sinks.nats.options import NatsOptions
from penstock.sinks.nats.stream import covers, subject_filter


def documents(*rows, table="orders"):
    made = []
    for number, (key, note) in enumerate(rows):
        place = f"shop:0/1000:{table}:{key}:{number}"
        made.append(
            {
                "id": place,
                "key": f'{{"id":{key}}}',
                "value": json.dumps({"id": place, "note": note}),
                "schema": "public",
                "table": table,
                "op": "insert",
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
def sink_of(nats_server, name, tmp_path):
    made = []

    def sink_of(*, sources=("shop",), by=name, **options):
        given = {"url": nats_server.url, "stream": name, "subject": f"{name}.{{schema}}.{{table}}"}
        options = NatsOptions(**{**given, **options})
        place = SinkPlace(by, options, "shop", "shop", sources, tmp_path)
        made.append(NatsKind().sink(place))
        return made[-1]

    yield sink_of
    for sink in made:
        sink.close()


@pytest.fixture
def server_with():
    """Starts servers with settings of a test's own."""
    made = []

    def server_with(settings):
        made.append(NatsServer(settings))
        made[-1].start()
        return made[-1]

    yield server_with
    for server in made:
        server.remove()


def notes(server, stream):
    return [one["note"] for one in server.documents(stream)]


def test_message_says_what_it_is_by_subject_and_headers(nats_server, name, sink_of):
    sink = sink_of()
    sink.open()

    sink.deliver(iter((documents((7, "a"), table="Odd.name"),)), None)

    [found] = nats_server.messages(name)
    assert found.subject == f"{name}.public.Odd-2ename"
    assert found.headers == {
        "Nats-Msg-Id": "shop:0/1000:Odd.name:7:0",
        "op": "insert",
        "commit_lsn": "0/1000",
        "source": "shop",
        "sink": f"shop.{name}",
        "content-type": "application/json",
    }


def test_many_messages_arrive_in_order_through_a_small_window(nats_server, name, sink_of):
    sink = sink_of(window=7)
    sink.open()

    sink.deliver(iter((documents(*((key, key) for key in range(3000))),)), None)

    assert notes(nats_server, name) == list(range(3000))


def test_what_comes_again_is_dropped_by_the_server(nats_server, name, sink_of):
    sink = sink_of()
    sink.open()
    batch = documents((1, "a"), (2, "b"))

    sink.deliver(iter((batch,)), None)
    sink.open()
    sink.deliver(iter((batch,)), None)

    assert notes(nats_server, name) == ["a", "b"]


def test_ids_that_differ_in_what_a_header_cannot_hold_are_not_taken_for_duplicates(
    nats_server, name, sink_of
):
    tables = ["x", "x ", "x\n", "x%0a", "x\u00a0", "x%20"]
    batch = documents(*((number, table) for number, table in enumerate(tables)))
    ids = pa.array([f"shop:0/1000:0:schema:0:public.{table}" for table in tables])
    sink = sink_of()
    sink.open()

    sink.deliver(iter((batch.set_column(0, "id", ids),)), None)

    assert notes(nats_server, name) == tables


def test_documents_that_another_sink_has_put_into_the_stream_are_not_taken_for_delivered(
    nats_server, name, sink_of
):
    """JetStream drops them as duplicates, whatever their subject: ids are the same at all sinks of a source."""
    other = sink_of(subject=f"{name}.other.{{table}}.{{schema}}", by="other")
    sink = sink_of(subject=f"{name}.{{schema}}.{{table}}.own")
    widen(nats_server, name, f"{name}.>")
    batch = documents((1, "a"), (2, "b"))
    other.open()
    other.deliver(iter((batch,)), None)

    for _ in range(2):  # a restart does not hide it
        sink.open()
        with pytest.raises(DestinationRefuses, match="sink other of pipeline shop"):
            sink.deliver(iter((batch,)), None)
    sink.deliver(iter((documents((3, "c"), table="more"),)), None)

    assert notes(nats_server, name) == ["a", "b", "c"]


def test_who_may_not_read_what_was_dropped_as_a_duplicate_is_told_the_right(
    server_with, name, sink_of
):
    server = server_with(
        'authorization { users: [ { user: "p", password: "s", permissions: {'
        f' publish: ["$JS.API.STREAM.INFO.>", "$JS.API.STREAM.CREATE.>", "_PENSTOCK.>", "{name}.>"],'
        ' subscribe: ["_INBOX.>", "_PENSTOCK.>"] } } ] }'
    )
    sink = sink_of(url=server.url, user="p", password="s", timeout=2.0)
    sink.open()
    batch = documents((1, "a"))
    sink.deliver(iter((batch,)), None)

    with pytest.raises(SinkPrivilegeMissing, match=rf"STREAM\.MSG\.GET\.{name}"):
        sink.deliver(iter((batch,)), None)


@pytest.mark.parametrize(
    "denied", ["{name}.public.orders", "$JS.API.STREAM.INFO.{name}", "$JS.API.STREAM.CREATE.{name}"]
)
def test_user_who_may_not_publish_is_told_so_and_does_not_wait_for_ever(
    server_with, name, sink_of, denied
):
    subject = denied.format(name=name)
    server = server_with(
        'authorization { users: [ { user: "p", password: "s", permissions: {'
        f' publish: {{ allow: ">", deny: "{subject}" }} }} }} ] }}'
    )
    sink = sink_of(url=server.url, user="p", password="s", timeout=2.0)

    def begun():
        sink.open()
        sink.deliver(iter((documents((1, "a")),)), None)

    with pytest.raises(SinkPrivilegeMissing) as refused:
        begun()

    assert subject.lower() in refused.value.what
    if "INFO" in denied:
        assert [each.code for each in sink.check()] == ["PEN-503"]


def test_user_who_may_not_subscribe_to_answers_is_told_so(server_with, sink_of):
    server = server_with(
        'authorization { users: [ { user: "p", password: "s", permissions: {'
        ' publish: ">", subscribe: { allow: ">", deny: "_INBOX.>" } } } ] }'
    )
    sink = sink_of(url=server.url, user="p", password="s", timeout=2.0)

    with pytest.raises(SinkPrivilegeMissing, match="_inbox"):
        sink.open()


def test_server_without_jetstream_is_said_to_be_one(sink_of):
    server = NatsServer()
    server._file.write_text(f'listen: "127.0.0.1:{server.port}"\n')
    with server.running():
        sink = sink_of(url=server.url, timeout=2.0)
        with pytest.raises(SinkError, match="JetStream"):
            sink.open()


def test_too_large_message_is_refused_and_the_others_can_go(server_with, name, sink_of):
    server = server_with("max_payload: 20000")
    sink = sink_of(url=server.url)
    sink.open()
    batch = documents((1, "small"), (2, "x" * 30_000), (3, "small, too"))

    with pytest.raises(DocumentsRefused) as refused:
        sink.deliver(iter((batch,)), None)
    sink.deliver(iter((batch.filter(pa.array([True, False, True])),)), None)

    assert list(refused.value.reasons) == ["shop:0/1000:orders:2:1"]
    assert "NATS takes 20000" in next(iter(refused.value.reasons.values()))
    assert notes(server, name) == ["small", "small, too"]


def test_nothing_is_published_of_a_batch_of_which_something_is_refused(server_with, name, sink_of):
    server = server_with("max_payload: 20000")
    sink = sink_of(url=server.url)
    sink.open()
    batches = [documents((1, "small")), documents((2, "x" * 30_000))]

    with pytest.raises(DocumentsRefused):
        sink.deliver(iter(batches), None)

    assert server.messages(name) == []


def test_full_stream_is_waited_for(nats_server, name, sink_of):
    sink = sink_of(max_messages=2)
    sink.open()

    with pytest.raises(SinkError, match="maximum messages exceeded") as failed:
        sink.deliver(iter((documents((1, "a"), (2, "b"), (3, "c")),)), None)

    assert failed.value.remedy.name == "TIME"


def test_strict_order_holds_where_a_full_stream_has_room_again_for_a_later_message(
    nats_server, name, sink_of
):
    batch = documents((1, "a"), (2, "x" * 5000), (3, "c"), (4, "d"))
    sink = sink_of(max_bytes=4000, order="strict")
    sink.open()

    with pytest.raises(SinkError, match="maximum bytes exceeded"):
        sink.deliver(iter((batch,)), None)
    assert notes(nats_server, name) == ["a"], "what follows waits for what was refused"

    raise_limit(nats_server, name)
    sink.open()
    sink.deliver(iter((batch,)), None)
    sink.deliver(iter((documents((5, "e"), table="more"),)), None)
    assert [note[0] for note in notes(nats_server, name)] == ["a", "x", "c", "d", "e"]


def test_strict_order_goes_on_where_a_stored_message_is_not_among_those_that_come_again(
    server_with, name, sink_of, monkeypatch
):
    """A table is refused after some of its messages were stored, as of a batch that is larger than what is looked at
    ahead: what is left is delivered without it."""
    monkeypatch.setattr("penstock.sinks.nats.sink._LOOKED_AHEAD_BYTES", 1)
    server = server_with("max_payload: 20000")
    sink = sink_of(url=server.url, order="strict")
    sink.open()
    first, other = documents((1, "a1"), table="a"), documents((1, "b1"), table="b")
    too_large, last = documents((2, "x" * 30_000), table="b"), documents((2, "a2"), table="a")

    with pytest.raises(DocumentsRefused):
        sink.deliver(iter((joined(first, other), joined(too_large, last))), None)
    sink.deliver(iter((first, last)), None)

    assert notes(server, name) == ["a1", "b1", "a2"]


def test_strict_order_goes_on_where_something_else_comes_between_attempts(
    nats_server, name, sink_of
):
    """A copy that has become whole, say, or parked documents."""
    batch = documents((1, "a"), (2, "b"), (3, "x" * 5000), (4, "d"))
    sink = sink_of(max_bytes=4000, order="strict")
    sink.open()
    with pytest.raises(SinkError, match="maximum bytes exceeded"):
        sink.deliver(iter((batch,)), None)
    raise_limit(nats_server, name)
    sink.open()

    sink.deliver(iter((documents((7, "copied"), table="more"),)), None)
    sink.deliver(iter((batch,)), None)

    assert [note[:6] for note in notes(nats_server, name)] == ["a", "b", "copied", "xxxxxx", "d"]


def test_strict_order_with_several_sources_is_refused(sink_of):
    sink = sink_of(order="strict", sources=("shop", "eu"))

    with pytest.raises(DestinationRefuses, match="2 sources publish to stream"):
        sink.open()
    assert [each.code for each in sink.check()] == ["PEN-517"]


def joined(*batches):
    return pa.RecordBatch.from_pylist(
        [row for each in batches for row in each.to_pylist()], DOCUMENTS
    )


def widen(server, stream, *subjects, **config):
    """Make the stream beforehand, as somebody else would."""

    async def make():
        client = await nats.connect(server.url)
        await client.jsm().add_stream(name=stream, subjects=list(subjects), **config)
        await client.close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(make())).result()


def raise_limit(server, stream):
    async def update():
        client = await nats.connect(server.url)
        manager = client.jsm()
        config = (await manager.stream_info(stream)).config
        await manager.update_stream(config.evolve(max_bytes=100_000))
        await client.close()

    # In a thread of its own: the thread of the tests may have a browser's loop.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(update())).result()


def test_strict_order_with_replicas_is_refused(sink_of):
    with pytest.raises(ValidationError, match="usual, where replicas is more than 1"):
        sink_of(order="strict", replicas=3)


def test_slow_link_is_no_server_that_does_not_answer(nats_server, name, sink_of, make_proxy):
    proxy = make_proxy(nats_server.port)
    sink = sink_of(url=f"nats://127.0.0.1:{proxy.port}", timeout=1.0, window=8)
    sink.open()
    proxy.bytes_per_second = 200_000

    sink.deliver(iter((documents(*[(n, "x" * 10_000) for n in range(60)]),)), None)

    assert len(notes(nats_server, name)) == 60


def test_server_that_goes_away_is_waited_for(own_nats, name, sink_of):
    sink = sink_of(url=own_nats.url, timeout=3.0)
    sink.open()
    sink.deliver(iter((documents((1, "before")),)), None)
    own_nats.kill()

    with pytest.raises(SinkError):
        sink.deliver(iter((documents((2, "while")),)), None)
    with pytest.raises(SinkError):
        sink.open()
    own_nats.start()
    sink.open()
    sink.deliver(iter((documents((2, "after")),)), None)

    assert notes(own_nats, name) == ["before", "after"]


def test_claim_ends_with_the_connection(sink_of):
    first, second = sink_of(), sink_of()
    first.open()
    with pytest.raises(SecondInstance):
        second.open()

    first.close()
    second.open()


def test_stream_that_takes_other_subjects_is_an_error_for_a_person(name, sink_of):
    first = sink_of()
    first.open()
    first.close()
    other = sink_of(subject="elsewhere.{table}")

    with pytest.raises(DestinationRefuses, match=r"wanted elsewhere\.\*"):
        other.open()
    [finding] = other.check()

    assert finding.code == "PEN-517"


def test_stream_that_no_server_there_can_make_is_an_error_for_a_person(sink_of):
    with pytest.raises(DestinationRefuses, match="making stream"):
        sink_of(replicas=3).open()


def test_stream_may_be_called_like_a_field_of_an_acknowledgement(nats_server, sink_of):
    sink = sink_of(stream="error", subject="called.{schema}.{table}")
    sink.open()

    sink.deliver(iter((documents((1, "a")),)), None)

    assert notes(nats_server, "error") == ["a"]


def test_missing_stream_that_may_not_be_made_is_found_by_check(sink_of):
    sink = sink_of(create_stream=False)

    with pytest.raises(DestinationRefuses, match="create_stream is false"):
        sink.open()
    assert [each.code for each in sink.check()] == ["PEN-517"]


def test_replicas_on_a_server_that_is_alone_are_refused_and_not_tried_for_ever(sink_of):
    with pytest.raises(DestinationRefuses, match="replicas > 1") as refused:
        sink_of(replicas=3).open()

    assert "correct the options of the sink" in refused.value.do


@pytest.mark.parametrize(
    "options",
    [
        {"max_age": "inf"},
        {"max_age": 1e30},
        {"max_age": 0.05},
        {"duplicate_window": 0.05},
        {"max_messages": 10**40},
    ],
)
def test_limits_that_no_stream_can_have_are_refused(sink_of, options):
    with pytest.raises(ValidationError, match=next(iter(options))):
        sink_of(**options)


def test_stream_that_acknowledges_nothing_is_refused(nats_server, name, sink_of):
    widen(nats_server, name, f"{name}.>", no_ack=True)
    sink = sink_of()

    with pytest.raises(DestinationRefuses, match="no_ack"):
        sink.open()
    assert [(each.code, each.severity) for each in sink.check()] == [("PEN-517", "error")]


def test_stream_that_knows_ids_for_less_long_or_throws_away_is_warned_of(
    nats_server, name, sink_of
):
    widen(
        nats_server, name, f"{name}.>", duplicate_window=5, max_msgs=10, discard=DiscardPolicy.OLD
    )

    found = list(sink_of(duplicate_window=60).check())
    wanted = list(sink_of(duplicate_window=5, discard="old").check())

    assert [each.severity for each in found] == ["warning", "warning"]
    assert "knows ids for 5 s; wanted 60 s" in found[0].error.what
    assert "discard: old" in found[1].error.what
    assert wanted == []


def test_stream_that_may_lose_what_it_has_acknowledged_is_warned_of(nats_server, name, sink_of):
    settings = {"retention": RetentionPolicy.INTEREST, "storage": StorageType.MEMORY}
    widen(nats_server, name, f"{name}.>", duplicate_window=120, **settings)

    found = [(each.severity, each.error.what) for each in sink_of(replicas=3).check()]
    (meant,) = sink_of(storage="memory").check()

    assert [severity for severity, _ in found] == ["warning"] * 3
    assert "retention interest" in found[0][1]
    assert "lies in memory; wanted file" in found[1][1]
    assert "has 1 replicas; wanted 3" in found[2][1]
    assert "retention interest" in meant.error.what


def test_window_of_days_is_had_and_one_that_outlasts_the_messages_is_refused(
    nats_server, name, sink_of
):
    sink = sink_of(duplicate_window=200_000)
    sink.open()

    assert sink._stream.find().duplicate_window == 200_000
    with pytest.raises(ValidationError, match="at most max_age"):
        sink_of(duplicate_window=60, max_age=30)
    assert sink_of(max_age=30)._options.duplicate_window == 30


def test_check_makes_no_stream(nats_server, name, sink_of):
    assert list(sink_of().check()) == []
    assert sink_of()._stream.name == name
    assert nats_server.messages(name) == []


@pytest.mark.parametrize("given", [{"user": "p", "password": "wr0ng"}, {}])
def test_wrong_login_is_an_error_for_a_person_and_is_not_shown(server_with, sink_of, given):
    server = server_with('authorization { user: "p", password: "s3cret" }')
    sink = sink_of(url=server.url, **given)

    with pytest.raises(SinkLoginRefused) as refused:
        sink.open()

    assert "wr0ng" not in str(refused.value)


@pytest.mark.parametrize("option", ["credentials", "nkey"])
@pytest.mark.parametrize("content", [b"no key", b"", b"\xff\xfe\x00", None])
def test_file_that_holds_no_key_is_an_error_for_a_person(
    server_with, tmp_path, sink_of, option, content
):
    seed = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER)
    key = nkeys.from_seed(bytearray(seed)).public_key.decode()
    server = server_with(f"authorization {{ users: [ {{ nkey: {key} }} ] }}")
    path = tmp_path / "key"
    path.mkdir() if content is None else path.write_bytes(content)
    sink = sink_of(url=server.url, **{option: path})

    with pytest.raises(SinkLoginRefused) as refused:
        sink.open()
    [finding] = sink.check()

    assert "no key" not in str(refused.value)
    assert finding.code == "PEN-502"


def test_user_with_password_and_user_with_token_are_let_in(server_with, name, sink_of):
    server = server_with('authorization { user: "p", password: "s3cret" }')
    sink = sink_of(url=server.url, user="p", password="s3cret")
    sink.open()
    sink.close()
    tokened = server_with('authorization { token: "t0ken" }')
    sink = sink_of(url=tokened.url, token="t0ken")
    sink.open()

    assert "s3cret" not in repr(sink._options)
    assert "t0ken" not in repr(sink._options)


def test_nkey_is_let_in(server_with, tmp_path, sink_of):
    seed = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER)
    key = nkeys.from_seed(bytearray(seed))
    server = server_with(f"authorization {{ users: [ {{ nkey: {key.public_key.decode()} }} ] }}")
    (tmp_path / "seed").write_bytes(seed)
    sink = sink_of(url=server.url, nkey=tmp_path / "seed")

    sink.open()
    sink.deliver(iter((documents((1, "a")),)), None)


class Operator:
    """An operator of servers, with two accounts; says in JWTs who may do what, as `nsc` writes them."""

    def __init__(self):
        self._operator, self.system, self.account = (
            self._pair(prefix, number)
            for number, prefix in enumerate(
                (nkeys.PREFIX_BYTE_OPERATOR, *2 * [nkeys.PREFIX_BYTE_ACCOUNT])
            )
        )
        self._serial = 0

    def _pair(self, prefix, number):
        return nkeys.from_seed(bytearray(nkeys.encode_seed(bytes([number] * 32), prefix)))

    def _signed(self, by, subject, kind, **says):
        self._serial += 1
        claims = {
            "jti": f"test-{self._serial}",
            "iat": 1_700_000_000,
            "iss": by.public_key.decode(),
            "name": kind,
            "sub": subject.public_key.decode(),
            "nats": {"type": kind, "version": 2, **says},
        }
        parts = [
            base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
            for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, claims)
        ]
        signature = by.sign(b".".join(parts))
        return b".".join([*parts, base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode()

    def settings(self):
        """For a server that trusts it."""
        unlimited = dict.fromkeys(
            [
                "subs",
                "conn",
                "leaf",
                "imports",
                "exports",
                "data",
                "payload",
                "mem_storage",
                "disk_storage",
                "streams",
                "consumer",
            ],
            -1,
        )
        system = self._signed(self._operator, self.system, "account")
        account = self._signed(
            self._operator, self.account, "account", limits={**unlimited, "wildcards": True}
        )
        key = self.system.public_key.decode()
        return (
            f"operator: {self._signed(self._operator, self._operator, 'operator')}\n"
            f"system_account: {key}\nresolver: MEMORY\nresolver_preload: {{\n  {key}: {system}\n"
            f"  {self.account.public_key.decode()}: {account}\n}}"
        )

    def credentials(self, number, account=None):
        """The file of a user of an account."""
        seed = nkeys.encode_seed(bytes([number] * 32), nkeys.PREFIX_BYTE_USER)
        user = nkeys.from_seed(bytearray(seed))
        jwt = self._signed(account or self.account, user, "user", subs=-1, data=-1, payload=-1)
        return (
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{seed.decode()}\n------END USER NKEY SEED------\n"
        )


def test_user_with_a_file_of_credentials_is_let_in_and_another_is_not(
    server_with, tmp_path, name, sink_of
):
    operator = Operator()
    server = server_with(operator.settings())
    ours, foreign = tmp_path / "ours.creds", tmp_path / "foreign.creds"
    ours.write_text(operator.credentials(10))
    stranger = nkeys.from_seed(
        bytearray(nkeys.encode_seed(bytes([9] * 32), nkeys.PREFIX_BYTE_ACCOUNT))
    )
    foreign.write_text(operator.credentials(11, account=stranger))
    sink = sink_of(url=server.url, credentials=ours)

    sink.open()
    sink.deliver(iter((documents((1, "a")),)), None)
    with pytest.raises(SinkLoginRefused) as refused:
        sink_of(url=server.url, credentials=foreign).open()

    [message] = server.messages(name, user_credentials=str(ours))
    assert json.loads(message.data)["note"] == "a"
    seed = foreign.read_text().splitlines()[5]
    assert seed.startswith("SU")
    assert seed not in str(refused.value)
    assert list(sink_of(url=server.url, credentials=ours).check()) == []


def certificate(directory):
    """The files `ca` and `key` of a server on this machine."""
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=127.0.0.1 -addext"
    subprocess.run(
        [
            *command.split(),
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            directory / "key",
            "-out",
            directory / "ca",
        ],
        check=True,
        capture_output=True,
    )


def test_server_with_a_certificate_is_trusted_by_its_ca_alone(server_with, tmp_path, name, sink_of):
    certificate(tmp_path)
    server = server_with(f'tls {{ cert_file: "{tmp_path}/ca", key_file: "{tmp_path}/key" }}')
    url = server.url.replace("nats://", "tls://")

    with pytest.raises(SinkLoginRefused):
        sink_of(url=url).open()
    sink = sink_of(url=url, tls={"ca": tmp_path / "ca"})
    sink.open()
    sink.deliver(iter((documents((1, "a")),)), None)


@pytest.mark.parametrize("how", ["url", "options"])
def test_server_without_tls_is_told_no_password_where_tls_is_wanted(
    server_with, tmp_path, sink_of, how
):
    """Whoever answers in the server's place would only have to say that it has none."""
    log = tmp_path / "log"
    server = server_with(
        f'authorization {{ user: "p", password: "s3cret" }}\ntrace: true\nlog_file: "{log}"'
    )
    wanted = (
        {"url": server.url.replace("nats://", "tls://")}
        if how == "url"
        else {"url": server.url, "tls": {}}
    )
    sink = sink_of(**wanted, user="p", password="s3cret")

    with pytest.raises(SinkLoginRefused) as refused:
        sink.open()

    assert "offers no TLS" in refused.value.what
    assert "CONNECT" not in log.read_text()


def test_server_that_takes_both_is_spoken_to_with_tls_where_it_is_wanted(
    server_with, tmp_path, sink_of
):
    certificate(tmp_path)
    server = server_with(
        f'allow_non_tls: true\ntls {{ cert_file: "{tmp_path}/ca", key_file: "{tmp_path}/key" }}'
    )
    sink = sink_of(url=server.url.replace("nats://", "tls://"), tls={"ca": tmp_path / "ca"})

    sink.open()

    writer = sink._connection.client._transport._io_writer
    assert writer.get_extra_info("ssl_object") is not None


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("cdc.{schema}.{table}", "cdc.*.*"),
        ("{pipeline}.all", "shop.all"),
        ("a.t-{table}", "a.*"),
    ],
)
def test_stream_takes_every_subject_of_a_pattern(pattern, wanted):
    assert subject_filter(Pattern(pattern, "shop", "eu")) == wanted


@pytest.mark.parametrize(
    ("wider", "narrower", "does"),
    [
        ("a.>", "a.*.*", True),
        ("a.*.*", "a.*.*", True),
        ("a.*", "a.*.*", False),
        ("a.b.*", "a.*.*", False),
        (">", "a.b", True),
        ("a.>", "a", False),
    ],
)
def test_filter_covers_another_where_it_takes_all_of_it(wider, narrower, does):
    assert covers(wider, narrower) is does


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1",
        "nats://u:p@h:4222",
        [],
        "http://h",
        "nats://h:99999",
        "nats://h:one",
        "nats://a:1,b:2",
        "nats://[::1",
        ["nats://h", "ws://h"],
    ],
)
def test_url_that_is_none_or_holds_a_password_is_refused_without_showing_it(url):
    with pytest.raises(ValidationError) as refused:
        NatsOptions(url=url)

    assert "u:p" not in str(refused.value)
