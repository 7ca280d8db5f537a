"""The net effect of documents: of each `_id` the last one, with what was not sent filled in from before.

What an update left alone and the server did not send is taken from an earlier document of the same deliver, or from the index
(by a realtime get). The write has the version of the change, so that a repeat of it, or of the get, does no harm: where the
index is ahead already, the write is refused as a conflict. A document that nobody has the values of is refused, never written
without them. Only documents that lack something are looked at one by one.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.sinks.search.client import (
    CONFLICT,
    NOT_FOUND,
    UNAVAILABLE,
    Answer,
    Digits,
    read_exactly,
)
from penstock.sinks.search.indexes import quoted
from penstock.sinks.search.names import ORDINAL, POSITION, UNCHANGED
from penstock.sinks.search.rows import partial
from penstock.sinks.search.versions import is_coarse

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from penstock.sinks.search.client import Client

_LEAD = b'{"%b":' % UNCHANGED.encode()
_MOST_IDS = 500
# Of documents that are read at once, and of how many such answers may be in memory.
READ_BYTES = 8 * 1024 * 1024
_MOST_ANSWERS = 8
_CURRENT = re.compile(r"current version \[([0-9]+)\]")
_NOT_THERE = (
    "some of its values were not sent, and no document has them:"
    " set REPLICA IDENTITY FULL, and have the table copied anew"
)
_MOVED_AWAY = (
    "its key changed, some of its values were not sent, and the document that had them is gone or"
    " overwritten: set REPLICA IDENTITY FULL, and have the table copied anew"
)


class TasksMixed(Exception):
    """A row has moved without all of its values, and other tasks may be writing where it was."""


@dataclass
class Net:
    """Which rows of a batch are written, with their sources; those that go first, and those that cannot be written."""

    rows: Any  # places in the batch
    sources: pa.Array
    first: set[int] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)


def is_partial(values: pa.Array) -> pa.Array:
    """Which documents lack values."""
    return pc.starts_with(values, pattern=_LEAD)


def in_portions(batch: pa.RecordBatch, client: Client) -> Iterator[pa.RecordBatch]:
    """A batch in its order, in parts for each of which no more is read than fits into memory: a change of some bytes may
    stand for a document of megabytes. As they come: the size of what the first has read says how large the others are."""
    lacking = np.flatnonzero(np.asarray(is_partial(batch.column("value"))))
    begin = done = 0
    while done + (most := client.read_at_once * _MOST_ANSWERS) < len(lacking):
        done += most
        end = int(lacking[done])
        yield batch.slice(begin, end - begin)
        begin = end
    yield batch.slice(begin) if begin else batch


def net_effect(
    batch: pa.RecordBatch,
    versions: Any,
    fetch: Callable[[Collection[str]], dict[str, dict[str, Any]]],
    is_ahead: Callable[[str, int], bool],
    *,
    alone: bool,
) -> Net:
    """The net effect of documents of one table, in their order.

    Args:
        batch: `RECORDS` of rows.
        versions: of the rows.
        fetch: documents of the index by their ids.
        is_ahead: whether a document that is not there was deleted by a later change than the one of a version.
        alone: whether nobody else writes the table meanwhile.

    Raises:
        TasksMixed: it has to be so, and is not.
    """
    ids, values = batch.column("record_key"), batch.column("value")
    lacking = np.asarray(is_partial(values))
    last = _last(ids)
    if not bool(lacking.any()):
        # Mostly each id is there once.
        return Net(last, values if len(last) == len(values) else values.take(pa.array(last)))
    return _Walk(batch, versions, lacking, fetch, alone).net(last, is_ahead)


def _last(ids: pa.Array) -> Any:
    """The place of the last row of each id, in ascending order."""
    encoded = ids.dictionary_encode()
    numbers = encoded.indices.to_numpy()
    found = np.full(len(encoded.dictionary), -1, np.int64)
    found[numbers] = np.arange(len(numbers))  # of equal numbers the last assignment stays
    return np.sort(found)


class _Walk:
    """Goes through rows one by one, of those ids that something lacks of."""

    def __init__(
        self, batch: pa.RecordBatch, versions: Any, lacking: Any, fetch: Any, alone: bool
    ) -> None:
        self._ids = [each.decode() for each in batch.column("record_key").to_pylist()]
        self._changes = batch.column("id").to_pylist()
        self._values = batch.column("value")
        ordinals = batch.column("ordinal").to_numpy()
        self._versions = versions
        self._ordinals = np.where(is_coarse(ordinals), ordinals, 0)
        self._parsed = {
            int(place): partial(self._values[int(place)].as_py())
            for place in np.flatnonzero(lacking)
        }
        moves = {place: each[1] for place, each in self._parsed.items() if each[1] is not None}
        if moves and not alone:
            raise TasksMixed
        self._moves = moves
        self._concerned = {self._ids[place] for place in self._parsed} | set(moves.values())
        self._there = fetch(self._concerned)

    def net(self, last: Any, is_ahead: Callable[[str, int], bool]) -> Net:
        known: dict[str, bytes] = {}
        made: dict[int, bytes] = {}
        # By id, changes since the last one that is known as a whole.
        unknown: dict[str, list[int]] = {}
        for place, one in enumerate(self._ids):
            if one not in self._concerned:
                continue
            source: bytes | None = self._values[place].as_py()
            if place in self._parsed:
                names, moved, rest = self._parsed[place]
                base = self._base(place, one if moved is None else moved, known, unknown)
                if base is not None and not self._has(base, names, place):
                    base = None
                source = None if base is None else filled(rest, base, names)
            if source is None:
                unknown.setdefault(one, []).append(place)
                continue
            unknown.pop(one, None)
            known[one] = made[place] = source
        refused = {
            self._changes[place]: _MOVED_AWAY if place in self._moves else _NOT_THERE
            for one, places in unknown.items()
            if not is_ahead(one, int(self._versions[places[-1]]))
            for place in places
        }
        rows = last[~np.isin(last, [places[-1] for places in unknown.values()])]
        sources = [made.get(place) or self._values[place].as_py() for place in rows.tolist()]
        return Net(rows, pa.array(sources, pa.large_binary()), set(self._moves), refused)

    def _base(
        self, place: int, one: str, known: dict[str, bytes], unknown: Collection[str]
    ) -> dict[str, Any] | None:
        """The document that has what was not sent, None where nobody has it."""
        own = self._ids[place]
        if one in unknown:
            return None
        if known.get(one):
            return _read(known[one])
        found = None if one in known else self._there.get(one)
        if one == own or (found is not None and not self._is_later(found, place)):
            return found
        # The row has moved, and what was there is gone or overwritten: unless it was done before, then it is here.
        written = self._there.get(own)
        return written if written is not None and self._is_later(written, place) else None

    def _has(self, document: dict[str, Any], names: list[str], place: int) -> bool:
        """Whether a document has what was not sent: not one from before a column was called so. Of one that is later
        the write is refused as a conflict, whatever it lacks."""
        return document.keys() >= set(names) or self._is_later(document, place)

    def _is_later(self, document: dict[str, Any], place: int) -> bool:
        """Whether a document is of a later change, or of the same one."""
        found = int(document.get(POSITION, 0)), int(document.get(ORDINAL, 0))
        return found >= (int(self._versions[place]), int(self._ordinals[place]))


def filled(rest: bytes, base: dict[str, Any], names: list[str]) -> bytes:
    """A document with fields of another one."""
    added = [f"{json.dumps(name)}:{_written(base[name])}" for name in names if name in base]
    if not added:
        return rest
    text = ",".join(added).encode(errors="surrogatepass")
    return b"{" + text + b"," + rest[1:]


def _read(text: bytes) -> dict[str, Any]:
    found: dict[str, Any] = read_exactly(text)
    return found


def _written(value: Any) -> str:
    """As JSON, numbers digit for digit."""
    if isinstance(value, Digits):
        return value
    if isinstance(value, list):
        return f"[{','.join(map(_written, value))}]"
    if isinstance(value, dict):
        inner = (f"{json.dumps(name)}:{_written(each)}" for name, each in value.items())
        return "{" + ",".join(inner) + "}"
    return json.dumps(value)


def fetch_documents(client: Client, alias: str, ids: Collection[str]) -> dict[str, dict[str, Any]]:
    """Documents as they are now, refreshed or not, by their ids."""
    found: dict[str, dict[str, Any]] = {}
    wanted = sorted(ids)
    while wanted:
        some, wanted = wanted[: client.read_at_once], wanted[client.read_at_once :]
        answer = client.ask("POST", f"/{quoted(alias)}/_mget", {"ids": some}, exact=True)
        # The server has all of an answer in memory, too.
        fit = READ_BYTES * len(some) // max(answer.size, 1)
        client.read_at_once = min(max(fit, 1), 2 * client.read_at_once, _MOST_IDS)
        for each in answer.content["docs"]:
            if "error" in each:
                # Its shard is away, say: that is no document that is not there.
                raise client.explained(Answer(UNAVAILABLE, each), "reading documents")
            if each.get("found"):
                found[each["_id"]] = each["_source"]
    return found


def is_deleted_since(client: Client, alias: str, one: str, version: int) -> bool:
    """Whether a document that is not there was deleted by a change later than that of a version.

    Asked by a delete under a version that none has, which the server refuses where it knows of the document: with the version
    that it knows. It remembers that of a delete for `gc_deletes`.
    """
    path = f"/{quoted(alias)}/_doc/{quoted(one)}?version=1&version_type=external_gte"
    answer = client.ask("DELETE", path, None, NOT_FOUND, CONFLICT)
    if answer.status != CONFLICT:
        return False
    found = _CURRENT.search(str(answer.content.get("error", {}).get("reason", "")))
    return found is not None and int(found[1]) > version
