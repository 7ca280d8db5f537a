"""Entries of the outbox as deliveries read them: decoded once, for all subscriptions that are near one another."""

from __future__ import annotations

import json
from collections import OrderedDict
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.documents import DOCUMENTS
from penstock.errors import ModifierError
from penstock.sinks.documents.parts import read_messages
from penstock.sinks.webhook.doc import Doc
from penstock.sinks.webhook.filters import JUDGED
from penstock.sinks.webhook.formats import message_of
from penstock.sinks.webhook.typed import STORED
from penstock.table import TableName

if TYPE_CHECKING:
    from penstock.sinks.webhook.filters import Filter
    from penstock.sinks.webhook.formats import Format, Message
    from penstock.sinks.webhook.rows import Entry
    from penstock.sinks.webhook.store import Store
    from penstock.sinks.webhook.wants import Want

# Those that are catching up read each entry for themselves, a little ahead of one another.
_KEPT_BYTES = 32 * 1024 * 1024
_KEPT_MESSAGES = 1024
_KEPT_BODY_BYTES = 16 * 1024


class Documents:
    """The documents of one entry."""

    def __init__(self, entry: Entry) -> None:
        self.seq = entry.seq
        self.commit_lsn = entry.commit_lsn
        self.size = len(entry.documents)
        self._types: list[str] = json.loads(entry.types or "[]")
        schema = DOCUMENTS if entry.types is None else STORED
        self._batch: pa.RecordBatch = next(iter(read_messages(entry.documents, schema)))

    @cached_property
    def docs(self) -> list[Doc]:
        """All of them, as objects: each becomes a request of its own, or part of one."""
        columns = [self._batch.column(name) for name in Doc._fields[:-2]]
        at = self._batch.column("committed_at").cast(pa.int64())
        types = [None if number is None else self._types[number] for number in self._numbers]
        rows = zip(*(each.to_pylist() for each in (*columns, at)), types, strict=True)
        return [Doc(*row) for row in rows]

    @cached_property
    def _kinds(self) -> tuple[list[tuple[TableName, str]], np.ndarray[Any, Any]]:
        """The tables and operations that there are, and which of them each document is of."""
        names = [self._batch.column(name) for name in ("schema", "table", "op")]
        encoded = pc.binary_join_element_wise(*names, "\0").dictionary_encode()
        kinds = []
        for text in encoded.dictionary.to_pylist():
            schema, table, op = text.split("\0")
            kinds.append((TableName(schema, table), op))
        return kinds, encoded.indices.to_numpy()

    def wanted(self, want: Want, from_row: int) -> tuple[list[int], ModifierError | None]:
        """Which documents somebody wants, from one on; up to where the filter cannot be computed, and why."""
        rows = self._chosen(want, from_row)
        return (rows, None) if want.filter is None else self._filtered(want.filter, rows)

    def _filtered(self, filter_: Filter, rows: list[int]) -> tuple[list[int], ModifierError | None]:
        alike: dict[tuple[Any, ...], list[int]] = {}
        numbers = self._numbers
        found = []
        for row in rows:
            doc = self.docs[row]
            if doc.op in JUDGED:
                alike.setdefault((doc.schema, doc.table, numbers[row]), []).append(row)
            else:
                found.append(row)
        failed: ModifierError | None = None
        end = len(self.docs)
        for (*_, number), some in alike.items():
            types = None if number is None else self._types[number]
            try:
                matched = filter_.matches([self.docs[row] for row in some], types)
            except ModifierError as error:
                if some[0] < end:
                    failed, end = error, some[0]
                continue
            found += [row for row, is_wanted in zip(some, matched, strict=True) if is_wanted]
        return sorted(row for row in found if row < end), failed

    @cached_property
    def _numbers(self) -> list[int | None]:
        if "types_number" not in self._batch.schema.names:
            return [None] * len(self._batch)
        numbers: list[int | None] = self._batch.column("types_number").to_pylist()
        return numbers

    def _chosen(self, want: Want, from_row: int) -> list[int]:
        kinds, indices = self._kinds
        chosen = np.array([want.chooses(table, op) for table, op in kinds], np.bool_)
        found = np.flatnonzero(chosen[indices])
        wanted: list[int] = found[found >= from_row].tolist()
        return wanted


class Entries:
    """The outbox, with what was read last."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[int, Documents] = OrderedDict()
        self._size = 0
        self._messages: dict[tuple[str, Format], Message] = {}
        self.published = 0

    def at(self, seq: int) -> Documents | None:
        """The first entry at or after one; None where there is none yet."""
        if seq > self.published:
            return None
        found = self._kept.get(seq)
        if found is None:
            entry = self._store.entry(seq)
            if entry is None:
                return None
            found = self._kept.get(entry.seq)
            if found is None:
                found = Documents(entry)
                self._keep(found)
        self._kept.move_to_end(found.seq)
        return found

    def message(self, doc: Doc, format_: Format, origin: str) -> Message:
        """The request for one document: made once for all subscriptions that are near one another."""
        key = (doc.id, format_)
        found = self._messages.get(key)
        if found is None:
            found = message_of((doc,), format_, origin)
            if len(found.body) > _KEPT_BODY_BYTES:
                return found
            if len(self._messages) >= _KEPT_MESSAGES:
                self._messages.clear()
            self._messages[key] = found
        return found

    def _keep(self, documents: Documents) -> None:
        self._kept[documents.seq] = documents
        self._size += documents.size
        while self._size > _KEPT_BYTES and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._size -= oldest.size
