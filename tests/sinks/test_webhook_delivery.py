"""Deliveries to receivers on real sockets: order, answers, retries, what is kept, what is refused."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fix_terminal import encrypted_key, run_at_a_terminal
from fix_wait import wait_until
from fix_webhooks import Hooks, Reply, change, nested
from penstock.errors import SinkError, SinkLoginRefused
from penstock.sinks.webhook.delivery import _lane_of
from penstock.sinks.webhook.doc import Doc
from penstock.sinks.webhook.kind import WebhookKind
from penstock.sinks.webhook.signature import key_of, new_secret, signatures
from penstock.testing.forked import was_killed_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_webhooks import Receiver, Request

pytestmark = pytest.mark.usefixtures("quick_retries")


@pytest.fixture
def quick_retries(use_timing) -> None:
    use_timing(webhook_retry_seconds=0.1, webhook_last_retry_seconds=0.4)


def _in_order_per_key(receiver: Receiver) -> bool:
    seen: dict[str, int] = {}
    for one in receiver.documents:
        key, number = json.dumps(one["key"]), one["xid"]
        if number < seen.get(key, 0):
            return False
        seen[key] = number
    return True


# --- what is sent ------------------------------------------------------------------------------


def test_position_moves_when_receivers_have_it(hooks, receiver) -> None:
    sink = hooks(receiver.url)
    ids = sink.insert(20)
    assert sorted(receiver.ids) == sorted(ids)  # `deliver` has returned, nothing is waited for
    assert sink.stands()["delivered"] == 20
    assert sink.stands()["delivered_lsn"] == "0/14000"


def test_request_is_signed_over_the_bytes_that_are_sent(hooks, receiver) -> None:
    secret = new_secret()
    sink = hooks({"url": receiver.url, "secret": secret})
    sink.insert(3)
    for request in receiver.requests:
        headers = request.headers
        at = int(headers["webhook-timestamp"])
        assert headers["webhook-id"] == headers["idempotency-key"] == request.json["id"]
        assert abs(at - time.time()) < 60
        wanted = signatures([key_of(secret)], headers["webhook-id"], at, request.body)
        assert headers["webhook-signature"] == wanted


def test_check_of_the_how_to_takes_what_is_genuine_and_nothing_else(hooks, receiver) -> None:
    page = (Path(__file__).parents[2] / "docs/howto/webhooks.md").read_text()
    known: dict[str, Any] = {}
    (code,) = [each for each in re.findall(r"```python\n(.*?)```", page, re.S) if "hmac" in each]
    exec(code, known)
    is_genuine = known["is_genuine"]
    new, old = new_secret(), new_secret()
    hooks({"url": receiver.url, "secret": [new, old], "batch_size": 3}).insert(5)
    assert receiver.requests
    for request in receiver.requests:
        assert is_genuine(new, request.headers, request.body)
        assert is_genuine(old, request.headers, request.body)
        assert not is_genuine(new_secret(), request.headers, request.body)
        assert not is_genuine(new, request.headers, request.body + b" ")
        later = {**request.headers, "webhook-timestamp": "1"}
        assert not is_genuine(new, later, request.body)


def test_receiver_without_a_secret_gets_no_signature(hooks, receiver) -> None:
    hooks(receiver.url).insert(1)
    assert "webhook-signature" not in receiver.requests[0].headers


def test_connections_are_used_again_and_bounded(hooks, receiver) -> None:
    receiver.reply = Reply(seconds=0.01, body=b"thanks")
    hooks(receiver.url, concurrency=3).insert(60)
    assert receiver.connections <= 3
    assert receiver.most_in_flight <= 3


def test_tables_and_operations_choose_documents(hooks, receiver) -> None:
    sink = hooks({"url": receiver.url, "tables": ["orders"], "operations": ["insert", "delete"]})
    sink.deliver(
        change(1, 1), change(2, 1, "update"), change(3, 1, "delete"), change(4, 1, table="audit")
    )
    assert sorted(one["op"] for one in receiver.documents) == ["delete", "insert"]


def test_batches_hold_what_waits_up_to_their_size(hooks, receiver) -> None:
    sink = hooks({"url": receiver.url, "batch_size": 10}, concurrency=2)
    ids = sink.insert(100)
    assert sorted(receiver.ids) == sorted(ids)
    assert all(len(each.json) <= 10 for each in receiver.requests)
    assert len(receiver.requests) < 30


def test_documents_of_a_key_come_in_order_whatever_the_receiver_does(hooks, receiver) -> None:
    failed: set[int] = set()

    def reply(request: Request) -> Reply:
        number = request.json["xid"]
        if number % 20 == 0 and number not in failed:
            failed.add(number)
            return Reply(500)
        return Reply(seconds=(number % 3) / 500)

    receiver.reply = reply
    sink = hooks({"url": receiver.url}, concurrency=6)
    ids = sink.deliver(*(change(number, number % 10, "update") for number in range(1, 200)))
    receiver.wait_for(lambda: len(set(receiver.ids)) == len(ids))
    assert _in_order_per_key(receiver)


def test_truncate_waits_for_all_before_it_and_all_behind_wait_for_it(hooks, receiver) -> None:
    receiver.reply = lambda request: Reply(seconds=0.1 if request.json["xid"] == 1 else 0.0)
    sink = hooks(receiver.url)
    sink.deliver(
        change(1, 1), change(2, 2), change(3, None, "truncate"), change(4, 4), change(5, 5)
    )
    numbers = [one["xid"] for one in receiver.documents]
    assert numbers.index(3) == 2


def test_update_of_a_key_comes_between_both_keys_others(hooks, receiver) -> None:
    receiver.reply = lambda request: Reply(seconds=0.1 if request.json["xid"] in (1, 2) else 0.0)
    sink = hooks(receiver.url)
    sink.deliver(
        change(1, 1),
        change(2, 9, "update", before={"id": 1}),
        change(3, 1),
        change(4, 9, "update"),
    )
    numbers = [one["xid"] for one in receiver.documents]
    assert numbers[:2] == [1, 2]


def test_update_of_a_key_comes_between_also_where_a_json_column_looks_like_a_document(
    hooks, receiver
) -> None:
    receiver.reply = lambda request: Reply(seconds=0.1 if request.json["xid"] in (1, 2) else 0.0)
    sink = hooks(receiver.url)
    misleading = {"key": {"id": 9}, "before": None, "after": 1}
    sink.deliver(
        change(1, 1),
        change(2, 9, "update", before={"id": 1}, after={"id": 9, "j": misleading}),
        change(3, 1),
        change(4, 9, "update"),
    )
    numbers = [one["xid"] for one in receiver.documents]
    assert numbers[:2] == [1, 2]


# --- what answers mean -------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 202, 204])
def test_2xx_is_done(hooks, receiver, status: int) -> None:
    receiver.reply = Reply(status)
    sink = hooks(receiver.url)
    sink.insert(1)
    assert len(receiver.requests) == 1
    assert sink.stands()["delivered"] == 1


@pytest.mark.parametrize(
    "reply", [Reply(500), Reply(503), Reply(429), Reply(408), Reply(resets=True), Reply(302)]
)
def test_failure_is_tried_again_until_it_is_taken_and_delays_nobody(
    hooks, receivers, reply: Reply
) -> None:
    failing, other = receivers(), receivers()
    failing.reply = reply
    sink = hooks(failing.url, other.url)
    ids = sink.insert(3)
    assert sorted(other.ids) == sorted(ids)
    assert failing.ids == []
    assert sink.stands()["state"] == "failing"
    more = sink.insert(3)
    assert sorted(other.ids) == sorted(ids + more)
    failing.reply = Reply()
    failing.wait_for(lambda: len(set(failing.ids)) == 6)
    assert len(failing.ids) == 6  # taken once each
    wait_until(lambda: sink.stands()["state"] == "active")
    assert sink.stands()["error"] is None


def test_attempts_after_a_failure_are_counted_and_the_first_is_not(hooks, receiver) -> None:
    receiver.script += [Reply(500), Reply(503)]
    sink = hooks(receiver.url, concurrency=1)
    sink.insert(1)
    receiver.wait_for(lambda: len(receiver.requests) == 3)
    assert sink.sink.take_retries() == 2
    sink.insert(1)
    receiver.wait_for(lambda: len(receiver.requests) == 4)
    assert sink.sink.take_retries() == 0


def test_status_says_how_far_a_subscription_is_behind(hooks, receivers) -> None:
    failing, other = receivers(), receivers()
    sink = hooks(failing.url, {"url": other.url, "tables": ["public.audit"]})
    sink.insert(1)
    failing.wait_for(lambda: failing.ids)
    wait_until(lambda: sink.stands()["lag_bytes"] == 0)
    failing.reply = Reply(500)
    sink.insert(4)
    wait_until(lambda: sink.stands()["lag_bytes"] == 0x4000)
    wait_until(lambda: sink.stands(1)["lag_bytes"] == 0)  # of these it wants none
    failing.reply = Reply(410)
    wait_until(lambda: sink.stands()["state"] == "disabled")
    assert sink.stands()["lag_bytes"] is None


def test_status_says_how_far_a_receiver_is_that_is_never_through_with_everything(
    hooks, receivers, use_timing
) -> None:
    use_timing(webhook_patience_seconds=0.01)
    fast, slow = receivers(), receivers()
    slow.reply = lambda _: Reply(holds=len(slow.requests) >= 50)
    sink = hooks(fast.url, slow.url, concurrency=1)
    for _ in range(10):
        sink.insert(10)
    wait_until(lambda: sink.stands(1)["delivered"] == 50)
    stands = sink.stands(1)
    assert stands["delivered_lsn"] == "0/32000"  # the fiftieth
    assert stands["lag_bytes"] == 50 * 0x1000


def test_name_that_no_name_server_can_be_asked_for_is_a_failure_and_no_defect(hooks) -> None:
    sink = hooks("http://hooks..example/")
    sink.insert(1)
    wait_until(lambda: sink.stands()["state"] == "failing")
    assert sink.stands()["error"] == "no connection: its name cannot be resolved"


def test_redirect_is_not_followed(hooks, receivers) -> None:
    first, second = receivers(), receivers()
    first.reply = Reply(307, headers={"location": second.url})
    sink = hooks(first.url)
    sink.insert(1)
    assert second.requests == []
    wait_until(lambda: "redirects are not followed" in (sink.stands()["error"] or ""))


def test_retry_after_is_honoured(hooks, receiver) -> None:
    receiver.script.append(Reply(429, headers={"retry-after": "2"}))
    hooks(receiver.url).insert(1)
    receiver.wait_for(lambda: receiver.ids)
    first, second = receiver.requests
    assert second.at - first.at >= 1.9


@pytest.mark.parametrize("given", ["restart", "change"])
def test_retry_after_holds_over_a_restart_and_a_change(hooks, receiver, given: str) -> None:
    sink = hooks({"url": receiver.url, "id": "one"})
    receiver.script.append(Reply(429, {"retry-after": "3"}))
    sink.insert(1)
    wait_until(lambda: sink.stands()["state"] == "failing")
    batch_size = 1 if given == "restart" else 2
    sink = hooks({"url": receiver.url, "id": "one", "batch_size": batch_size})
    receiver.wait_for(lambda: len(receiver.accepted) == 1)
    assert receiver.requests[1].at - receiver.requests[0].at >= 2.9


def test_who_resumes_or_has_another_receiver_does_not_wait_for_retry_after(
    hooks, receivers
) -> None:
    receiver, other = receivers(), receivers()
    sink = hooks({"url": receiver.url, "id": "one"})
    receiver.script.append(Reply(429, {"retry-after": "3600"}))
    sink.insert(1)
    wait_until(lambda: sink.stands()["state"] == "failing")
    sink = hooks({"url": other.url, "id": "one"})
    other.wait_for(lambda: len(other.accepted) == 1)
    other.script.append(Reply(429, {"retry-after": "3600"}))
    sink.insert(1)
    wait_until(lambda: sink.stands()["state"] == "failing")
    sink.subscriptions.resume("one")
    other.wait_for(lambda: len(other.accepted) == 2)


def test_back_off_grows_and_one_request_at_a_time_is_tried(hooks, receiver, use_timing) -> None:
    use_timing(webhook_retry_seconds=0.1, webhook_last_retry_seconds=5.0)
    receiver.reply = Reply(500)
    hooks(receiver.url, concurrency=8).insert(40)
    receiver.wait_for(lambda: len(receiver.requests) >= 12)
    at = [each.at for each in receiver.requests[-4:]]
    gaps = [later - earlier for earlier, later in itertools.pairwise(at)]
    assert gaps[2] > 1.2 * gaps[0], gaps


def _poisoned(request: Request) -> Reply:
    return Reply(500 if request.json["key"] == {"id": 1} else 200)


def _tries(receiver: Receiver) -> list[float]:
    return [each.at for each in list(receiver.requests) if each.status == 500]


def test_document_that_fails_by_itself_is_tried_ever_more_seldom_while_others_are_taken(
    hooks, receiver, use_timing
) -> None:
    use_timing(webhook_retry_seconds=0.1, webhook_last_retry_seconds=60.0)
    receiver.reply = _poisoned
    sink = hooks(receiver.url, concurrency=4)
    sink.insert(1)
    wait_until(lambda: sink.stands()["state"] == "failing")
    while len(_tries(receiver)) < 6:
        sink.insert(1)  # keys that are none of its: something is taken again and again
    gaps = [later - earlier for earlier, later in itertools.pairwise(_tries(receiver))]
    assert gaps[4] > 4 * gaps[0], gaps
    assert sink.stands()["state"] == "failing"
    assert sink.stands()["error"] == "the receiver answered 500"


def test_others_do_not_wait_for_the_back_off_of_a_document_that_fails(
    hooks, receiver, use_timing
) -> None:
    use_timing(webhook_retry_seconds=60.0, webhook_last_retry_seconds=60.0)
    receiver.reply = _poisoned
    ids = hooks(receiver.url, concurrency=64).insert(100)
    lanes = {_lane_of(_of(number), 64) for number in range(1, 101)}
    assert len(lanes) > 30
    mine = _lane_of(_of(1), 64)
    others = [ids[number - 1] for number in range(2, 101) if _lane_of(_of(number), 64) != mine]
    receiver.wait_for(lambda: sorted(receiver.ids) == sorted(others), 15)


def _of(number: int) -> Any:
    return Doc(**change(number, number))


def test_document_that_fails_is_given_up_although_others_are_taken(
    hooks, receiver, use_timing
) -> None:
    use_timing(webhook_retry_seconds=0.1, webhook_last_retry_seconds=0.4)
    receiver.reply = _poisoned
    sink = hooks(receiver.url, concurrency=4, give_up_after="1.5s")
    began = time.monotonic()
    sink.insert(1)
    while sink.stands()["state"] != "suspended":
        sink.insert(1)
        assert time.monotonic() - began < 20
    assert time.monotonic() - began > 1.4
    assert "given up after 1.5 s: the receiver answered 500" in sink.stands()["error"]
    assert len(receiver.ids) > 3


def test_all_requests_wait_for_retry_after_whatever_was_under_way(hooks, receivers) -> None:
    receiver, other = receivers(), receivers()

    def reply(request: Request) -> Reply:
        if request.json["xid"] == 1 and not receiver.requests:
            return Reply(429, headers={"retry-after": "2"})
        return Reply(seconds=0.3)

    receiver.reply = reply
    sink = hooks(receiver.url, other.url, concurrency=8)
    ids = sink.insert(60)
    sink.insert(1)
    receiver.wait_for(lambda: set(ids) <= set(receiver.ids))
    (refused,) = [each for each in receiver.requests if each.status == 429]
    under_way = [each for each in receiver.accepted if each.at < refused.at + 1.9]
    assert 0 < len(under_way) <= 7  # those that had set out before


def test_receiver_that_is_down_is_up_by_a_request_that_began_after_its_last_failure(
    hooks, receiver, use_timing
) -> None:
    """What it took before it went down is answered late, and says nothing of it."""
    use_timing(webhook_retry_seconds=0.3, webhook_last_retry_seconds=5.0)

    def reply(request: Request) -> Reply:
        return Reply(seconds=1.0) if request.json["xid"] == 1 else Reply(503)

    receiver.reply = reply
    hooks(receiver.url, concurrency=16).insert(60)
    receiver.wait_for(lambda: receiver.ids)
    at = receiver.accepted[0].at + 1.0
    receiver.wait_for(lambda: sum(each.at > at for each in receiver.requests) >= 3, 20)
    later = [each.at for each in receiver.requests if each.at > at]
    gaps = [after - before for before, after in itertools.pairwise(later)]
    assert gaps[0] > 0.7, gaps  # the pauses had not begun anew


def test_failure_goes_on_over_a_restart_for_the_document_that_blocks(hooks, receiver) -> None:
    receiver.reply = _poisoned
    sink = hooks(receiver.url, concurrency=4, give_up_after="1h")
    sink.insert(1)
    wait_until(lambda: sink.stands()["state"] == "failing")
    sink.insert(8)
    sink.sink.close()
    store = sink.store()
    store._db.execute("UPDATE subscriptions SET failing_since = failing_since - 7200")
    store.close()
    sink = hooks(receiver.url, concurrency=4, give_up_after="1h")
    wait_until(lambda: sink.stands()["state"] == "suspended")


def test_no_answer_in_time_is_a_failure(hooks, receiver) -> None:
    receiver.script.append(Reply(holds=True))
    sink = hooks(receiver.url, timeout=0.3)
    ids = sink.insert(1)
    receiver.wait_for(lambda: receiver.ids == ids)
    receiver.release()


def test_dead_port_is_a_failure_that_ends(hooks, receivers) -> None:
    gone = receivers()
    port = gone.port
    gone.close = lambda closing=gone.close: None  # closed here, not by the fixture
    type(gone).close(gone)
    sink = hooks(f"http://127.0.0.1:{port}/hook")
    ids = sink.insert(2)
    wait_until(lambda: "no connection" in (sink.stands()["error"] or ""))
    back = receivers(port=port)
    back.wait_for(lambda: sorted(back.ids) == sorted(ids))


@pytest.mark.parametrize("body", [{"breaks": True}, {"never_ends": True}])
@pytest.mark.parametrize(("status", "state"), [(200, "active"), (410, "disabled"), (400, "active")])
def test_status_counts_whatever_becomes_of_the_body(
    hooks, receiver, body: dict[str, bool], status: int, state: str
) -> None:
    receiver.reply = Reply(status, body=b"{", **body)
    sink = hooks(receiver.url, on_refused="park")
    sink.insert(1)
    wait_until(lambda: sink.stands()["state"] == state)
    assert len(receiver.requests) == 1
    wanted = {200: (1, 0), 410: (0, 0), 400: (0, 1)}[status]
    assert (sink.stands()["delivered"], sink.stands()["parked"]) == wanted
    assert "no answer" not in (sink.stands()["error"] or "")


def test_410_disables_the_subscription_alone(hooks, receivers) -> None:
    gone, other = receivers(), receivers()
    gone.reply = Reply(410)
    sink = hooks(gone.url, other.url)
    sink.insert(2)
    wait_until(lambda: sink.stands()["state"] == "disabled")
    asked = len(gone.requests)
    sink.insert(2)
    assert len(gone.requests) == asked
    assert len(other.ids) == 4


def test_other_4xx_with_stop_waits_in_place(hooks, receiver) -> None:
    receiver.reply = lambda request: Reply(400 if request.json["xid"] == 2 else 200)
    sink = hooks(receiver.url, concurrency=1)
    ids = sink.insert(4)
    wait_until(lambda: "refuses a document" in (sink.stands()["error"] or ""))
    assert receiver.ids == ids[:1]
    receiver.reply = Reply()
    receiver.wait_for(lambda: receiver.ids == ids)


def test_other_4xx_with_park_lets_the_others_go_on_and_nothing_overtake(hooks, receiver) -> None:
    receiver.reply = lambda request: Reply(400 if request.json["xid"] == 2 else 200)
    sink = hooks(receiver.url, on_refused="park")
    ids = sink.deliver(change(1, 1), change(2, 2), change(3, 2, "update"), change(4, 3))
    receiver.wait_for(lambda: len(receiver.ids) == 2)
    ids += sink.deliver(change(5, 2, "delete"), change(6, 3, "update"))
    receiver.wait_for(lambda: sorted(receiver.ids) == sorted([ids[0], ids[3], ids[5]]))

    kind = WebhookKind()
    wait_until(lambda: len(kind.parked(sink.place)) == 3)
    parked = kind.parked(sink.place)
    assert [each.id.partition("/")[2] for each in parked] == [ids[1], ids[2], ids[4]]
    assert [each.reason for each in parked] == ["the receiver answered 400", None, None]
    assert sink.stands()["parked"] == 3

    receiver.reply = Reply()
    kind.ask_parked(sink.place, "retry", [each.id for each in parked])
    receiver.wait_for(lambda: len(receiver.ids) == 6)
    assert receiver.ids[-3:] == [ids[1], ids[2], ids[4]]
    wait_until(lambda: not kind.parked(sink.place))
    ids += sink.deliver(change(7, 2))
    assert receiver.ids[-1] == ids[-1]


def test_parked_document_that_is_refused_again_stays_also_after_a_restart(hooks, receiver) -> None:
    receiver.reply = lambda request: Reply(422 if request.json["key"] == {"id": 2} else 200)
    sink = hooks(receiver.url, on_refused="park")
    sink.deliver(change(1, 1), change(2, 2))
    kind = WebhookKind()
    sink.sink.close()
    assert len(kind.parked(sink.place)) == 1
    sink = hooks(receiver.url, on_refused="park")
    sink.deliver(change(3, 2, "update"))
    wait_until(lambda: len(kind.parked(sink.place)) == 2)
    asked = len(receiver.requests)
    kind.ask_parked(sink.place, "retry", [each.id for each in kind.parked(sink.place)])
    receiver.wait_for(lambda: len(receiver.requests) == asked + 1)
    wait_until(lambda: kind.parked(sink.place)[0].request is None)
    assert len(kind.parked(sink.place)) == 2
    sink.sink.close()
    kind.drop_parked(sink.place, [each.id for each in kind.parked(sink.place)])
    assert kind.parked(sink.place) == []


def test_documents_that_come_again_after_a_restart_are_parked_once_and_only_behind_what_is_parked(
    hooks, receiver
) -> None:
    receiver.reply = lambda request: Reply({1: 500, 3: 400}.get(request.json["xid"], 200))
    sink = hooks(receiver.url, on_refused="park")
    ids = sink.deliver(
        change(1, 1), change(2, 2), change(3, 2, "update"), change(4, 2, "update"), change(5, 3)
    )
    kind = WebhookKind()
    wait_until(lambda: len(kind.parked(sink.place)) == 2)
    parked = kind.parked(sink.place)
    for count in (2, 3):  # the first fails, so that all that comes behind it comes again
        sink = hooks(receiver.url, on_refused="park")
        receiver.wait_for(lambda count=count: receiver.ids.count(ids[4]) == count)
        receiver.wait_for(lambda count=count: receiver.ids.count(ids[1]) == count)
    sink.sink.close()
    assert kind.parked(sink.place) == parked
    assert [each.id.partition("/")[2] for each in parked] == ids[2:4]

    receiver.reply = Reply()
    sink = hooks(receiver.url, on_refused="park")
    kind.ask_parked(sink.place, "retry", [each.id for each in parked])
    wait_until(lambda: not kind.parked(sink.place))
    of_key_2 = [one["id"] for one in receiver.documents if one["key"] == {"id": 2}]
    assert of_key_2[-2:] == ids[2:4]


@pytest.mark.parametrize("action", ["change", "resume"])
def test_retry_that_is_asked_for_before_deliveries_begin_anew_is_carried_out(
    hooks, receiver, action: str
) -> None:
    receiver.reply = lambda request: Reply({1: 400, 2: 410}.get(request.json["xid"], 200))
    sink = hooks(on_refused="park")
    made = sink.subscriptions.create({"url": receiver.url})["id"]
    ids = sink.insert(1)
    kind = WebhookKind()
    wait_until(lambda: len(kind.parked(sink.place)) == 1)
    if action == "resume":
        sink.insert(1)
        wait_until(lambda: sink.stands()["state"] == "disabled")
    receiver.reply = Reply()
    kind.ask_parked(sink.place, "retry", [each.id for each in kind.parked(sink.place)])
    if action == "resume":
        store = sink.store()
        wait_until(lambda: sink.sink._dispatcher._revision == store.revision)
        store.close()
        sink.subscriptions.resume(made)
    else:
        sink.subscriptions.change(made, {"tables": ["orders"]})
    receiver.wait_for(lambda: receiver.ids == ids)
    wait_until(lambda: not kind.parked(sink.place))


def test_parked_documents_of_a_subscription_that_has_ended_are_dropped_at_once(
    hooks, receiver
) -> None:
    receiver.reply = lambda request: Reply({1: 400, 2: 410}.get(request.json["xid"], 200))
    sink = hooks(receiver.url, on_refused="park")
    sink.insert(1)
    kind = WebhookKind()
    wait_until(lambda: len(kind.parked(sink.place)) == 1)
    sink.insert(1)
    wait_until(lambda: sink.stands()["state"] == "disabled")
    kind.ask_parked(sink.place, "drop", [each.id for each in kind.parked(sink.place)])
    wait_until(lambda: not kind.parked(sink.place))


def test_what_waits_behind_a_document_that_is_refused_again_is_not_delivered_when_that_is_dropped(
    hooks, receiver
) -> None:
    receiver.reply = lambda request: Reply(400 if request.json["xid"] == 1 else 200)
    sink = hooks(receiver.url, on_refused="park")
    sink.deliver(change(1, 1), change(2, 1, "update"))
    kind = WebhookKind()
    wait_until(lambda: len(kind.parked(sink.place)) == 2)
    first, second = (each.id for each in kind.parked(sink.place))
    kind.ask_parked(sink.place, "retry", [first, second])
    wait_until(lambda: [each.request for each in kind.parked(sink.place)] == [None, None])
    kind.ask_parked(sink.place, "drop", [first])
    wait_until(lambda: len(kind.parked(sink.place)) == 1)
    sink = hooks(receiver.url, on_refused="park")
    ids = sink.deliver(change(3, 3))
    receiver.wait_for(lambda: receiver.ids == ids)
    sink.sink.close()
    assert [each.id for each in kind.parked(sink.place)] == [second]


def test_batch_of_which_one_is_refused_parks_that_one_alone(hooks, receiver) -> None:
    receiver.reply = lambda request: Reply(
        400 if any(one["xid"] == 5 for one in request.json) else 200
    )
    sink = hooks({"url": receiver.url, "batch_size": 50}, concurrency=1, on_refused="park")
    ids = sink.insert(20)
    receiver.wait_for(lambda: len(receiver.ids) == 19)
    kind = WebhookKind()
    wait_until(lambda: len(kind.parked(sink.place)) == 1)
    assert kind.parked(sink.place)[0].id.partition("/")[2] == ids[4]


@pytest.mark.parametrize("size", [1, 10])
def test_document_above_max_body_bytes_is_parked_and_the_others_are_sent(
    hooks, receiver, size: int
) -> None:
    wanted = {"url": receiver.url, "batch_size": size}
    sink = hooks(wanted, max_body_bytes="2kB", concurrency=1, on_refused="park")
    large = {"id": 2, "n": 2, "text": "x" * 2000}
    ids = sink.deliver(change(1, 1), change(2, 2, after=large), change(3, 2), change(4, 4))
    receiver.wait_for(lambda: receiver.ids == [ids[0], ids[3]])
    kind = WebhookKind()
    wait_until(lambda: len(kind.parked(sink.place)) == 2)
    reasons = [each.reason for each in kind.parked(sink.place)]
    assert reasons[0] is not None
    assert "above max_body_bytes: 2000" in reasons[0]
    assert reasons[1] is None
    assert all(len(each.body) <= 2000 for each in receiver.requests)
    assert sink.stands()["state"] == "active"

    sink = hooks(wanted, max_body_bytes="20kB", concurrency=1, on_refused="park")
    kind.ask_parked(sink.place, "retry", [each.id for each in kind.parked(sink.place)])
    receiver.wait_for(lambda: receiver.ids[2:] == [ids[1], ids[2]])


def test_document_above_max_body_bytes_with_stop_waits_in_place_and_says_so(
    hooks, receiver
) -> None:
    sink = hooks(receiver.url, max_body_bytes="2kB", concurrency=4)
    large = {"id": 2, "n": 2, "text": "x" * 2000}
    ids = sink.deliver(change(1, 1), change(2, 2, after=large), change(3, 2))
    wait_until(lambda: "above max_body_bytes" in (sink.stands()["error"] or ""))
    assert ids[1] not in receiver.ids
    assert ids[2] not in receiver.ids
    sink = hooks(receiver.url)
    receiver.wait_for(lambda: set(receiver.ids) == set(ids))
    wait_until(lambda: sink.stands()["state"] == "active")


def test_document_that_is_nested_too_deeply_to_be_read_is_delivered_as_it_is(
    hooks, receivers
) -> None:
    plain, cloud = receivers(), receivers()
    sink = hooks(plain.url, {"url": cloud.url, "format": "cloudevents"})
    # REPLICA IDENTITY FULL: whether its key changes stands in the old row.
    update = nested(change(2, 1, "update", before={"id": 1, "n": 2}))

    sink.deliver(change(1, 1), update, change(3, 1))

    assert [each.body.decode() for each in plain.requests][1] == update["value"]
    assert update["value"] in cloud.requests[1].body.decode()
    assert len(plain.requests) == len(cloud.requests) == 3


def test_document_that_is_nested_too_deeply_for_pgstreams_form_is_refused(hooks, receiver) -> None:
    sink = hooks({"url": receiver.url, "format": "pgstream"}, on_refused="park")

    sink.deliver(nested(change(1, 1)), change(2, 2))

    receiver.wait_for(lambda: len(receiver.requests) == 1)
    wait_until(lambda: sink.stands()["parked"] == 1)
    (parked,) = WebhookKind().parked(sink.place)
    assert parked.reason == "it has JSON that is nested too deeply for format pgstream"
    assert parked.values == nested(change(1, 1))["value"]


def test_document_of_the_largest_size_is_sent(hooks, receiver) -> None:
    text = change(1, 1)["value"]
    sink = hooks(receiver.url, max_body_bytes=1000)
    row = change(1, 1, after={"id": 1, "n": 1, "x": "y" * (1000 - len(text) - len(',"x":""'))})
    assert len(row["value"]) == 1000
    ids = sink.deliver(row)
    assert receiver.ids == ids


def test_pgstream_event_has_types_also_once_it_was_parked(hooks, receiver) -> None:
    receiver.reply = Reply(400)
    sink = hooks({"url": receiver.url, "format": "pgstream"}, on_refused="park")
    sink.deliver(change(1, 1))
    kind = WebhookKind()
    wait_until(lambda: kind.parked(sink.place))
    receiver.reply = Reply()
    kind.ask_parked(sink.place, "retry", [each.id for each in kind.parked(sink.place)])
    receiver.wait_for(lambda: receiver.accepted)
    for each in receiver.requests:
        assert [one["type"] for one in each.json["Data"]["columns"]] == ["integer", "integer"]


# --- receivers of the file ---------------------------------------------------------------------


def test_receiver_with_an_id_keeps_its_place_when_its_url_changes(hooks, receivers) -> None:
    wrong, right = receivers(), receivers()
    wrong.reply = Reply(500)
    sink = hooks({"id": "billing", "url": wrong.url})
    ids = sink.insert(3)
    sink = hooks({"id": "billing", "url": right.url})
    right.wait_for(lambda: sorted(right.ids) == sorted(ids))
    assert [each["id"] for each in sink.subscriptions.all()] == ["billing"]


def test_receiver_that_is_given_an_id_keeps_its_place_and_what_is_parked(
    hooks, receiver, caplog
) -> None:
    receiver.reply = lambda request: Reply(400 if request.json["xid"] == 2 else 500)
    sink = hooks(receiver.url, on_refused="park", concurrency=1)
    ids = sink.insert(3)
    wait_until(lambda: sink.stands()["state"] == "failing")
    receiver.reply = lambda request: Reply(400 if request.json["xid"] == 2 else 200)
    sink = hooks({"id": "billing", "url": receiver.url}, on_refused="park", concurrency=1)
    receiver.wait_for(lambda: sorted(receiver.ids) == [ids[0], ids[2]])
    kind = WebhookKind()
    wait_until(lambda: kind.parked(sink.place))
    sink = hooks({"id": "bills", "url": receiver.url}, on_refused="park", concurrency=1)
    assert [each.id for each in kind.parked(sink.place)] == [f"bills/{ids[1]}"]
    assert "not in urls: any more" not in caplog.text
    assert sorted(receiver.ids) == [ids[0], ids[2]]


def test_two_receivers_of_one_url_keep_each_its_own_place_when_they_are_given_ids(
    hooks, receiver
) -> None:
    receiver.reply = Reply(500)
    first = {"url": receiver.url, "tables": ["orders"]}
    second = {"url": receiver.url, "tables": ["audit"]}
    sink = hooks(first, second)
    ids = sink.insert(2) + sink.insert(2, table="audit")
    receiver.reply = Reply()
    sink = hooks({"id": "b", **second}, {"id": "a", **first})
    receiver.wait_for(lambda: len(receiver.ids) >= 4)
    assert sorted(receiver.ids) == sorted(ids)
    tables = {each["id"]: each["tables"] for each in sink.subscriptions.all()}
    assert tables == {"a": ["public.orders"], "b": ["public.audit"]}


@pytest.mark.parametrize("before", [{}, {"id": "bills"}])
@pytest.mark.parametrize("after", [{}, {"id": "billing"}])
def test_two_receivers_of_one_url_keep_their_places_when_one_is_given_an_id_or_none(
    hooks, receiver, before, after
) -> None:
    """A number tells those without an id apart, and it moves."""
    first = {"url": receiver.url, "tables": ["orders"]}
    second = {"url": receiver.url, "tables": ["audit"]}
    receiver.reply = lambda request: Reply(500 if request.json["table"] == "audit" else 200)
    sink = hooks({**before, **first}, second)
    ids = sink.insert(2) + sink.insert(2, table="audit")
    receiver.wait_for(lambda: sorted(receiver.ids) == sorted(ids[:2]))
    wait_until(lambda: "failing" in [sink.stands(number)["state"] for number in (0, 1)])
    receiver.reply = Reply()
    sink = hooks({**after, **first}, second)
    receiver.wait_for(lambda: len(receiver.ids) >= 4)
    assert sorted(receiver.ids) == sorted(ids)
    assert len(sink.subscriptions.all()) == 2


def test_two_receivers_of_one_url_keep_their_places_when_they_change_their_order(
    hooks, receiver
) -> None:
    first = {"url": receiver.url, "tables": ["orders"]}
    second = {"url": receiver.url, "tables": ["audit"]}
    receiver.reply = lambda request: Reply(500 if request.json["table"] == "audit" else 200)
    sink = hooks(first, second)
    ids = sink.insert(2) + sink.insert(2, table="audit")
    wait_until(lambda: "failing" in [sink.stands(number)["state"] for number in (0, 1)])
    receiver.reply = Reply()
    sink = hooks(second, first)
    receiver.wait_for(lambda: len(receiver.ids) >= 4)
    assert sorted(receiver.ids) == sorted(ids)


def test_two_ids_that_change_their_urls_with_each_other_keep_their_places(hooks, receivers) -> None:
    one, other = receivers(), receivers()
    one.reply = Reply(500)
    sink = hooks({"id": "a", "url": one.url}, {"id": "b", "url": other.url})
    ids = sink.insert(2)
    other.wait_for(lambda: sorted(other.ids) == sorted(ids))
    sink = hooks({"id": "a", "url": other.url}, {"id": "b", "url": one.url})
    other.wait_for(lambda: sorted(other.ids) == sorted([*ids, *ids]))
    assert one.ids == []


def test_url_that_is_changed_without_an_id_begins_anew_and_the_log_says_what_is_lost(
    hooks, receivers, caplog
) -> None:
    wrong, right = receivers(), receivers()
    sink = hooks(wrong.url, on_refused="park")
    sink.insert(1)
    wrong.reply = lambda request: Reply(400 if request.json["xid"] == 2 else 500)
    sink.insert(3)
    wait_until(lambda: sink.stands()["parked"] == 1)
    wait_until(lambda: sink.stands()["state"] == "failing")
    sink = hooks(right.url, on_refused="park")
    (line,) = [each for each in caplog.messages if "not in urls: any more" in each]
    assert "documents after 0/1000 up to 0/4000 that waited" in line
    assert "1 document parked for it" in line
    assert wrong.url not in line
    ids = sink.insert(1)
    assert right.ids == ids


def test_two_secrets_of_the_file_sign_both_the_new_one_first(hooks, receiver) -> None:
    """That is how a secret is replaced: the receiver may take either for as long as both stand there."""
    new, old = new_secret(), new_secret()
    sink = hooks({"url": receiver.url, "secret": [new, old]})
    sink.insert(1)
    (request,) = receiver.requests
    headers = request.headers
    signed = headers["webhook-id"], int(headers["webhook-timestamp"]), request.body
    assert headers["webhook-signature"] == signatures([key_of(new), key_of(old)], *signed)
    sink = hooks({"url": receiver.url, "secret": new})
    sink.insert(1)
    request = receiver.requests[-1]
    headers = request.headers
    signed = headers["webhook-id"], int(headers["webhook-timestamp"]), request.body
    assert headers["webhook-signature"] == signatures([key_of(new)], *signed)


# --- subscriptions that fall behind ------------------------------------------------------------


def test_slow_receiver_delays_the_others_less_and_less(hooks, receivers) -> None:
    slow, fast = receivers(), receivers()
    slow.reply = Reply(holds=True)
    sink = hooks(slow.url, fast.url)
    took = []
    for _ in range(6):
        began = time.monotonic()
        ids = sink.insert(1)
        took.append(time.monotonic() - began)
        assert fast.ids[-1:] == ids
    assert max(took[1:]) < 0.9, took  # only the first batch waits for what never comes
    slow.release()
    slow.wait_for(lambda: sorted(slow.ids) == sorted(fast.ids))


def test_documents_that_are_read_ahead_are_bounded_by_their_size(
    hooks, receiver, monkeypatch
) -> None:
    monkeypatch.setattr("penstock.sinks.webhook.delivery._MOST_AHEAD_CHARACTERS", 10_000)
    receiver.reply = Reply(holds=True)
    sink = hooks(receiver.url, concurrency=2)
    delivering = threading.Thread(target=sink.insert, args=(100,))
    delivering.start()
    wait_until(lambda: receiver.in_flight == 2)
    (delivery,) = sink.sink._dispatcher._deliveries.values()
    assert 9_000 < delivery._track.size < 11_000
    receiver.release()
    delivering.join()
    assert len(receiver.ids) == 100
    assert delivery._track.size == 0


def test_who_wants_nothing_of_a_batch_is_not_held_up_by_who_does(
    hooks, receivers, use_timing
) -> None:
    """One who has everything waits for others for their patience; then they go on by themselves."""
    use_timing(webhook_patience_seconds=0.2)
    fast, slow = receivers(), receivers()
    slow.reply = Reply(holds=True)
    sink = hooks({"url": fast.url, "tables": ["audit"]}, {"url": slow.url, "tables": ["orders"]})
    began = time.monotonic()
    waiting = sink.insert(120)
    ids = sink.insert(2, table="audit")
    took = time.monotonic() - began
    assert sorted(fast.ids) == sorted(ids)  # `deliver` has returned
    assert took < 5, took  # nobody has answered the others, for which there is half a minute
    assert slow.ids == []
    slow.release()
    slow.wait_for(lambda: sorted(slow.ids) == sorted(waiting))


def test_sole_receiver_that_answers_may_take_its_time(hooks, receivers, use_timing) -> None:
    """Also beside one that fails: nobody is held up, and the outbox does not grow."""
    use_timing(webhook_patience_seconds=0.01)
    failing, slow = receivers(), receivers()
    failing.reply = Reply(500)
    sink = hooks({"url": failing.url, "tables": ["audit"]}, slow.url, concurrency=1)
    sink.insert(1, table="audit")
    wait_until(lambda: sink.stands()["state"] == "failing")
    slow.reply = Reply(seconds=0.02)
    ids = sink.insert(100)
    assert set(ids) <= set(slow.ids)  # `deliver` has returned


def test_backlog_of_one_receiver_does_not_hold_up_the_opening_for_the_others(
    hooks, receivers, use_timing
) -> None:
    use_timing(webhook_patience_seconds=0.05)
    fast, slow = receivers(), receivers()
    slow.reply = Reply(holds=True)
    wanted = {"url": fast.url, "tables": ["audit"]}, slow.url
    sink = hooks(*wanted)
    orders = (change(number, number) for number in range(1, 501))
    ids = sink.deliver(*orders, change(501, 501, table="audit"))
    wait_until(lambda: sink.stands()["delivered"] == 1)
    began = time.monotonic()
    sink = hooks(*wanted)
    ids += sink.deliver(change(502, 502, table="audit"))
    took = time.monotonic() - began
    assert fast.ids == ids[-2:]
    assert took < 10, took  # a held request is ended after a second, of half a minute
    slow.release()
    slow.wait_for(lambda: set(slow.ids) == set(ids))


def test_sink_has_handed_on_when_everybody_who_does_not_fail_has_everything(
    hooks, receivers, use_timing
) -> None:
    use_timing(webhook_patience_seconds=0.05)
    fast, slow, failing = receivers(), receivers(), receivers()
    slow.reply, failing.reply = Reply(holds=True), Reply(500)
    sink = hooks(fast.url, slow.url, failing.url)
    ids = sink.insert(3)
    wait_until(lambda: sink.stands(2)["state"] == "failing")
    assert sorted(fast.ids) == sorted(ids)
    assert not sink.sink.has_handed_on()
    slow.release()
    wait_until(sink.sink.has_handed_on)
    assert sorted(slow.ids) == sorted(ids)
    assert sink.stands(2)["state"] == "failing"


def test_subscription_is_suspended_after_give_up_after_and_resumed_where_it_was(
    hooks, receivers
) -> None:
    failing, other = receivers(), receivers()
    failing.reply = Reply(500)
    sink = hooks(failing.url, other.url, give_up_after="1s")
    ids = sink.insert(3)
    wait_until(lambda: sink.stands()["state"] == "suspended")
    assert "given up" in sink.stands()["error"]
    ids += sink.insert(3)
    asked = len(failing.requests)
    failing.reply = Reply()
    assert len(failing.requests) == asked
    id_ = sink.subscriptions.all()[0]["id"]
    sink.subscriptions.resume(id_)
    failing.wait_for(lambda: sorted(set(failing.ids)) == sorted(ids))
    assert sink.stands()["state"] == "active"


def test_time_of_failing_goes_on_over_a_restart(hooks, receiver) -> None:
    receiver.reply = Reply(500)
    sink = hooks(receiver.url, give_up_after="1h")
    sink.insert(1)
    wait_until(lambda: sink.stands()["state"] == "failing")
    sink.sink.close()
    store = sink.store()
    store._db.execute("UPDATE subscriptions SET failing_since = failing_since - 7200")
    store.close()
    sink = hooks(receiver.url, give_up_after="1h")
    wait_until(lambda: sink.stands()["state"] == "suspended")


def test_outbox_beyond_retain_bytes_cuts_off_who_is_behind_and_says_so(hooks, receivers) -> None:
    failing, other = receivers(), receivers()
    failing.reply = Reply(500)
    sink = hooks(failing.url, other.url, retain_bytes="20kB")
    ids: list[str] = []
    for _ in range(30):
        ids += sink.insert(10)
        sink.sink._prune_at = 0.0
    sink.sink.idle()
    wait_until(lambda: sink.stands()["state"] == "cut_off")
    assert "retain_bytes" in sink.stands()["error"]
    assert sink.stands(1)["state"] == "active"
    assert sink.stands(1)["lost_to_lsn"] is None
    assert len(other.ids) == 300
    failing.reply = Reply()
    sink.subscriptions.resume(sink.subscriptions.all()[0]["id"])
    wait_until(lambda: sink.stands()["state"] == "active")
    ids += sink.insert(2)
    lost = int(sink.stands()["lost_to_lsn"].partition("/")[2], 16) // 0x1000
    assert 0 < lost < 290  # the oldest are gone, no others
    failing.wait_for(lambda: sorted(failing.ids) == sorted(ids[lost:]))


def test_cut_off_loses_the_oldest_alone_and_the_gap_is_shown_for_good(hooks, receiver) -> None:
    sink = hooks(receiver.url)
    ids = sink.insert(2)
    sink.sink._prune_at = 0.0
    sink.sink.idle()
    receiver.reply = Reply(500)
    ids += [id_ for _ in range(20) for id_ in sink.insert(10)]
    store = sink.store()
    size = store.outbox_bytes
    sink = hooks(receiver.url, retain_bytes=size - 240)
    sink.sink._prune_at = 0.0
    sink.sink.idle()
    stands = sink.stands()
    assert stands["state"] == "cut_off"
    assert size - 240 >= store.outbox_bytes > 0.8 * size  # one entry is gone
    assert (stands["lost_after_lsn"], stands["lost_to_lsn"]) == ("0/2000", "0/C000")
    assert "after 0/2000 up to 0/C000 are gone" in stands["error"]

    # What comes meanwhile is kept for it, too, and pushes out the oldest.
    ids += sink.insert(10)
    sink.sink._prune_at = 0.0
    sink.sink.idle()
    stands = sink.stands()
    assert size - 240 >= store.outbox_bytes > 0.8 * size
    assert (stands["lost_after_lsn"], stands["lost_to_lsn"]) == ("0/2000", "0/16000")
    store.close()

    receiver.reply = Reply()
    resumed = sink.subscriptions.resume(sink.subscriptions.all()[0]["id"])
    assert resumed["sources"]["shop"]["from_lsn"] == "0/16000"
    receiver.wait_for(lambda: sorted(receiver.ids) == sorted(ids[:2] + ids[22:]))
    wait_until(lambda: sink.stands()["state"] == "active")
    assert sink.stands()["error"] is None
    assert sink.stands()["lost_to_lsn"] == "0/16000"


def test_outbox_is_emptied_when_everybody_has_it(hooks, receivers) -> None:
    sink = hooks(receivers().url, receivers().url)
    sink.insert(50)
    sink.sink._prune_at = 0.0
    sink.sink.idle()
    store = sink.store()
    assert store.outbox_bytes == 0
    assert store.entry(0) is None
    store.close()


def test_nothing_is_stored_while_nobody_has_subscribed(hooks) -> None:
    sink = hooks()
    sink.insert(10)
    store = sink.store()
    assert store.entry(0) is None
    assert store.delivered_lsn == "0/A000"
    store.close()


def test_one_that_subscribes_while_documents_are_stored_misses_nothing(hooks, receiver) -> None:
    sink = hooks()

    def documents() -> Any:
        import pyarrow as pa

        from penstock.sink import DOCUMENTS

        sink.subscriptions.create({"url": receiver.url})
        yield pa.RecordBatch.from_pylist([change(1, 1)], DOCUMENTS)

    with pytest.raises(SinkError, match="a subscription was made"):
        sink.sink.deliver(documents(), json.dumps({"delivered_lsn": "0/1000"}))
    sink.sink.open()  # as penstock does after a SinkError
    ids = sink.deliver(change(1, 1))
    receiver.wait_for(lambda: receiver.ids == ids)


def test_subscription_that_is_changed_again_and_again_has_one_delivery(
    hooks, receiver, use_timing
) -> None:
    use_timing(
        webhook_patience_seconds=0.05, webhook_record_seconds=0.02, webhook_stop_seconds=20.0
    )
    receiver.reply = Reply(holds=True)
    sink = hooks(concurrency=1)
    made = sink.subscriptions.create({"url": receiver.url})["id"]
    delivering = threading.Thread(target=sink.insert, args=(1,))
    delivering.start()
    wait_until(lambda: receiver.in_flight == 1)
    for number in range(5):
        sink.subscriptions.change(made, {"batch_size": 2 + number})
        store = sink.store()
        wait_until(lambda store=store: sink.sink._dispatcher._revision == store.revision)
        store.close()
    assert receiver.most_in_flight == 1
    receiver.release()
    receiver.wait_for(lambda: receiver.ids)
    delivering.join()
    ids = receiver.ids + sink.insert(1)
    receiver.wait_for(lambda: receiver.ids == ids)
    assert isinstance(receiver.requests[-1].json, list)  # as it was changed last


@pytest.mark.parametrize("act", ["change", "remove"])
def test_subscription_that_is_changed_or_removed_is_not_waited_for(
    hooks, receiver, use_timing, act: str
) -> None:
    use_timing(webhook_stop_seconds=0.1)
    receiver.reply = Reply(holds=True)
    sink = hooks()
    made = sink.subscriptions.create({"url": receiver.url})["id"]
    delivering = threading.Thread(target=sink.insert, args=(1,), daemon=True)
    delivering.start()
    wait_until(lambda: receiver.in_flight == 1)
    if act == "change":
        sink.subscriptions.change(made, {"batch_size": 2})
    else:
        sink.subscriptions.remove(made)
    delivering.join(10)
    assert not delivering.is_alive()


# --- crashes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["webhook.before_commit", "webhook.after_commit"])
def test_kill_around_the_outbox_loses_nothing_and_doubles_nothing(
    tmp_path, receiver, point: str
) -> None:
    def one_run() -> None:
        sink = Hooks(tmp_path, urls=[receiver.url])
        state = sink.sink.open()
        at = 0 if state is None else int(json.loads(state)["delivered_lsn"].partition("/")[2], 16)
        for number in range(at // 0x1000 + 1, 7):
            sink.deliver(change(number, number))
        sink.sink.close()

    assert was_killed_at(point, 3, one_run)
    one_run()
    assert receiver.ids == [change(number, number)["id"] for number in range(1, 7)]


def test_kill_within_a_large_transaction_leaves_nothing_of_it(
    tmp_path, receiver, monkeypatch
) -> None:
    monkeypatch.setattr("penstock.sinks.webhook.outbox._TRANSACTION_BYTES", 1000)
    monkeypatch.setattr("penstock.sinks.webhook.outbox._ENTRY_DOCUMENTS", 10)

    def one_run() -> None:
        sink = Hooks(tmp_path, urls=[receiver.url])
        assert sink.sink.open() is None
        sink.insert(100)
        sink.sink.close()

    assert was_killed_at("webhook.inside_append", 3, one_run)
    assert receiver.requests == []
    one_run()
    assert len(receiver.ids) == len(set(receiver.ids)) == 100


def test_kill_in_the_middle_of_requests_repeats_only_what_was_not_recorded(
    tmp_path, receiver
) -> None:
    receiver.reply = Reply(seconds=0.02)

    def one_run() -> None:
        sink = Hooks(tmp_path, urls=[receiver.url])
        if sink.sink.open() is None:
            sink.insert(300)
        sink.sink.close()

    child = os.fork()
    if child == 0:
        one_run()
        os._exit(0)
    receiver.wait_for(lambda: len(receiver.requests) >= 150)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    one_run()
    wanted = {change(number, number)["id"] for number in range(1, 301)}
    assert set(receiver.ids) == wanted
    assert len(receiver.ids) < 400  # a fifth of a second's worth, not all


def test_close_in_the_middle_goes_on_where_it_was(hooks, receiver) -> None:
    receiver.reply = Reply(500)
    sink = hooks(receiver.url)
    ids = sink.insert(50)
    sink.sink.close()  # before it is answered otherwise: an answer may be lost with who waits for it
    receiver.reply = Reply()
    hooks(receiver.url)
    receiver.wait_for(lambda: len(set(receiver.ids)) == 50)
    assert sorted(receiver.ids) == sorted(ids)


# --- a sink that a person holds ----------------------------------------------------------------


def test_sink_that_is_paused_asks_nobody_until_it_is_resumed(hooks, receiver) -> None:
    sink = hooks(receiver.url, concurrency=2)
    ids = sink.insert(2)
    sink.sink.pause()
    asked = len(receiver.requests)
    ids += sink.insert(5)  # returns: nobody is waited for
    made = sink.subscriptions.create({"url": receiver.url_of("/later")})["id"]
    ids += sink.insert(1)
    wait_until(lambda: made in sink.sink._dispatcher._deliveries)
    wait_until(lambda: all(len(each._track) for each in _deliveries(sink)))
    assert len(receiver.requests) == asked
    assert not sink.sink.has_handed_on()
    sink.sink.resume()
    receiver.wait_for(lambda: len(receiver.ids) == len(ids) + 1)
    assert set(receiver.ids) == set(ids)
    wait_until(sink.sink.has_handed_on)  # the last answers have come, too
    assert sink.insert(1)[0] in receiver.ids  # it is waited for again


def _deliveries(sink: Hooks) -> list[Any]:
    assert sink.sink._dispatcher is not None
    return list(sink.sink._dispatcher._deliveries.values())


def test_sink_that_is_paused_before_it_is_opened_asks_nobody(hooks, receiver) -> None:
    receiver.reply = Reply(500)
    sink = hooks(receiver.url)
    ids = sink.insert(3)
    sink.sink.pause()
    sink.sink.close()
    receiver.reply = Reply()
    asked = len(receiver.requests)
    sink.sink.open()
    ids += sink.insert(3)
    (delivery,) = _deliveries(sink)
    wait_until(lambda: delivery.begun == 6)
    assert len(receiver.requests) == asked
    sink.sink.resume()
    receiver.wait_for(lambda: sorted(receiver.ids) == sorted(ids))


def test_request_that_is_under_way_when_the_sink_is_paused_counts(
    hooks, receiver, use_timing
) -> None:
    use_timing(webhook_patience_seconds=0.05)
    receiver.reply = lambda request: Reply(holds=request.path == "/hook")
    sink = hooks(receiver.url, receiver.url_of("/fast"), concurrency=1)
    sink.insert(3)
    sink.sink.pause()
    receiver.reply = Reply()
    receiver.release()
    wait_until(lambda: sink.stands()["delivered"] == 1)
    assert sum(each.path == "/hook" for each in receiver.requests) == 1
    sink.sink.resume()
    wait_until(lambda: sink.stands()["delivered"] == 3)
    assert sum(each.path == "/hook" for each in receiver.requests) == 3


def test_outbox_is_bounded_while_the_sink_is_paused(hooks, receiver) -> None:
    sink = hooks(receiver.url, retain_bytes="4kB")
    sink.sink.pause()
    for _ in range(20):
        sink.insert(10)
    sink.sink._prune_at = 0.0
    sink.sink.idle()
    wait_until(lambda: sink.stands()["state"] == "cut_off")
    assert receiver.requests == []


# --- where requests may go ---------------------------------------------------------------------


def test_loopback_is_not_asked_unless_it_is_allowed(hooks, receiver) -> None:
    sink = hooks(receiver.url, allow=[])
    sink.insert(1)
    wait_until(lambda: "loopback" in (sink.stands()["error"] or ""))
    assert receiver.connections == 0
    found = [str(each.error) for each in sink.sink.check()]
    assert len(found) == 1
    assert "allow: [127.0.0.1]" in found[0]


def test_name_that_resolves_to_loopback_is_not_asked(hooks, receiver) -> None:
    sink = hooks(f"http://localhost:{receiver.port}/hook", allow=["10.0.0.0/8"])
    sink.insert(1)
    wait_until(lambda: sink.stands()["state"] == "failing")
    assert receiver.connections == 0
    assert "no connection" in sink.stands()["error"]


def test_name_of_which_one_address_is_allowed_is_asked_there_alone(
    hooks, receiver, monkeypatch
) -> None:
    known = socket.getaddrinfo

    def resolve(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host == "both.example":
            return [
                (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0)),
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)),
            ]
        return known(host, port, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    sink = hooks()
    sink.subscriptions.create({"url": f"http://both.example:{receiver.port}/hook"})
    ids = sink.insert(1)
    receiver.wait_for(lambda: receiver.ids == ids)
    assert sink.stands()["error"] is None


def test_name_that_resolves_to_something_else_by_then_is_not_asked(
    hooks, receiver, monkeypatch
) -> None:
    known = socket.getaddrinfo
    answers = ["93.184.216.34"]  # to who subscribes; from then on it is loopback

    def resolve(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host == "moves.example":
            return known(answers.pop() if answers else "127.0.0.1", port, *args, **options)
        return known(host, port, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    sink = hooks(allow=[])
    sink.subscriptions.create({"url": f"http://moves.example:{receiver.port}/hook"})
    assert not answers
    sink.insert(1)
    wait_until(lambda: sink.stands()["state"] == "failing")
    assert "loopback" in sink.stands()["error"]
    assert receiver.connections == 0


def test_names_that_nobody_resolves_delay_neither_other_names_nor_filters(
    hooks, receivers, monkeypatch
) -> None:
    known, is_released = socket.getaddrinfo, threading.Event()
    asked: list[str] = []

    def resolve(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        asked.append(host)
        if host.startswith("dead"):
            is_released.wait(60)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return known("127.0.0.1" if host == "alive.example" else host, port, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    named, filtered = receivers(), receivers()
    dead = [f"http://dead{number}.example/" for number in range(6)]
    alive = f"http://alive.example:{named.port}/hook"
    wanted = {"url": filtered.url, "tables": ["orders"], "filter": "n > 0"}
    try:
        sink = hooks(*dead, alive, wanted, concurrency=8)
        delivering = threading.Thread(target=sink.insert, args=(60,))
        delivering.start()
        for each in (named, filtered):
            each.wait_for(lambda each=each: len(each.ids) == 60, 15)
        delivering.join()
        assert asked.count("alive.example") == 1  # known for a while
        assert len(asked) == len(set(asked))  # and one lookup of a name at a time
    finally:
        is_released.set()


def test_proxies_of_the_environment_are_not_used(hooks, receivers, monkeypatch) -> None:
    """One would resolve names and connect by itself: addresses could not be checked."""
    receiver, proxy = receivers(), receivers()
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv(name.upper(), f"http://127.0.0.1:{proxy.port}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    ids = hooks(receiver.url).insert(2)
    assert sorted(receiver.ids) == sorted(ids)
    assert proxy.requests == []


def test_long_answer_is_not_read_to_its_end_and_changes_nothing(hooks, receiver) -> None:
    receiver.reply = Reply(200, body=b"x" * 1_000_000)
    sink = hooks(receiver.url)
    ids = sink.insert(5)
    receiver.wait_for(lambda: sorted(receiver.ids) == sorted(ids))
    assert sink.stands()["state"] == "active"


def test_nothing_that_is_secret_is_logged_or_shown(hooks, receiver, caplog) -> None:
    secret = new_secret()
    canary = "canary-in-the-query"
    caplog.set_level("DEBUG")
    receiver.reply = Reply(500)
    sink = hooks({"url": f"{receiver.url}?key={canary}", "secret": secret})
    sink.insert(2)
    wait_until(lambda: sink.stands()["state"] == "failing")
    shown = repr(sink.sink.__dict__) + caplog.text + str(sink.stands())
    for hidden in (secret, secret.removeprefix("whsec_"), canary):
        assert hidden not in shown


@pytest.fixture
def certificate(tmp_path) -> Callable[..., Any]:
    """Makes a certificate that is its own authority: the file, and a context for a receiver."""

    def make(name: str) -> tuple[Any, ssl.SSLContext]:
        command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=x -addext"
        key, own = tmp_path / "key.pem", tmp_path / "certificate.pem"
        given = [f"subjectAltName={name}", "-keyout", key, "-out", own]
        subprocess.run([*command.split(), *given], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(own, key)
        return own, context

    return make


def test_certificate_of_nobody_we_know_is_a_failure_and_nothing_is_sent(
    hooks, receivers, certificate
) -> None:
    _, context = certificate("IP:127.0.0.1")
    receiver = receivers(tls=context)
    sink = hooks(receiver.url)
    sink.insert(1)
    wait_until(lambda: "certificate is not trusted" in (sink.stands()["error"] or ""))
    assert receiver.requests == []


def test_certificate_of_a_known_authority_is_trusted_for_its_own_name_alone(
    hooks, receivers, certificate
) -> None:
    own, context = certificate("DNS:localhost")
    receiver = receivers(tls=context)
    tls = {"ca": str(own)}
    sink = hooks(receiver.url, tls=tls)  # by its address
    sink.insert(1)
    wait_until(lambda: "certificate is not trusted" in (sink.stands()["error"] or ""))
    assert receiver.requests == []
    sink = hooks(receiver.url.replace("127.0.0.1", "localhost"), tls=tls)
    ids = sink.insert(1)
    receiver.wait_for(lambda: receiver.ids == ids)


def test_certificates_that_cannot_be_read_are_for_a_person(hooks, tmp_path) -> None:
    with pytest.raises(SinkLoginRefused, match="certificates cannot be used"):
        hooks(tls={"ca": str(tmp_path / "none.pem")})


_OPEN = """
import sys
from penstock.errors import SinkLoginRefused
from penstock.sinks.webhook.client import Client
from penstock.sinks.webhook.options import WebhookOptions
tls = {"certificate": sys.argv[1], "key": sys.argv[2]}
try:
    Client(WebhookOptions.model_validate({"tls": tls}), "sink hooks")._tls()
except SinkLoginRefused as error:
    print(error.do)
"""


def test_encrypted_key_is_an_error_and_nobody_at_a_terminal_is_asked(tmp_path) -> None:
    assert "the key must not be encrypted" in run_at_a_terminal(_OPEN, *encrypted_key(tmp_path))


def test_100_subscriptions_each_get_everything(hooks, receiver) -> None:
    seen: dict[str, list[str]] = {}

    def reply(request: Request) -> Reply:
        seen.setdefault(request.path, []).append(request.json["id"])
        return Reply()

    receiver.reply = reply
    sink = hooks(*(receiver.url_of(f"/{number}") for number in range(100)), concurrency=2)
    ids = sink.insert(10)
    receiver.wait_for(lambda: len(receiver.requests) == 1000)
    assert len(seen) == 100
    assert all(sorted(found) == sorted(ids) for found in seen.values())
