"""`log.encrypt` and webhooks: what waits for receivers, and what they refused, shows no row on disk."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from fix_log import keyring
from fix_wait import wait_until
from fix_webhooks import Reply, change
from penstock.encryption import NO_KEYS
from penstock.errors import LogKeyMissing
from penstock.sinks.webhook.kind import WebhookKind

if TYPE_CHECKING:
    from pathlib import Path

    from fix_webhooks import Hooks

CANARY = "c4n4ry"


@pytest.fixture(autouse=True)
def _quick_retries(use_timing) -> None:
    use_timing(webhook_retry_seconds=0.1, webhook_last_retry_seconds=0.4)


def _change(number: int, key: int) -> dict:
    after = {"id": key, "v": f"{CANARY}-{number}"}
    return change(number, key, after=after, types={"id": 23, "v": 25})


def _showing(directory: Path) -> list[str]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert any(path.name == "hooks.webhook.db" for path in files)
    return [path.name for path in files if CANARY.encode() in path.read_bytes()]


def _parked(sink: Hooks) -> list[str]:
    return [json.dumps(each.values) for each in WebhookKind().parked(sink.place)]


def test_what_waits_and_what_is_parked_is_encrypted_and_delivered_after_a_restart(
    hooks, receivers
) -> None:
    refusing, dead = receivers(), receivers()
    refusing.reply, dead.reply = Reply(400), Reply(500)
    keys = keyring("1")
    sink = hooks(refusing.url, dead.url, on_refused="park", keyring=keys)
    ids = sink.deliver(_change(1, 1), _change(2, 1), _change(3, 2))
    wait_until(lambda: len(_parked(sink)) == 3)
    assert all(CANARY in each for each in _parked(sink))
    assert _showing(sink.directory) == []
    sink.sink.close()
    assert _showing(sink.directory) == []

    refusing.reply = dead.reply = Reply()
    sink = hooks(refusing.url, dead.url, on_refused="park", keyring=keys)
    parked = WebhookKind().parked(sink.place)
    WebhookKind().ask_parked(sink.place, "retry", [each.id for each in parked])
    for each in (refusing, dead):
        each.wait_for(lambda each=each: sorted(each.ids) == sorted(ids))
        assert f"{CANARY}-1" in json.dumps(each.documents)


def test_what_was_stored_before_encryption_or_with_another_key_is_delivered(
    hooks, receiver
) -> None:
    receiver.reply = Reply(500)
    ids: list[str] = []
    for number, keys in enumerate((NO_KEYS, keyring("1"), keyring("2", "1")), 1):
        ids += hooks(receiver.url, keyring=keys).deliver(_change(number, number))
    receiver.reply = Reply()
    hooks(receiver.url, keyring=keyring("2", "1", encrypts=False))
    receiver.wait_for(lambda: sorted(receiver.ids) == sorted(ids))


def test_key_that_was_taken_out_too_early_is_an_error_of_check_and_of_the_start(
    hooks, receiver
) -> None:
    receiver.reply = Reply(500)
    sink = hooks(receiver.url, keyring=keyring("1"))
    ids = sink.deliver(_change(1, 1))
    sink.sink.close()
    with pytest.raises(LogKeyMissing):
        hooks(receiver.url, keyring=keyring("2"))
    other = type(sink)(sink.directory, keyring("2"), urls=[receiver.url])
    assert [each.code for each in other.sink.check()] == [LogKeyMissing.code]
    assert list(sink.sink.check()) == []
    receiver.reply = Reply()
    hooks(receiver.url, keyring=keyring("2", "1"))
    receiver.wait_for(lambda: receiver.ids == ids)


def test_missing_key_of_a_document_suspends_the_subscription_and_says_so(hooks, receiver) -> None:
    receiver.reply = Reply(500)
    ids = hooks(receiver.url, keyring=keyring("2")).deliver(_change(1, 1))
    ids += hooks(receiver.url, keyring=keyring("1", "2")).deliver(_change(2, 2))
    sink = hooks(receiver.url, keyring=keyring("2"))  # the oldest entry has this one
    receiver.reply = Reply()  # not before: who has both keys would have sent both entries
    receiver.wait_for(lambda: receiver.ids == ids[:1])
    wait_until(lambda: sink.stands()["state"] == "suspended")
    assert sink.stands()["error"].startswith(LogKeyMissing.code)
    sink = hooks(receiver.url, keyring=keyring("2", "1"))
    sink.subscriptions.resume(sink.subscriptions.all()[0]["id"])
    receiver.wait_for(lambda: receiver.ids == ids)
