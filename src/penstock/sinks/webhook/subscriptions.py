"""Who has subscribed to a webhook sink. Implements `penstock.sinks.subscriptions.Subscriptions`.

A pipeline of several sources has a database for each, and a subscription is in all of them, under one id.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from penstock.errors import BadValue, PenstockError, SinkError
from penstock.sinks.durable import make_directory
from penstock.sinks.status import SubscriptionStatus
from penstock.sinks.subscriptions import NoSubscription
from penstock.sinks.webhook.client import Client, Meaning
from penstock.sinks.webhook.database import database_of
from penstock.sinks.webhook.formats import Message
from penstock.sinks.webhook.options import Wanted
from penstock.sinks.webhook.parked import opened
from penstock.sinks.webhook.receivers import problem_with
from penstock.sinks.webhook.rows import secrets_now
from penstock.sinks.webhook.signature import key_of, new_secret
from penstock.sinks.webhook.status import End, status_of
from penstock.sinks.webhook.store import store_of
from penstock.sinks.webhook.wants import Want, as_stored, fixed_of
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from penstock.sinks.kind import SinkPlace
    from penstock.sinks.webhook.client import Answer
    from penstock.sinks.webhook.options import WebhookOptions
    from penstock.sinks.webhook.rows import Kept
    from penstock.sinks.webhook.store import Store

# Each costs connections and a place in every batch.
_MOST = 1000
_PGSTREAM_ACTIONS = {
    "I": ("insert", "read"),
    "U": ("update",),
    "D": ("delete",),
    "T": ("truncate",),
    "M": ("schema",),
}


class WebhookSubscriptions:
    """Those of one sink, at all its sources."""

    def __init__(self, places: Sequence[SinkPlace[WebhookOptions]]) -> None:
        self._places = places
        self._options = places[0].options
        self._where = f"sink {places[0].name}"

    def all(self) -> list[dict[str, Any]]:
        """All of them."""
        found: dict[str, dict[str, Any]] = {}
        for place in self._places:
            with opened(place) as store:
                if store is None:
                    continue
                counts = store.parked_counts()
                end = End.of(store)
                for kept in store.subscriptions():
                    shown = found.setdefault(kept.id, self._shown(kept))
                    stands = vars(status_of(kept, counts.get(kept.id, 0), end))
                    shown["sources"][place.source_id] = {"from_lsn": kept.from_lsn, **stands}
        not_begun = {made: self._pending(made) for made in fixed_of(self._options)}
        return list({**not_begun, **found}.values())

    def _pending(self, made: str) -> dict[str, Any]:
        """One of the file that no run has seen yet."""
        wanted = fixed_of(self._options)[made]
        stands = {"from_lsn": None, **vars(SubscriptionStatus("pending"))}
        return {
            "id": made,
            **as_stored(wanted),
            "is_signed": bool(wanted.secret),
            "is_fixed": True,
            "created_at": None,
            "sources": {place.source_id: stands for place in self._places},
        }

    def _shown(self, kept: Kept) -> dict[str, Any]:
        named = fixed_of(self._options).get(kept.id)
        is_signed = bool(secrets_now(kept.secrets)) or (named is not None and bool(named.secret))
        return {
            "id": kept.id,
            "filter": None,
            **kept.wanted,
            "is_signed": is_signed,
            "is_fixed": kept.is_fixed,
            "created_at": kept.created_at,
            "sources": {},
        }

    def get(self, id_: str) -> dict[str, Any]:
        """One."""
        for each in self.all():
            if each["id"] == id_:
                return each
        raise NoSubscription(id_)

    def create(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """A new one, signed: with the secret that was given, or with one of our own."""
        given = dict(wanted)
        secret = given.pop("secret", None)
        is_unsigned = secret is None and given.get("format") == "pgstream"
        read = self._read({**given, "secret": secret} if secret is not None else given)
        secret = None if is_unsigned else secret or new_secret()
        made = self._add(read, secret)
        shown = self.get(made)
        return {**shown, "secret": secret} if secret is not None else shown

    def _check_new(self, wanted: Wanted) -> None:
        self._check_receiver(wanted.url)
        if len(self.all()) >= _MOST:
            raise BadValue(f"there are {_MOST} subscriptions already", self._where, "remove some")

    def _add(self, wanted: Wanted, secret: str | None) -> str:
        self._check_new(wanted)
        made = _new_id()
        secrets = [(secret, None)] if secret is not None else []
        with self._all_made() as stores:
            try:
                for store in stores:
                    store.add(made, as_stored(wanted), secrets)
            except (PenstockError, sqlite3.Error):
                # Who asked knows neither its id nor its secret, and will ask again.
                for store in stores:
                    with suppress(sqlite3.Error):
                        store.remove(made)
                raise
        return made

    def change(self, id_: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Change some of what one wants."""
        before = self._changeable(id_)
        read, _ = self._changed(before, wanted)
        if read.url != before.wanted["url"]:
            self._check_receiver(read.url)

        def change(store: Store) -> None:
            # Others may change the rest of it meanwhile.
            while (kept := store.subscription(id_)) is not None:
                read, secrets = self._changed(kept, wanted)
                if store.change(kept, as_stored(read), secrets):
                    return

        self._at_each(change)
        return self.get(id_)

    def _changed(
        self, kept: Kept, wanted: Mapping[str, Any]
    ) -> tuple[Wanted, list[tuple[str, float | None]] | None]:
        """A subscription with what is to be changed, and its secrets where they change."""
        given = dict(wanted)
        secret = given.pop("secret", None)
        read = self._read(
            {**kept.wanted, **given, **({"secret": secret} if secret is not None else {})}
        )
        if secret is None:
            return read, None
        until = time.time() + timing().webhook_rotation_seconds
        old = [(each, until) for each in secrets_now(kept.secrets) if each != secret]
        return read, [(secret, None), *old[:1]]

    def resume(self, id_: str) -> dict[str, Any]:
        """Deliver again."""
        self.get(id_)
        self._at_each(lambda store: store.resume(id_))
        return self.get(id_)

    def remove(self, id_: str) -> None:
        """Forget one."""
        self._changeable(id_)
        self._remove(id_)

    def _remove(self, id_: str) -> None:
        self._at_each(lambda store: store.remove(id_))

    def subscribe(self, url: str, schema: str, table: str, actions: list[str]) -> None:
        """As pgstream's receivers do it: one for each url, schema and table; unsigned."""
        unknown = [each for each in actions if each not in _PGSTREAM_ACTIONS]
        if unknown:
            raise BadValue(
                f"event_types {unknown[0]!r}, wanted some of I, U, D, T, M",
                "event_types",
                "correct it",
            )
        rule = _rule(schema, table)
        wanted = self._read(
            {
                "url": url,
                "tables": [rule] if rule else [],
                "operations": [op for each in actions for op in _PGSTREAM_ACTIONS[each]],
                "format": "pgstream",
            }
        )
        if not self._of_pgstream(url, wanted):
            self._check_new(wanted)
        # Another request may do the same meanwhile: who is first at a database decides on the id.
        id_ = _new_id()
        with self._all_made() as stores:
            for store in stores:
                id_ = store.subscribe(id_, as_stored(wanted))

    def unsubscribe(self, url: str, schema: str, table: str) -> None:
        """As pgstream's receivers do it."""
        rule = _rule(schema, table)
        wanted = self._read({"url": url, "tables": [rule] if rule else [], "format": "pgstream"})
        for known in self._of_pgstream(url, wanted):
            self._remove(known)

    def _of_pgstream(self, url: str, wanted: Wanted) -> list[str]:
        tables = as_stored(wanted)["tables"]
        return [
            str(each["id"])
            for each in self.all()
            if (each["url"], each["tables"], each["format"]) == (url, tables, "pgstream")
            and not each["is_fixed"]
        ]

    def test(self, url: str) -> str:
        """Send a request without a document, in the form and signed as a subscription to the URL wants it."""
        read = self._read({"url": url})
        keys = self._keys_for(url)
        sent = {
            "id": f"test:{uuid.uuid4().hex}",
            "op": "test",
            "pipeline": self._places[0].pipeline,
        }
        headers = {"webhook-id": sent["id"], "idempotency-key": sent["id"]}
        headers["content-type"] = "application/json"
        message = Message(sent["id"], json.dumps(sent).encode(), headers)
        began = time.perf_counter()
        # In a thread of its own: a notebook runs an event loop in the caller's.
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(asyncio.run, self._send(read.url, message, keys)).result()
        took = 1000 * (time.perf_counter() - began)
        if answer.meaning is not Meaning.DONE:
            raise SinkError(
                f"the receiver did not take it: {answer.reason}",
                self._where,
                "correct it there; penstock itself would go by on_refused, or try again",
            )
        signed = "signed" if keys else "not signed"
        return f"taken in {took:.0f} ms; {signed}"

    async def _send(self, url: str, message: Message, keys: list[bytes]) -> Answer:
        client = Client(self._options, self._where)
        await client.open()
        try:
            return await client.send(url, message, keys)
        finally:
            await client.close()

    def _keys_for(self, url: str) -> list[bytes]:
        for each in self._options.urls:
            if each.url == url and each.secret:
                return [key_of(secret) for secret in each.secrets]
        with opened(self._places[0]) as store:
            for kept in store.subscriptions() if store is not None else ():
                if kept.wanted["url"] == url:
                    return Want.of(kept, {}).keys
        return []

    # --- how -----------------------------------------------------------------------------------

    @contextmanager
    def _all_made(self) -> Iterator[list[Store]]:
        """The databases of all sources, before anything is stored in one of them."""
        with ExitStack() as stack:
            stores = [stack.enter_context(self._made(place)) for place in self._places]
            yield [store for store in stores if store is not None]

    @contextmanager
    def _made(self, place: SinkPlace[WebhookOptions]) -> Iterator[Store | None]:
        """The database of a source, made where it is missing."""
        path = database_of(place)
        if not path.exists():
            if not (place.is_alone or place.state.exists()):
                raise SinkError(
                    "the pipeline has not been started yet",
                    self._where,
                    "start it, or make what it needs: penstock init PIPELINE.yml",
                )
            try:
                make_directory(path.parent)
                store_of(place).create()
            except (sqlite3.Error, OSError) as error:
                raise SinkError(
                    f"the database of subscriptions cannot be made: {error}", str(path), "try again"
                ) from None
        with opened(place) as store:
            yield store

    def _at_each(self, do: Callable[[Store], Any]) -> None:
        for place in self._places:
            with opened(place) as store:
                if store is not None:
                    do(store)

    def _changeable(self, id_: str) -> Kept:
        for place in self._places:
            with opened(place) as store:
                kept = store.subscription(id_) if store is not None else None
            if id_ in fixed_of(self._options) or (kept is not None and kept.is_fixed):
                raise BadValue(f"{id_} stands in the pipeline file", self._where, "change it there")
            if kept is not None:
                return kept
        raise NoSubscription(id_)

    def _check_receiver(self, url: str) -> None:
        if (problem := problem_with(url, self._options.addresses)) is not None:
            raise problem

    def _read(self, given: Mapping[str, Any]) -> Wanted:
        """What was asked for, checked. Values are not repeated: one may be a secret."""
        try:
            return Wanted.model_validate(given)
        except ValidationError as error:
            raise _as_bad_value(error) from None


def _new_id() -> str:
    return f"sub_{uuid.uuid4().hex[:20]}"


def _rule(schema: str, table: str) -> str:
    """As penstock names tables; pgstream's empty field means all."""
    if not schema and not table:
        return ""
    return f"{_quoted(schema)}.{_quoted(table)}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if name else "*"


def _as_bad_value(error: ValidationError) -> PenstockError:
    first = error.errors(include_input=False)[0]
    context = first.get("ctx") or {}
    path = ".".join(str(part) for part in (*first["loc"], *context.get("below", ())))
    known = context.get("error")
    if isinstance(known, PenstockError):
        return BadValue(known.what, path or known.where, known.do)
    wanted = context.get("wanted") or context.get("expected") or first["msg"]
    return BadValue(f"not what it should be, wanted {wanted}", path, "correct it")
