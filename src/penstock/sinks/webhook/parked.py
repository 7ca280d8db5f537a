"""Documents that receivers refused, as people are shown them, and what they ask for."""

from __future__ import annotations

import json
import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.errors import SinkError
from penstock.lsn import Lsn
from penstock.sinks.parked import ParkedEntry
from penstock.sinks.webhook.database import database_of
from penstock.sinks.webhook.store import store_of
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from penstock.sinks.kind import SinkPlace
    from penstock.sinks.webhook.options import WebhookOptions
    from penstock.sinks.webhook.rows import ParkedRow
    from penstock.sinks.webhook.store import Store


@contextmanager
def opened(place: SinkPlace[WebhookOptions]) -> Iterator[Store | None]:
    """The database of a sink, for a command; None where there is none yet.

    Raises:
        SinkError: it cannot be asked.
    """
    path = database_of(place)
    if not path.exists():
        yield None
        return
    store = store_of(place)
    try:
        store.open()
        yield store
    except (sqlite3.Error, OSError) as error:
        raise SinkError(
            f"the database of subscriptions cannot be used: {error}", str(path), "try again"
        ) from None
    finally:
        store.close()


def parked_entries(place: SinkPlace[WebhookOptions]) -> list[ParkedEntry]:
    """What is parked; the id says for which subscription."""
    with opened(place) as store:
        return [] if store is None else [_entry(row) for row in store.parked()]


def _entry(row: ParkedRow) -> ParkedEntry:
    document = json.loads(row.document)
    return ParkedEntry(
        id=_id(row),
        table=TableName(document["schema"], document["table"]),
        op=document["op"],
        key=document["key"],
        commit_lsn=str(Lsn(document["commit_lsn"])),
        reason=row.reason,
        parked_at=row.parked_at,
        request=row.request,
        values=_values(document["value"]),
    )


def _values(text: str) -> Any:
    """A document; as its text where it is nested too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        return text


def _id(row: ParkedRow) -> str:
    return f"{row.subscription}/{row.id}"


def _numbers(store: Store, ids: Collection[str]) -> list[int]:
    wanted = set(ids)
    return [row.number for row in store.parked() if _id(row) in wanted]


def ask_parked(place: SinkPlace[WebhookOptions], action: str, ids: Collection[str]) -> None:
    """Leave a request for who delivers."""
    with opened(place) as store:
        if store is not None:
            store.ask_parked(action, _numbers(store, ids))


def drop_parked(place: SinkPlace[WebhookOptions], ids: Collection[str]) -> None:
    """Forget documents for good."""
    with opened(place) as store:
        if store is not None:
            store.drop_parked(_numbers(store, ids))
