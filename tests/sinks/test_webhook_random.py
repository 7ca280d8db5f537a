"""Random changes to receivers of random moods, closed and opened at random: nothing is lost, no key is out of order."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from fix_wait import wait_until
from fix_webhooks import Reply, change
from penstock.sinks.webhook.kind import WebhookKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_webhooks import Receiver, Request


@pytest.fixture(autouse=True)
def _quick(use_timing) -> None:
    use_timing(webhook_retry_seconds=0.02, webhook_last_retry_seconds=0.1)


def mood(dice: random.Random, refused: set[int]) -> Callable[[Request], Reply]:
    """Fails, hangs up, dawdles; refuses what it always refuses."""

    def reply(request: Request) -> Reply:
        content = request.json
        numbers = {one["xid"] for one in (content if isinstance(content, list) else [content])}
        if numbers & refused:
            return Reply(400)
        throw = dice.random()
        if throw < 0.05:
            return Reply(resets=True)
        return Reply(500 if throw < 0.1 else 204, seconds=dice.random() / 100)

    return reply


def some_changes(dice: random.Random, first: int, count: int) -> list[dict[str, Any]]:
    made = []
    for number in range(first, first + count):
        key, throw = dice.randint(1, 12), dice.random()
        if throw < 0.02:
            made.append(change(number, None, "truncate"))
        elif throw < 0.07:
            made.append(change(number, key, "update", before={"id": dice.randint(1, 12)}))
        else:
            made.append(change(number, key, dice.choice(["insert", "update", "delete"])))
    return made


def keys_of(document: dict[str, Any]) -> set[int]:
    """The keys that a document is of; a truncate is of all."""
    if document["op"] == "truncate":
        return set(range(1, 13))
    before = document["before"] or document["key"]
    return {document["key"]["id"], before["id"]}


def assert_order(documents: list[dict[str, Any]]) -> None:
    """Each key's documents came in the source's order; what came again is skipped."""
    seen: set[str] = set()
    last: dict[int, int] = {}
    for one in documents:
        if one["id"] in seen:
            continue
        seen.add(one["id"])
        for key in keys_of(one):
            assert last.get(key, 0) < one["xid"], f"{one['id']} came too late for {key}"
            last[key] = one["xid"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("batch_size", [1, 7])
def test_random_moods_and_restarts(
    hooks, receivers: Callable[..., Receiver], seed: int, batch_size: int
) -> None:
    dice = random.Random(1000 * batch_size + seed)
    made = [receivers() for _ in range(3)]
    refused = {dice.randint(1, 200) for _ in range(3)}
    for number, each in enumerate(made):
        each.reply = mood(random.Random(dice.random()), refused if number == 2 else set())
    urls = [{"url": each.url, "batch_size": batch_size} for each in made]
    documents: list[dict[str, Any]] = []
    sink = hooks(*urls, on_refused="park", concurrency=4)
    while len(documents) < 200:
        some = some_changes(dice, len(documents) + 1, dice.randint(1, 40))
        sink.deliver(*some)
        documents += some
        if dice.random() < 0.3:
            sink = hooks(*urls, on_refused="park", concurrency=4)

    wanted = {each["id"] for each in documents}
    kind = WebhookKind()
    for each in made[:2]:
        each.wait_for(lambda each=each: set(each.ids) == wanted, 60)
        assert_order(each.documents)

    def settled() -> bool:
        parked = {each.id.partition("/")[2] for each in kind.parked(sink.place)}
        return set(made[2].ids) | parked == wanted

    wait_until(settled, 60)
    assert_order(made[2].documents)
    parked = [each.values for each in kind.parked(sink.place)]
    assert {one["xid"] for one in parked} >= {
        number for number in refused if number <= len(documents)
    }
    # Nothing of a parked document's keys has overtaken it.
    came = {one["id"]: place for place, one in enumerate(made[2].documents)}
    waiting = {one["id"] for one in parked}
    for one in parked:
        for other in (json.loads(each["value"]) for each in documents):
            if other["xid"] > one["xid"] and keys_of(other) & keys_of(one):
                assert other["id"] in waiting, f"{other['id']} overtook {one['id']}"
                assert other["id"] not in came
