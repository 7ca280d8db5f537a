"""Documents -> bodies of requests, in the form that a subscription asks for.

- `penstock`: the documents themselves; with a batch size above one always a JSON array.
- `cloudevents`: CloudEvents 1.0, structured; with a batch size above one in batch mode.
- `pgstream`: `{"Data": event}`, one at a time, as its webhook notifier sends them.
"""

from __future__ import annotations

import enum
import hashlib
import json
import urllib.parse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.lsn import Lsn
from penstock.sinks.webhook.doc import time_of
from penstock.sinks.webhook.pgstream import pgstream_event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.sinks.webhook.doc import Doc


class TooDeep(Exception):
    """A document has JSON that is nested too deeply for a format that must read it."""


class Format(enum.StrEnum):
    """What a request carries."""

    PENSTOCK = "penstock"
    CLOUDEVENTS = "cloudevents"
    PGSTREAM = "pgstream"


@dataclass(frozen=True)
class Message:
    """A request before it is signed. `id` is the same whenever the same documents are sent."""

    id: str
    body: bytes
    headers: dict[str, str]


def message_of(
    docs: Sequence[Doc], format_: Format, origin: str, *, is_batch: bool = False
) -> Message:
    """The request for some documents.

    Args:
        docs: one, or with `is_batch` any number.
        format_: what the receiver wants.
        origin: what CloudEvents call the source.
        is_batch: an array, whatever the number.

    Raises:
        TooDeep: it cannot be said in the format.
    """
    if format_ is Format.PENSTOCK:
        texts, kind = [each.value for each in docs], "application/json"
    elif format_ is Format.CLOUDEVENTS:
        texts = [_cloud_event(each, origin) for each in docs]
        kind = f"application/cloudevents{'-batch' if is_batch else ''}+json"
    else:
        texts, kind = [_pgstream_text(each) for each in docs], "application/json"
    body = f"[{','.join(texts)}]" if is_batch else texts[0]
    message_id = _message_id(docs)
    headers = {
        "content-type": kind,
        "idempotency-key": _idempotency_key(docs, message_id),
        "webhook-id": message_id,
    }
    if format_ is Format.PGSTREAM and docs[0].op != "read":
        headers["x-pgstream-lsn"] = str(Lsn(docs[0].commit_lsn))
    return Message(message_id, body.encode(), headers)


def _pgstream_text(doc: Doc) -> str:
    try:
        return pgstream_event(doc)
    except RecursionError:
        raise TooDeep from None


def _message_id(docs: Sequence[Doc]) -> str:
    """The document's id; of several, one that says which they are: repeats may be cut differently."""
    # A table's name may be in it, and that may be anything. What is signed is cut at full stops.
    first = urllib.parse.quote(docs[0].id, safe=":/").replace(".", "%2E")
    if len(docs) == 1:
        return first
    all_ids = "\n".join(each.id for each in docs)
    return f"{first}+{hashlib.sha256(all_ids.encode()).hexdigest()[:16]}"


def _idempotency_key(docs: Sequence[Doc], message_id: str) -> str:
    """The document's id as it is, where a header can hold it."""
    id_ = docs[0].id
    is_fit = len(docs) == 1 and id_.isascii() and id_.isprintable() and id_ == id_.strip()
    return id_ if is_fit else message_id


def _cloud_event(doc: Doc, origin: str) -> str:
    attributes: dict[str, Any] = {
        "specversion": "1.0",
        "id": doc.id,
        "source": origin,
        "type": f"penstock.{doc.op}",
        "subject": f"{doc.schema}.{doc.table}",
        "datacontenttype": "application/json",
    }
    if doc.committed_at is not None:
        attributes["time"] = time_of(doc.committed_at).isoformat().replace("+00:00", "Z")
    # The document as it is: parsed and written again, its numbers could differ.
    return f'{json.dumps(attributes, ensure_ascii=False)[:-1]}, "data": {doc.value}}}'
