"""kill -9 of penstock at each fault point and at random: receivers miss nothing, and see each key in order."""

from __future__ import annotations

import random
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from test_kill_brokers import Writer

from fix_documents import parse
from fix_postgres import only_new
from fix_replay import assert_order_per_key, replayed, rows_of
from fix_wait import wait_until
from fix_webhooks import Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fix_pipeline import Command
    from fix_postgres import Database
    from fix_webhooks import Receiver

pytestmark = [only_new, pytest.mark.long]

POINTS = (
    "deliver.after_job",
    "documents.before_deliver",
    "documents.inside_deliver",
    "webhook.before_commit",
    "webhook.after_commit",
    "documents.after_deliver",
    "deliver.after_commit",
)
_MOST_WAITING = 600


@pytest.fixture
def writer(source: Database) -> Iterator[Writer]:
    with Writer(source) as writer:
        yield writer


def first_of_each(receiver: Receiver) -> list[tuple[Any, dict[str, Any]]]:
    """Documents without those that came again, as a receiver that knows ids has them."""
    seen: set[str] = set()
    found = []
    for request in receiver.accepted:
        document = parse(request.body)
        if document["id"] not in seen:
            seen.add(document["id"])
            found.append(((document["table"], repr(document["key"])), document))
    return found


@pytest.mark.timeout(1800)  # a dozen starts
def test_kill_at_each_point_and_at_random_loses_nothing(
    source: Database,
    writer: Writer,
    receivers: Callable[..., Receiver],
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    steady, moody = receivers(), receivers()
    moody.reply = lambda _: Reply(500 if random.random() < 0.05 else 200)
    sink = {"kind": "webhook", "urls": [steady.url, moody.url], "allow": ["127.0.0.1"]}
    path = pipeline_file(source, None, sink=sink)
    penstock_command("init", str(path)).wait()
    # A start takes many seconds. What piled up meanwhile would be a batch of minutes, and the passing that kills
    # far away: so there are never more changes than a batch delivers in a moment.
    writer.may_go_on = lambda: 2 * writer.count < len(steady.requests) + _MOST_WAITING
    writer.start()
    for number, point in enumerate(POINTS):
        command = penstock_command(
            "run", str(path), env={"PENSTOCK_FAULT": f"{point}:{2 + number}"}
        )
        wait_until(lambda command=command: command.is_struck, 120, f"a kill at {point}")
        command.kill()
    dice = random.Random(uuid.uuid4().hex)
    for _ in range(3):
        before = writer.count
        command = penstock_command("run", str(path))
        wanted = before + dice.randint(100, 800)
        wait_until(lambda wanted=wanted: writer.count > wanted, 120, "changes")
        command.kill()
    writer.stop()
    moody.reply = Reply()
    last = penstock_command("run", str(path))
    for each in (steady, moody):
        wait_until(
            lambda each=each: (
                replayed([one for _, one in first_of_each(each)]) == rows_of(source, "a", "b")
            ),
            180,
            "what the source has",
            pause_seconds=1.0,
        )
        records = first_of_each(each)
        assert_order_per_key(records)
        # What comes again are requests whose answers were not recorded: few.
        assert len(each.accepted) < 1.5 * len(records)
    assert last.terminate() == 0
