"""Bulk requests: many writes of one index, sized by bytes, several at a time; and what the answers mean.

Each write has its version, so that a repeat changes nothing: 409 is success. Writes are of different documents: they may overtake
one another.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.changes.jsonvalues import json_column
from penstock.changes.textcolumns import concatenate, digits, join, raw_bytes
from penstock.errors import PenstockError, SinkError
from penstock.failpoints import fault_point
from penstock.retry import BackOff
from penstock.sinks.search.client import (
    CONFLICT,
    FORBIDDEN,
    LOGIN,
    NOT_FOUND,
    REFUSED,
    TOO_LARGE,
    TOO_MANY,
    Answer,
    is_read_only,
    reason_of,
)
from penstock.sinks.search.indexes import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.sinks.search.client import Client

_TEXT = 25
_TRIES = 10
_FILTER = "filter_path=error.type,items.*.status,items.*.error.type,items.*.error.reason"


# In an answer without errors: how many writes are done.
_DONE = "done"


def _read(text: bytes) -> Any:
    """An answer; of one without errors, as nearly all are, no more than how many writes it is to."""
    if b'"error"' not in text and text.startswith(b'{"items":['):
        return {_DONE: text.count(b'"status":')}
    return json.loads(text)


class IndexGone(Exception):
    """The index, or its alias, is not there."""


@dataclass(frozen=True)
class Writes:
    """Writes of different documents: for each its text, as a bulk request has it, and who asked for it."""

    texts: pa.Array  # binary
    owners: pa.Array  # ids of changes

    def __len__(self) -> int:
        return len(self.owners)

    def slice(self, begin: int, end: int) -> Writes:
        """Some of them."""
        return Writes(self.texts[begin:end], self.owners[begin:end])

    def take(self, places: Sequence[int]) -> Writes:
        """Some of them."""
        rows = pa.array(places, pa.int64())
        return Writes(self.texts.take(rows), self.owners.take(rows))

    def owner(self, place: int) -> str:
        """Who asked for one of them."""
        return str(self.owners[place].as_py())

    def cut(self, most_bytes: int, at_once: int) -> Iterator[Writes]:
        """In parts of at most so many bytes, each write whole; of several, so many times `at_once` that are as large as one another."""
        sizes = np.asarray(pa.compute.binary_length(self.texts)).astype(np.int64)
        ends = np.cumsum(sizes)
        count = -(-int(ends[-1]) // most_bytes)
        if count > 1:
            # Nobody is to wait for the last one alone.
            count = -(-count // at_once) * at_once
            most_bytes = min(most_bytes, int(ends[-1]) // count + int(sizes.max()))
        begin = 0
        while begin < len(self):
            done = int(ends[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, done + most_bytes, side="right")))
            yield self.slice(begin, end)
            begin = end


def writes(ids: pa.Array, versions: Any, sources: pa.Array | None, owners: pa.Array) -> Writes:
    """Writes of documents; deletes where there are no sources."""
    kind = b"delete" if sources is None else b"index"
    encoded = json_column(_TEXT, ids)
    parts: list[bytes | pa.Array] = [
        b'{"%b":{"_id":' % kind,
        encoded.prefix,
        encoded.values,
        encoded.suffix,
        b',"version":',
        digits(versions),
        b',"version_type":"external_gte"}}\n',
    ]
    if sources is not None:
        parts += [sources, b"\n"]
    return Writes(join(parts, len(owners)), owners)


def together(some: Sequence[Writes]) -> Writes:
    """All of them."""
    if len(some) == 1:
        return some[0]
    return Writes(
        concatenate([each.texts for each in some]), pa.concat_arrays([each.owners for each in some])
    )


class Bulk:
    """Sends writes. `bulk_bytes`: how large a request may be; `concurrency`: how many are under way at once."""

    def __init__(self, client: Client, bulk_bytes: int, concurrency: int) -> None:
        self._client = client
        self._bulk_bytes = bulk_bytes
        self._concurrency = concurrency

    def send(self, target: str, some: Writes, *, is_alias: bool) -> dict[str, str]:
        """Send writes to an index, or through an alias; those that are refused, and why.

        Raises:
            IndexGone: it is not there.
            PenstockError: some are not done, whatever was tried.
        """
        if not len(some):
            return {}
        path = f"/{quoted(target)}/_bulk?{_FILTER}"
        if is_alias:
            path += "&require_alias=true"
        parts = list(some.cut(self._bulk_bytes, self._concurrency))
        refused: dict[str, str] = {}
        if len(parts) == 1 or self._concurrency == 1:
            for part in parts:
                refused |= self._send(path, part)
                fault_point("search.between_requests")
            return refused
        with ThreadPoolExecutor(self._concurrency) as pool:
            for found in pool.map(lambda part: self._send(path, part), parts):
                refused |= found
        return refused

    def _send(self, path: str, part: Writes) -> dict[str, str]:
        refused: dict[str, str] = {}
        waits = BackOff()
        while True:
            answer = self._client.bulk(path, raw_bytes(part.texts), _read)
            if answer.status == TOO_LARGE:
                reason = "it is larger than the server's http.max_content_length"
                return refused | self._halved(path, part, reason)
            if answer.status == REFUSED:
                # For one of them, as a rule: the others are to go through.
                said = f"the server refuses the request: {answer.error_type}"
                return refused | self._halved(path, part, said)
            error: PenstockError | None = None
            again = list(range(len(part)))
            if answer.status < 300:
                again, error = self._judge(answer, part, refused)
                if not again:
                    return refused
            elif answer.status == NOT_FOUND:
                raise IndexGone
            if error is None:
                error = self._client.explained(answer, "writing documents")
                if answer.status < 500 and answer.status != TOO_MANY:
                    raise error
            if waits.attempt_count >= _TRIES:
                raise error
            part = part.take(again)
            self._client.wait(waits.next_seconds(), error)

    def _halved(self, path: str, part: Writes, reason: str) -> dict[str, str]:
        if len(part) == 1:
            return {part.owner(0): reason}
        middle = len(part) // 2
        first = self._send(path, part.slice(0, middle))
        return first | self._send(path, part.slice(middle, len(part)))

    def _judge(
        self, answer: Answer, part: Writes, refused: dict[str, str]
    ) -> tuple[list[int], PenstockError | None]:
        """Which writes are to be tried again, and why; what is refused for good goes to `refused`."""
        items = answer.content.get("items", ())
        done = answer.content.get(_DONE)
        count = len(items) if done is None else done
        if count != len(part):
            raise SinkError(
                f"{count} answers to {len(part)} writes",
                self._client.where,
                "nothing, penstock tries again by itself",
            )
        again: list[int] = []
        error: PenstockError | None = None
        for place, each in enumerate(items):
            item = next(iter(each.values()))
            status = item["status"]
            if status in (LOGIN, FORBIDDEN) and not is_read_only(item):
                raise self._client.explained(Answer(status, item), "writing documents")
            if status < 300 or status == CONFLICT:
                continue
            if status == NOT_FOUND:
                if "error" in item:
                    raise IndexGone
                continue  # a delete of what is not there
            if status == TOO_MANY or status >= 500 or is_read_only(item):
                again.append(place)
                error = self._explained(item)
            else:
                refused[part.owner(place)] = reason_of(item.get("error", {}))
        return again, error

    def _explained(self, item: dict[str, Any]) -> PenstockError:
        if is_read_only(item):
            raise self._client.read_only("writing documents")
        kind = item.get("error", {}).get("type", "")
        if kind == "unavailable_shards_exception":
            return self._client.unavailable("writing documents: shards are not there")
        return SinkError(
            f"documents are not taken: {item['status']} {kind}",
            self._client.where,
            "nothing, penstock tries again by itself",
        )
