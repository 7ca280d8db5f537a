"""What a sink keeps on the machine that delivers, asked for on the other one: the halves share a broker, and no disk."""

from __future__ import annotations

import json
from contextlib import closing
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from fix_broker_log import nats_log
from fix_pipeline import ALWAYS_COPIED, INITIAL, pipeline_document
from fix_postgres import only_new
from fix_wait import wait_until
from fix_watched import TOKEN
from fix_webhooks import Reply
from penstock.errors import DeliveredElsewhere
from penstock.listen import Address, ServerOptions, Token
from penstock.run.delivered import is_delivered_here
from penstock.run.parked import Choice, find_parked
from penstock.run.requests import resync_tables
from penstock.run.status import read_status, refresh_status
from penstock.run.subscriptions import subscriptions_of
from penstock.server.serve import served_subscriptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_nats import NatsServer
    from fix_postgres import Database
    from fix_webhooks import Receiver

pytestmark = only_new

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"


def document_of(
    source: Database, nats_server: NatsServer, directory: Path, sink: dict[str, Any], **more: Any
) -> dict[str, Any]:
    document = pipeline_document(source, None, directory, sink=sink, **more)
    return {**document, "log": nats_log(nats_server.url)}


def test_table_is_copied_again_where_it_is_asked_for_on_the_capturing_machine(
    source: Database, nats_server: NatsServer, halves: Callable[..., Any], tmp_path: Path
) -> None:
    source.execute(TABLE)
    source.execute("INSERT INTO t SELECT g, 'v' FROM generate_series(1, 10) g")
    path = tmp_path / "lines"
    sink = {"kind": "file", "path": str(path)}
    document = document_of(source, nats_server, tmp_path, sink, source_options=ALWAYS_COPIED)
    capture = halves("capture", document)
    deliver = halves("deliver", document)
    deliver.catch_up()

    def copied() -> int:
        files = [each for each in path.rglob("*changes*") if each.is_file()]
        lines = [line for each in files for line in each.read_text().splitlines()]
        return sum(json.loads(line).get("op") == "read" for line in lines)

    assert copied() == 10

    resync_tables(capture.file, ["t"])

    wait_until(lambda: copied() == 20, 60, "the table to be copied again")

    def entry() -> Any:
        return read_status(capture.file).sinks["target"].tables["public.t"]

    wait_until(lambda: (entry().state, entry().request) == ("streaming", None), 30)
    deliver.stop()
    resync_tables(capture.file, ["t"])
    assert entry().request == "resync", "nobody has taken it yet"


def test_parked_and_subscriptions_are_shown_on_both_machines_and_asked_for_on_one(
    source: Database,
    nats_server: NatsServer,
    halves: Callable[..., Any],
    receivers: Callable[..., Receiver],
    tmp_path: Path,
) -> None:
    named, later = receivers(), receivers()
    named.reply = lambda request: Reply(400 if request.json["key"] == {"id": 2} else 200)
    source.execute(TABLE)
    sink = {"kind": "webhook", "urls": named.url, "allow": ["127.0.0.1"], "on_refused": "park"}
    document = document_of(source, nats_server, tmp_path, sink, source_options=INITIAL)
    capture = halves("capture", document)
    with pytest.raises(DeliveredElsewhere):
        subscriptions_of(capture.file)["target"].create({"url": later.url})
    with pytest.raises(DeliveredElsewhere, match="is kept"):
        find_parked(capture.file, Choice())  # nobody knows
    deliver = halves("deliver", document)
    deliver.catch_up()
    source.execute("INSERT INTO t SELECT g, 'v' FROM generate_series(1, 4) g")
    deliver.catch_up()

    def shown(half: Any) -> Any:
        return read_status(half.file).sinks["target"]

    wait_until(lambda: shown(capture).parked == 1, 30, "it to be shown on the other machine")
    assert is_delivered_here(deliver.file, "target")
    assert not is_delivered_here(capture.file, "target")
    (stands,) = shown(capture).subscriptions.values()
    assert (stands.state, stands.parked) == ("active", 1)
    assert shown(deliver).parked == 1
    again = refresh_status(capture.file, read_status(capture.file)).sinks["target"]
    assert (again.parked, len(again.subscriptions)) == (1, 1)

    with pytest.raises(DeliveredElsewhere, match="1 change parked"):
        find_parked(capture.file, Choice())
    (found,) = find_parked(deliver.file, Choice())
    assert len(found.entries) == 1

    # The server of `penstock capture` has the same routes.
    options = ServerOptions(Address.parse("127.0.0.1:0"), Token(TOKEN))
    asked = json.dumps({"url": later.url})
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}

    def subscribe(half: Any) -> tuple[int, str]:
        with served_subscriptions("test", subscriptions_of(half.file), options) as url:
            connection = HTTPConnection(urlsplit(url).netloc, timeout=10)
            with closing(connection):
                connection.request("POST", "/subscriptions", asked, headers)
                answer = connection.getresponse()
                return answer.status, answer.read().decode()

    status, text = subscribe(capture)
    assert (status, "PEN-611" in text) == (409, True)
    stored = [each.read_bytes() for each in capture.file.state.rglob("*.webhook.db*")]
    assert not any(later.url.encode() in each for each in stored)
    assert subscribe(deliver)[0] == 201
    source.execute("INSERT INTO t VALUES (5, 'v')")
    later.wait_for(lambda: [one["key"]["id"] for one in later.documents] == [5])
    deliver.stop()

    assert is_delivered_here(deliver.file, "target"), "also while nobody delivers"
    assert not is_delivered_here(capture.file, "target")
    assert shown(capture).parked == 1
