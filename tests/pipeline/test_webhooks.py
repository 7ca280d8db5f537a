"""From Postgres through Spark to receivers: one that plays the documents back has what the source has."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fix_command import run_penstock
from fix_documents import parse
from fix_pipeline import ALWAYS_COPIED, pipeline_document
from fix_postgres import only_new
from fix_replay import assert_order_per_key, replayed, rows_of
from fix_webhooks import Reply
from penstock.errors import PositionMissing
from penstock.run.status import read_status
from penstock.run.subscriptions import subscriptions_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database
    from fix_webhooks import Receiver

    Make = Callable[..., RunningPipeline]

pytestmark = only_new


def received(receiver: Receiver) -> list[tuple[Any, dict[str, Any]]]:
    """Every document, with what it is in order by."""
    found = []
    for each in receiver.accepted:
        document = parse(each.body)
        found.append(((document["table"], repr(document["key"])), document))
    return found


def sink_of(*urls: Any, **options: Any) -> dict[str, Any]:
    return {"kind": "webhook", "urls": list(urls), "allow": ["127.0.0.1"], **options}


def test_receivers_have_what_the_source_has_also_one_that_failed_for_a_while(
    source: Database, make_pipeline: Make, receivers: Callable[..., Receiver]
) -> None:
    good, failing = receivers(), receivers()
    failing.reply = Reply(503)
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, n int, big text)")
    source.execute("CREATE TABLE lines (a int, b text, n numeric, PRIMARY KEY (a, b))")
    source.execute("INSERT INTO orders SELECT g, 0, 'x' FROM generate_series(1, 80) g")
    sink = sink_of(good.url, failing.url)
    pipeline = make_pipeline(source, sink=sink, source_options=ALWAYS_COPIED)
    source.execute("INSERT INTO lines SELECT g, 'l,' || g, g / 7.0 FROM generate_series(1, 100) g")
    for number in range(5):
        source.execute(f"UPDATE orders SET n = {number} WHERE id % 3 = {number % 3}")
    source.execute("UPDATE orders SET id = id + 1000 WHERE id <= 10")
    source.execute("DELETE FROM orders WHERE id BETWEEN 20 AND 30")
    pipeline.catch_up()
    assert failing.documents == []
    assert replayed([one for _, one in received(good)]) == rows_of(source, "orders", "lines")
    pipeline.stop()

    (stands,) = read_status(pipeline.file).sinks.values()
    assert sorted(each.state for each in stands.subscriptions.values()) == ["active", "failing"]

    failing.reply = Reply()
    pipeline.start()
    source.execute("DELETE FROM lines WHERE a > 50")
    pipeline.catch_up()
    failing.wait_for(lambda: len(failing.accepted) >= len(good.accepted), 60)
    pipeline.stop()
    for each in (good, failing):
        records = received(each)
        assert_order_per_key(records)
        documents = [document for _, document in records]
        assert len(documents) == len({one["id"] for one in documents})
        assert replayed(documents) == rows_of(source, "orders", "lines")


@pytest.mark.parametrize("snapshot", ["initial", "never"])
def test_state_directory_that_is_lost_leaves_nothing_out_unsaid(
    source: Database, make_pipeline: Make, receiver: Receiver, snapshot: str
) -> None:
    """The position is lost with what waited for receivers: every row comes again, or nothing goes on."""
    source.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    options = {**ALWAYS_COPIED, "snapshot": snapshot}
    pipeline = make_pipeline(source, sink=sink_of(receiver.url), source_options=options)
    source.execute("INSERT INTO orders SELECT generate_series(1, 3)")
    pipeline.catch_up()
    pipeline.stop()
    before = len(receiver.documents)
    source.execute("INSERT INTO orders SELECT generate_series(4, 6)")
    shutil.rmtree(pipeline.file.state)
    pipeline.start()
    if snapshot == "never":
        with pytest.raises(PositionMissing):
            pipeline.catch_up()
        assert len(receiver.documents) == before
        return
    source.execute("INSERT INTO orders VALUES (7)")
    pipeline.catch_up()
    pipeline.stop()
    again = [one for _, one in received(receiver)[before:]]
    assert replayed(again) == rows_of(source, "orders")


@pytest.mark.long
def test_run_until_caught_up_waits_for_a_slow_receiver(
    source: Database, tmp_path: Path, receivers: Callable[..., Receiver]
) -> None:
    fast, slow, failing = receivers(), receivers(), receivers()
    slow.reply, failing.reply = Reply(seconds=0.05), Reply(500)
    source.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    source.execute("INSERT INTO orders SELECT generate_series(1, 100)")
    path = tmp_path / "test.yml"
    sink = sink_of(fast.url, slow.url, failing.url, concurrency=1)
    document = pipeline_document(source, None, tmp_path, source_options=ALWAYS_COPIED, sink=sink)
    path.write_text(yaml.safe_dump(document))
    done = run_penstock("run", path, "--until-caught-up")
    assert done.returncode == 0, done.stderr
    wanted = rows_of(source, "orders")
    for each in (fast, slow):
        assert replayed([one for _, one in received(each)]) == wanted


def test_subscribed_for_inserts_of_one_table_gets_those_and_after_that_nothing(
    source: Database, make_pipeline: Make, receiver: Receiver
) -> None:
    """pgstream's scenario: subscribe for I on one table; unsubscribe stops; 500 then 200 is delivered."""
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, n int)")
    source.execute("CREATE TABLE lines (id int PRIMARY KEY)")
    pipeline = make_pipeline(source, sink=sink_of(), source_options={"snapshot": "never"})
    (subscriptions,) = subscriptions_of(pipeline.file).values()
    subscriptions.subscribe(receiver.url, "public", "orders", ["I"])
    receiver.script.append(Reply(500))
    source.execute("INSERT INTO orders VALUES (1, 1)")
    source.execute("UPDATE orders SET n = 2")
    source.execute("INSERT INTO lines VALUES (1)")
    receiver.wait_for(lambda: receiver.accepted)
    pipeline.catch_up()
    (request,) = receiver.accepted
    assert request.json["Data"]["action"] == "I"
    assert request.json["Data"]["table"] == "orders"

    subscriptions.unsubscribe(receiver.url, "public", "orders")
    source.execute("INSERT INTO orders VALUES (2, 2)")
    pipeline.catch_up()
    pipeline.stop()
    assert len(receiver.accepted) == 1


