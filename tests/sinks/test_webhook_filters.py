"""Filters of subscriptions: which documents they let pass, what they cannot be, and what becomes of one that no longer fits."""

from __future__ import annotations

import json
import sqlite3
import sys
from typing import TYPE_CHECKING, Any

import pytest

from fix_wait import wait_until
from fix_webhooks import change, nested
from penstock.errors import BadValue
from penstock.sinks.webhook.database import database_of
from penstock.sql.text import _parser

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_webhooks import Hooks, Receiver

TYPES = {"id": 23, "total": 1700, "status": 25, "paid": 16, "made_at": 1184, "doc": 3802, "raw": 17}


def filtered(receiver: Receiver, text: str, **options: Any) -> dict[str, Any]:
    return {"url": receiver.url, "tables": ["public.orders"], "filter": text, **options}


def row(number: int, op: str = "insert", **values: Any) -> dict[str, Any]:
    after = dict.fromkeys(TYPES) | {"id": number} | values
    return change(number, number, op, after=after, types=TYPES)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("total >= 100", [1, 2]),
        ("total >= 100 AND status = 'paid'", [1]),
        ("status IS NULL", [4]),
        ("status <> 'paid'", [2, 3]),  # NULL is neither
        ("NOT (total < 100)", [1, 2]),
        ("paid", [1]),
        ("made_at >= '2026-02-01'::timestamptz", [2]),
        ("doc->>'$.country' = 'de'", [1]),
        ("raw = '\\xAB'::blob", [3]),
        ("coalesce(total, 0) = 0", [4]),
        ("Status LIKE 'pa%'", [1]),  # not quoted: lower case
        ("false", []),
        ("true", [1, 2, 3, 4]),
    ],
)
def test_documents_of_rows_that_match_are_delivered(
    hooks: Callable[..., Hooks], receiver: Receiver, text: str, wanted: list[int]
) -> None:
    sink = hooks(filtered(receiver, text))
    sink.deliver(
        row(
            1,
            total=100.00,
            status="paid",
            paid=True,
            made_at="2026-01-31T23:59:59+00:00",
            doc={"country": "de"},
        ),
        row(
            2,
            total=250,
            status="new",
            paid=False,
            made_at="2026-02-01T00:00:00+00:00",
            doc={"n": 1.50},
        ),
        row(3, total=99.99, status="new", doc="text", raw="qw=="),
        row(4),
    )

    assert sorted(each["key"]["id"] for each in receiver.documents) == wanted
    assert sink.stands()["delivered"] == len(wanted)
    assert sink.stands()["delivered_lsn"] == "0/4000"  # also past those that nobody wants


def test_large_numbers_are_compared_digit_for_digit(hooks, receiver) -> None:
    types = {"id": 20}
    sink = hooks(filtered(receiver, "id = 9007199254740993"))
    for number, key in enumerate((9007199254740992, 9007199254740993), 1):
        sink.deliver(change(number, key, after={"id": key}, types=types))

    assert [each["key"]["id"] for each in receiver.documents] == [9007199254740993]


def test_delete_is_judged_by_the_old_row_and_delivered_where_that_is_not_known(
    hooks, receiver
) -> None:
    sink = hooks(filtered(receiver, "n >= 10"))
    sink.deliver(
        change(1, 1, "delete", before={"id": 1, "n": 9}),
        change(2, 2, "delete", before={"id": 2, "n": 10}),
        change(3, 3, "delete", before={"id": 3}),
    )

    assert sorted(each["key"]["id"] for each in receiver.documents) == [2, 3]


def test_truncates_and_changes_of_tables_pass_every_filter(hooks, receiver) -> None:
    sink = hooks(filtered(receiver, "false"))
    sink.deliver(change(1, None, "truncate"), change(2, None, "schema"), change(3, 3))

    assert [each["op"] for each in receiver.documents] == ["truncate", "schema"]


