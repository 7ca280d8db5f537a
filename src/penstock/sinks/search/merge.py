"""The net effect of documents: of each `_id` the last one, with what was not sent filled in from before.

What an update left alone and the server did not send is taken from an earlier document of the same deliver, or from the index
(by a realtime get). The write has the version of the change, so that a repeat of it, or of the get, does no harm: where the
index is ahead already, the write is refused as a conflict. Only documents that lack something are looked at one by one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.sinks.search.indexes import quoted
from penstock.sinks.search.names import POSITION, UNCHANGED
from penstock.sinks.search.rows import partial

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from penstock.sinks.search.client import Client

_LEAD = b'{"%b":' % UNCHANGED.encode()
_DELETED = b""
_MOST_IDS = 500


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


def net_effect(
    batch: pa.RecordBatch,
    versions: Any,
    fetch: Callable[[Collection[str]], dict[str, dict[str, Any]]],
    *,
    alone: bool,
) -> Net:
    """The net effect of documents of one table, in their order.

    Args:
        batch: `RECORDS` of rows.
        versions: of the rows.
        fetch: documents of the index by their ids.
        alone: whether nobody else writes the table meanwhile.

    Raises:
        TasksMixed: it has to be so, and is not.
    """
    ids, values = batch.column("record_key"), batch.column("value")
    lacking = np.asarray(is_partial(values))
    last = _last(ids)
    if not bool(lacking.any()):
        return Net(last, values.take(pa.array(last)))
    return _Walk(batch, versions, lacking, fetch, alone).net(last)


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
        self._versions = versions
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

    def net(self, last: Any) -> Net:
        known: dict[str, bytes] = {}
        made: dict[int, bytes] = {}
        refused: dict[str, str] = {}
        for place, one in enumerate(self._ids):
            if one not in self._concerned:
                continue
            if place in self._parsed:
                names, moved, rest = self._parsed[place]
                base = self._base(place, moved if moved is not None else one, known)
                if base is None:
                    refused[self._changes[place]] = (
                        "its key changed, some of its values were not sent, and the document that"
                        " had them is overwritten: set REPLICA IDENTITY FULL, and have the table"
                        " copied anew"
                    )
                    continue
                known[one] = made[place] = filled(rest, base, names)
            else:
                known[one] = self._values[place].as_py()
        sources = [
            made.get(place) if place in made else self._values[place].as_py()
            for place in last.tolist()
        ]
        return Net(last, pa.array(sources, pa.large_binary()), set(self._moves), refused)

    def _base(self, place: int, one: str, known: dict[str, bytes]) -> dict[str, Any] | None:
        """The document that has what was not sent; {} where there is none, None where it is overwritten."""
        if one in known:
            return _read(known[one]) if known[one] else {}
        found: dict[str, Any] | None = self._there.get(one)
        if found is None:
            return {}
        is_later = found.get(POSITION, 0) >= int(self._versions[place])
        if is_later and place in self._moves:
            written = self._there.get(self._ids[place], {}).get(POSITION, 0)
            # Done before: then the write is refused as a conflict, whatever it says.
            return {} if written >= int(self._versions[place]) else None
        return found


def filled(rest: bytes, base: dict[str, Any], names: list[str]) -> bytes:
    """A document with fields of another one."""
    added = [f"{json.dumps(name)}:{_written(base[name])}" for name in names if name in base]
    if not added:
        return rest
    text = ",".join(added).encode(errors="surrogatepass")
    return b"{" + text + b"," + rest[1:]


def _read(text: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return found


def _written(value: Any) -> str:
    """As JSON, numbers digit for digit."""
    if isinstance(value, Decimal):
        return str(value)
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
    for begin in range(0, len(wanted), _MOST_IDS):
        body = {"ids": wanted[begin : begin + _MOST_IDS]}
        answer = client.ask("POST", f"/{quoted(alias)}/_mget", body, exact=True)
        for each in answer.content["docs"]:
            if each.get("found"):
                found[each["_id"]] = each["_source"]
    return found
