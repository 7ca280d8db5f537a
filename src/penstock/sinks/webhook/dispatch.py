"""All deliveries of a sink, in an event loop in a thread of its own, from `start` to `stop`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import math
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.sinks.webhook.client import Client
from penstock.sinks.webhook.delivery import Delivery, Means
from penstock.sinks.webhook.entries import Entries
from penstock.sinks.webhook.wants import Want, fixed_of
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from penstock.sinks.webhook.options import WebhookOptions
    from penstock.sinks.webhook.rows import Kept, ParkedRow
    from penstock.sinks.webhook.store import Store

_log = logging.getLogger(__name__)

_FIRST = asyncio.FIRST_COMPLETED
_MOST_LOOKUPS = 32
_MOST_FILTERS = 4


class Dispatcher:
    """Delivers what is published, and records how far it is. Methods are called from another thread.

    `is_paused`: whether it begins with sending nothing, until `resume`. `on_retry` is called, in the loop, before a request
    that repeats one which failed.
    """

    def __init__(
        self,
        store: Store,
        options: WebhookOptions,
        origin: str,
        on_retry: Callable[[], None] = lambda: None,
        *,
        is_paused: bool = False,
    ) -> None:
        self._on_retry = on_retry
        self._options = options
        self._origin = origin
        self._fixed = fixed_of(options)
        self._store = store  # a connection of its own
        self._client = Client(options, origin)
        self._entries = Entries(self._store)
        self._deliveries: dict[str, Delivery] = {}
        self._changing: dict[str, asyncio.Task[None]] = {}  # being ended, to begin anew
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._given_up = threading.Event()
        self._goes_on = asyncio.Event()
        if not is_paused:
            self._goes_on.set()
        self._revision = -1
        self._is_dirty = False
        self._keeping: asyncio.Task[None] | None = None
        self._filtering = ThreadPoolExecutor(_MOST_FILTERS, "webhook-filters")

    def start(self) -> None:
        """Begin to deliver.

        Raises:
            PenstockError: certificates cannot be read, or the database cannot be used.
        """
        self._loop = asyncio.new_event_loop()
        # Names are looked up there. A name server that does not answer holds a thread for a while.
        self._loop.set_default_executor(ThreadPoolExecutor(_MOST_LOOKUPS, "webhook-names"))
        self._thread = threading.Thread(target=self._loop.run_forever, name="webhooks", daemon=True)
        self._thread.start()
        self._run(self._begin())

    def publish(self, seq: int, *, is_first: bool = False) -> None:
        """There is something up to an entry; wait until those who keep up have it; at first, all who answer.

        A receiver that fails is not waited for; one that takes much longer than the fastest not either. Nobody is while
        it is paused.
        """
        if self._loop is not None:
            self._run(self._settle(seq, is_first=is_first))

    def pause(self) -> None:
        """Send nothing from now on; answers of what is under way count."""
        if self._loop is not None:
            self._run(self._set_going(goes_on=False))

    def resume(self) -> None:
        """Send again."""
        if self._loop is not None:
            self._run(self._set_going(goes_on=True))

    def has_handed_on(self) -> bool:
        """Whether all who do not fail have everything that is published."""
        published = self._entries.published
        return not self._changing and all(
            each.is_failing or each.is_ended or each.has_passed(published)
            for each in list(self._deliveries.values())
        )

    def give_up(self) -> None:
        """End every wait, from now on: what comes next begins with another dispatcher."""
        self._given_up.set()

    def stop(self) -> None:
        """End; requests under way have a moment to be answered. Nothing of it counts as failed."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        closing = asyncio.run_coroutine_threadsafe(self._end(), loop)
        concurrent.futures.wait([closing], timeout=4 * timing().webhook_stop_seconds)
        loop.call_soon_threadsafe(loop.stop)
        if self._thread is not None:
            self._thread.join(timing().webhook_stop_seconds)
            self._thread = None
        if not loop.is_running():
            loop.close()
        self._filtering.shutdown(wait=False, cancel_futures=True)
        self._store.close()
        self._deliveries.clear()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while True:
            try:
                return future.result(timing().webhook_step_seconds)
            except concurrent.futures.TimeoutError:
                if future.done():
                    raise
                if self._given_up.is_set():
                    future.cancel()
                    return None

    # --- in the loop ---------------------------------------------------------------------------

    async def _begin(self) -> None:
        # Never waits for another's transaction: that would hold up all requests.
        self._store.open(is_durable=False, patience_seconds=timing().webhook_open_seconds)
        self._store.set_patience(0.0)
        await self._client.open()
        self._entries.published = self._store.published
        self._refresh()
        self._keeping = asyncio.get_running_loop().create_task(self._keep())
        self._keeping.add_done_callback(_raise)

    async def _set_going(self, *, goes_on: bool) -> None:
        if goes_on:
            self._goes_on.set()
        else:
            self._goes_on.clear()

    async def _end(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
        seconds = timing().webhook_stop_seconds
        await asyncio.gather(*self._changing.values(), return_exceptions=True)
        await asyncio.gather(*(each.stop(seconds) for each in self._deliveries.values()))
        for _ in range(10):
            if self._record():
                break
            await asyncio.sleep(timing().webhook_busy_seconds)
        await self._client.close()

    async def _keep(self) -> None:
        """Record how far deliveries are, and see what people have changed."""
        while True:
            await asyncio.sleep(timing().webhook_record_seconds)
            try:
                self._record()
                if self._store.revision != self._revision:
                    self._refresh()
            except sqlite3.OperationalError as error:
                _log.debug("the database is busy", exc_info=error)

    async def _settle(self, seq: int, *, is_first: bool) -> None:
        if self._store.revision != self._revision:
            self._refresh()
        known, self._entries.published = self._entries.published, max(self._entries.published, seq)
        waited = [
            each
            for each in self._deliveries.values()
            if not each.is_failing and not each.is_ended and (is_first or each.has_passed(known))
        ]
        for each in self._deliveries.values():
            each.wake()
        if self._goes_on.is_set():
            await self._wait_for(waited, seq)
        for _ in range(10):
            if self._record():
                return
            await asyncio.sleep(timing().webhook_busy_seconds)

    async def _wait_for(self, waited: list[Delivery], seq: int) -> None:
        """The fastest may take its time; the others, as much again as it, and their patience more.

        As soon as somebody has everything without a request of this, the patience alone: it waits for nothing but the
        others. Who is left has what it has not had in the outbox, and goes on there by itself.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        left = {loop.create_task(each.passed(seq)): each for each in waited}
        begun = {each.id: each.begun for each in waited}
        until = math.inf  # to which comes the patience with those who are left
        is_idle = False
        try:
            while left:
                if not is_idle and self._has_idle(seq, begun):
                    is_idle, until = True, min(until, loop.time())
                rest = until + max(each.patience for each in left.values()) - loop.time()
                if rest <= 0:
                    break
                # Then look who has caught up meanwhile.
                step = min(rest, timing().webhook_step_seconds)
                done, _ = await asyncio.wait(left, timeout=step, return_when=_FIRST)
                for task in done:
                    each = left.pop(task)
                    if task.result() and each.begun > begun[each.id]:
                        until = min(until, 2 * loop.time() - began)
                        _trust(each)
        finally:
            for task, each in left.items():
                task.cancel()
                each.patience *= 0.25

    def _has_idle(self, seq: int, begun: dict[str, int]) -> bool:
        """Whether a receiver that answers has everything, and was sent nothing of it."""
        return any(
            each.has_passed(seq) and each.begun == begun.get(each.id, each.begun)
            for each in self._deliveries.values()
            if not each.is_failing and not each.is_ended
        )

    def _refresh(self) -> None:
        """Begin, change and end deliveries as subscriptions are stored now."""
        revision = self._store.revision
        stored = {each.id: each for each in self._store.subscriptions()}
        loop = asyncio.get_running_loop()
        for id_, delivery in list(self._deliveries.items()):
            kept = stored.get(id_)
            if kept is None or kept.epoch != delivery.epoch:
                del self._deliveries[id_]
                self._changing[id_] = changing = loop.create_task(self._change(delivery))
                changing.add_done_callback(_raise)
        for id_, kept in stored.items():
            # One at a time to a subscription: who is being ended begins anew by itself.
            if id_ not in self._deliveries and id_ not in self._changing:
                self._start(kept)
        self._revision = revision
        for id_ in self._store.asked():
            asked = self._deliveries.get(id_)
            if asked is not None and not asked.is_ended:
                asked.answer_requests()
            elif id_ not in self._changing:  # else who begins anew does it
                self._drop_asked(id_)

    def _drop_asked(self, id_: str) -> None:
        """Forget what a person wants dropped of a subscription that has ended: nobody else does, and it may never be resumed."""
        try:
            self._store.drop_asked(id_)
        except sqlite3.OperationalError:  # busy: `_keep` does it
            self._revision = -1

    async def _change(self, ending: Delivery) -> None:
        """End a delivery, and begin another where it got to, if it is still to be delivered to."""
        try:
            await ending.stop(timing().webhook_stop_seconds)
            while (news := ending.take_news()) is not None:
                try:
                    self._store.record([news])
                except sqlite3.OperationalError:
                    ending.put_back(news)
                    await asyncio.sleep(timing().webhook_busy_seconds)
            kept = self._store.subscription(ending.id)
            if kept is not None:
                self._start(kept)
        finally:
            del self._changing[ending.id]

    def _parked_now(self, id_: str) -> list[ParkedRow] | None:
        """What is parked for a subscription, once everything is recorded; None while it cannot be."""
        return self._store.parked(id_) if self._record() else None

    def _start(self, kept: Kept) -> None:
        if kept.state != "active":
            return
        means = Means(
            options=self._options,
            entries=self._entries,
            client=self._client,
            origin=self._origin,
            filtering=self._filtering,
            goes_on=self._goes_on,
            on_news=self._set_dirty,
            on_retry=self._on_retry,
        )
        delivery = Delivery(
            kept,
            Want.of(kept, self._fixed),
            self._store.parked(kept.id),
            means,
            parked_now=partial(self._parked_now, kept.id),
        )
        self._deliveries[kept.id] = delivery
        delivery.start()

    def _set_dirty(self) -> None:
        self._is_dirty = True

    def _record(self) -> bool:
        """Record what there is to record; False where the database is busy."""
        if not self._is_dirty:
            return True
        self._is_dirty = False
        found = [(each, news) for each in self._deliveries.values() if (news := each.take_news())]
        if not found:
            return True
        try:
            self._store.record([news for _, news in found])
        except sqlite3.OperationalError:
            for each, news in found:
                each.put_back(news)
            return False
        return True


def _trust(delivery: Delivery) -> None:
    """It has kept up: it is waited for a little longer the next time."""
    most = timing().webhook_patience_seconds
    delivery.patience = min(most, delivery.patience + most / 20)


def _raise(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("deliveries: %s", type(error).__name__, exc_info=error)