def test_value_that_an_update_left_alone_comes_from_the_old_row(hooks, receiver) -> None:
    sink = hooks(filtered(receiver, "n = 5"))
    sink.deliver(
        change(1, 1, "update", after={"id": 1}, before={"id": 1, "n": 5}, unchanged=["n"]),
        change(2, 2, "update", after={"id": 2}, before={"id": 2, "n": 6}, unchanged=["n"]),
    )

    assert [each["key"]["id"] for each in receiver.documents] == [1]


def test_value_that_was_not_sent_suspends_and_says_how_to_have_it_sent(hooks, receivers) -> None:
    other, receiver = receivers(), receivers()
    sink = hooks(other.url, filtered(receiver, "n = 5"))
    sink.deliver(change(1, 1, "update", after={"id": 1}, unchanged=["n"]))

    assert len(other.documents) == 1
    wait_until(lambda: sink.stands(1)["state"] == "suspended")
    assert "public.orders: the filter needs column n" in sink.stands(1)["error"]
    assert receiver.requests == []


def test_column_that_is_gone_suspends_the_subscription_and_nobody_else(hooks, receivers) -> None:
    other, receiver = receivers(), receivers()
    sink = hooks(other.url)
    made = sink.subscriptions.create(filtered(receiver, "n > 1"))
    sink.deliver(
        change(1, 1, after={"id": 1, "n": 2}),
        change(2, 2, after={"id": 2}, types={"id": 23}),
        change(3, 3, after={"id": 3}, types={"id": 23}),
    )

    other.wait_for(lambda: len(other.documents) == 3)
    wait_until(lambda: sink.stands(1)["state"] == "suspended")
    assert "names column n, wanted one of id" in sink.stands(1)["error"]
    assert [each["key"]["id"] for each in receiver.documents] == [1]  # what came before it

    sink.subscriptions.change(made["id"], {"filter": "id >= 3"})
    sink.subscriptions.resume(made["id"])
    receiver.wait_for(lambda: len(receiver.documents) == 2)
    assert [each["key"]["id"] for each in receiver.documents] == [1, 3]


def test_expression_that_fails_for_a_row_suspends_without_repeating_a_value(
    hooks, receiver
) -> None:
    sink = hooks(filtered(receiver, "status::int > 1"))
    sink.deliver(row(1, status="s3cret"))

    wait_until(lambda: sink.stands()["state"] == "suspended")
    assert "the SQL fails for a row: ConversionException" in sink.stands()["error"]
    assert "s3cret" not in json.dumps(sink.subscriptions.all())


def test_filter_is_kept_over_a_restart_and_can_be_taken_out(hooks, receiver) -> None:
    sink = hooks()
    made = sink.subscriptions.create(filtered(receiver, "n > 1"))
    assert made["filter"] == "n > 1"
    sink = hooks()
    sink.deliver(change(1, 1, after={"id": 1, "n": 1}), change(2, 2, after={"id": 2, "n": 2}))
    receiver.wait_for(lambda: len(receiver.documents) == 1)

    sink.subscriptions.change(made["id"], {"filter": None})
    sink.deliver(change(3, 3, after={"id": 3, "n": 1}))
    receiver.wait_for(lambda: len(receiver.documents) == 2)
    assert [each["key"]["id"] for each in receiver.documents] == [2, 3]
    assert sink.subscriptions.get(made["id"])["filter"] is None


