"""One subscription on its way: what it wants of the outbox, as requests, in order for each key, until somebody stops it.

Documents go through lanes, those of a key always through the same one, and each lane has one request under way. A truncate, a
change of a table, and an update that changes a key wait for all before them, and all behind wait for them.

When requests set out while something fails is said in `pace`. Nothing that happens to one subscription is waited for by
another.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import sys
import time
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.lsn import Lsn
from penstock.options import OnRefused
from penstock.sinks.webhook.client import Answer, Meaning
from penstock.sinks.webhook.doc import Doc
from penstock.sinks.webhook.formats import Message, TooDeep, message_of
from penstock.sinks.webhook.held import Held
from penstock.sinks.webhook.pace import Lane, Pace
from penstock.sinks.webhook.rows import Place, Progress
from penstock.sinks.webhook.track import Track
from penstock.timing import timing

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from penstock.errors import ModifierError
    from penstock.sinks.webhook.client import Client
    from penstock.sinks.webhook.entries import Documents, Entries
    from penstock.sinks.webhook.options import WebhookOptions
    from penstock.sinks.webhook.rows import Kept, ParkedRow
    from penstock.sinks.webhook.track import Ticket
    from penstock.sinks.webhook.wants import Want

_log = logging.getLogger(__name__)

_NONE = sys.maxsize
_WHOLE_TABLE = ("truncate", "schema")
_KEY, _BEFORE = ',"key":', ',"before":'
_DECODER = json.JSONDecoder(parse_float=str)
# So many documents are read ahead of the slowest lane, at least.
_LEAST_WINDOW = 256
# But not more than this, unless a single document is larger.
_MOST_AHEAD_CHARACTERS = 4 * 1024 * 1024
# A request carries no more, unless a single document is larger: receivers bound what they take.
_MOST_BATCH_CHARACTERS = 512 * 1024


@dataclass(frozen=True)
class Means:
    """What all deliveries of a dispatcher have in common.

    `filtering` computes filters. Requests set out while `goes_on` is set. `on_news` is called when there is something to record: `take_news`.
    `on_retry` is called before a request that repeats one which failed.
    """

    options: WebhookOptions
    entries: Entries
    client: Client
    origin: str
    filtering: Executor
    goes_on: asyncio.Event
    on_news: Callable[[], None]
    on_retry: Callable[[], None]


class Delivery:
    """Delivers to one receiver, in the event loop of the dispatcher.

    `parked_now` records what there is to record and returns what is parked then, or None where that has to wait.
    """

    def __init__(
        self,
        kept: Kept,
        want: Want,
        parked: Sequence[ParkedRow],
        means: Means,
        *,
        parked_now: Callable[[], Sequence[ParkedRow] | None],
    ) -> None:
        self.id = kept.id
        self.epoch = kept.epoch
        self.state = kept.state
        self.want = want
        self._options = options = means.options
        self._entries = means.entries
        self._client = means.client
        self._origin = means.origin
        self._filtering = means.filtering
        self._on_news = means.on_news
        self._on_retry = means.on_retry
        self._parked_now = parked_now
        self._window = max(_LEAST_WINDOW, 4 * options.concurrency * want.batch_size)
        self._track = Track(kept.place)
        self._seq, self._row = kept.place
        self._lanes: dict[int, Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking: set[asyncio.Task[Any]] = set()  # those whose request is under way
        self._has_news = asyncio.Event()  # entries, or requests of people
        self._moved = asyncio.Event()  # as far as these two say
        self._awaited_seq, self._awaited_count = _NONE, 0
        self._pace = Pace(
            options.give_up_after,
            means.goes_on,
            kept.failing_since,
            kept.error,
            held_until=kept.held_until,
        )
        self._failing_since = kept.failing_since
        self._error = kept.error
        self._delivered = 0
        self._reported_lsn = 0
        self._held = Held(parked)
        self._is_asked = any(each.request for each in parked)  # while nobody delivered
        self._is_stopping = False
        self._news = Progress(kept.id, kept.epoch, kept.place, 0, None, None, None, kept.state)
        self._news.held_until = kept.held_until
        self.patience = timing().webhook_patience_seconds
        self.begun = 0  # documents that have set out, since it was made

    # --- what the dispatcher asks --------------------------------------------------------------

    def start(self) -> None:
        """Begin, or go on where it was."""
        self._begin(self._feed())

    def wake(self) -> None:
        """There are new entries."""
        self._has_news.set()

    def answer_requests(self) -> None:
        """People ask for something of what is parked."""
        self._is_asked = True
        self._has_news.set()

    @property
    def is_failing(self) -> bool:
        """Whether its receiver has not taken something yet that it was sent."""
        return self._failing_since is not None

    @property
    def is_ended(self) -> bool:
        """Whether nothing is delivered any more until a person says so."""
        return self.state != "active"

    def has_passed(self, seq: int) -> bool:
        """Whether everything up to an entry is settled."""
        return self._track.place.seq > seq

    async def passed(self, seq: int) -> bool:
        """Wait until it has; False where it fails, ends or is stopped instead."""
        while not self.has_passed(seq):
            if self.is_failing or self.is_ended or self._is_stopping:
                return False
            self._awaited_seq = seq
            self._moved.clear()
            await self._moved.wait()
        self._awaited_seq = _NONE
        return True

    async def stop(self, seconds: float) -> None:
        """End: requests under way are waited for a little, since their answers count."""
        feeding = [each for each in self._tasks if each.get_name() == "feed"]
        for task in feeding:
            task.cancel()
        self._is_stopping = True
        self._moved.set()
        if self._asking:
            await asyncio.wait(self._asking, timeout=seconds)
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def take_news(self) -> Progress | None:
        """What is to be recorded since it was asked last; None where nothing is."""
        news = self._news
        place, state = self._track.place, self.state
        is_same = (
            place == news.place
            and state == news.state
            and self._error == news.error
            and self._failing_since == news.failing_since
            and self._pace.held_until == news.held_until
            and not (news.parked or news.unparked or news.refused_again)
        )
        if is_same:
            return None
        news.place, news.state, news.error = place, state, self._error
        news.failing_since, news.delivered = self._failing_since, self._delivered
        news.held_until = self._pace.held_until
        if self._track.lsn != self._reported_lsn:
            self._reported_lsn = self._track.lsn
            news.delivered_lsn = _lsn_text(self._track.lsn)
        self._delivered = 0
        self._news = Progress(
            self.id, self.epoch, place, 0, None, self._failing_since, self._error, state
        )
        self._news.held_until = news.held_until
        return news

    def put_back(self, news: Progress) -> None:
        """It could not be recorded: it is still to be."""
        self._delivered += news.delivered
        if news.delivered_lsn is not None:
            self._reported_lsn = 0
        mine = self._news
        mine.parked = news.parked + mine.parked
        mine.unparked += news.unparked
        mine.refused_again |= news.refused_again
        mine.place = Place(-1)  # differs from any: recorded the next time
        self._on_news()

    # --- from the outbox to the lanes ----------------------------------------------------------

    async def _feed(self) -> None:
        while not self.is_ended:
            if self._is_asked:
                await self._answer_requests()
            try:
                documents = self._entries.at(self._seq)
            except sqlite3.OperationalError:  # busy with something of its own
                await asyncio.sleep(timing().webhook_busy_seconds)
                continue
            except PenstockError as error:  # encrypted with a key that is not given any more
                await self._until(0)
                self._end("suspended", f"{error.code} {error.what}")
                return
            if documents is None:
                self._has_news.clear()
                await self._has_news.wait()
                continue
            from_row = self._row if documents.seq == self._seq else 0
            await self._feed_entry(documents, from_row)
            self._seq, self._row = documents.seq + 1, 0

    async def _feed_entry(self, documents: Documents, from_row: int) -> None:
        rows, failed = await self._wanted(documents, from_row)
        for row in rows:
            doc = documents.docs[row]
            is_alone = _is_alone(doc)
            if is_alone:
                await self._until(0)
            elif len(self._track) >= self._window or self._track.size >= _MOST_AHEAD_CHARACTERS:
                # Down to the half, rather than awake for each that is settled.
                await self._until(self._window // 2, _MOST_AHEAD_CHARACTERS // 2)
            self._put(doc, self._track.begin(Place(documents.seq, row + 1), len(doc.value)))
            if is_alone:
                await self._until(0)
        if failed is not None:
            await self._until(0)
            self._end("suspended", f"its filter: {failed.where or self.id}: {failed.what}")
            return
        self._track.skip_to(Place(documents.seq + 1), documents.commit_lsn)
        self._note()

    async def _wanted(
        self, documents: Documents, from_row: int
    ) -> tuple[list[int], ModifierError | None]:
        if self.want.filter is None:
            return documents.wanted(self.want, from_row)
        # Other deliveries go on meanwhile.
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._filtering, documents.wanted, self.want, from_row)

    async def _until(self, count: int, size: int = 0) -> None:
        """Wait until at most so many documents are on their way, of this size together."""
        while len(self._track) > count or self._track.size > size:
            self._awaited_count = count
            self._moved.clear()
            await self._moved.wait()
        self._awaited_count = 0

    def _put(self, doc: Doc, ticket: Ticket) -> None:
        self.begun += 1
        number = _lane_of(doc, self._options.concurrency)
        lane = self._lanes.get(number)
        if lane is not None:
            lane.documents.append((doc, ticket))
            return
        self._lanes[number] = lane = self._pace.lane()
        lane.documents.append((doc, ticket))
        self._begin(self._go(number, lane))

    def _begin(self, work: Any) -> None:
        name = "feed" if work.__name__ == "_feed" else "lane"
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A defect of ours. The subscription stops, and says so; the others go on.
            _log.error("subscription %s: %s", self.id, type(error).__name__, exc_info=error)
            self._end("suspended", f"a defect: {type(error).__name__}; report it, then resume")

    async def _go(self, number: int, lane: Lane) -> None:
        """Send what is in a lane, until nothing is."""
        while lane.documents and not self.is_ended and not self._is_stopping:
            await self._deliver(lane, self._taken(lane.documents))
        if not lane.documents:
            del self._lanes[number]

    def _taken(self, waiting: deque[tuple[Doc, Ticket]]) -> list[tuple[Doc, Ticket]]:
        """The next documents of a lane, as many as one request may carry."""
        most = min(_MOST_BATCH_CHARACTERS, self._options.max_body_bytes)
        taken = [waiting.popleft()]
        size = len(taken[0][0].value)
        while waiting and len(taken) < self.want.batch_size:
            size += len(waiting[0][0].value)
            if size > most:
                break
            taken.append(waiting.popleft())
        return taken

    # --- documents and answers -----------------------------------------------------------------

    async def _deliver(self, lane: Lane, some: list[tuple[Doc, Ticket]]) -> None:
        """Have documents delivered, or parked; returns without either only when the subscription ends."""
        if self._held:
            some = [each for each in some if not self._waits(*each)]
        if not some:
            self._pace.forget(lane)
            self._stands()
            return
        answer = await self._send(lane, [doc for doc, _ in some])
        if answer.meaning is Meaning.DONE:
            self._delivered += len(some)
        elif answer.meaning is not Meaning.REFUSED:
            return
        elif len(some) > 1:
            for each in some:  # which one it is, nobody but the receiver knows
                if self.is_ended or self._is_stopping:
                    return  # the rest must not be parked before one that was not settled
                await self._deliver(lane, [each])
            return
        else:
            self._park(some[0][0], answer.reason)
        for _, ticket in some:
            self._track.settle(ticket)
        self._note()

    def _waits(self, doc: Doc, ticket: Ticket) -> bool:
        """Whether a document must wait behind one that is parked; then it is parked, too."""
        if not self._held.waits(doc._asdict()):
            return False
        self._park(doc, None)
        self._track.settle(ticket)
        self._note()
        return True

    def _park(self, doc: Doc, reason: str | None) -> None:
        if doc.id in self._held:  # it has come again
            return
        row = doc._asdict()
        self._held.add(row)
        self._news.parked.append((json.dumps(row), doc.id, reason))
        if reason is not None:
            _log.warning("subscription %s: a document is parked: %s", self.id, reason)

    async def _send(self, lane: Lane, docs: Sequence[Doc]) -> Answer:
        """Send documents until the receiver has taken or refused them, or the subscription ends."""
        message = self._message(docs)
        if isinstance(message, Answer):
            if len(docs) > 1:
                return message  # each by itself may fit
            if self._options.on_refused is OnRefused.PARK:
                self._pace.forget(lane)
                self._stands()
                return message
        while not self.is_ended and not self._is_stopping:
            async with self._pace.turn(lane):
                if self.is_ended or self._is_stopping:
                    break
                if isinstance(message, Answer):
                    self._fail(lane, message, is_sent=False)
                    continue
                if lane.failing_since is not None:
                    self._on_retry()
                answer = await self._try(lane, message)
            if answer.meaning in (Meaning.DONE, Meaning.REFUSED):
                return answer
        return Answer(Meaning.LATER)

    def _message(self, docs: Sequence[Doc]) -> Message | Answer:
        """The request for documents; where there can be none, why, as if the receiver had refused them."""
        format_ = self.want.format
        try:
            if self.want.batch_size > 1:
                message = message_of(docs, format_, self._origin, is_batch=True)
            else:
                message = self._entries.message(docs[0], format_, self._origin)
        except TooDeep:
            reason = f"it has JSON that is nested too deeply for format {format_.value}"
            return Answer(Meaning.REFUSED, reason)
        size, most = len(message.body), self._options.max_body_bytes
        if size <= most:
            return message
        return Answer(
            Meaning.REFUSED, f"its request would have {size} bytes, above max_body_bytes: {most}"
        )

    async def _try(self, lane: Lane, message: Message) -> Answer:
        began = time.monotonic()
        task = asyncio.current_task()
        assert task is not None, "called in a lane, or by _feed"
        self._asking.add(task)
        try:
            answer = await self._client.send(self.want.url, message, self.want.keys)
        finally:
            self._asking.discard(task)
        if answer.meaning is Meaning.REFUSED and self._options.on_refused is OnRefused.STOP:
            # It may take it later, once somebody has corrected something there.
            answer = Answer(Meaning.LATER, f"{answer.reason}; it refuses a document")
        if self.is_ended:  # while this was under way; why, is said already
            return answer
        if answer.meaning is Meaning.GONE:
            self._end("disabled", f"{answer.reason}: it does not want to be asked again")
        elif answer.meaning is Meaning.LATER:
            self._fail(lane, answer)
        else:
            self._pace.succeed(lane, began)
            self._stands()
        return answer

    def _fail(self, lane: Lane, answer: Answer, *, is_sent: bool = True) -> None:
        if answer.retry_after is not None:
            self._pace.hold(answer.retry_after)
        is_given_up = self._pace.fail(lane, answer.reason, is_sent=is_sent)
        self._stands()
        if is_given_up:
            self._end(
                "suspended", f"given up after {self._options.give_up_after:g} s: {lane.error}"
            )
        self._note()

    def _stands(self) -> None:
        """Say how it stands, where that has changed."""
        since, error = self._pace.failing_since, self._pace.error
        if self._failing_since is None and since is not None:
            _log.warning("subscription %s: %s; tried again", self.id, error)
        elif self._failing_since is not None and since is None:
            _log.info("subscription %s: the receiver answers again", self.id)
        if (since, error) != (self._failing_since, self._error) and not self.is_ended:
            self._failing_since, self._error = since, error
            self._note()

    def _end(self, state: str, error: str) -> None:
        _log.warning("subscription %s is %s: %s", self.id, state, error)
        self.state, self._error = state, error
        self._has_news.set()
        self._note()

    def _note(self) -> None:
        """Something has moved."""
        # Most documents that are settled are not what somebody waits for.
        if (
            len(self._track) <= self._awaited_count
            or self._track.place.seq > self._awaited_seq
            or self.is_failing
            or self.is_ended
        ):
            self._moved.set()
        self._on_news()

    # --- what people ask for -------------------------------------------------------------------

    async def _answer_requests(self) -> None:
        """Try parked documents again, in their order, or forget them; what is refused again stays."""
        self._is_asked = False
        await self._until(0)
        while (parked := self._parked_now()) is None:
            await asyncio.sleep(timing().webhook_busy_seconds)
        held = Held()
        for each in parked:
            row = json.loads(each.document)
            if each.request == "drop":
                self._news.unparked.append(each.number)
                continue
            waits = held.waits(row)
            if each.request == "retry" and not waits and await self._retry(each):
                continue
            held.add(row)
            if each.request == "retry" and waits and not (self.is_ended or self._is_stopping):
                # It is not tried by itself later, when what is in its way may have been dropped.
                self._news.refused_again[each.number] = each.reason
        self._held = held
        self._note()

    async def _retry(self, parked: ParkedRow) -> bool:
        """Send a parked document; whether it is delivered."""
        answer = await self._send(Lane(), [Doc(**json.loads(parked.document))])
        if answer.meaning is Meaning.DONE:
            self._delivered += 1
            self._news.unparked.append(parked.number)
            return True
        if answer.meaning is Meaning.REFUSED:
            self._news.refused_again[parked.number] = answer.reason
        return False


def _lane_of(doc: Doc, count: int) -> int:
    """The same for all documents of a key; of a table without one, for all of the table."""
    return zlib.crc32(f"{doc.schema}\0{doc.table}\0{doc.key or ''}".encode()) % count


def _is_alone(doc: Doc) -> bool:
    """Whether a document belongs to more than one key."""
    if doc.op in _WHOLE_TABLE:
        return True
    if doc.op != "update" or doc.key is None:  # without a key a table has one lane
        return False
    # The first is penstock's own: what stands before it has no objects, and texts have their quotes escaped.
    at = doc.value.index(_KEY) + len(_KEY)
    if doc.value.startswith(f'{doc.key},"before":null,', at):  # as most updates say
        return False
    key, at = _DECODER.raw_decode(doc.value, at)
    if not doc.value.startswith(_BEFORE, at):
        return True  # nobody knows
    try:
        before, _ = _DECODER.raw_decode(doc.value, at + len(_BEFORE))
    except RecursionError:  # JSON in the old row is nested that deeply
        return True
    return before is not None and any(
        before.get(name, value) != value for name, value in key.items()
    )


def _lsn_text(lsn: int) -> str | None:
    return str(Lsn(lsn)) if lsn else None