def test_receiver_sees_a_change_of_a_table_before_its_first_row(
    source: Database, make_pipeline: Make, receiver: Receiver
) -> None:
    """pgstream's Test_PostgresToWebhook: the DDL event, then the insert."""
    source.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    urls = {"url": receiver.url, "format": "pgstream"}
    pipeline = make_pipeline(source, sink=sink_of(urls), source_options={"snapshot": "never"})
    source.execute("ALTER TABLE orders ADD note text")
    source.execute("INSERT INTO orders VALUES (1, 'a')")
    pipeline.catch_up()
    pipeline.stop()
    events = [each.json["Data"] for each in receiver.accepted]
    assert [one["action"] for one in events] == ["M", "I"]
    assert events[1]["columns"] == [
        {"id": "", "name": "id", "type": "integer", "value": 1},
        {"id": "", "name": "note", "type": "text", "value": "a"},
    ]


def test_subscription_with_a_filter_has_rows_that_match_until_a_column_of_it_is_dropped(
    source: Database, make_pipeline: Make, receivers: Callable[..., Receiver]
) -> None:
    everything, some = receivers(), receivers()
    source.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, total numeric(10,2), status text,"
        " made_at timestamptz DEFAULT '2026-03-01', mood mood DEFAULT 'ok', tags text[] DEFAULT '{a}')"
    )
    source.execute(
        "INSERT INTO orders VALUES (1, 150, 'paid'), (2, 99.99, 'paid'), (3, NULL, 'paid')"
    )
    wanted = {
        "url": some.url,
        "tables": ["orders"],
        "filter": "total >= 100 AND status = 'paid' AND made_at > '2026-01-01'::timestamptz"
        " AND mood = 'ok' AND tags = '{a}'",
    }
    sink = sink_of(everything.url, wanted)
    pipeline = make_pipeline(source, sink=sink, source_options=ALWAYS_COPIED)
    pipeline.catch_up()
    source.execute("INSERT INTO orders VALUES (4, 200, 'new'), (5, 300, 'paid')")
    source.execute("UPDATE orders SET status = 'paid' WHERE id = 4")
    source.execute("UPDATE orders SET mood = 'sad' WHERE id = 5")
    pipeline.catch_up()
    seen = [(one["op"], int(one["key"]["id"])) for one in some.documents]
    assert sorted(seen) == [("insert", 5), ("read", 1), ("update", 4)]
    assert len(everything.documents) == 7

    source.execute("ALTER TABLE orders DROP COLUMN status")
    source.execute("INSERT INTO orders VALUES (6, 500)")
    pipeline.catch_up()
    pipeline.stop()
    assert int(everything.documents[-1]["key"]["id"]) == 6
    assert [one["op"] for one in some.documents][3:] == ["schema"]  # it learns why
    (stands,) = read_status(pipeline.file).sinks.values()
    errors = {each.state: each.error for each in stands.subscriptions.values()}
    assert errors["active"] is None
    assert "public.orders: the SQL names column status, wanted one of" in str(errors["suspended"])