@pytest.mark.parametrize(
    "text",
    [
        "read_csv('/etc/passwd') IS NULL",
        "(SELECT count(*) FROM read_text('/etc/passwd')) > 0",
        "true) AS answer FROM penstock_row; COPY penstock_row TO '/tmp/x'; SELECT (true",
        "COPY penstock_row TO '/tmp/x'",
        "ATTACH '/tmp/x.db'",
        "PRAGMA version",
        "pragma_version() IS NULL",
        "glob('*') IS NULL",
        "getenv('HOME') = 'x'",
        "current_setting('threads') = 1",
        "random() < 0.5",
        "now() > made_at",
        "count(*) > 1",
        "row_number() OVER () = 1",
        "len(range(1000000000)) > 1",
        "repeat('x', 1000000000) = 'x'",
        "list_reduce(['a', 'b'], (x, y) -> x || x) = 'a'",
        "sleep_ms(100000) IS NULL",
        "pg_sleep(100000) IS NULL",
        "replace(replace('aaaaaaaaaa', 'a', 'aaaaaaaaaa'), 'a', 'aaaaaaaaaa') = 'x'",
        "regexp_replace(status, '.', 'aaaaaaaaaa', 'g') = 'x'",
        "hex(hex(hex(status))) = 'x'",
        "to_json(to_json(status)) = 'x'",
        "array_to_string(string_split(status, ''), status) = 'x'",
        "uper(status) = 'X'",
        "total >",
        "",
        "x" * 5000,
    ],
)
def test_expression_that_is_more_than_one_over_a_row_is_refused(hooks, receiver, text: str) -> None:
    sink = hooks()

    with pytest.raises(BadValue) as refused:
        sink.subscriptions.create(filtered(receiver, text))

    assert refused.value.where == "filter"
    assert refused.value.do
    assert sink.subscriptions.all() == []


def test_filter_without_duckdb_says_what_to_install(hooks, receiver, monkeypatch) -> None:
    sink = hooks()
    monkeypatch.setitem(sys.modules, "duckdb", None)
    _parser.cache_clear()

    with pytest.raises(BadValue, match="DuckDB, which is not installed") as refused:
        sink.subscriptions.create(filtered(receiver, "n > 1"))

    assert "penstock[sql]" in refused.value.do


def test_filter_that_an_earlier_version_took_suspends_its_subscription_and_nobody_else(
    hooks, receivers: Callable[..., Receiver]
) -> None:
    plain, receiver = receivers(), receivers()
    sink = hooks(plain.url)
    made = sink.subscriptions.create(filtered(receiver, "n > 1"))
    store = sink.store()
    wanted = {name: made[name] for name in ("url", "tables", "operations", "format", "batch_size")}
    kept = store.subscription(made["id"])
    assert store.change(kept, {**wanted, "filter": "unnest([1, 2]) = n"})
    store.close()

    sink = hooks(plain.url)  # as after an upgrade
    sink.deliver(change(1, 1, after={"id": 1, "n": 2}))

    assert len(plain.documents) == 1
    wait_until(lambda: sink.stands(1)["state"] == "suspended")
    assert "SQL with unnest()" in sink.stands(1)["error"]
    sink.subscriptions.change(made["id"], {"filter": "n = 2"})
    sink.subscriptions.resume(made["id"])
    receiver.wait_for(lambda: len(receiver.documents) == 1)


def test_row_that_is_nested_too_deeply_for_a_filter_suspends_and_says_so(hooks, receiver) -> None:
    sink = hooks(filtered(receiver, "n > 1"))

    sink.deliver(nested(change(1, 1)))

    wait_until(lambda: sink.stands()["state"] == "suspended")
    assert "public.orders: a row has JSON that is nested too deeply" in sink.stands()["error"]


def test_filter_wants_tables_beside_it(hooks, receiver) -> None:
    with pytest.raises(BadValue, match="a filter for all tables, wanted tables: beside it"):
        hooks().subscriptions.create({"url": receiver.url, "filter": "n > 1"})


def test_entries_of_an_earlier_version_are_delivered_and_not_filtered(hooks, receivers) -> None:
    plain, receiver = receivers(), receivers()
    sink = hooks(plain.url)
    sink.sink.close()
    with sqlite3.connect(database_of(sink.place)) as database:
        database.execute("ALTER TABLE outbox DROP COLUMN types")
    database.close()

    sink = hooks(plain.url, filtered(receiver, "n > 1"))
    sink.deliver(change(1, 1, after={"id": 1, "n": 2}))

    assert len(plain.documents) == len(receiver.documents) == 1
